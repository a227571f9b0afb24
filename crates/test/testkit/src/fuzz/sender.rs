//! A sender with a driver that keeps the contract and a peer that sends arbitrary acknowledgements.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arbitrary::{Result, Unstructured};
use polyrail_proto::wire::{AckFrame, Flags, RefusalCode, WireOp};
use polyrail_proto::{
    Failure, FlowIndex, NewTransfer, Plan, RegionKey, Segment, Sender, SenderConfig, Time,
    TransferId, TxEvent,
};

use crate::payload::Payload;

const CONFIG: SenderConfig = SenderConfig { window_chunks: 3, channels: 2, sockets: 2, rails: 2 };
const FLOWS: u32 = 4;
const CHUNK_BYTES: u64 = 4096;

/// A frame that was pulled: its transfer and its chunk.
type Frame = (u64, u32);

#[derive(Debug, Default)]
struct Flow {
    up: bool,
    sent: Vec<Frame>,
    acknowledged: usize,
    written: usize,
}

#[derive(Debug, Default)]
struct Transfer {
    chunks: u32,
    acknowledged: BTreeMap<u32, u32>,
    over: bool,
}

#[derive(Debug)]
struct Model {
    sender: Sender<Payload>,
    flows: Vec<Flow>,
    transfers: BTreeMap<u64, Transfer>,
    ids: VecDeque<TransferId>,
    now: Time,
    floor: TransferId,
}

/// Makes the calls that the bytes encode. Then the peer is lost, and every transfer must end.
pub(super) fn run(data: &[u8]) {
    let mut model = Model {
        sender: Sender::new(CONFIG),
        flows: (0..FLOWS).map(|_| Flow::default()).collect(),
        transfers: BTreeMap::new(),
        ids: VecDeque::new(),
        now: Time(0),
        floor: TransferId(1),
    };
    let mut data = Unstructured::new(data);
    while !data.is_empty() && model.call(&mut data).is_ok() {
        model.take_events();
        model.check();
    }
    for flow in 0..FLOWS {
        model.down(flow);
    }
    model.sender.end_all(Failure::PeerLost);
    model.take_events();
    assert!(model.transfers.values().all(|transfer| transfer.over), "{:?}", model.transfers);
    assert!(!model.sender.is_busy() && !model.sender.has_work());
    assert_eq!(model.sender.silence(model.now), Duration::ZERO);
}

impl Model {
    fn call(&mut self, data: &mut Unstructured<'_>) -> Result<()> {
        let index = data.int_in_range(0..=FLOWS - 1)?;
        let (flow, up) = (FlowIndex(index), self.flows[index as usize].up);
        match data.int_in_range(0..=11)? {
            0 => self.submit(data)?,
            1 | 2 if up => self.pull(index),
            1 | 2 => {
                self.sender.handle_flow_up(self.now, flow);
                self.flows[index as usize] = Flow { up: true, ..Flow::default() };
            }
            3 | 4 => {
                let state = &mut self.flows[index as usize];
                if state.written < state.sent.len() {
                    state.written += 1;
                    self.sender.handle_written(flow);
                }
            }
            5..=7 => self.acknowledge(index, data)?,
            8 if up => self.down(index),
            9 => {
                if let Some(id) = self.ids.pop_front() {
                    self.sender.end(id, Failure::Cancelled);
                    self.ids.push_back(id);
                }
            }
            10 => {
                self.now = Time(self.now.0 + data.int_in_range(0..=100)?);
                let next = self.sender.handle_timeout(self.now);
                assert!(next.is_none_or(|next| next > self.now));
            }
            _ => self.sender.handle_progress(self.now, flow),
        }
        Ok(())
    }

    fn submit(&mut self, data: &mut Unstructured<'_>) -> Result<()> {
        let chunks: u64 = data.int_in_range(0..=5)?;
        let remote = RegionKey { slot: 0, generation: 1, nonce: 0 };
        let len = chunks * CHUNK_BYTES;
        let segment = Segment { local_region: 0, local_offset: 0, remote, remote_offset: 0, len };
        let plan = Plan::new([segment], CHUNK_BYTES).expect("a few chunks");
        let token = self.transfers.len() as u64;
        let chunks = plan.chunk_count();
        let after = data.int_in_range(0..=200)?;
        let deadline = data.ratio(1, 3)?.then_some(Time(self.now.0 + after));
        let transfer = NewTransfer {
            op: WireOp::Write,
            flags: Flags::NONE,
            context: 0,
            source: Payload(Arc::new(plan)),
            token,
            deadline,
        };
        self.ids.push_back(self.sender.submit(self.now, transfer));
        self.transfers.insert(token, Transfer { chunks, ..Transfer::default() });
        Ok(())
    }

    fn pull(&mut self, index: u32) {
        let flow = FlowIndex(index);
        let due = self.sender.has_work() && self.sender.has_room(flow);
        let pulled = self.sender.pull(self.now, flow);
        if self.sender.is_denied(flow) {
            assert!(due && pulled.is_none(), "what is denied is there to be taken");
            let idle = self.flows.iter().all(|f| f.acknowledged == f.sent.len());
            let wakes = self.sender.wakes(self.now).count();
            assert!(!idle || wakes > 0, "nobody takes anything, and nobody will");
            return;
        }
        assert_eq!(pulled.is_some(), due, "has_work and has_room say what a pull will do");
        let Some(chunk) = pulled else { return };
        let transfer = &self.transfers[&chunk.token];
        assert!(!transfer.over, "a chunk of {} after its end", chunk.token);
        assert_eq!(chunk.header.chunk_count, transfer.chunks);
        assert!(chunk.header.chunk < transfer.chunks && chunk.header.floor >= self.floor);
        self.floor = chunk.header.floor;
        let frame = (chunk.token, chunk.header.chunk);
        let twice = self.flows.iter().any(|f| f.sent[f.acknowledged..].contains(&frame));
        assert!(!twice, "{frame:?} is in flight twice");
        assert!(!transfer.acknowledged.contains_key(&frame.1), "{frame:?} is there already");
        self.flows[index as usize].sent.push(frame);
    }

    fn acknowledge(&mut self, index: u32, data: &mut Unstructured<'_>) -> Result<()> {
        let state = &mut self.flows[index as usize];
        let sequence = state.acknowledged as u64 + data.int_in_range(0..=3)?;
        let code = match data.int_in_range(0..=9)? {
            0 => Some(RefusalCode::Busy),
            1 => Some(RefusalCode::Checksum),
            2 => Some(RefusalCode::StaleKey),
            _ => None,
        };
        let ack = match code {
            Some(code) => AckFrame::Refusal { sequence, code },
            None => AckFrame::Ack { sequence },
        };
        let handled = self.sender.handle_ack(self.now, FlowIndex(index), ack);
        assert_eq!(handled.is_err(), sequence as usize > state.sent.len());
        if handled.is_err() {
            self.down(index);
            return Ok(());
        }
        for at in state.acknowledged..sequence as usize {
            let (token, chunk) = state.sent[at];
            if code.is_none() || at + 1 < sequence as usize {
                let transfer = self.transfers.get_mut(&token).expect("it was submitted");
                *transfer.acknowledged.entry(chunk).or_default() += 1;
            }
        }
        state.acknowledged = state.acknowledged.max(sequence as usize);
        Ok(())
    }

    fn down(&mut self, index: u32) {
        let state = std::mem::take(&mut self.flows[index as usize]);
        if state.up {
            let given_back = self.sender.handle_flow_down(FlowIndex(index));
            assert!(given_back <= state.sent.len() - state.acknowledged);
        }
    }

    fn take_events(&mut self) {
        while let Some(event) = self.sender.poll_event() {
            let (TxEvent::Done { token } | TxEvent::Failed { token, .. }) = event;
            let writing =
                self.flows.iter().any(|f| f.sent[f.written..].iter().any(|frame| frame.0 == token));
            assert!(!writing, "{token} is over, but its memory is being read");
            let transfer = self.transfers.get_mut(&token).expect("it was submitted");
            assert!(!std::mem::replace(&mut transfer.over, true), "{token} is over twice");
            let all = transfer.acknowledged.len() as u32 == transfer.chunks;
            assert_eq!(matches!(event, TxEvent::Done { .. }), all, "{event:?}");
        }
    }

    fn check(&self) {
        for (index, flow) in self.flows.iter().enumerate() {
            let index = FlowIndex(index as u32);
            assert_eq!(self.sender.in_flight(index), flow.sent.len() - flow.acknowledged);
            assert!(self.sender.channel_in_flight(index) <= CONFIG.window_chunks);
        }
        let busy = self.transfers.values().any(|transfer| !transfer.over);
        assert_eq!(self.sender.is_busy(), busy);
    }
}
