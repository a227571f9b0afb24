//! The purposes of the transfers of a half.

use crate::peer::{Awaited, Operation};
use crate::sender::Failure;

/// The purpose of a transfer. It decides what follows the end of the transfer.
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
        /// The peer's number of the read.
        read: u64,
        /// Parts, as the quotas count them.
        parts: usize,
    },
    /// A message that needs no answer.
    Tell,
    /// The answer to a question of the peer, of which only so many may be on their way.
    Answer,
    /// The peer is to hear of a read or receive.
    Announce(O, Awaited),
    /// The peer confirms that nothing of the operation lands any more, which then ends with this failure.
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
