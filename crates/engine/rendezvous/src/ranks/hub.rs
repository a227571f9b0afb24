//! Rank 0: keeps the table and sends changes to all other ranks.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use polyrail::{InstanceId, Peer, Watch};

use super::job::Job;
use super::small::{Entry, Heard, Message, Small, check, text_of};
use crate::backend::{Backend, News, Own};
use crate::error::RendezvousError;
use crate::member::Found;
use crate::names::Name;
use crate::stop::Stop;

/// Time to listen before checking for a stop.
const LISTEN: Duration = Duration::from_millis(100);
/// Maximum time to notify the other ranks when rank 0 leaves.
const GOODBYE: Duration = Duration::from_secs(2);

pub(super) struct Hub {
    small: Small,
    group: Name,
    size: usize,
    own: Own,
    /// Entries by name. Entries of members that left stay, for their versions.
    entries: BTreeMap<String, Entry>,
    members: HashMap<InstanceId, Member>,
    version: u64,
    is_new: bool,
}

struct Member {
    peer: Peer,
    name: String,
    /// Detects the peer's end while no messages flow.
    _watch: Watch,
}

impl Hub {
    pub(super) fn new(small: Small, group: &Name, job: &Job, own: Own) -> Self {
        let mut hub = Self {
            small,
            group: group.clone(),
            size: job.size,
            entries: BTreeMap::new(),
            members: HashMap::new(),
            version: 0,
            is_new: true,
            own: own.clone(),
        };
        hub.put(own.name.as_str(), Some(text_of(&own.metadata)));
        hub
    }

    fn put(&mut self, name: &str, metadata: Option<String>) -> Entry {
        self.version += 1;
        let entry = Entry { name: name.to_owned(), version: self.version, metadata };
        self.entries.insert(name.to_owned(), entry.clone());
        entry
    }

    /// Admits a peer, or returns the refusal.
    fn admit(&mut self, peer: &Peer, message: Message) -> Result<Option<Entry>, Message> {
        let refused = |why: String| Message::Refused { why };
        let Message::Enter { group, size, name, metadata } = message else { return Ok(None) };
        if group != self.group.as_str() {
            let why = format!("rank 0 is in the group `{}`, not in `{group}`", self.group);
            return Err(refused(why));
        }
        if size != self.size {
            return Err(refused(format!("rank 0 is one of {} ranks, not of {size}", self.size)));
        }
        let name: Name = name.parse().map_err(|_| refused("that is no name".to_owned()))?;
        let name = name.as_str();
        let is_taken = self.entries.get(name).is_some_and(|entry| entry.metadata.is_some());
        // A peer that connects again, for instance after it was silent, still has its name.
        let own_name = self.members.get(&peer.instance()).map(|it| it.name.as_str());
        if is_taken && own_name != Some(name) {
            let why = format!("the name `{name}` is taken by another rank");
            return Err(Message::Taken { why });
        }
        // Otherwise its first name would stay forever.
        if let Some(own_name) = own_name.filter(|own_name| *own_name != name) {
            let why = format!("this rank is `{own_name}` already, and can't be `{name}`, too");
            return Err(refused(why));
        }
        // Bad metadata must be refused here: the other ranks could not tell which rank sent it.
        check(&metadata).map_err(|why| {
            refused(format!("the metadata of the rank `{name}` can't be read: {why}"))
        })?;
        let watch = self.small.engine.watch(peer);
        let member = Member { peer: peer.clone(), name: name.to_owned(), _watch: watch };
        self.members.insert(peer.instance(), member);
        match self.entries.get(name) {
            // The other ranks already have this entry.
            Some(entry) if entry.metadata.as_ref() == Some(&metadata) => Ok(Some(entry.clone())),
            _ => Ok(Some(self.put(name, Some(metadata)))),
        }
    }

    fn hear(&mut self, heard: Heard, changed: &mut Vec<Entry>, stop: &Stop) {
        match heard {
            Heard::Said { peer, bytes, .. } => {
                // Any authenticated peer may send anything.
                let Ok(message) = serde_json::from_slice::<Message>(&bytes) else { return };
                let before = self.version;
                match self.admit(&peer, message) {
                    Ok(Some(entry)) => {
                        let all: Vec<Entry> = self.entries.values().cloned().collect();
                        self.small.tell(&peer, &all, stop);
                        changed.extend((self.version > before).then_some(entry));
                    }
                    Ok(None) => {}
                    Err(no) => self.small.say(&peer, &no, stop),
                }
            }
            Heard::Lost(peer) => {
                self.small.forget(&peer);
                let gone = self.members.get(&peer.instance()).is_some_and(|it| it.peer == peer);
                if gone && let Some(member) = self.members.remove(&peer.instance()) {
                    let name = member.name;
                    changed.push(self.put(&name, None));
                }
            }
        }
    }
}

impl Backend for Hub {
    /// The small engine already listens.
    fn enter(&mut self, _stop: &Stop) -> Result<(), RendezvousError> {
        Ok(())
    }

    fn poll(&mut self, stop: &Stop) -> Result<News, RendezvousError> {
        if std::mem::take(&mut self.is_new) {
            let own = Found::Metadata(self.own.metadata.clone());
            return Ok(News::All([(self.own.name.to_string(), own)].into()));
        }
        let mut changed = Vec::new();
        if let Ok(heard) = self.small.heard.recv_timeout(LISTEN) {
            self.hear(heard, &mut changed, stop);
        }
        // Send all changes received so far in one message.
        while let Ok(heard) = self.small.heard.try_recv() {
            self.hear(heard, &mut changed, stop);
        }
        if !changed.is_empty() {
            for member in self.members.values() {
                self.small.tell(&member.peer, &changed, stop);
            }
        }
        let news = changed.into_iter().map(|entry| {
            let found = entry.found();
            (entry.name, found)
        });
        Ok(News::Changes(news.collect()))
    }

    fn leave(&mut self, stop: &Stop) {
        for member in self.members.values() {
            self.small.say(&member.peer, &Message::Over, stop);
        }
        let begin = Instant::now();
        if self.small.engine.drain(GOODBYE).is_none() {
            tracing::info!(
                target: "polyrail::rendezvous",
                "not every rank has heard within {:?} that rank 0 leaves", begin.elapsed()
            );
        }
        self.small.engine.close();
    }

    fn grace(&self) -> Duration {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use polyrail::Config;

    use super::*;
    use crate::ranks::small::Place;

    #[test]
    fn a_rank_has_one_name_and_metadata_that_can_be_read() {
        let job = Job { rank: 0, size: 3, host: "127.0.0.1".to_owned(), port: 0, is_local: true };
        let start = || Small::start(&Config::default(), &job, "127.0.0.1", None).unwrap();
        let (small, other) = (start(), start());
        let peer = small.engine.add_peer(&other.engine.metadata()).unwrap();
        let own = Own { name: "rank-0".parse().unwrap(), metadata: Vec::new().into() };
        let mut hub = Hub::new(small, &"g".parse().unwrap(), &job, own);
        let entry = |name: &str, metadata: String| Message::Enter {
            group: "g".to_owned(),
            size: 3,
            name: name.to_owned(),
            metadata,
        };
        let enter = |name: &str| entry(name, text_of(&other.engine.metadata()));
        assert!(matches!(hub.admit(&peer, enter("rank-1")), Ok(Some(_))));
        let again = hub.admit(&peer, enter("rank-1"));
        assert!(matches!(again, Ok(Some(_))), "it may connect again");
        // Repeated messages change nothing for the others, and don't pile up without a bound.
        let version = hub.version;
        let stop = Stop::default();
        for _ in 0..3 {
            let said = serde_json::to_vec(&enter("rank-1")).unwrap();
            let mut changed = Vec::new();
            let heard = Heard::Said { peer: peer.clone(), bytes: said, _place: Place::default() };
            hub.hear(heard, &mut changed, &stop);
            assert!(changed.is_empty() && hub.version == version);
        }
        match hub.admit(&peer, enter("rank-2")) {
            Err(Message::Refused { why }) => {
                assert_eq!(why, "this rank is `rank-1` already, and can't be `rank-2`, too");
            }
            _ => panic!("it has two names"),
        }
        assert!(matches!(hub.admit(&peer, enter("rank-0")), Err(Message::Taken { .. })));

        for (metadata, reason) in
            [("no base64!", "Invalid symbol"), (&text_of(b"HTTP/1.1"), "HTTP")]
        {
            match hub.admit(&peer, entry("rank-1", metadata.to_owned())) {
                Err(Message::Refused { why }) => {
                    assert!(why.starts_with("the metadata of the rank `rank-1` can't"), "{why}");
                    assert!(why.contains(reason), "{why}");
                }
                _ => panic!("others get {metadata}"),
            }
        }
        assert_eq!(hub.entries["rank-1"].metadata, Some(text_of(&other.engine.metadata())));
    }
}
