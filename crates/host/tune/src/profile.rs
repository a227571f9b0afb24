//! Settings for fast TCP, as data: the setting, the value, the reason, and the source.

mod rule;

use polyrail_host::{CpuSet, Nic, Sysroot, Topology};
use polyrail_yaml::{Entry, Fault, Position, excerpt};

use crate::error::TuneError;
use crate::machine::Machine;
use crate::plan::{Plan, Skipped};
use crate::target::Target;
use crate::yaml;

pub use rule::{Aim, Rule, Subject};

#[derive(Clone, Debug)]
pub struct Profile {
    pub name: String,
    /// The purpose of the profile, in a sentence.
    pub about: String,
    pub rules: Vec<Rule>,
}

/// The profiles that come with the program: name and text.
const BUILT_IN: &[(&str, &str)] = &[
    ("throughput", include_str!("../profiles/throughput.yaml")),
    ("latency", include_str!("../profiles/latency.yaml")),
    ("zerocopy", include_str!("../profiles/zerocopy.yaml")),
];

impl Profile {
    /// Returns the profiles that come with the program.
    ///
    /// # Errors
    /// None in a released program: the profiles are part of it, and a test reads them all.
    pub fn built_in() -> Result<Vec<Self>, TuneError> {
        BUILT_IN.iter().map(|(name, text)| Self::parse(text, name, name)).collect()
    }

    /// Returns the profile of this name.
    ///
    /// # Errors
    /// [`TuneError::Argument`] with the known profiles.
    pub fn named(name: &str) -> Result<Self, TuneError> {
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((name, text)) => Self::parse(text, name, name),
            None => {
                let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
                Err(TuneError::argument("profile", name, "is not known", known.join(", ")))
            }
        }
    }

    /// Parses a profile's text. `file` is its name for errors.
    ///
    /// # Errors
    /// [`TuneError::Yaml`] with line and column.
    pub fn parse(text: &str, name: &str, file: &str) -> Result<Self, TuneError> {
        Self::read(text, name).map_err(yaml::fault_in(file))
    }

    fn read(text: &str, name: &str) -> Result<Self, Fault> {
        let mut profile = Self { name: name.to_owned(), about: String::new(), rules: Vec::new() };
        for Entry { name, at, node } in yaml::parse(text)?.map("the profile")? {
            match name.as_str() {
                "about" => node.text("`about`")?.trim().clone_into(&mut profile.about),
                "settings" => {
                    for node in node.list("`settings`")? {
                        let rule = Rule::parse(node)?;
                        profile.require_new(&rule, node.at)?;
                        profile.rules.push(rule);
                    }
                }
                other => {
                    let other = excerpt(other);
                    let fault = format!("`{other}` is not known; allowed: about, settings");
                    return Err(Fault::new(*at, fault));
                }
            }
        }
        Ok(profile)
    }

    /// Refuses a second rule for one setting: the later write would undo the earlier one.
    fn require_new(&self, rule: &Rule, at: Position) -> Result<(), Fault> {
        let Some(before) = self.rules.iter().find(|known| known.subject == rule.subject) else {
            return Ok(());
        };
        let name = match &rule.subject {
            Subject::File(name) | Subject::Ethtool(name) => excerpt(name),
        };
        let (first, second) = (before.aim.as_written(), rule.aim.as_written());
        let fault = format!(
            "`{name}` has `{first}` already, and here `{second}`; allowed: each setting once"
        );
        Err(Fault::new(at, fault))
    }
}

/// Plans the values that a profile wants on this machine. `nics` limits settings of interfaces;
/// empty means all that have a device. Values that are as good or better are left alone.
///
/// # Errors
/// [`TuneError`] if the machine can't be read, or there is no such interface.
pub fn plan(
    machine: &mut dyn Machine,
    topology: &Topology,
    profile: &Profile,
    nics: &[String],
) -> Result<Plan, TuneError> {
    let mut followed = topology.follow(nics).map_err(|nic| {
        let known: Vec<&str> = topology.nics.iter().map(|nic| nic.name.as_str()).collect();
        TuneError::unknown_interface(&nic, &known)
    })?;
    let nics = &followed.nics;
    let mut plan = Plan::begin(format!("tune {}", profile.name), machine.root())?;
    for rule in &profile.rules {
        let targets = targets(machine.root(), topology, rule, nics);
        if targets.is_empty() {
            plan.skipped.push(Skipped {
                target: rule.subject.as_target(),
                what: rule.subject.group().to_owned(),
                reason: match rule.subject.is_of_nics() {
                    true => "no network card of this machine has it".to_owned(),
                    false => "this machine has no such file".to_owned(),
                },
            });
        }
        for (target, context) in targets {
            one(&mut plan, machine, topology, rule, target, &context)?;
        }
    }
    plan.warnings.append(&mut followed.notes);
    plan.warnings.extend(topology.unread.clone());
    plan.wish_of_drivers();
    Ok(plan.seal())
}

/// The owner of a target.
struct Context {
    what: String,
    /// The interface, the index of the queue and the number of queues.
    queue: Option<(String, usize, usize)>,
}

fn one(
    plan: &mut Plan,
    machine: &mut dyn Machine,
    topology: &Topology,
    rule: &Rule,
    target: Target,
    context: &Context,
) -> Result<(), TuneError> {
    let skip = |target: Target, reason: &str| Skipped {
        target,
        what: context.what.clone(),
        reason: reason.to_owned(),
    };
    let old = match machine.read(&target) {
        Ok(Some(old)) => old,
        Ok(None) => {
            let reason = match &target {
                Target::Ethtool { .. } => "the driver has no such setting",
                _ => "this machine has no such file",
            };
            plan.skipped.push(skip(target, reason));
            return Ok(());
        }
        // Some files exist for every interface but return an error for most.
        Err(fault) => {
            plan.skipped.push(skip(target, &fault.to_string()));
            return Ok(());
        }
    };
    let max = match (&rule.aim, &target) {
        (Aim::Maximum, Target::Ethtool { nic, .. }) => maximum(nic, &target),
        _ => None,
    };
    let near = |nic: &str| {
        let node = topology.nic(nic).and_then(|nic| nic.node);
        topology.cpus_near(node).unwrap_or_else(|| topology.cpus.online.clone())
    };
    let mask = match (&rule.aim, &context.queue) {
        (Aim::NearQueue, Some((nic, queue, queues))) => {
            let cpus = share(topology, &near(nic), *queue, *queues);
            let width = topology.cpus.possible.last().map_or(1, |last| last + 1);
            Some((cpus.to_mask(width), cpus))
        }
        _ => None,
    };
    match rule.wanted(&old, max, mask.as_ref().map(|(mask, cpus)| (mask.as_str(), cpus))) {
        Ok(Some(new)) => {
            let reason = format!("{} [{}]", rule.why, rule.source);
            plan.want(target, context.what.clone(), old, new, reason);
        }
        Ok(None) => plan.want(target, context.what.clone(), old.clone(), old, ""),
        Err(reason) => plan.skipped.push(skip(target, &reason)),
    }
    Ok(())
}

/// Returns the maximum of an interface's setting.
pub(crate) fn maximum(nic: &str, target: &Target) -> Option<u32> {
    let setting = target.setting()?;
    polyrail_nic::Ethtool::open().ok()?.value(nic, setting).ok()?.max
}

/// Returns a queue's share of the CPUs near its interface: whole cores, dealt round-robin.
fn share(topology: &Topology, near: &CpuSet, queue: usize, queues: usize) -> CpuSet {
    let cores = topology.cpus.cores(near);
    if cores.is_empty() {
        return near.clone();
    }
    let queues = queues.max(1);
    let own: Vec<_> = cores.iter().enumerate().filter(|(at, _)| at % queues == queue).collect();
    match own.is_empty() {
        // With more queues than cores, queues share cores.
        true => cores[queue % cores.len()].clone(),
        false => own.iter().fold(CpuSet::new(), |set, (_, core)| set.union(core)),
    }
}

fn targets(
    root: &Sysroot,
    topology: &Topology,
    rule: &Rule,
    nics: &[String],
) -> Vec<(Target, Context)> {
    let is_chosen = |nic: &&Nic| match nics.is_empty() {
        true => !topology.is_representor(&nic.name),
        false => nics.contains(&nic.name),
    };
    let chosen = topology.nics.iter().filter(is_chosen);
    let mut found = Vec::new();
    match &rule.subject {
        Subject::File(path) if rule.subject.is_of_nics() => {
            for nic in chosen {
                let path = path.replace("{nic}", &nic.name);
                let paths = expand(root, &path);
                let queues = paths.len();
                for (at, path) in paths.into_iter().enumerate() {
                    let context = Context {
                        what: nic.name.clone(),
                        queue: Some((nic.name.clone(), at, queues)),
                    };
                    found.push((Target::File { path }, context));
                }
            }
        }
        Subject::File(path) => {
            for path in expand(root, path) {
                let what = rule.subject.group().to_owned();
                found.push((Target::File { path }, Context { what, queue: None }));
            }
        }
        Subject::Ethtool(setting) => {
            for nic in chosen {
                let target = Target::Ethtool { nic: nic.name.clone(), setting: setting.clone() };
                found.push((target, Context { what: nic.name.clone(), queue: None }));
            }
        }
    }
    found
}

/// Expands a path with one `*` at the end of a name to the existing files, in numeric order.
fn expand(root: &Sysroot, path: &str) -> Vec<String> {
    let Some((before, after)) = path.split_once('*') else {
        return if root.exists(path) { vec![path.to_owned()] } else { Vec::new() };
    };
    let (folder, prefix) = before.rsplit_once('/').unwrap_or(("/", before));
    let numbered = |name: &&String| {
        name.strip_prefix(prefix)
            .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let names = root.list_optional(folder).unwrap_or_default();
    let paths = names.iter().filter(numbered).map(|name| format!("{folder}/{name}{after}"));
    paths.filter(|path| root.exists(path)).collect()
}
