//! Asking a peer something once, and waiting for its answer where that is allowed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_proto::Time;
use polyrail_proto::message::Message;
use polyrail_sys::threads::monotonic_ns;

use crate::base::driving::is_driving;
use crate::engine::op::Purpose;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;

/// Asks, unless the peer is gone; says whether it asked.
pub(crate) fn ask(engine: &Arc<EngineShared>, peer: &Arc<PeerShared>, question: &Message) -> bool {
    let mut tx = peer.tx();
    // With the lock held: whoever loses a peer ends what it was asked after that.
    if peer.is_gone() {
        return false;
    }
    tx.tell(Time(monotonic_ns()), question, Purpose::Tell);
    drop(tx);
    engine.send_soon(peer);
    true
}

/// Waits for the answer, or until the peer is gone or has had its time (`limit`, and the time that it
/// has to connect). A callback and whoever moves
/// data don't wait, for the answer might wait for them. Says whether it may wait.
pub(crate) fn wait_for_answer(
    engine: &Arc<EngineShared>,
    peer: &PeerShared,
    limit: Duration,
    is_answered: impl Fn() -> bool,
    sleep: impl Fn(Duration),
) -> bool {
    let may_wait = !is_driving();
    if may_wait {
        let until = Instant::now() + limit.min(engine.settings.connect_timeout);
        engine.wait_until(Some(until), || is_answered() || peer.is_gone(), sleep);
    }
    may_wait
}
