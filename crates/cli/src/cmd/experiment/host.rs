//! Factors of the host. Each level is a plan of the crate `tune`. It is applied before a cell, read back before and
//! after the measurement, and undone. The journals of these sessions are in the results folder, so changes that a
//! killed run left can be undone from there.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polyrail_experiment::{Experiment, Factor, Kind, Looks, Plan};
use polyrail_host::Topology;
use polyrail_tune::irq::{self, IrqMap, Policy, PolicyOptions};
use polyrail_tune::profile::{self, Profile};
use polyrail_tune::{
    ApplyOptions, Effect, Machine, Meaning, Plan as HostPlan, Reach, RealDisk, State, StateDir,
    SysMachine, TuneError, Which, apply, refuse_disruptive, reset, verify,
};

use super::folder::wording;
use crate::cmd::host::changes::read_argument;
use crate::cmd::host::place::{require_writable, ssh_interface};
use crate::fault::Fault;
use crate::machine_args::MachineCopy;
use crate::stdout::tell;

/// Folder of the journals, in the results folder.
pub(super) const FOLDER: &str = "host";
/// Time for interrupts to arrive at their new CPUs. A copy of a machine has no interrupts.
const SETTLE: Duration = Duration::from_secs(2);

/// The changes of each level of each factor of the host.
pub(super) struct HostFactors {
    machine: SysMachine,
    state: StateDir,
    /// Plans by factor and level; `None` if the level changes nothing.
    plans: Vec<Vec<Option<HostPlan>>>,
    /// Reason why a level can't be applied, by factor and level.
    denied: Vec<Vec<Option<String>>>,
    pub(super) notes: Vec<String>,
}

/// A cell's changes while they hold. [`Applied::undo`] undoes them; dropping this does, too, as in a panic.
pub(super) struct Applied<'a> {
    host: &'a mut HostFactors,
    sessions: Vec<String>,
    cell: Vec<usize>,
}

/// Undoes every session below this folder that still holds, newest first. Returns the number of values restored.
pub(super) fn undo_open(folder: &Path, sysroot: Option<&MachineCopy>) -> Result<usize, TuneError> {
    let state = StateDir::new(folder);
    let open: Vec<String> = state
        .sessions()?
        .into_iter()
        .filter(|session| session.is_open())
        .map(|session| session.id)
        .collect();
    if open.is_empty() {
        return Ok(0);
    }
    let mut machine = SysMachine::new(MachineCopy::root(sysroot));
    let mut values = 0;
    for id in open.into_iter().rev() {
        values += put_back(&mut machine, &state, id, false)?;
    }
    tell!("polyrail: undid what an experiment that was killed left: {values} values");
    Ok(values)
}

/// Refuses journals in a folder without results: they are not from an experiment.
pub(super) fn refuse_journals(journals: &Path, folder: &Path) -> Result<(), Fault> {
    match journals.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(_) => Err(wording(folder).fault(
            &format!("has a folder `{FOLDER}` for journals, but no results"),
            "name another folder with --out: no experiment has made this one",
        )),
    }
}

/// Fault of a change to the host. The journals are in the results folder, so the help doesn't name --state-dir.
pub(super) fn fault(error: TuneError) -> Fault {
    let help = match &error {
        TuneError::Journal { source, .. } => match source.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "free some space there",
            _ => "run it as a user who may read and write there",
        },
        TuneError::Untrusted { .. } => {
            "its journals decide what is written to this host: name a folder with --out that only root can change, \
             below folders that only root can change"
        }
        TuneError::HalfDone { .. } => {
            "`polyrail experiment undo` with the results folder tries again"
        }
        _ => return error.into(),
    };
    Fault::from(error).with_help(help)
}

/// Undoes a session. With `force`, also restores values that another program has set since.
fn put_back(
    machine: &mut SysMachine,
    state: &StateDir,
    id: String,
    force: bool,
) -> Result<usize, TuneError> {
    let mut restored = reset(machine, &mut RealDisk, state, "", &Which::Id(id), force)?;
    for left in restored.extract_if(.., |one| one.is_of_others) {
        tell!("polyrail: {} stays: {}", left.place, left.failure.unwrap_or_default());
    }
    let failures: Vec<String> = restored.iter().filter_map(|one| one.failure.clone()).collect();
    match failures.is_empty() {
        true => Ok(restored.len()),
        false => Err(TuneError::HalfDone { cause: Box::new(TuneError::Stopped), failures }),
    }
}

impl HostFactors {
    /// Makes a plan for each level without changing anything.
    pub(super) fn plan(
        experiment: &Experiment,
        state: PathBuf,
        file: &Path,
        sysroot: Option<&MachineCopy>,
    ) -> Result<Self, TuneError> {
        let mut host = Self {
            machine: SysMachine::new(MachineCopy::root(sysroot)),
            state: StateDir::new(state),
            plans: Vec::new(),
            denied: Vec::new(),
            notes: Vec::new(),
        };
        if experiment.factors.iter().any(|factor| factor.kind.is_of_host()) {
            require_writable(sysroot)?;
            host.state.check()?;
        }
        for factor in &experiment.factors {
            let (mut plans, mut denied) = (Vec::new(), Vec::new());
            for level in &factor.levels {
                let plan = host.plan_of(experiment, factor, level, file)?;
                denied.push(plan.as_ref().and_then(|plan| host.missing_right(plan)));
                plans.push(plan);
            }
            host.plans.push(plans);
            host.denied.push(denied);
        }
        Ok(host)
    }

    fn plan_of(
        &mut self,
        experiment: &Experiment,
        factor: &Factor,
        level: &str,
        file: &Path,
    ) -> Result<Option<HostPlan>, TuneError> {
        if !factor.kind.is_of_host() || matches!(level, "default" | "none") {
            return Ok(None);
        }
        let topology = Topology::read(self.machine.root()).map_err(TuneError::from)?;
        let plan = match factor.kind {
            Kind::Irq => self.irq_plan(&topology, experiment, level, file)?,
            _ => {
                let profile = profile_of(level, file)?;
                profile::plan(&mut self.machine, &topology, &profile, &experiment.nics)?
            }
        };
        let reach = Reach::read(
            self.machine.root(),
            match self.machine.root().is_live() {
                true => ssh_interface(self.machine.root()),
                false => None,
            },
        )?;
        refuse_disruptive(&plan, &reach, false)?;
        if plan.changes.is_empty() {
            let why = match plan.skipped.first() {
                Some(one) if plan.unchanged.is_empty() => format!("{} {}", one.what, one.reason),
                _ => "every value is so already".to_owned(),
            };
            self.notes.push(format!("{}={level} changes nothing on this host: {why}", factor.name));
            return Ok(None);
        }
        for warning in &plan.warnings {
            let note = format!("{}={level}: {warning}", factor.name);
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        Ok(Some(plan))
    }

    fn irq_plan(
        &mut self,
        topology: &Topology,
        experiment: &Experiment,
        level: &str,
        file: &Path,
    ) -> Result<HostPlan, TuneError> {
        let mut plan = match level.strip_prefix("map:") {
            Some(map) => {
                let path = beside(file, map);
                let name = path.display().to_string();
                let text = read_argument("irq", &path, "a map as docs/irq.md describes it")?;
                irq::plan_from_map(&mut self.machine, topology, &IrqMap::parse(&text, &name)?)?
            }
            None => {
                // `matched`: gives each queue its own core on the node of its interface.
                let found = Policy::ALL.iter().find(|(word, _)| *word == level);
                let policy = found.map_or(Policy::Split, |(_, policy)| *policy);
                let options =
                    PolicyOptions { nics: experiment.nics.clone(), ..PolicyOptions::default() };
                irq::plan(&mut self.machine, topology, policy, &options)?
            }
        };
        plan.warn_of_rivals(self.machine.root());
        Ok(plan)
    }

    /// Error of the first change of a plan that this user may not make.
    fn missing_right(&mut self, plan: &HostPlan) -> Option<String> {
        plan.changes.iter().find_map(|change| match self.machine.try_open(&change.target) {
            Err(fault) if fault.meaning(&change.target) == Meaning::Denied => {
                Some(fault.to_string())
            }
            _ => None,
        })
    }

    /// Returns the plan of the cells that can be measured here, its looks, and the other cells with their reasons.
    pub(super) fn cells_that_run(
        &self,
        experiment: &Experiment,
    ) -> Result<(Plan, Looks, Vec<String>), Fault> {
        let (all, looks) = experiment.plan(|_| true)?;
        let reason = |cell: &[usize]| {
            let levels = cell.iter().zip(&self.denied);
            levels.filter_map(|(level, denied)| denied[*level].clone()).next()
        };
        if let Some(reason) = reason(&all.cells[0]) {
            let message = format!("the baseline can't be measured here: {reason}");
            let help = "choose a `baseline` that needs no right that you lack";
            return Err(Fault::environment(message).with_help(help));
        }
        let left_out: Vec<String> = (0..all.cells.len())
            .filter_map(|cell| Some(format!("{}: {}", all.label(cell), reason(&all.cells[cell])?)))
            .collect();
        if left_out.is_empty() {
            return Ok((all, looks, left_out));
        }
        let (plan, looks) = experiment.plan(|cell| reason(cell).is_none())?;
        Ok((plan, looks, left_out))
    }

    /// Applies a cell's changes and reads them back. `stop` aborts between two writes, and nothing stays changed.
    pub(super) fn apply(
        &mut self,
        cell: &[usize],
        stop: &dyn Fn() -> bool,
    ) -> Result<Applied<'_>, TuneError> {
        let mut applied = Applied { host: self, sessions: Vec::new(), cell: cell.to_vec() };
        for (factor, level) in cell.iter().enumerate() {
            let host = &mut *applied.host;
            let Some(plan) = &host.plans[factor][*level] else { continue };
            let settle = if host.machine.root().is_live() { SETTLE } else { Duration::ZERO };
            let options = ApplyOptions { settle, stop, ..ApplyOptions::default() };
            // A failure drops `applied`, which undoes the plans applied before.
            let done = apply(&mut host.machine, &mut RealDisk, &host.state, plan, &options)?;
            for outcome in &done.outcomes {
                let why = match outcome.effect {
                    Effect::Ok | Effect::Pending => continue,
                    Effect::Managed => "the kernel places it itself",
                    Effect::Refused => "the driver refused it",
                    Effect::Missing => "it does not exist",
                };
                let note = format!("{} was left alone: {why}", outcome.change.what);
                if !host.notes.contains(&note) {
                    host.notes.push(note);
                }
            }
            applied.sessions.extend(done.session);
        }
        Ok(applied)
    }
}

impl Applied<'_> {
    /// Reads all values back. Returns a sentence about the first value that is not in force.
    pub(super) fn check(&mut self) -> Result<Option<String>, TuneError> {
        let host = &mut *self.host;
        let sessions = host.state.sessions()?;
        let managed: Vec<_> = sessions.into_iter().flat_map(|session| session.managed).collect();
        for (factor, level) in self.cell.iter().enumerate() {
            let Some(plan) = &host.plans[factor][*level] else { continue };
            let checked = verify(&mut host.machine, plan, &managed, Duration::ZERO)?;
            let off = checked.iter().find(|one| matches!(one.state, State::Drift | State::Missing));
            if let Some(one) = off {
                let found = one.found.as_deref().unwrap_or("nothing");
                return Ok(Some(format!(
                    "{} is {found}, not {}; another program changed it",
                    one.target, one.wanted
                )));
            }
        }
        Ok(None)
    }

    /// Restores every value.
    pub(super) fn undo(mut self) -> Result<(), TuneError> {
        while let Some(id) = self.sessions.pop() {
            put_back(&mut self.host.machine, &self.host.state, id, true)?;
        }
        Ok(())
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        while let Some(id) = self.sessions.pop() {
            if let Err(error) = put_back(&mut self.host.machine, &self.host.state, id, true) {
                tell!("polyrail: {error}");
                tell!("help: `polyrail experiment undo` with the results folder tries again");
            }
        }
    }
}

fn profile_of(level: &str, file: &Path) -> Result<Profile, TuneError> {
    if !level.contains('/') && !level.ends_with(".yaml") && !level.ends_with(".yml") {
        return Profile::named(level);
    }
    let path = beside(file, level);
    let name = path.display().to_string();
    let allowed = "a profile of `polyrail host show profiles`, or a file";
    let text = read_argument("host_profile", &path, allowed)?;
    let stem =
        path.file_stem().map_or_else(|| name.clone(), |stem| stem.to_string_lossy().into_owned());
    Profile::parse(&text, &stem, &name)
}

/// Path of a file that the experiment names, relative to the folder of the experiment's file.
fn beside(file: &Path, name: &str) -> PathBuf {
    file.parent().map_or_else(|| PathBuf::from(name), |folder| folder.join(name))
}
