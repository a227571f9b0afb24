//! Checks that a plan still holds.

use std::time::Duration;

use polyrail_host::CpuSet;
use serde::Serialize;

use crate::apply::same;
use crate::error::TuneError;
use crate::machine::Machine;
use crate::plan::{Plan, online_cpus};
use crate::target::Target;

/// The current state of one value of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    pub target: Target,
    /// The owner of the value, for messages.
    pub what: String,
    /// The value that the plan wants.
    pub wanted: String,
    /// The value that is set; `None` if the target does not exist.
    pub found: Option<String>,
    /// For interrupts: the CPUs that they really go to, if the kernel reports them.
    pub effective: Option<String>,
    pub state: State,
    /// The reason, if it is not obvious.
    pub reason: Option<String>,
}

/// The state of one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Set, and in force.
    Ok,
    /// Set; the interrupt moves when it fires next.
    Pending,
    /// Not judged: the kernel places this vector itself, or the driver refused an optional value.
    Managed,
    /// Another value is set.
    Drift,
    /// The target does not exist.
    Missing,
}

impl State {
    /// The word that `host verify` prints.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Pending => "pending",
            Self::Managed => "skipped",
            Self::Drift => "drift",
            Self::Missing => "missing",
        }
    }

    /// Whether the value is as planned, or will be when the interrupt fires next.
    pub(crate) fn holds(self) -> bool {
        matches!(self, Self::Ok | Self::Pending | Self::Managed)
    }
}

/// Compares a plan with the machine. `managed` are targets that the kernel or a driver refused to
/// change; `wait` is the maximum time for pending interrupts to fire.
///
/// # Errors
/// [`TuneError`] if the machine can't be read.
pub fn verify(
    machine: &mut dyn Machine,
    plan: &Plan,
    managed: &[Target],
    wait: Duration,
) -> Result<Vec<Checked>, TuneError> {
    const PAUSE: Duration = Duration::from_millis(100);
    let mut waited = Duration::ZERO;
    loop {
        let found = look(machine, plan, managed)?;
        let pending = found.iter().any(|checked| checked.state == State::Pending);
        if !pending || waited >= wait {
            return Ok(found);
        }
        machine.pause(PAUSE);
        waited += PAUSE;
    }
}

/// Whether every value holds. `pending_is_good` sets whether pending interrupts are accepted.
pub fn is_good(checked: &[Checked], pending_is_good: bool) -> bool {
    checked.iter().all(|one| match one.state {
        State::Ok | State::Managed => true,
        State::Pending => pending_is_good,
        State::Drift | State::Missing => false,
    })
}

fn look(
    machine: &mut dyn Machine,
    plan: &Plan,
    managed: &[Target],
) -> Result<Vec<Checked>, TuneError> {
    let online = CpuSet::parse_list(&online_cpus(machine.root())?).unwrap_or_default();
    let mut found = Vec::new();
    for (target, what, wanted) in plan.wanted() {
        let mut checked = state_of(machine, target, wanted)?;
        what.clone_into(&mut checked.what);
        if managed.contains(target) {
            checked.state = State::Managed;
            checked.reason = Some(match target {
                Target::Irq(_) => "managed: the kernel places it itself".to_owned(),
                _ => "the driver refused it".to_owned(),
            });
        } else if matches!(target, Target::Irq(_)) && checked.state == State::Drift {
            let offline = CpuSet::parse_list(wanted).unwrap_or_default().difference(&online);
            if !offline.is_empty() {
                checked.reason = Some(format!("CPU {offline} is offline"));
            }
        }
        found.push(checked);
    }
    Ok(found)
}

/// Returns the state of one value; the caller fills in the owner.
pub(crate) fn state_of(
    machine: &mut dyn Machine,
    target: &Target,
    wanted: &str,
) -> Result<Checked, TuneError> {
    let mut checked = Checked {
        target: target.clone(),
        what: String::new(),
        wanted: wanted.to_owned(),
        found: machine.read(target)?,
        effective: None,
        state: State::Missing,
        reason: None,
    };
    let Some(found) = &checked.found else { return Ok(checked) };
    let Target::Irq(vector) = target else {
        checked.state = if same(target, found, wanted) { State::Ok } else { State::Drift };
        return Ok(checked);
    };
    checked.effective = machine.effective(vector)?;
    let cpus = |text: &str| CpuSet::parse_list(text).ok();
    checked.state = match (cpus(found), cpus(wanted)) {
        (Some(found), Some(wanted)) if found == wanted => {
            match checked.effective.as_deref().and_then(cpus) {
                Some(effective) if !effective.is_subset(&wanted) => State::Pending,
                _ => State::Ok,
            }
        }
        _ => State::Drift,
    };
    Ok(checked)
}
