//! Checks, and the results that they may give.

use polyrail_tune::Target;
use serde::{Deserialize, Serialize};

use crate::context::Context;

/// A check: data, and the function that applies it.
#[derive(Debug)]
pub struct Check {
    /// Stable name, used in reports, `doctor --explain` and `host apply fix`.
    pub id: &'static str,
    /// Part of the machine that the check examines.
    pub group: Group,
    /// The fault that this check finds, in a few words.
    pub title: &'static str,
    pub cost: Cost,
    /// Reason why the fault matters, and when it does not.
    pub why: &'static str,
    /// Instructions for people; the findings hold the commands.
    pub remedy: &'static str,
    /// Whether the fix needs root. Checks whose fix needs no root have no changes: no setting of the host fixes the
    /// fault.
    pub needs_root: bool,
    /// Whether the fix can be undone without a restart.
    pub reversible: bool,
    pub reads: &'static [&'static str],
    pub(crate) run: fn(&Context) -> Result<Outcome, Unknown>,
}

/// The part of the machine that a check examines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Group {
    /// Nodes, PCI, GPUs, links.
    Topology,
    Irq,
    /// Queues, rings, drops.
    Queues,
    /// RPS and XPS.
    Steering,
    /// Sockets and routes.
    Tcp,
    /// Frequencies, idle states, quotas.
    Cpu,
    /// Limits and pages.
    Memory,
    /// Requirements of zero-copy sends.
    Zerocopy,
    /// Requirements of receiving into device memory.
    Devmem,
    /// Rights of this process.
    Permissions,
    /// Plugins of Polyrail in other programs.
    Plugins,
}

/// Cost of a fault, the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// Something does not work, or not as configured.
    Breaks,
    /// More than a tenth of the speed.
    Large,
    /// Less than a tenth, or only in some situations.
    Small,
}

/// A source that the check read, and the value there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// A path without the root, or a query such as `ethtool -g eth1`.
    pub path: String,
    pub value: String,
}

/// A fault that a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The affected interface or CPU; `None` for the whole host.
    pub subject: Option<String>,
    /// The fault, in one sentence without a full stop.
    pub what: String,
    /// Sources that show the fault.
    pub evidence: Vec<Evidence>,
    /// Commands that fix it. Read them before you run them.
    pub commands: Vec<String>,
    /// The same changes as data, if `host apply fix` can make them.
    pub changes: Vec<Change>,
}

/// A value that a fix writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    pub target: Target,
    /// Current value, as text.
    pub from: Option<String>,
    /// Value that the fix writes, as text.
    pub to: String,
}

/// Results about the plugins of the running machine. `None`: the caller did not test the plugin.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// The plugin that NCCL loads.
    pub nccl_plugin: Option<Answer>,
    /// The backend in the active Python environment.
    pub nixl_backend: Option<Answer>,
}

/// The state of a plugin.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Not installed, for this reason.
    Absent(String),
    /// Works, with the evidence.
    Works(Vec<Evidence>),
    /// Installed, but does not work.
    Fails(Finding),
    /// Can't be tested, for this reason.
    Unknown(String),
}

/// The complete result of a check.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) findings: Vec<Finding>,
    /// Evidence that the check examined and found right.
    pub(crate) seen: Vec<Evidence>,
    /// Reasons for each part that the check could not find out.
    pub(crate) unknown: Vec<String>,
    /// Reason why this host has nothing to examine.
    pub(crate) not_applicable: Option<String>,
}

/// Reason why a check can't know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Unknown(pub(crate) String);

impl Answer {
    pub(crate) fn outcome(answer: Option<&Self>) -> Result<Outcome, Unknown> {
        let seen = match answer {
            None => return Ok(Outcome::not_applicable("a copy of a machine runs no plugin")),
            Some(Self::Absent(why)) => return Ok(Outcome::not_applicable(why)),
            Some(Self::Unknown(why)) => return Err(Unknown(why.clone())),
            Some(Self::Works(seen)) => seen.clone(),
            Some(Self::Fails(finding)) => {
                return Ok(Outcome { findings: vec![finding.clone()], ..Outcome::default() });
            }
        };
        Ok(Outcome { seen, ..Outcome::default() })
    }
}

impl Outcome {
    pub(crate) fn not_applicable(why: impl Into<String>) -> Self {
        Self { not_applicable: Some(why.into()), ..Self::default() }
    }

    pub(crate) fn saw(&mut self, path: impl Into<String>, value: impl ToString) {
        self.seen.push(Evidence::new(path, value));
    }

    pub(crate) fn found(&mut self, finding: Finding) {
        self.findings.push(finding);
    }

    pub(crate) fn unknown(&mut self, why: impl Into<String>) {
        self.unknown.push(why.into());
    }
}

impl Evidence {
    /// Creates evidence from a source and the value there.
    pub fn new(path: impl Into<String>, value: impl ToString) -> Self {
        Self { path: path.into(), value: value.to_string() }
    }
}

impl Finding {
    /// Creates a fault of the whole host, without evidence.
    pub fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), ..Self::default() }
    }

    pub(crate) fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    /// Adds evidence.
    pub fn because(mut self, path: impl Into<String>, value: impl ToString) -> Self {
        self.evidence.push(Evidence::new(path, value));
        self
    }

    /// Adds a command that fixes the fault.
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    /// Adds a change to a file of `/proc` or `/sys`, and the command that does the same.
    pub(crate) fn write(mut self, path: &str, from: impl ToString, to: impl ToString) -> Self {
        let (from, to) = (from.to_string(), to.to_string());
        self.commands.push(match path.strip_prefix("/proc/sys/") {
            // A key may contain an interface name; `sysctl` reads dots in it as slashes.
            Some(key) => format!(
                "sysctl -w {}='{to}'",
                key.replace('.', "\u{1}").replace('/', ".").replace('\u{1}', "/")
            ),
            None => format!("echo {to} > {path}"),
        });
        self.changes.push(Change {
            target: Target::File { path: path.into() },
            from: Some(from),
            to,
        });
        self
    }

    /// Adds a change to a setting of an interface, and the command that does the same.
    pub(crate) fn set(mut self, nic: &str, setting: &str, from: u32, to: u32) -> Self {
        let command = polyrail_nic::Setting::parse(setting)
            .map(|setting| setting.command(nic, &to.to_string()));
        self.commands.extend(command);
        let target = Target::Ethtool { nic: nic.into(), setting: setting.into() };
        self.changes.push(Change { target, from: Some(from.to_string()), to: to.to_string() });
        self
    }
}

impl Group {
    /// Returns the name used in the JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Topology => "topology",
            Self::Irq => "irq",
            Self::Queues => "queues",
            Self::Steering => "steering",
            Self::Tcp => "tcp",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::Zerocopy => "zerocopy",
            Self::Devmem => "devmem",
            Self::Permissions => "permissions",
            Self::Plugins => "plugins",
        }
    }
}

impl Cost {
    pub const fn words(self) -> &'static str {
        match self {
            Self::Breaks => "does not work as configured",
            Self::Large => "costs more than a tenth of the speed",
            Self::Small => "costs less than a tenth, or only at times",
        }
    }
}

impl From<polyrail_host::ReadError> for Unknown {
    fn from(error: polyrail_host::ReadError) -> Self {
        Self(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_name_keys_as_sysctl_does() {
        let finding = Finding::new("x")
            .write("/proc/sys/net/ipv4/conf/eth0.5/rp_filter", 1, 2)
            .write("/sys/kernel/mm/x", "a", "b");
        assert_eq!(
            finding.commands,
            ["sysctl -w net.ipv4.conf.eth0/5.rp_filter='2'", "echo b > /sys/kernel/mm/x"]
        );
        assert_eq!(finding.changes.len(), 2);
    }
}
