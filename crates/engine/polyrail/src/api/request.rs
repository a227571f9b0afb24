//! Description of a transfer: built once, checked once, posted any number of times.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::error::{PostError, TransferError};
use polyrail_proto::message::MAX_MESSAGE_PIECES;
use polyrail_proto::{Plan, Segment};

use crate::api::engine::Peer;
use crate::base::callback::Users;
use crate::engine::outcome::{Closure, EndListener, OnEnd, Outcome};
use crate::engine::peer::{OpKind, Prepared, Segments};
use crate::engine::state::EngineShared;
use crate::memory::region_core::{NOBODY, RegionSlice};
use crate::memory::region_list::RegionList;
use crate::memory::remote_region::RemoteSlice;
use crate::path::choose::choose;
use crate::path::request::PathRequest;

/// A transfer to be prepared: the peer, the operation, and the bytes.
///
/// The operation is part of the type, so a request takes only what its operation can use: a write and a read take pairs
/// of slices, a send and a receive take slices of this engine, and only a write takes a notification.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// let halves = [(local.slice(0, 2048)?, remote.slice(2048, 2048)?), (local.slice(2048, 2048)?, remote.slice(0, 2048)?)];
/// let write = Request::write(&peer).segments(halves).notification(b"layer 7 is there".to_vec());
/// engine.post(write.timeout(soon))?.join()?;
/// assert_eq!(other.wait_notification(soon).expect("it comes").data, b"layer 7 is there");
/// engine.post(Request::read(&peer).segment(local.slice(0, 8)?, remote.slice(2048, 8)?))?.join()?;
///
/// let pieces = [local.slice(0, 8)?, local.slice(100, 8)?];
/// let sent = engine.post(Request::send(&peer, 42).locals(pieces))?;
/// other.post(Request::receive(&back, 42).local(target.all()))?.join()?;
/// assert_eq!(sent.join()?.bytes, 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Parts that an operation can't have do not compile:
///
/// ```compile_fail
/// # use polyrail::{Peer, RegionSlice, Request};
/// # fn example(peer: &Peer, slice: RegionSlice) {
/// Request::write(peer).local(slice);
/// # }
/// ```
#[derive(Clone)]
pub struct Request<O: Operation> {
    pub(crate) spec: Spec,
    operation: PhantomData<O>,
}

/// Operation that moves bytes from here into the peer's memory; see [`Request::write`].
#[derive(Clone, Copy, Debug)]
pub struct Write;

/// Operation that moves bytes from the peer's memory to here; see [`Request::read`].
#[derive(Clone, Copy, Debug)]
pub struct Read;

/// Operation that sends a message to the peer; see [`Request::send`].
#[derive(Clone, Copy, Debug)]
pub struct Send;

/// Operation that makes room for a message from the peer; see [`Request::receive`].
#[derive(Clone, Copy, Debug)]
pub struct Receive;

/// The operation of a [`Request`]: [`Write`], [`Read`], [`Send`] or [`Receive`].
pub trait Operation: sealed::Sealed {}

/// An operation that names memory of both ends: [`Write`] and [`Read`]; see [`Request`].
pub trait OneSided: Operation {}

/// An operation of which each end names its own memory: [`Send`] and [`Receive`]; see [`Request`].
pub trait TwoSided: Operation {}

impl Operation for Write {}
impl Operation for Read {}
impl Operation for Send {}
impl Operation for Receive {}
impl OneSided for Write {}
impl OneSided for Read {}
impl TwoSided for Send {}
impl TwoSided for Receive {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Write {}
    impl Sealed for super::Read {}
    impl Sealed for super::Send {}
    impl Sealed for super::Receive {}
}

/// A request with any operation.
#[derive(Clone)]
pub(crate) struct Spec {
    peer: Peer,
    kind: OpKind,
    pairs: Vec<(RegionSlice, RemoteSlice)>,
    locals: Vec<RegionSlice>,
    notification: Option<Vec<u8>>,
    timeout: Option<Duration>,
    listener: Option<EndListener>,
}

impl<O: Operation> fmt::Debug for Request<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = &self.spec;
        let (kind, parts) = (spec.kind.name(), spec.pairs.len() + spec.locals.len());
        write!(f, "Request({kind}, {parts} parts, {:?})", spec.peer)
    }
}

impl Request<Write> {
    /// Makes a request that writes bytes from here into the peer's memory.
    pub fn write(peer: &Peer) -> Self {
        Self::new(peer, OpKind::Write)
    }

    /// Sets the bytes that the peer gets by [`crate::Engine::next_notification`] and similar calls once all bytes of
    /// the write are in place. At most 64 KiB. Each post sends them, unless [`crate::PreparedTransfer::post_with`]
    /// gives others. Notifications have no order among each other.
    ///
    /// A notification never comes after the end of its transfer. When the transfer is done, the notification is in the
    /// peer's inbox, or its observer has returned. When the transfer has failed, the peer may have got the notification
    /// before that, and does not get it later. Only the loss of the peer ([`crate::TransferError::PeerLost`]) leaves
    /// open what still happens there.
    #[must_use]
    pub fn notification(mut self, bytes: Vec<u8>) -> Self {
        self.spec.notification = Some(bytes);
        self
    }
}

impl Request<Read> {
    /// Makes a request that reads bytes from the peer's memory to here.
    pub fn read(peer: &Peer) -> Self {
        Self::new(peer, OpKind::Read)
    }
}

impl Request<Send> {
    /// Makes a request for a message that fills the peer's oldest receive of this tag. It waits for that receive.
    pub fn send(peer: &Peer, tag: u64) -> Self {
        Self::new(peer, OpKind::Send { tag })
    }
}

impl Request<Receive> {
    /// Makes a request for room for a message of this tag from the peer. It waits for one, even if sends end before
    /// they meet it: set a timeout, or cancel it, if none may come.
    pub fn receive(peer: &Peer, tag: u64) -> Self {
        Self::new(peer, OpKind::Receive { tag })
    }
}

impl<O: OneSided> Request<O> {
    /// Adds a part; both slices have the same length. Segments that continue each other on both sides are merged.
    #[must_use]
    pub fn segment(mut self, local: RegionSlice, remote: RemoteSlice) -> Self {
        self.spec.pairs.push((local, remote));
        self
    }

    /// Adds many parts; 100,000 and more are fine.
    #[must_use]
    pub fn segments(
        mut self,
        segments: impl IntoIterator<Item = (RegionSlice, RemoteSlice)>,
    ) -> Self {
        self.spec.pairs.extend(segments);
        self
    }
}

impl<O: TwoSided> Request<O> {
    /// Adds a part of the message, in the order of its bytes.
    #[must_use]
    pub fn local(mut self, local: RegionSlice) -> Self {
        self.spec.locals.push(local);
        self
    }

    /// Adds many parts of the message. A receive has at most 1024 after merging.
    #[must_use]
    pub fn locals(mut self, locals: impl IntoIterator<Item = RegionSlice>) -> Self {
        self.spec.locals.extend(locals);
        self
    }
}

impl<O: Operation> Request<O> {
    /// Sets the time after which an incomplete transfer fails, counted from each post. Without it there is no limit; a
    /// peer without progress is given up after `peer_timeout_ms`. A write or a send that has begun is over once the
    /// peer confirms that nothing of it lands or is delivered any more; while no rail reaches the peer, that is when
    /// the peer is given up (`peer_timeout_ms`) at the latest.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.spec.timeout = Some(timeout);
        self
    }

    /// Sets a callback that is called once for each post, when that is over, so that no polling is needed. The
    /// [`crate::Transfer`] still has to be kept or detached. [`OnEnd`] describes on which thread it is called, and what
    /// may be done there.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let (told, heard) = std::sync::mpsc::channel();
    /// let write = Request::write(&peer).segment(local.all(), remote.all());
    /// let write = write.on_end(move |ended| drop(told.send(ended.clone())));
    /// engine.post(write)?.detach();
    /// assert_eq!(heard.recv_timeout(soon)??.bytes, 4096);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_end<F>(self, tell: F) -> Self
    where
        F: Fn(&Result<Outcome, TransferError>) + std::marker::Send + Sync + 'static,
    {
        self.tell(Arc::new(Closure(tell)), 0)
    }

    /// Like [`Self::on_end`], for one target of many requests, which distinguishes them by the token: nothing is
    /// allocated for a request.
    #[must_use]
    pub fn tell(mut self, target: Arc<dyn OnEnd>, token: u64) -> Self {
        self.spec.listener = Some(EndListener { target: Users::new(target), token });
        self
    }

    fn new(peer: &Peer, kind: OpKind) -> Self {
        let spec = Spec {
            peer: peer.clone(),
            kind,
            pairs: Vec::new(),
            locals: Vec::new(),
            notification: None,
            timeout: None,
            listener: None,
        };
        Self { spec, operation: PhantomData }
    }
}

impl Spec {
    /// Whether any part is in a device's memory, here or at the peer.
    pub(crate) fn touches_device(&self) -> bool {
        let locals = self.locals.iter().chain(self.pairs.iter().map(|(local, _)| local));
        self.pairs.iter().any(|(_, remote)| remote.region.is_on_device())
            || locals.into_iter().any(|local| local.region.memory.device().is_some())
    }
}

impl Prepared {
    /// Checks a request of this engine, chooses its path and cuts it into chunks.
    pub(crate) fn new(engine: &Arc<EngineShared>, mut request: Spec) -> Result<Self, PostError> {
        if engine.is_forked() {
            return Err(PostError::Forked);
        }
        if engine.is_closed() {
            return Err(PostError::Closed);
        }
        let peer = request.peer.shared.clone();
        if !engine.is_own(&peer) {
            return Err(PostError::ForeignPeer { peer: request.peer.name().to_owned() });
        }
        let Spec { kind, pairs, locals, .. } = &request;
        let asked = PathRequest { kind: *kind, peer: &peer, pairs, locals };
        let known = peer.beside.path_plans.rails_between(asked.near(), asked.far());
        let (path, copies) = match known {
            Some(path) => (path.clone(), None),
            None => choose(engine, &asked),
        };
        let limits = engine.settings.request_limits();
        let notification = request.notification.take();
        limits.check_notification(notification.as_deref().unwrap_or_default())?;
        let touches_device = request.touches_device();
        let chunk_bytes = match touches_device {
            true => limits.gpu_chunk_bytes,
            false => limits.chunk_bytes,
        };
        let mut regions = RegionList::default();
        let segments = match request.kind {
            OpKind::Write | OpKind::Read => request.pair_segments(&mut regions)?,
            OpKind::Send { .. } | OpKind::Receive { .. } => request.local_segments(&mut regions)?,
        };
        let plan = Plan::for_rails(segments, chunk_bytes, peer.layout.rails())?;
        if matches!(request.kind, OpKind::Receive { .. })
            && plan.segments().len() > MAX_MESSAGE_PIECES
        {
            let got = plan.segments().len();
            return Err(PostError::TooManySegments { got, limit: MAX_MESSAGE_PIECES });
        }
        let regions = regions.into_regions();
        Ok(Self {
            near: match engine.near.is_empty() {
                true => 0,
                false => engine.near.of_pairs(&peer, &regions),
            },
            peer,
            kind: request.kind,
            plan,
            regions,
            notification,
            path,
            copies,
            touches_device,
            timeout: request.timeout,
            listener: request.listener,
        })
    }
}

impl Spec {
    fn pair_segments(&self, regions: &mut RegionList) -> Result<Segments, PostError> {
        let mut segments = Segments::with_capacity(self.pairs.len());
        for (index, (local, remote)) in self.pairs.iter().enumerate() {
            self.check_own(index, local)?;
            if local.len != remote.len {
                let (local, remote) = (local.len, remote.len);
                return Err(PostError::Lengths { index, local, remote });
            }
            if remote.region.instance != self.peer.shared.instance() {
                let peer = self.peer.name().to_owned();
                return Err(PostError::WrongPeer { index, peer });
            }
            segments.push(Segment {
                local_region: regions.number(local),
                local_offset: local.offset,
                remote: remote.region.key,
                remote_offset: remote.offset,
                len: local.len,
            });
        }
        Ok(segments)
    }

    /// Makes segments of the local slices, one after the other. The remote side is known only after the match, so it is
    /// given as one contiguous range.
    fn local_segments(&self, regions: &mut RegionList) -> Result<Segments, PostError> {
        let mut at = 0;
        let mut segments = Segments::with_capacity(self.locals.len());
        for (index, local) in self.locals.iter().enumerate() {
            self.check_own(index, local)?;
            segments.push(Segment {
                local_region: regions.number(local),
                local_offset: local.offset,
                remote: local.region.key,
                remote_offset: at,
                len: local.len,
            });
            at += local.len;
        }
        Ok(segments)
    }

    /// Checks that the slice is of this engine's memory: received bytes land by the key of a region, and another
    /// engine's key leads nowhere here.
    fn check_own(&self, index: usize, local: &RegionSlice) -> Result<(), PostError> {
        let (owner, engine) = (local.region.owner, self.peer.shared.engine);
        if owner == engine || owner == NOBODY && self.kind.sends() {
            return Ok(());
        }
        let owner = Some(owner).filter(|owner| *owner != NOBODY);
        let region = match owner {
            Some(_) => {
                format!("slot {} ({} bytes)", local.region.key.slot, local.region.memory.len())
            }
            None => format!("a region of {} bytes", local.region.memory.len()),
        };
        Err(PostError::ForeignRegion { index, region, owner, engine })
    }
}
