//! Plans: which part of the memory each rank sends to which rank, and after which messages. Nothing here moves data.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::element::Element;

/// A collective operation; the names are those of nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// Every rank gets the sum of all ranks' data.
    AllReduce,
    /// Every rank gets the data of all ranks.
    AllGather,
    /// Every rank gets its part of the sum of all ranks' data.
    ReduceScatter,
    /// Every rank gets its part of each rank's data.
    #[serde(rename = "alltoall")]
    AllToAll,
    /// Every rank gets the data of rank 0.
    Broadcast,
    /// Every rank gets the data of the rank before it.
    #[serde(rename = "sendrecv")]
    SendRecv,
}

/// Size of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Number of ranks that take part.
    pub ranks: usize,
    /// Elements, as nccl-tests counts them: in each rank's part if each rank has one, else in total.
    pub count: usize,
}

/// Maximum size of a message, as in NCCL's protocol Simple: 4 MiB of buffer for 8 steps.
pub(crate) const MESSAGE_BYTES: usize = 512 << 10;
/// Maximum number of messages in flight on a connection, like NCCL's steps.
pub(crate) const DEPTH: usize = 8;
/// Minimum bytes per channel; a channel that gets less costs more than it gains.
const CHANNEL_BYTES_MIN: usize = 64 << 10;

/// Memory that a message comes from or goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Area {
    Input,
    Output,
    Staging,
}

/// A message to send once `after` messages have been received on the incoming connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Send {
    pub(crate) from: Area,
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    pub(crate) after: usize,
}

/// A message to receive once `after` messages that read the same memory have been sent on the outgoing connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receive {
    pub(crate) into: Area,
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    /// Whether the message goes to staging first, and is then added to the input at the same offset.
    pub(crate) adds: bool,
    pub(crate) after: usize,
}

/// Work of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Local copies: offset in the input, offset in the output, bytes.
    pub(crate) copies: Vec<(usize, usize, usize)>,
    /// Sends by connection: first those to the nearest rank, one for each channel.
    pub(crate) sends: Vec<Vec<Send>>,
    pub(crate) receives: Vec<Vec<Receive>>,
    /// Range of the output that the operation produces, in bytes.
    pub(crate) result: Range<usize>,
}

impl Operation {
    pub const ALL: [Self; 6] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Broadcast,
        Self::SendRecv,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "alltoall",
            Self::Broadcast => "broadcast",
            Self::SendRecv => "sendrecv",
        }
    }

    /// Name of the algorithm.
    pub fn algorithm(self) -> &'static str {
        match self {
            Self::AllReduce | Self::AllGather | Self::ReduceScatter | Self::SendRecv => "ring",
            Self::Broadcast => "chain",
            Self::AllToAll => "pairwise",
        }
    }

    /// Whether the operation computes sums.
    pub fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter)
    }

    /// Ratio of bus bandwidth to algorithm bandwidth (PERFORMANCE.md of nccl-tests).
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        match self {
            Self::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => (ranks - 1.0) / ranks,
            Self::Broadcast | Self::SendRecv => 1.0,
        }
    }

    /// Returns the largest shape of at most `bytes` bytes, with at least one element per part.
    pub fn shape(self, bytes: usize, element: Element, ranks: usize) -> Shape {
        Shape { ranks, count: (bytes / element.bytes() / self.parts(ranks)).max(1) }
    }

    /// Size that bandwidths are computed from, in bytes: all parts together.
    pub fn bytes(self, shape: Shape, element: Element) -> usize {
        shape.count * self.parts(shape.ranks) * element.bytes()
    }

    /// Whether ranks are connected to all others instead of to their neighbours only.
    pub(crate) fn needs_all(self) -> bool {
        self == Self::AllToAll
    }

    /// Number of parts, each of [`Shape::count`] elements.
    fn parts(self, ranks: usize) -> usize {
        match self {
            Self::AllReduce | Self::Broadcast | Self::SendRecv => 1,
            Self::AllGather | Self::ReduceScatter | Self::AllToAll => ranks,
        }
    }
}

impl Plan {
    pub(crate) fn new(
        operation: Operation,
        shape: Shape,
        element: Element,
        rank: usize,
        channels: usize,
    ) -> Self {
        let bytes = operation.bytes(shape, element);
        let cut = Cut {
            shape,
            parts: operation.parts(shape.ranks),
            element: element.bytes(),
            channels: (bytes / CHANNEL_BYTES_MIN).clamp(1, channels),
        };
        match operation {
            Operation::AllReduce => {
                // Blocks of the sum may differ by one element.
                Self::ring(&cut, rank, true, true, 0..bytes)
            }
            Operation::ReduceScatter => {
                let result = cut.block(rank);
                Self::ring(&cut, rank, true, false, cut.bytes(&result))
            }
            Operation::AllGather => {
                let mut plan = Self::ring(&cut, rank, false, true, 0..bytes);
                let own = cut.bytes(&cut.block(rank));
                plan.copies.push((0, own.start, own.len()));
                plan
            }
            Operation::Broadcast => Self::chain(&cut, rank, bytes),
            Operation::SendRecv => Self::shift(&cut, bytes),
            Operation::AllToAll => Self::pairs(&cut, rank, channels, bytes),
        }
    }

    /// Plan of a barrier: no rank completes it before all ranks have started it.
    pub(crate) fn barrier(ranks: usize) -> Self {
        const FLAG_BYTES: usize = 8;
        let steps = 0..ranks - 1;
        let send = |after| Send { from: Area::Staging, at: 0, bytes: FLAG_BYTES, after };
        let receive = |step| Receive {
            into: Area::Staging,
            at: FLAG_BYTES * (1 + step),
            bytes: FLAG_BYTES,
            adds: false,
            after: 0,
        };
        Self {
            sends: vec![steps.clone().map(send).collect()],
            receives: vec![steps.map(receive).collect()],
            ..Self::default()
        }
    }

    /// Plan of a ring: blocks go around once to be summed (`adds`) and once to be distributed (`gathers`).
    fn ring(cut: &Cut, rank: usize, adds: bool, gathers: bool, result: Range<usize>) -> Self {
        let ranks = cut.shape.ranks;
        let back = |steps: usize| (rank + 2 * ranks - steps) % ranks;
        // Each step sends the block that the step before received.
        let mut steps: Vec<(usize, usize, bool)> = Vec::new();
        if adds {
            steps.extend((0..ranks - 1).map(|step| (back(1 + step), back(2 + step), true)));
        }
        if gathers {
            steps.extend((0..ranks - 1).map(|step| (back(step), back(1 + step), false)));
        }
        let mut plan = Self { result, ..Self::default() };
        for channel in 0..cut.channels {
            let (mut sends, mut receives) = (Vec::new(), Vec::new());
            // By block: receives planned before its first message, and sends planned up to its last.
            let (mut came, mut left) = (vec![0; ranks], vec![0; ranks]);
            for (number, (out, into, adds_here)) in steps.iter().enumerate() {
                let own = cut.block(rank).start;
                for (index, piece) in cut.pieces(*out, channel).enumerate() {
                    // The first step sends the rank's own input, which without sums is only the rank's block.
                    let is_input = number == 0;
                    let at = if is_input && !adds {
                        piece.start - own * cut.element
                    } else {
                        piece.start
                    };
                    let from = if is_input { Area::Input } else { Area::Output };
                    let after = if is_input { 0 } else { came[*out] + index + 1 };
                    sends.push(Send { from, at, bytes: piece.len(), after });
                }
                left[*out] = sends.len();
                came[*into] = receives.len();
                for piece in cut.pieces(*into, channel) {
                    let after = if *adds_here { 0 } else { left[*into] };
                    receives.push(Receive {
                        into: Area::Output,
                        at: piece.start,
                        bytes: piece.len(),
                        adds: *adds_here,
                        after,
                    });
                }
            }
            plan.sends.push(sends);
            plan.receives.push(receives);
        }
        plan
    }

    /// Plan of a chain from rank 0 to the last rank.
    fn chain(cut: &Cut, rank: usize, bytes: usize) -> Self {
        let (is_first, is_last) = (rank == 0, rank + 1 == cut.shape.ranks);
        let mut plan = Self { result: 0..bytes, ..Self::default() };
        if is_first {
            plan.copies.push((0, 0, bytes));
        }
        for channel in 0..cut.channels {
            let pieces: Vec<_> = cut.whole(channel).collect();
            let from = if is_first { Area::Input } else { Area::Output };
            let send = |(index, piece): (usize, &Range<usize>)| Send {
                from,
                at: piece.start,
                bytes: piece.len(),
                after: if is_first { 0 } else { index + 1 },
            };
            let sends = pieces.iter().enumerate().map(send).filter(|_| !is_last);
            plan.sends.push(sends.collect());
            let receives = pieces.iter().map(to_output).filter(|_| !is_first);
            plan.receives.push(receives.collect());
        }
        plan
    }

    /// Plan where each rank sends to the next one.
    fn shift(cut: &Cut, bytes: usize) -> Self {
        let mut plan = Self { result: 0..bytes, ..Self::default() };
        for channel in 0..cut.channels {
            plan.sends.push(cut.whole(channel).map(|piece| from_input(&piece)).collect());
            plan.receives.push(cut.whole(channel).map(|piece| to_output(&piece)).collect());
        }
        plan
    }

    /// Plan where each rank sends to and receives from each other rank, all pairs at once, as NCCL groups them.
    fn pairs(cut: &Cut, rank: usize, channels: usize, bytes: usize) -> Self {
        let ranks = cut.shape.ranks;
        let mut plan = Self { result: 0..bytes, ..Self::default() };
        let own = cut.bytes(&cut.block(rank));
        plan.copies.push((own.start, own.start, own.len()));
        for distance in 1..ranks {
            let (to, from) = ((rank + distance) % ranks, (rank + ranks - distance) % ranks);
            // Unused channels have connections, too.
            for channel in 0..channels {
                let pieces = |rank| {
                    let is_used = channel < cut.channels;
                    is_used.then(|| cut.pieces(rank, channel)).into_iter().flatten()
                };
                plan.sends.push(pieces(to).map(|piece| from_input(&piece)).collect());
                plan.receives.push(pieces(from).map(|piece| to_output(&piece)).collect());
            }
        }
        plan
    }
}

fn from_input(piece: &Range<usize>) -> Send {
    Send { from: Area::Input, at: piece.start, bytes: piece.len(), after: 0 }
}

fn to_output(piece: &Range<usize>) -> Receive {
    Receive { into: Area::Output, at: piece.start, bytes: piece.len(), adds: false, after: 0 }
}

/// Division of memory: a block for each rank, a part of that for each channel, and messages.
struct Cut {
    shape: Shape,
    parts: usize,
    element: usize,
    channels: usize,
}

impl Cut {
    /// Elements of a rank's block.
    fn block(&self, rank: usize) -> Range<usize> {
        let Shape { ranks, count } = self.shape;
        if self.parts == 1 {
            share(0..count, rank, ranks)
        } else {
            rank * count..(rank + 1) * count
        }
    }

    fn pieces(&self, rank: usize, channel: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        self.messages(self.block(rank), channel)
    }

    fn whole(&self, channel: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        self.messages(0..self.shape.count, channel)
    }

    fn messages(
        &self,
        elements: Range<usize>,
        channel: usize,
    ) -> impl Iterator<Item = Range<usize>> + use<> {
        let Range { start, end } = self.bytes(&share(elements, channel, self.channels));
        (start..end).step_by(MESSAGE_BYTES).map(move |at| at..end.min(at + MESSAGE_BYTES))
    }

    fn bytes(&self, elements: &Range<usize>) -> Range<usize> {
        elements.start * self.element..elements.end * self.element
    }
}

/// Returns one of `of` shares of a range; the lengths of the shares differ by at most one.
fn share(range: Range<usize>, index: usize, of: usize) -> Range<usize> {
    let edge = |index| range.start + range.len() * index / of;
    edge(index)..edge(index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_bandwidth_is_what_nccl_tests_define() {
        let factors = Operation::ALL.map(|operation| operation.bus_factor(4));
        assert_eq!(factors, [1.5, 0.75, 0.75, 0.75, 1.0, 1.0]);
    }

    #[test]
    fn a_size_is_rounded_down_to_elements_of_all_ranks_but_not_to_nothing() {
        for (operation, bytes, count, size) in [
            (Operation::AllReduce, 12, 3, 12),
            (Operation::AllGather, 8, 1, 16),
            (Operation::AllGather, 44, 2, 32),
            (Operation::AllToAll, 1024, 64, 1024),
        ] {
            let shape = operation.shape(bytes, Element::Float, 4);
            assert_eq!((shape.count, operation.bytes(shape, Element::Float)), (count, size));
        }
    }

    /// Both ends of each connection plan the same messages, whatever the sizes.
    #[test]
    fn what_is_sent_is_what_is_received_in_the_same_order() {
        for operation in Operation::ALL {
            for ranks in 2..6 {
                for bytes in [1, 3, 64, 65_536 * 3 + 5, 3_000_001] {
                    let shape = operation.shape(bytes, Element::Uint8, ranks);
                    let plan = |rank| Plan::new(operation, shape, Element::Uint8, rank, 3);
                    for rank in 0..ranks {
                        let sends = plan(rank).sends;
                        if operation.needs_all() {
                            assert_eq!(sends.len(), 3 * (ranks - 1), "one for each connection");
                        }
                        for (link, sent) in sends.iter().enumerate() {
                            let to = (rank + 1 + link / 3) % ranks;
                            let got = &plan(to).receives[link];
                            let sent: Vec<_> = sent.iter().map(|one| one.bytes).collect();
                            let got: Vec<_> = got.iter().map(|one| one.bytes).collect();
                            let what =
                                format!("{operation:?} of {bytes}, {rank} to {to} of {ranks}");
                            assert_eq!(sent, got, "{what}");
                        }
                    }
                }
            }
        }
    }
}
