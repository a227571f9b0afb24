//! `polyrail exporter`: the metrics of all engines of a host, for Prometheus.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use polyrail_config::Config;
use polyrail_metrics::Exporter;
use polyrail_report::exit;
use signal_hook::low_level::pipe;

use crate::config_args;
use crate::signals;
use crate::stdout::{complain, refuse, start_log, tell};
use crate::values::{folder_of_sockets, socket_address};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Where Prometheus scrapes; port 0 is any that is free.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9754",
        value_parser = socket_address)]
    listen: SocketAddr,

    /// Folder with the sockets of the processes: `metrics_listen=dir:FOLDER` there.
    #[arg(long, value_name = "FOLDER", default_value = "/run/polyrail",
        value_parser = folder_of_sockets())]
    dir: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  mkdir -m 700 ~/polyrail-metrics          (or /run/polyrail, which the packages make)
  POLYRAIL_METRICS_LISTEN=dir:$HOME/polyrail-metrics my-program
  polyrail exporter --dir ~/polyrail-metrics
  curl http://127.0.0.1:9754/metrics

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
    let exporter = match Exporter::start(args.listen, &args.dir, env!("CARGO_PKG_VERSION")) {
        Ok(exporter) => exporter,
        Err(error) => return refuse(&error, Some(error.help()), exit::ENVIRONMENT),
    };
    tell!("metrics are at http://{}/metrics", exporter.address());
    // A byte comes with a signal; nothing else ends it.
    match io::Read::read(&mut &stopped, &mut [0]) {
        Ok(_) => ExitCode::from(exit::OK),
        Err(error) => {
            complain(&format!("signals: {error}"), None);
            ExitCode::from(exit::ENVIRONMENT)
        }
    }
}

/// Is readable once somebody asks for the end.
fn stopped() -> io::Result<std::os::unix::net::UnixStream> {
    let (stopped, stop) = std::os::unix::net::UnixStream::pair()?;
    for signal in signals::ending() {
        pipe::register(signal, stop.try_clone()?)?;
    }
    Ok(stopped)
}
