//! How flows come and go: [`Core::drop_flow`] is what happens when a rail dies.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_proto::FlowIndex;
use polyrail_proto::life::PeerEvent;
use polyrail_secure::Keys;
use polyrail_sys::tcp;

use super::acknowledging::{Settling, tell_last};
use super::{AnyFlow, Core, Left, Outbound};
use crate::device::wire::Wire;
use crate::engine::finish::drain_tx;
use crate::engine::pass::{Down, Pass};
use crate::engine::peer::PeerShared;
use crate::engine::proxy_handle::ProxyCommand;
use crate::proxy::Proxy;
use crate::receiver::flow::RxFlow;
use crate::sender::flow::TxFlow;

impl Core {
    /// The command that is to be obeyed next, in the order in which they were given.
    pub(in crate::proxy) fn next_command(&mut self, proxy: &Proxy) -> Option<ProxyCommand> {
        // To ask is cheaper than to try.
        let pop = || if proxy.commands.is_empty() { None } else { proxy.commands.pop() };
        self.put_off.take().or_else(pop)
    }

    /// Another pass is to obey it, before all others.
    pub(in crate::proxy) fn put_off(&mut self, command: ProxyCommand) {
        self.put_off = Some(command);
    }

    pub(in crate::proxy) fn obey(
        &mut self,
        command: ProxyCommand,
        proxy: &Proxy,
        pass: &mut Pass<'_>,
    ) {
        match command {
            ProxyCommand::AddTx { peer, flow, wire, keys: Keys { sealer, opener } } => {
                if !peer.is_gone() {
                    let socket = wire.socket().clone();
                    self.tx_connected(&peer, flow, &wire, pass);
                    let tx_flow = TxFlow::new(peer.clone(), flow, wire, sealer);
                    let tx_flow = Box::new(tx_flow.with_acks(opener));
                    let key = self.flows.insert(AnyFlow::Tx(tx_flow));
                    self.outbound_of(peer, flow).push(key);
                    self.watch(key, &socket, proxy, pass);
                }
            }
            ProxyCommand::AddRx { arriving } => {
                let flow = Box::new(RxFlow::new(arriving, pass.now));
                if self.rx_connected(&flow, proxy, pass) {
                    let socket = flow.wire().socket().clone();
                    let key = self.flows.insert(AnyFlow::Rx(flow));
                    self.watch(key, &socket, proxy, pass);
                }
            }
            ProxyCommand::AddBoth { arriving } => {
                let (arriving, sealer) = RxFlow::duplex(arriving, pass.now);
                let arriving = Box::new(arriving);
                let (peer, flow) = (arriving.peer.clone(), arriving.flow);
                let wire = arriving.wire().clone();
                let socket = wire.socket().clone();
                if self.rx_connected(&arriving, proxy, pass) {
                    self.tx_connected(&peer, flow, &wire, pass);
                    let tx_flow = TxFlow::new(peer.clone(), flow, wire, sealer);
                    let key = self.flows.insert(AnyFlow::Both(Box::new(tx_flow), arriving));
                    self.outbound_of(peer, flow).push(key);
                    self.watch(key, &socket, proxy, pass);
                }
            }
            ProxyCommand::Settle { peer, says_bye } => {
                self.settling.push(Settling { peer, says_bye });
            }
            ProxyCommand::DropPeer { peer } => {
                let of_peer = |flow: &AnyFlow| Arc::ptr_eq(flow.peer(), &peer);
                let keys: Vec<usize> =
                    self.flows.iter().filter(|(_, f)| of_peer(f)).map(|(key, _)| key).collect();
                // All before one of them ends: what one has copied may complete what another brought. And all are
                // delivered before one acknowledges.
                keys.iter().for_each(|key| self.collect_last(*key, pass));
                keys.iter().for_each(|key| self.acknowledge_last(*key, pass));
                for key in keys {
                    self.drop_flow(key, Down("the peer is gone".into()), proxy, pass);
                }
                self.outbound.retain(|outbound| !Arc::ptr_eq(&outbound.peer, &peer));
            }
            ProxyCommand::Probe { peer } => {
                for (key, flow) in &mut self.flows {
                    if let AnyFlow::Rx(flow) | AnyFlow::Both(_, flow) = flow
                        && Arc::ptr_eq(&flow.peer, &peer)
                    {
                        flow.say_something(pass);
                        if !self.owing.contains(&key) {
                            self.owing.push(key);
                        }
                    }
                }
            }
            ProxyCommand::Copying(op) => self.copying.push(op),
            ProxyCommand::LetGo => pass.copiers.let_go(),
            ProxyCommand::GiveBack => self.give_back(proxy, pass),
            ProxyCommand::Resume { peer } => {
                let of_peer = |flow: &AnyFlow| Arc::ptr_eq(flow.peer(), &peer);
                let keys: Vec<usize> =
                    self.flows.iter().filter(|(_, f)| of_peer(f)).map(|(key, _)| key).collect();
                for key in keys {
                    self.mark_readable(key);
                }
            }
        }
    }

    /// A flow towards the peer is connected.
    pub(super) fn tx_connected(
        &mut self,
        peer: &Arc<PeerShared>,
        flow: FlowIndex,
        wire: &Wire,
        pass: &Pass<'_>,
    ) {
        let slot = &peer.flows[flow.0 as usize];
        *slot.wire.lock() = Some(wire.clone());
        peer.flow_up(flow, polyrail_proto::Time(pass.now));
        slot.up_since.store(pass.now, Ordering::Relaxed);
        slot.up.store(true, Ordering::Release);
        peer.note_flow_up(flow);
        peer.tx_proxies.join(peer.tx_proxies.place_of(slot.proxy));
    }

    fn outbound_of(&mut self, peer: Arc<PeerShared>, flow: FlowIndex) -> &mut Vec<usize> {
        let known = self.outbound.iter().position(|o| Arc::ptr_eq(&o.peer, &peer));
        let index = known.unwrap_or_else(|| {
            let proxy_place = peer.tx_proxies.place_of(peer.flows[flow.0 as usize].proxy);
            self.outbound.push(Outbound {
                peer,
                proxy_place,
                flows: Vec::new(),
                left: Left::NOTHING,
            });
            self.outbound.len() - 1
        });
        &mut self.outbound[index].flows
    }

    /// A flow of the peer is connected; an older connection of it is closed. Says whether it is
    /// welcome.
    pub(super) fn rx_connected(
        &mut self,
        flow: &RxFlow,
        proxy: &Proxy,
        pass: &mut Pass<'_>,
    ) -> bool {
        let same = |other: &RxFlow| other.flow == flow.flow && Arc::ptr_eq(&other.peer, &flow.peer);
        let old = self.flows.iter().find_map(|(key, other)| match other {
            AnyFlow::Rx(other) | AnyFlow::Both(_, other) if same(other) => {
                Some((key, other.epoch, other.since_ns))
            }
            _ => None,
        });
        if let Some((key, epoch, since)) = old {
            // An older attempt that took longer. None takes longer than that: then it is the epoch of the
            // connection which is up that can't be right, and must not keep the flow's rail down.
            let timeout = pass.engine.settings.peer_timeout.as_nanos();
            if epoch >= flow.epoch && u128::from(pass.now.saturating_sub(since)) < timeout {
                return false;
            }
            self.drop_flow(key, Down("replaced by a newer connection".into()), proxy, pass);
        }
        if flow.peer.is_gone() {
            return false;
        }
        flow.peer.rx_flows_up.fetch_add(1, Ordering::AcqRel);
        flow.peer.happens(PeerEvent::Up);
        true
    }

    pub(in crate::proxy) fn drop_flow(
        &mut self,
        key: usize,
        why: Down,
        proxy: &Proxy,
        pass: &mut Pass<'_>,
    ) {
        let Some(flow) = self.flows.try_remove(key) else { return };
        self.streamed.retain(|other| *other != key);
        if self.hot == Some(key) {
            self.hot = None;
        }
        match flow {
            AnyFlow::Tx(flow) => {
                self.tx_lost(key, &flow, &why, proxy, pass);
                // What the kernel still holds is sent again elsewhere: it must not arrive later.
                let _ = tcp::reset_on_close(&**flow.wire().socket());
                self.leaving.extend(flow.into_tickets());
            }
            AnyFlow::Rx(flow) => self.rx_lost(&flow, &why, proxy, pass),
            AnyFlow::Both(flow, arriving) => {
                self.tx_lost(key, &flow, &why, proxy, pass);
                // Acknowledgements that the kernel still holds are for the peer to read.
                if flow.is_in_flight() || !flow.peer.is_gone() {
                    let _ = tcp::reset_on_close(&**flow.wire().socket());
                }
                self.leaving.extend(flow.into_tickets());
                self.rx_lost(&arriving, &why, proxy, pass);
            }
        }
        // Queues keep memory until they are used again, and its rings are used no more.
        pass.copiers.let_go();
    }

    /// A flow towards a peer is gone: its chunks go out on others, and it is connected again.
    pub(super) fn tx_lost(
        &mut self,
        key: usize,
        flow: &TxFlow,
        why: &Down,
        proxy: &Proxy,
        pass: &mut Pass<'_>,
    ) {
        // What is in memory is sent again elsewhere: it must not arrive later. Nothing is sent again to a peer that
        // is gone, and what was said last is for it to read.
        let socket = flow.wire().socket();
        if !flow.peer.is_gone() {
            flow.wire().abandon_stream();
        }
        let _ = proxy.poller.remove(socket.as_fd());
        flow.carrier_lost(&why.0);
        for outbound in &mut self.outbound {
            outbound.flows.retain(|other| *other != key);
        }
        let (peer, index) = (&flow.peer, flow.flow);
        let slot = &peer.flows[index.0 as usize];
        slot.up.store(false, Ordering::Release);
        *slot.wire.lock() = None;
        if let Ok(info) = polyrail_sys::tcp::info(&**socket) {
            slot.stats.past_retransmits.add(info.retransmits);
        }
        slot.stats.down.add(1);
        let mut tx = peer.tx();
        let given_back = tx.sender.handle_flow_down(index);
        slot.stats.resent_chunks.add(given_back as u64);
        drain_tx(&mut tx, pass);
        drop(tx);
        pass.engine.ask_all(peer);
        let life = flow.life(pass.now);
        pass.engine.control.flow_lost(peer.clone(), index, why.0.clone(), life);
    }

    /// A flow from a peer is gone.
    fn rx_lost(&mut self, flow: &RxFlow, why: &Down, proxy: &Proxy, pass: &mut Pass<'_>) {
        let _ = proxy.poller.remove(flow.wire().socket().as_fd());
        flow.forget_carrier();
        let mut rx = flow.peer.rx();
        rx.receiver.handle_flow_down(flow.flow);
        if flow.abandon(&mut rx) && !self.orphans.iter().any(|peer| Arc::ptr_eq(peer, &flow.peer)) {
            self.orphans.push(flow.peer.clone());
        }
        tell_last(&flow.peer, rx, 1, pass);
        flow.peer.rx_flows_up.fetch_sub(1, Ordering::AcqRel);
        pass.engine.control.arrival_lost(flow.peer.clone(), flow.flow, why.0.clone());
    }
}
