//! Engines find each other by etcd. Each has a key `PREFIX/GROUP/NAME`, attached to a lease that the engine keeps
//! alive.
//!
//! etcd remembers changes and sends them to watches, so an interrupted watch continues where it stopped. After a change
//! a watch is closed for a moment, which is longer for larger groups, and then picks up all changes made meanwhile.
//! Otherwise each of a thousand engines that start together would receive a thousand messages.

mod client;
mod http;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use polyrail_sys::process::has_rights_of_its_file;

use crate::backend::{Backend, News, Own};
use crate::error::RendezvousError;
use crate::member::{Found, engine_in};
use crate::names::Name;
use crate::stop::Stop;
use client::{Client, Held, Put, User, Watch, seconds_of};

/// Maximum size of a group whose watch takes each change at once.
const SMALL: usize = 16;
const PAUSE_PER_MEMBER: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Interval between attempts to take a name that is taken.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// Variables from which `etcdctl` reads user and password.
const USER_VARIABLE: &str = "ETCDCTL_USER";
const PASSWORD_VARIABLE: &str = "ETCDCTL_PASSWORD";

/// A cluster for which no group has been chosen yet.
pub(crate) struct Etcd {
    client: Client,
    lease: Duration,
}

pub(crate) struct EtcdGroup {
    client: Client,
    /// Prefix of the group's keys, with a slash at the end.
    prefix: String,
    group: Name,
    lease: Duration,
    own: Option<Own>,
    granted: Option<Granted>,
    own_key: OwnKey,
    /// Time at which the lease is renewed next, or, for a watcher, etcd is pinged.
    next: Instant,
    /// Last known revision. `None` if the whole table must be read again.
    revision: Option<i64>,
    watch: Option<Watch>,
    /// Approximate number of keys.
    members: usize,
    /// Keys with invalid records that were already logged.
    left_out: BTreeSet<Vec<u8>>,
}

/// State of this engine's key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnKey {
    /// Present, or never put.
    There,
    /// Deleted, expired with its lease, or replaced.
    Gone,
    /// Another engine has put it, and a warning was logged.
    Taken,
}

/// Holder of the name that this engine wants.
struct Holder {
    held: Held,
    who: String,
}

struct Granted {
    id: String,
    seconds: u64,
}

impl Etcd {
    pub(crate) fn new(
        place: &str,
        hosts: &[(String, u16)],
        user_file: Option<&str>,
        lease: Duration,
    ) -> Result<Self, RendezvousError> {
        let user = user(place, user_file)?;
        Ok(Self { client: Client::new(place, hosts, user), lease })
    }

    pub(crate) fn of(self, prefix: &str, group: &Name, own: Option<Own>) -> EtcdGroup {
        EtcdGroup {
            client: self.client,
            prefix: format!("{prefix}/{group}/"),
            group: group.clone(),
            lease: self.lease,
            own,
            granted: None,
            own_key: OwnKey::There,
            next: Instant::now(),
            revision: None,
            watch: None,
            members: 0,
            left_out: BTreeSet::new(),
        }
    }
}

/// Reads the user from the file, or else from the environment.
fn user(place: &str, file: Option<&str>) -> Result<Option<User>, RendezvousError> {
    let (from, text, password) = match file {
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|source| RendezvousError::File {
                what: "user_file",
                path: path.to_owned(),
                source,
            })?;
            (path, text, None)
        }
        // The program runs with the rights of its file, so the caller controls its environment.
        None if has_rights_of_its_file() => return Ok(None),
        None => match std::env::var(USER_VARIABLE) {
            Ok(text) => (USER_VARIABLE, text, std::env::var(PASSWORD_VARIABLE).ok()),
            Err(_) => return Ok(None),
        },
    };
    let line = text.lines().next().unwrap_or_default().trim();
    let user = match (line.split_once(':'), password) {
        (Some((name, password)), _) => {
            User { name: name.to_owned(), password: password.to_owned() }
        }
        (None, Some(password)) => User { name: line.to_owned(), password },
        (None, None) => {
            return Err(RendezvousError::Environment {
                place: place.to_owned(),
                variable: from.to_owned(),
                fault: "has no `:`; allowed: user:password".to_owned(),
                help: "write the user, a colon and the password in its first line".to_owned(),
            });
        }
    };
    Ok(Some(user))
}

impl EtcdGroup {
    fn key_of(&self, own: &Own) -> Vec<u8> {
        format!("{}{}", self.prefix, own.name).into_bytes()
    }

    /// Joins: takes a lease and puts this engine's key with it.
    fn register(&mut self, stop: &Stop) -> Result<(), RendezvousError> {
        let Some(own) = self.own.clone() else { return Ok(()) };
        let entered = self.take_name(&own, stop);
        if entered.is_err()
            && let Some(granted) = self.granted.take()
        {
            // A lost call does no harm: the lease expires.
            let _ = self.client.revoke(&granted.id, stop);
        }
        entered
    }

    /// Takes the name. If a dead engine has it, waits for its lease to end.
    fn take_name(&mut self, own: &Own, stop: &Stop) -> Result<(), RendezvousError> {
        let id = self.lease(stop)?;
        let begin = Instant::now();
        let mut holder = None;
        loop {
            let tried = self.try_name(own, &id, &mut holder, stop);
            let waited = begin.elapsed();
            match (tried, &holder) {
                (Ok(true), _) => return Ok(()),
                // If the name is known to be taken and no time is left to ask again, report that instead of the error.
                (Err(error), holder) if holder.is_none() || !stop.is_set() => return Err(error),
                (_, Some(holder))
                    if waited > self.lease || stop.is_set() || holder.held.lease.is_none() =>
                {
                    return Err(self.taken(own, holder, waited));
                }
                _ => stop.sleep(TRY_AGAIN),
            }
        }
    }

    /// True if the name now belongs to this engine. Otherwise `holder` describes the engine that has it.
    fn try_name(
        &mut self,
        own: &Own,
        lease: &str,
        holder: &mut Option<Holder>,
        stop: &Stop,
    ) -> Result<bool, RendezvousError> {
        if holder.is_some() {
            self.client.keep_alive(lease, stop)?;
        }
        let Some(held) = self.put_own(own, lease, stop)? else { return Ok(true) };
        if holder.as_ref().is_none_or(|holder| holder.held != held) {
            *holder = Some(self.holder(held, stop));
        }
        Ok(false)
    }

    /// Returns the lease of this engine, and takes one if it has none.
    fn lease(&mut self, stop: &Stop) -> Result<String, RendezvousError> {
        if let Some(granted) = &self.granted {
            return Ok(granted.id.clone());
        }
        let wanted = seconds_of(self.lease);
        let (id, seconds) = self.client.grant(wanted, stop)?;
        if seconds > wanted {
            tracing::warn!(
                target: "polyrail::rendezvous",
                "etcd gives leases of {seconds} s at least, so the end of an engine is noticed later \
                 than {:?}", self.lease
            );
        }
        self.granted = Some(Granted { id: id.clone(), seconds });
        self.next = Instant::now() + self.period();
        Ok(id)
    }

    /// Puts this engine's key. Returns the present entry if another engine has the name.
    fn put_own(
        &mut self,
        own: &Own,
        lease: &str,
        stop: &Stop,
    ) -> Result<Option<Held>, RendezvousError> {
        let key = self.key_of(own);
        let mut old = None;
        loop {
            match self.client.put_new(&key, &own.metadata, lease, old.as_deref(), stop)? {
                Put::Done => {
                    self.own_key = OwnKey::There;
                    return Ok(None);
                }
                // This engine's own key: an answer was lost, or the lease expired and the key did not.
                Put::Taken(held) if *held.value == *own.metadata => old = Some(held.value),
                Put::Taken(held) => return Ok(Some(held)),
                Put::Gone => old = None,
            }
        }
    }

    /// Describes the holder of the name.
    fn holder(&mut self, held: Held, stop: &Stop) -> Holder {
        let who = match engine_in(&held.value) {
            Some(engine) => format!("the engine `{engine}`"),
            None => "somebody whose record can't be read".to_owned(),
        };
        // The user may lack permission to ask for this.
        let time = held.lease.as_ref().and_then(|it| self.client.time_to_live(it, stop).ok()?);
        let time = time.map_or_else(String::new, |(seconds, left)| {
            format!(" (its lease of {seconds} s in etcd had {left} s left at first)")
        });
        Holder { held, who: who + &time }
    }

    fn taken(&self, own: &Own, holder: &Holder, waited: Duration) -> RendezvousError {
        if holder.held.lease.is_none() {
            return self.client.kept(&String::from_utf8_lossy(&self.key_of(own)));
        }
        let (group, name) = (self.group.to_string(), own.name.to_string());
        RendezvousError::Taken { group, name, holder: holder.who.clone(), waited }
    }

    /// Puts this engine's key again after it was removed. Tries once: another engine that has the name keeps it while
    /// it lives. This engine still sees the other members.
    fn put_again(&mut self, begin: Instant, stop: &Stop) -> Result<(), RendezvousError> {
        let Some(own) = self.own.clone() else { return Ok(()) };
        let id = self.lease(stop)?;
        if let Some(held) = self.put_own(&own, &id, stop)? {
            if self.own_key != OwnKey::Taken {
                let holder = self.holder(held, stop);
                let error = self.taken(&own, &holder, begin.elapsed());
                tracing::warn!(target: "polyrail::rendezvous", "{error}; it is tried again");
            }
            self.own_key = OwnKey::Taken;
        }
        Ok(())
    }

    /// Records the state of this engine's key.
    fn note_own(&mut self, value: Option<&[u8]>) {
        let Some(own) = &self.own else { return };
        match value {
            Some(value) if *value == *own.metadata => self.own_key = OwnKey::There,
            Some(_) if self.own_key == OwnKey::Taken => {}
            _ => {
                if self.own_key == OwnKey::There {
                    tracing::warn!(
                        target: "polyrail::rendezvous",
                        "{}{}, this engine's key in etcd, is gone or another's; it joins again",
                        self.prefix, own.name
                    );
                }
                self.own_key = OwnKey::Gone;
            }
        }
    }

    /// Interval between renewals of the lease. Two renewals may be lost.
    fn period(&self) -> Duration {
        let seconds = self.granted.as_ref().map_or(seconds_of(self.lease), |it| it.seconds);
        Duration::from_secs(seconds) / 3
    }

    /// Keeps this engine's key alive when a renewal is due. A watcher pings etcd instead. Returns whether etcd answered
    /// in time.
    ///
    /// An etcd that stalls receives no renewals and ends all leases when it resumes. That takes a stall of two periods,
    /// and each client asks at least once per period. So some client waits a whole period for its answer, and a client
    /// that was busy otherwise waits half of one.
    fn keep_alive(&mut self, stop: &Stop) -> Result<bool, RendezvousError> {
        let begin = Instant::now();
        if begin < self.next {
            return Ok(true);
        }
        let is_known = match &self.granted {
            Some(granted) => self.client.keep_alive(&granted.id, stop)?,
            None => self.client.ping(self.prefix.as_bytes(), stop).map(|()| true)?,
        };
        let is_in_time = begin.elapsed() < self.period() / 2;
        if !is_known {
            let group = &self.group;
            tracing::warn!(
                target: "polyrail::rendezvous",
                "etcd has forgotten this engine in the group {group}; it joins again"
            );
            self.granted = None;
            self.own_key = OwnKey::Gone;
        }
        if self.own_key != OwnKey::There {
            self.put_again(begin, stop)?;
        }
        self.next = Instant::now() + self.period();
        Ok(is_in_time)
    }

    /// Returns changes, and waits for them until other work is due.
    fn news(&mut self, stop: &Stop) -> Result<News, RendezvousError> {
        let Some(revision) = self.revision else {
            let (all, revision) = self.client.list(self.prefix.as_bytes(), stop)?;
            self.revision = Some(revision);
            self.members = all.len();
            if let Some(own) = &self.own {
                let value = all.get(&self.key_of(own)).cloned();
                self.note_own(value.as_deref());
            }
            self.left_out.retain(|key| all.contains_key(key));
            let mut members = BTreeMap::new();
            for (key, value) in all {
                let Some(name) = self.name(&key) else { continue };
                if let Some(found) = self.found(key, Some(value)) {
                    members.insert(name, found);
                }
            }
            return Ok(News::All(members));
        };
        let mut watch = match self.watch.take() {
            Some(watch) => watch,
            None => self.client.watch(self.prefix.as_bytes(), revision.saturating_add(1), stop)?,
        };
        let Some(happened) = self.client.next(&mut watch, self.next)? else {
            self.watch = Some(watch);
            return Ok(News::none());
        };
        let has_changed = !happened.changes.is_empty();
        if has_changed {
            self.revision = Some(happened.revision);
        }
        let mut changes = Vec::new();
        for (key, value) in happened.changes {
            let Some(name) = self.name(&key) else { continue };
            match value {
                Some(_) => self.members += 1,
                None => self.members = self.members.saturating_sub(1),
            }
            if self.own.as_ref().is_some_and(|own| own.name.as_str() == name) {
                self.note_own(value.as_deref());
            }
            let found = self.found(key, value);
            changes.push((name, found));
        }
        if !has_changed || self.members <= SMALL {
            self.watch = Some(watch);
        } else {
            drop(watch);
            let members = u32::try_from(self.members).unwrap_or(u32::MAX);
            stop.sleep(PAUSE_PER_MEMBER.saturating_mul(members).min(LONGEST_PAUSE));
        }
        Ok(News::Changes(changes))
    }

    /// Member record of a key. Anyone may have put an invalid value there.
    fn found(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) -> Option<Found> {
        match value.map(Found::of).transpose() {
            Ok(found) => {
                self.left_out.remove(&key);
                found
            }
            Err(why) => {
                let shown = String::from_utf8_lossy(&key).into_owned();
                if self.left_out.insert(key) {
                    tracing::warn!(target: "polyrail::rendezvous", "{shown} is left out: {why}");
                }
                None
            }
        }
    }

    /// Name of the member that a key stands for. `None` if the key is not one of a member.
    fn name(&self, key: &[u8]) -> Option<String> {
        let name = key.strip_prefix(self.prefix.as_bytes())?;
        let name: Name = std::str::from_utf8(name).ok()?.parse().ok()?;
        Some(name.to_string())
    }
}

impl Backend for EtcdGroup {
    fn enter(&mut self, stop: &Stop) -> Result<(), RendezvousError> {
        match self.own {
            Some(_) => self.register(stop),
            None => self.client.list(self.prefix.as_bytes(), stop).map(drop),
        }
    }

    fn poll(&mut self, stop: &Stop) -> Result<News, RendezvousError> {
        let news = self.keep_alive(stop).and_then(|is_in_time| match is_in_time {
            true => self.news(stop),
            false => Ok(News::WasSilent),
        });
        if news.is_err() {
            (self.watch, self.revision) = (None, None);
            self.client.turn();
        }
        news
    }

    fn leave(&mut self, stop: &Stop) {
        if let Some(granted) = self.granted.take()
            && let Err(error) = self.client.revoke(&granted.id, stop)
        {
            tracing::warn!(
                target: "polyrail::rendezvous",
                "etcd was not told that this engine leaves, and notices it by the lease: {error}"
            );
        }
    }

    fn grace(&self) -> Duration {
        self.lease
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_comes_from_a_file_and_needs_a_password() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("user");
        fs::write(&path, "polyrail:a:b\nmore\n").unwrap();
        let path = path.to_str().unwrap();
        let user = user("etcd://a", Some(path)).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.password.as_str()), ("polyrail", "a:b"));
        fs::write(path, "polyrail\n").unwrap();
        let error = super::user("etcd://a", Some(path)).err().unwrap().to_string();
        assert!(error.contains("has no `:`") && error.contains(path), "{error}");
        let error = super::user("etcd://a", Some("/none")).err().unwrap();
        assert!(matches!(error, RendezvousError::File { .. }), "{error}");
    }
}
