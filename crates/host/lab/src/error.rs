//! Errors of a lab: their causes, the side that must change (arguments or machine), and fixes.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Reasons why a call on a lab failed.
///
/// The message names the field, the value and the allowed range, or the step and the system's
/// answer; [`LabError::help`] adds the fix.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A value given by the caller is not acceptable; nothing was changed.
    #[error("{field} `{value}` is not valid; allowed: {allowed}")]
    BadValue {
        /// The field by the name that users know, such as `rate`.
        field: &'static str,
        /// The value as given.
        value: String,
        /// The accepted values.
        allowed: String,
    },
    /// The network takes another number of rails.
    #[error("rails `{rails}` is not valid with the network `{network}`; allowed: {allowed}")]
    RailCount {
        /// The rates as given.
        rails: String,
        network: String,
        /// The number of rates that the network takes.
        allowed: &'static str,
        /// The text to write instead.
        help: &'static str,
    },
    /// No lab has this name.
    #[error("lab `{name}` does not exist; allowed: a lab that is up: {known}")]
    UnknownLab {
        /// The name as given.
        name: String,
        /// The names that exist, as text for messages.
        known: String,
    },
    /// The rail index or name is not one of this lab's.
    #[error("rail `{rail}` is not in lab `{lab}`; allowed: rail0 to rail{last}, or 0 to {last}")]
    UnknownRail {
        lab: String,
        /// The rail as given.
        rail: String,
        /// Index of the lab's last rail.
        last: usize,
    },
    /// The lab has fewer nodes.
    #[error("node `{node}` is not in lab `{lab}`; allowed: a, b, or 0 to {last}")]
    UnknownNode {
        lab: String,
        /// The node as given.
        node: String,
        /// Number of the lab's last node.
        last: usize,
    },
    /// A program of the system is needed and missing.
    #[error("the `{program}` program is missing")]
    ProgramMissing {
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// A lab of this name is already there.
    #[error("lab `{name}` is already up; allowed: a new name")]
    AlreadyUp { name: String },
    /// The lab's remains are there, but it cannot be used.
    #[error("lab `{name}` cannot be used: {because}")]
    Broken { name: String, because: String },
    /// Neither root nor a user namespace may be used.
    #[error("no permission to make network namespaces: {missing}")]
    NotPermitted {
        /// The missing permission.
        missing: String,
        grant: String,
    },
    /// The kernel was built without a part that the lab needs.
    #[error("the kernel has no `{part}` ({option})")]
    KernelLacks {
        /// The module, such as `veth`.
        part: &'static str,
        /// The kernel's build option.
        option: &'static str,
    },
    /// A thread of a process with several threads can't join a lab that lives in a user namespace.
    #[error("thread cannot enter {place} of lab `{name}`: {errno}")]
    ThreadCannotEnter {
        name: String,
        /// Such as `side a` or `node 3`.
        place: String,
        errno: io::Error,
    },
    /// Another process held the lock on labs for too long.
    #[error("{lock} is held by another process for more than {waited_s} s")]
    Busy {
        lock: PathBuf,
        /// Time that this call waited, in seconds.
        waited_s: u64,
    },
    /// A system call or netlink request failed.
    #[error("{step} failed: {errno}")]
    System {
        /// The step that failed, as a noun phrase.
        step: String,
        errno: io::Error,
    },
    /// Another process has exclusive use of the lab.
    #[error("lab `{name}` is in use by {}", who(*.process))]
    InUse {
        name: String,
        /// The id of that process, if it is visible from this process.
        process: Option<i32>,
    },
    /// The caller stopped the build; everything that was built is removed.
    #[error("building lab `{name}` was interrupted; what there was of it is removed")]
    Interrupted { name: String },
    /// Processes inside the lab would not end.
    #[error("lab `{name}` still has {count} processes inside, which SIGKILL did not end: {pids}")]
    StillInUse {
        name: String,
        count: usize,
        /// The process ids, as text for messages.
        pids: String,
    },
}

/// The side that must change for a call to succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Blame {
    /// The arguments: another value would work.
    Input,
    /// The machine: a permission, a kernel part, another process.
    Environment,
    /// Neither: the caller stopped the call.
    Stop,
}

impl LabError {
    /// Returns the side that must change: the arguments, the machine or neither.
    pub fn blame(&self) -> Blame {
        match self {
            Self::BadValue { .. }
            | Self::RailCount { .. }
            | Self::UnknownLab { .. }
            | Self::UnknownRail { .. }
            | Self::UnknownNode { .. }
            | Self::AlreadyUp { .. } => Blame::Input,
            Self::Interrupted { .. } => Blame::Stop,
            _ => Blame::Environment,
        }
    }

    /// Returns the fix where one is known.
    pub fn help(&self) -> Option<String> {
        Some(match self {
            Self::BadValue { field: "rate", .. } => {
                "write a number and a unit, such as 100mbit, 2.5gbit or unlimited".into()
            }
            Self::BadValue { field: "rails", .. } => {
                "write one rate per rail, such as 1gbit,1gbit or 4x1gbit".into()
            }
            Self::RailCount { help, .. } => (*help).into(),
            Self::BadValue { field: "mtu", .. } => {
                "`polyrail lab ls --json` shows the MTU and the network of each lab".into()
            }
            Self::ProgramMissing { package, .. } => {
                format!("install the package {package}, such as by `apt install {package}`")
            }
            Self::UnknownLab { name, .. } => format!(
                "`polyrail lab up {name} --rails 4x1gbit` makes it; each user sees only their own labs"
            ),
            Self::AlreadyUp { name } => format!(
                "use it with `polyrail lab exec {name} a -- CMD`, or remove it with `polyrail lab down {name}`"
            ),
            Self::Broken { name, .. } => format!("`polyrail lab down {name}` removes what is left"),
            Self::NotPermitted { grant, .. } => grant.clone(),
            Self::KernelLacks { part, option } => format!(
                "try `modprobe {part}` as root; if that fails, use a kernel built with {option}"
            ),
            Self::ThreadCannotEnter { .. } => {
                "the kernel lets only a process of one thread join a user namespace: start a \
                 process with `Lab::command` or `polyrail lab exec`, or run as root"
                    .into()
            }
            Self::Busy { lock, .. } => {
                format!("`fuser -v {}` shows the process; end it if it hangs", lock.display())
            }
            Self::StillInUse { .. } => {
                "they wait inside the kernel; run the command again once they are gone".into()
            }
            Self::InUse { .. } => {
                "run this again when that process has ended, or name another lab".into()
            }
            Self::UnknownNode { .. } => "`polyrail lab ls` shows the nodes of each lab".into(),
            Self::Interrupted { name } => format!("`polyrail lab up {name} …` builds it anew"),
            Self::UnknownRail { .. } => "`polyrail lab ls` shows the rails of each lab".into(),
            Self::BadValue { .. } | Self::System { .. } => return None,
        })
    }

    pub(crate) fn bad(
        field: &'static str,
        value: impl ToString,
        allowed: impl Into<String>,
    ) -> Self {
        Self::BadValue { field, value: value.to_string(), allowed: allowed.into() }
    }

    pub(crate) fn system(step: impl Into<String>, errno: impl Into<io::Error>) -> Self {
        Self::System { step: step.into(), errno: errno.into() }
    }
}

fn who(process: Option<i32>) -> String {
    process.map_or_else(|| "a process out of sight".into(), |process| format!("process {process}"))
}

/// Adds the step to a bare system error.
pub(crate) trait During<T> {
    /// Wraps the error; `step` is a noun phrase that stands before "failed".
    fn during(self, step: impl FnOnce() -> String) -> Result<T, LabError>;

    /// Wraps the error of work on one file.
    fn during_path(self, verb: &str, path: &Path) -> Result<T, LabError>
    where
        Self: Sized,
    {
        self.during(|| format!("{verb} {}", path.display()))
    }
}

impl<T> During<T> for io::Result<T> {
    fn during(self, step: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|errno| LabError::system(step(), errno))
    }
}

impl<T> During<T> for Result<T, Errno> {
    fn during(self, step: impl FnOnce() -> String) -> Result<T, LabError> {
        self.map_err(|errno| LabError::system(step(), errno))
    }
}
