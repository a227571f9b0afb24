//! An entry of the ledger.

use std::fmt;

use crate::memory::Span;
use crate::network::NodeId;

/// Which operation, in the order of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {}", self.0)
    }
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes into the peer's memory; may bring a notification.
    Write,
    /// Reads from the peer's memory.
    Read,
    /// Sends to a receive of the same tag.
    Send { tag: u64 },
    /// Receives from a send of the same tag.
    Receive { tag: u64 },
    /// Notifies the peer, without data.
    Notify,
}

/// An operation to be posted.
#[derive(Clone, Debug)]
pub struct Posting {
    pub kind: Kind,
    pub node: NodeId,
    /// Whose memory it reads.
    pub source: Option<NodeId>,
    /// Whose memory it writes.
    pub destination: Option<NodeId>,
    /// Bytes of each segment.
    pub lens: Vec<u64>,
    /// Whether a notification comes with it.
    pub notify: bool,
}

/// How an operation ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every byte was in place.
    Done,
    /// It was not; why.
    Failed(String),
}

/// An operation and what became of it.
#[derive(Debug)]
pub struct Operation {
    /// As it was posted.
    pub posting: Posting,
    /// Where its bytes come from.
    pub source: Vec<Span>,
    pub destination: Vec<Span>,
    pub outcome: Option<Outcome>,
    pub(super) parts: Vec<Part>,
    pub(super) expected: Vec<u8>,
    pub(super) partner: Option<OpId>,
    pub(super) notified: bool,
    /// It must have no further effect.
    pub(super) settled: bool,
    /// Its end can't be known: one of its nodes is gone.
    pub(super) orphaned: bool,
}

/// What the destination of a segment is to its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// It may be written.
    Open,
    /// The operation is over.
    Closed,
    /// The region was dropped; whether all bytes had come by then.
    Dropped { complete: bool },
}

impl Operation {
    /// The receive of a send, or the send of a receive.
    pub fn partner(&self) -> Option<OpId> {
        self.partner
    }

    /// Returns whether its end is still to come: it is not over, and the engine that posted it is not gone.
    pub fn is_open(&self) -> bool {
        self.outcome.is_none() && !self.orphaned
    }

    /// Bytes that it moves.
    pub fn bytes(&self) -> u64 {
        self.posting.lens.iter().sum()
    }

    /// Where the bytes of `at` are in the operation: offsets and lengths, in order. A range may
    /// reach over several segments that lie side by side.
    pub(super) fn offset_of(&self, at: Span) -> Option<Vec<(usize, usize)>> {
        let mut ranges = Vec::new();
        let (mut place, mut left) = (at.offset, at.len);
        while left > 0 {
            let mut before = 0;
            let span = self.destination.iter().find(|span| {
                let inside =
                    span.slot == at.slot && (span.offset..span.offset + span.len).contains(&place);
                before += if inside { 0 } else { span.len };
                inside
            })?;
            let skip = place - span.offset;
            let len = (span.len - skip).min(left);
            ranges.push(((before + skip) as usize, len as usize));
            place += len;
            left -= len;
        }
        Some(ranges)
    }
}
