//! Adding and removing flows. [`Core::drop_flow`] runs when a rail dies.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_config::Payload;
use polyrail_proto::FlowIndex;
use polyrail_proto::life::PeerEvent;
use polyrail_sys::tcp;

use super::acknowledging::{Settling, tell_last};
use super::{Core, Left, Outbound};
use crate::device::connection::Connection;
use crate::device::wire::Wire;
use crate::engine::control_handle::ControlCommand;
use crate::engine::finish::drain_tx;
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, PeerShared};
use crate::engine::proxy_handle::{Arriving, Connected, ProxyCommand};
use crate::proxy::Proxy;
use crate::proxy::flow::Flow;
use crate::receiver::flow::RxFlow;
use crate::sender::flow::TxFlow;
use crate::wake::ALL;

impl Core {
    /// The next command, in the order in which they were given.
    pub(in crate::proxy) fn next_command(&mut self, proxy: &Proxy) -> Option<ProxyCommand> {
        // Checking is cheaper than trying.
        let pop = || if proxy.commands.is_empty() { None } else { proxy.commands.pop() };
        self.put_off.take().or_else(pop)
    }

    /// Leaves a command to another pass, before all others.
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
            ProxyCommand::Add(connected) => self.add(*connected, proxy, pass),
            ProxyCommand::Settle { peer, says_bye } => {
                self.settling.push(Settling { peer, says_bye });
            }
            ProxyCommand::DropPeer { peer } => {
                let keys = self.keys_of(&peer);
                // All before one of them ends: a chunk that one has copied may complete what another brought. And all
                // are delivered before one acknowledges.
                keys.iter().for_each(|key| self.collect_last(*key, pass));
                keys.iter().for_each(|key| self.acknowledge_last(*key, pass));
                for key in keys {
                    self.drop_flow(key, Down("the peer is gone".into()), proxy, pass);
                }
                self.outbound.retain(|outbound| !Arc::ptr_eq(&outbound.peer, &peer));
            }
            ProxyCommand::Probe { peer } => {
                for (key, flow) in &mut self.flows {
                    if let Some(rx) = &mut flow.rx
                        && Arc::ptr_eq(&rx.peer, &peer)
                    {
                        rx.say_something(pass);
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
                self.keys_of(&peer).into_iter().for_each(|key| self.mark_readable(key));
            }
            ProxyCommand::Events(mut events) => self.take_events(&mut events),
        }
    }

    fn keys_of(&self, peer: &Arc<PeerShared>) -> Vec<usize> {
        self.flows.iter().filter(|(_, flow)| flow.is_of(peer)).map(|(key, _)| key).collect()
    }

    fn add(&mut self, connected: Connected, proxy: &Proxy, pass: &mut Pass<'_>) {
        let Connected { peer, flow, wire, keys, sends, arriving } = connected;
        // A hello brings its sender's window. Where this engine made the connection, the peer has not sent its own.
        let window = |it: &Arriving| if it.place.is_some() { it.window_chunks } else { u32::MAX };
        let window = arriving.as_ref().map(window);
        let rx = arriving
            .map(|arriving| Box::new(RxFlow::new((peer.clone(), flow), arriving, sends, pass.now)));
        let is_welcome = match &rx {
            Some(rx) => self.rx_connected(rx, proxy, pass),
            None => !peer.is_gone(),
        };
        if !is_welcome {
            return;
        }
        if let Some(window_chunks) = window {
            peer.rx().receiver.handle_flow_up(flow, window_chunks);
        }
        let tx = sends.then(|| {
            self.tx_connected(&peer, flow, &wire, pass);
            Box::new(TxFlow::new(peer.clone(), flow))
        });
        let connection = Connection::new(wire, keys, peer.payload == Payload::Aead);
        let key = self.flows.insert(Flow { peer: peer.clone(), connection, tx, rx });
        if sends {
            self.outbound_of(peer, flow).push(key);
        }
        self.watch(key, proxy, pass);
    }

    /// Notes that a flow to the peer has connected.
    pub(super) fn tx_connected(
        &mut self,
        peer: &Arc<PeerShared>,
        flow: FlowIndex,
        wire: &Wire,
        pass: &Pass<'_>,
    ) {
        let slot = &peer.links.flows[flow.0 as usize];
        *slot.wire.lock() = Some(wire.clone());
        peer.flow_up(flow, polyrail_proto::Time(pass.now));
        slot.up_since.store(pass.now, Ordering::Relaxed);
        slot.up.store(true, Ordering::Release);
        peer.life.standing.note_flow_up(&peer.layout, flow);
        peer.wake.resume(peer.wake.place_of(slot.proxy));
    }

    fn outbound_of(&mut self, peer: Arc<PeerShared>, flow: FlowIndex) -> &mut Vec<usize> {
        let known = self.outbound.iter().position(|o| Arc::ptr_eq(&o.peer, &peer));
        let index = known.unwrap_or_else(|| {
            let proxy_place = peer.wake.place_of(peer.links.flows[flow.0 as usize].proxy);
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

    /// Notes that a flow of the peer has connected, and closes an older connection of it. Returns whether the flow is
    /// welcome.
    pub(super) fn rx_connected(
        &mut self,
        flow: &RxFlow,
        proxy: &Proxy,
        pass: &mut Pass<'_>,
    ) -> bool {
        let same = |other: &RxFlow| other.flow == flow.flow && Arc::ptr_eq(&other.peer, &flow.peer);
        let old = self.flows.iter().find_map(|(key, other)| {
            let other = other.rx.as_deref().filter(|other| same(other))?;
            Some((key, other.epoch, other.since_ns))
        });
        if let Some((key, epoch, since)) = old {
            // An older attempt that took longer. No attempt takes longer than the timeout. After that, the epoch of the
            // connection which is up can't be right, and must not keep the flow's rail down.
            let timeout = pass.engine.settings.peer_timeout.as_nanos();
            if epoch >= flow.epoch && u128::from(pass.now.saturating_sub(since)) < timeout {
                return false;
            }
            self.drop_flow(key, Down("replaced by a newer connection".into()), proxy, pass);
        }
        if flow.peer.is_gone() {
            return false;
        }
        flow.peer.links.rx_flows_up.fetch_add(1, Ordering::AcqRel);
        flow.peer.life.standing.happens(PeerEvent::Up);
        true
    }

    pub(in crate::proxy) fn drop_flow(
        &mut self,
        key: usize,
        why: Down,
        proxy: &Proxy,
        pass: &mut Pass<'_>,
    ) {
        let Some(Flow { connection, tx, rx, .. }) = self.flows.try_remove(key) else { return };
        let socket = connection.wire.socket();
        let _ = proxy.doorbell.poller.remove(socket.as_fd());
        self.streamed.retain(|other| *other != key);
        if self.hot == Some(key) {
            self.hot = None;
        }
        if let Some(tx) = tx {
            self.tx_lost(key, &tx, &connection.wire, &why, pass);
            // The kernel's remaining data is sent again elsewhere, so it must not arrive later. But acknowledgements
            // must reach the peer.
            if rx.is_none() || tx.is_in_flight() || !tx.peer.is_gone() {
                let _ = tcp::reset_on_close(&**socket);
            }
            self.leaving.extend(tx.into_tickets());
        }
        if let Some(rx) = rx {
            self.rx_lost(&rx, &why, pass);
        }
        drop(connection);
        // Queues keep memory until they are used again, and these rings are used no more.
        pass.copiers.let_go();
    }

    /// Removes a flow to a peer: its chunks go out on others, and it is connected again.
    fn tx_lost(&mut self, key: usize, flow: &TxFlow, wire: &Wire, why: &Down, pass: &mut Pass<'_>) {
        // Data in shared memory is sent again elsewhere, so it must not arrive later. Nothing is sent again to a peer
        // that is gone, and it should read the last data.
        if !flow.peer.is_gone() {
            wire.abandon_stream();
        }
        flow.carrier_lost(&why.0);
        for outbound in &mut self.outbound {
            outbound.flows.retain(|other| *other != key);
        }
        let (peer, index) = (&flow.peer, flow.flow);
        let slot = &peer.links.flows[index.0 as usize];
        slot.up.store(false, Ordering::Release);
        *slot.wire.lock() = None;
        if let Ok(info) = tcp::info(&**wire.socket()) {
            slot.stats.past_retransmits.add(info.retransmits);
        }
        slot.stats.down.add(1);
        let mut tx = peer.tx();
        let given_back = tx.sender.handle_flow_down(index);
        slot.stats.resent_chunks.add(given_back as u64);
        drain_tx(&mut tx, pass);
        drop(tx);
        peer.wake.announce(ALL);
        let life = flow.life(pass.now);
        let (peer, why) = (peer.clone(), why.0.clone());
        pass.engine.control.command(ControlCommand::FlowLost { peer, flow: index, why, life });
    }

    /// Removes a flow from a peer.
    fn rx_lost(&mut self, flow: &RxFlow, why: &Down, pass: &mut Pass<'_>) {
        flow.forget_carrier();
        let mut rx = flow.peer.rx();
        rx.receiver.handle_flow_down(flow.flow);
        if flow.abandon(&mut rx) && !self.orphans.iter().any(|peer| Arc::ptr_eq(peer, &flow.peer)) {
            self.orphans.push(flow.peer.clone());
        }
        tell_last(&flow.peer, rx, 1, pass);
        flow.peer.links.rx_flows_up.fetch_sub(1, Ordering::AcqRel);
        let (peer, flow, why) = (flow.peer.clone(), flow.flow, why.0.clone());
        pass.engine.control.command(ControlCommand::ArrivalLost { peer, flow, why });
    }
}
