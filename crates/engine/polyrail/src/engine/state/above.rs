//! What an engine asks of the layers above it: they are given to it when it is built.

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

/// Moves data with the caller's own thread. A post or a call that waits asks for it, never a chunk.
pub(crate) trait Drive: Send + Sync {
    /// Sends what there is to send, unless another thread drives the proxy at each of so many tries. Says whether that
    /// is all. Where callers drive, that other thread will send it. `now` is the machine's monotonic clock.
    fn send_now(&self, engine: &Arc<EngineShared>, now: u64, tries: u32) -> bool;

    /// Sends what callers left, by a thread that can wait for their locks.
    fn send_left(&self, engine: &Arc<EngineShared>);

    /// Drives for one pass after a look for events, unless somebody does. Says whether anything
    /// moved.
    fn try_poll(&self, engine: &Arc<EngineShared>) -> bool;

    /// Drives until `stop` says so, or the time is over.
    fn drive(
        &self,
        engine: &Arc<EngineShared>,
        spin: Duration,
        until: Option<Instant>,
        stop: &dyn Fn() -> bool,
    );

    /// When the engine has closed: obeys the commands that are left, and sees what devices still copy
    /// from end to end through.
    fn finish(&self, engine: &Arc<EngineShared>);
}

/// Proxies of an engine, and which flows they own.
pub(crate) struct ProxySet {
    pub(crate) all: Vec<Arc<ProxyHandle>>,
    /// The same in the same order, to be driven.
    pub(crate) driven: Vec<Arc<dyn Drive>>,
    /// Those that send, and those that receive.
    pub(crate) tx: Placement,
    pub(crate) rx: Placement,
}

/// The ways of messages between the processes of a host.
pub(crate) trait MessagePaths: Send + Sync {
    /// Whether the peer may copy into a receive.
    fn leave(&self, engine: &EngineShared, peer: &Arc<PeerShared>, receive: &Prepared)
    -> CopyLeave;

    /// The peer's region, as CPUs can copy there, or why they can't; `None` if that is not known and the
    /// peer was asked. Waits for nothing.
    fn region(
        &self,
        engine: &Arc<EngineShared>,
        peer: &Arc<PeerShared>,
        key: RegionKey,
    ) -> Result<Option<Arc<RegionCore>>, Cow<'static, str>>;

    /// The peer is asked whether it opens memory of this process, if it was not. Waits for nothing.
    fn ask_to_share(&self, engine: &Arc<EngineShared>, peer: &Arc<PeerShared>);
}

impl ProxySet {
    /// The doorbells of all proxies, in order.
    pub(crate) fn doorbells(&self) -> Vec<Arc<Doorbell>> {
        self.all.iter().map(|proxy| proxy.doorbell.clone()).collect()
    }
}
