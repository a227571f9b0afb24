//! Errors that several modules of the bench raise.

use std::io;
use std::time::Duration;

use polyrail::{LostReason, PostError, RegionError, TransferError};
use polyrail_profiler::drive::DriveError;
use polyrail_report::{exit, show_memory};

use crate::fault::{Cause, Fault};
use crate::host::Available;

/// Returns the error for a lost peer.
pub(crate) fn gone(peer: &str, why: LostReason) -> Fault {
    let text = format!("the engine at the other end, {peer}, is gone: {why}");
    let fault = Fault::new(exit::PEER, text).with_help(help_of_lost(&why));
    Fault { cause: Cause::Gone(Box::new(why)), ..fault }
}

/// Returns the error for a host, or a control group, with less memory than needed.
pub(crate) fn memory(needed_bytes: u64, available: Available) -> Fault {
    let needed = show_memory(needed_bytes);
    Fault::environment(format!("this bench needs {needed} of memory; allowed: {available}"))
        .with_help("choose smaller --sizes, a smaller --depth or fewer --segments")
}

pub(crate) fn mapping(bytes: u64, source: io::Error) -> Fault {
    let is_memory = source.kind() == io::ErrorKind::OutOfMemory;
    let fault = Fault::system(format!("mapping {bytes} bytes"), source);
    match is_memory {
        true => fault.with_help(
            "choose smaller --sizes, a smaller --depth, or raise the limit of memory (ulimit -v, that of the container)",
        ),
        false => fault,
    }
}

/// Returns the error of a connection of plain sockets with the other end.
pub(crate) fn sockets(step: &str, source: &io::Error) -> Fault {
    Fault::new(exit::PEER, format!("{step} failed: {source}")).with_help(
        "see that the other end still runs, and that a firewall lets TCP between the rails through",
    )
}

pub(crate) fn silent(ask: &str, waited: Duration) -> Fault {
    let waited = waited.as_secs();
    Fault::new(exit::PEER, format!("the other side did not answer `{ask}` for {waited} s"))
        .with_help("is the program there `polyrail bench --listen` of this version?")
}

pub(crate) fn stuck(waited: Duration, dump: &str) -> Fault {
    Fault::new(exit::PEER, format!("no transfer ended for {} s", waited.as_secs()))
        .with_help(format!("the engine's state:\n{dump}"))
}

pub(crate) fn protocol(ask: &str, answer: String) -> Fault {
    let text = format!("the other side answered `{ask}` with something else: {answer}");
    Fault::new(exit::PEER, text)
}

impl From<TransferError> for Fault {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::PeerLost { peer, why } => gone(&peer, why),
            other => Self::explained(format!("transfer failed: {other}"), &other),
        }
    }
}

impl From<PostError> for Fault {
    fn from(error: PostError) -> Self {
        match error {
            PostError::PeerGone { peer, why } => gone(&peer, why),
            other => Self::explained(format!("posting a transfer failed: {other}"), &other),
        }
    }
}

impl From<RegionError> for Fault {
    fn from(error: RegionError) -> Self {
        Self::explained(format!("region: {error}"), &error)
    }
}

impl From<DriveError> for Fault {
    fn from(error: DriveError) -> Self {
        match error {
            DriveError::Post(error) => error.into(),
            DriveError::Transfer(error) => error.into(),
            DriveError::Interrupted => Self::interrupted(),
            DriveError::Stuck { waited, dump } => stuck(waited, &dump),
        }
    }
}

fn help_of_lost(why: &LostReason) -> &'static str {
    match why {
        LostReason::Plugin { .. } => {
            "`polyrail nccl try` says what the plugin can do, call by call; rails without it need none"
        }
        LostReason::GivenUp { says } if is_unanswered(says) => {
            "this process was stopped or overloaded: TCP connected, and it answered nothing for so long; see \
             that it runs all the while, and raise peer_timeout_ms at both ends where it can't"
        }
        LostReason::Unreachable { last_problem: Some(last), .. } if is_unanswered(last) => {
            "see that the process at the other end is not stopped (`ps` shows T) and gets CPU time: its kernel \
             takes the connections and it answers none"
        }
        LostReason::GivenUp { says } if says.contains("MTU") => {
            "`ping -M do -s 1472` between the rails tells which sizes pass: set the MTU of \
             the interfaces to that of the way, or let ICMP pass the firewalls on it"
        }
        LostReason::GivenUp { .. } => {
            "see that the other end reaches this one as well: its reason names the \
             addresses; a firewall of this host may let connections out and none in (`nft \
             list ruleset`, `iptables -S`), and NAT before this host lets none in"
        }
        LostReason::Unreachable { .. } => {
            "see that the other end still runs, and that these rails reach it: their addresses \
             (--rails), the routes, a firewall; `polyrail host show` shows the interfaces"
        }
        _ => {
            "look at the other end why it ended, start it again, and then this command; what was \
             measured before is printed"
        }
    }
}

/// Returns whether an engine's message describes connections that TCP made and that got no answer. No firewall causes
/// that.
fn is_unanswered(words: &str) -> bool {
    words.contains("TCP connected and nothing answered")
}

#[cfg(test)]
mod tests {
    use polyrail::ConnectReason;

    use super::*;

    #[test]
    fn a_process_that_answers_nothing_is_blamed_and_no_firewall() {
        let help = |waiting_for: &'static str| {
            let last = ConnectReason::TimedOut { waiting_for }.to_string();
            let (silence, says) = (Duration::from_secs(10), last.clone());
            [
                LostReason::Unreachable { silence, last_problem: Some(last) },
                LostReason::GivenUp { says },
            ]
            .map(|why| gone("", why).help.unwrap())
        };
        for help in help("the other side's first words") {
            assert!(help.contains("stopped") && !help.contains("firewall"), "{help}");
        }
        for help in help("the connection") {
            assert!(help.contains("firewall") && !help.contains("stopped"), "{help}");
        }
    }

    #[test]
    fn a_transfer_that_fails_has_the_code_of_its_kind_and_a_lost_peer_is_known() {
        let cancelled = Fault::from(TransferError::Cancelled);
        assert_eq!((cancelled.code, &cancelled.cause), (exit::PEER, &Cause::Other));
        assert!(cancelled.message.starts_with("transfer failed: "), "{cancelled}");
        let (peer, why) = ("a".into(), LostReason::Closed);
        let fault = Fault::from(DriveError::Post(PostError::PeerGone { peer, why }));
        assert_eq!(fault.message, "the engine at the other end, a, is gone: it closed");
        assert_eq!(fault.cause, Cause::Gone(Box::new(LostReason::Closed)));
    }
}
