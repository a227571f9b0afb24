//! All ranks but the first: each registers with rank 0 and receives its messages.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use polyrail::{ConnectReason, Peer, PeerError, Watch};

use super::job::Job;
use super::resolve;
use super::small::{Heard, Message, Small, rails_to, text_of};
use crate::backend::{Backend, News, Own};
use crate::error::RendezvousError;
use crate::member::Found;
use crate::names::Name;
use crate::stop::Stop;

/// Time to listen before checking for a stop.
const LISTEN: Duration = Duration::from_millis(100);
/// Pause before rank 0 is tried again. It may not have started yet.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// Maximum time for rank 0's answer after connecting.
const ANSWER: Duration = Duration::from_secs(10);
/// Maximum time, beyond `peer_timeout_ms`, until rank 0 notices that the former holder of the name has died.
const NOTICED: Duration = Duration::from_secs(2);
/// Maximum time for members to return to a rank 0 that was lost.
const GRACE: Duration = Duration::from_secs(30);

pub(super) struct Spoke {
    place: String,
    config: polyrail::Config,
    group: Name,
    job: Job,
    own: Own,
    link: Option<Link>,
    /// True if rank 0 has left: no more changes follow.
    is_over: bool,
}

/// Members that came or are gone.
type Changes = Vec<(String, Option<Found>)>;

/// Message from rank 0.
enum Told {
    Changes(Changes),
    /// The name of this rank is taken, for this reason.
    Taken(String),
    Over,
}

/// A connection to rank 0.
struct Link {
    small: Small,
    peer: Peer,
    _watch: Watch,
    versions: HashMap<String, u64>,
    /// First table from rank 0, until it is returned.
    first: Option<BTreeMap<String, Found>>,
}

impl Spoke {
    pub(super) fn new(
        place: &str,
        config: &polyrail::Config,
        (group, job): (&Name, &Job),
        own: Own,
    ) -> Self {
        Self {
            place: place.to_owned(),
            config: config.clone(),
            group: group.clone(),
            job: job.clone(),
            own,
            link: None,
            is_over: false,
        }
    }

    /// Connects to rank 0 and joins there. With a deadline, tries until then, as rank 0 may start late. Without one,
    /// tries once.
    fn link(&self, stop: &Stop) -> Result<Link, RendezvousError> {
        let mut last = None;
        // Engines by the rails that lead to rank 0: usually one.
        let mut engines = HashMap::new();
        loop {
            for address in resolve(&self.place, &self.job)? {
                match self.connect(address, &mut engines, stop) {
                    Ok(link) => return self.introduce(link, stop),
                    Err(error) if is_final(&error) => return Err(error),
                    Err(error) => last = Some(error),
                }
            }
            if stop.deadline().is_none() || stop.is_set() {
                let why = format!("{} has no address", self.job.host);
                let place = self.place.clone();
                return Err(last.unwrap_or(RendezvousError::Unreachable { place, why }));
            }
            stop.sleep(TRY_AGAIN);
        }
    }

    fn connect(
        &self,
        address: SocketAddr,
        engines: &mut HashMap<String, Small>,
        stop: &Stop,
    ) -> Result<Link, RendezvousError> {
        let place = || self.place.clone();
        let rails = rails_to(address).map_err(|error| {
            let why = format!("{address}: {error}");
            RendezvousError::Unreachable { place: place(), why }
        })?;
        let small = match engines.remove(&rails) {
            Some(small) => small,
            None => Small::start(&self.config, &self.job, &rails, None).map_err(|error| {
                RendezvousError::Engine { place: place(), source: Box::new(error) }
            })?,
        };
        let connecting = small.engine.connect(address);
        let answer = match stop.deadline() {
            Some(_) => connecting.wait(stop.within(Duration::MAX)),
            None => Some(connecting.join()),
        };
        let peer = match answer {
            Some(Ok(peer)) => peer,
            None => {
                let why = format!("rank 0 at {address} has not answered in time");
                return Err(RendezvousError::Unreachable { place: place(), why });
            }
            Some(Err(error)) => {
                engines.insert(rails, small);
                return Err(RendezvousError::Rank0 { place: place(), source: Box::new(error) });
            }
        };
        let _watch = small.engine.watch(&peer);
        Ok(Link { small, peer, _watch, versions: HashMap::new(), first: None })
    }

    /// Registers with rank 0, and waits until it has confirmed.
    fn introduce(&self, mut link: Link, stop: &Stop) -> Result<Link, RendezvousError> {
        let own = &self.own;
        let message = Message::Enter {
            group: self.group.to_string(),
            size: self.job.size,
            name: own.name.to_string(),
            metadata: text_of(&own.metadata),
        };
        link.small.say(&link.peer, &message, stop);
        let noticed = Duration::from_millis(self.config.peer_timeout_ms) + NOTICED;
        let until_free = Instant::now() + noticed;
        let until = stop.deadline().unwrap_or(until_free.max(Instant::now() + ANSWER));
        let mut table = BTreeMap::new();
        let mut taken: Option<String> = None;
        while !table.contains_key(own.name.as_str()) {
            if Instant::now() >= until || stop.is_set() {
                if let Some(why) = taken {
                    return Err(self.refused(&why));
                }
                let why = "rank 0 did not say who is there".to_owned();
                return Err(RendezvousError::Unreachable { place: self.place.clone(), why });
            }
            let changes = match self.listen(&mut link)? {
                Told::Changes(changes) => changes,
                Told::Taken(why) if Instant::now() >= until_free => {
                    return Err(self.refused(&why));
                }
                Told::Taken(why) => {
                    taken = Some(why);
                    stop.sleep(TRY_AGAIN);
                    link.small.say(&link.peer, &message, stop);
                    continue;
                }
                Told::Over => Vec::new(),
            };
            for (name, found) in changes {
                match found {
                    Some(found) => drop(table.insert(name, found)),
                    None => drop(table.remove(&name)),
                }
            }
        }
        link.first = Some(table);
        Ok(link)
    }

    fn refused(&self, why: &str) -> RendezvousError {
        RendezvousError::Refused {
            place: self.place.clone(),
            why: format!("rank 0 refuses: {why}"),
            help:
                "see that all ranks have the same Polyrail and settings, and names of their own; \
                   two groups need two ports, like slurm://:29601"
                    .to_owned(),
        }
    }

    /// Returns the next message of rank 0.
    fn listen(&self, link: &mut Link) -> Result<Told, RendezvousError> {
        match link.small.heard.recv_timeout(LISTEN) {
            Ok(Heard::Said { peer, bytes, .. }) if peer == link.peer => {
                match serde_json::from_slice(&bytes) {
                    Ok(Message::Entries(entries)) => {
                        let mut changes = Vec::new();
                        for entry in entries {
                            let known = link.versions.entry(entry.name.clone()).or_default();
                            if entry.version > *known {
                                *known = entry.version;
                                let found = entry.found();
                                changes.push((entry.name, found));
                            }
                        }
                        Ok(Told::Changes(changes))
                    }
                    Ok(Message::Taken { why }) => Ok(Told::Taken(why)),
                    Ok(Message::Refused { why }) => Err(self.refused(&why)),
                    Ok(Message::Over) => Ok(Told::Over),
                    _ => Ok(Told::Changes(Vec::new())),
                }
            }
            Ok(Heard::Lost(peer)) if peer == link.peer => {
                let why = "rank 0 is lost; nobody hears of the others until it is back".to_owned();
                Err(RendezvousError::Unreachable { place: self.place.clone(), why })
            }
            _ => Ok(Told::Changes(Vec::new())),
        }
    }
}

/// True if another attempt is useless: rank 0 has answered and refuses this engine.
fn is_final(error: &RendezvousError) -> bool {
    match error {
        RendezvousError::Rank0 { source, .. } => !matches!(
            **source,
            PeerError::Connect {
                why: ConnectReason::System { .. }
                    | ConnectReason::TimedOut { .. }
                    | ConnectReason::Closed
                    | ConnectReason::Crowded { .. }
                    | ConnectReason::NoAnswer,
                ..
            }
        ),
        RendezvousError::Unreachable { .. } => false,
        _ => true,
    }
}

impl Backend for Spoke {
    fn enter(&mut self, stop: &Stop) -> Result<(), RendezvousError> {
        self.link = Some(self.link(stop)?);
        Ok(())
    }

    fn poll(&mut self, stop: &Stop) -> Result<News, RendezvousError> {
        if self.is_over {
            stop.sleep(Duration::from_secs(3600));
            return Ok(News::none());
        }
        let mut link = match self.link.take() {
            Some(link) => link,
            None => self.link(stop)?,
        };
        if let Some(first) = link.first.take() {
            self.link = Some(link);
            return Ok(News::All(first));
        }
        let changes = match self.listen(&mut link)? {
            Told::Changes(changes) => changes,
            // This rank is in the group and has asked for no other name.
            Told::Taken(_) => Vec::new(),
            Told::Over => {
                tracing::info!(target: "polyrail::rendezvous", "rank 0 leaves the group");
                self.is_over = true;
                return Ok(News::none());
            }
        };
        self.link = Some(link);
        Ok(News::Changes(changes))
    }

    fn leave(&mut self, _stop: &Stop) {
        // Closing sends a goodbye.
        if let Some(link) = self.link.take() {
            link.small.engine.close();
        }
    }

    fn grace(&self) -> Duration {
        GRACE
    }
}
