//! The flows of a proxy, and which of them have something to do. How they come and go: `flows`.

mod acknowledging;
mod flows;
mod polling;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_proto::AckHold;
use polyrail_sys::PollEvent;
use slab::Slab;

use self::acknowledging::{Settling, tell_last};
use super::Proxy;
use crate::device::shared_stream::SharedStream;
use crate::device::staging::Copiers;
use crate::device::wire::Wire;
use crate::engine::finish::Finish;
use crate::engine::op::Op;
use crate::engine::pass::{Down, Pass};
use crate::engine::peer::PeerShared;
use crate::engine::proxy_handle::ProxyCommand;
use crate::memory::tickets::Tickets;
use crate::receiver::flow::RxFlow;
use crate::sender::flow::TxFlow;
use crate::wake::outlook::Outlook;
use crate::wake::spin::Interruptions;

/// How often flows with chunks in flight are checked for a stall.
pub(super) const CHECK_NS: u64 = 50_000_000;

/// Flows of a proxy, and which of them have something to do.
pub(super) struct Core {
    flows: Slab<AnyFlow>,
    /// Those whose bytes go through memory, which the poller does not see.
    streamed: Vec<usize>,
    /// Peers with flows from here, with those flows.
    outbound: Vec<Outbound>,
    /// Flows that may have bytes to read.
    pub(super) ready: Vec<usize>,
    /// The flow that last brought bytes.
    pub(super) hot: Option<usize>,
    pub(super) events: Vec<PollEvent>,
    /// Flows with acknowledgements to send, and whether those wait.
    pub(super) owing: Vec<usize>,
    pub(super) ack_hold: AckHold,
    /// The proxy slept until a check was due, and nobody had told it of anything.
    pub(super) is_unannounced: bool,
    /// Some have to wait for a device, or for another thread in a system call.
    withholds_acks: bool,
    /// Peers whose connections are about to end, until all that they brought is acknowledged.
    settling: Vec<Settling>,
    /// Flows that devices copy into place for, and peers whose flow is gone before that was done.
    landing: Vec<usize>,
    orphans: Vec<Arc<PeerShared>>,
    /// What devices still copy to rings of flows that are gone.
    leaving: Tickets,
    /// Operations that devices copy for from end to end.
    copying: Vec<Arc<Op>>,
    pub(super) copiers: Copiers,
    pub(super) next_check: u64,
    pub(super) finishes: Vec<Finish>,
    /// What the last pass did not obey, since somebody else held a lock.
    put_off: Option<ProxyCommand>,
    /// The last pass left something to send or to obey, for which somebody else held a lock.
    pub(super) is_held_up: bool,
    pub(super) rounds: u32,
    /// Of callers that poll.
    pub(super) interruptions: Interruptions,
    /// When all flows were last looked at for a caller.
    polled_at: u64,
    /// A look at the poller has taken a wake-up, which may have been meant for a thread that sleeps there.
    took_wake_up: bool,
    /// Whether the poller watches the flows. It costs whoever sends to them, so that where callers
    /// drive it begins when one of them is about to sleep, or when there are many.
    watches: bool,
}

struct Outbound {
    peer: Arc<PeerShared>,
    /// This proxy's place among those that send to the peer.
    proxy_place: usize,
    flows: Vec<usize>,
    left: Left,
}

/// What the last pass over some flows left behind.
struct Left {
    /// A flow has a frame that is not out yet. Only this proxy knows of it, and any proxy may clear
    /// the set of those that are asked to send, so it is noted here.
    unfinished: bool,
    outlook: Outlook,
}

impl Left {
    const NOTHING: Self = Self { unfinished: false, outlook: Outlook::Told };

    /// A flow was just written to, in the pass of this time.
    fn note(&mut self, flow: &TxFlow, now: u64) {
        self.unfinished |= flow.is_unfinished();
        self.outlook = self.outlook.and(flow.outlook(now));
    }
}

/// A connection and what it carries.
enum AnyFlow {
    Tx(Box<TxFlow>),
    Rx(Box<RxFlow>),
    /// Data both ways: where one thread drives both directions anyway, so that small messages and
    /// their answers need one TCP connection, whose acknowledgements then travel with data.
    Both(Box<TxFlow>, Box<RxFlow>),
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
            took_wake_up: false,
            watches,
        }
    }

    pub(super) fn mark_readable(&mut self, key: usize) {
        match self.flows.get_mut(key) {
            Some(AnyFlow::Tx(flow)) => flow.readable = true,
            Some(AnyFlow::Rx(flow) | AnyFlow::Both(_, flow)) => flow.readable = true,
            None => return,
        }
        if !self.ready.contains(&key) {
            self.ready.push(key);
        }
    }

    pub(super) fn note_events(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            let key = event.token as usize;
            if event.ended {
                match self.flows.get_mut(key) {
                    Some(AnyFlow::Tx(flow)) => flow.ended = true,
                    Some(AnyFlow::Rx(flow) | AnyFlow::Both(_, flow)) => flow.ended = true,
                    None => continue,
                }
            }
            if event.readable {
                self.mark_readable(key);
            }
            if event.writable {
                match self.flows.get_mut(key) {
                    Some(AnyFlow::Tx(flow) | AnyFlow::Both(flow, _)) if !flow.writable => {
                        flow.writable = true;
                        flow.has_room_again();
                    }
                    Some(AnyFlow::Rx(flow)) if flow.owes_acks() && !self.owing.contains(&key) => {
                        self.owing.push(key);
                    }
                    _ => {}
                }
            }
        }
        // Its memory is used again.
        self.events = events;
    }

    pub(super) fn read_ready(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) -> bool {
        let mut worked = false;
        let mut ready = std::mem::take(&mut self.ready);
        ready.retain(|&key| {
            if pass.hasty && self.flows.get(key).is_some_and(|flow| flow.peer().is_held()) {
                return true;
            }
            let (read, more) = match self.flows.get_mut(key) {
                Some(AnyFlow::Tx(flow)) => (flow.read(pass), flow.readable),
                Some(AnyFlow::Rx(flow)) => {
                    let read = flow.read(pass);
                    if flow.is_copying() && !self.landing.contains(&key) {
                        self.landing.push(key);
                    }
                    if flow.owes_acks() && !self.owing.contains(&key) {
                        self.owing.push(key);
                    }
                    // A full inbox leaves the flow ready: it is looked at again on `Resume`.
                    (read, flow.readable)
                }
                Some(AnyFlow::Both(flow, arriving)) => {
                    let read = arriving.read(pass);
                    // Also those in front of the end of the connection.
                    let taken = flow.take_acks(arriving.take_acks(), pass);
                    let read = read.and_then(|any| taken.map(|()| any));
                    if arriving.is_copying() && !self.landing.contains(&key) {
                        self.landing.push(key);
                    }
                    if arriving.owes_acks() && !self.owing.contains(&key) {
                        self.owing.push(key);
                    }
                    (read, arriving.readable)
                }
                None => return false,
            };
            match read {
                Ok(true) => {
                    worked = true;
                    // Acknowledgements can wait for a look at all flows; data is waited for.
                    if !matches!(self.flows.get(key), Some(AnyFlow::Tx(_))) {
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
        // Its memory is used again.
        ready.append(&mut self.ready);
        self.ready = ready;
        worked
    }

    /// What the proxy has before it when nothing moves, but for checks of flows in flight.
    pub(super) fn outlook(&self) -> Outlook {
        let copies = !self.landing.is_empty()
            || !self.orphans.is_empty()
            || !self.leaving.is_empty()
            || !self.copying.is_empty();
        let asks = Outlook::ask_if(copies || self.withholds_acks);
        self.outbound.iter().fold(asks, |all, outbound| all.and(outbound.left.outlook))
    }

    /// Whether somebody is just about to tell it of something.
    pub(super) fn is_being_told(&self) -> bool {
        self.outbound.iter().any(|o| o.peer.announcing.load(Ordering::Acquire) > 0)
    }

    /// When flows with something in flight are to be checked, if there are any.
    pub(super) fn check_due(&self) -> Option<u64> {
        let is_in_flight = |(_, flow): (usize, &AnyFlow)| match flow {
            AnyFlow::Tx(flow) | AnyFlow::Both(flow, _) => flow.is_in_flight(),
            AnyFlow::Rx(_) => false,
        };
        self.flows.iter().any(is_in_flight).then_some(self.next_check)
    }

    /// Whether devices copy from end to end.
    pub(super) fn is_copying_end_to_end(&self) -> bool {
        !self.copying.is_empty()
    }

    /// Concludes what devices have copied into place.
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
            let collected = match self.flows.get_mut(key) {
                Some(AnyFlow::Rx(flow)) => flow.collect(pass),
                Some(AnyFlow::Both(flow, arriving)) => arriving.collect(pass).and_then(|any| {
                    // They may have waited behind a chunk for which there was no room.
                    flow.take_acks(arriving.take_acks(), pass)?;
                    Ok(any)
                }),
                _ => continue,
            };
            match collected {
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
            let stays = rx.has_orphans();
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

    /// Notes what a flow that was read has left to do.
    fn note_arrivals(&mut self, key: usize) {
        let Some(AnyFlow::Rx(flow) | AnyFlow::Both(_, flow)) = self.flows.get(key) else { return };
        if flow.owes_acks() && !self.owing.contains(&key) {
            self.owing.push(key);
        }
        if flow.is_copying() && !self.landing.contains(&key) {
            self.landing.push(key);
        }
        if flow.readable && !self.ready.contains(&key) {
            self.ready.push(key);
        }
    }

    pub(super) fn write_wanted(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) -> bool {
        let mut worked = false;
        let mut broken: Vec<(usize, Down)> = Vec::new();
        self.is_held_up = false;
        for Outbound { peer, proxy_place, flows, left } in &mut self.outbound {
            let (peer, proxy_place) = (&*peer, *proxy_place);
            if !left.unfinished && !peer.tx_proxies.wants(proxy_place) {
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
                // Frames that are begun are finished whether or not anything new is wanted.
                let wanted =
                    |flow: &TxFlow| flow.is_unfinished() || peer.tx_proxies.wants(proxy_place);
                let (wrote, flow) = match self.flows.get_mut(*key) {
                    Some(AnyFlow::Tx(flow)) if wanted(flow) => (flow.write(pass, None), flow),
                    Some(AnyFlow::Both(flow, arriving)) if wanted(flow) => {
                        (flow.write(pass, Some(arriving)), flow)
                    }
                    _ => continue,
                };
                left.note(flow, pass.now);
                stuck |= flow.stuck;
                self.is_held_up |= flow.lacks_ring;
                match wrote {
                    Ok(wrote) => worked |= wrote,
                    Err(down) => broken.push((*key, down)),
                }
            }
            // Something is left that this proxy can't send just now.
            if stuck {
                pass.engine.ask_another(peer);
            }
        }
        for (key, down) in broken {
            worked = true;
            self.read_last(key, pass);
            self.drop_flow(key, down, proxy, pass);
        }
        worked
    }

    /// Nobody has driven this proxy since the check was due: that time is no silence of its peers.
    fn excuse_absence(&self, pass: &Pass<'_>) {
        for (_, flow) in &self.flows {
            if let AnyFlow::Tx(flow) | AnyFlow::Both(flow, _) = flow
                && !(pass.hasty && flow.peer.is_tx_held())
            {
                flow.excuse(self.next_check, pass);
            }
        }
    }

    /// A peer waits for pinned memory: frees idle rings, and ends flows in the middle of a payload that does not come.
    fn give_back(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) {
        let stalled = |(key, flow): (usize, &mut AnyFlow)| match flow {
            AnyFlow::Rx(flow) | AnyFlow::Both(_, flow) => {
                flow.holds_memory_in_vain(pass).then_some(key)
            }
            AnyFlow::Tx(_) => None,
        };
        let late: Vec<usize> = self.flows.iter_mut().filter_map(stalled).collect();
        // Bytes may have come that this thread has not read.
        if !late.is_empty() {
            late.iter().for_each(|key| self.mark_readable(*key));
            self.read_ready(proxy, pass);
        }
        for key in late {
            if let Some(AnyFlow::Rx(flow) | AnyFlow::Both(_, flow)) = self.flows.get_mut(key)
                && !(pass.hasty && flow.peer.is_held())
                && flow.holds_memory_in_vain(pass)
            {
                let why = "its payload does not come, and other peers wait for pinned memory";
                self.drop_flow(key, Down(why.into()), proxy, pass);
            }
        }
        for (_, flow) in &mut self.flows {
            match flow {
                AnyFlow::Tx(flow) => flow.give_back(),
                AnyFlow::Rx(flow) => flow.give_back(),
                AnyFlow::Both(flow, arriving) => {
                    flow.give_back();
                    arriving.give_back();
                }
            }
        }
        pass.copiers.let_go();
    }

    pub(super) fn check_stalls(&mut self, proxy: &Proxy, pass: &mut Pass<'_>) {
        // While it polls streams, nobody tells it that a peer of one has died.
        streams(&self.streamed, &self.flows).for_each(|(_, _, stream)| stream.note_event());
        for place in 0..self.streamed.len() {
            self.mark_readable(self.streamed[place]);
        }
        if pass.now.saturating_sub(self.next_check) > CHECK_NS {
            self.excuse_absence(pass);
        }
        // What has come is read before anybody is judged: it may be this thread that is late.
        let seems_late = |(_, flow): &(usize, &AnyFlow)| match flow {
            AnyFlow::Tx(flow) | AnyFlow::Both(flow, _) => {
                !(pass.hasty && flow.peer.is_tx_held()) && flow.seems_stalled(pass)
            }
            AnyFlow::Rx(_) => false,
        };
        let late: Vec<usize> = self.flows.iter().filter(seems_late).map(|(key, _)| key).collect();
        if !late.is_empty() {
            late.iter().for_each(|key| self.mark_readable(*key));
            self.read_ready(proxy, pass);
        }
        let mut broken = Vec::new();
        for key in late {
            if let Some(AnyFlow::Tx(flow) | AnyFlow::Both(flow, _)) = self.flows.get_mut(key)
                && !(pass.hasty && flow.peer.is_tx_held())
                && let Err(down) = flow.check_stall(pass)
            {
                broken.push((key, down));
            }
        }
        for (key, down) in broken {
            self.drop_flow(key, down, proxy, pass);
        }
        for (key, flow) in &mut self.flows {
            if let AnyFlow::Rx(flow) | AnyFlow::Both(_, flow) = flow
                && !(pass.hasty && flow.peer.is_held())
            {
                flow.show_life(pass);
                if flow.owes_acks() && !self.owing.contains(&key) {
                    self.owing.push(key);
                }
            }
        }
    }
}

/// Flows whose bytes go through memory, with that memory.
fn streams<'a>(
    streamed: &'a [usize],
    flows: &'a Slab<AnyFlow>,
) -> impl Iterator<Item = (usize, &'a AnyFlow, &'a SharedStream)> {
    streamed.iter().filter_map(|key| {
        let flow = flows.get(*key)?;
        Some((*key, flow, flow.wire().stream()?))
    })
}

impl AnyFlow {
    fn peer(&self) -> &Arc<PeerShared> {
        match self {
            Self::Tx(flow) | Self::Both(flow, _) => &flow.peer,
            Self::Rx(flow) => &flow.peer,
        }
    }

    /// Whether it leaves bytes alone that are there.
    fn is_held_back(&self) -> bool {
        match self {
            Self::Tx(_) => false,
            Self::Rx(flow) | Self::Both(_, flow) => flow.is_held_back(),
        }
    }

    fn wire(&self) -> &Wire {
        match self {
            Self::Tx(flow) | Self::Both(flow, _) => flow.wire(),
            Self::Rx(flow) => flow.wire(),
        }
    }
}
