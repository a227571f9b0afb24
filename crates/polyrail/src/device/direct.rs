//! Transfers without a wire: a device copies from one end's memory to the other's, over NVLink,
//! PCIe, or inside its own.
//!
//! The path is chosen when a request is prepared, and named with its reason. A post gives the
//! copies to the device with the caller's own thread, which takes microseconds; whoever waits looks
//! at the ticket, which is a load, and a proxy does so for those that nobody waits for.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use polyrail_config::PathChoice;
use polyrail_gpu::{Device, DeviceMemory, GpuError, Place as CopyPlace, Queue};
use polyrail_proto::wire::RefusalCode;
use polyrail_proto::{InstanceId, RegionKey};
use smallvec::SmallVec;

use crate::api::error::TransferError;
use crate::api::request::{Kind, Spec};
use crate::device::export::import;
use crate::device::shared_memory;
use crate::device::staging::{CopyError, Tickets};
use crate::engine::op::Op;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;
use crate::memory::gate::Pin;
use crate::memory::region::{RegionCore, RegionSlice, RemoteSlice};
use crate::memory::region_memory::RegionMemory;
use crate::proxy::{Command, Proxy};

/// Queues of a device that transfers take turns on: so many of them are under way at once.
const QUEUES: usize = 4;

/// Why a request takes the rails whatever there is.
const NO_DEVICE: &str = "neither end is a device's memory";

/// How the bytes of a request travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathKind {
    /// TCP over the rails, and through pinned host memory where an end is a device.
    Tcp,
    /// Through pinned host memory that both processes have open; only heads and acknowledgements
    /// take the rails.
    Shared,
    /// A device copies from memory to memory.
    PeerCopy,
}

/// How the bytes of a request travel, and why so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferPath {
    /// How.
    pub kind: PathKind,
    /// Why, as a fragment of a sentence.
    pub reason: Cow<'static, str>,
    /// What would have been better and is not possible, best first, with the reason of each.
    pub not_possible: Vec<(PathKind, Cow<'static, str>)>,
}

/// One copy of a request.
pub(crate) struct Part {
    from: Arc<RegionCore>,
    from_offset: u64,
    to: Arc<RegionCore>,
    to_offset: u64,
    len: u64,
}

/// The copies of a request, and who makes them.
pub(crate) struct Copies {
    device: Arc<dyn Device>,
    parts: Vec<Part>,
}

/// The queues of an engine for such copies.
#[derive(Default)]
pub(crate) struct DirectQueues(Mutex<Vec<DeviceQueues>>);

struct DeviceQueues {
    uuid: [u8; 16],
    queues: Vec<Queue>,
    next: usize,
}

/// The engines of this process.
static ENGINES: Mutex<Vec<Weak<EngineShared>>> = Mutex::new(Vec::new());

/// Makes an engine known to the others of this process.
pub(crate) fn announce(engine: &Arc<EngineShared>) {
    let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
    engines.retain(|engine| engine.strong_count() > 0);
    engines.push(Arc::downgrade(engine));
}

fn engine_here(instance: InstanceId) -> Option<Arc<EngineShared>> {
    engines_here().find(|engine| engine.card.instance == instance)
}

/// The list is not locked meanwhile: whoever is the last to have an engine ends it.
fn engines_here() -> impl Iterator<Item = Arc<EngineShared>> {
    let engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    engines.into_iter().filter_map(|engine| engine.upgrade())
}

/// A region of a device has ended: queues keep memory until they are used again, and should not.
pub(crate) fn let_go() {
    for engine in engines_here() {
        engine.direct.let_go();
        engine.proxies.all.iter().for_each(|proxy| proxy.let_go());
    }
}

impl PathKind {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shared => "shared memory",
            Self::PeerCopy => "peer copy",
        }
    }
}

impl TransferPath {
    /// A path that is taken for a reason of its own.
    pub fn new(kind: PathKind, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, reason: reason.into(), not_possible: Vec::new() }
    }
}

impl fmt::Display for TransferPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.reason)
    }
}

/// Which path a request takes, and if it is not over the rails, the copies.
pub(crate) fn choose(engine: &Arc<EngineShared>, request: &Spec) -> (TransferPath, Option<Copies>) {
    match engine.config.path {
        PathChoice::Shared => (forced_to_share(engine, request), None),
        _ if !request.touches_device() => (TransferPath::new(PathKind::Tcp, NO_DEVICE), None),
        PathChoice::Tcp => (TransferPath::new(PathKind::Tcp, "the setting path says so"), None),
        PathChoice::Auto => match copies(engine, request) {
            Ok((copies, why)) => (TransferPath::new(PathKind::PeerCopy, why), Some(copies)),
            Err(why) => (without_copies(engine, request, why), None),
        },
    }
}

fn forced_to_share(engine: &Arc<EngineShared>, request: &Spec) -> TransferPath {
    match shares(engine, request) {
        Ok(()) => TransferPath::new(PathKind::Shared, "the setting path says so"),
        Err(why) => {
            let reason = format!("the setting path says shared, which is not possible: {why}");
            let not_possible = vec![(PathKind::Shared, why)];
            TransferPath { kind: PathKind::Tcp, reason: reason.into(), not_possible }
        }
    }
}

/// The path of a request that no device can copy from end to end, for that reason.
fn without_copies(
    engine: &Arc<EngineShared>,
    request: &Spec,
    why: Cow<'static, str>,
) -> TransferPath {
    match shares(engine, request) {
        Ok(()) => {
            let reason = format!("both ends are on this host; {why}");
            let not_possible = vec![(PathKind::PeerCopy, why)];
            TransferPath { kind: PathKind::Shared, reason: reason.into(), not_possible }
        }
        Err(against) => {
            let reason = match why == against {
                true => why.clone(),
                false => format!("{why}; not through shared memory: {against}").into(),
            };
            let not_possible = vec![(PathKind::PeerCopy, why), (PathKind::Shared, against)];
            TransferPath { kind: PathKind::Tcp, reason, not_possible }
        }
    }
}

/// Whether the bytes of a request can go through shared memory, or why not.
fn shares(engine: &Arc<EngineShared>, request: &Spec) -> Result<(), Cow<'static, str>> {
    if !request.touches_device() {
        return Err(NO_DEVICE.into());
    }
    let (kind, peer, _) = request.parts();
    match kind {
        Kind::Receive { .. } => Err("its sender chooses the path".into()),
        Kind::Write | Kind::Read | Kind::Send { .. } => {
            shared_memory::is_possible(engine, &peer.shared)
        }
    }
}

/// The copies of a request and why they are possible, or why not.
fn copies(
    engine: &Arc<EngineShared>,
    request: &Spec,
) -> Result<(Copies, Cow<'static, str>), Cow<'static, str>> {
    let (kind, peer, pairs) = request.parts();
    if !matches!(kind, Kind::Write | Kind::Read) {
        return Err("where a message goes is known when it meets its receive".into());
    }
    if !peer.shared.same_host {
        return Err("the peer is on another host".into());
    }
    let near = pairs.iter().find_map(|(local, _)| local.region.memory.device());
    let mut known: HashMap<RegionKey, Arc<RegionCore>> = HashMap::new();
    let here = engine_here(peer.shared.instance());
    let mut parts = Vec::with_capacity(pairs.len());
    for (local, remote) in pairs {
        let key = remote.region.key;
        let far = match known.get(&key) {
            Some(far) => far.clone(),
            None => {
                let far = match (&here, near) {
                    (Some(other), _) => other.registry.region(key).ok_or("the region is gone")?,
                    (None, _) if !remote.region.is_on_device() => {
                        return Err("the other end is another process's host memory".into());
                    }
                    (None, None) => return Err("this end is host memory".into()),
                    (None, Some(device)) => import(engine, &peer.shared, &remote.region, device)?,
                };
                known.insert(key, far.clone());
                far
            }
        };
        parts.push(part(kind, local, remote, far)?);
    }
    let other = known.values().find_map(|far| far.memory.device());
    let device = near.or(other).ok_or("there are no bytes")?.clone();
    must_reach_all(&device, &parts)?;
    let place = if here.is_some() { "in this process" } else { "on this host" };
    let reason = format!("both ends are {place}, copied by {}", device.identity());
    Ok((Copies { device, parts }, reason.into()))
}

/// Whether a queue of the device can copy from and to all memory of the parts.
fn must_reach_all(device: &Arc<dyn Device>, parts: &[Part]) -> Result<(), String> {
    let mut seen: Vec<&Arc<RegionCore>> = Vec::new();
    for end in parts.iter().flat_map(|part| [&part.from, &part.to]) {
        // Parts mostly stay in the same few regions; asking once more does no harm.
        if seen.iter().rev().take(8).any(|known| Arc::ptr_eq(known, end)) {
            continue;
        }
        seen.push(end);
        let RegionMemory::Device(memory) = &end.memory else { continue };
        match reaches(device, memory) {
            Ok(true) => {}
            Ok(false) => {
                let (one, two) = (device.identity(), memory.device().identity());
                return Err(format!("{one} can't reach {two}"));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

fn reaches(device: &Arc<dyn Device>, memory: &DeviceMemory) -> Result<bool, GpuError> {
    let other = memory.device();
    if other.identity().uuid == device.identity().uuid {
        return Ok(true);
    }
    device.reaches(&**other)
}

/// A checked copy. What would be refused goes over the rails, where the peer refuses it.
fn part(
    kind: Kind,
    local: &RegionSlice,
    remote: &RemoteSlice,
    far: Arc<RegionCore>,
) -> Result<Part, &'static str> {
    const REFUSED: &str = "the peer would refuse it";
    let allowed = match kind {
        Kind::Read => far.access.remote_read,
        _ => far.access.remote_write,
    };
    let end = remote.offset.checked_add(remote.len);
    let inside = end.is_some_and(|end| end <= far.memory.len());
    if !allowed || !inside || local.len != remote.len {
        return Err(REFUSED);
    }
    let near = (local.region.clone(), local.offset);
    let far = (far, remote.offset);
    let ((from, from_offset), (to, to_offset)) = match kind {
        Kind::Read => (far, near),
        _ => (near, far),
    };
    Ok(Part { from, from_offset, to, to_offset, len: local.len })
}

impl DirectQueues {
    /// Lets go of the memory of copies that are done, unless somebody is just beginning others.
    fn let_go(&self) {
        let Ok(mut all) = self.0.try_lock() else { return };
        for queue in all.iter_mut().flat_map(|queues| &mut queues.queues) {
            queue.under_way();
        }
    }

    /// Begins all copies, on one queue.
    fn begin(&self, copies: &Copies) -> Result<Tickets, CopyError> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let uuid = copies.device.identity().uuid;
        let known = all.iter().position(|queues| queues.uuid == uuid);
        let index = known.unwrap_or_else(|| {
            all.push(DeviceQueues { uuid, queues: Vec::new(), next: 0 });
            all.len() - 1
        });
        let begun = all[index].begin(copies);
        if let Err(CopyError::Device(_)) = begun {
            // After an error a queue may never copy again; another may.
            all.swap_remove(index);
        }
        begun
    }
}

impl DeviceQueues {
    fn begin(&mut self, copies: &Copies) -> Result<Tickets, CopyError> {
        let index = self.choose(&copies.device)?;
        let queue = &mut self.queues[index];
        let mut pinned = Pinned::new();
        let pushed = push_all(queue, &copies.parts, &mut pinned);
        if let Err(error) = pushed {
            queue.discard();
            return Err(error);
        }
        let ticket = queue.begin()?;
        for (region, _pin) in &pinned {
            region.copies.note(&ticket);
        }
        Ok(Tickets::from_iter([ticket]))
    }

    /// The first queue that is idle, which is mostly the one used last; else the next in turn.
    fn choose(&mut self, device: &Arc<dyn Device>) -> Result<usize, GpuError> {
        let index = match self.queues.iter_mut().position(|queue| queue.under_way() == 0) {
            Some(idle) => idle,
            None if self.queues.len() < QUEUES => self.queues.len(),
            None => {
                self.next = (self.next + 1) % self.queues.len();
                self.next
            }
        };
        match self.queues.get_mut(index) {
            // After an error a queue never copies again; another may.
            Some(queue) if queue.has_failed() => *queue = Queue::new(device)?,
            Some(_) => {}
            None => self.queues.push(Queue::new(device)?),
        }
        Ok(index)
    }
}

/// Regions that are kept while a batch is begun.
type Pinned<'a> = SmallVec<[(&'a Arc<RegionCore>, Pin<'a>); 4]>;

fn push_all<'a>(
    queue: &mut Queue,
    parts: &'a [Part],
    pinned: &mut Pinned<'a>,
) -> Result<(), CopyError> {
    for part in parts {
        for region in [&part.from, &part.to] {
            // Parts mostly stay in the same two regions; another pin of one does no harm.
            if !pinned.iter().rev().take(4).any(|(known, _)| Arc::ptr_eq(known, region)) {
                let pin = region.gate.pin().ok_or(CopyError::RegionDropped)?;
                pinned.push((region, pin));
            }
        }
        let to = place(&part.to.memory, part.to_offset);
        queue.push(to, place(&part.from.memory, part.from_offset), part.len)?;
    }
    Ok(())
}

fn place(memory: &RegionMemory, offset: u64) -> CopyPlace<'_> {
    match memory {
        RegionMemory::Host(memory) => CopyPlace::Host(memory, offset),
        RegionMemory::Device(memory) => CopyPlace::Device(memory, offset),
    }
}

impl EngineShared {
    /// Begins the copies of an operation.
    pub(crate) fn post_direct(self: &Arc<Self>, op: &Arc<Op>, copies: &Copies) {
        match self.direct.begin(copies) {
            Ok(tickets) => {
                op.set_copying(tickets);
                let prepared = &op.prepared;
                let bytes = prepared.plan.bytes();
                prepared.peer.peer_copy_bytes.fetch_add(bytes, Ordering::Relaxed);
                let proxy = self.watcher(&prepared.peer);
                let command = Command::Copying(op.clone());
                // Whoever waits, or asks, looks for himself.
                let is_told = prepared.notify || prepared.listener.is_some();
                match is_told || self.bells.are_used() {
                    true => proxy.command(command),
                    false => proxy.leave(command),
                }
            }
            Err(CopyError::RegionDropped) => {
                let local = op.prepared.check_regions().is_err();
                op.fail(match local {
                    true => TransferError::RegionDropped,
                    false => TransferError::Refused {
                        peer: op.prepared.peer_name(),
                        code: RefusalCode::RegionDropped,
                    },
                });
            }
            Err(CopyError::Device(why)) => op.fail(TransferError::Device { why }),
        }
    }
}

impl EngineShared {
    /// Nobody asks any more how the operation goes: a proxy does.
    pub(crate) fn watch_copies(&self, op: &Op) {
        if op.is_copying() {
            self.watcher(&op.prepared.peer).wake();
        }
    }

    /// The proxy that looks when devices are done.
    fn watcher(&self, peer: &PeerShared) -> &Proxy {
        &self.proxies.all[peer.lanes.proxies().first().copied().unwrap_or_default()]
    }
}

impl Drop for DirectQueues {
    fn drop(&mut self) {
        // Each queue waits for what it has under way.
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
