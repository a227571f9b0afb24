//! Who is known to an engine, and how peers part and come back.
//!
//! | a peer is | and then | it is |
//! |---|---|---|
//! | unknown | the user adds it, or it says hello | known |
//! | known by its hello | the user adds it, by the same card | known by the user |
//! | known by its hello | the user adds it, by another card | known by the user, as a new peer |
//! | known, without flows from it | it says hello in another session: it has lost this engine | known, as a new peer |
//! | known | silence, its good-bye, all its flows refused | lost |
//! | known, lost | the user removes it | removed |
//! | lost | the user adds it, or it says hello in another session | known, as a new peer |
//! | removed | the user adds it | known, as a new peer |
//!
//! What the user gave is never given up for what a hello says: a peer that comes back by itself is
//! known by the card that the user gave for it, and a hello with another one is refused.
//!
//! **Sessions.** Both ends count transfers, so an end that has lost the other must not go on with it
//! as if nothing had been. Each [`PeerShared`] has a number, which is the session of what it sends,
//! and which every hello carries in the upper half of its epoch. A session that either end has given
//! up never comes back: its hellos are refused for good, which ends it at the other side as well. And
//! none takes the place of one that has flows up: those are probed, and whoever asks may come again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use polyrail_proto::hello::{Card, FlowHello, RefusedCode};
use polyrail_proto::{Failure, InstanceId};

use crate::base::callback;
use crate::base::driving::is_driving;
use crate::base::error::PeerError;
use crate::base::reason::LostReason;
use crate::engine::finish::{Finish, drain_tx};
use crate::engine::peer::{Layout, OpRef, PeerOptions, PeerShared};
use crate::engine::peer_handle::Peer;
use crate::engine::proxy_handle::ProxyCommand;
use crate::engine::quotas::FlowPlace;
use crate::engine::rail_selection;
use crate::engine::state::EngineShared;
use crate::engine::state::FAREWELL;
use crate::engine::tasks::{Bells, TaskPlace, Tasks};
use crate::memory::tickets::wait_all;

/// Instances that this engine has parted with; a limit on memory, the oldest is forgotten first.
const PARTED_MAX: usize = 4096;
/// Sessions of an instance that are remembered to be over.
const SESSIONS_MAX: usize = 16;

/// Where the session stands in the epoch of a hello.
const SESSION_SHIFT: u32 = 32;

/// Attempts to connect a flow that count as honest however young this engine is.
const ATTEMPTS_SLACK: u64 = 1 << 16;

/// Why a flow is not welcome, and what its peer is told.
pub(crate) type Unwelcome = (RefusedCode, String);

/// Peers that came by themselves and wait to be accepted.
pub(crate) struct Joined {
    queue: Mutex<Queue>,
    arrived: Condvar,
    bells: Arc<Bells>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Peer>,
    tasks: Tasks,
    /// Nobody will come any more.
    is_closed: bool,
}

/// What is remembered of peers that were known.
#[derive(Default)]
pub(crate) struct Parted {
    known: HashMap<InstanceId, Parting>,
    order: VecDeque<InstanceId>,
}

#[derive(Default)]
struct Parting {
    /// By the user, so it must not come back by itself.
    removed: bool,
    /// What the user gave for it, if ever.
    card: Option<Card>,
    /// Its sessions that are over, the newest last.
    over: VecDeque<u32>,
}

/// The session that a peer's own number stands for, as the first epoch of its flows.
pub(crate) fn first_epoch(number: u32) -> u64 {
    u64::from(number) << SESSION_SHIFT
}

fn session_of(epoch: u64) -> u32 {
    (epoch >> SESSION_SHIFT) as u32
}

impl EngineShared {
    /// Adds a peer by the user's will, or finds it: flows are connected at once.
    pub(crate) fn add_peer(self: &Arc<Self>, card: Card) -> Result<Arc<PeerShared>, PeerError> {
        if self.is_forked() {
            return Err(PeerError::Forked);
        }
        self.parted().entry(card.instance).removed = false;
        loop {
            let (peer, _) = self.find_or_make(&card, true)?;
            if peer.is_gone() {
                // Whoever ends it is about to take it off the list.
                std::thread::yield_now();
                continue;
            }
            if peer.leaving.load(Ordering::Acquire) {
                self.lose_peer(&peer, LostReason::Removed);
                continue;
            }
            let by_user = &peer.by_user;
            if by_user.load(Ordering::Acquire) || peer.card == card {
                by_user.store(true, Ordering::Release);
                self.parted().entry(card.instance).card = Some(peer.card.clone());
                self.connect_flows(&peer);
                return Ok(peer);
            }
            if peer.close_unused() {
                // Nothing has passed: whoever it was may come again as if for the first time.
                peer.is_unused.store(true, Ordering::Release);
            }
            self.lose_peer(&peer, LostReason::OtherMetadata);
        }
    }

    /// A peer says hello: finds it, or adds it, and takes a place for the connection.
    pub(crate) fn greet(
        self: &Arc<Self>,
        hello: &FlowHello,
    ) -> Result<(Arc<PeerShared>, FlowPlace), Unwelcome> {
        self.check_epoch(hello.epoch)?;
        let (instance, session) = (hello.card.instance, session_of(hello.epoch));
        let card = {
            let parted = self.parted();
            let parting = parted.known.get(&instance);
            if parting.is_some_and(|parting| parting.removed) {
                return Err((RefusedCode::Removed, REMOVED.to_owned()));
            }
            if parting.is_some_and(|parting| parting.over.contains(&session)) {
                return Err((RefusedCode::SessionOver, OVER.to_owned()));
            }
            parting.and_then(|parting| parting.card.clone())
        };
        let by_user = card.is_some();
        if !by_user && self.peer(instance).is_none() {
            self.check_newcomers()?;
        }
        let card = card.unwrap_or_else(|| hello.card.clone());
        if !is_told_by(&card, &hello.card, by_user) {
            return Err((RefusedCode::OtherCard, OTHER_CARD.to_owned()));
        }
        let malformed = |error: PeerError| (RefusedCode::Malformed, error.to_string());
        // Twice if it comes in a new session.
        for _ in 0..2 {
            let (peer, is_new) = self.find_or_make(&card, by_user).map_err(malformed)?;
            if !is_told_by(&peer.card, &hello.card, peer.by_user.load(Ordering::Acquire)) {
                return Err((RefusedCode::OtherCard, OTHER_CARD.to_owned()));
            }
            // Sessions count from 0, and 0 stands for none.
            let heard = u64::from(session) + 1;
            match peer.heard.load(Ordering::Acquire) {
                0 => peer.heard.store(heard, Ordering::Release),
                same if same == heard => {}
                _ if peer.rx_flows_up.load(Ordering::Acquire) > 0 => {
                    self.probe(&peer);
                    return Err((RefusedCode::OtherSession, OTHER_SESSION.to_owned()));
                }
                // A hello that its sender had given up by the time it was read: nothing came of it.
                _ if peer.rx().receiver.is_unused() => peer.heard.store(heard, Ordering::Release),
                _ => {
                    self.lose_peer(&peer, LostReason::Anew);
                    continue;
                }
            }
            let place = FlowPlace::take(&peer, hello.flows, self.connection_limit())
                .map_err(|why| (RefusedCode::Limit, why))?;
            if is_new {
                self.joined.push(Peer { shared: peer.clone() });
            }
            return Ok((peer, place));
        }
        Err((RefusedCode::OtherSession, OTHER_SESSION.to_owned()))
    }

    /// The lower half of an epoch counts attempts to connect a flow of this engine's peer. There is at
    /// most one in a millisecond, and there was none before this engine was.
    fn check_epoch(&self, epoch: u64) -> Result<(), Unwelcome> {
        let first = first_epoch(session_of(epoch));
        let age_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let most = first.saturating_add(ATTEMPTS_SLACK).saturating_add(age_ms);
        if epoch <= most {
            return Ok(());
        }
        let text = format!("field epoch is {epoch}, allowed is {first} to {most} in its session");
        Err((RefusedCode::Malformed, text))
    }

    /// Peers that nobody added cost memory until they are given up, even without a connection. There
    /// may be as many as each could have one.
    fn check_newcomers(&self) -> Result<(), Unwelcome> {
        let limit = self.connection_limit();
        let is_newcomer = |peer: &&Arc<PeerShared>| !peer.by_user.load(Ordering::Acquire);
        let known = self.peers.read().iter().filter(is_newcomer).count();
        if known < limit as usize {
            return Ok(());
        }
        let text =
            format!("{known} peers are known by their hello alone, allowed are at most {limit}");
        Err((RefusedCode::Limit, text))
    }

    /// Whether nobody has added this instance here, nor removed it.
    pub(crate) fn is_stranger(&self, instance: InstanceId) -> bool {
        let parted = self.parted();
        let is_ours = |parting: &Parting| parting.removed || parting.card.is_some();
        !parted.known.get(&instance).is_some_and(is_ours) && self.peer(instance).is_none()
    }

    /// Ends all transfers with a peer, tells it so, and keeps it from coming back by itself.
    pub(crate) fn remove_peer(self: &Arc<Self>, peer: &Arc<PeerShared>) {
        if self.is_forked() {
            return;
        }
        if self.peer(peer.instance()).is_none_or(|known| Arc::ptr_eq(&known, peer)) {
            self.parted().entry(peer.instance()).removed = true;
        }
        if callback::is_inside() || is_driving() {
            // Nothing else moves here meanwhile, so nobody may wait: the control thread sees to it.
            if self.begin_bye(peer) {
                self.leaving().push((peer.clone(), Instant::now() + FAREWELL));
                return self.control.nudge();
            }
        } else {
            self.say_bye(std::slice::from_ref(peer));
        }
        self.lose_peer(peer, LostReason::Removed);
    }

    /// Ends peers that were told good-bye and have heard it, or had time to. Says whether some are
    /// left.
    pub(crate) fn end_leaving(self: &Arc<Self>) -> bool {
        let now = Instant::now();
        let over =
            |(peer, until): &mut (Arc<PeerShared>, Instant)| now >= *until || !peer.is_busy();
        let ended: Vec<_> = self.leaving().extract_if(.., over).collect();
        for (peer, _) in ended {
            self.lose_peer(&peer, LostReason::Removed);
        }
        !self.leaving().is_empty()
    }

    /// The peer is gone: every operation with it ends, its flows are closed.
    pub(crate) fn lose_peer(self: &Arc<Self>, peer: &Arc<PeerShared>, why: LostReason) {
        if !peer.set_gone(why) {
            return;
        }
        tracing::info!(target: "polyrail::peer", peer = peer.name(), why = %peer.lost_reason(), "gone");
        peer.sharing.stop_waiting();
        self.parted().end_session(peer);
        // Before it leaves the list: whoever sees it gone finds the inbox within its bound.
        self.inbox.peer_left(peer);
        let mut peers = self.peers.write();
        peers.retain(|other| !Arc::ptr_eq(other, peer));
        drop(peers);
        self.joined.forget(peer);
        self.resume_reading(&self.peers());
        self.end_posted(peer);
        wait_all(&self.imports.end_all(peer.instance()));
        let mut ends = self.ends();
        let mut tx = peer.tx();
        tx.sender.end_all(Failure::PeerLost);
        for OpRef(op) in tx.matcher.drain_sends() {
            ends.finishes.push(Finish::Failed(op, Failure::PeerLost));
        }
        drain_tx(&mut tx, &mut ends);
        drop(tx);
        self.end_awaited(peer, |_| true, Failure::PeerLost, &mut ends);
        ends.tell();
        for proxy in &self.proxies.all {
            proxy.command(ProxyCommand::DropPeer { peer: peer.clone() });
        }
        if let Some(observer) = &self.observer {
            let shared = peer.clone();
            let tell = || observer.lost(&Peer { shared }, &peer.lost_reason());
            self.callbacks.call("observer", tell);
        }
        self.help();
    }

    /// The peer of this card's instance; says whether it was made just now. `by_user`: who gave the
    /// card.
    fn find_or_make(
        self: &Arc<Self>,
        card: &Card,
        by_user: bool,
    ) -> Result<(Arc<PeerShared>, bool), PeerError> {
        if card.instance == self.card.instance {
            return Err(PeerError::Myself);
        }
        if let Some(known) = self.peer(card.instance) {
            return Ok((known, false));
        }
        // Before the lock is taken, which everybody needs who looks for a peer.
        let layout = self.layout(card)?;
        let options = PeerOptions {
            window_chunks: self.config.window_chunks,
            ops_pool: self.config.ops_pool,
            flow_limit: self.config.flow_limit,
            same_host: card.host == self.card.host,
            spins: self.pollers.are_allowed(),
            rails: self.rails.len(),
            staging: &self.staging,
        };
        let number = self.next_peer.fetch_add(1, Ordering::Relaxed);
        let tx = &self.proxies.tx;
        let peer = Arc::new(PeerShared::new(number, card.clone(), layout, tx, options));
        peer.by_user.store(by_user, Ordering::Release);
        let mut peers = self.peers.write();
        // Under the lock: whoever closes the engine ends all peers that it finds there afterwards.
        if self.is_closed() {
            return Err(PeerError::Closed);
        }
        if let Some(known) = peers.iter().find(|peer| peer.instance() == card.instance) {
            return Ok((known.clone(), false));
        }
        peers.push(peer.clone());
        self.inbox.peer_joined();
        drop(peers);
        tracing::debug!(target: "polyrail::peer", peer = peer.name(), "added");
        Ok((peer, true))
    }

    /// Says something on every flow that came from the peer: where nobody is any more, the other
    /// kernel answers that with a reset. An outage may have swallowed the first one.
    fn probe(&self, peer: &Arc<PeerShared>) {
        for proxy in &self.proxies.all {
            proxy.command(ProxyCommand::Probe { peer: peer.clone() });
        }
    }

    fn layout(&self, card: &Card) -> Result<Layout, PeerError> {
        let pairs = rail_selection::pair(&self.card.rails, &card.rails)?;
        let channels = match self.config.channels {
            // At most four times MAX_RAILS, which fits.
            0 => pairs.len() as u32 * self.settings.channels_per_rail,
            channels => channels,
        };
        let layout = Layout { pairs, channels, sockets: self.config.sockets };
        let flows = u64::from(layout.channels) * u64::from(layout.sockets);
        if flows > self.config.flow_limit.into() {
            return Err(PeerError::FlowLimit { flows, limit: self.config.flow_limit });
        }
        Ok(layout)
    }

    fn leaving(&self) -> MutexGuard<'_, Vec<(Arc<PeerShared>, Instant)>> {
        self.leaving.lock()
    }

    fn parted(&self) -> MutexGuard<'_, Parted> {
        self.parted.lock()
    }
}

const REMOVED: &str = "it has removed this engine: its user has to add this one again";
const OVER: &str = "it has lost this engine since: add it again";
const OTHER_SESSION: &str = "flows of another session of it are up";
const OTHER_CARD: &str = "another card is known for that instance than the hello says";

/// Whether a hello may be of the peer with that card. What the user gave may name addresses that a
/// network on the way translates; what a hello said before was the peer's own word.
fn is_told_by(known: &Card, said: &Card, by_user: bool) -> bool {
    let names = |card: &Card| card.rails.iter().map(|rail| rail.name.clone()).collect::<Vec<_>>();
    if !by_user {
        return known == said;
    }
    (known.host, &known.name, names(known)) == (said.host, &said.name, names(said))
}

impl Parted {
    fn entry(&mut self, instance: InstanceId) -> &mut Parting {
        if !self.known.contains_key(&instance) {
            self.order.push_back(instance);
            if self.order.len() > PARTED_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.known.remove(&oldest);
            }
        }
        self.known.entry(instance).or_default()
    }

    /// What the peer was heard to say belongs to a session that is over.
    fn end_session(&mut self, peer: &PeerShared) {
        let parting = self.entry(peer.instance());
        // A hello that is just being read may still be noted there; nothing came of it either.
        if peer.is_unused.load(Ordering::Acquire) {
            return;
        }
        if let Some(session) = peer.heard.load(Ordering::Acquire).checked_sub(1) {
            // It was made of a u32.
            parting.over.push_back(session as u32);
            if parting.over.len() > SESSIONS_MAX {
                parting.over.pop_front();
            }
        }
    }
}

impl Joined {
    pub(crate) fn new(bells: Arc<Bells>) -> Self {
        Self { queue: Mutex::default(), arrived: Condvar::new(), bells }
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Option<Peer> {
        let none = |queue: &mut Queue| queue.waiting.is_empty() && !queue.is_closed;
        let mut queue = self.queue();
        self.arrived.wait_while_for(&mut queue, none, timeout);
        queue.waiting.pop_front()
    }

    /// The first one, or `None` if nobody will come; else the task is woken by the next.
    pub(crate) fn poll(&self, place: &mut TaskPlace, waker: &Waker) -> Poll<Option<Peer>> {
        let mut queue = self.queue();
        if let Some(first) = queue.waiting.pop_front() {
            return Poll::Ready(Some(first));
        }
        if queue.is_closed {
            return Poll::Ready(None);
        }
        let earlier = queue.tasks.note(place, waker);
        drop(queue);
        drop(earlier);
        Poll::Pending
    }

    pub(crate) fn forget_task(&self, place: TaskPlace) {
        // One that never waited has no place.
        if place.is_some() {
            let waker = self.queue().tasks.forget(place);
            drop(waker);
        }
    }

    /// Nobody comes any more: whoever waits is told so.
    pub(crate) fn close(&self) {
        let mut queue = self.queue();
        queue.is_closed = true;
        self.wake(queue);
    }

    /// The peer has left before anybody accepted it, if ever anybody does.
    fn forget(&self, peer: &Arc<PeerShared>) {
        self.queue().waiting.retain(|other| !Arc::ptr_eq(&other.shared, peer));
    }

    fn push(&self, peer: Peer) {
        let mut queue = self.queue();
        queue.waiting.push_back(peer);
        self.wake(queue);
    }

    fn wake(&self, mut queue: MutexGuard<'_, Queue>) {
        let tasks = queue.tasks.take();
        drop(queue);
        self.arrived.notify_all();
        self.bells.tell(tasks);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}
