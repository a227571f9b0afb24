//! A peer that makes arbitrary requests: the state kept for it stays within its quotas, and operations that it has
//! begun within them proceed.

use std::collections::{BTreeMap, BTreeSet};

use arbitrary::{Result, Unstructured};
use polyrail_proto::matching::{Match, Matcher, MatcherLimits};
use polyrail_proto::message::{CopyLeave, PostedReceive};
use polyrail_proto::wire::{ChunkHeader, Flags, Place, RefusalCode, WireOp};
use polyrail_proto::{
    FlowIndex, Receiver, ReceiverLimits, RegionKey, Settled, TransferId, Verdict,
};

use super::in_flight::{InFlight, REMEMBERED};

const RECEIVES: MatcherLimits = MatcherLimits { receives: 8, places: 20 };
const FLOWS: u32 = 4;
const LIMITS: ReceiverLimits = ReceiverLimits {
    flows: FLOWS,
    transfers: 5,
    chunks: 40,
    window: REMEMBERED,
    proofs: 12,
    meta_bytes: 100,
};
/// Chunks remembered per flow even if all flows together have too many.
const SHARE: u32 = 2;
/// Maximum number of remembered chunks of flows that went down.
const GONE: usize = 1 << 16;

/// Makes the calls that the bytes encode.
pub(super) fn run(data: &[u8]) {
    let (mut receives, mut transfers) = (Receives::new(), Transfers::new());
    let mut data = Unstructured::new(data);
    while !data.is_empty() {
        let called = match data.ratio(1, 2) {
            Ok(true) => receives.call(&mut data),
            Ok(false) => transfers.call(&mut data),
            Err(error) => Err(error),
        };
        if called.is_err() {
            return;
        }
        receives.check();
        transfers.check();
    }
}

/// A number that is mostly small, and otherwise any.
fn number(data: &mut Unstructured<'_>, small: u64) -> Result<u64> {
    if data.ratio(7, 8)? { data.int_in_range(1..=small) } else { data.arbitrary() }
}

/// The matcher, compared with a plain list of all waiting operations.
struct Receives {
    matcher: Matcher<u64>,
    next: u64,
    early: BTreeMap<u64, Option<(u64, usize)>>,
    /// Number, tag and places.
    receives: Vec<(u64, u64, usize)>,
    /// Tag and number.
    sends: Vec<(u64, u64)>,
    next_send: u64,
}

impl Receives {
    fn new() -> Self {
        Self {
            matcher: Matcher::new(RECEIVES),
            next: 1,
            early: BTreeMap::new(),
            receives: Vec::new(),
            sends: Vec::new(),
            next_send: 1,
        }
    }

    fn call(&mut self, data: &mut Unstructured<'_>) -> Result<()> {
        let tag = data.int_in_range(0..=2)?;
        let mut matches = Vec::new();
        match data.int_in_range(0..=5)? {
            0..=2 => {
                let receive = self.next.wrapping_add(number(data, 6)?).wrapping_sub(3);
                let places = data.int_in_range(0..=6)?;
                let before = self.figures();
                match self.matcher.handle_posted(posted(receive, tag, places), &mut matches) {
                    Ok(()) if receive >= self.next && !self.early.contains_key(&receive) => {
                        self.early.insert(receive, Some((tag, places)));
                        self.go_on(matches);
                    }
                    Ok(()) => assert_eq!((self.figures(), matches.len()), (before, 0)),
                    Err(error) => {
                        assert!(error.value > error.limit, "{error}");
                        assert_eq!((self.figures(), matches.len()), (before, 0));
                        let is_near = before.0 + 1 > RECEIVES.receives;
                        assert!(is_near || before.1 + places > RECEIVES.places, "{error}");
                    }
                }
            }
            3 => {
                let receive = self.next.wrapping_add(number(data, 6)?).wrapping_sub(5);
                let before = self.figures();
                match self.matcher.handle_withdrawn(receive, &mut matches) {
                    Ok(waited) if receive >= self.next => {
                        assert!(waited);
                        self.early.insert(receive, None);
                        self.go_on(matches);
                    }
                    Ok(waited) => {
                        let known = self.receives.iter().position(|posted| posted.0 == receive);
                        assert_eq!((waited, matches.len()), (known.is_some(), 0));
                        known.map(|index| self.receives.remove(index));
                    }
                    Err(error) => {
                        assert!(error.value > error.limit, "{error}");
                        assert_eq!((self.figures(), matches.len()), (before, 0));
                    }
                }
            }
            4 if self.sends.len() < 10 => {
                let send = self.next_send;
                self.next_send += 1;
                let found = self.receives.iter().position(|posted| posted.1 == tag);
                let found = found.map(|index| self.receives.remove(index).0);
                let matched = self.matcher.send(tag, send, None);
                assert_eq!(matched.as_ref().map(|found| found.receive.receive), found);
                if matched.is_none() {
                    self.sends.push((tag, send));
                }
            }
            _ => {
                let send = number(data, self.next_send)?;
                let known = self.sends.iter().position(|waiting| *waiting == (tag, send));
                assert_eq!(self.matcher.cancel_send(tag, &send), known.is_some());
                known.map(|index| self.sends.remove(index));
            }
        }
        Ok(())
    }

    /// Matches all operations that can be matched, in order.
    fn go_on(&mut self, matches: Vec<Match<u64>>) {
        let mut matches = matches.into_iter().map(|found| (found.send, found.receive.receive));
        while let Some(early) = self.early.remove(&self.next) {
            if let Some((tag, places)) = early {
                match self.sends.iter().position(|(waiting, _)| *waiting == tag) {
                    Some(index) => {
                        let send = self.sends.remove(index).1;
                        assert_eq!(matches.next(), Some((send, self.next)));
                    }
                    None => self.receives.push((self.next, tag, places)),
                }
            }
            self.next += 1;
        }
        assert_eq!(matches.next(), None);
    }

    fn figures(&self) -> (usize, usize) {
        (self.matcher.waiting_receives(), self.matcher.waiting_places())
    }

    fn check(&self) {
        let early = self.early.values().flatten().map(|(_, places)| places);
        let places: usize = self.receives.iter().map(|(.., places)| places).chain(early).sum();
        assert_eq!(self.figures(), (self.receives.len() + self.early.len(), places));
        assert_eq!(self.matcher.waiting_sends(), self.sends.len());
        assert!(places <= RECEIVES.places, "{places} places");
        // The receive that all others wait for was taken, and these then count as receives.
        let waiting = self.receives.len() + self.early.len();
        assert!(waiting <= 2 * RECEIVES.receives, "{waiting} receives");
        assert!(self.early.len() <= RECEIVES.receives, "{:?}", self.early);
    }
}

fn posted(receive: u64, tag: u64, places: usize) -> PostedReceive {
    let key = RegionKey { slot: 0, generation: 1, nonce: 0 };
    let places = vec![Place { key, offset: 0, len: 1 }; places];
    PostedReceive { receive, tag, places, leave: CopyLeave::No }
}

/// Identity of a chunk, equal in all its copies: its transfer, its number, the number of chunks, and bytes of its
/// message.
type Copies = (u64, u32, u32, usize);

/// A receiver, and its transfers in progress.
struct Transfers {
    receiver: Receiver,
    in_flight: [InFlight<Copies>; FLOWS as usize],
    /// Chunks of flows that went down before their senders knew that these had landed.
    given_back: BTreeSet<Copies>,
    /// Number of connections so far.
    ups: u32,
    /// Transfers that the peer gave up. The receiver may forget some of them.
    retired: BTreeSet<u64>,
    floor: u64,
    /// Chunks of admitted transfers that are not over.
    active: BTreeMap<u64, u32>,
}

impl Transfers {
    fn new() -> Self {
        Self {
            receiver: Receiver::new(LIMITS),
            in_flight: Default::default(),
            given_back: BTreeSet::new(),
            ups: 0,
            retired: BTreeSet::new(),
            floor: 1,
            active: BTreeMap::new(),
        }
    }

    fn call(&mut self, data: &mut Unstructured<'_>) -> Result<()> {
        let flow = FlowIndex(data.int_in_range(0..=LIMITS.flows)?);
        match data.int_in_range(0..=9)? {
            0 => self.flow_down(flow),
            1 => {
                let transfer = number(data, 30)?;
                self.receiver.retire(TransferId(transfer));
                self.retired.insert(transfer);
                self.active.remove(&transfer);
            }
            _ => self.offer(flow, data)?,
        }
        Ok(())
    }

    /// Brings a connection up. The number of earlier ones determines its window.
    fn flow_up(&mut self, flow: FlowIndex) {
        let Some(in_flight) = self.in_flight.get_mut(flow.0 as usize) else { return };
        self.ups += 1;
        let window = 1 + self.ups % 8;
        self.receiver.handle_flow_up(flow, window);
        in_flight.handle_flow_up(window.min(SHARE));
    }

    fn flow_down(&mut self, flow: FlowIndex) {
        self.receiver.handle_flow_down(flow);
        if let Some(in_flight) = self.in_flight.get_mut(flow.0 as usize) {
            self.given_back.extend(in_flight.handle_flow_down());
        }
    }

    /// True if an honest sender may send a copy of a chunk that landed.
    fn may_come_again(&self, copies: Copies) -> bool {
        let mut unknown = self.in_flight.iter().flat_map(InFlight::unknown);
        self.given_back.contains(&copies) || unknown.any(|other| other == copies)
    }

    /// Offers a chunk on the flow. It lands if it is admitted and its flow does not end.
    fn offer(&mut self, flow: FlowIndex, data: &mut Unstructured<'_>) -> Result<()> {
        let connections = self.in_flight.get(flow.0 as usize).map_or(0, InFlight::connections);
        // Sometimes the next connection is up before the end of the first is known.
        if connections == 0 || (connections == 1 && self.ups.is_multiple_of(5)) {
            self.flow_up(flow);
        }
        let transfer = number(data, 30)?.max(1);
        let known = self.active.get(&transfer).copied();
        let chunk_count = match known {
            Some(count) => count,
            None if data.ratio(1, 8)? => data.int_in_range(1..=50)?,
            None => data.int_in_range(1..=4)?,
        };
        let chunk = data.int_in_range(0..=chunk_count - 1)?;
        let meta = match chunk {
            0 => vec![1; data.int_in_range(0..=120)?],
            _ => Vec::new(),
        };
        let floor = if data.ratio(1, 16)? { data.int_in_range(1..=transfer)? } else { 1 };
        let header = ChunkHeader {
            op: WireOp::Write,
            flags: Flags::NONE,
            meta_len: meta.len() as u32,
            payload_len: 0,
            pieces: 0,
            transfer: TransferId(transfer),
            chunk,
            chunk_count,
            floor: TransferId(floor),
            context: 0,
            checksum: 0,
            place: 0,
        };
        let copies = (transfer, chunk, chunk_count, meta.len());
        let comes_again = self.may_come_again(copies);
        let before = self.receiver.quota_refusals();
        let Ok(verdict) = self.receiver.handle_chunk(flow, &header, &[], &meta, || Ok(())) else {
            return Ok(());
        };
        self.active.retain(|id, _| *id >= floor);
        self.floor = self.floor.max(floor);
        if comes_again && transfer >= self.floor && !self.retired.contains(&transfer) {
            assert_eq!(verdict, Verdict::Discard, "{copies:?} landed and comes again");
        }
        let is_quota = matches!(
            verdict,
            Verdict::Refuse(RefusalCode::TransferQuota | RefusalCode::MessageQuota)
        );
        assert_eq!(self.receiver.quota_refusals(), before + u64::from(is_quota));
        if known.is_some() && meta.is_empty() && transfer >= floor {
            assert!(!is_quota, "{transfer} was begun and does not go on");
        }
        if self.receiver.held().meta_bytes == 0 {
            assert_ne!(verdict, Verdict::Refuse(RefusalCode::MessageQuota), "none else is held");
        }
        if verdict == Verdict::Land {
            self.active.insert(transfer, chunk_count);
        }
        if data.ratio(7, 8)? {
            let settled = self.receiver.handle_chunk_end(flow, true);
            let in_flight = &mut self.in_flight[flow.0 as usize];
            let frame = in_flight.next_frame();
            if settled == Settled::Ack {
                in_flight.handle_landed(frame, copies);
            }
        } else {
            self.flow_down(flow);
        }
        // None of them is delivered: all are writes without a notification.
        while let Some(landed) = self.receiver.poll_event() {
            assert!(self.active.remove(&landed.transfer.0).is_some(), "{landed:?}");
        }
        Ok(())
    }

    fn check(&self) {
        let held = self.receiver.held();
        let chunks: u64 = self.active.values().map(|count| u64::from(*count)).sum();
        assert_eq!((held.transfers, held.chunks), (self.active.len(), chunks));
        assert!(held.transfers <= LIMITS.transfers && held.chunks <= LIMITS.chunks, "{held:?}");
        // Cancels leave twice as many, and transfers in progress may end between any two.
        assert!(held.ranges <= 3 * LIMITS.transfers, "{held:?}");
        // A message of any length is admitted if no other is held.
        assert!(held.meta_bytes <= LIMITS.meta_bytes.max(120), "{held:?}");
        assert!(held.proofs <= LIMITS.proofs + GONE, "{held:?}");
    }
}
