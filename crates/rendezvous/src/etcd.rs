//! Engines find each other by etcd: a key for each, `PREFIX/GROUP/NAME`, that lasts as long as a lease
//! which the engine keeps alive.
//!
//! Who watches hears of changes from etcd, which remembers them: so a watch that was interrupted goes on
//! where it was. After a change a watch is closed for a moment, the longer the larger the group, and takes
//! up all that happened meanwhile. Otherwise each of a thousand engines that start together would be sent
//! a thousand messages.

mod client;
mod http;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Backend, News, Own};
use crate::error::RendezvousError;
use crate::member::Found;
use crate::names::Name;
use crate::stop::Stop;
use client::{Client, Put, User, Watch, seconds_of};

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
    /// When etcd is to hear of this engine next, or to be asked whether it is there.
    next: Instant,
    /// The last revision that is known; `None`: everything has to be read anew.
    revision: Option<i64>,
    watch: Option<Watch>,
    /// How many keys there are, about.
    members: usize,
}

/// A lease.
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
            next: Instant::now(),
            revision: None,
            watch: None,
            members: 0,
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

    /// Takes a lease, and puts the own key with it.
    fn register(&mut self, stop: &Stop) -> Result<(), RendezvousError> {
        let Some(own) = self.own.clone() else { return Ok(()) };
        let key = self.key_of(&own);
        let wanted = seconds_of(self.lease);
        let (id, seconds) = self.client.grant(wanted, stop)?;
        if seconds > wanted {
            tracing::warn!(
                target: "polyrail::rendezvous",
                "etcd gives leases of {seconds} s at least, so the end of an engine is noticed later \
                 than {:?}", self.lease
            );
        }
        let begin = Instant::now();
        let mut old = None;
        loop {
            let put = self.client.put_new(&key, &own.metadata, &id, old.as_deref(), stop);
            match put {
                Ok(Put::Done) => break,
                // This engine's own: an answer was lost, or the lease was forgotten and the key not.
                Ok(Put::Taken(value)) if *value == *own.metadata && old.is_none() => {
                    old = Some(value);
                    continue;
                }
                Ok(Put::Taken(_)) => old = None,
                Err(error) => {
                    let _ = self.client.revoke(&id, stop);
                    return Err(error);
                }
            }
            let waited = begin.elapsed();
            if waited > self.lease || stop.is_set() {
                // Whether that reaches etcd does not matter: the lease ends by itself.
                let _ = self.client.revoke(&id, stop);
                let (group, name) = (self.group.to_string(), own.name.to_string());
                return Err(RendezvousError::Taken { group, name, waited });
            }
            stop.sleep(TRY_AGAIN);
            self.client.keep_alive(&id, stop)?;
        }
        self.granted = Some(Granted { id, seconds });
        self.next = Instant::now() + self.period();
        Ok(())
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
        if self.own.is_some() && self.granted.is_none() {
            return self.register(stop).map(|()| true);
        }
        let begin = Instant::now();
        if begin < self.next {
            return Ok(true);
        }
        let is_known = match &self.granted {
            Some(granted) => self.client.keep_alive(&granted.id, stop)?,
            None => self.client.ping(self.prefix.as_bytes(), stop).map(|()| true)?,
        };
        let period = self.period();
        let is_in_time = begin.elapsed() < period / 2;
        self.next = Instant::now() + period;
        if is_known {
            return Ok(is_in_time);
        }
        let group = &self.group;
        tracing::warn!(
            target: "polyrail::rendezvous",
            "etcd has forgotten this engine in the group {group}; it joins again"
        );
        self.granted = None;
        self.register(stop).map(|()| is_in_time)
    }

    /// What has happened; waits for it until it is time for something else.
    fn news(&mut self, stop: &Stop) -> Result<News, RendezvousError> {
        let Some(revision) = self.revision else {
            let (all, revision) = self.client.list(self.prefix.as_bytes(), stop)?;
            self.revision = Some(revision);
            self.members = all.len();
            let named = all.into_iter().filter_map(|(key, value)| Some((self.name(&key)?, value)));
            return Ok(News::All(named.map(|(name, value)| (name, found(value))).collect()));
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
            changes.push((name, value.map(found)));
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

fn found(value: Vec<u8>) -> Found {
    Found::Metadata(Arc::from(value))
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
