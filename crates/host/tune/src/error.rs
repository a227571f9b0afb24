//! Reasons why a change was not made, or was rolled back.

use std::borrow::Borrow;
use std::io;
use std::path::PathBuf;

use polyrail_host::{ReadError, Sysroot};

use crate::machine::Fault;
use crate::plan::Difference;

/// An error that prevented a change to the host. Unless the message says otherwise, nothing was
/// changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// The machine can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// One value can't be read.
    #[error("{0}")]
    Fault(#[from] Fault),
    /// An invalid plan file.
    #[error("the plan {reason}")]
    BadPlan {
        /// A phrase that follows `the plan`.
        reason: String,
    },
    /// An invalid YAML file.
    #[error("{file}:{line}:{column}: {fault}")]
    Yaml {
        /// The file as the caller named it.
        file: String,
        /// Counted from 1.
        line: usize,
        /// Counted from 1.
        column: usize,
        /// The problem at this place.
        fault: String,
    },
    #[error("{}: {fault}; allowed: {allowed}", argument(field, value))]
    Argument {
        field: &'static str,
        /// The value as given; empty if it was left out.
        value: String,
        fault: String,
        /// The accepted values.
        allowed: String,
    },
    /// A file named by an argument that this user or this machine can't read.
    #[error("{field} `{}`: can't be read: {source}; allowed: what this user may read", path.display())]
    Unread { field: &'static str, path: PathBuf, source: io::Error },
    /// Other users can change a plan file, so they could make this process write values of their
    /// choice.
    #[error(
        "plan `{}`: can't be read: {fault}; allowed: a file that only root and this user can change",
        path.display()
    )]
    UntrustedPlan {
        path: PathBuf,
        /// The users that can change it, or the way to do so.
        fault: String,
    },
    /// The plan was made elsewhere, or before a reboot.
    #[error("the plan was made {for_what}")]
    OtherHost {
        /// The machine or the boot.
        for_what: String,
    },
    /// The machine has changed since the plan was made.
    #[error("the plan no longer fits this host: {}", list(differences))]
    Drifted { differences: Vec<Difference> },
    /// A right is missing.
    #[error("{first}{}", others(*more))]
    Denied {
        /// The first value that can't be written.
        first: Fault,
        /// Number of further values that can't be written.
        more: usize,
    },
    /// The change would cut the link over which this host is reached.
    #[error("{what} may take {nic} down for a moment, and {nic} carries {carries}")]
    Disruptive { what: String, nic: String, carries: String },
    /// Another instance is changing the host.
    #[error("another polyrail{} is changing this host: {} is locked", owner(pid.as_ref()), path.display())]
    Locked {
        path: PathBuf,
        /// The other process, if it is known.
        pid: Option<u32>,
    },
    /// The backup or the journal can't be read or written.
    #[error("can't read or write {}: {source}; allowed: a place that can be read and written", path.display())]
    Journal {
        /// The file or folder.
        path: PathBuf,
        source: io::Error,
    },
    /// Other users can change a journal, or have made it, so they could make this process write values of their choice.
    #[error("the journals in {} are not used: {source}", path.display())]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// The problem with the file or folder.
        source: io::Error,
    },
    /// A journal that can't be understood.
    #[error("{}:{line}: {fault}", path.display())]
    BadJournal {
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The problem in this line.
        fault: String,
    },
    /// Nothing was applied yet that could be checked, watched or confirmed.
    #[error("{what} was carried out since boot; allowed: {allowed}")]
    NeverApplied {
        /// The missing thing: `no plan`, `no plan of tune` or `nothing`.
        what: String,
        /// The condition for using the command, or the names accepted instead.
        allowed: &'static str,
        /// The command that applies one.
        remedy: &'static str,
    },
    /// There is no such session.
    #[error("session `{id}`: does not exist; allowed: {}", known(known_ids))]
    NoSession {
        /// The session as given.
        id: String,
        known_ids: Vec<String>,
    },
    /// A write failed; all writes before it were rolled back.
    #[error("{cause}; {restored} earlier changes were taken back, and the host is as it was")]
    RolledBack {
        cause: Box<Self>,
        /// Number of writes that were rolled back.
        restored: usize,
    },
    /// A write failed, and so did rolling back those before it.
    #[error("{cause}; taking back what was changed failed, too: {}", failures.join("; "))]
    HalfDone {
        cause: Box<Self>,
        /// The values that could not be rolled back, with reasons.
        failures: Vec<String>,
    },
    /// The write was accepted, but reading gives another value.
    #[error("{what} was set to {wanted}, but reads {found}")]
    NotTaken {
        what: String,
        /// The value that was written.
        wanted: String,
        /// The value that is read.
        found: String,
    },
    /// The caller requested a stop.
    #[error("stopped")]
    Stopped,
}

/// The party that has to act on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    /// The author of the plan or the arguments.
    Input,
    /// The machine, or the rights of this process on it.
    Environment,
    /// None: the work was stopped on request.
    Stop,
}

impl TuneError {
    /// Builds an error for an argument that can't be used.
    pub fn argument(
        field: &'static str,
        value: impl Into<String>,
        fault: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        let (value, fault, allowed) = (value.into(), fault.into(), allowed.into());
        Self::Argument { field, value, fault, allowed }
    }

    /// Builds an error for the name of an interface that this machine does not have, or that is not one of `known`,
    /// those with interrupts and queues to set.
    pub fn unknown_interface(name: &str, known: &[&str]) -> Self {
        let fault = "not a network card of this machine (virtual interfaces don't count)";
        Self::argument("interface", name, fault, listed(known))
    }

    /// Builds an error for the name of an interface that is not in this network namespace.
    pub fn absent_interface(name: &str, root: &Sysroot) -> Self {
        let known = interfaces(root);
        let fault = "does not exist in this network namespace";
        Self::argument("interface", name, fault, listed(&known))
    }

    /// Returns the party that has to act on the error.
    pub fn blame(&self) -> Blame {
        match self {
            Self::BadPlan { .. }
            | Self::Yaml { .. }
            | Self::Argument { .. }
            | Self::UntrustedPlan { .. }
            | Self::OtherHost { .. }
            | Self::Drifted { .. }
            | Self::Disruptive { .. }
            | Self::NeverApplied { .. }
            | Self::NoSession { .. } => Blame::Input,
            Self::RolledBack { cause, .. } if matches!(**cause, Self::Stopped) => Blame::Stop,
            Self::Stopped => Blame::Stop,
            _ => Blame::Environment,
        }
    }

    /// Returns the fix where one is known.
    pub fn help(&self) -> Option<String> {
        let text = match self {
            Self::UntrustedPlan { path, .. } => {
                let path = path.display();
                return Some(format!(
                    "read it, then apply a copy of your own: `sudo install -m 600 {path} /root/plan.json`, and name that"
                ));
            }
            Self::Read(error) => return error.help(),
            Self::Fault(fault) | Self::Denied { first: fault, .. } => return fault.help(),
            Self::Untrusted { .. } => {
                "a journal decides what is written to this host: keep it in a folder that only root and this user can \
                 change, and don't undo one that another user has made"
            }
            Self::Argument { field: "interface", .. } => {
                "`polyrail host show` lists the interfaces"
            }
            Self::NeverApplied { remedy, .. } => remedy,
            Self::NoSession { known_ids, .. } if known_ids.is_empty() => {
                "there is nothing to undo; if it was applied with another --state-dir, name that folder"
            }
            Self::NoSession { .. } => "leave the ID out to undo the last session that still holds",
            Self::Yaml { .. } => {
                "docs/tune.md and docs/irq.md (in packages: /usr/share/doc/polyrail/docs) show such files"
            }
            Self::Unread { .. } => "change its permissions, or run as its owner",
            Self::OtherHost { .. } => {
                "make a new plan here; --force applies this one to vectors that match by PCI \
                 address, index and name"
            }
            Self::Drifted { .. } => {
                "make a new plan; --force applies this one to what is still there"
            }
            Self::Disruptive { .. } => {
                "--allow-disruptive does it, and takes it back unless `polyrail host confirm` \
                 follows in time"
            }
            Self::Locked { .. } => "wait for it to end; the lock goes with its process",
            Self::Journal { .. } => {
                "--state-dir DIR, or the variable POLYRAIL_STATE_DIR, names another folder"
            }
            Self::BadJournal { .. } => {
                "the file was damaged after it was written; --force uses the lines that can be read"
            }
            Self::HalfDone { .. } => "`polyrail host undo` tries again, from the journal",
            Self::RolledBack { cause, .. } => return cause.help(),
            _ => return None,
        };
        Some(text.to_owned())
    }
}

/// Lists the interfaces of this network namespace, or of a copy of a machine.
pub(crate) fn interfaces(root: &Sysroot) -> Vec<String> {
    // /sys shows the namespace that it was mounted in, which may be another one.
    if root.is_live()
        && let Ok(table) = root.read("/proc/net/dev")
    {
        let names =
            table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()));
        return names.collect();
    }
    let mut names = root.list_optional("/sys/class/net").unwrap_or_default();
    // This entry is a file, present where the kernel supports bonds.
    names.retain(|name| name != "bonding_masters");
    names
}

fn argument(field: &str, value: &str) -> String {
    if value.is_empty() { field.to_owned() } else { format!("{field} `{value}`") }
}

fn listed<Name: Borrow<str>>(names: &[Name]) -> String {
    if names.is_empty() { "none here".to_owned() } else { names.join(", ") }
}

fn list(differences: &[Difference]) -> String {
    const SHOWN: usize = 5;
    let one = |difference: &Difference| {
        let Difference { what, expected, now } = difference;
        match now {
            Some(now) => format!("{what} was {expected} and is {now}"),
            None => format!("{what} is gone"),
        }
    };
    let mut parts: Vec<String> = differences.iter().take(SHOWN).map(one).collect();
    if differences.len() > SHOWN {
        parts.push(format!("and {} more", differences.len() - SHOWN));
    }
    parts.join("; ")
}

fn others(more: usize) -> String {
    match more {
        0 => String::new(),
        1 => "; 1 other value can't be written, either".to_owned(),
        more => format!("; {more} other values can't be written, either"),
    }
}

fn owner(pid: Option<&u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

fn known(ids: &[String]) -> String {
    match ids.is_empty() {
        true => "none, because nothing was ever applied".to_owned(),
        false => ids.join(", "),
    }
}
