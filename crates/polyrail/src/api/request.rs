//! What to move: built once, checked once, posted any number of times.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use polyrail_proto::message::MAX_MESSAGE_PIECES;
use polyrail_proto::{Plan, Segment};

use crate::api::engine::Peer;
use crate::api::error::PostError;
use crate::api::observer::{Listener, OnEnd};
use crate::device::peer_copy::Copies;
use crate::engine::path::TransferPath;
use crate::engine::prepared::{Kind, Prepared, RequestLimits};
use crate::memory::region::{RegionSlice, RemoteSlice};
use crate::memory::region_list::RegionList;

/// A transfer to be prepared: an operation, a peer, and segments.
///
/// ```
/// # use polyrail::{Request, Peer, RegionSlice, RemoteSlice};
/// # fn example(peer: &Peer, blocks: Vec<(RegionSlice, RemoteSlice)>) -> Request {
/// Request::write(peer).segments(blocks).notification(b"layer 7 is there".to_vec())
/// # }
/// ```
#[derive(Clone)]
pub struct Request {
    peer: Peer,
    kind: Kind,
    pairs: Vec<(RegionSlice, RemoteSlice)>,
    locals: Vec<RegionSlice>,
    notification: Option<Vec<u8>>,
    timeout: Option<Duration>,
    listener: Option<Listener>,
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, parts) = (self.kind.name(), self.pairs.len() + self.locals.len());
        write!(f, "Request({kind}, {parts} parts, {:?})", self.peer)
    }
}

impl Request {
    /// Bytes from here into the peer's memory.
    pub fn write(peer: &Peer) -> Self {
        Self::new(peer, Kind::Write)
    }

    /// Bytes from the peer's memory to here.
    pub fn read(peer: &Peer) -> Self {
        Self::new(peer, Kind::Read)
    }

    /// A message that fills the peer's oldest receive of this tag. It waits for that receive.
    pub fn send(peer: &Peer, tag: u64) -> Self {
        Self::new(peer, Kind::Send { tag })
    }

    /// Room for a message of this tag from the peer.
    pub fn recv(peer: &Peer, tag: u64) -> Self {
        Self::new(peer, Kind::Receive { tag })
    }

    /// A part of a write or read; both slices have the same length. Segments that continue each
    /// other on both sides are merged.
    #[must_use]
    pub fn segment(mut self, local: RegionSlice, remote: RemoteSlice) -> Self {
        self.pairs.push((local, remote));
        self
    }

    /// Many parts of a write or read; 100,000 and more are fine.
    #[must_use]
    pub fn segments(
        mut self,
        segments: impl IntoIterator<Item = (RegionSlice, RemoteSlice)>,
    ) -> Self {
        self.pairs.extend(segments);
        self
    }

    /// A part of a send or receive, in the order of the message's bytes.
    #[must_use]
    pub fn local(mut self, local: RegionSlice) -> Self {
        self.locals.push(local);
        self
    }

    /// With a write: bytes that the peer gets by [`crate::Engine::take_notifications`] once all
    /// bytes of the write are in place. At most `notification_bytes`.
    #[must_use]
    pub fn notification(mut self, bytes: Vec<u8>) -> Self {
        self.notification = Some(bytes);
        self
    }

    /// The transfer fails if it is not complete after this time. Without it, `transfer_timeout_ms`
    /// holds. A write or a send that has begun is over once the peer confirms that nothing of it
    /// lands any more; while no rail reaches the peer, that is when the peer is given up
    /// (`peer_timeout_ms`) at the latest.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Tells `target` when a post of it is over, with this token; so nobody has to ask. The
    /// [`crate::Transfer`] still has to be kept or detached.
    #[must_use]
    pub fn on_end(mut self, target: Arc<dyn OnEnd>, token: u64) -> Self {
        self.listener = Some(Listener { target, token });
        self
    }

    /// Whether any part of it is in a device's memory, here or at the peer.
    pub(crate) fn touches_device(&self) -> bool {
        let locals = self.locals.iter().chain(self.pairs.iter().map(|(local, _)| local));
        self.pairs.iter().any(|(_, remote)| remote.region.is_on_device())
            || locals.into_iter().any(|local| local.region.memory.device().is_some())
    }

    pub(crate) fn parts(&self) -> (Kind, &Peer, &[(RegionSlice, RemoteSlice)]) {
        (self.kind, &self.peer, &self.pairs)
    }

    fn new(peer: &Peer, kind: Kind) -> Self {
        Self {
            peer: peer.clone(),
            kind,
            pairs: Vec::new(),
            locals: Vec::new(),
            notification: None,
            timeout: None,
            listener: None,
        }
    }
}

impl Prepared {
    pub(crate) fn new(
        mut request: Request,
        (path, copies): (TransferPath, Option<Copies>),
        limits: &RequestLimits,
    ) -> Result<Self, PostError> {
        request.check_shape()?;
        let notify = request.notification.is_some();
        let notification = request.notification.take().unwrap_or_default();
        if notification.len() as u64 > limits.notification_bytes {
            let (got, limit) = (notification.len(), limits.notification_bytes);
            return Err(PostError::NotificationTooLong { got, limit });
        }
        let touches_device = request.touches_device();
        let chunk_bytes = match touches_device {
            true => limits.gpu_chunk_bytes,
            false => limits.chunk_bytes,
        };
        let mut regions = RegionList::default();
        let segments = match request.kind {
            Kind::Write | Kind::Read => request.pair_segments(&mut regions)?,
            Kind::Send { .. } | Kind::Receive { .. } => request.local_segments(&mut regions),
        };
        let plan = Plan::for_rails(segments, chunk_bytes, request.peer.shared.layout.rails())?;
        if matches!(request.kind, Kind::Receive { .. })
            && plan.segments().len() > MAX_MESSAGE_PIECES
        {
            let got = plan.segments().len();
            return Err(PostError::TooManySegments { got, limit: MAX_MESSAGE_PIECES });
        }
        Ok(Self {
            peer: request.peer.shared.clone(),
            kind: request.kind,
            plan,
            regions: regions.into_vec(),
            notify,
            notification,
            path,
            copies,
            touches_device,
            timeout: request.timeout.or(limits.transfer_timeout),
            listener: request.listener,
        })
    }
}

impl Request {
    fn check_shape(&self) -> Result<(), PostError> {
        let operation = self.kind.name();
        match self.kind {
            Kind::Write | Kind::Read if !self.locals.is_empty() => {
                Err(PostError::Shape { operation, takes: "segments, not single slices" })
            }
            Kind::Send { .. } | Kind::Receive { .. } if !self.pairs.is_empty() => {
                Err(PostError::Shape { operation, takes: "local slices, not segments" })
            }
            Kind::Read | Kind::Send { .. } | Kind::Receive { .. }
                if self.notification.is_some() =>
            {
                Err(PostError::Shape { operation, takes: "no notification" })
            }
            _ => Ok(()),
        }
    }

    fn pair_segments(&self, regions: &mut RegionList) -> Result<Vec<Segment>, PostError> {
        let mut segments = Vec::with_capacity(self.pairs.len());
        for (index, (local, remote)) in self.pairs.iter().enumerate() {
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

    /// Local slices one after the other; the remote side is filled in when the match is known, so
    /// it is given as one stretch.
    fn local_segments(&self, regions: &mut RegionList) -> Vec<Segment> {
        let mut at = 0;
        let mut segments = Vec::with_capacity(self.locals.len());
        for local in &self.locals {
            segments.push(Segment {
                local_region: regions.number(local),
                local_offset: local.offset,
                remote: local.region.key,
                remote_offset: at,
                len: local.len,
            });
            at += local.len;
        }
        segments
    }
}
