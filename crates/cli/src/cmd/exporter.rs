//! `polyrail exporter`: the metrics of all engines of a host, for Prometheus.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use polyrail_config::Config;
use polyrail_metrics::Exporter;
use polyrail_report::exit;
use signal_hook::low_level::pipe;

use crate::config_args;
use crate::signals;
use crate::stdout::{complain, refuse, start_log, tell};
use crate::values::{OTHERS_WRITE, folder_of_sockets, socket_address};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where Prometheus scrapes; port 0 is any that is free.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9754",
        value_parser = socket_address)]
    listen: SocketAddr,

    /// Folder with the sockets of the processes: `metrics_listen=dir:FOLDER` there [default: /run/polyrail
    /// if this user may read it; else none: it asks all engines of this user].
    #[arg(long, value_name = "FOLDER", value_parser = folder_of_sockets())]
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  polyrail exporter                        all engines of this user
  curl http://127.0.0.1:9754/metrics
  POLYRAIL_METRICS_LISTEN=dir:/run/polyrail my-program        a program of another user
  polyrail exporter --dir /run/polyrail

docs/metrics.md (in packages: /usr/share/doc/polyrail/docs) describes the metrics, and how to set up
Prometheus and Grafana.";

/// Runs the subcommand until Ctrl-C.
pub(crate) fn run(args: &Args) -> ExitCode {
    let config = match Config::builder().env().build() {
        Ok(config) => config,
        Err(error) => return config_args::refuse(&error),
    };
    if let Err(error) = start_log(&config) {
        let help = Some(error.help().to_owned());
        return refuse(&error, help, config_args::code_of_log(&error));
    }
    let stopped = match stopped() {
        Ok(stopped) => stopped,
        Err(error) => {
            complain(&format!("signals: {error}"), None);
            return ExitCode::from(exit::ENVIRONMENT);
        }
    };
    let folder = args.dir.clone().or_else(packaged);
    let version = env!("CARGO_PKG_VERSION");
    let exporter = match Exporter::start(args.listen, folder.as_deref(), version) {
        Ok(exporter) => exporter,
        Err(error) => return refuse(&error, Some(error.help()), exit::ENVIRONMENT),
    };
    tell!("metrics are at http://{}/metrics", exporter.address());
    match &folder {
        Some(folder) if args.dir.is_none() => {
            tell!("they are those of the processes with a socket in {}", folder.display());
        }
        Some(_) => {}
        None => tell!(
            "they are those of this user's engines in this network namespace; for other users: --dir FOLDER here, \
             and POLYRAIL_METRICS_LISTEN=dir:FOLDER there"
        ),
    }
    // A signal writes a byte. Nothing else ends this read.
    match io::Read::read(&mut &stopped, &mut [0]) {
        Ok(_) => ExitCode::from(exit::OK),
        Err(error) => {
            complain(&format!("signals: {error}"), None);
            ExitCode::from(exit::ENVIRONMENT)
        }
    }
}

/// Folder that the packages make for sockets of metrics.
const PACKAGED: &str = "/run/polyrail";

/// Returns the folder of the packages if it exists, this user can read it and only its owner and group can write to it.
pub(super) fn packaged() -> Option<PathBuf> {
    let folder = Path::new(PACKAGED);
    let mode = fs::metadata(folder).ok()?.mode();
    let is_readable = mode & OTHERS_WRITE == 0 && fs::read_dir(folder).is_ok();
    is_readable.then(|| folder.to_owned())
}

/// Returns a stream that is readable once a signal asks this process to end.
fn stopped() -> io::Result<std::os::unix::net::UnixStream> {
    let (stopped, stop) = std::os::unix::net::UnixStream::pair()?;
    for signal in signals::ending() {
        pipe::register(signal, stop.try_clone()?)?;
    }
    Ok(stopped)
}
