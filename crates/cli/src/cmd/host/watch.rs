//! `polyrail host watch`: names the process or driver that changes planned values.

use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyrail_nic::{Event, Events, WriteWatch};
use polyrail_report::exit;
use polyrail_tune::irq::{Sighting, Watch, Writer};
use polyrail_tune::{
    ApplyOptions, Effect, Machine, Outcome, RealDisk, TuneError, apply, refuse_disruptive,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::changes;
use super::output::{Document, SCHEMA_VERSION};
use super::place::{State, Where};
use super::session::Planned;
use crate::fault::Fault;
use crate::signals;
use crate::stdout::{say_to_reader, tell};
use crate::unwritten::NobodyReads;
use crate::values::{time, time_within};

#[derive(clap::Args)]
pub(super) struct WatchArgs {
    #[command(flatten)]
    pub(super) planned: Planned,

    /// The pause between looks where the system announces no change.
    #[arg(long, value_name = "TIME", default_value = "10s",
        value_parser = time_within(Duration::from_millis(10), Duration::from_secs(3600), "10ms to 1h"))]
    every: Duration,

    /// End after this long [default: at Ctrl-C].
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    limit: Option<Duration>,

    /// Set the values again as planned whenever they have changed.
    #[arg(long)]
    enforce: bool,
}

/// Sources that announce changes. Each may be unavailable.
struct Ears {
    events: Option<Events>,
    writes: Option<WriteWatch>,
}

pub(super) fn run(args: &WatchArgs, place: &Where) -> Result<ExitCode, Fault> {
    if args.enforce {
        place.require_writable()?;
    }
    let plan = args.planned.read(place)?;
    if args.enforce {
        // No guard undoes `--enforce`. So refuse plans that may cut the link to this host.
        refuse_disruptive(&plan, &place.reach()?, false).map_err(|error| {
            Fault::from(error).with_help("watch without --enforce, or name `irq`")
        })?;
    }
    let managed = changes::managed(place, &args.planned.state)?;
    let mut machine = place.machine();
    // The next look sees changes made between this look and the start of listening, but can't name the writer.
    let mut watch = Watch::begin(&mut machine, plan, managed)?;
    let mut ears = Ears::open(&machine, &watch, true)?;
    // If this fails, a signal ends the process at once, which loses nothing.
    let stopped = signals::caught().unwrap_or_default();
    tell!("polyrail: watching {} values", watch.plan().wanted().count());
    let end = args.limit.map(|limit| Instant::now() + limit);
    let mut seen = watch.off_plan();
    if seen > 0 {
        tell!(
            "polyrail: {seen} of them differ from the plan already; `polyrail host verify{}` names them",
            args.planned.argument()
        );
        if args.enforce {
            enforce(place, &args.planned.state, &mut machine, &mut watch)?;
        }
    }
    loop {
        let now = Instant::now();
        if stopped.load(Ordering::Relaxed) || end.is_some_and(|end| now >= end) {
            break;
        }
        let until_end = end.map_or(args.every, |end| end - now);
        ears.wait(args.every.min(until_end));
        let (events, writes) = ears.take();
        let sightings = watch.look(&mut machine, &events, writes.as_deref())?;
        let told = sightings.iter().try_for_each(|sighting| show(sighting, place.json));
        let bad = sightings.iter().filter(|sighting| !sighting.is_good).count();
        seen += bad;
        if bad > 0 && args.enforce {
            enforce(place, &args.planned.state, &mut machine, &mut watch)?;
        }
        // Continue with --enforce after the reader of the output has gone.
        if told.is_err() && !args.enforce {
            break;
        }
        if !events.is_empty() {
            // The vectors may have other files now.
            ears = Ears::open(&machine, &watch, false)?;
        }
    }
    // A value that differed from the plan at any time, even at the beginning, makes the exit code 1.
    Ok(match seen {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(exit::VERDICT),
    })
}

impl Ears {
    fn open(machine: &dyn Machine, watch: &Watch, say: bool) -> Result<Self, TuneError> {
        if !machine.root().is_live() {
            return Ok(Self { events: None, writes: None });
        }
        let note = |what: &str, error: &dyn std::fmt::Display| {
            if say {
                tell!("polyrail: {what}: {error}");
            }
        };
        let events = Events::open();
        let events = events.inspect_err(|error| note("drivers are not heard", error)).ok();
        let files = watch.files(machine)?;
        let writes = WriteWatch::open(&files);
        let writes = writes.inspect_err(|error| note("who writes is not seen", error)).ok();
        Ok(Self { events, writes })
    }

    /// Waits for an announcement or the time limit.
    fn wait(&self, limit: Duration) {
        let mut sources = Vec::new();
        if let Some(events) = &self.events {
            sources.extend(events.sources());
        }
        if let Some(writes) = &self.writes {
            sources.push(writes.source());
        }
        let mut polled: Vec<PollFd<'_>> =
            sources.iter().map(|source| PollFd::new(source, PollFlags::IN)).collect();
        let limit = Timespec::try_from(limit).ok();
        // A signal ends the wait early, as it should.
        let _ = poll(&mut polled, limit.as_ref());
    }

    fn take(&mut self) -> (Vec<Event>, Option<Vec<polyrail_nic::Written>>) {
        let events = self.events.as_mut().and_then(|events| events.take().ok());
        let writes = self.writes.as_ref().and_then(|writes| writes.take().ok());
        (events.unwrap_or_default(), writes)
    }
}

fn show(sighting: &Sighting, as_json: bool) -> Result<(), NobodyReads> {
    let text = match as_json {
        true => {
            let (schema_version, fields) = (SCHEMA_VERSION, sighting);
            // Text, numbers and lists of them always have a JSON form.
            serde_json::to_string(&Document { schema_version, fields }).unwrap_or_default()
        }
        false => line(sighting),
    };
    say_to_reader(&text)
}

fn line(sighting: &Sighting) -> String {
    let Sighting { what, target, wanted, found, is_good, by } = sighting;
    let found = found.as_deref().unwrap_or("gone");
    let by = match by {
        Writer::Process { pid, name, command, cgroup } => {
            let cgroup = if cgroup.is_empty() { String::new() } else { format!(", {cgroup}") };
            format!("by {name} (process {pid}: {command}{cgroup})")
        }
        Writer::Kernel { because: Some(because) } => format!("by the kernel: {because}"),
        Writer::Kernel { because: None } => {
            "by the kernel or a driver: no process wrote".to_owned()
        }
        Writer::Own => "by this `host watch --enforce`".to_owned(),
        Writer::Unknown => "by an unknown writer".to_owned(),
    };
    match is_good {
        true => format!("{what}, {target}: {found} again, as planned, {by}"),
        false => format!("{what}, {target}: {found} instead of {wanted}, {by}"),
    }
}

/// Applies the plan to the present values. Prints errors other than a missing right, so that the watch goes on.
///
/// # Errors
/// [`TuneError::Denied`] if a right is missing: trying again would not help.
fn enforce(
    place: &Where,
    state: &State,
    machine: &mut dyn Machine,
    watch: &mut Watch,
) -> Result<(), TuneError> {
    let options = ApplyOptions { force: true, settle: Duration::ZERO, ..ApplyOptions::default() };
    match apply(machine, &mut RealDisk, &state.dir(place), watch.plan(), &options) {
        Ok(applied) => {
            let is_set = |one: &Outcome| matches!(one.effect, Effect::Ok | Effect::Pending);
            let set = applied.outcomes.into_iter().filter(is_set).map(|one| one.change.target);
            let set: Vec<_> = set.collect();
            tell!("polyrail: set again as planned: {} values", set.len());
            watch.set_again(set);
        }
        Err(error @ TuneError::Denied { .. }) => return Err(error),
        Err(error) => {
            Fault::from(error).refuse();
        }
    }
    Ok(())
}
