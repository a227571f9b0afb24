//! Acknowledgements of arrivals: when they leave, and how all of them leave before connections end.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_proto::Time;
use polyrail_proto::wire::WireOp;

use super::Core;
use crate::engine::pass::Pass;
use crate::engine::peer::{Arrival, Delivery, Locked, PeerShared, RxSide};
use crate::proxy::Proxy;
use crate::proxy::flow::{Flow, Flushed};
use crate::receiver::flow::RxFlow;

/// A peer whose connections are about to end: see
/// [`ProxyCommand::Settle`](crate::engine::proxy_handle::ProxyCommand::Settle).
pub(super) struct Settling {
    pub(super) peer: Arc<PeerShared>,
    pub(super) says_bye: bool,
}

impl Core {
    /// Whether acknowledgements may leave with this pass, if there are any.
    pub(in crate::proxy) fn may_acknowledge(&mut self, pass: &Pass<'_>) -> bool {
        if !pass.engine.settings.caller_driven {
            return true;
        }
        if !self.owes_acks() || !self.settling.is_empty() {
            self.ack_hold.release();
            return true;
        }
        self.ack_hold.is_over(Time(pass.now), pass.for_caller, pass.sends)
    }

    /// Forgets flows whose acknowledgements have left with an answer. Returns whether any are owed.
    fn owes_acks(&mut self) -> bool {
        let Self { owing, flows, .. } = self;
        owing.retain(|key| flows.get(*key).is_some_and(Flow::owes_acks));
        !owing.is_empty()
    }

    /// Sends the waiting acknowledgements.
    pub(in crate::proxy) fn flush_owed(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) {
        self.settle();
        let mut still_owing = Vec::new();
        self.withholds_acks = false;
        while let Some(key) = self.owing.pop() {
            let Some(flow) = self.flows.get_mut(key) else { continue };
            let flushed = flow.flush_acks(pass);
            // That may have begun something new.
            if let Some(tx) = &flow.tx
                && let Some(outbound) = self.outbound.iter_mut().find(|it| flow.is_of(&it.peer))
            {
                outbound.left.note(tx, pass.now);
            }
            match flushed {
                Ok(Flushed::All) => {}
                Ok(Flushed::Withheld) => {
                    self.withholds_acks = true;
                    still_owing.push(key);
                }
                Ok(Flushed::Later) => still_owing.push(key),
                Err(down) => {
                    self.read_last(key, pass);
                    self.drop_flow(key, down, proxy, pass);
                }
            }
        }
        self.owing.append(&mut still_owing);
        self.note_settled();
    }

    /// Makes flows that are about to end owe all acknowledgements that their senders lack.
    fn settle(&mut self) {
        for Settling { peer, says_bye } in &self.settling {
            for (key, flow) in &mut self.flows {
                if let Some(rx) = &mut flow.rx
                    && Arc::ptr_eq(&rx.peer, peer)
                {
                    rx.settle(*says_bye);
                    if rx.owes_acks() && !self.owing.contains(&key) {
                        self.owing.push(key);
                    }
                }
            }
        }
    }

    /// Reports settled peers to the thread that ends their connections.
    fn note_settled(&mut self) {
        let Self { settling, flows, .. } = self;
        settling.retain(|Settling { peer, .. }| {
            let mut of_peer = flows.iter().filter(|(_, flow)| flow.is_of(peer));
            let stays = !of_peer.all(|(_, flow)| flow.is_settled());
            if !stays {
                peer.links.unsettled.fetch_sub(1, Ordering::AcqRel);
            }
            stays
        });
    }

    /// Delivers copies that were finished but not yet checked, as the connection ends now. The user learns of them in
    /// any case.
    pub(super) fn collect_last(&mut self, key: usize, pass: &mut Pass<'_>) {
        if let Some(Flow { connection, rx: Some(rx), .. }) = self.flows.get_mut(key) {
            while matches!(rx.collect(connection, pass), Ok(true)) {}
        }
    }

    /// Acknowledges what has landed since the connection was settled, as far as that is allowed and the socket accepts
    /// it.
    pub(super) fn acknowledge_last(&mut self, key: usize, pass: &mut Pass<'_>) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        if let Some(rx) = &mut flow.rx {
            rx.settle(false);
            tell_why(rx);
            let _ = flow.flush_acks(pass);
        }
    }

    /// Reads the peer's last data from a broken connection.
    pub(super) fn read_last(&mut self, key: usize, pass: &mut Pass<'_>) {
        let flow = self.flows.get_mut(key).filter(|flow| flow.tx.is_some());
        if let Some(flow) = flow {
            flow.connection.readable = true;
            // A visit ends after a while, whether or not that was all.
            for _ in 0..LAST_VISITS {
                if !flow.connection.readable || !matches!(flow.read(pass), Ok(true)) {
                    break;
                }
            }
        }
    }
}

/// Number of visits to a broken connection: more than sockets can hold.
const LAST_VISITS: u32 = 64;

/// Sends the reason to a peer that is given up, where the peer can't know it.
fn tell_why(flow: &mut RxFlow) {
    if let Some(words) = flow.peer.parting_words() {
        flow.say_why(&words);
    }
}

/// Delivers the ends of transfers of flows that are gone. Returns whether there were any. Once at most `flows_left`
/// flows of a gone peer are up, no flow acknowledges a write any more. Its sender sees it as lost, so the user must
/// not learn of it.
pub(super) fn tell_last<'p>(
    peer: &'p Arc<PeerShared>,
    mut rx: Locked<'p, RxSide>,
    flows_left: u32,
    pass: &mut Pass<'_>,
) -> bool {
    let (mut delivery, mut any) = (Delivery::default(), false);
    loop {
        rx.take(&mut delivery);
        // With the lock held: after its release another flow may acknowledge what it has brought, and end.
        let is_last =
            peer.is_gone() && peer.links.rx_flows_up.load(Ordering::Acquire) <= flows_left;
        drop(rx);
        if delivery.is_empty() {
            return any;
        }
        any = true;
        let is_write = |arrival: &Arrival| match arrival {
            Arrival::Whole(landed, _) => landed.op == WireOp::Write,
            Arrival::Failed(..) => false,
        };
        delivery.arrivals.retain(|arrival| !(is_last && is_write(arrival)));
        // Protocol violations of the peer make no difference any more.
        (rx, _) = pass.deliver(peer, &mut delivery);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::{Duration, Instant};

    use polyrail_config::Config;
    use polyrail_gpu::fake::FakeDevice;
    use polyrail_gpu::{Completion, GpuError, Ticket};
    use polyrail_proto::life::PeerEvent;
    use polyrail_sys::Memory;

    use crate::api::engine::Engine;
    use crate::api::request::Request;
    use crate::api::transfer::Transfer;
    use crate::engine::peer::PeerShared;
    use crate::memory::region::Region;
    use polyrail_proto::reason::LostReason;

    const LONG: Duration = Duration::from_secs(30);

    struct Finished(AtomicU64);

    impl Completion for Finished {
        fn completed(&self) -> Result<u64, GpuError> {
            Ok(self.0.load(Ordering::Acquire))
        }
    }

    fn engine(progress: &str) -> Engine {
        let settings = [("rails", "127.0.0.1"), ("path", "tcp"), ("progress", progress)];
        let builder = settings
            .iter()
            .fold(Config::builder(), |builder, (name, value)| builder.set(name, value).unwrap());
        Engine::builder().config(builder.build().unwrap()).build().unwrap()
    }

    /// Delivers a message to b that b may not acknowledge before a copy is finished. Returns the peer as b knows it,
    /// the copy, and the message. In b only the control thread drives anything by itself, now and then.
    fn withheld(a: &Engine, b: &Engine) -> (Arc<PeerShared>, Arc<Finished>, Transfer) {
        let to_b = a.add_peer(&b.metadata()).unwrap();
        a.notify(&to_b, b"first").unwrap().detach();
        assert_eq!(b.wait_notification(LONG).expect("it comes").data, b"first");
        let peer = b.peers()[0].shared.clone();
        let finished = Arc::new(Finished(AtomicU64::new(0)));
        peer.rx().ending.push(Ticket::new(finished.clone(), 1));
        let second = a.notify(&to_b, b"second").unwrap();
        assert_eq!(b.wait_notification(LONG).expect("it comes").data, b"second");
        (peer, finished, second)
    }

    #[test]
    fn connections_end_when_acknowledgements_that_had_to_wait_have_left() {
        let (a, b) = (engine("proxy"), engine("caller"));
        let (peer, finished, second) = withheld(&a, &b);
        assert!(b.shared().begin_bye(&peer, PeerEvent::Close));
        for _ in 0..10 {
            b.progress();
        }
        assert!(peer.is_busy() && second.try_wait().is_none(), "a device still copies");

        finished.0.store(1, Ordering::Release);
        until(&b, || !peer.is_busy());
        b.close();
        second.join().unwrap();
    }

    #[test]
    fn what_landed_after_all_was_settled_is_acknowledged_too() {
        let (a, b) = (engine("proxy"), engine("caller"));
        let (peer, finished, second) = withheld(&a, &b);
        finished.0.store(1, Ordering::Release);
        lose(&b, &peer);
        second.join().unwrap();
    }

    /// A write by a to b's device memory, whose copy b holds back.
    struct Held {
        device: Arc<FakeDevice>,
        _target: Region,
        /// The peer as b knows it.
        peer: Arc<PeerShared>,
        write: Transfer,
    }

    fn held(a: &Engine, b: &Engine) -> Held {
        const BYTES: usize = 64 << 10;
        let device = FakeDevice::new(9, Duration::ZERO, 5);
        device.hold(true);
        let target = b.register(device.memory(&[0; BYTES])).unwrap();
        let source = a.register(Memory::from(vec![1; BYTES])).unwrap();
        let to_b = a.add_peer(&b.metadata()).unwrap();
        let there = a.import(&target.describe()).unwrap().all();
        let request = Request::write(&to_b).segment(source.all(), there);
        let write = a.post(request.notification(b"it is there".to_vec())).unwrap();
        until(b, || device.is_holding());
        let peer = b.peers()[0].shared.clone();
        Held { device, _target: target, peer, write }
    }

    fn until(b: &Engine, is_so: impl Fn() -> bool) {
        let until = Instant::now() + LONG;
        while !is_so() {
            b.progress();
            assert!(Instant::now() < until, "{}", b.dump());
        }
    }

    fn lose(b: &Engine, peer: &Arc<PeerShared>) {
        peer.life.standing.happens(PeerEvent::Close);
        assert!(b.shared().lose_peer(peer, PeerEvent::Told, LostReason::EngineClosed));
    }

    #[test]
    fn what_was_copied_and_not_looked_at_before_connections_end_is_acknowledged_or_not_told() {
        let (a, b) = (engine("proxy"), engine("caller"));
        let Held { device, _target, peer, write } = held(&a, &b);
        device.hold(false);
        let began = Instant::now();
        while device.copied().is_zero() {
            assert!(began.elapsed() < LONG, "nothing is copied");
            std::thread::yield_now();
        }
        lose(&b, &peer);
        let is_done = write.join().is_ok();
        assert_eq!(b.take_notifications().len(), usize::from(is_done));
    }

    #[test]
    fn what_is_copied_after_connections_have_ended_is_not_told() {
        let (a, b) = (engine("proxy"), engine("caller"));
        let Held { device, _target, peer, write } = held(&a, &b);
        lose(&b, &peer);
        write.join().unwrap_err();
        device.hold(false);
        until(&b, || !peer.rx().landings.has_orphans());
        assert_eq!(b.take_notifications().len(), 0);
    }
}
