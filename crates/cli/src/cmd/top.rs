//! `polyrail top`: shows what the engines of this machine do, second by second.

mod change;
mod find;
mod keys;
mod look;
mod show;
mod unseen;

use std::collections::VecDeque;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_report::exit;

use self::change::Watch;
use self::find::{Finder, WITHOUT_PID};
use self::keys::Keys;
use self::look::Look;
use self::show::Show;
use self::unseen::{none_seen, waiting};
use crate::fault::Fault;
use crate::signals;
use crate::stdout::{redraw, tell};
use crate::values::{number_within, time_within};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only the engines of this process [default: all that this user may see].
    #[arg(value_name = "PID", value_parser = number_within(1, 4_194_304))]
    pid: Option<u64>,

    /// Time between two looks.
    #[arg(long, value_name = "TIME", default_value = "1s",
        value_parser = time_within(SHORTEST, Duration::from_secs(3600), "200ms to 1h"))]
    interval: Duration,

    /// End after so many intervals [default: at Ctrl-C, on a terminal also at q].
    #[arg(long, value_name = "N", value_parser = number_within(1, 1_000_000_000))]
    count: Option<u64>,

    /// Print a JSON document on a line for each interval.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  polyrail top                                   all engines of this machine, while they run; q ends
  polyrail top 4711 --count 10 > rates.txt       one line for each rail and second
  polyrail top --json | jq '.processes[].engines[].rails[] | {name, sent_gb_per_s}'

docs/top.md (in packages: /usr/share/doc/polyrail/docs) describes the columns and the events.";

/// After a shorter interval, an engine would answer with the text of the look before.
const SHORTEST: Duration = Duration::from_millis(200);
/// Maximum time until Ctrl-C takes effect.
const PATIENCE: Duration = Duration::from_millis(100);

pub(crate) fn run(args: &Args) -> ExitCode {
    match execute(args) {
        Ok(()) => ExitCode::from(exit::OK),
        Err(fault) => fault.refuse(),
    }
}

fn execute(args: &Args) -> Result<(), Fault> {
    let stopped = signals::caught().map_err(|error| {
        Fault::environment(format!("signals: {error}"))
            .with_help("see `ulimit -a` and the free memory")
    })?;
    let pid = args.pid.and_then(|pid| u32::try_from(pid).ok());
    let mut finder = Finder::new(pid)?;
    let mut show = match args.json {
        true => Show::Json,
        false if io::stdout().is_terminal() => Show::Screen { events: VecDeque::new() },
        false => Show::Lines,
    };
    let is_screen = matches!(show, Show::Screen { .. });
    let keys = if is_screen { Keys::begin(&stopped) } else { None };
    let goes_on = |until| wait(until, &stopped, keys.as_ref());
    let mut first = finder.look();
    let waits = is_screen && pid.is_none() && args.count.is_none();
    while first.engines() == 0 {
        if !waits {
            return Err(nothing(pid, &first));
        }
        if redraw(&[show::HEAD.into(), waiting(&first.unseen)]).is_err()
            || !goes_on(first.at + args.interval)
        {
            return Ok(());
        }
        first = finder.look();
    }
    let mut next = first.at + args.interval;
    let mut watch = Watch::begin(first);
    let mut left = args.count;
    while left != Some(0) && goes_on(next) {
        let look = finder.look();
        // Skips the intervals in which this process was stopped.
        next = (next + args.interval).max(look.at);
        let interval = watch.next(look);
        if show.interval(&interval).is_err() {
            return Ok(());
        }
        if watch.is_empty() {
            match pid {
                Some(pid) => tell!("polyrail: the engines of process {pid} have ended"),
                None => tell!("polyrail: all engines have ended"),
            }
            return Ok(());
        }
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// Explains why the first look found no engine.
fn nothing(pid: Option<u32>, look: &Look) -> Fault {
    match pid {
        _ if !look.unseen.is_empty() => none_seen(&look.unseen),
        Some(pid) => {
            let allowed = "a process of this machine with one";
            Fault::usage("PID", pid, "the process has no engine", allowed).with_help(WITHOUT_PID)
        }
        None => Fault::environment("no process of this machine has an engine").with_help(
            "start one and look again; an engine is in every program that uses Polyrail, such as \
             `polyrail bench`",
        ),
    }
}

/// Sleeps. Returns `false` if the user asks for the end meanwhile.
fn wait(until: Instant, stopped: &AtomicBool, keys: Option<&Keys>) -> bool {
    while !stopped.load(Ordering::Relaxed) && !keys.is_some_and(Keys::is_q_pressed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(PATIENCE));
    }
    false
}
