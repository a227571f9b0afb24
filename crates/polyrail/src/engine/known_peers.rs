//! Who is known to an engine: peers that the user adds, and peers that say hello or come back.
//!
//! [`polyrail_proto::life`] decides what follows from an event. Here it is carried out.
//!
//! A hello never replaces a card that the user gave: a peer that comes back by itself is known by
//! that card, and a hello with another one is refused. A new session never replaces one with flows up: the engine refuses it and probes those flows, and the peer
//! tries again.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use polyrail_proto::InstanceId;
use polyrail_proto::defaults::channels;
use polyrail_proto::error::PeerError;
use polyrail_proto::hello::{Card, FlowHello, Metadata, RailCard, RefusedCode};
use polyrail_proto::life::{
    self, Action, Epoch, HelloKind, Names, Parted, Parting, PeerEvent, PeerState, Sessions,
};
use polyrail_proto::pairing::{Never, Pairing, Reach};
use polyrail_proto::reason::LostReason;

use crate::engine::local_engines::engine_here;
use crate::engine::peer::{Ending, Layout, Pairs, PeerOptions, PeerShared};
use crate::engine::peer_handle::Peer;
use crate::engine::proxy_handle::ProxyCommand;
use crate::engine::quotas::FlowPlace;
use crate::engine::state::EngineShared;

/// Why a flow is not welcome, and what its peer is told.
pub(crate) type Unwelcome = (RefusedCode, String);

impl EngineShared {
    /// Whether it is a peer of this engine, and not of another one in this process.
    pub(crate) fn is_own(&self, peer: &PeerShared) -> bool {
        peer.engine == self.card.instance
    }

    /// The engine of this instance has shown a certificate with these names, if there are any.
    pub(crate) fn note_names(&self, instance: InstanceId, names: Names) {
        if names.is_empty() {
            return;
        }
        self.peers.names.lock().note(instance, names.clone());
        if let Some(peer) = self.peer(instance) {
            *peer.names.lock() = names;
        }
    }

    /// Adds a peer by the user's will, or finds it: flows are connected at once.
    pub(crate) fn add_peer(
        self: &Arc<Self>,
        metadata: Metadata,
    ) -> Result<Arc<PeerShared>, PeerError> {
        if self.is_forked() {
            return Err(PeerError::Forked);
        }
        loop {
            let (peer, _) = self.find_or_make(&metadata, true)?;
            let is_same = peer.by_user.load(Ordering::Acquire) || peer.card == metadata.card;
            let event = if is_same { PeerEvent::Add } else { PeerEvent::AddOtherCard };
            match peer.happens(event) {
                Action::Connect => {
                    peer.by_user.store(true, Ordering::Release);
                    let mut parted = self.parted();
                    let parting = parted.entry(metadata.card.instance);
                    // Nothing stands against it any more.
                    parting.state = PeerState::Unknown;
                    parting.given = Some(peer.metadata());
                    drop(parted);
                    self.connect_flows(&peer);
                    return Ok(peer);
                }
                // Whoever ends it is about to take it off the list.
                Action::Begin => std::thread::yield_now(),
                Action::BeginAnew if peer.is_parting() => {
                    self.lose_peer(&peer, event, LostReason::Removed);
                }
                Action::BeginAnew => {
                    if peer.close_unused() {
                        // Nothing has passed: whoever it was may come again as if for the first
                        // time.
                        peer.is_unused.store(true, Ordering::Release);
                    }
                    self.lose_peer(&peer, event, LostReason::OtherMetadata);
                }
                // Only one that is told of the engine's end is neither kept nor replaced.
                _ => return Err(PeerError::Closed),
            }
        }
    }

    /// A peer says hello: finds it, or adds it, and takes a place for the connection.
    pub(crate) fn greet(
        self: &Arc<Self>,
        hello: &FlowHello,
    ) -> Result<(Arc<PeerShared>, FlowPlace), Unwelcome> {
        let epoch = Epoch(hello.epoch);
        let malformed = |why| (RefusedCode::Malformed, why);
        let refused = |code: RefusedCode| (code, code.words().to_owned());
        epoch.check(self.started.elapsed()).map_err(malformed)?;
        let (instance, session) = (hello.card.instance, epoch.session());
        // A few times if it comes in a new session, or if the user adds it just now.
        for _ in 0..4 {
            // In this order: what ends meanwhile is noted among the parted before it leaves the
            // list.
            let live = self.peer(instance);
            let (mut state, over, given) = {
                let parted = self.parted();
                let parting = parted.get(instance);
                let over = parting.map_or_else(Vec::new, |parting| parting.over().collect());
                let given = parting.and_then(|parting| parting.given.clone());
                (parting.map_or(PeerState::Unknown, |parting| parting.state), over, given)
            };
            let heard = live.as_ref().and_then(|peer| peer.heard_session());
            if let Some(peer) = &live {
                state = peer.state();
            }
            let has_flows_up =
                live.as_ref().is_some_and(|peer| peer.rx_flows_up.load(Ordering::Acquire) > 0);
            let is_unused = || live.as_ref().is_some_and(|peer| peer.rx().receiver.is_unused());
            let sessions = Sessions {
                said: session,
                knows: epoch.heard_session(),
                own: live.as_ref().map(|peer| Epoch::first(peer.number).session()),
                heard,
                over: &over,
            };
            let mut greeting = life::greeting(sessions, has_flows_up, is_unused);
            let fits = match (&live, &given) {
                (Some(peer), _) => {
                    let by_user = peer.by_user.load(Ordering::Acquire);
                    peer.card.may_say(&hello.card, by_user)
                }
                (None, Some(given)) => given.card.may_say(&hello.card, true),
                (None, None) => true,
            };
            if !fits && greeting != HelloKind::Over {
                greeting = HelloKind::OtherCard;
            }
            let event = PeerEvent::Hello(greeting);
            match (state.after(event).1, live) {
                (Action::Welcome, Some(peer)) => {
                    let place = self.place(&peer, hello)?;
                    peer.note_heard(session);
                    return Ok((peer, place));
                }
                (Action::Begin, None) => {
                    let by_user = given.is_some();
                    if !by_user {
                        self.check_newcomers()?;
                    }
                    let metadata = given.unwrap_or_else(|| hello.metadata());
                    let malformed = |error: PeerError| (RefusedCode::Malformed, error.to_string());
                    let made = self.find_or_make(&metadata, by_user);
                    let (peer, is_new) = made.map_err(malformed)?;
                    if is_new {
                        let place = self.place(&peer, hello)?;
                        peer.note_heard(session);
                        let joined = Peer { shared: peer.clone() };
                        self.joined.bring(|queue| queue.push_back(joined));
                        return Ok((peer, place));
                    }
                }
                // Whoever ends it is about to take it off the list.
                (Action::Begin, Some(_)) => std::thread::yield_now(),
                (Action::BeginAnew, Some(peer)) => {
                    self.lose_peer(&peer, event, LostReason::Anew);
                }
                (Action::EndBoth, Some(peer)) => {
                    self.lose_peer(&peer, event, LostReason::Anew);
                    self.parted().entry(instance).end(session);
                    return Err(refused(RefusedCode::SessionOver));
                }
                (Action::RefuseAndProbe, Some(peer)) => {
                    self.probe(&peer);
                    break;
                }
                (Action::Refuse(code), _) => return Err(refused(code)),
                _ => break,
            }
        }
        Err(refused(RefusedCode::OtherSession))
    }

    /// A place for a connection of the peer.
    fn place(&self, peer: &Arc<PeerShared>, hello: &FlowHello) -> Result<FlowPlace, Unwelcome> {
        let place = FlowPlace::take(peer, hello.flows, self.connection_limit());
        place.map_err(|why| (RefusedCode::Limit, why))
    }

    /// Peers that nobody added cost memory until they are given up, even without a connection. At
    /// most [`EngineShared::connection_limit`] of them may be known: one for each connection.
    fn check_newcomers(&self) -> Result<(), Unwelcome> {
        let limit = self.connection_limit();
        let is_newcomer = |peer: &&Arc<PeerShared>| !peer.by_user.load(Ordering::Acquire);
        let known = self.peers.list.read().iter().filter(is_newcomer).count();
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
        let is_ours =
            |parting: &Parting| parting.state == PeerState::Removed || parting.given.is_some();
        !parted.get(instance).is_some_and(is_ours) && self.peer(instance).is_none()
    }

    /// The peer of this card's instance; says whether it was made just now. `by_user`: who gave the
    /// card.
    fn find_or_make(
        self: &Arc<Self>,
        metadata: &Metadata,
        by_user: bool,
    ) -> Result<(Arc<PeerShared>, bool), PeerError> {
        let card = &metadata.card;
        if card.instance == self.card.instance {
            return Err(PeerError::Myself);
        }
        if let Some(known) = self.peer(card.instance) {
            return Ok((known, false));
        }
        // Before the lock is taken, which everybody needs who looks for a peer.
        let layout = self.layout(card, by_user)?;
        let options = PeerOptions {
            window_chunks: self.config.window_chunks,
            ops_pool: self.config.ops_pool,
            flow_limit: self.config.flow_limit,
            engine: self.card.instance,
            same_host: card.host == self.card.host,
            obstacle: match (self.settings.shares, card.host == self.card.host) {
                (true, true) => None,
                (_, false) => Some("the peer is on another host"),
                (false, true) => Some("the setting path says tcp"),
            },
            spins: self.pollers.are_allowed(),
            payload: self.settings.payload_for(card),
            rails: self.rails.len(),
            budgets: &self.budgets,
            ending: Ending::new(self),
            closed_here: engine_here(card.instance).map(|engine| engine.closed()),
        };
        let number = self.peers.next_number.fetch_add(1, Ordering::Relaxed);
        let peer =
            Arc::new(PeerShared::new(number, metadata.clone(), layout, &self.proxies, options));
        *peer.names.lock() = self.peers.names.lock().of(card.instance);
        peer.by_user.store(by_user, Ordering::Release);
        let mut peers = self.peers.list.write();
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
    pub(crate) fn probe(&self, peer: &Arc<PeerShared>) {
        for proxy in &self.proxies.all {
            proxy.command(ProxyCommand::Probe { peer: peer.clone() });
        }
    }

    /// `by_user`: whether this engine is to connect to it. One that came can answer on its own connections, whatever
    /// is known of its addresses.
    fn layout(&self, card: &Card, by_user: bool) -> Result<Layout, PeerError> {
        let mut reach = self.reach(&card.rails);
        let mut pairing = self.pairing_of(&card.rails, &reach).pair();
        if pairing.pairs.is_empty() && !by_user {
            for reach in reach.iter_mut().flatten() {
                if *reach == Reach::Unreachable(Never::Loopback) {
                    *reach = Reach::Unknown;
                }
            }
            pairing = self.pairing_of(&card.rails, &reach).pair();
        }
        if pairing.pairs.is_empty() {
            let names = |rails: &[RailCard]| {
                let named = rails.iter().map(|rail| format!("{} {}", rail.name, rail.address));
                named.collect::<Vec<_>>().join(", ")
            };
            return Err(PeerError::NoRailPair {
                local: names(&self.card.rails),
                remote: names(&card.rails),
                why: self.pairing_of(&card.rails, &reach).why_none(),
            });
        }
        self.log_idle(card, &pairing);
        let pairs = Pairs::new(pairing);
        let per_rail = self.settings.channels_per_rail;
        let channels = channels(self.config.channels, pairs.len(), per_rail);
        let layout = Layout { pairs, channels, sockets: self.config.sockets };
        let flows = u64::from(layout.channels) * u64::from(layout.sockets);
        if flows > self.config.flow_limit.into() {
            return Err(PeerError::FlowLimit { flows, limit: self.config.flow_limit });
        }
        Ok(layout)
    }

    /// Rails that no flow will take, and why.
    fn log_idle(&self, card: &Card, pairing: &Pairing) {
        let peer = &card.name;
        for (rail, why) in self.card.rails.iter().zip(&pairing.idle_local) {
            if let Some(why) = why {
                tracing::info!(target: "polyrail::rail", peer, rail = rail.name, why, "rail is not used towards the peer");
            }
        }
        for (rail, why) in card.rails.iter().zip(&pairing.idle_remote) {
            if let Some(why) = why {
                tracing::info!(target: "polyrail::rail", peer, rail = rail.name, why, "rail of the peer is not used");
            }
        }
    }

    pub(crate) fn parted(&self) -> MutexGuard<'_, Parted> {
        self.peers.parted.lock()
    }
}
