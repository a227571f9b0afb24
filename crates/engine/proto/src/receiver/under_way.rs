//! Active transfers, found by number, by age, and by their read or receive, without a scan of all of them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::incoming::IncomingTransfer;
use crate::wire::WireOp;

/// Maximum numbers of finished transfers in the heap before they are swept.
const SLACK: usize = 1024;

/// Active transfers.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    by_number: HashMap<u64, Entry>,
    /// Numbers of active transfers, lowest on top, including some of transfers that are over.
    lowest: BinaryHeap<Reverse<u64>>,
    /// Newest transfer for a read or receive, which leads to the older ones. There is usually one.
    newest: HashMap<(WireOp, u64), u64>,
}

/// A transfer, and its neighbours among those for the same read or receive.
#[derive(Debug)]
struct Entry {
    incoming: IncomingTransfer,
    older: Option<u64>,
    newer: Option<u64>,
}

impl UnderWay {
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    pub(super) fn get(&self, id: u64) -> Option<&IncomingTransfer> {
        self.by_number.get(&id).map(|entry| &entry.incoming)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut IncomingTransfer> {
        self.by_number.get_mut(&id).map(|entry| &mut entry.incoming)
    }

    /// Adds a transfer whose number is not active.
    pub(super) fn insert(&mut self, id: u64, incoming: IncomingTransfer) {
        let older = purpose(&incoming).and_then(|purpose| self.newest.insert(purpose, id));
        if let Some(older) = older.and_then(|older| self.by_number.get_mut(&older)) {
            older.newer = Some(id);
        }
        self.by_number.insert(id, Entry { incoming, older, newer: None });
        self.lowest.push(Reverse(id));
        if self.lowest.len() > 2 * self.by_number.len() + SLACK {
            self.sweep();
        }
    }

    pub(super) fn remove(&mut self, id: u64) -> Option<IncomingTransfer> {
        let Entry { incoming, older, newer } = self.by_number.remove(&id)?;
        if let Some(entry) = older.and_then(|older| self.by_number.get_mut(&older)) {
            entry.newer = newer;
        }
        if let Some(entry) = newer.and_then(|newer| self.by_number.get_mut(&newer)) {
            entry.older = older;
        } else if let Some(purpose) = purpose(&incoming) {
            match older {
                Some(older) => self.newest.insert(purpose, older),
                None => self.newest.remove(&purpose),
            };
        }
        Some(incoming)
    }

    /// Returns the transfer with the lowest number, if that is below `floor`.
    pub(super) fn lowest_below(&mut self, floor: u64) -> Option<u64> {
        while let Some(Reverse(id)) = self.lowest.peek().copied().filter(|id| id.0 < floor) {
            if self.by_number.contains_key(&id) {
                return Some(id);
            }
            self.lowest.pop();
        }
        None
    }

    /// Returns the newest transfer for a read or receive; `None` for other operations, which have no such number.
    pub(super) fn newest_for(&self, op: WireOp, context: u64) -> Option<u64> {
        self.newest.get(&(op, context)).copied()
    }

    /// Drops numbers of transfers that are over, and second entries of those that were restarted.
    fn sweep(&mut self) {
        let mut numbers = std::mem::take(&mut self.lowest).into_vec();
        numbers.retain(|Reverse(id)| self.by_number.contains_key(id));
        numbers.sort_unstable();
        numbers.dedup();
        self.lowest = numbers.into();
    }
}

/// Returns the read or receive that a transfer is for.
fn purpose(incoming: &IncomingTransfer) -> Option<(WireOp, u64)> {
    let is_one = matches!(incoming.op, WireOp::ReadData | WireOp::SendData);
    is_one.then_some((incoming.op, incoming.context))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::id::TransferId;
    use crate::wire::{ChunkHeader, Flags};

    fn incoming(op: WireOp, context: u64) -> IncomingTransfer {
        IncomingTransfer::new(&ChunkHeader {
            op,
            flags: Flags::NONE,
            meta_len: 0,
            payload_len: 0,
            pieces: 0,
            transfer: TransferId(0),
            chunk: 0,
            chunk_count: 1,
            floor: TransferId(1),
            context,
            checksum: 0,
            place: 0,
        })
    }

    proptest! {
        #[test]
        fn it_finds_what_a_plain_list_finds(
            steps in prop::collection::vec((0u8..4, 0u64..12, 0u64..3), 0..60),
        ) {
            let mut under_way = UnderWay::default();
            let mut plain: BTreeMap<u64, (WireOp, u64)> = BTreeMap::new();
            for (step, id, context) in steps {
                let op = if context == 0 { WireOp::Write } else { WireOp::ReadData };
                match step {
                    0 | 1 if !plain.contains_key(&id) => {
                        plain.insert(id, (op, context));
                        under_way.insert(id, incoming(op, context));
                    }
                    2 => prop_assert_eq!(
                        under_way.remove(id).map(|it| (it.op, it.context)),
                        plain.remove(&id)
                    ),
                    _ => {
                        let lowest = plain.keys().next().copied().filter(|it| *it < id);
                        prop_assert_eq!(under_way.lowest_below(id), lowest);
                    }
                }
                prop_assert_eq!(under_way.len(), plain.len());
            }
            for context in 1..3 {
                let mut wanted: Vec<u64> = plain.keys().copied().collect();
                wanted.retain(|id| plain[id] == (WireOp::ReadData, context));
                let mut found = Vec::new();
                while let Some(id) = under_way.newest_for(WireOp::ReadData, context) {
                    found.push(id);
                    under_way.remove(id);
                }
                found.sort_unstable();
                prop_assert_eq!(found, wanted);
            }
        }
    }

    #[test]
    fn numbers_of_transfers_that_are_over_are_not_kept() {
        let mut under_way = UnderWay::default();
        under_way.insert(7, incoming(WireOp::ReadData, 1));
        for id in 100..100_000 {
            under_way.insert(id, incoming(WireOp::Write, 0));
            under_way.remove(id);
        }
        for context in 2..10_000 {
            under_way.remove(7);
            under_way.insert(7, incoming(WireOp::ReadData, context));
        }
        assert!(under_way.lowest.len() <= SLACK + 3, "{}", under_way.lowest.len());
        assert!(under_way.newest.len() == 1 && under_way.lowest_below(8) == Some(7));
    }
}
