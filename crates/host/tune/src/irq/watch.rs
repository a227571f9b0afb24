//! Finds the programs that change a plan's values back.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use polyrail_nic::{Event, Written};
use serde::Serialize;

use super::vectors::Vectors;
use crate::error::TuneError;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::target::Target;
use crate::verify::{State, verify};

/// Checks repeatedly whether a plan holds, and reports changes since the last check.
#[derive(Debug)]
pub struct Watch {
    plan: Plan,
    managed: Vec<Target>,
    /// The last state and value of each target.
    last: HashMap<Target, (State, Option<String>)>,
    online: Option<String>,
    /// Targets that this process has set since the last check.
    own: HashSet<Target>,
}

/// A value that has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sighting {
    pub target: Target,
    /// The owner of the value, for messages.
    pub what: String,
    /// The value that the plan wants.
    pub wanted: String,
    /// The current value; `None` if the target is gone.
    pub found: Option<String>,
    /// Whether the value is as planned again.
    pub is_good: bool,
    pub by: Writer,
}

/// The writer that changed a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "who")]
pub enum Writer {
    /// A process that wrote to the file.
    Process {
        pid: u32,
        name: String,
        command: String,
        /// The process's control group, which names the service.
        cgroup: String,
    },
    /// No process wrote to the file, so the kernel or a driver did.
    Kernel {
        /// An event at the same time, if there was one.
        because: Option<String>,
    },
    /// This process, as reported by [`Watch::set_again`].
    Own,
    /// Writes can't be watched here.
    Unknown,
}

impl Watch {
    /// Starts from the current state. `managed` are targets that the kernel places itself.
    ///
    /// # Errors
    /// [`TuneError`] if the machine can't be read.
    pub fn begin(
        machine: &mut dyn Machine,
        plan: Plan,
        managed: Vec<Target>,
    ) -> Result<Self, TuneError> {
        let mut watch =
            Self { plan, managed, last: HashMap::new(), online: None, own: HashSet::new() };
        watch.look(machine, &[], None)?;
        Ok(watch)
    }

    /// The plan that is watched.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Notes that this process has set these targets as planned.
    pub fn set_again(&mut self, targets: impl IntoIterator<Item = Target>) {
        self.own.extend(targets);
    }

    /// Number of values that were not as planned at the last check.
    pub fn off_plan(&self) -> usize {
        self.last.values().filter(|(state, _)| !state.holds()).count()
    }

    /// Returns the files to watch for writers.
    ///
    /// # Errors
    /// [`TuneError`] if the machine can't be read.
    pub fn files(&self, machine: &dyn Machine) -> Result<Vec<PathBuf>, TuneError> {
        let vectors = Vectors::read(machine.root())?;
        let mut files = Vec::new();
        for (target, ..) in self.plan.wanted() {
            match target {
                Target::Irq(id) => {
                    let Some(irq) = vectors.find(id) else { continue };
                    for name in ["smp_affinity", "smp_affinity_list"] {
                        files.push(machine.root().path(format!("/proc/irq/{irq}/{name}")));
                    }
                }
                Target::File { path } => files.push(machine.root().path(path)),
                _ => {}
            }
        }
        files.retain(|file| file.exists());
        Ok(files)
    }

    /// Returns the changes since the last call. `writes` are the writes seen meanwhile; `None`
    /// where writes can't be watched.
    ///
    /// # Errors
    /// [`TuneError`] if the machine can't be read.
    pub fn look(
        &mut self,
        machine: &mut dyn Machine,
        events: &[Event],
        writes: Option<&[Written]>,
    ) -> Result<Vec<Sighting>, TuneError> {
        let checked = verify(machine, &self.plan, &self.managed, std::time::Duration::ZERO)?;
        let online = crate::plan::online_cpus(machine.root())?;
        let moved = self.online.replace(online.clone()).filter(|before| *before != online);
        let moved = moved.map(|before| format!("CPUs online changed from {before} to {online}"));
        let mut sightings = Vec::new();
        for one in checked {
            let now = (one.state, one.found.clone());
            let before = self.last.insert(one.target.clone(), now);
            let is_good = one.state.holds();
            let changed = match &before {
                None => !is_good,
                Some((_, value)) => *value != one.found,
            };
            // A rival that writes the same wrong value again is reported each time.
            let files = one_target_files(machine, &one.target);
            let write = writes.and_then(|writes| {
                let own = std::process::id();
                let is_other = |write: &&Written| write.pid != own && files.contains(&write.path);
                writes.iter().rfind(is_other)
            });
            if !changed && (is_good || write.is_none()) {
                continue;
            }
            let is_own = self.own.remove(&one.target) && is_good;
            let last = || writes?.iter().rfind(|write| files.contains(&write.path));
            let by = match (if is_good { last() } else { write }, writes) {
                _ if is_own => Writer::Own,
                // irqbalance is a program, not a file, and the kernel does not start it.
                _ if one.target.is_balancer() => Writer::Unknown,
                (Some(write), _) => Writer::Process {
                    pid: write.pid,
                    name: write.name.clone(),
                    command: write.command.clone(),
                    cgroup: write.cgroup.clone(),
                },
                (None, None) => Writer::Unknown,
                (None, Some(_)) => Writer::Kernel { because: moved.clone().or(cause(events)) },
            };
            sightings.push(Sighting {
                target: one.target,
                what: one.what,
                wanted: one.wanted,
                found: one.found,
                is_good,
                by,
            });
        }
        Ok(sightings)
    }
}

fn one_target_files(machine: &mut dyn Machine, target: &Target) -> Vec<PathBuf> {
    let place = machine.place(target);
    let path = machine.root().path(&place);
    match target {
        Target::Irq(_) => vec![path.with_file_name("smp_affinity"), path],
        _ => vec![path],
    }
}

fn cause(events: &[Event]) -> Option<String> {
    let words = |event: &Event| match event {
        Event::Changed { nic, what } => Some(format!("{what} of {nic} were changed")),
        Event::Link { nic, is_up: true } => Some(format!("{nic} came up")),
        Event::Link { nic, is_up: false } => Some(format!("{nic} went down")),
        Event::Gone { nic } => Some(format!("{nic} went away")),
        Event::Overflow => None,
    };
    // A change of settings takes the link down and up, so the change is the cause.
    let changes = events.iter().filter(|event| matches!(event, Event::Changed { .. }));
    changes.chain(events).find_map(words)
}
