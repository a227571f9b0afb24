//! Errors of a rendezvous.

use std::io;
use std::time::Duration;

use polyrail::{EngineError, Explain, PeerError};
use polyrail_config::debug_as_text;

use crate::names::NameError;

/// Reason why an engine can't join a group, or the group can't be listed.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum RendezvousError {
    /// The setting is empty.
    #[error(
        "rendezvous is empty; allowed: dir://, etcd://, dns://, slurm://, mpi:// or torchrun://"
    )]
    NotSet,
    /// The setting can't be parsed, or names a place that is not supported.
    #[error("rendezvous = `{value}` {reason}")]
    Value {
        value: String,
        /// The fault of the value.
        reason: String,
    },
    /// The name isn't valid.
    #[error("name {0}")]
    Name(#[from] NameError),
    /// Another engine has the name.
    #[error(
        "name `{name}` of the group `{group}` is taken by {holder}, which lives, or has died less than its lease \
         ago; waited {waited:.1?}; allowed: a name that no other engine of the group has"
    )]
    Taken {
        group: String,
        name: String,
        /// The engine that has the name, and for how long, as far as the place shows it.
        holder: String,
        /// Time waited for that engine's end.
        waited: Duration,
    },
    #[error("rendezvous = `{place}`: no answer: {why}")]
    Unreachable {
        /// The place, as in the setting.
        place: String,
        /// The attempt and its result.
        why: String,
    },
    /// The server at the place refuses, or its answer is not understood.
    #[error("rendezvous = `{place}`: {why}")]
    Refused {
        /// The place, as in the setting.
        place: String,
        why: String,
        /// Advice on a fix.
        help: String,
    },
    /// A file or a folder can't be used.
    #[error("{what} `{path}` can't be used: {source}")]
    File {
        /// Purpose of the file or folder.
        what: &'static str,
        path: String,
        source: io::Error,
    },
    /// The environment lacks a variable that the launcher of the ranks sets, or has another value.
    #[error("rendezvous = `{place}`: {variable} {fault}")]
    Environment {
        /// The place, as in the setting.
        place: String,
        /// The variable, or several of them.
        variable: String,
        /// The fault of the variable.
        fault: String,
        /// Advice on a fix.
        help: String,
    },
    /// The ranks' own small engine can't start.
    #[error("rendezvous = `{place}`: the engine among ranks can't start: {source}")]
    Engine {
        /// The place, as in the setting.
        place: String,
        source: Box<EngineError>,
    },
    /// Rank 0 can't be reached.
    #[error("rendezvous = `{place}`: rank 0 can't be reached: {source}")]
    Rank0 {
        /// The place, as in the setting.
        place: String,
        source: Box<PeerError>,
    },
    /// The rendezvous can only be joined, not listed from outside.
    #[error("rendezvous = `{place}` shows its members to members only; allowed: dir://, etcd://")]
    MembersOnly {
        /// The place, as in the setting.
        place: String,
    },
    /// The system has no thread left.
    #[error("the thread of the rendezvous can't start: {0}")]
    Thread(io::Error),
}

fn is_port_taken(error: &EngineError) -> bool {
    match error {
        EngineError::Listen { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
        _ => false,
    }
}

impl RendezvousError {
    /// Returns advice on a fix.
    pub fn help(&self) -> Option<String> {
        Some(match self {
            Self::NotSet => {
                "give it a place, like rendezvous=dir:///shared/polyrail; docs/rendezvous.md has all forms"
                    .to_owned()
            }
            Self::Value { .. } => "docs/rendezvous.md has all forms".to_owned(),
            Self::Name(_) => "give another name".to_owned(),
            Self::Taken { .. } => {
                "give each engine of a group a name of its own, end the other engine, or wait longer (timeout)"
                    .to_owned()
            }
            Self::Unreachable { .. } => {
                "see that it runs, and that host, port and firewall are right".to_owned()
            }
            Self::Refused { help, .. } | Self::Environment { help, .. } => help.clone(),
            Self::File { source, .. }
                if matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
                ) =>
            {
                "make room on its file system, or name a folder on another one".to_owned()
            }
            Self::File { source, .. } if source.kind() == io::ErrorKind::InvalidInput => {
                "remove what lies there, or name another folder".to_owned()
            }
            Self::File { what, .. } => {
                format!("see that the {what} is there and belongs to the user of this process")
            }
            // The engine of the ranks takes its port from the rendezvous, not from the settings.
            Self::Engine { source, .. } if is_port_taken(source) => {
                "see that rank 0 runs once only, and that no other program has its port; two groups and two \
                 jobs on one host need two, like mpi://:29601"
                    .to_owned()
            }
            Self::Engine { source, .. } => return source.help(),
            Self::Rank0 { source, .. } => return source.help(),
            Self::MembersOnly { .. } => "join it: `polyrail peers` does that".to_owned(),
            Self::Thread(_) => "see `ulimit -u` and the limits of the container".to_owned(),
        })
    }

    /// Returns the exit code for a command that ends with this error.
    pub fn exit_code(&self) -> u8 {
        const USAGE: u8 = 2;
        const ENVIRONMENT: u8 = 3;
        match self {
            Self::NotSet | Self::Value { .. } | Self::Name(_) | Self::MembersOnly { .. } => USAGE,
            Self::Taken { .. } | Self::Environment { .. } => USAGE,
            Self::Engine { source, .. } => source.exit_code(),
            Self::Rank0 { source, .. } => source.exit_code(),
            _ => ENVIRONMENT,
        }
    }
}

debug_as_text!(
    RendezvousError {
        NotSet,
        Value,
        Name,
        Taken,
        Unreachable,
        Refused,
        File,
        Environment,
        Engine,
        Rank0,
        MembersOnly,
        Thread,
    },
    |error| error.help()
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_matter_of_owners() {
        let of = |kind: io::ErrorKind| {
            let (what, path) = ("file of this engine", "/shared/g/a.polyrail".to_owned());
            RendezvousError::File { what, path, source: kind.into() }.help().unwrap()
        };
        assert!(of(io::ErrorKind::StorageFull).starts_with("make room"));
        assert!(of(io::ErrorKind::PermissionDenied).contains("belongs to the user"));
    }

    #[test]
    fn a_port_of_rank_0_that_is_taken_is_no_matter_of_listen_port() {
        let of = |kind: io::ErrorKind| {
            let (rail, address) = ("lo".to_owned(), ([127, 0, 0, 1], 29_600).into());
            let source = EngineError::Listen { rail, address, source: kind.into() };
            let error = RendezvousError::Engine { place: "mpi://".into(), source: source.into() };
            error.help().unwrap()
        };
        let help = of(io::ErrorKind::AddrInUse);
        assert!(help.contains("rank 0 runs once") && !help.contains("listen_port"), "{help}");
        assert!(of(io::ErrorKind::AddrNotAvailable).contains("rails"));
    }
}
