//! Rails near the memory of a transfer: a rail first takes chunks of transfers that it is near. If there are none, it
//! takes any others, so no rail is idle while chunks wait, and a single transfer has all rails.

use std::collections::VecDeque;

use super::{Sender, Source, TransferHandle};

/// Maximum transfers that a rail checks to find one that it is near.
const LOOK: usize = 32;
/// Maximum chunks that go before the oldest transfer, if no rail near it takes its chunks.
const PASSED_MAX: u32 = 64;

impl<S: Source> Sender<S> {
    /// Returns the position in a queue of a rail's next transfer.
    pub(super) fn place_for(&self, rail: usize, queue: &VecDeque<TransferHandle>) -> usize {
        let suits = |handle: &TransferHandle| {
            let outgoing = self.slots[handle.slot as usize].as_ref();
            // Transfers that are over have to leave the queue.
            outgoing.is_none_or(|it| !self.rails.is_far(rail, it.transfer.source.near()))
        };
        if self.passed >= PASSED_MAX || queue.front().is_none_or(suits) {
            return 0;
        }
        queue.iter().take(LOOK).position(suits).unwrap_or_default()
    }

    /// Records that a chunk was taken from the transfer at this position.
    pub(super) fn note_passed(&mut self, place: usize) {
        self.passed = if place == 0 { 0 } else { self.passed + 1 };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::id::{FlowIndex, RegionKey, Time};
    use crate::plan::{Plan, Segment};
    use crate::sender::{NewTransfer, SenderConfig};
    use crate::wire::{AckFrame, Flags, WireOp};

    const CHUNK: u64 = 100 << 10;
    const NOW: Time = Time(0);

    /// Memory near some rails.
    #[derive(Clone)]
    struct Placed(Arc<Plan>, u64);

    impl Source for Placed {
        fn plan(&self) -> &Plan {
            &self.0
        }
        fn meta(&self) -> &[u8] {
            b""
        }
        fn near(&self) -> u64 {
            self.1
        }
    }

    /// Returns a sender with this many rails, each with one flow.
    fn sender(rails: u32, window_chunks: u32) -> Sender<Placed> {
        let mut sender =
            Sender::new(SenderConfig { window_chunks, channels: rails, sockets: 1, rails });
        (0..rails).for_each(|rail| sender.handle_flow_up(NOW, FlowIndex(rail)));
        sender
    }

    fn submit(sender: &mut Sender<Placed>, token: u64, chunks: u64, near: u64) {
        let remote = RegionKey { slot: 0, generation: 1, nonce: 0 };
        let len = chunks * CHUNK;
        let segment = Segment { local_region: 0, local_offset: 0, remote, remote_offset: 0, len };
        let source = Placed(Arc::new(Plan::new([segment], CHUNK).unwrap()), near);
        let (op, flags) = (WireOp::Write, Flags::NONE);
        let new = NewTransfer { op, flags, context: 0, source, token, deadline: None };
        sender.submit(NOW, new);
    }

    /// Returns the transfer whose chunk a rail gets.
    fn pull(sender: &mut Sender<Placed>, rail: u32) -> Option<u64> {
        let token = sender.pull(NOW, FlowIndex(rail))?.token;
        sender.handle_written(FlowIndex(rail));
        Some(token)
    }

    #[test]
    fn a_rail_takes_what_it_is_near_and_leaves_the_rest_to_others() {
        let mut s = sender(2, 100);
        submit(&mut s, 1, 8, 0b01);
        submit(&mut s, 2, 8, 0b10);
        for _ in 0..8 {
            assert_eq!((pull(&mut s, 1), pull(&mut s, 0)), (Some(2), Some(1)));
        }
    }

    #[test]
    fn a_chunk_is_left_to_a_near_rail_that_has_nothing_to_do() {
        let mut s = sender(3, 100);
        submit(&mut s, 1, 1, 0b100);
        assert_eq!((pull(&mut s, 0), pull(&mut s, 1)), (None, None));
        assert_eq!(
            s.wakes(NOW).collect::<Vec<_>>(),
            [FlowIndex(2)],
            "and the driver hears of that"
        );
        assert_eq!(pull(&mut s, 2), Some(1));
    }

    #[test]
    fn a_transfer_that_is_alone_has_all_rails() {
        let mut s = sender(3, 100);
        submit(&mut s, 1, 30, 0b100);
        assert_eq!(pull(&mut s, 0), None);
        assert_eq!(pull(&mut s, 2), Some(1));
        assert_eq!(s.wakes(NOW).collect::<Vec<_>>(), [FlowIndex(0), FlowIndex(1)], "it is busy");
        assert_eq!((pull(&mut s, 0), pull(&mut s, 1)), (Some(1), Some(1)));
    }

    #[test]
    fn a_near_rail_that_is_down_is_none() {
        let mut s = sender(2, 100);
        s.handle_flow_down(FlowIndex(1));
        submit(&mut s, 1, 1, 0b10);
        assert_eq!(pull(&mut s, 0), Some(1));
    }

    #[test]
    fn a_chunk_is_not_left_to_a_near_rail_that_is_much_slower() {
        let (mut s, mut ms) = (sender(2, 100), 0);
        for (rail, took) in [(0, 1), (1, 100)] {
            submit(&mut s, 1, 10, 1 << rail);
            let flow = FlowIndex(rail);
            let at = |ms| Time(0).after(Duration::from_millis(ms));
            for _ in 0..10 {
                s.pull(at(ms), flow).unwrap();
                s.handle_written(flow);
            }
            for sequence in 1..=10 {
                ms += took;
                s.handle_ack(at(ms), flow, AckFrame::Ack { sequence }).unwrap();
            }
        }
        submit(&mut s, 2, 1, 0b10);
        let now = Time(0).after(Duration::from_millis(ms));
        assert!(s.pull(now, FlowIndex(0)).is_some());
    }

    #[test]
    fn what_no_near_rail_takes_has_its_turn_all_the_same() {
        let mut s = sender(2, 10_000);
        // The near rail is up and takes nothing.
        submit(&mut s, 1, 1, 0b10);
        submit(&mut s, 7, 1, 0b10);
        assert_eq!(pull(&mut s, 1), Some(1));
        submit(&mut s, 2, 1000, 0b01);
        let pulls: Vec<u64> = (0..100).map(|_| pull(&mut s, 0).unwrap()).collect();
        assert!(pulls.contains(&7), "{pulls:?}");
    }
}
