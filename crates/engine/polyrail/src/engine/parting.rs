//! Ends of peers: by the user, with this engine, or because they are lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::life::{Action, PeerEvent};
use polyrail_proto::message::Message;
use polyrail_proto::reason::LostReason;
use polyrail_proto::{Failure, FlowIndex, Time};
use polyrail_sys::threads::monotonic_ns;

use crate::base::callback;
use crate::base::driving::is_driving;
use crate::engine::control_handle::ControlCommand;
use crate::engine::finish::drain_tx;
use crate::engine::peer::PeerShared;
use crate::engine::peer_handle::Peer;
use crate::engine::proxy_handle::ProxyCommand;
use crate::engine::state::EngineShared;
use crate::engine::totals::Totals;
use crate::memory::tickets::wait_all;

/// Maximum time for which a closing engine tries to tell its peers.
pub(crate) const FAREWELL: Duration = Duration::from_millis(1000);

impl EngineShared {
    /// Ends all transfers with a peer, tells the peer, and keeps it from coming back by itself.
    pub(crate) fn remove_peer(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        if self.is_forked() {
            return;
        }
        if self.peer(peer.instance()).is_none_or(|known| Arc::ptr_eq(&known, peer)) {
            // Before the peer ends, so that a hello that is read meanwhile finds it removed.
            let mut parted = self.parted();
            let parting = parted.entry(peer.instance());
            (parting.state, _) = parting.state.after(PeerEvent::Remove);
        }
        if callback::is_inside() || is_driving() {
            // Nothing else moves here meanwhile, so this thread must not wait. The control thread ends the peer.
            if self.begin_bye(peer, PeerEvent::Remove) {
                self.leaving().push((peer.clone(), Instant::now() + FAREWELL));
                return self.control.start_ticking();
            }
        } else {
            self.say_bye(std::slice::from_ref(peer), PeerEvent::Remove);
        }
        self.lose_peer(peer, PeerEvent::Told, LostReason::Removed);
    }

    /// Says goodbye to a peer. Returns whether that is possible. The goodbye has been sent when nothing is under way
    /// any more. `event`: the cause.
    pub(crate) fn begin_bye(self: &Arc<Self>, peer: &Arc<PeerShared>, event: PeerEvent) -> bool {
        let action = peer.life.standing.happens(event);
        let is_reachable = peer.flows_up() > 0 && !peer.is_gone();
        if action != Action::SayBye {
            return is_reachable;
        }
        if is_reachable {
            peer.tx().tell(Time(monotonic_ns()), &Message::Bye);
            self.announce(peer);
        }
        let has_arrivals = peer.has_arrivals() && !peer.is_gone();
        if has_arrivals {
            // The peer has connected to this engine, which may have nothing up towards it.
            let says_bye =
                !is_reachable && peer.card.capabilities.contains(Capabilities::BYE_TO_SENDER);
            self.settle(peer, says_bye);
        }
        is_reachable || has_arrivals
    }

    /// Acknowledges what has landed: a user who saw it land may end this engine at once, and its sender must know as
    /// well.
    fn settle(&self, peer: &Arc<PeerShared>, says_bye: bool) {
        peer.links.unsettled.store(self.proxies.all.len(), Ordering::Release);
        for proxy in &self.proxies.all {
            proxy.command(ProxyCommand::Settle { peer: peer.clone(), says_bye });
        }
    }

    /// Handles a peer's goodbye and its reason, if any.
    pub(crate) fn hear_bye(&self, peer: &Arc<PeerShared>, says: Option<String>) {
        // No acknowledgement may leave before all copies here have stopped touching its regions.
        let copies = self.copying.imports.end_all(peer.instance());
        peer.rx().ending.extend(copies);
        self.control.command(ControlCommand::PeerLeft { peer: peer.clone(), says });
    }

    pub(crate) fn say_bye(self: &Arc<Self>, peers: &[Arc<PeerShared>], event: PeerEvent) {
        let told: Vec<_> = peers.iter().filter(|peer| self.begin_bye(peer, event)).collect();
        let until = Instant::now() + FAREWELL;
        while told.iter().any(|peer| peer.is_busy()) && Instant::now() < until {
            if !self.help() {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    /// Ends peers whose goodbye has been sent or has timed out. Returns whether some are left.
    pub(crate) fn end_leaving(self: &Arc<Self>) -> bool {
        let now = Instant::now();
        let over =
            |(peer, until): &mut (Arc<PeerShared>, Instant)| now >= *until || !peer.is_busy();
        let ended: Vec<_> = self.leaving().extract_if(.., over).collect();
        for (peer, _) in ended {
            self.lose_peer(&peer, PeerEvent::Told, LostReason::Removed);
        }
        !self.leaving().is_empty()
    }

    /// Applies an event after which the peer is gone, unless it has come back meanwhile. Ends all its operations and
    /// closes its flows. Returns whether the peer is gone.
    pub(crate) fn lose_peer(
        self: &Arc<Self>,
        peer: &Arc<PeerShared>,
        event: PeerEvent,
        why: LostReason,
    ) -> bool {
        if !peer.set_gone(event, why) {
            return peer.is_gone();
        }
        tracing::info!(target: "polyrail::peer", peer = peer.name(), why = %peer.lost_reason(), "gone");
        peer.beside.sharing.stop_waiting();
        // A hello that is just being read may still be noted there. Nothing came of it either.
        let is_unused = peer.life.is_unused.load(Ordering::Acquire);
        let heard = peer.life.standing.heard_session().filter(|_| !is_unused);
        self.parted().end_session(peer.instance(), peer.life.standing.state(), heard);
        // Before the peer leaves the list: a thread that sees it gone finds the inbox within its bound.
        self.arrived.inbox.peer_left(&peer.account.inbox_share);
        let moved = Totals::of(peer);
        let mut peers = self.peers.list.write();
        peers.retain(|other| !Arc::ptr_eq(other, peer));
        self.peers.past.lock().add(&moved);
        drop(peers);
        // The user can't accept it any more.
        self.arrived.joined.change(|queue| queue.retain(|other| !Arc::ptr_eq(&other.shared, peer)));
        self.resume_reading(&self.peers());
        self.end_posted(peer);
        self.copying.host_copies.stop_all_of(peer.instance(), Failure::PeerLost);
        wait_all(&self.copying.imports.end_all(peer.instance()));
        // The handler of its goodbye may have ended those already. The peer takes the end of the connections as proof
        // that nothing here touches its memory.
        let ending = peer.rx().ending.clone();
        wait_all(&ending);
        let mut ends = self.ends();
        let mut tx = peer.tx();
        tx.lose();
        drain_tx(&mut tx, &mut ends);
        let is_held = self.host.is_some() && tx.sender.is_busy();
        drop(tx);
        if is_held {
            self.peers.held.lock().push(peer.clone());
            self.control.start_ticking();
        }
        self.end_awaited(peer, |_| true, Failure::PeerLost, &mut ends);
        ends.tell();
        for proxy in &self.proxies.all {
            proxy.command(ProxyCommand::DropPeer { peer: peer.clone() });
        }
        if let Some(observer) = &self.observer {
            let shared = peer.clone();
            let tell = || observer.lost(&Peer { shared }, &peer.lost_reason());
            self.arrived.callbacks.call("observer", tell);
        }
        peer.life.ending.come();
        self.help();
        true
    }

    /// Ends the operations of gone peers that these proxies still hold. The proxies are inside a plugin that does not
    /// return. They find their flows down if it does. Returns whether other proxies still hold some.
    pub(crate) fn end_held(self: &Arc<Self>, proxies: &[usize]) -> bool {
        let held = std::mem::take(&mut *self.peers.held.lock());
        held.iter()
            .for_each(|peer| proxies.iter().for_each(|proxy| self.end_flows_of(peer, *proxy)));
        let mut left = self.peers.held.lock();
        left.extend(held.into_iter().filter(|peer| peer.tx().sender.is_busy()));
        !left.is_empty()
    }

    fn end_flows_of(self: &Arc<Self>, peer: &PeerShared, proxy: usize) {
        let mut ends = self.ends();
        let mut tx = peer.tx();
        for (flow, slot) in (0..).map(FlowIndex).zip(&peer.links.flows) {
            if slot.proxy == proxy {
                tx.sender.handle_flow_down(flow);
            }
        }
        drain_tx(&mut tx, &mut ends);
        drop(tx);
        ends.tell();
    }

    fn leaving(&self) -> MutexGuard<'_, Vec<(Arc<PeerShared>, Instant)>> {
        self.peers.leaving.lock()
    }
}
