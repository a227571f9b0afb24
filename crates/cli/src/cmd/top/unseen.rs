//! Reasons why `top` can't show the engine of a process.

use std::collections::{BTreeMap, BTreeSet};

use crate::fault::Fault;

/// A reason why `top` can't show the engine of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unseen {
    /// Another user owns the process.
    Forbidden { user: u32 },
    /// This user namespace has no number for the owner.
    Foreign,
    /// The engine does not answer.
    Late,
    /// The process hung up, or its answer is not metrics.
    Garbage,
    /// The process is in a network namespace that `top` can't enter.
    Namespace { why: String },
    /// The engine listens on no socket for `top`.
    Off,
    /// The engine's socket may be one of these many that were not asked.
    NotAsked { sockets: usize },
}

/// Maximum number of processes that a message names.
const MOST_NAMED: usize = 5;

/// The fault if there are engines and `top` can show none of them.
pub(super) fn none_seen<'u>(all: impl IntoIterator<Item = (&'u u32, &'u Unseen)>) -> Fault {
    let all: Vec<_> = all.into_iter().collect();
    let named = all.iter().take(MOST_NAMED);
    let mut text: Vec<String> =
        named.map(|(pid, why)| format!("process {pid} {}", why.reason())).collect();
    if all.len() > MOST_NAMED {
        text.push(format!("and {} more", all.len() - MOST_NAMED));
    }
    let mut remedies: Vec<&str> = all.iter().map(|(_, why)| why.remedy()).collect();
    remedies.sort_unstable();
    remedies.dedup();
    Fault::environment(format!("no engine can be seen: {}", text.join("; ")))
        .with_help(remedies.join("; "))
}

/// The line that a screen shows while `top` waits for an engine that it can show.
pub(super) fn waiting(all: &BTreeMap<u32, Unseen>) -> String {
    let which = match all.len() {
        0 => return "no engine yet".to_owned(),
        1 => "1 process with an engine".to_owned(),
        count => format!("{count} processes with engines"),
    };
    let remedies: BTreeSet<&str> = all.values().map(Unseen::remedy).collect();
    let remedies = remedies.into_iter().collect::<Vec<_>>().join("; ");
    format!("no engine yet; {which} can't be seen: {remedies}")
}

impl Unseen {
    /// The reason, as a phrase that follows the process.
    pub(super) fn reason(&self) -> String {
        match self {
            Self::Forbidden { user } => format!("belongs to user {user}"),
            Self::Foreign => "belongs to a user who is not known in this user namespace".to_owned(),
            Self::Late => "does not answer".to_owned(),
            Self::Garbage => "hung up, or sent something other than metrics".to_owned(),
            Self::Namespace { why } => {
                format!("is in a network namespace that can't be entered: {why}")
            }
            Self::Off => {
                "has an engine that does not let others look, or that has just begun or is about to end"
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
                "look again; if that stays so, leave out metrics_listen=off there, and see that program and \
                 command are of one version"
            }
            Self::NotAsked { .. } => {
                "name the process with --pid; root sees in /proc/net/unix whose names there are"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use polyrail_report::exit;

    use super::*;

    #[test]
    fn each_reason_is_named_with_its_process_and_each_remedy_once() {
        let mut unseen: BTreeMap<u32, Unseen> =
            (1..=7).map(|pid| (pid, Unseen::Forbidden { user: 1000 })).collect();
        unseen.insert(8, Unseen::Off);
        let Fault { message, help, code, .. } = none_seen(&unseen);
        let begin = "no engine can be seen: process 1 belongs to user 1000; ";
        assert!(message.starts_with(begin), "{message}");
        assert!(message.ends_with("process 5 belongs to user 1000; and 3 more"), "{message}");
        let help = help.unwrap();
        assert_eq!(help.matches("as that user or as root").count(), 1);
        assert!(help.contains("metrics_listen=off"));
        assert_eq!(code, exit::ENVIRONMENT);
    }

    #[test]
    fn while_top_waits_it_counts_the_processes_that_it_can_not_show() {
        let mut all = BTreeMap::new();
        assert_eq!(waiting(&all), "no engine yet");
        all.insert(1, Unseen::Forbidden { user: 0 });
        all.insert(2, Unseen::Forbidden { user: 0 });
        let line = "no engine yet; 2 processes with engines can't be seen: run `polyrail top` as that user or as root";
        assert_eq!(waiting(&all), line);
    }
}
