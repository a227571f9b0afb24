//! Members found by the addresses of a name, such as that of a headless Kubernetes service. At each address an engine
//! listens on the same port. The name is resolved periodically.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, Instant};

use polyrail::{Connecting, Engine, Peer, PeerError};

use crate::backend::{Backend, News};
use crate::error::RendezvousError;
use crate::member::Found;
use crate::stop::Stop;

/// Interval between checks for answers.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Maximum number of addresses that are followed.
const MOST_ADDRESSES: usize = 10_000;

pub(crate) struct Dns {
    place: String,
    name: String,
    port: u16,
    every: Duration,
    engine: Engine,
    /// State of each address.
    known: BTreeMap<SocketAddr, State>,
    /// Last error logged for each silent address.
    told: BTreeMap<SocketAddr, String>,
    /// Time of the last resolution. `None` if the name must be resolved now.
    resolved: Option<Instant>,
    /// True until the first table was returned.
    is_new: bool,
}

enum State {
    Asked(Connecting),
    Peer(Peer),
    Own,
    /// No answer, or a refusal. The next resolution asks again.
    Silent,
}

impl Dns {
    pub(crate) fn new(
        place: &str,
        (name, port): (&str, u16),
        every: Duration,
        engine: &Engine,
    ) -> Self {
        let (place, name) = (place.to_owned(), name.to_owned());
        let engine = engine.clone();
        let (known, told) = (BTreeMap::new(), BTreeMap::new());
        Self { place, name, port, every, engine, known, told, resolved: None, is_new: true }
    }

    fn resolve(&self) -> Result<Vec<SocketAddr>, RendezvousError> {
        let found = (self.name.as_str(), self.port).to_socket_addrs();
        let found = found.map_err(|error| RendezvousError::Unreachable {
            place: self.place.clone(),
            why: format!("{}: {error}", self.name),
        })?;
        Ok(found.take(MOST_ADDRESSES).collect())
    }

    /// Forgets addresses that the name no longer has, and asks addresses that are new, silent or lost.
    fn ask(&mut self, addresses: &[SocketAddr]) {
        self.known.retain(|address, _| addresses.contains(address));
        self.told.retain(|address, _| addresses.contains(address));
        let own = self.engine.addresses();
        for address in addresses {
            let is_settled = match self.known.get(address) {
                Some(State::Asked(_) | State::Own) => true,
                Some(State::Peer(peer)) => peer.lost().is_none(),
                Some(State::Silent) | None => false,
            };
            if is_settled {
                continue;
            }
            let state = match own.contains(address) {
                true => State::Own,
                false => State::Asked(self.engine.connect(*address)),
            };
            self.known.insert(*address, state);
        }
    }

    /// Collects the answers of the addresses.
    fn hear(&mut self) {
        for (address, state) in &mut self.known {
            let State::Asked(connecting) = state else { continue };
            *state = match connecting.try_wait() {
                None => continue,
                Some(Ok(peer)) => State::Peer(peer),
                Some(Err(PeerError::Myself)) => State::Own,
                Some(Err(error)) => {
                    let why = error.to_string();
                    if self.told.get(address) != Some(&why) {
                        tracing::warn!(
                            target: "polyrail::rendezvous",
                            "{address} is left out for now: {why}"
                        );
                    }
                    self.told.insert(*address, why);
                    State::Silent
                }
            };
        }
    }

    fn members(&self) -> News {
        let peer = |(address, state): (&SocketAddr, &State)| match state {
            State::Peer(peer) if peer.lost().is_none() => {
                Some((address.to_string(), Found::Peer(peer.clone())))
            }
            _ => None,
        };
        News::All(self.known.iter().filter_map(peer).collect())
    }
}

impl Backend for Dns {
    fn enter(&mut self, _stop: &Stop) -> Result<(), RendezvousError> {
        self.resolve().map(drop)
    }

    fn poll(&mut self, stop: &Stop) -> Result<News, RendezvousError> {
        if self.resolved.is_none_or(|at| at.elapsed() >= self.every) {
            // Until the name resolves, every poll must fail. Otherwise the place would seem to work again.
            self.resolved = None;
            let found = self.resolve()?;
            self.resolved = Some(Instant::now());
            self.ask(&found);
        }
        loop {
            stop.sleep(LOOK_EVERY);
            self.hear();
            // The first look ends when all addresses have answered or were given up.
            let is_pending = self.known.values().any(|state| matches!(state, State::Asked(_)));
            if !self.is_new || !is_pending || stop.is_set() {
                self.is_new = false;
                return Ok(self.members());
            }
        }
    }

    fn leave(&mut self, _stop: &Stop) {}

    fn grace(&self) -> Duration {
        self.every
    }
}

#[cfg(test)]
mod tests {
    use polyrail::Config;

    use super::*;

    #[test]
    fn a_name_that_nobody_resolves_is_trouble_until_somebody_does() {
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let engine = Engine::builder().config(config).build().unwrap();
        let every = Duration::from_secs(3600);
        let mut dns = Dns::new("dns://test", ("no-such-name.invalid", 29_600), every, &engine);
        for _ in 0..2 {
            assert!(dns.poll(&Stop::default()).is_err());
        }
        "localhost".clone_into(&mut dns.name);
        assert!(matches!(dns.poll(&Stop::default()), Ok(News::All(_))));
        "no-such-name.invalid".clone_into(&mut dns.name);
        assert!(dns.poll(&Stop::default()).is_ok(), "it is not time yet");
    }
}
