//! Carries out a plan, or leaves the host as it was.

use std::time::Duration;

use serde::Serialize;

use crate::error::TuneError;
use crate::host_id::HostId;
use crate::irq::Vectors;
use crate::journal::{Disk, Entry, Journal, StateDir};
use crate::lock::HostLock;
use crate::machine::{Machine, Meaning};
use crate::plan::{Change, Plan, Skipped};
use crate::reset::put_back;
use crate::target::Target;
use crate::verify::{State, state_of};

/// Options for carrying out a plan.
#[derive(Clone, Copy)]
pub struct ApplyOptions<'a> {
    /// Apply a plan that was made elsewhere or earlier: change the targets that match by identity
    /// and report the missing ones.
    pub force: bool,
    /// Maximum time to wait for interrupts to arrive at their new CPUs.
    pub settle: Duration,
    /// Time to wait between writes, to spread the disturbance of running traffic over time.
    pub pace: Duration,
    /// Called before each write; `true` rolls everything back.
    pub stop: &'a dyn Fn() -> bool,
    /// Called with the session once its backup is safe and before anything is changed.
    pub begun: &'a dyn Fn(&str),
}

/// The result of applying a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Applied {
    /// The session, which identifies the change for a rollback; `None` if there was nothing to do.
    pub session: Option<String>,
    /// The result of each change.
    pub outcomes: Vec<Outcome>,
    /// As [`Plan::skipped`].
    pub skipped: Vec<Skipped>,
}

/// The result of one change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    #[serde(flatten)]
    pub change: Change,
    pub effect: Effect,
}

/// The effect of one change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Written, read back, and in force.
    Ok,
    /// Written and read back; the interrupt moves when it fires next.
    Pending,
    /// Left alone: the kernel places this vector itself.
    Managed,
    /// Left alone: the driver refused or ignored an optional value.
    Refused,
    /// The target does not exist (only with force).
    Missing,
}

impl Default for ApplyOptions<'_> {
    fn default() -> Self {
        Self {
            force: false,
            settle: Duration::from_secs(2),
            pace: Duration::ZERO,
            stop: &|| false,
            begun: &|_| {},
        }
    }
}

const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Carries out a plan as one transaction: all of it, or nothing.
///
/// Vectors that the kernel places itself are skipped and reported; they are not a failure.
///
/// # Errors
/// * Before any change: the plan is for another machine or boot, the machine has changed since, a
///   right is missing, another instance is running, or the backup can't be written.
/// * [`TuneError::RolledBack`] if a write failed and the earlier ones were rolled back,
///   [`TuneError::HalfDone`] if the rollback failed, too.
pub fn apply(
    machine: &mut dyn Machine,
    disk: &mut dyn Disk,
    state: &StateDir,
    plan: &Plan,
    options: &ApplyOptions<'_>,
) -> Result<Applied, TuneError> {
    plan.check_files()?;
    check_host(machine, plan, options.force)?;
    require_rights(machine, plan.changes.iter().map(|change| &change.target))?;
    if plan.changes.is_empty() {
        let skipped = plan.skipped.clone();
        return Ok(Applied { session: None, outcomes: Vec::new(), skipped });
    }
    let _lock = HostLock::take(machine.root().is_live(), state)?;
    let differences = if options.force { Vec::new() } else { plan.differences(machine)? };
    if !differences.is_empty() {
        return Err(TuneError::Drifted { differences });
    }
    let (changes, missing) = present(machine, plan)?;
    let saved = collateral(machine, &changes)?;
    let here = HostId::read(machine.root())?;
    let mut journal = state.begin(disk, here, plan, &saved)?;
    (options.begun)(&journal.id);

    let mut effects = Vec::with_capacity(changes.len());
    for (number, change) in changes.iter().enumerate() {
        if number > 0 && !options.pace.is_zero() {
            machine.pause(options.pace);
        }
        let result = match (options.stop)() {
            true => Err(TuneError::Stopped),
            false => step(machine, &mut journal, number, change),
        };
        match result {
            Ok(effect) => effects.push(effect),
            Err(cause) => return Err(roll_back(machine, journal, &saved, &changes, number, cause)),
        }
    }
    if let Err(cause) = journal.add(&Entry::Committed) {
        let done = changes.len().saturating_sub(1);
        return Err(roll_back(machine, journal, &saved, &changes, done, cause));
    }
    settle(machine, &changes, &mut effects, options.settle)?;
    let outcomes = changes.into_iter().zip(effects);
    let outcomes = outcomes.map(|(change, effect)| Outcome { change, effect });
    let missing = missing.into_iter().map(|change| Outcome { change, effect: Effect::Missing });
    Ok(Applied {
        session: Some(journal.id),
        outcomes: outcomes.chain(missing).collect(),
        skipped: plan.skipped.clone(),
    })
}

/// Checks that each target may be written. Only a missing right is reported here; for every other fault, the write
/// itself gives a better error.
pub(crate) fn require_rights<'a>(
    machine: &mut dyn Machine,
    targets: impl Iterator<Item = &'a Target>,
) -> Result<(), TuneError> {
    let mut denied = targets.filter_map(|target| {
        machine.try_open(target).err().filter(|fault| fault.meaning(target) == Meaning::Denied)
    });
    match denied.next() {
        Some(first) => Err(TuneError::Denied { first, more: denied.count() }),
        None => Ok(()),
    }
}

/// Checks that a plan is for this machine and this boot; `force` accepts any plan.
///
/// # Errors
/// [`TuneError::OtherHost`] if it is not; an error of reading the machine's identity.
pub fn check_host(machine: &mut dyn Machine, plan: &Plan, force: bool) -> Result<(), TuneError> {
    if force {
        return Ok(());
    }
    let here = HostId::read(machine.root())?;
    if here.machine != plan.host.machine {
        let for_what =
            format!("for the machine {}, and this is {}", plan.host.hostname, here.hostname);
        return Err(TuneError::OtherHost { for_what });
    }
    if here.boot_id != plan.host.boot_id {
        let for_what = "before this machine was booted".to_owned();
        return Err(TuneError::OtherHost { for_what });
    }
    Ok(())
}

/// Returns the changes with their current values, and those whose target is missing.
fn present(
    machine: &mut dyn Machine,
    plan: &Plan,
) -> Result<(Vec<Change>, Vec<Change>), TuneError> {
    let (mut present, mut missing) = (Vec::new(), Vec::new());
    for change in &plan.changes {
        match machine.read(&change.target)? {
            Some(old) if old == change.new => {}
            Some(old) => present.push(Change { old, ..change.clone() }),
            None => missing.push(change.clone()),
        }
    }
    Ok((present, missing))
}

/// Reads the values that drivers may change as a side effect when the settings of an interface
/// change: the affinities of its vectors, its RSS table and the files that steer its packets.
fn collateral(
    machine: &mut dyn Machine,
    changes: &[Change],
) -> Result<Vec<(Target, String)>, TuneError> {
    let mut nics: Vec<&str> = changes
        .iter()
        .filter(|change| change.target.resets_link())
        .filter_map(|change| match &change.target {
            Target::Ethtool { nic, .. } => Some(nic.as_str()),
            _ => None,
        })
        .collect();
    nics.dedup();
    let mut saved = Vec::new();
    for nic in nics {
        let vectors = Vectors::read(machine.root())?;
        let irqs = vectors.of_nic(nic).map(|vector| Target::Irq(vector.id.clone()));
        let folder = format!("/sys/class/net/{nic}/queues");
        let queues = machine.root().list_optional(&folder)?;
        let steering = queues.iter().map(|queue| {
            let file = if queue.starts_with("tx-") { "xps_cpus" } else { "rps_cpus" };
            Target::File { path: format!("{folder}/{queue}/{file}") }
        });
        let rss = [Target::Rss { nic: nic.to_owned() }];
        for target in rss.into_iter().chain(irqs).chain(steering).collect::<Vec<_>>() {
            // Steering files of interfaces with one queue return an error; there is nothing to save
            // then.
            if let Ok(Some(old)) = machine.read(&target) {
                saved.push((target, old));
            }
        }
    }
    Ok(saved)
}

/// Makes one write with its lines in the journal.
fn step(
    machine: &mut dyn Machine,
    journal: &mut Journal<'_>,
    number: usize,
    change: &Change,
) -> Result<Effect, TuneError> {
    let Change { target, old, new, .. } = change;
    journal.add(&Entry::Write {
        number,
        target: target.clone(),
        old: old.clone(),
        new: new.clone(),
    })?;
    match write_and_read(machine, target, new) {
        Ok(()) => {
            journal.add(&Entry::Written { number })?;
            Ok(Effect::Ok)
        }
        Err(TuneError::Fault(fault)) if fault.meaning(target) == Meaning::Managed => {
            journal.add(&Entry::Managed { number })?;
            Ok(Effect::Managed)
        }
        Err(TuneError::Fault(fault)) if fault.meaning(target) == Meaning::Denied => {
            Err(TuneError::Denied { first: fault, more: 0 })
        }
        Err(error) if change.is_wish => {
            // A driver that ignores a value may have set another one.
            if machine.read(target)?.as_deref() != Some(old) {
                write_and_read(machine, target, old)?;
            }
            journal.add(&Entry::Refused { number, error: error.to_string() })?;
            Ok(Effect::Refused)
        }
        Err(error) => {
            if let TuneError::Fault(fault) = &error {
                // The write has already failed. Report that even if the journal can't record it.
                let _ = journal.add(&Entry::Failed { number, error: fault.to_string() });
            }
            Err(error)
        }
    }
}

fn write_and_read(
    machine: &mut dyn Machine,
    target: &Target,
    value: &str,
) -> Result<(), TuneError> {
    write(machine, target, value)?;
    require_taken(machine, target, value)
}

/// Reads a written value back. Some drivers set another value and report no error.
pub(crate) fn require_taken(
    machine: &mut dyn Machine,
    target: &Target,
    value: &str,
) -> Result<(), TuneError> {
    let found = machine.read(target)?.unwrap_or_default();
    match same(target, &found, value) {
        true => Ok(()),
        false => Err(TuneError::NotTaken {
            what: machine.place(target),
            wanted: value.to_owned(),
            found,
        }),
    }
}

/// Writes a value, and retries transient failures.
pub(crate) fn write(
    machine: &mut dyn Machine,
    target: &Target,
    value: &str,
) -> Result<(), TuneError> {
    for attempt in 1.. {
        match machine.write(target, value) {
            Ok(()) => return Ok(()),
            Err(fault) if fault.meaning(target) == Meaning::Transient && attempt < ATTEMPTS => {
                machine.pause(PAUSE);
            }
            Err(fault) => return Err(fault.into()),
        }
    }
    Ok(())
}

/// Whether a value that was read equals the one that was written. The kernel formats masks and
/// spaces in its own way.
pub(crate) fn same(target: &Target, found: &str, wanted: &str) -> bool {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    if words(found) == words(wanted) {
        return true;
    }
    if matches!(target, Target::Irq(_)) {
        let list = polyrail_host::CpuSet::parse_list;
        return matches!((list(found), list(wanted)), (Ok(found), Ok(wanted)) if found == wanted);
    }
    let Target::File { path } = target else { return false };
    if !path.ends_with("_cpus") {
        return false;
    }
    let mask = polyrail_host::CpuSet::parse_mask;
    matches!((mask(found), mask(wanted)), (Ok(found), Ok(wanted)) if found == wanted)
}

/// Waits until interrupts arrive at their new CPUs, and marks those that have not.
fn settle(
    machine: &mut dyn Machine,
    changes: &[Change],
    effects: &mut [Effect],
    limit: Duration,
) -> Result<(), TuneError> {
    let mut waited = Duration::ZERO;
    loop {
        let mut pending = false;
        for (change, effect) in changes.iter().zip(effects.iter_mut()) {
            if !matches!(effect, Effect::Ok | Effect::Pending) {
                continue;
            }
            *effect = match state_of(machine, &change.target, &change.new)?.state {
                State::Pending => Effect::Pending,
                _ => Effect::Ok,
            };
            pending |= *effect == Effect::Pending;
        }
        if !pending || waited >= limit {
            return Ok(());
        }
        machine.pause(PAUSE);
        waited += PAUSE;
    }
}

fn roll_back(
    machine: &mut dyn Machine,
    mut journal: Journal<'_>,
    saved: &[(Target, String)],
    changes: &[Change],
    last: usize,
    cause: TuneError,
) -> TuneError {
    let written = changes.iter().take(last + 1);
    let olds = written.map(|change| (change.target.clone(), change.old.clone()));
    let olds: Vec<_> = saved.iter().cloned().chain(olds).collect();
    let restored = put_back(machine, &olds);
    let failures: Vec<String> = restored.iter().filter_map(|one| one.failure.clone()).collect();
    if !failures.is_empty() {
        return TuneError::HalfDone { cause: Box::new(cause), failures };
    }
    // On a full disk this fails as the line before it did; a later reset finds nothing to do.
    let _ = journal.add(&Entry::Reset);
    let restored = restored.iter().filter(|one| one.found != one.value).count();
    TuneError::RolledBack { cause: Box::new(cause), restored }
}
