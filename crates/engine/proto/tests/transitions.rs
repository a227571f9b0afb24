//! Every state that a transfer can reach at its sender, and every transition: the test tries all sequences of calls up
//! to a length on one transfer of two chunks and two flows.

mod common;

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use common::Payload;
use polyrail_proto::wire::{AckFrame, Flags, RefusalCode, WireOp};
use polyrail_proto::{
    Failure, FlowIndex, NewTransfer, Plan, RegionKey, Segment, Sender, SenderConfig, Time,
    TransferId, TxEvent,
};

const NOW: Time = Time(0);
const FLOWS: usize = 2;
/// Long enough for both chunks to be refused, or lost with their flow, and to be sent again.
const CALLS_MAX: usize = 13;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// No chunk was pulled.
    Queued,
    Active,
    /// The transfer must end, but one of its frames is still being written.
    Draining,
    Done,
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Call {
    Pull,
    HandBack,
    Written,
    Ack,
    RefusalPassing,
    RefusalFinal,
    FlowDown,
    FlowUp,
    End,
}

use Call::{Ack, End, FlowDown, FlowUp, HandBack, Pull, RefusalFinal, RefusalPassing, Written};
use State::{Active, Done, Draining, Failed, Queued};

const CALLS: [Call; 9] =
    [Pull, HandBack, Written, Ack, RefusalPassing, RefusalFinal, FlowDown, FlowUp, End];

/// Transitions of a transfer by call, besides staying in its state. There are none from an end state. A frame may be
/// acknowledged before the driver has reported it written.
const TRANSITIONS: &[(State, Call, State)] = &[
    (Queued, Pull, Active),
    (Queued, End, Failed),
    // The last acknowledgement, or the last report that a frame is written, whichever comes later; a flow that goes
    // down writes no more.
    (Active, Ack, Done),
    (Active, Written, Done),
    (Active, FlowDown, Done),
    (Active, End, Failed),
    (Active, End, Draining),
    // A refusal covers the frames before it, too, but the refused chunk is missing.
    (Active, RefusalFinal, Failed),
    (Active, RefusalFinal, Draining),
    (Draining, Written, Failed),
    (Draining, HandBack, Failed),
    (Draining, FlowDown, Failed),
    // The transfer was complete before its end was requested.
    (Draining, Written, Done),
    (Draining, FlowDown, Done),
];

#[derive(Debug)]
struct Run {
    sender: Sender<Payload>,
    id: TransferId,
    state: State,
    flows: [Flow; FLOWS],
}

#[derive(Debug, Default)]
struct Flow {
    up: bool,
    pulled: u64,
    written: u64,
    acknowledged: u64,
}

impl Run {
    fn new() -> Self {
        let mut sender =
            Sender::new(SenderConfig { window_chunks: 2, channels: 2, sockets: 1, rails: 1 });
        let remote = RegionKey { slot: 0, generation: 1, nonce: 0 };
        let segment =
            Segment { local_region: 0, local_offset: 0, remote, remote_offset: 0, len: 2 };
        let transfer = NewTransfer {
            op: WireOp::Write,
            flags: Flags::NONE,
            context: 0,
            source: Payload(Arc::new(Plan::new([segment], 1).unwrap())),
            token: 7,
            deadline: None,
        };
        let id = sender.submit(NOW, transfer);
        let mut run = Self { sender, id, state: Queued, flows: Default::default() };
        for flow in 0..FLOWS {
            run.call(FlowUp, flow);
        }
        run
    }

    /// Makes the call, if a driver may make it now; returns the states before and after.
    fn call(&mut self, call: Call, index: usize) -> Option<(State, State)> {
        let flow = FlowIndex(index as u32);
        let state = &mut self.flows[index];
        let sequence = state.acknowledged + 1;
        let owed = sequence <= state.pulled;
        let ack = |code| match code {
            None => AckFrame::Ack { sequence },
            Some(code) => AckFrame::Refusal { sequence, code },
        };
        let mut to = self.state;
        match call {
            Pull => {
                self.sender.pull(NOW, flow)?;
                state.pulled += 1;
                assert!(matches!(self.state, Queued | Active), "pulled in {:?}", self.state);
                to = Active;
            }
            HandBack if state.written < state.pulled && owed => {
                self.sender.hand_back(flow);
                state.pulled -= 1;
            }
            Written if state.written < state.pulled => {
                self.sender.handle_written(flow);
                state.written += 1;
            }
            Ack | RefusalPassing | RefusalFinal if owed => {
                let code = match call {
                    RefusalPassing => Some(RefusalCode::Checksum),
                    RefusalFinal => Some(RefusalCode::StaleKey),
                    _ => None,
                };
                self.sender.handle_ack(NOW, flow, ack(code)).unwrap();
                state.acknowledged += 1;
                if call == RefusalFinal && self.state == Active {
                    to = Draining;
                }
            }
            FlowDown if state.up => {
                self.sender.handle_flow_down(flow);
                *state = Flow::default();
            }
            FlowUp if !state.up => {
                self.sender.handle_flow_up(NOW, flow);
                state.up = true;
            }
            End => {
                self.sender.end(self.id, Failure::Cancelled);
                if matches!(self.state, Queued | Active) {
                    to = Draining;
                }
            }
            _ => return None,
        }
        let events: Vec<TxEvent> = std::iter::from_fn(|| self.sender.poll_event()).collect();
        match events.as_slice() {
            [] => {}
            [TxEvent::Done { token: 7 }] => to = Done,
            [TxEvent::Failed { token: 7, started, .. }] => {
                assert_eq!(*started, self.state != Queued);
                to = Failed;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(self.sender.is_busy(), !matches!(to, Done | Failed));
        let unwritten = self.flows.iter().any(|flow| flow.written < flow.pulled);
        assert!(to != Draining || unwritten, "nothing is left to wait for");
        Some((std::mem::replace(&mut self.state, to), to))
    }
}

#[test]
fn a_transfer_goes_only_the_ways_of_the_table_and_all_of_them() {
    let mut seen = HashSet::new();
    let mut taken = BTreeSet::new();
    let mut paths: Vec<Vec<(Call, usize)>> = vec![Vec::new()];
    for _ in 0..CALLS_MAX {
        let mut longer = Vec::new();
        for path in &paths {
            for call in CALLS {
                for flow in 0..FLOWS {
                    let mut run = Run::new();
                    for (call, flow) in path {
                        run.call(*call, *flow);
                    }
                    let Some((from, to)) = run.call(call, flow) else { continue };
                    if from != to {
                        taken.insert((from, call, to));
                    }
                    // States that were reached before lead to no new ones.
                    if seen.insert(format!("{run:?}")) {
                        longer.push([path.as_slice(), &[(call, flow)]].concat());
                    }
                }
            }
        }
        paths = longer;
    }
    let table: BTreeSet<_> = TRANSITIONS.iter().copied().collect();
    let unlisted: Vec<_> = taken.difference(&table).collect();
    let untaken: Vec<_> = table.difference(&taken).collect();
    assert!(unlisted.is_empty() && untaken.is_empty(), "more: {unlisted:?}, never: {untaken:?}");
    assert!(seen.len() > 5000, "only {} states were reached", seen.len());
}
