//! Engines find each other by etcd: a key for each, `PREFIX/GROUP/NAME`, that lasts as long as a lease
//! which the engine keeps alive.
//!
//! Who watches hears of changes from etcd, which remembers them: so a watch that was interrupted goes on
//! where it was. After a change a watch is closed for a moment, the longer the larger the group, and takes
//! up all that happened meanwhile. Otherwise each of a thousand engines that start together would be sent
//! a thousand messages.

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

/// Groups of this size take each change as it comes.
const SMALL: usize = 16;
const PAUSE_PER_MEMBER: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How often a name that is taken is tried again.
const TRY_AGAIN: Duration = Duration::from_millis(200);

/// The variables by which etcd's own command takes a user.
const USER_VARIABLE: &str = "ETCDCTL_USER";
const PASSWORD_VARIABLE: &str = "ETCDCTL_PASSWORD";

/// A cluster that no group was chosen in yet.
pub(crate) struct Etcd {
    client: Client,
    lease: Duration,
}

/// A group in etcd.
pub(crate) struct EtcdGroup {
    client: Client,
    /// What keys of the group begin with, a slash at the end.
    prefix: String,
    group: Name,
    lease: Duration,
    own: Option<Own>,
    granted: Option<Granted>,
    own_key: OwnKey,
    /// When etcd is to hear of this engine next, or to be asked whether it is there.
    next: Instant,
    /// The last revision that is known; `None`: everything has to be read anew.
    revision: Option<i64>,
    watch: Option<Watch>,
    /// How many keys there are, about.
    members: usize,
    /// Keys that were told of because they are no record of a member.
    left_out: BTreeSet<Vec<u8>>,
}

/// What is known of the key of this engine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OwnKey {
    /// It is there, or nobody has put it yet.
    There,
    /// It was deleted, went with its lease, or was replaced.
    Gone,
    /// Another has put it, which was told.
    Taken,
}

/// Who has the name that this engine wants.
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

/// The user of the file, or of the environment.
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
        // The environment is the caller's word then.
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

    /// Joins: takes a lease, and puts the own key with it.
    fn register(&mut self, stop: &Stop) -> Result<(), RendezvousError> {
        let Some(own) = self.own.clone() else { return Ok(()) };
        let entered = self.take_name(&own, stop);
        if entered.is_err()
            && let Some(granted) = self.granted.take()
        {
            // Whether that reaches etcd does not matter: the lease ends by itself.
            let _ = self.client.revoke(&granted.id, stop);
        }
        entered
    }

    /// Waits for the end of an engine that has the name and has died.
    fn take_name(&mut self, own: &Own, stop: &Stop) -> Result<(), RendezvousError> {
        let id = self.lease(stop)?;
        let begin = Instant::now();
        let mut holder = None;
        loop {
            let tried = self.try_name(own, &id, &mut holder, stop);
            let waited = begin.elapsed();
            match (tried, &holder) {
                (Ok(true), _) => return Ok(()),
                // Who knows that the name is taken, and has no time left to ask again, hears that.
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

    /// Says whether the name is this engine's now. If not, `holder` has it.
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

    /// The lease of this engine; takes one if it has none.
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

    /// Puts the own key, unless another has the name: then that is returned.
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
                // This engine's own: an answer was lost, or the lease was forgotten and the key not.
                Put::Taken(held) if *held.value == *own.metadata => old = Some(held.value),
                Put::Taken(held) => return Ok(Some(held)),
                Put::Gone => old = None,
            }
        }
    }

    /// Finds out who has the name.
    fn holder(&mut self, held: Held, stop: &Stop) -> Holder {
        let who = match engine_in(&held.value) {
            Some(engine) => format!("the engine `{engine}`"),
            None => "somebody whose record can't be read".to_owned(),
        };
        // A user may be forbidden to ask that.
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

    /// Puts the own key again, once it is gone. One try: another that has the name meanwhile keeps it as long as
    /// it lives, and this engine hears of the others yet.
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

    /// Notes what was seen of the own key.
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

    /// How often a lease is renewed: two renewals may be lost.
    fn period(&self) -> Duration {
        let seconds = self.granted.as_ref().map_or(seconds_of(self.lease), |it| it.seconds);
        Duration::from_secs(seconds) / 3
    }

    /// Keeps the own key alive, when it is time to; who only looks asks whether etcd is there. Says whether
    /// etcd has answered in time.
    ///
    /// An etcd that stands still hears of nobody, and ends all leases when it goes on. For that it has to stand
    /// still for two periods, and nobody asks it less than once in a period. So the answer to somebody takes a
    /// period, and half of one for who was busy otherwise.
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

    /// What has happened; waits for it until it is time for something else.
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

    /// The member of a key, if the key has a member's record: anybody may have put something else there.
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

    /// The member that a key of the group stands for. `None`: somebody else has put it there.
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
