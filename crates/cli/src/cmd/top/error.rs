//! Why there is nothing to show.

use std::io;

use polyrail_report::exit;

use super::find::Unseen;
use super::look::Look;

/// Anything that ends `top` early.
#[derive(Debug, thiserror::Error)]
pub(super) enum TopError {
    #[error("PID `{pid}`: no such process; allowed: a process of this machine with an engine")]
    NoProcess { pid: u32 },
    #[error("PID `{pid}`: the process has no engine; allowed: a process of this machine with one")]
    NoEngine { pid: u32 },
    #[error("no process of this machine has an engine")]
    Nobody,
    /// There are engines, and none can be seen.
    #[error("no engine can be seen: {}", reasons(.0))]
    Unseen(Vec<(u32, Unseen)>),
    #[error("signals: {0}")]
    Signals(io::Error),
}

/// Processes that a message names.
const MOST_NAMED: usize = 5;

impl TopError {
    /// Of a first look that shows no engine.
    pub(super) fn nothing(pid: Option<u32>, look: &Look) -> Self {
        match pid {
            _ if !look.unseen.is_empty() => {
                Self::Unseen(look.unseen.iter().map(|(pid, why)| (*pid, why.clone())).collect())
            }
            Some(pid) => Self::NoEngine { pid },
            None => Self::Nobody,
        }
    }

    pub(super) fn help(&self) -> String {
        match self {
            Self::NoProcess { .. } | Self::NoEngine { .. } => {
                "`polyrail top` without a PID shows all engines that this user may see".to_owned()
            }
            Self::Nobody => {
                "start one and look again; an engine is in every program that uses Polyrail, such as \
                 `polyrail bench`"
                    .to_owned()
            }
            Self::Unseen(all) => {
                let mut remedies: Vec<&str> = all.iter().map(|(_, why)| why.remedy()).collect();
                remedies.sort_unstable();
                remedies.dedup();
                remedies.join("; ")
            }
            Self::Signals(_) => "see `ulimit -a` and the free memory".to_owned(),
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::NoProcess { .. } | Self::NoEngine { .. } => exit::USAGE,
            _ => exit::ENVIRONMENT,
        }
    }
}

impl Unseen {
    /// Follows the process.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Forbidden { user } => format!("belongs to user {user}"),
            Self::Foreign => "belongs to a user who is not known in this user namespace".to_owned(),
            Self::Late => "does not answer".to_owned(),
            Self::Garbage => "hung up, or said something that is no metrics".to_owned(),
            Self::Namespace { why } => {
                format!("is in a network namespace that can't be entered: {why}")
            }
            Self::Off => {
                "has an engine that lets nobody look, or that has just begun or is about to end"
                    .to_owned()
            }
            Self::NotAsked { sockets } => format!(
                "was not seen, and {sockets} sockets under names of engines were not asked: its own may be one of them"
            ),
        }
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Forbidden { .. } => "run `polyrail top` as that user or as root",
            Self::Foreign => {
                "run `polyrail top` outside of this lab or container, as that user or as root"
            }
            Self::Late => "see whether the process is stopped or the machine overloaded",
            Self::Garbage => {
                "run `polyrail top` as the user of that process; of a container, inside it"
            }
            Self::Namespace { .. } => {
                "run `polyrail top` as root or inside that namespace, \
                 as with `polyrail lab exec NAME NODE -- polyrail top`"
            }
            Self::Off => {
                "look again; if that stays so, leave out top_socket=off there, and see that program and command are of one version; \
                 `metrics_listen` serves the same figures to Prometheus"
            }
            Self::NotAsked { .. } => {
                "name the process with --pid; root sees in /proc/net/unix whose names there are"
            }
        }
    }
}

fn reasons(all: &[(u32, Unseen)]) -> String {
    let named = all.iter().take(MOST_NAMED);
    let mut text: Vec<String> =
        named.map(|(pid, why)| format!("process {pid} {}", why.reason())).collect();
    if all.len() > MOST_NAMED {
        text.push(format!("and {} more", all.len() - MOST_NAMED));
    }
    text.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_named_with_its_process_and_each_remedy_once() {
        let unseen: Vec<_> = (1..=7).map(|pid| (pid, Unseen::Forbidden { user: 1000 })).collect();
        let error = TopError::Unseen([unseen, vec![(8, Unseen::Off)]].concat());
        let text = error.to_string();
        assert!(
            text.starts_with("no engine can be seen: process 1 belongs to user 1000; "),
            "{text}"
        );
        assert!(text.ends_with("process 5 belongs to user 1000; and 3 more"), "{text}");
        assert_eq!(error.help().matches("as that user or as root").count(), 1);
        assert!(error.help().contains("top_socket=off"));
        assert_eq!(error.exit_code(), exit::ENVIRONMENT);
        assert_eq!(TopError::NoEngine { pid: 1 }.exit_code(), exit::USAGE);
    }
}
