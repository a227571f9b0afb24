//! Interfaces of an engine to the layers above it, which pass their implementations when it is built.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_proto::RegionKey;
use polyrail_proto::message::CopyLeave;
use polyrail_proto::placement::Placement;

use super::EngineShared;
use crate::engine::peer::{PeerShared, Prepared};
use crate::engine::proxy_handle::ProxyHandle;
use crate::memory::region_core::RegionCore;
use crate::wake::doorbell::Doorbell;

/// Moves data with the caller's own thread. Called by a post or a call that waits, never per chunk.
pub(crate) trait Drive: Send + Sync {
    /// Sends all there is, unless another thread drives the proxy at each of this many tries. Returns whether all is
    /// sent. Where callers drive, that other thread will send it. `now` is the machine's monotonic clock.
    fn send_now(&self, engine: &Arc<EngineShared>, now: u64, tries: u32) -> bool;

    /// Sends what callers left, on a thread that can wait for their locks.
    fn send_left(&self, engine: &Arc<EngineShared>);

    /// Drives for one pass after a look for events, unless another thread drives. Returns whether anything moved.
    fn try_poll(&self, engine: &Arc<EngineShared>) -> bool;

    /// Drives until `stop` returns true, or the time is over.
    fn drive(
        &self,
        engine: &Arc<EngineShared>,
        spin: Duration,
        until: Option<Instant>,
        stop: &dyn Fn() -> bool,
    );

    /// Runs the remaining commands after the engine has closed, and completes the end-to-end copies of devices.
    fn finish(&self, engine: &Arc<EngineShared>);
}

/// Proxies of an engine, and the flows that they own.
pub(crate) struct ProxySet {
    pub(crate) all: Vec<Arc<ProxyHandle>>,
    /// The same in the same order, to be driven.
    pub(crate) driven: Vec<Arc<dyn Drive>>,
    /// Placement on those that send, and on those that receive.
    pub(crate) tx: Placement,
    pub(crate) rx: Placement,
}

/// Paths of messages between the processes of a host.
pub(crate) trait MessagePaths: Send + Sync {
    /// Permission for the peer to copy into a receive.
    fn leave(&self, engine: &EngineShared, peer: &Arc<PeerShared>, receive: &Prepared)
    -> CopyLeave;

    /// The peer's region, to which CPUs can copy, or the reason why they can't. `None` if that is unknown and the peer
    /// was asked. Does not wait.
    fn region(
        &self,
        engine: &Arc<EngineShared>,
        peer: &Arc<PeerShared>,
        key: RegionKey,
    ) -> Result<Option<Arc<RegionCore>>, Cow<'static, str>>;

    /// Asks the peer whether it opens memory of this process, unless it was asked before. Does not wait.
    fn ask_to_share(&self, engine: &Arc<EngineShared>, peer: &Arc<PeerShared>);
}

impl ProxySet {
    /// The doorbells of all proxies, in order.
    pub(crate) fn doorbells(&self) -> Vec<Arc<Doorbell>> {
        self.all.iter().map(|proxy| proxy.doorbell.clone()).collect()
    }
}
