//! `polyrail sample`: records what CPUs, interrupts, NICs, flows and threads do, second by second.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_report::{counted, exit, show_memory};
use polyrail_sample::{Options, SampleError, Sampler};
use polyrail_sys::files::{Opening, open_to_write, remove_opened};

use crate::fault::Fault;
use crate::files::OutFile;
use crate::machine_args::MachineCopy;
use crate::progress::Progress;
use crate::queue_stats::read_queues;
use crate::signals;
use crate::stdout::{Harmless, tell};
use crate::unwritten::to_stdout;
use crate::values::{file_to_write, interface, time_within};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Write to a new file in place of standard output.
    #[arg(long, value_name = "FILE", value_parser = file_to_write())]
    out: Option<OutFile>,

    /// Time between two samples.
    #[arg(long, value_name = "TIME", default_value = "1s",
        value_parser = time_within(Duration::from_millis(100), Duration::from_secs(3600), "100ms to 1h"))]
    interval: Duration,

    /// End after this time [default: at Ctrl-C].
    #[arg(long, value_name = "TIME",
        value_parser = time_within(Duration::from_millis(100), DAY, "100ms to 24h"))]
    time: Option<Duration>,

    /// Follow the threads and flows of these processes [default: those called polyrail].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pid: Vec<u32>,

    /// Only these interfaces [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = interface)]
    nic: Vec<String>,

    /// Read a copy of another machine's /proc and /sys, or an archive of `polyrail host snapshot`.
    #[arg(long, value_name = "DIR|FILE", value_parser = MachineCopy::parse)]
    sysroot: Option<MachineCopy>,
}

const EXAMPLES: &str = "\
Examples:
  polyrail sample --time 10s --out run.jsonl
  polyrail sample --pid 4711 | jq 'select(.record == \"sample\") | .cpus[] | select(.softirq_percent > 50)'
  polyrail bench --sample run.jsonl

docs/sample.md (in packages: /usr/share/doc/polyrail/docs) describes the records.";

pub(crate) fn run(args: &Args) -> ExitCode {
    match execute(args) {
        Ok(code) => ExitCode::from(code),
        Err(SampleError::Write { source, .. }) if args.out.is_none() => {
            let _ = to_stdout(Err(source));
            ExitCode::from(exit::OK)
        }
        Err(error) => Fault::from(error).refuse(),
    }
}

fn execute(args: &Args) -> Result<u8, SampleError> {
    let root = MachineCopy::root(args.sysroot.as_ref());
    let process_name = args.pid.is_empty().then(|| "polyrail".to_owned());
    let options = Options {
        interval: args.interval,
        pids: args.pid.clone(),
        process_name,
        interfaces: args.nic.clone(),
    };
    let mut sampler = Sampler::open(&root, options)?;
    if root.is_live() {
        sampler = sampler.with_queues(read_queues());
    }
    let file = match &args.out {
        Some(path) => Some((path, create(path)?)),
        None => None,
    };
    let (mut out, name): (Box<dyn Write + '_>, String) = match &file {
        Some((path, file)) => (Box::new(file), path.display().to_string()),
        None => (Box::new(Harmless::new(io::stdout().lock())), "standard output".into()),
    };
    let stopped = signals::caught().map_err(|source| SampleError::Thread { source })?;
    let mut left = args.time.map(|time| time.as_nanos().div_ceil(args.interval.as_nanos().max(1)));
    // Without a file, the lines on standard output show the progress.
    let progress = args.out.as_ref().map(|_| Progress::waiting("sampling"));
    if let (Some(progress), Some(time)) = (&progress, args.time) {
        progress.plan_time(time);
    }
    let goes_on = |time: Duration| {
        if left == Some(0) {
            return false;
        }
        left = left.map(|left| left - 1);
        sleep(time, &stopped)
    };
    let end = polyrail_sample::run(&mut sampler, &mut *out, &name, goes_on);
    drop((progress, out));
    if let (Err(_), Some((path, file))) = (&end, &file)
        && file.metadata().is_ok_and(|file| file.is_file() && file.len() == 0)
    {
        // An empty file would block the next try.
        let _ = remove_opened(path, file);
    }
    let end = end?;
    tell!(
        "{}; sampling took {:.2} % of a CPU and at most {} of memory",
        counted(end.samples, "sample"),
        end.cpu_percent,
        end.peak_rss_bytes.map_or("unknown".into(), show_memory)
    );
    Ok(exit::OK)
}

fn create(path: &Path) -> Result<std::fs::File, SampleError> {
    let failed = |source| SampleError::Write { path: path.into(), source };
    match open_to_write(path, Opening::New, 0o666) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            // Pipes and terminals exist already, too, and lose nothing.
            match path.metadata().map_err(failed)?.is_file() {
                true => Err(SampleError::Exists { path: path.into() }),
                false => open_to_write(path, Opening::Write, 0o666).map_err(failed),
            }
        }
        opened => opened.map_err(failed),
    }
}

/// Sleeps. Returns `false` if a signal asks for the end meanwhile.
fn sleep(time: Duration, stopped: &AtomicBool) -> bool {
    let until = Instant::now() + time;
    loop {
        if stopped.load(Ordering::Relaxed) {
            return false;
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(LOOK));
    }
}

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Maximum time until Ctrl-C takes effect.
const LOOK: Duration = Duration::from_millis(100);
