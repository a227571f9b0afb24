//! Presence of a peer without flows. A kernel refuses connections at once where no process listens, so a process that
//! has ended need not be waited for. A host that is down, or a cable that is cut, gives no answer.
//!
//! The end that connects the flows finds out by reconnecting them. The other end probes: it connects to the peer's
//! addresses and sends nothing.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_proto::life::{CONFIRM, PeerEvent, PeerState};
use polyrail_proto::reason::{ConnectReason, LostReason};
use polyrail_proto::{FlowIndex, Time};
use polyrail_sys::threads::monotonic_ns;
use socket2::Socket;

use super::{Control, PROBE};
use crate::control::second_way::dial;
use crate::engine::peer::{PeerShared, RailPair};

/// Repeated connections to the listener of a peer that connects the flows itself, until the peer is back or gone.
pub(super) struct Probe {
    pub(super) peer: Arc<PeerShared>,
    /// Position of the pair of rails.
    pub(super) pair: usize,
    /// Whether the probe tests if the preferred pair works again, see `replacing`.
    pub(super) is_return: bool,
    /// The socket being connected; `None` until the next attempt is due.
    pub(super) socket: Option<Socket>,
    pub(super) due: Instant,
    pub(super) pause: Duration,
}

impl Control {
    /// Handles the loss of a flow to or from the peer.
    pub(super) fn flows_lost(&mut self, peer: &Arc<PeerShared>) {
        peer.note_flows();
        if peer.life.standing.state() != PeerState::CutOff {
            return;
        }
        let is_of_it = |probe: &Probe| !probe.is_return && Arc::ptr_eq(&probe.peer, peer);
        if !peer.life.standing.connects_flows()
            && !self.probes.iter().any(|(_, probe)| is_of_it(probe))
        {
            let due = Instant::now();
            for pair in peer.life.standing.pairs_that_lead_there(&peer.layout.pairs) {
                let (peer, pause) = (peer.clone(), CONFIRM);
                let probe = Probe { peer, pair, is_return: false, socket: None, due, pause };
                self.probes.insert(probe);
            }
        }
        self.judge(peer);
    }

    /// Handles the refusal of a flow by a listener. `proven`: the listener has proven to be the peer.
    pub(super) fn flow_refused(
        &mut self,
        peer: &Arc<PeerShared>,
        (flow, pair): (FlowIndex, RailPair),
        why: ConnectReason,
        proven: bool,
    ) {
        let (code, lost) = why.as_loss();
        peer.note_flows();
        peer.life.standing.note_refused(&peer.layout, flow, code, proven);
        let is_over = match peer.life.standing.verdict(|| peer.is_reached()) {
            Some(event @ PeerEvent::Dismissed { .. }) => self.engine.lose_peer(peer, event, lost),
            _ => false,
        };
        if !is_over {
            let slot = &peer.links.flows[flow.0 as usize];
            let pause = slot.reconnect.lock().handle_refused(&self.engine.settings.reconnect);
            self.retry_after(peer, (flow, pair), &why, pause);
        }
    }

    /// Notes a failed attempt to connect. Returns the pause until the next.
    pub(super) fn note_failure(
        &self,
        peer: &PeerShared,
        pair: usize,
        why: &ConnectReason,
        pause: Duration,
    ) -> Duration {
        if !why.says_absent() {
            peer.life.standing.note_somebody_there(pair);
            return pause;
        }
        peer.note_flows();
        if peer.life.standing.note_nobody_there(pair, Time(monotonic_ns())) {
            pause.min(CONFIRM)
        } else {
            pause
        }
    }

    /// Ends the peer if it is certain that its process no longer listens.
    pub(super) fn judge(&mut self, peer: &Arc<PeerShared>) {
        if peer.life.standing.verdict(|| peer.is_reached()) != Some(PeerEvent::NobodyThere) {
            return;
        }
        if peer.has_arrivals() {
            // Either they work, or the peer reads none of them at the moment.
            return self.engine.probe(peer);
        }
        let why = LostReason::NobodyThere { last_problem: peer.last_problem() };
        self.engine.lose_peer(peer, PeerEvent::NobodyThere, why);
    }

    /// Begins the probes that are due, and ends those that took too long.
    pub(super) fn probe_due(&mut self, now: Instant) {
        let due: Vec<usize> =
            self.probes.iter().filter(|(_, probe)| probe.due <= now).map(|(key, _)| key).collect();
        for key in due {
            let Some(probe) = self.probes.get(key) else { continue };
            let is_over = match probe.is_return {
                true => Self::has_returned(probe),
                false => {
                    probe.peer.life.standing.state() != PeerState::CutOff
                        || probe.peer.life.standing.connects_flows()
                }
            };
            if is_over {
                self.forget_probe(key);
            } else if probe.socket.is_some() {
                let why = ConnectReason::TimedOut { waiting_for: "the connection" };
                self.probe_ended(key, Some(why), now);
            } else {
                self.begin_probe(key, now);
            }
        }
    }

    /// Handles the kernel's result of a probe.
    pub(super) fn probed(&mut self, key: usize, now: Instant) {
        let Some(Probe { socket: Some(socket), .. }) = self.probes.get(key) else { return };
        let failed = match (socket.take_error(), socket.peer_addr()) {
            (Ok(Some(error)) | Err(error), _) => Some(error.into()),
            (Ok(None), Ok(_)) => None,
            (Ok(None), Err(error)) if error.kind() == ErrorKind::NotConnected => return,
            (Ok(None), Err(error)) => Some(error.into()),
        };
        self.probe_ended(key, failed, now);
    }

    fn begin_probe(&mut self, key: usize, now: Instant) {
        let Some(probe) = self.probes.get_mut(key) else { return };
        let pairs = &probe.peer.layout.pairs;
        let at = if probe.is_return { pairs.preferred(probe.pair) } else { pairs.at(probe.pair) };
        // One way is enough: if it gets no answer, the peer is not taken for gone.
        let settings = &self.engine.settings;
        let dialed = dial(&probe.peer, at, &self.engine.rails[at.0], settings, Duration::MAX);
        let started = dialed.map(|dialed| dialed.socket);
        let started = started.and_then(|socket| {
            self.engine.control.poller.add(socket.as_fd(), PROBE + key as u64)?;
            Ok(socket)
        });
        match started {
            Ok(socket) => {
                probe.socket = Some(socket);
                probe.due = now + self.engine.settings.connect_timeout;
            }
            Err(error) => self.probe_ended(key, Some(error.into()), now),
        }
    }

    /// Handles the end of a probe. `why`: the failure, or none if a process listens.
    fn probe_ended(&mut self, key: usize, why: Option<ConnectReason>, now: Instant) {
        let Some(probe) = self.probes.get_mut(key) else { return };
        if let Some(socket) = probe.socket.take() {
            let _ = self.engine.control.poller.remove(socket.as_fd());
        }
        if probe.is_return {
            return self.return_probed(key, why.is_none(), now);
        }
        let (peer, pair, pause) = (probe.peer.clone(), probe.pair, probe.pause);
        let pause = match why {
            None => {
                peer.life.standing.note_somebody_there(pair);
                pause
            }
            Some(why) => {
                let (from, to) = peer.layout.pairs.at(pair);
                peer.note_problem(self.pair_text(&peer, (from, to), &why.to_string()));
                self.note_failure(&peer, pair, &why, pause)
            }
        };
        if let Some(probe) = self.probes.get_mut(key) {
            probe.due = now + pause;
            probe.pause = (pause * 2).min(self.engine.settings.reconnect.max.max(CONFIRM));
        }
        self.judge(&peer);
    }

    fn forget_probe(&mut self, key: usize) {
        let probe = self.probes.remove(key);
        if let Some(socket) = probe.socket {
            let _ = self.engine.control.poller.remove(socket.as_fd());
        }
    }
}
