//! What users hold: their membership of a group, or a look at one.

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

/// The membership of an engine in a group. Dropping it leaves the group. It keeps the engine open.
///
/// All methods may be called from any thread. In a forked copy of the process nobody is there.
pub struct Group {
    engine: Engine,
    name: String,
    expected: Option<usize>,
    session: Session,
}

/// A look at a group from outside.
pub struct Watcher {
    session: Session,
}

/// Joins a group at the place that the engine's setting `rendezvous` names, and returns as soon as others
/// can find this engine. Blocks while the name is that of an engine that has died (for its lease at most),
/// and ranks wait for rank 0. [`Membership::timeout`] ends that earlier.
///
/// # Errors
/// The place can't be reached in time, refuses, or has an engine of that name that may live.
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

/// Looks at a group without joining it. Only a folder and etcd show their members so.
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

    /// How many members the launcher of the ranks has started; `None` where nobody knows.
    pub fn expected(&self) -> Option<usize> {
        self.expected
    }

    /// The next change; waits for it, at most `timeout`. Whoever was there before joins first. `None`:
    /// nothing has changed. This engine's own entry is no event.
    pub fn next_event(&self, timeout: Duration) -> Option<Event> {
        self.session.next_event(timeout)
    }

    /// The other members now, by name.
    pub fn members(&self) -> Vec<Member> {
        self.session.members()
    }

    /// The other members, once the group has `count` with this one; waits for that, at most `timeout`.
    pub fn wait_for(&self, count: usize, timeout: Duration) -> Option<Vec<Member>> {
        self.session.wait_for(count.saturating_sub(1), timeout)
    }

    /// The member as a peer of the engine. Adding one connects to it, so a large group costs only what is
    /// used of it. Adding it again returns the same peer.
    ///
    /// # Errors
    /// As [`Engine::add_peer`].
    pub fn peer(&self, member: &Member) -> Result<Peer, PeerError> {
        match &member.found {
            Found::Metadata(bytes) => self.engine.add_peer(bytes),
            Found::Peer(peer) => Ok(peer.clone()),
        }
    }

    /// Leaves the group, so that the others hear of it at once. Dropping does the same.
    pub fn leave(self) {}

    /// Leaves the group though others have references to it: their waits end, and there is no news any more.
    pub fn end(&self) {
        self.session.end();
    }

    /// Whether the group was left.
    pub fn has_ended(&self) -> bool {
        self.session.has_ended()
    }
}

impl Watcher {
    /// As [`Group::next_event`].
    pub fn next_event(&self, timeout: Duration) -> Option<Event> {
        self.session.next_event(timeout)
    }

    /// The members now, by name.
    pub fn members(&self) -> Vec<Member> {
        self.session.members()
    }

    /// The members, once there are `count`; waits for that, at most `timeout`. With 0 it waits for the
    /// first look.
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
