//! The receiving side of one peer: decides, before a byte is read, where it may land.
//!
//! Every chunk is announced to [`Receiver::handle_chunk`] first. Its answer is a [`Verdict`]: land
//! it, discard it (a late copy of what is already here), or refuse it. A transfer is complete when
//! all of its chunks have landed, whichever flows brought them; only then does the driver learn of
//! it, with the message that came along, so a notification can't overtake its data.
//!
//! **A late duplicate never lands.** After a rail failed, two flows may bring the same chunk. Only
//! one lands it. The newer copy takes over and the older reads its rest to scratch; but if the older
//! is just inside a system call ([`Receiver::begin_landing`] and [`Receiver::end_landing`] bracket
//! each), then its rail is alive and it is the newer that is sent away, to come again. So when a
//! chunk has landed, nobody else is writing its place: it can be acknowledged at once, a corrupt
//! copy can't spoil an intact one, and after a completion nothing of that transfer is written ever
//! again, so that its memory may be reused.
//!
//! Payload for a device's memory is read elsewhere first and copied into place by the device. That
//! copy can't be stopped, so from [`Receiver::detach`] to [`Receiver::handle_landed`] it counts like
//! a system call, and its flow goes on with the next chunk.
//!
//! **Nothing is acknowledged but what landed.** A chunk of a transfer that is over, or that landed
//! before, is discarded and acknowledged only if it is a copy of what landed (see `proof`); else it
//! is refused, so that its sender learns that its bytes are not here. What the sender's `floor` says
//! is good for forgetting, and for nothing else.
//!
//! A chunk may be taken from a flow in the middle (its sender cancelled the transfer, the user
//! dropped the region) while the flow is inside a system call for it. The call that takes it then
//! says "not yet", the driver asks again, and sends no acknowledgement until
//! [`Receiver::is_quiet`].

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::id::{FlowIndex, TransferId};
use crate::proof::{Head, Proofs};
use crate::range_set::RangeSet;
use crate::wire::{ChunkHeader, Flags, Place, RefusalCode, WireError, WireOp};

/// The receiving side of one peer. Not thread-safe; the driver keeps it behind one lock and holds
/// that for bookkeeping only, never while bytes are read.
#[derive(Debug)]
pub struct Receiver {
    limits: ReceiverLimits,
    /// Everything below it is over for the sender.
    floor: TransferId,
    /// The highest transfer of which something landed.
    highest: u64,
    /// Transfers at or above the floor that are over: complete or cancelled.
    done: RangeSet,
    proofs: Proofs,
    active: HashMap<u64, IncomingTransfer>,
    /// Chunks of all active transfers: bounds the memory that a peer can make us spend.
    tracked_chunks: u64,
    /// Bytes of their messages, likewise.
    held_meta: usize,
    quota_refusals: u64,
    claims: Vec<Claim>,
    /// Chunks that devices copy into place; as many as the driver has room to read elsewhere.
    detached: BTreeMap<u64, Claim>,
    next_landing: u64,
    events: VecDeque<Landed>,
}

/// A chunk that a device copies into place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LandingId(u64);

/// What a peer may make a receiver remember.
#[derive(Clone, Copy, Debug)]
pub struct ReceiverLimits {
    /// Flows that the peer may have, at most.
    pub flows: u32,
    /// The most transfers under way at once, and the most gaps between finished ones. With fewer than
    /// an honest peer has under way that peer is held back, and goes on.
    pub transfers: usize,
    /// Chunks of all transfers under way (one bit each). A transfer with more is never taken.
    pub chunks: u64,
    /// Chunks that may be in flight on a flow. As many may have landed without the sender's
    /// knowledge, and come again. At least the sender's window.
    pub window: usize,
    /// The same on all flows together, as 112 bytes each. At least what all channels of the sender
    /// may have in flight.
    pub proofs: usize,
    /// Bytes of messages of all transfers under way. The first message is taken whatever its length.
    pub meta_bytes: usize,
}

/// What a receiver remembers of its peer: each is bounded by [`ReceiverLimits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReceiverUsage {
    /// Transfers under way.
    pub transfers: usize,
    /// Their chunks.
    pub chunks: u64,
    /// Bytes of their messages.
    pub meta_bytes: usize,
    /// Ranges of transfers that are over.
    pub ranges: usize,
    /// Chunks that landed and may come again.
    pub proofs: usize,
}

impl Default for ReceiverLimits {
    fn default() -> Self {
        Self {
            flows: 1024,
            // A transfer of many chunks is under way until the last one is here, so an honest peer
            // has as many as its windows hold, and some that it was told to send later.
            transfers: 1 << 16,
            chunks: 1 << 26,
            window: 1024,
            // 256 channels with windows of 1024 chunks.
            proofs: 1 << 18,
            meta_bytes: 16 << 20,
        }
    }
}

/// What to do with the payload of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Read it into its places.
    Land,
    /// Read it to scratch and acknowledge it: it is here already.
    Discard,
    /// Read it to scratch and tell the sender why it was refused.
    Refuse(RefusalCode),
}

/// The driver's answer to "may this chunk land where it says?"
pub type Permission = Result<(), RefusalCode>;

/// How a chunk ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Acknowledge it.
    Ack,
    /// Acknowledge everything before it and refuse it.
    Refuse(RefusalCode),
}

/// The answer to a chunk of a transfer that is over without it.
const OVER: Verdict = Verdict::Refuse(RefusalCode::TransferOver);
/// The answer where nothing is known to have landed.
const NOTHING_LANDED: Settled = Settled::Refuse(RefusalCode::Busy);

/// A transfer that is complete: every byte is in place.
#[derive(Debug, PartialEq, Eq)]
pub struct Landed {
    /// What it was for.
    pub op: WireOp,
    /// Its flags; [`Flags::NOTIFY`] says that `meta` is a notification.
    pub flags: Flags,
    /// The read or receive it belonged to.
    pub context: u64,
    /// Its number at the sender.
    pub transfer: TransferId,
    /// Its message.
    pub meta: Vec<u8>,
    /// Payload bytes in all.
    pub bytes: u64,
}

#[derive(Debug)]
struct IncomingTransfer {
    chunk_count: u32,
    landed_count: u32,
    /// One bit a chunk; empty for a transfer of one chunk.
    landed: Vec<u64>,
    bytes: u64,
    op: WireOp,
    flags: Flags,
    context: u64,
    meta: Vec<u8>,
}

/// What a flow is landing now.
#[derive(Clone, Copy, Debug)]
struct Claim {
    flow: FlowIndex,
    target: Option<(TransferId, u32)>,
    /// The chunk; `None` between chunks.
    head: Option<Head>,
    reading: bool,
    verdict: Option<Verdict>,
}

impl Receiver {
    /// A receiver that has seen nothing.
    pub fn new(limits: ReceiverLimits) -> Self {
        Self {
            limits,
            floor: TransferId(1),
            highest: 0,
            done: RangeSet::default(),
            proofs: Proofs::new(limits.window, limits.proofs),
            active: HashMap::new(),
            tracked_chunks: 0,
            held_meta: 0,
            quota_refusals: 0,
            claims: Vec::new(),
            detached: BTreeMap::new(),
            next_landing: 0,
            events: VecDeque::new(),
        }
    }

    /// A chunk begins on `flow`; `admit` asks the driver whether its `places` may be written.
    ///
    /// An error means that the peer breaks the protocol: close the flow, and acknowledge nothing.
    pub fn handle_chunk(
        &mut self,
        flow: FlowIndex,
        header: &ChunkHeader,
        places: &[Place],
        meta: &[u8],
        admit: impl FnOnce() -> Permission,
    ) -> Result<Verdict, WireError> {
        self.claim_mut(flow)?;
        self.raise_floor(header.floor)?;
        let head = self.proofs.head(header, places, meta);
        let verdict = self.judge(header, &head, meta, admit)?;
        let claim = self.claim_mut(flow)?;
        *claim = Claim {
            flow,
            target: (verdict == Verdict::Land).then_some((header.transfer, header.chunk)),
            head: Some(head),
            reading: false,
            verdict: Some(verdict),
        };
        Ok(verdict)
    }

    /// Whether the next bytes of the flow's chunk may go in place. If so, they must be followed by
    /// [`Self::end_landing`]; if not, they go to scratch.
    pub fn begin_landing(&mut self, flow: FlowIndex) -> bool {
        match self.claims.get_mut(flow.0 as usize) {
            Some(claim) if claim.target.is_some() => {
                claim.reading = true;
                true
            }
            _ => false,
        }
    }

    /// The bytes are written. Says whether the rest of the chunk may still go in place.
    pub fn end_landing(&mut self, flow: FlowIndex) -> bool {
        let Some(claim) = self.claims.get_mut(flow.0 as usize) else { return false };
        claim.reading = false;
        if claim.verdict != Some(Verdict::Land) {
            claim.target = None;
        }
        claim.target.is_some()
    }

    /// All bytes of the flow's chunk are read. `intact` is the result of the checksum, if any.
    pub fn handle_chunk_end(&mut self, flow: FlowIndex, intact: bool) -> Settled {
        let Some(claim) = self.claims.get_mut(flow.0 as usize) else { return NOTHING_LANDED };
        let ended = std::mem::replace(claim, Claim::NONE);
        debug_assert!(!ended.reading, "end_landing comes first");
        self.settle(ended, if intact { Ok(()) } else { Err(RefusalCode::Checksum) })
    }

    /// All bytes of the flow's chunk are read, but not where they belong: a device begins to copy
    /// them there, and the flow is free for its next chunk. The copy must be followed by
    /// [`Self::handle_landed`].
    ///
    /// `None` if nobody wants the bytes any more: then nothing may be copied, and
    /// [`Self::handle_chunk_end`] says how the chunk ended.
    pub fn detach(&mut self, flow: FlowIndex) -> Option<LandingId> {
        if !self.begin_landing(flow) {
            return None;
        }
        let claim = self.claims.get_mut(flow.0 as usize)?;
        let claim = std::mem::replace(claim, Claim::NONE);
        self.next_landing += 1;
        self.detached.insert(self.next_landing, claim);
        Some(LandingId(self.next_landing))
    }

    /// The copy has ended, even if its flow is gone meanwhile. `landed` says whether the bytes are
    /// in place, or why not.
    pub fn handle_landed(&mut self, id: LandingId, landed: Permission) -> Settled {
        let Some(mut ended) = self.detached.remove(&id.0) else { return NOTHING_LANDED };
        if ended.verdict != Some(Verdict::Land) {
            ended.target = None;
        }
        self.settle(ended, landed)
    }

    fn settle(&mut self, ended: Claim, landed: Permission) -> Settled {
        let Some(head) = ended.head else { return NOTHING_LANDED };
        match (ended.target, ended.verdict, landed) {
            (_, Some(Verdict::Refuse(code)), _) => return Settled::Refuse(code),
            (Some(_), _, Err(code)) => return Settled::Refuse(code),
            (Some((transfer, chunk)), Some(Verdict::Land), Ok(())) => {
                if !self.land(transfer, chunk, head.header.payload_len) {
                    return NOTHING_LANDED;
                }
            }
            // Only if a copy provably landed.
            (None, Some(Verdict::Discard), _) => {}
            _ => return NOTHING_LANDED,
        }
        self.proofs.note(ended.flow, head, self.floor);
        Settled::Ack
    }

    /// The flow is gone, maybe in the middle of a chunk: it lands nothing more.
    pub fn handle_flow_down(&mut self, flow: FlowIndex) {
        self.end_landing(flow);
        if let Some(claim) = self.claims.get_mut(flow.0 as usize) {
            *claim = Claim::NONE;
        }
        self.proofs.handle_flow_down(flow, self.floor);
    }

    /// The peer gave the transfer up: nothing of it lands any more.
    ///
    /// Returns whether that holds already. If a flow is inside a system call for the transfer, ask
    /// again and acknowledge nothing until [`Self::is_quiet`]: acknowledging the peer's cancel, or
    /// a second copy of it on another flow, would tell the peer that nothing lands any more.
    pub fn retire(&mut self, transfer: TransferId) -> bool {
        // A transfer that is complete keeps its event: it was in place before the cancel came.
        if transfer >= self.floor {
            // Only a peer that invents numbers reaches the bound. The receiver then forgets only
            // which of that peer's own transfers were cancelled.
            if self.done.range_count() < 2 * self.limits.transfers {
                self.done.insert(transfer.0);
            }
            // The message is not acknowledged: its sender gave it up and waits for no answer.
            self.drop_incoming(transfer, OVER);
        }
        !self.all_claims().any(|c| c.reading && c.target.is_some_and(|(t, _)| t == transfer))
    }

    /// The driver no longer wants the data of a read or receive. Chunks under way stop landing; the
    /// driver's gate refuses those that come later.
    ///
    /// Returns whether that holds already. If a flow is inside a system call for the transfer, ask
    /// again.
    pub fn expel(&mut self, op: WireOp, context: u64) -> bool {
        let meant = |incoming: &IncomingTransfer| incoming.op == op && incoming.context == context;
        let over: Vec<u64> =
            self.active.iter().filter(|(_, i)| meant(i)).map(|(id, _)| *id).collect();
        for id in over {
            self.drop_incoming(TransferId(id), Verdict::Refuse(RefusalCode::NotExpected));
        }
        let of_it = |head: &Head| head.header.op == op && head.header.context == context;
        let busy =
            |c: &Claim| c.reading && c.target.is_some() && c.head.as_ref().is_some_and(of_it);
        !self.all_claims().any(busy)
    }

    /// Bars the places of the chunk on `flow`, for instance because their region was dropped: the
    /// rest goes to scratch, and the sender gets the refusal `code`.
    ///
    /// Returns whether that holds already. If the flow is inside a system call, ask again.
    pub fn bar(&mut self, flow: FlowIndex, code: RefusalCode) -> bool {
        match self.claims.get_mut(flow.0 as usize) {
            Some(claim) if claim.target.is_some() => {
                claim.revoke(Verdict::Refuse(code));
                !claim.reading
            }
            _ => true,
        }
    }

    /// Whether no flow is inside a system call for a chunk that was taken from it. While one is, the
    /// driver sends no acknowledgement on any flow; that is a matter of microseconds.
    pub fn is_quiet(&self) -> bool {
        !self.all_claims().any(|c| c.reading && c.verdict != Some(Verdict::Land))
    }

    /// Whether the peer has never sent anything.
    pub fn is_unused(&self) -> bool {
        self.highest == 0 && self.active.is_empty() && self.done.range_count() == 0
    }

    /// Refuses everything from now on, if nothing has come so far; returns whether it does.
    pub fn close_unused(&mut self) -> bool {
        let is_unused = self.is_unused();
        if is_unused {
            self.limits.flows = 0;
        }
        is_unused
    }

    /// The next transfer that is complete.
    pub fn poll_event(&mut self) -> Option<Landed> {
        self.events.pop_front()
    }

    /// Transfers under way.
    pub fn active_count(&self) -> usize {
        self.active.len()
    }

    /// What is remembered of the peer.
    pub fn held(&self) -> ReceiverUsage {
        ReceiverUsage {
            transfers: self.active.len(),
            chunks: self.tracked_chunks,
            meta_bytes: self.held_meta,
            ranges: self.done.range_count(),
            proofs: self.proofs.len(),
        }
    }

    /// How often the peer was refused something because a quota was used up.
    pub fn quota_refusals(&self) -> u64 {
        self.quota_refusals
    }

    fn judge(
        &mut self,
        header: &ChunkHeader,
        head: &Head,
        meta: &[u8],
        admit: impl FnOnce() -> Permission,
    ) -> Result<Verdict, WireError> {
        let id = header.transfer.0;
        let known = |proofs: &Proofs| if proofs.holds(head) { Verdict::Discard } else { OVER };
        if header.transfer < self.floor || self.done.contains(id) {
            return Ok(known(&self.proofs));
        }
        if let Some(incoming) = self.active.get(&id) {
            let allowed = "the same in all chunks of a transfer";
            let differs = |field, got| Err(WireError::Field { field, got, allowed });
            if incoming.chunk_count != header.chunk_count {
                return differs("chunk_count", header.chunk_count.into());
            }
            if incoming.op != header.op {
                return differs("op", header.op as u64);
            }
            if incoming.context != header.context {
                return differs("context", header.context);
            }
            if incoming.has_landed(header.chunk) {
                return Ok(known(&self.proofs));
            }
        }
        if let Err(code) = admit().and_then(|()| self.within_quotas(header, meta)) {
            let is_quota = code.frees_itself() || code == RefusalCode::ReceiveQuota;
            self.quota_refusals += u64::from(is_quota);
            return Ok(Verdict::Refuse(code));
        }
        if !self.take_over((header.transfer, header.chunk)) {
            return Ok(Verdict::Refuse(RefusalCode::Busy));
        }
        if !self.active.contains_key(&id) {
            self.tracked_chunks += u64::from(header.chunk_count);
            self.active.insert(id, IncomingTransfer::new(header));
        }
        if header.chunk == 0
            && let Some(incoming) = self.active.get_mut(&id)
        {
            self.held_meta = self.held_meta - incoming.meta.len() + meta.len();
            incoming.flags = header.flags;
            incoming.meta.clear();
            incoming.meta.extend_from_slice(meta);
        }
        Ok(Verdict::Land)
    }

    /// Whether there is room for what the chunk brings. There always is for chunks without a message of
    /// transfers under way, so those that have all of what is bounded go on and make room for others.
    fn within_quotas(&self, header: &ChunkHeader, meta: &[u8]) -> Permission {
        let id = header.transfer.0;
        let known = self.active.get(&id);
        if known.is_none()
            && (self.active.len() >= self.limits.transfers
                || self.tracked_chunks + u64::from(header.chunk_count) > self.limits.chunks
                || self.leaves_one_gap_too_many(id))
        {
            return Err(RefusalCode::TransferQuota);
        }
        let of_others = self.held_meta - known.map_or(0, |incoming| incoming.meta.len());
        if of_others > 0 && of_others + meta.len() > self.limits.meta_bytes && !meta.is_empty() {
            return Err(RefusalCode::MessageQuota);
        }
        Ok(())
    }

    /// Finished transfers form one range unless numbers are missing. A peer that leaves gaps and
    /// never raises its floor would make us remember each gap. An honest peer can always go on, at
    /// least with its oldest transfer.
    fn leaves_one_gap_too_many(&self, id: u64) -> bool {
        let neighbour = |id: Option<u64>| id.is_some_and(|id| self.done.contains(id));
        self.done.range_count() >= self.limits.transfers
            && id != self.floor.0
            && !neighbour(id.checked_sub(1))
            && !neighbour(id.checked_add(1))
    }

    /// Takes the chunk from the flow that was landing it, unless that is inside a system call.
    fn take_over(&mut self, target: (TransferId, u32)) -> bool {
        let mut claims = self.claims.iter_mut().chain(self.detached.values_mut());
        match claims.find(|claim| claim.target == Some(target)) {
            Some(older) if older.reading => false,
            // The sender has given the older flow up, so it never hears this refusal. If we sent an
            // acknowledgement and the sender heard it, a chunk that never landed would count as
            // landed.
            Some(older) => {
                older.revoke(Verdict::Refuse(RefusalCode::Busy));
                true
            }
            None => true,
        }
    }

    /// The bytes are in place. Says whether that counts.
    fn land(&mut self, transfer: TransferId, chunk: u32, payload: u32) -> bool {
        let Some(incoming) = self.active.get_mut(&transfer.0) else { return false };
        if !incoming.set_landed(chunk) {
            return false;
        }
        self.highest = self.highest.max(transfer.0);
        incoming.bytes += u64::from(payload);
        if incoming.landed_count < incoming.chunk_count {
            return true;
        }
        let Some(incoming) = self.forget(transfer) else { return false };
        self.done.insert(transfer.0);
        self.events.push_back(Landed {
            op: incoming.op,
            flags: incoming.flags,
            context: incoming.context,
            transfer,
            meta: incoming.meta,
            bytes: incoming.bytes,
        });
        true
    }

    /// Everything below `floor` is over for the sender, so nothing of it lands here. A sender says so
    /// only of what lies below something that it knows to have landed.
    fn raise_floor(&mut self, floor: TransferId) -> Result<(), WireError> {
        if floor <= self.floor {
            return Ok(());
        }
        if floor.0 - 1 > self.highest {
            let allowed = "at most one more than the highest transfer of which something landed";
            return Err(WireError::Field { field: "floor", got: floor.0, allowed });
        }
        self.floor = floor;
        self.done.forget_below(floor.0);
        // Rare: a transfer below the floor is active only if its sender gave it up.
        if self.active.keys().any(|id| *id < floor.0) {
            let over: Vec<u64> = self.active.keys().copied().filter(|id| *id < floor.0).collect();
            for id in over {
                self.drop_incoming(TransferId(id), OVER);
            }
        }
        Ok(())
    }

    fn forget(&mut self, transfer: TransferId) -> Option<IncomingTransfer> {
        let incoming = self.active.remove(&transfer.0)?;
        self.tracked_chunks -= u64::from(incoming.chunk_count);
        self.held_meta -= incoming.meta.len();
        Some(incoming)
    }

    fn drop_incoming(&mut self, transfer: TransferId, verdict: Verdict) {
        self.forget(transfer);
        for claim in self.claims.iter_mut().chain(self.detached.values_mut()) {
            if claim.target.is_some_and(|(t, _)| t == transfer) {
                claim.revoke(verdict);
            }
        }
    }

    fn all_claims(&self) -> impl Iterator<Item = &Claim> {
        self.claims.iter().chain(self.detached.values())
    }

    fn claim_mut(&mut self, flow: FlowIndex) -> Result<&mut Claim, WireError> {
        let index = flow.0 as usize;
        if flow.0 >= self.limits.flows {
            let (field, allowed) = ("flow", "less than the limit on flows of a peer");
            return Err(WireError::Field { field, got: flow.0.into(), allowed });
        }
        if self.claims.len() <= index {
            self.claims.resize(index + 1, Claim::NONE);
        }
        Ok(&mut self.claims[index])
    }
}

impl Claim {
    const NONE: Self =
        Self { flow: FlowIndex(0), target: None, head: None, reading: false, verdict: None };

    /// The rest of the chunk goes to scratch; a system call under way keeps its target until it ends.
    fn revoke(&mut self, verdict: Verdict) {
        self.verdict = Some(verdict);
        if !self.reading {
            self.target = None;
        }
    }
}

impl IncomingTransfer {
    fn new(header: &ChunkHeader) -> Self {
        let words = if header.chunk_count == 1 { 0 } else { header.chunk_count.div_ceil(64) };
        Self {
            chunk_count: header.chunk_count,
            landed_count: 0,
            landed: vec![0; words as usize],
            bytes: 0,
            op: header.op,
            flags: Flags::NONE,
            context: header.context,
            meta: Vec::new(),
        }
    }

    fn has_landed(&self, chunk: u32) -> bool {
        match self.landed.get(chunk as usize / 64) {
            Some(word) => word >> (chunk % 64) & 1 == 1,
            None => self.landed_count > 0,
        }
    }

    /// Returns whether the chunk was missing.
    fn set_landed(&mut self, chunk: u32) -> bool {
        let missing = !self.has_landed(chunk);
        if let Some(word) = self.landed.get_mut(chunk as usize / 64) {
            *word |= 1 << (chunk % 64);
        }
        self.landed_count += u32::from(missing);
        missing
    }
}
