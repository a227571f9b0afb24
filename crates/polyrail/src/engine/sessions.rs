//! Sessions of peers: which one a hello is of, and which are over.
//!
//! Both ends count transfers, so an end that has lost the other must not go on with it as if nothing
//! had been. Each [`PeerShared`] has a number, which is the session of what it sends. Every hello
//! carries it in its epoch, with the session of the other end that was heard in it. A session that
//! either end has given up never comes back: its hellos are refused for good, which ends it at the
//! other side as well.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;

use polyrail_proto::InstanceId;
use polyrail_proto::hello::Metadata;

use crate::engine::life::PeerState;
use crate::engine::peer::PeerShared;

/// Instances that this engine has parted with; a limit on memory, the oldest is forgotten first.
const PARTED_MAX: usize = 4096;
/// Sessions of an instance that are remembered to be over.
const SESSIONS_MAX: usize = 16;
/// Where the session stands in the epoch of a hello, and where the one that was heard. Below them
/// connections are counted. Sessions are told by 16 bits: no end remembers nearly as many.
const SESSION_SHIFT: u32 = 48;
const KNOWN_SHIFT: u32 = 31;
const KNOWN_MASK: u64 = 0x1_ffff;
/// Stands for the session of a peer that has taken something and was never heard. It is no session's
/// number: those have 16 bits.
const UNHEARD: u64 = KNOWN_MASK;
const ATTEMPTS_MASK: u64 = (1 << KNOWN_SHIFT) - 1;

/// What is remembered of peers that were known.
#[derive(Default)]
pub(crate) struct Parted {
    pub(crate) known: HashMap<InstanceId, Parting>,
    order: VecDeque<InstanceId>,
}

#[derive(Default)]
pub(crate) struct Parting {
    /// Where it stands while it has no session.
    pub(crate) state: PeerState,
    /// What the user gave for it, if ever.
    pub(crate) given: Option<Metadata>,
    /// Its sessions that are over, the newest last.
    pub(crate) over: VecDeque<u32>,
}

/// The session that a peer's own number stands for, as the first epoch of its flows.
pub(crate) fn first_epoch(number: u32) -> u64 {
    u64::from(number) << SESSION_SHIFT
}

/// The epoch of a hello that is said now: with the session in which the peer was heard, or with
/// [`UNHEARD`].
///
/// A session of the peer is as good as unheard until something comes of it. Its hello may have been
/// read long after the peer had given it up, and the peer's next session must not be asked to go on
/// with it.
pub(crate) fn epoch_of_hello(epoch: u64, peer: &PeerShared) -> u64 {
    let is_acknowledged = peer.tx().sender.was_acknowledged();
    let is_used = is_acknowledged || !peer.rx().receiver.is_unused();
    let known = match peer.heard.load(Ordering::Acquire) {
        0 if is_acknowledged => UNHEARD,
        heard if is_used => heard & KNOWN_MASK,
        _ => 0,
    };
    epoch | known << KNOWN_SHIFT
}

pub(crate) fn session_of(epoch: u64) -> u32 {
    // 16 bits are left.
    (epoch >> SESSION_SHIFT) as u32
}

/// The session of this engine that the sender of a hello has heard.
pub(crate) fn known_session_of(epoch: u64) -> Option<u32> {
    // As in `heard`, 0 stands for none; the mask leaves 17 bits.
    Some(((epoch >> KNOWN_SHIFT) & KNOWN_MASK).checked_sub(1)? as u32)
}

/// The epoch of a connection, whatever its hello said of the other end's session.
pub(crate) fn connection_of(epoch: u64) -> u64 {
    epoch & !(KNOWN_MASK << KNOWN_SHIFT)
}

/// Which attempt to connect its flow this is.
pub(crate) fn attempts_of(epoch: u64) -> u64 {
    epoch & ATTEMPTS_MASK
}

impl Parted {
    pub(crate) fn entry(&mut self, instance: InstanceId) -> &mut Parting {
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
    pub(crate) fn end_session(&mut self, peer: &PeerShared) {
        let parting = self.entry(peer.instance());
        if parting.state != PeerState::Removed {
            parting.state = peer.state();
        }
        // A hello that is just being read may still be noted there; nothing came of it either.
        if peer.is_unused.load(Ordering::Acquire) {
            return;
        }
        if let Some(session) = peer.heard.load(Ordering::Acquire).checked_sub(1) {
            // It was made of a u32.
            parting.end(session as u32);
        }
    }
}

impl Parting {
    pub(crate) fn end(&mut self, session: u32) {
        self.over.push_back(session);
        if self.over.len() > SESSIONS_MAX {
            self.over.pop_front();
        }
    }
}
