//! Peers that an engine knows: those that the user adds, and those that say hello or come back.
//!
//! [`polyrail_proto::life`] decides what follows from an event. This module carries it out.
//!
//! A hello never replaces a card that the user gave. A peer that comes back by itself is known by that card, and a
//! hello with another card is refused. A new session never replaces one with flows up: the engine refuses it and probes
//! those flows, and the peer tries again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::MutexGuard;
use polyrail_proto::InstanceId;
use polyrail_proto::budget::Taken;
use polyrail_proto::error::PeerError;
use polyrail_proto::hello::{Card, FlowHello, Metadata, RefusedCode};
use polyrail_proto::life::{Action, Greeter, Names, Parted, Parting, PeerEvent, PeerState, Step};
use polyrail_proto::pairing::Pairing;
use polyrail_proto::reason::LostReason;
use polyrail_sys::process::descriptor_limit;

use crate::engine::local_engines::engine_here;
use crate::engine::peer::{Ending, Layout, PeerOptions, PeerShared};
use crate::engine::peer_handle::Peer;
use crate::engine::proxy_handle::ProxyCommand;
use crate::engine::state::EngineShared;

/// Code and text with which a flow is refused.
pub(crate) type Unwelcome = (RefusedCode, String);

impl EngineShared {
    /// Whether the peer belongs to this engine, and not to another one in this process.
    pub(crate) fn is_own(&self, peer: &PeerShared) -> bool {
        peer.engine == self.card.instance
    }

    /// Notes the names on the certificate that the engine of this instance has shown. Does nothing if there are none.
    pub(crate) fn note_names(&self, instance: InstanceId, names: Names) {
        if names.is_empty() {
            return;
        }
        self.peers.names.lock().note(instance, names.clone());
        if let Some(peer) = self.peer(instance) {
            *peer.names.lock() = names;
        }
    }

    /// Adds or finds a peer for the user, and connects its flows at once.
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
            match peer.life.standing.happens(event) {
                Action::Connect => {
                    peer.by_user.store(true, Ordering::Release);
                    let mut parted = self.parted();
                    let parting = parted.entry(metadata.card.instance);
                    // Clear what stood against this instance.
                    parting.state = PeerState::Unknown;
                    parting.given = Some(peer.metadata());
                    drop(parted);
                    self.connect_flows(&peer);
                    return Ok(peer);
                }
                // The thread that ends the peer is about to take it off the list.
                Action::Begin => std::thread::yield_now(),
                Action::BeginAnew if peer.life.standing.is_parting() => {
                    self.lose_peer(&peer, event, LostReason::Removed);
                }
                Action::BeginAnew => {
                    if peer.close_unused() {
                        // Nothing has passed, so this instance may come again as if for the first time.
                        peer.life.is_unused.store(true, Ordering::Release);
                    }
                    self.lose_peer(&peer, event, LostReason::OtherMetadata);
                }
                // Only a peer that gets the closing engine's goodbye is neither kept nor replaced.
                _ => return Err(PeerError::Closed),
            }
        }
    }

    /// Handles a peer's hello: finds or adds the peer, and takes a place for the connection.
    pub(crate) fn greet(
        self: &Arc<Self>,
        hello: &FlowHello,
    ) -> Result<(Arc<PeerShared>, Taken), Unwelcome> {
        let malformed = |why| (RefusedCode::Malformed, why);
        let refused = |code: RefusedCode| (code, code.words().to_owned());
        let greeter = Greeter::new(hello.epoch, self.started.elapsed());
        let mut greeter = greeter.map_err(malformed)?;
        let (instance, session) = (hello.card.instance, greeter.session());
        loop {
            // In this order: a peer that ends meanwhile is noted in `parted` before it leaves the list.
            let live = self.peer(instance);
            let parting = self.parted().get(instance).cloned();
            let given = parting.as_ref().and_then(|parting| parting.given.as_ref());
            let fits = match (&live, given) {
                (Some(peer), _) => {
                    let by_user = peer.by_user.load(Ordering::Acquire);
                    peer.card.may_say(&hello.card, by_user)
                }
                (None, Some(given)) => given.card.may_say(&hello.card, true),
                (None, None) => true,
            };
            let standing = live.as_ref().map(|peer| peer.live());
            let is_unused = || live.as_ref().is_some_and(|peer| peer.rx().receiver.is_unused());
            let step = greeter.next(standing, parting.as_ref(), fits, is_unused);
            match (step, live) {
                (Step::Welcome, Some(peer)) => return self.admit(peer, hello, session),
                (Step::Begin, _) => {
                    let by_user = given.is_some();
                    if !by_user {
                        self.check_newcomers()?;
                    }
                    let metadata = given.cloned().unwrap_or_else(|| hello.metadata());
                    let made = self.find_or_make(&metadata, by_user);
                    let (peer, is_new) = made.map_err(|error| malformed(error.to_string()))?;
                    if is_new {
                        let admitted = self.admit(peer.clone(), hello, session)?;
                        let joined = Peer { shared: peer };
                        self.arrived.joined.bring(|queue| queue.push_back(joined));
                        return Ok(admitted);
                    }
                }
                // The thread that ends the peer is about to take it off the list.
                (Step::Wait, _) => std::thread::yield_now(),
                (Step::End(event), Some(peer)) => {
                    self.lose_peer(&peer, event, LostReason::Anew);
                }
                (Step::EndBoth(event), Some(peer)) => {
                    self.lose_peer(&peer, event, LostReason::Anew);
                    self.parted().entry(instance).end(session);
                    return Err(refused(RefusedCode::SessionOver));
                }
                (Step::Probe, Some(peer)) => {
                    self.probe(&peer);
                    return Err(refused(RefusedCode::OtherSession));
                }
                (Step::Refuse(code), _) => return Err(refused(code)),
                // These steps need an existing session.
                (Step::Welcome | Step::End(_) | Step::EndBoth(_) | Step::Probe, None) => {
                    return Err(refused(RefusedCode::OtherSession));
                }
            }
        }
    }

    /// Takes a place for a connection of the peer, and notes the number of its session.
    fn admit(
        &self,
        peer: Arc<PeerShared>,
        hello: &FlowHello,
        session: u32,
    ) -> Result<(Arc<PeerShared>, Taken), Unwelcome> {
        let place = self.place(&peer, hello)?;
        peer.life.standing.note_heard(session);
        Ok((peer, place))
    }

    /// Takes a place for a connection of the peer.
    fn place(&self, peer: &PeerShared, hello: &FlowHello) -> Result<Taken, Unwelcome> {
        let place = peer.account.quotas.place(hello.flows, self.connection_limit());
        place.map_err(|why| (RefusedCode::Limit, why))
    }

    /// Maximum number of connections of all peers together. Keeps some descriptors for other uses, whatever
    /// `flow_limit` allows.
    pub(crate) fn connection_limit(&self) -> u32 {
        let descriptors = descriptor_limit();
        let most = descriptors - descriptors / 4;
        u32::try_from(most).unwrap_or(u32::MAX).min(self.config.flow_limit)
    }

    /// Refuses a newcomer when too many are known. Peers that the user did not add cost memory until they are given up,
    /// even without a connection. At most [`EngineShared::connection_limit`] of them may be known: one for each
    /// connection.
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

    /// Whether the user has neither added nor removed this instance, and it is not a peer.
    pub(crate) fn is_stranger(&self, instance: InstanceId) -> bool {
        let parted = self.parted();
        let is_ours =
            |parting: &Parting| parting.state == PeerState::Removed || parting.given.is_some();
        !parted.get(instance).is_some_and(is_ours) && self.peer(instance).is_none()
    }

    /// Returns the peer of this card's instance, and whether this call created it. `by_user`: the user gave the card.
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
        // Before taking the lock, which every lookup of a peer needs.
        let layout = self.layout(card, by_user)?;
        let owner: Weak<Self> = Arc::downgrade(self);
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
            spins: self.pace.pollers.are_allowed(),
            payload: self.settings.payload_for(card),
            rails: self.rails.len(),
            budgets: &self.budgets,
            ending: Ending::new(&self.arrived.bells, owner),
            closed_here: engine_here(card.instance).map(|engine| engine.closed()),
        };
        let number = self.peers.next_number.fetch_add(1, Ordering::Relaxed);
        let (tx, doorbells) = (&self.proxies.tx, self.proxies.doorbells());
        let peer = PeerShared::new(number, metadata.clone(), layout, tx, &doorbells, options);
        let peer = Arc::new(peer);
        *peer.names.lock() = self.peers.names.lock().of(card.instance);
        peer.by_user.store(by_user, Ordering::Release);
        let mut peers = self.peers.list.write();
        // Under the lock: the thread that closes the engine ends all peers that it finds in the list afterwards.
        if self.is_closed() {
            return Err(PeerError::Closed);
        }
        if let Some(known) = peers.iter().find(|peer| peer.instance() == card.instance) {
            return Ok((known.clone(), false));
        }
        peers.push(peer.clone());
        self.arrived.inbox.limits.peer_joined();
        drop(peers);
        tracing::debug!(target: "polyrail::peer", peer = peer.name(), "added");
        Ok((peer, true))
    }

    /// Sends data on every flow that came from the peer. If the peer is gone, the other kernel answers with a reset. An
    /// outage may have swallowed the first one.
    pub(crate) fn probe(&self, peer: &Arc<PeerShared>) {
        for proxy in &self.proxies.all {
            proxy.command(ProxyCommand::Probe { peer: peer.clone() });
        }
    }

    /// Lays out flows to the card's engine. `by_user`: whether this engine connects to it.
    fn layout(&self, card: &Card, by_user: bool) -> Result<Layout, PeerError> {
        let reach = self.reach(&card.rails);
        let pairing = self.pairing_of(&card.rails, &reach).for_peer(by_user)?;
        self.log_idle(card, &pairing);
        let channels = (self.config.channels, self.settings.channels_per_rail);
        Layout::new(pairing, channels, self.config.sockets, self.config.flow_limit)
    }

    /// Logs rails that no flow uses, and the reasons.
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
