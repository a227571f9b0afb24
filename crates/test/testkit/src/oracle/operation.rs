//! An operation in the record.

use std::fmt;

use crate::memory::Span;
use crate::network::NodeId;

/// Number of an operation, in the order of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {}", self.0)
    }
}

/// Kind of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Writes into the peer's memory, optionally with a notification.
    Write,
    /// Reads from the peer's memory.
    Read,
    /// Sends to a receive with the same tag.
    Send { tag: u64 },
    /// Receives from a send with the same tag.
    Receive { tag: u64 },
    /// Notifies the peer, without data.
    Notify,
}

/// An operation to be posted.
#[derive(Clone, Debug)]
pub struct Posting {
    pub kind: Kind,
    pub node: NodeId,
    /// Node whose memory it reads.
    pub source: Option<NodeId>,
    /// Node whose memory it writes.
    pub destination: Option<NodeId>,
    /// Bytes of each segment.
    pub lens: Vec<u64>,
    /// True if a notification comes with it.
    pub notify: bool,
}

/// End of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every byte was in place.
    Done,
    /// Failed, for this reason.
    Failed(String),
}

/// An operation and its result.
#[derive(Debug)]
pub struct Operation {
    /// The request as posted.
    pub posting: Posting,
    /// Spans that its bytes come from.
    pub source: Vec<Span>,
    pub destination: Vec<Span>,
    pub outcome: Option<Outcome>,
    pub(super) parts: Vec<Part>,
    pub(super) expected: Vec<u8>,
    pub(super) partner: Option<OpId>,
    pub(super) notified: bool,
    /// True if it must have no further effect.
    pub(super) settled: bool,
    /// True if its end can't be known, because one of its nodes is gone.
    pub(super) orphaned: bool,
}

/// State of a segment's destination for its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The segment may be written.
    Open,
    /// The operation is over.
    Closed,
    /// The region was dropped. `complete` is true if all bytes had come by then.
    Dropped { complete: bool },
}

impl Operation {
    /// The receive of a send, or the send of a receive.
    pub fn partner(&self) -> Option<OpId> {
        self.partner
    }

    /// True if its end is still to come: it is not over, and the engine that posted it is not gone.
    pub fn is_open(&self) -> bool {
        self.outcome.is_none() && !self.orphaned
    }

    /// Number of bytes that it moves.
    pub fn bytes(&self) -> u64 {
        self.posting.lens.iter().sum()
    }

    /// Ranges of the operation that the bytes of `at` belong to: offsets and lengths, in order. A range may extend over
    /// several adjacent segments.
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
