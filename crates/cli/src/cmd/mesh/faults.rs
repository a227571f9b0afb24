//! Errors that several modules of the mesh return.

use std::time::Duration;

use polyrail::{LostReason, PostError};
use polyrail_report::exit;

use crate::fault::{Cause, Fault};
use crate::stdout::one_line;

/// `who` names one worker or several.
pub(crate) fn silent(who: &str, order: &str, waited: Duration) -> Fault {
    let text = format!("{who} did not answer `{order}` for {} s", waited.as_secs());
    Fault::new(exit::PEER, text)
        .with_help("see whether that node is busy or stopped, or give --timeout")
}

pub(crate) fn gone(who: &str, why: &LostReason) -> Fault {
    Fault::new(exit::PEER, format!("{who} is gone: {why}")).with_help(WHY_ENDED)
}

pub(crate) fn ended(who: &str, status: &str) -> Fault {
    let text = format!("the process of {who} ended before it told its result ({status})");
    Fault { cause: Cause::Ended, ..Fault::new(exit::PEER, text).with_help(WHY_ENDED) }
}

pub(crate) fn protocol(who: &str, order: &str, answer: &str) -> Fault {
    let answer = one_line(answer, 80);
    Fault::new(exit::PEER, format!("{who} answered `{order}` with something else: {answer}"))
}

/// Error for a process with another version of the messages.
pub(crate) fn version(who: &str, theirs: &str, here: &str, ours: u32) -> Fault {
    let text = format!("{who} speaks version {theirs} of the mesh, and {here} version {ours}");
    Fault::new(exit::PEER, text).with_help(SAME_BUILD)
}

pub(crate) fn post(pair: &str, source: &PostError) -> Fault {
    let text = format!("a transfer of {pair} could not be posted: {source}");
    Fault::explained(text, source)
}

pub(crate) fn lost(pair: &str, announced: u64, arrived: u64) -> Fault {
    let text = format!("{pair}: {announced} transfers ended at the sender, and {arrived} arrived");
    Fault::new(exit::DATA, text).with_help("please report this with the command line")
}

pub(crate) const SAME_BUILD: &str = "use the same build of polyrail on all nodes";
const WHY_ENDED: &str = "look on that node why its process ended, and start all of them again";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_answers_forges_no_lines() {
        let text = protocol("node1", "go", "a\nb\u{1b}").to_string();
        assert_eq!(text, "node1 answered `go` with something else: a\\u000ab\\u001b");
    }
}
