//! A receiver with a driver that keeps the contract and a peer that may break it.

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::{Result, Unstructured};
use polyrail_proto::wire::{ChunkHeader, Flags, RefusalCode, WireOp};
use polyrail_proto::{
    DeliveryId, FlowIndex, LandingId, Receiver, ReceiverLimits, Settled, TransferId, Verdict,
};

use super::in_flight::{InFlight, REMEMBERED};

const FLOWS: u32 = 4;
const TRANSFERS: u64 = 6;
const LIMITS: ReceiverLimits = ReceiverLimits {
    flows: FLOWS,
    transfers: 4,
    chunks: 12,
    // Room for a window of 3, and for as many chunks that land late.
    window: REMEMBERED,
    proofs: FLOWS as usize * REMEMBERED,
    // Two of the messages, which have 4 bytes each.
    meta_bytes: 9,
};
/// Maximum number of remembered chunks of flows that are gone, in addition to those.
const GONE: usize = 1 << 16;

/// The driver's state of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    chunk: Option<(u64, u32)>,
    /// Number of chunks of the chunk's transfer.
    chunk_count: u32,
    verdict: Option<Verdict>,
    /// True inside a system call that writes in place.
    inside: bool,
    /// True if some bytes were discarded, so the flow's data is not complete.
    missed: bool,
}

/// Identity of a chunk, equal in all its copies: its transfer, its number, and the number of chunks.
type Copies = (u64, u32, u32);

/// A chunk that a device copies into place, as its flow left it.
#[derive(Debug)]
struct Copying {
    id: LandingId,
    index: u32,
    /// Number among the frames of the flow's connection, unless that is gone.
    frame: Option<u64>,
    state: Flow,
}

#[derive(Debug)]
struct Model {
    receiver: Receiver,
    flows: [Flow; FLOWS as usize],
    in_flight: [InFlight<Copies>; FLOWS as usize],
    /// Chunks of flows that went down before their senders knew that these had landed.
    given_back: BTreeSet<Copies>,
    /// Number of connections so far.
    ups: u32,
    copying: Vec<Copying>,
    /// Chunks that were acknowledged as landed.
    landed: BTreeMap<u64, BTreeSet<u32>>,
    completed: BTreeSet<u64>,
    /// Complete transfers that threads are delivering.
    deliveries: Vec<(DeliveryId, Vec<u64>)>,
    /// Those of them that the peer has cancelled, or of which it has sent a chunk again.
    overtaken: BTreeSet<u64>,
    /// Transfers that the peer gave up: no flow may begin to write them.
    retired: BTreeSet<u64>,
    /// Contexts that the driver's rundown lock refuses from now on.
    expelled: BTreeSet<u64>,
    floor: u64,
}

/// Makes the calls that the bytes encode.
pub(super) fn run(data: &[u8]) {
    let mut model = Model {
        receiver: Receiver::new(LIMITS),
        flows: Default::default(),
        in_flight: Default::default(),
        given_back: BTreeSet::new(),
        ups: 0,
        copying: Vec::new(),
        landed: BTreeMap::new(),
        completed: BTreeSet::new(),
        deliveries: Vec::new(),
        overtaken: BTreeSet::new(),
        retired: BTreeSet::new(),
        expelled: BTreeSet::new(),
        floor: 1,
    };
    let mut data = Unstructured::new(data);
    while !data.is_empty() && model.call(&mut data).is_ok() {
        model.check();
    }
}

/// Number of chunks of a transfer of an honest peer.
fn chunks(transfer: u64) -> u32 {
    1 + (transfer % 3) as u32
}

fn context(transfer: u64) -> (WireOp, u64) {
    match transfer % 3 {
        0 => (WireOp::Write, 0),
        1 => (WireOp::SendData, transfer),
        _ => (WireOp::ReadData, transfer),
    }
}

impl Model {
    fn call(&mut self, data: &mut Unstructured<'_>) -> Result<()> {
        let index = data.int_in_range(0..=FLOWS - 1)?;
        let (flow, state) = (FlowIndex(index), self.flows[index as usize]);
        match data.int_in_range(0..=13)? {
            0..=3 if state.chunk.is_none() => self.begin_chunk(index, data)?,
            0..=3 if state.inside => {
                let more = self.receiver.end_landing(flow);
                let state = &mut self.flows[index as usize];
                state.inside = false;
                state.missed |= !more;
            }
            0..=3 => {
                let inside = self.receiver.begin_landing(flow);
                let state = &mut self.flows[index as usize];
                state.inside = inside;
                state.missed |= !inside;
                if inside && let Some((transfer, chunk)) = state.chunk {
                    self.may_be_written(index, transfer, chunk);
                }
            }
            4 | 5 if state.chunk.is_some() && !state.inside => {
                self.end_chunk(index, data.int_in_range(0..=7)? > 0);
            }
            6 if !state.inside => self.flow_down(index),
            7 => {
                let transfer = data.int_in_range(1..=TRANSFERS)?;
                let true_now = self.receiver.retire(TransferId(transfer));
                self.note_overtaking(transfer);
                assert!(!true_now || !self.overtaken.contains(&transfer), "it will be delivered");
                assert!(true_now || !self.receiver.is_quiet(), "an acknowledgement could leave");
                self.retired.insert(transfer);
            }
            8 => {
                let barred = self.receiver.bar(flow, RefusalCode::RegionDropped);
                assert_eq!(barred, !(state.inside && self.lands(index)), "{state:?}");
                assert!(barred || !self.receiver.is_quiet());
            }
            9 => {
                let (op, context) = context(data.int_in_range(1..=TRANSFERS)?);
                if op != WireOp::Write {
                    let expelled = self.receiver.expel(op, context);
                    assert!(expelled || !self.receiver.is_quiet());
                    self.expelled.insert(context);
                }
            }
            10 | 11 if state.chunk.is_some() && !state.inside => {
                let detached = self.receiver.detach(flow);
                let state = &mut self.flows[index as usize];
                state.inside = detached.is_some();
                state.missed |= detached.is_none();
                if let (Some(id), Some((transfer, chunk))) = (detached, state.chunk) {
                    self.may_be_written(index, transfer, chunk);
                    let state = std::mem::take(&mut self.flows[index as usize]);
                    let frame = Some(self.in_flight[index as usize].next_frame());
                    self.copying.push(Copying { id, index, frame, state });
                }
            }
            12 if !self.copying.is_empty() => {
                let which = data.int_in_range(0..=self.copying.len() - 1)?;
                let Copying { id, index, frame, state } = self.copying.swap_remove(which);
                let intact = data.int_in_range(0..=7)? > 0;
                let landed = if intact { Ok(()) } else { Err(RefusalCode::Device) };
                let settled = self.receiver.handle_landed(id, landed);
                self.settled((index, frame), state, settled, intact);
                if let (Settled::Ack, Some((transfer, _))) = (settled, state.chunk) {
                    // Another flow may acknowledge it.
                    self.note_overtaking(transfer);
                }
            }
            // The next connection, before the end of the present one is known.
            12 if self.in_flight[index as usize].connections() == 1 => self.flow_up(index),
            13 if !self.deliveries.is_empty() => {
                let which = data.int_in_range(0..=self.deliveries.len() - 1)?;
                let (id, transfers) = self.deliveries.swap_remove(which);
                self.receiver.end_delivery(id);
                self.overtaken.retain(|transfer| !transfers.contains(transfer));
            }
            _ => {}
        }
        Ok(())
    }

    /// Brings a connection up. The number of earlier ones determines its window. No more bytes are read for it, so
    /// anything found before this call is still found.
    fn flow_up(&mut self, index: u32) {
        let window = 1 + self.ups % 3;
        self.ups += 1;
        self.receiver.handle_flow_up(FlowIndex(index), window);
        self.in_flight[index as usize].handle_flow_up(window);
    }

    /// Ends a connection, and with it all acknowledgements that its sender has not read.
    fn flow_down(&mut self, index: u32) {
        self.receiver.handle_flow_down(FlowIndex(index));
        self.flows[index as usize] = Flow::default();
        self.given_back.extend(self.in_flight[index as usize].handle_flow_down());
        let of_it = self.copying.iter_mut().filter(|copying| copying.index == index);
        of_it.for_each(|copying| copying.frame = None);
    }

    /// True if an honest sender may send a copy of a chunk that landed.
    fn may_come_again(&self, copies: Copies) -> bool {
        let mut unknown = self.in_flight.iter().flat_map(InFlight::unknown);
        self.given_back.contains(&copies) || unknown.any(|other| other == copies)
    }

    /// Records a transfer whose end the peer is about to learn, which must not happen while it is being delivered.
    fn note_overtaking(&mut self, transfer: u64) {
        if self.deliveries.iter().any(|(_, transfers)| transfers.contains(&transfer)) {
            self.overtaken.insert(transfer);
        }
    }

    /// True if the driver believes that the flow's chunk may land.
    fn lands(&self, index: u32) -> bool {
        self.flows[index as usize].verdict == Some(Verdict::Land)
    }

    fn begin_chunk(&mut self, index: u32, data: &mut Unstructured<'_>) -> Result<()> {
        if self.in_flight[index as usize].connections() == 0 {
            self.flow_up(index);
        }
        let transfer = data.int_in_range(1..=TRANSFERS)?;
        let honest = data.int_in_range(0..=15)? > 0;
        let count = chunks(transfer) + u32::from(!honest);
        let chunk = data.int_in_range(0..=count - 1)?;
        let floor = data.int_in_range(1..=transfer)?;
        // A peer mostly has no reason to raise its low-water mark.
        let floor = if data.ratio(1, 4)? { floor } else { 1 };
        let (op, context) = context(transfer);
        let meta: &[u8] = if chunk == 0 { b"meta" } else { b"" };
        let header = ChunkHeader {
            op,
            // Some of the others are not writes, and are delivered anyway.
            flags: if transfer == TRANSFERS { Flags::NOTIFY } else { Flags::NONE },
            meta_len: meta.len() as u32,
            payload_len: 10 + chunk,
            pieces: 1,
            transfer: TransferId(transfer),
            chunk,
            chunk_count: count,
            floor: TransferId(floor),
            context,
            checksum: 0,
            place: 0,
        };
        let admission = match data.ratio(1, 8)? {
            true => Err(RefusalCode::AccessDenied),
            false if self.expelled.contains(&context) => Err(RefusalCode::NotExpected),
            false => Ok(()),
        };
        let comes_again = self.may_come_again((transfer, chunk, count));
        let handled =
            self.receiver.handle_chunk(FlowIndex(index), &header, &[], meta, || admission);
        let highest = self.landed.keys().next_back().copied().unwrap_or(0);
        if floor > self.floor.max(highest + 1) {
            assert!(handled.is_err(), "a floor beyond what landed is a breach");
        } else {
            self.floor = self.floor.max(floor);
        }
        let Ok(verdict) = handled else {
            // The driver closes the flow.
            self.flow_down(index);
            return Ok(());
        };
        // The driver does not take expelled transfers, whether they landed or not.
        let is_expelled = self.expelled.contains(&context) && !self.is_over(transfer);
        if comes_again && transfer >= self.floor && !is_expelled {
            assert_eq!(verdict, Verdict::Discard, "{transfer}/{chunk} landed and comes again");
        }
        if self.is_over(transfer) {
            assert_ne!(verdict, Verdict::Land, "a chunk of what is over");
            self.note_overtaking(transfer);
        }
        let missed = verdict != Verdict::Land;
        let (chunk, verdict) = (Some((transfer, chunk)), Some(verdict));
        self.flows[index as usize] =
            Flow { chunk, chunk_count: count, verdict, inside: false, missed };
        Ok(())
    }

    fn end_chunk(&mut self, index: u32, intact: bool) {
        let settled = self.receiver.handle_chunk_end(FlowIndex(index), intact);
        let state = std::mem::take(&mut self.flows[index as usize]);
        let frame = Some(self.in_flight[index as usize].next_frame());
        self.settled((index, frame), state, settled, intact);
    }

    /// Checks the end of a chunk, which was the frame with this number on its flow.
    fn settled(
        &mut self,
        (index, frame): (u32, Option<u64>),
        state: Flow,
        settled: Settled,
        intact: bool,
    ) {
        let Some((transfer, chunk)) = state.chunk else { return };
        if settled == Settled::Ack {
            let copies = (transfer, chunk, state.chunk_count);
            match frame {
                Some(frame) => self.in_flight[index as usize].handle_landed(frame, copies),
                None => _ = self.given_back.insert(copies),
            }
        }
        match settled {
            // The chunk landed on this flow, or was here before.
            Settled::Ack if state.verdict == Some(Verdict::Land) && !self.is_over(transfer) => {
                assert!(intact && !state.missed, "{transfer}/{chunk} was not read into place");
                let others = self.writers().filter(|f| f.chunk == state.chunk);
                assert_eq!(others.count(), 0, "another copy is inside a system call");
                self.landed.entry(transfer).or_default().insert(chunk);
            }
            Settled::Ack => {
                let landed = self.landed.get(&transfer).is_some_and(|c| c.contains(&chunk));
                assert!(landed, "{transfer}/{chunk} was acknowledged and never landed");
            }
            Settled::Refuse(code) => {
                let of_copy = matches!(code, RefusalCode::Checksum | RefusalCode::Device);
                assert!(!of_copy || !intact);
            }
        }
        let mut taken = Vec::new();
        while let Some(landed) = self.receiver.poll_event() {
            let id = landed.transfer.0;
            if landed.is_delivered() {
                taken.push(id);
            }
            assert!(self.completed.insert(id), "{id} completed twice");
            assert!(!self.retired.contains(&id), "{id} completed after its cancel");
            let inside = self.writers().any(|f| f.chunk.is_some_and(|c| c.0 == id));
            assert!(!inside, "{id} completed while a flow was inside a system call for it");
            assert_eq!(landed.meta, b"meta");
            let count = self.landed[&id].len() as u64;
            assert_eq!(landed.bytes, 10 * count + count * (count - 1) / 2);
        }
        if !taken.is_empty() {
            // Sometimes together with transfers that the same thread has taken before.
            let earlier = self.deliveries.pop_if(|(_, before)| before.len() == 1);
            let id = self.receiver.begin_delivery(earlier.as_ref().map(|(id, _)| *id));
            taken.extend(earlier.into_iter().flat_map(|(_, before)| before));
            self.deliveries.push((id, taken));
        }
    }

    /// Checks that a flow may write a chunk in place.
    fn may_be_written(&self, index: u32, transfer: u64, chunk: u32) {
        assert!(!self.is_over(transfer), "{transfer} is over");
        let same = |flow: &&Flow| flow.chunk == Some((transfer, chunk));
        let own = usize::from(self.flows[index as usize].inside);
        assert_eq!(self.writers().filter(same).count(), own, "two write one chunk");
    }

    /// All writers in place: flows inside a system call, and devices.
    fn writers(&self) -> impl Iterator<Item = &Flow> {
        let flows = self.flows.iter().filter(|flow| flow.inside);
        flows.chain(self.copying.iter().map(|copying| &copying.state))
    }

    fn is_over(&self, transfer: u64) -> bool {
        transfer < self.floor
            || self.completed.contains(&transfer)
            || self.retired.contains(&transfer)
    }

    fn check(&self) {
        let held = self.receiver.held();
        assert_eq!(held.transfers, self.receiver.active_count());
        assert!(held.transfers <= LIMITS.transfers && held.chunks <= LIMITS.chunks, "{held:?}");
        // Cancels leave twice as many, and transfers in progress may end between any two.
        assert!(held.ranges <= 3 * LIMITS.transfers, "{held:?}");
        assert!(held.meta_bytes <= LIMITS.meta_bytes, "{held:?}");
        assert!(held.proofs <= LIMITS.proofs + GONE, "{held:?}");
        let inside = self.writers().next().is_some();
        assert!(self.overtaken.is_empty() || !self.receiver.is_quiet(), "an end could overtake");
        assert!(inside || !self.overtaken.is_empty() || self.receiver.is_quiet());
    }
}
