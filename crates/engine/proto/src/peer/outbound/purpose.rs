//! Purposes of the transfers of a sending side.

use crate::peer::{Awaited, Operation};
use crate::sender::Failure;

/// Purpose of a transfer. It decides what follows the end of the transfer.
#[derive(Debug)]
pub enum Purpose<O: Operation> {
    /// A write: the whole operation.
    Write(O),
    /// The notification of an operation whose bytes are in place.
    Notify(O),
    /// Data of a send that met the peer's receive of this number.
    Send(O, u64),
    /// Data for a read of the peer.
    ReadData {
        /// Peer's number of the read.
        read: u64,
        /// Number of parts, as the quotas count them.
        parts: usize,
    },
    /// A message that needs no answer.
    Tell,
    /// Answer to a question of the peer; the number of unacknowledged answers is limited.
    Answer,
    /// Announcement of a read or receive to the peer.
    Announce(O, Awaited),
    /// The peer confirms that none of the operation's data is landing any longer; the operation then ends with this
    /// failure.
    Cancel(O, Failure),
    /// A message of the driver.
    Own(O::Own),
}

impl<O: Operation> Purpose<O> {
    /// Returns what the transfer does and how old it is, for people. `of` returns both for an operation.
    pub fn describe(&self, of: impl Fn(&O) -> (String, String)) -> (String, String) {
        let about = |text: &str, op| {
            let (what, age) = of(op);
            (format!("{text} {what}"), age)
        };
        match self {
            Self::Write(op) | Self::Send(op, _) => of(op),
            Self::Cancel(op, failure) => {
                let (what, age) = of(op);
                (format!("{what} ({failure}), the peer is being told"), age)
            }
            Self::Notify(op) => about("notification of", op),
            Self::Announce(op, _) => about("message for", op),
            Self::ReadData { read, .. } => {
                (format!("data for the peer's read {read}"), String::new())
            }
            Self::Tell | Self::Answer | Self::Own(_) => ("message".to_owned(), String::new()),
        }
    }
}
