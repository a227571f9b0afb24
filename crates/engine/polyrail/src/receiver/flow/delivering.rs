//! Delivery of complete transfers to their users.

use super::RxFlow;
use crate::device::connection::Connection;
use crate::engine::pass::Pass;
use crate::engine::peer::Down;

impl RxFlow {
    /// Delivers the transfers that came, then looks ahead. `goes_on`: another call follows at once.
    pub(super) fn deliver(
        &mut self,
        connection: &Connection,
        goes_on: bool,
        pass: &mut Pass<'_>,
    ) -> Result<(), Down> {
        let mut result = Ok(());
        while !self.delivery.is_empty() {
            let peer = self.peer.clone();
            let (mut rx, delivered) = pass.deliver(&peer, &mut self.delivery);
            result = result.and(delivered);
            // A delivered transfer may have ended a read or receive.
            rx.take(&mut self.delivery);
            if self.delivery.is_empty() {
                self.look_ahead(connection, goes_on && result.is_ok(), &mut rx, pass.now);
            }
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::{Duration, Instant};

    use polyrail_config::Config;

    use crate::api::engine::Engine;
    use crate::api::observer::Observer;
    use crate::api::transfer::Transfer;
    use crate::engine::peer::PeerShared;
    use crate::engine::peer_handle::Peer;
    use polyrail_proto::error::TransferError;

    const LONG: Duration = Duration::from_secs(30);

    /// An observer that keeps the notification `held` until it may go on.
    struct Holding {
        has_begun: AtomicBool,
        is_delivered: AtomicBool,
        go_on: Mutex<mpsc::Receiver<()>>,
    }

    impl Observer for Holding {
        fn notified(&self, _peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
            if data == b"held" {
                self.has_begun.store(true, Ordering::SeqCst);
                self.go_on.lock().unwrap().recv_timeout(LONG).unwrap();
                self.is_delivered.store(true, Ordering::SeqCst);
            }
            None
        }
    }

    /// Engine a has notified b, and the proxy of b that reads the first rail is inside the observer. So a gives up that
    /// rail after a while, and uses the other one.
    struct Scene {
        // The first field to be dropped, as engines wait for their observers.
        go_on: mpsc::Sender<()>,
        _a: Engine,
        _b: Engine,
        observer: Arc<Holding>,
        /// Engine a, as b knows it.
        peer: Arc<PeerShared>,
        held: Transfer,
    }

    impl Scene {
        fn new() -> Self {
            let settings = [
                ("rails", "127.0.0.1,127.0.0.2"),
                ("channels", "2"),
                ("proxies", "0,2"),
                ("path", "tcp"),
                ("rail_stall_ms", "100"),
            ];
            let config = settings.iter().fold(Config::builder(), |builder, (name, value)| {
                builder.set(name, value).unwrap()
            });
            let config = config.build().unwrap();
            let (go_on, waits) = mpsc::channel();
            let observer = Arc::new(Holding {
                has_begun: AtomicBool::new(false),
                is_delivered: AtomicBool::new(false),
                go_on: Mutex::new(waits),
            });
            let builder = Engine::builder().config(config.clone());
            let a = builder.build().unwrap();
            let b = Engine::builder().config(config).observer(observer.clone()).build().unwrap();
            let to_b = a.add_peer(&b.metadata()).unwrap();
            until(|| to_b.flows().are_all_up());
            let held = a.notify(&to_b, b"held").unwrap();
            until(|| observer.has_begun.load(Ordering::SeqCst));
            let peer = b.peers()[0].shared.clone();
            Self { go_on, _a: a, _b: b, observer, peer, held }
        }

        /// Checks that an acknowledgement waits for the observer, then lets the observer go on.
        fn let_the_other_rail_overtake(&self) {
            until(|| self.held.is_over() || !self.peer.rx().is_quiet());
            assert!(!self.held.is_over(), "{:?} before it is delivered", self.held.try_wait());
            self.go_on.send(()).unwrap();
        }
    }

    fn until(is_so: impl Fn() -> bool) {
        let until = Instant::now() + LONG;
        while !is_so() {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_cancel_is_confirmed_once_a_notification_that_came_before_it_is_delivered() {
        let scene = Scene::new();
        scene.held.cancel();
        scene.let_the_other_rail_overtake();
        assert_eq!(scene.held.wait(LONG), Some(Err(TransferError::Cancelled)));
        assert!(scene.observer.is_delivered.load(Ordering::SeqCst));
    }

    #[test]
    fn a_second_copy_is_acknowledged_once_the_notification_of_the_first_is_delivered() {
        let scene = Scene::new();
        scene.let_the_other_rail_overtake();
        scene.held.wait(LONG).expect("it is over").unwrap();
        assert!(scene.observer.is_delivered.load(Ordering::SeqCst));
    }
}
