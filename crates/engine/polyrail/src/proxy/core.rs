//! The flows of a proxy, and which of them have something to do. `flows` adds and removes them.

mod acknowledging;
mod checking;
mod flows;
mod polling;

use std::sync::Arc;

use polyrail_proto::AckHold;
use polyrail_proto::progress::{Interruptions, Outlook, Turns};
use polyrail_sys::PollEvent;
use polyrail_sys::threads::monotonic_ns;
use slab::Slab;

use self::acknowledging::{Settling, tell_last};
use super::Proxy;
use super::flow::Flow;
use crate::device::shared_memory::stream::SharedStream;
use crate::device::staging::Copiers;
use crate::engine::finish::Finish;
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, OpHandle, PeerShared};
use crate::engine::proxy_handle::ProxyCommand;
use crate::memory::tickets::Tickets;
use crate::sender::flow::TxFlow;
use crate::wake::sleeper::Debts;

/// Interval at which flows with chunks in flight are checked for a stall.
pub(super) const CHECK_NS: u64 = 50_000_000;

/// The flows of a proxy, and which of them have something to do.
pub(super) struct Core {
    flows: Slab<Flow>,
    /// Flows whose bytes go through memory, which the poller does not see.
    streamed: Vec<usize>,
    /// Peers to which flows go from here, with those flows.
    outbound: Vec<Outbound>,
    /// Flows that may have bytes to read.
    pub(super) ready: Vec<usize>,
    /// The flow that last brought bytes.
    pub(super) hot: Option<usize>,
    pub(super) events: Vec<PollEvent>,
    /// Flows with acknowledgements to send, and whether those wait.
    pub(super) owing: Vec<usize>,
    pub(super) ack_hold: AckHold,
    /// Set when the proxy slept until a check was due, without a ring: what the next pass moves was announced to no
    /// thread. Only where wake-ups are checked.
    pub(super) is_unannounced: bool,
    /// Set when acknowledgements wait for a device, or for another thread in a system call.
    pub(super) withholds_acks: bool,
    /// Peers whose connections are about to end, until all that they brought is acknowledged.
    settling: Vec<Settling>,
    /// Flows that devices copy into place for, and peers whose flow is gone before the copies were done.
    landing: Vec<usize>,
    orphans: Vec<Arc<PeerShared>>,
    /// Copies by devices to rings of flows that are gone.
    leaving: Tickets,
    /// Operations that devices copy end to end.
    copying: Vec<OpHandle>,
    pub(super) copiers: Copiers,
    pub(super) next_check: u64,
    pub(super) finishes: Vec<Finish>,
    /// Command that the last pass did not run, because another thread held a lock.
    put_off: Option<ProxyCommand>,
    /// Set if the last pass left something to send or to run, because another thread held a lock.
    pub(super) is_held_up: bool,
    pub(super) rounds: u32,
    /// Interruptions of polling callers.
    pub(super) interruptions: Interruptions,
    /// Time at which all flows were last looked at for a caller.
    polled_at: u64,
    /// Debts of this thread, and of those before it, to the thread that sleeps on the poller.
    pub(super) debts: Debts,
    /// Whether the poller watches the flows. That costs the sender to those flows. So where callers drive it begins
    /// when one of them is about to sleep, or when there are many flows.
    watches: bool,
}

struct Outbound {
    peer: Arc<PeerShared>,
    /// Place of this proxy among those that send to the peer.
    proxy_place: usize,
    flows: Vec<usize>,
    left: Left,
}

/// State that the last pass over some flows left behind.
struct Left {
    /// Set if a flow has an unfinished frame. Only this proxy knows of it, and any proxy may clear the set of those
    /// that are asked to send, so it is noted here.
    unfinished: bool,
    outlook: Outlook,
}

impl Left {
    const NOTHING: Self = Self { unfinished: false, outlook: Outlook::Told };

    /// Notes a flow that was just written to, in the pass of this time.
    fn note(&mut self, flow: &TxFlow, now: u64) {
        self.unfinished |= flow.is_unfinished();
        self.outlook = self.outlook.and(flow.outlook(now));
    }
}

impl Core {
    pub(super) fn new(watches: bool) -> Self {
        Self {
            flows: Slab::new(),
            streamed: Vec::new(),
            outbound: Vec::new(),
            ready: Vec::new(),
            hot: None,
            events: Vec::new(),
            owing: Vec::new(),
            ack_hold: AckHold::default(),
            is_unannounced: false,
            withholds_acks: false,
            settling: Vec::new(),
            landing: Vec::new(),
            orphans: Vec::new(),
            leaving: Tickets::new(),
            copying: Vec::new(),
            copiers: Copiers::default(),
            next_check: 0,
            finishes: Vec::new(),
            put_off: None,
            is_held_up: false,
            rounds: 0,
            interruptions: Interruptions::default(),
            polled_at: 0,
            debts: Debts::default(),
            watches,
        }
    }

    pub(super) fn mark_readable(&mut self, key: usize) {
        let Some(flow) = self.flows.get_mut(key) else { return };
        flow.connection.readable = true;
        if !self.ready.contains(&key) {
            self.ready.push(key);
        }
    }

    pub(super) fn note_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let key = event.token as usize;
            let Some(flow) = self.flows.get_mut(key) else { continue };
            flow.connection.ended |= event.ended;
            if event.writable {
                if let Some(tx) = &mut flow.tx {
                    tx.note_room();
                } else if flow.owes_acks() && !self.owing.contains(&key) {
                    self.owing.push(key);
                }
            }
            if event.readable {
                self.mark_readable(key);
            }
        }
        // Keep the vector's memory.
        self.events = events;
    }

    /// Reads the ready flows. `in_turns`: flows of a peer that had its turn are left to the next pass. Returns whether
    /// anything moved.
    pub(super) fn read_ready(
        &mut self,
        proxy: &Proxy,
        pass: &mut Pass<'_>,
        in_turns: bool,
    ) -> bool {
        let mut worked = false;
        let mut ready = std::mem::take(&mut self.ready);
        // A single flow takes no turn from another.
        let mut turns = (in_turns && ready.len() > 1).then(Turns::default);
        let mut put_off = Vec::new();
        let mut leaves_unread = false;
        ready.retain(|&key| {
            let Some(flow) = self.flows.get_mut(key) else { return false };
            if pass.hasty && flow.peer.is_held() {
                leaves_unread |= !flow.is_held_back();
                return true;
            }
            if turns.as_ref().is_some_and(|turns| turns.is_over(&*flow.peer)) {
                put_off.push(key);
                return false;
            }
            let began = turns.as_ref().map(|_| monotonic_ns());
            let read = flow.read(pass);
            if let (Some(turns), Some(began)) = (&mut turns, began) {
                turns.note(&*flow.peer, monotonic_ns().saturating_sub(began));
            }
            // A full inbox leaves the flow ready. `Resume` makes this read it again.
            let more = flow.connection.readable;
            leaves_unread |= more && !flow.is_held_back();
            let brings_data = flow.rx.is_some();
            self.note_owed(key);
            match read {
                Ok(true) => {
                    worked = true;
                    // Acknowledgements can wait for a look at all flows; data is waited for.
                    if brings_data {
                        self.hot = Some(key);
                    }
                }
                Ok(false) => {}
                Err(down) => {
                    worked = true;
                    self.drop_flow(key, down, proxy, pass);
                    return false;
                }
            }
            more
        });
        worked |= !put_off.is_empty();
        self.debts.note_visits(leaves_unread || !put_off.is_empty());
        // Flows that were put off come first, so each has its turn. The vector is reused.
        ready.append(&mut self.ready);
        ready.splice(0..0, put_off);
        self.ready = ready;
        worked
    }

    /// The next work of the proxy when nothing moves, except checks of flows in flight.
    pub(super) fn outlook(&self) -> Outlook {
        let copies = !self.landing.is_empty()
            || !self.orphans.is_empty()
            || !self.leaving.is_empty()
            || !self.copying.is_empty();
        let asks = Outlook::ask_if(copies || self.withholds_acks);
        self.outbound.iter().fold(asks, |all, outbound| all.and(outbound.left.outlook))
    }

    /// Whether work is being posted that it may find before it is announced.
    pub(super) fn is_being_posted(&self) -> bool {
        self.outbound.iter().any(|o| o.peer.wake.is_posting())
    }

    /// Time at which flows with chunks in flight must be checked, if there are any.
    pub(super) fn check_due(&self) -> Option<u64> {
        self.flows.iter().any(|(_, flow)| flow.is_in_flight()).then_some(self.next_check)
    }

    /// Whether devices copy end to end.
    pub(super) fn is_copying_end_to_end(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Completes what devices have copied into place.
    pub(super) fn collect_copied(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) -> bool {
        if self.landing.is_empty()
            && self.orphans.is_empty()
            && self.leaving.is_empty()
            && self.copying.is_empty()
        {
            return false;
        }
        let mut worked = false;
        for key in std::mem::take(&mut self.landing) {
            let Some(flow) = self.flows.get_mut(key) else { continue };
            match flow.collect(pass) {
                Ok(any) => {
                    worked |= any;
                    self.note_arrivals(key);
                }
                Err(down) => {
                    worked = true;
                    self.drop_flow(key, down, proxy, pass);
                }
            }
        }
        let before = (self.orphans.len(), self.leaving.len());
        self.leaving.retain(|ticket| matches!(ticket.is_done(), Ok(false)));
        self.orphans.retain(|peer| {
            let mut rx = peer.rx();
            rx.settle();
            let stays = rx.landings.has_orphans();
            worked |= tell_last(peer, rx, 0, pass);
            stays
        });
        if before != (self.orphans.len(), self.leaving.len()) {
            pass.copiers.let_go();
        }
        self.copying.retain(|op| {
            let stays = pass.engine.follow_copies(op, pass.now);
            worked |= !stays;
            stays
        });
        worked
    }

    /// Notes what is left to do for a flow that was read.
    fn note_arrivals(&mut self, key: usize) {
        self.note_owed(key);
        let Some(Flow { connection, rx: Some(_), .. }) = self.flows.get(key) else { return };
        if connection.readable && !self.ready.contains(&key) {
            self.ready.push(key);
        }
    }

    /// Notes what a flow owes: acknowledgements, and chunks that are being copied.
    fn note_owed(&mut self, key: usize) {
        let Some(Flow { rx: Some(rx), .. }) = self.flows.get(key) else { return };
        if rx.owes_acks() && !self.owing.contains(&key) {
            self.owing.push(key);
        }
        if rx.is_copying() && !self.landing.contains(&key) {
            self.landing.push(key);
        }
    }

    pub(super) fn write_wanted(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) -> bool {
        let mut worked = false;
        let mut broken: Vec<(usize, Down)> = Vec::new();
        self.is_held_up = false;
        for Outbound { peer, proxy_place, flows, left } in &mut self.outbound {
            let (peer, proxy_place) = (&*peer, *proxy_place);
            if !left.unfinished && !peer.wake.claim(proxy_place) {
                *left = Left::NOTHING;
                continue;
            }
            if pass.hasty && peer.is_tx_held() {
                self.is_held_up = true;
                continue;
            }
            *left = Left::NOTHING;
            let mut stuck = false;
            // Always in the same order: small messages stay on one flow, where the peer looks first.
            for key in &*flows {
                // Unfinished frames are completed whether or not anything new is wanted.
                let wanted = |flow: &TxFlow| flow.is_unfinished() || peer.wake.claim(proxy_place);
                let Some(Flow { connection, tx: Some(tx), rx, .. }) = self.flows.get_mut(*key)
                else {
                    continue;
                };
                if !wanted(tx) {
                    continue;
                }
                let wrote = tx.write(connection, pass, rx.as_deref_mut());
                left.note(tx, pass.now);
                stuck |= tx.stuck;
                self.is_held_up |= tx.lacks_ring;
                match wrote {
                    Ok(wrote) => worked |= wrote,
                    Err(down) => broken.push((*key, down)),
                }
            }
            // Something is left that this proxy can't send at the moment.
            if stuck {
                peer.wake.share();
            }
        }
        for (key, down) in broken {
            worked = true;
            self.read_last(key, pass);
            self.drop_flow(key, down, proxy, pass);
        }
        worked
    }
}

/// Flows whose bytes go through memory, with that memory.
fn streams<'a>(
    streamed: &'a [usize],
    flows: &'a Slab<Flow>,
) -> impl Iterator<Item = (usize, &'a Flow, &'a SharedStream)> {
    streamed.iter().filter_map(|key| {
        let flow = flows.get(*key)?;
        Some((*key, flow, flow.stream()?))
    })
}
