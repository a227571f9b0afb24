//! Membership of a group, and observing a group from outside.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use polyrail::{Engine, Peer, PeerError};
use polyrail_config::{Config, Rendezvous};

use crate::backend::{Backend, Own};
use crate::dir::Dir;
use crate::dns::Dns;
use crate::error::RendezvousError;
use crate::etcd::Etcd;
use crate::member::{Event, Found, Member};
use crate::names::{Membership, Name};
use crate::ranks::Ranks;
use crate::session::Session;
use crate::stop::Stop;

/// Membership of an engine in a group. Dropping it leaves the group. It keeps the engine open.
///
/// All methods may be called from any thread. In a forked copy of the process the group has no members.
pub struct Group {
    engine: Engine,
    name: String,
    expected: Option<usize>,
    session: Session,
}

/// Observer of a group, without membership.
pub struct Watcher {
    session: Session,
}

/// Joins a group at the place in the engine's setting `rendezvous`, and returns as soon as other members can find this
/// engine. Blocks while a dead engine holds the name (for its lease at most) and while ranks wait for rank 0.
/// [`Membership::timeout`] limits that time.
///
/// # Errors
/// The place can't be reached in time or refuses, or the name belongs to an engine that may live.
pub fn join(engine: &Engine, membership: &Membership) -> Result<Group, RendezvousError> {
    let place = Place::of(engine.config())?;
    let named = membership.name.clone();
    let own = |default: String| -> Result<Own, RendezvousError> {
        let name = named.map_or_else(|| default.parse::<Name>(), Ok)?;
        Ok(Own { name, metadata: Arc::from(engine.metadata()) })
    };
    let unnamed = engine.instance().to_string();
    let mut expected = None;
    let (own, mut backend): (_, Box<dyn Backend>) = match &place.rendezvous {
        Rendezvous::Dir { folder, lease } => {
            let own = own(unnamed)?;
            let owner = Some((own.clone(), engine.clone()));
            (own, Box::new(Dir::new(folder, &membership.group, *lease, owner)))
        }
        Rendezvous::Etcd { hosts, prefix, lease, user_file } => {
            let own = own(unnamed)?;
            let etcd = Etcd::new(&place.text, hosts, user_file.as_deref(), *lease)?;
            (own.clone(), Box::new(etcd.of(prefix, &membership.group, Some(own))))
        }
        Rendezvous::Dns { name, port, every } => {
            let dns = Dns::new(&place.text, (name, *port), *every, engine);
            (own(unnamed)?, Box::new(dns))
        }
        Rendezvous::Ranks { launcher, host, port } => {
            let ranks = Ranks::of(&place.text, *launcher, host.as_deref(), *port)?;
            expected = Some(ranks.size());
            let own = own(ranks.name())?;
            let group = &membership.group;
            (own.clone(), ranks.backend(engine, group, own)?)
        }
        _ => return Err(place.unknown()),
    };
    backend.enter(&Stop::after(membership.timeout))?;
    let session = Session::start(backend, Some(own.name.to_string()))?;
    Ok(Group { engine: engine.clone(), name: own.name.to_string(), expected, session })
}

/// Observes a group without joining it. Works for folders and etcd.
///
/// # Errors
/// The settings name no such place, a file that it needs can't be read, or the place does not answer within
/// `timeout`.
pub fn look(config: &Config, group: &Name, timeout: Duration) -> Result<Watcher, RendezvousError> {
    let place = Place::of(config)?;
    let mut backend: Box<dyn Backend> = match &place.rendezvous {
        Rendezvous::Dir { folder, lease } => Box::new(Dir::new(folder, group, *lease, None)),
        Rendezvous::Etcd { hosts, prefix, lease, user_file } => {
            let etcd = Etcd::new(&place.text, hosts, user_file.as_deref(), *lease)?;
            Box::new(etcd.of(prefix, group, None))
        }
        Rendezvous::Ranks { .. } | Rendezvous::Dns { .. } => {
            return Err(RendezvousError::MembersOnly { place: place.text });
        }
        _ => return Err(place.unknown()),
    };
    backend.enter(&Stop::after(timeout))?;
    Ok(Watcher { session: Session::start(backend, None)? })
}

struct Place {
    text: String,
    rendezvous: Rendezvous,
}

impl Place {
    fn of(config: &Config) -> Result<Self, RendezvousError> {
        let text = config.rendezvous.clone();
        match Rendezvous::parse(&text) {
            Ok(Some(rendezvous)) => Ok(Self { text, rendezvous }),
            Ok(None) => Err(RendezvousError::NotSet),
            Err(error) => Err(RendezvousError::Value { value: text, reason: error.reason }),
        }
    }

    fn unknown(self) -> RendezvousError {
        let reason = "names a place that this version doesn't know".to_owned();
        RendezvousError::Value { value: self.text, reason }
    }
}

impl Group {
    /// The name of this engine in the group.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of members that the launcher of the ranks has started. `None` if unknown.
    pub fn expected(&self) -> Option<usize> {
        self.expected
    }

    /// Returns the next change, and waits for it at most `timeout`. Members that were there before are reported as
    /// joined first. Returns `None` if nothing has changed. This engine's own entry is not reported.
    pub fn next_event(&self, timeout: Duration) -> Option<Event> {
        self.session.next_event(timeout)
    }

    /// Returns the other members at this moment, sorted by name.
    pub fn members(&self) -> Vec<Member> {
        self.session.members()
    }

    /// Waits until the group has `count` members including this one, at most `timeout`. Returns the other members.
    pub fn wait_for(&self, count: usize, timeout: Duration) -> Option<Vec<Member>> {
        self.session.wait_for(count.saturating_sub(1), timeout)
    }

    /// Returns the member as a peer of the engine. Adding a peer connects to it, so connections are made only to
    /// members in use. Repeated calls return the same peer.
    ///
    /// # Errors
    /// As [`Engine::add_peer`].
    pub fn peer(&self, member: &Member) -> Result<Peer, PeerError> {
        match &member.found {
            Found::Metadata(bytes) => self.engine.add_peer(bytes),
            Found::Peer(peer) => Ok(peer.clone()),
        }
    }

    /// Leaves the group, which the other members see at once. Dropping does the same.
    pub fn leave(self) {}

    /// Leaves the group even if other references to it exist. Their waits end, and no more events follow.
    pub fn end(&self) {
        self.session.end();
    }

    /// True if the group was left.
    pub fn has_ended(&self) -> bool {
        self.session.has_ended()
    }
}

impl Watcher {
    /// As [`Group::next_event`].
    pub fn next_event(&self, timeout: Duration) -> Option<Event> {
        self.session.next_event(timeout)
    }

    /// Returns the members at this moment, sorted by name.
    pub fn members(&self) -> Vec<Member> {
        self.session.members()
    }

    /// Waits until there are `count` members, at most `timeout`, and returns them. With 0, waits for the first look.
    pub fn wait_for(&self, count: usize, timeout: Duration) -> Option<Vec<Member>> {
        self.session.wait_for(count, timeout)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Group({}, {:?})", self.name, self.session.members())
    }
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watcher({:?})", self.session.members())
    }
}
