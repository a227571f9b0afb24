//! A plan lists each change with old value, new value and reason. Users read it before it is
//! applied.

use std::path::{Path, PathBuf};

use polyrail_host::{CpuSet, Cpus, Sysroot};
use polyrail_nic::RssTable;
use polyrail_yaml::excerpt;
use serde::{Deserialize, Serialize};

use crate::balancer;
use crate::error::TuneError;
use crate::hash::fnv1a;
use crate::host_id::HostId;
use crate::machine::Machine;
use crate::target::Target;

/// A plan: printed for users, written to a file, and applied.
///
/// A plan belongs to the machine, the boot and the state that it was computed from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`SCHEMA_VERSION`] of the program that wrote it.
    pub schema_version: u32,
    /// The subject: `irq`, `nic`, `tune PROFILE` or `doctor CHECK`. Undo finds sessions by this name.
    pub name: String,
    /// The machine that the plan is for.
    pub host: HostId,
    /// The CPUs that were online.
    pub online_cpus: String,
    /// A hash of every value that the plan rests on.
    pub state_hash: String,
    /// The changes, in this order.
    pub changes: Vec<Change>,
    /// Values that are right already and must still be so when the plan is applied.
    pub unchanged: Vec<Kept>,
    /// Targets that the plan leaves alone although a reader might expect them.
    pub skipped: Vec<Skipped>,
    /// Warnings to read before the plan is applied.
    pub warnings: Vec<String>,
}

/// One change of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    pub target: Target,
    /// The owner of the value, for messages: an interface and queue, or a group of settings.
    pub what: String,
    pub old: String,
    /// The wanted value.
    pub new: String,
    pub reason: String,
    /// Whether the change is optional: if the driver refuses or ignores it, the other changes are
    /// still carried out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_wish: bool,
}

/// One value that stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    pub target: Target,
    /// The owner of the value, for messages.
    pub what: String,
    pub value: String,
}

/// One target that is left alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skipped {
    pub target: Target,
    /// The owner of the value, for messages.
    pub what: String,
    pub reason: String,
}

/// The version of the plan format.
pub const SCHEMA_VERSION: u32 = 1;

/// Maximum size of a plan file. No real plan comes near: a change takes some hundred bytes, and the
/// largest hosts need a few thousand changes.
pub const PLAN_LIMIT_BYTES: usize = 16 << 20;

impl Plan {
    /// Begins a plan for the machine below `root`, without changes.
    ///
    /// # Errors
    /// [`TuneError::Read`] if the machine can't be read.
    pub fn begin(name: impl Into<String>, root: &Sysroot) -> Result<Self, TuneError> {
        Ok(Self {
            schema_version: SCHEMA_VERSION,
            name: name.into(),
            host: HostId::read(root)?,
            online_cpus: online_cpus(root)?,
            state_hash: String::new(),
            changes: Vec::new(),
            unchanged: Vec::new(),
            skipped: Vec::new(),
            warnings: Vec::new(),
        })
    }

    /// Adds a wanted value: as a change, or as a value that is right already.
    pub fn want(
        &mut self,
        target: Target,
        what: impl Into<String>,
        old: impl Into<String>,
        new: impl Into<String>,
        reason: impl Into<String>,
    ) {
        let (what, old, new) = (what.into(), old.into(), new.into());
        let (reason, is_wish) = (reason.into(), false);
        match old == new {
            true => self.unchanged.push(Kept { target, what, value: old }),
            false => self.changes.push(Change { target, what, old, new, reason, is_wish }),
        }
    }

    /// Makes changes of interface settings optional: if a driver can't make one, the plan continues
    /// with the others.
    pub(crate) fn wish_of_drivers(&mut self) {
        for change in &mut self.changes {
            change.is_wish = matches!(change.target, Target::Ethtool { .. });
        }
    }

    /// Sorts the changes and computes the hash: the last step of making a plan.
    pub fn seal(mut self) -> Self {
        self.changes.sort_by_key(|change| change.target.rank());
        let values = self.expected().map(|(target, value)| (target, Some(value.to_owned())));
        self.state_hash = state_hash(&self.online_cpus, &values.collect::<Vec<_>>());
        self
    }

    /// Reads a plan file.
    ///
    /// # Errors
    /// [`TuneError::BadPlan`], with line and column where known: invalid JSON, another format,
    /// invalid CPU lists, or edits that make the hash wrong.
    pub fn parse(text: &str) -> Result<Self, TuneError> {
        let bad = |reason: String| TuneError::BadPlan { reason };
        if text.len() > PLAN_LIMIT_BYTES {
            return Err(bad(format!("has {} bytes; allowed: 16 MiB", text.len())));
        }
        let version: Version = serde_json::from_str(text).map_err(|error| bad(words(&error)))?;
        if version.schema_version != SCHEMA_VERSION {
            let found = version.schema_version;
            return Err(bad(format!("has schema_version {found}; allowed: {SCHEMA_VERSION}")));
        }
        let plan: Self = serde_json::from_str(text).map_err(|error| bad(words(&error)))?;
        plan.check_files()?;
        for change in &plan.changes {
            let (target, new) = (&change.target, &change.new);
            match target {
                Target::Irq(_) => {
                    let cpus = CpuSet::parse_list(new).map_err(|error| {
                        bad(format!("sends a vector to CPUs that can't exist: {error}"))
                    })?;
                    if cpus.is_empty() {
                        return Err(bad("sends a vector to no CPU".to_owned()));
                    }
                }
                Target::Ethtool { setting, .. } => {
                    if target.setting().is_none() {
                        let shown = excerpt(setting);
                        return Err(bad(format!("changes `{shown}`, which is not a setting")));
                    }
                    if new.parse::<u32>().is_err() {
                        let shown = excerpt(new);
                        return Err(bad(format!(
                            "sets {setting} to `{shown}`, which is not a number"
                        )));
                    }
                }
                Target::Rss { nic } => {
                    new.parse::<RssTable>().map_err(|error| {
                        bad(format!(
                            "spreads packets of {} wrongly: {}",
                            excerpt(nic),
                            excerpt(&error.to_string())
                        ))
                    })?;
                }
                Target::IrqbalanceService | Target::IrqbalanceProcess { .. } => {
                    if ![balancer::RUNNING, balancer::STOPPED].contains(&new.as_str()) {
                        let shown = excerpt(new);
                        return Err(bad(format!(
                            "makes irqbalance `{shown}`; allowed: running, stopped"
                        )));
                    }
                }
                Target::File { .. } => {}
            }
        }
        if plan.clone().seal().state_hash != plan.state_hash {
            return Err(bad("was edited: its hash does not match what it says".to_owned()));
        }
        Ok(plan)
    }

    /// Checks that the plan writes only settings of the kernel and of devices, whatever its origin.
    pub(crate) fn check_files(&self) -> Result<(), TuneError> {
        for change in &self.changes {
            let bad = |fault| TuneError::BadPlan { reason: format!("changes {fault}") };
            change.target.check().map_err(bad)?;
        }
        Ok(())
    }

    /// Returns the plan as the text of a file.
    pub fn to_json(&self) -> String {
        // JSON can express every value here: text, numbers and lists of them.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Returns the values that the plan is based on.
    pub fn expected(&self) -> impl Iterator<Item = (&Target, &str)> {
        let changes = self.changes.iter().map(|change| (&change.target, change.old.as_str()));
        changes.chain(self.unchanged.iter().map(|kept| (&kept.target, kept.value.as_str())))
    }

    /// Returns the values that hold once the plan is carried out.
    pub fn wanted(&self) -> impl Iterator<Item = (&Target, &str, &str)> {
        let changes = self
            .changes
            .iter()
            .map(|change| (&change.target, change.what.as_str(), change.new.as_str()));
        let kept = self
            .unchanged
            .iter()
            .map(|kept| (&kept.target, kept.what.as_str(), kept.value.as_str()));
        changes.chain(kept)
    }

    /// Compares the machine with the state that the plan is based on; returns the differences.
    pub fn differences(&self, machine: &mut dyn Machine) -> Result<Vec<Difference>, TuneError> {
        let mut found = Vec::new();
        let online = online_cpus(machine.root())?;
        if online != self.online_cpus {
            let expected = self.online_cpus.clone();
            found.push(Difference { what: "CPUs online".into(), expected, now: Some(online) });
        }
        for (target, expected) in self.expected() {
            let now = machine.read(target)?;
            if now.as_deref() != Some(expected) {
                let (what, expected) = (target.to_string(), expected.to_owned());
                found.push(Difference { what, expected, now });
            }
        }
        Ok(found)
    }
}

/// A value that differs from the one that a plan expects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub what: String,
    /// The value in the plan.
    pub expected: String,
    /// The current value; `None` if the target is gone.
    pub now: Option<String>,
}

/// Returns the online CPUs, as a list in the kernel's format.
pub(crate) fn online_cpus(root: &Sysroot) -> Result<String, TuneError> {
    Ok(Cpus::read_online(root)?.to_string())
}

/// Checks that a file is one of the settings that this crate may write: a plan, profile or journal may come from
/// elsewhere.
pub(crate) fn check_path(path: &str) -> Result<(), String> {
    let roots = ["/proc/sys/", "/sys/class/net/", "/sys/devices/", "/sys/kernel/mm/"];
    // The kernel runs the programs named in these files, as root.
    let runs = [
        "kernel/core_pattern",
        "kernel/modprobe",
        "kernel/hotplug",
        "kernel/poweroff_cmd",
        "fs/binfmt_misc",
    ];
    let plain = !path.contains("/../") && !path.ends_with("/..") && !path.contains('\0');
    let real: PathBuf = Path::new(path).components().collect();
    if runs.iter().any(|name| real.starts_with(Path::new("/proc/sys").join(name))) {
        return Err(format!("the file `{}`, which names a program that root runs", excerpt(path)));
    }
    match plain && roots.iter().any(|root| path.starts_with(root)) {
        true => Ok(()),
        false => {
            Err(format!("the file `{}`; allowed: files below {}", excerpt(path), roots.join(", ")))
        }
    }
}

/// Formats the parser's message with the place. The message may quote the file, so it is made safe
/// to print.
fn words(error: &serde_json::Error) -> String {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    let text = polyrail_yaml::shortened(text, 160);
    format!("is not a plan: {text} (line {line} column {column})")
}

fn state_hash(online: &str, values: &[(&Target, Option<String>)]) -> String {
    let mut lines: Vec<String> = values
        .iter()
        .map(|(target, value)| format!("{target:?}\t{}", value.as_deref().unwrap_or("-")))
        .collect();
    lines.sort_unstable();
    lines.push(online.to_owned());
    format!("{:016x}", fnv1a(lines.join("\n").as_bytes()))
}

/// The part of a plan that every version has.
#[derive(Deserialize)]
struct Version {
    schema_version: u32,
}
