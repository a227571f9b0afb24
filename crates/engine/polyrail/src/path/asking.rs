//! Questions to a peer: each is asked once, and the caller waits for the answer where that is allowed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_proto::Time;
use polyrail_proto::message::Message;
use polyrail_sys::threads::monotonic_ns;

use crate::base::driving::is_driving;
use crate::engine::control_handle::ControlCommand;
use crate::engine::peer::{Locked, PeerShared, TxSide};
use crate::engine::state::EngineShared;

/// Sends the question, unless the peer is gone; returns whether it is sent. The poster waits for no lock of the peer:
/// where another thread holds it, perhaps without a CPU, the control thread sends the question.
pub(crate) fn ask(engine: &Arc<EngineShared>, peer: &Arc<PeerShared>, question: Message) -> bool {
    match peer.try_tx() {
        Some(tx) => ask_holding(engine, peer, tx, &question),
        None => {
            engine.control.command(ControlCommand::Ask { peer: peer.clone(), question });
            !peer.is_gone()
        }
    }
}

/// Same as [`ask`], but waits for the lock.
pub(crate) fn ask_patiently(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    question: &Message,
) {
    ask_holding(engine, peer, peer.tx(), question);
}

fn ask_holding(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    mut tx: Locked<'_, TxSide>,
    question: &Message,
) -> bool {
    // With the lock held: losing a peer ends the questions that were sent before.
    if peer.is_gone() {
        return false;
    }
    tx.tell(Time(monotonic_ns()), question);
    drop(tx);
    engine.announce(peer);
    true
}

/// Waits for the answer, or until the peer is gone or its time is over (the smaller of `limit` and the connect
/// timeout). A callback and a thread that moves data don't wait, since the answer might wait for them. Returns whether
/// it may wait.
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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use polyrail_config::Config;

    use super::*;
    use crate::api::engine::Engine;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn who_asks_waits_for_no_lock_of_the_peer_and_the_peer_is_asked() {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let engine = || Engine::builder().config(config.clone()).build().unwrap();
        let (a, b) = (engine(), engine());
        let to_b = a.add_peer(&b.metadata()).unwrap();
        let to_a = b.add_peer(&a.metadata()).unwrap();
        let (asks, asked) = mpsc::channel();
        let held = to_b.shared.tx();
        std::thread::scope(|scope| {
            let (a, to_b) = (&a, &to_b);
            scope.spawn(move || {
                asks.send(ask(a.shared(), &to_b.shared, Message::Bye)).unwrap();
            });
            let is_asked = asked.recv_timeout(Duration::from_secs(10));
            drop(held);
            assert_eq!(is_asked, Ok(true), "it waits for the lock");
        });
        // The question is a goodbye: b learns from it that a has closed.
        let until = Instant::now() + LONG;
        while to_a.lost().is_none() {
            assert!(Instant::now() < until, "{}", b.dump());
            std::thread::yield_now();
        }
    }
}
