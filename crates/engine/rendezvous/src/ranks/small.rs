//! Small engine for messages between ranks. Its connections are as safe as those of the program's engine, and the
//! notifications of the program's engine remain the program's.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use polyrail::{
    Config, Engine, EngineError, InstanceId, LostReason, Observer, Peer, PostError, Transfer,
};
use serde::{Deserialize, Serialize};

use super::job::Job;
use crate::member::Found;
use crate::stop::Stop;

/// Maximum bytes of entries per message, below the longest notification.
const BATCH_BYTES: usize = 48 << 10;
const FULL_AGAIN: Duration = Duration::from_millis(1);
/// Maximum number of received messages per peer that wait for handling, and of sent ones that have not arrived.
const MOST_WAITING: usize = 1024;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Message between ranks.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Message {
    /// To rank 0: a rank asks to join.
    Enter { group: String, size: usize, name: String, metadata: String },
    /// From rank 0: changed entries. The receiver's own entry is among the first.
    Entries(Vec<Entry>),
    /// From rank 0: the name is taken, perhaps by a dead rank. It may be free soon.
    Taken { why: String },
    /// From rank 0: refused.
    Refused { why: String },
    /// From rank 0: it leaves, and no more changes follow.
    Over,
}

/// A member, or the record that it left.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Version of the change. Later changes have higher numbers, because messages may overtake each other.
    pub(super) version: u64,
    pub(super) metadata: Option<String>,
}

/// Event of a small engine.
pub(super) enum Heard {
    Said { peer: Peer, bytes: Vec<u8>, _place: Place },
    Lost(Peer),
}

/// Slot of a waiting message. The clones of a peer's slot count its waiting messages.
pub(super) type Place = Arc<()>;

struct Ear {
    sender: Sender<Heard>,
    /// Slots by peer, with one clone for each waiting message.
    waiting: Mutex<HashMap<InstanceId, Place>>,
}

impl Observer for Ear {
    fn notified(&self, peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        let mut waiting = self.waiting.lock();
        let place = waiting.entry(peer.instance()).or_default();
        if Arc::strong_count(place) > MOST_WAITING {
            let peer = peer.name();
            tracing::warn!(target: "polyrail::rendezvous", peer, "it says more than is heard: a message of it is dropped");
            return None;
        }
        // While the engine closes, there is no receiver.
        let _place = place.clone();
        let _ = self.sender.send(Heard::Said { peer: peer.clone(), bytes: data, _place });
        None
    }

    fn lost(&self, peer: &Peer, _why: &LostReason) {
        self.waiting.lock().remove(&peer.instance());
        let _ = self.sender.send(Heard::Lost(peer.clone()));
    }
}

/// A small engine and its events.
pub(super) struct Small {
    pub(super) engine: Engine,
    pub(super) heard: Receiver<Heard>,
    /// Messages to each peer that have not arrived.
    said: Mutex<HashMap<InstanceId, VecDeque<Transfer>>>,
}

impl Small {
    /// Starts the engine on the interface of an address, or on all. Only rank 0 passes a port.
    pub(super) fn start(
        of: &Config,
        job: &Job,
        rails: &str,
        port: Option<u16>,
    ) -> Result<Self, EngineError> {
        let port = port.unwrap_or(0).to_string();
        let mut builder = Config::builder();
        let peer_timeout = of.peer_timeout_ms.to_string();
        for (name, value) in [
            ("rails", rails),
            ("listen_port", &port),
            ("channels", "1"),
            ("proxy_layout", "merged"),
            ("proxies", "1"),
            ("flow_limit", "65536"),
            ("ops_pool", "65536"),
            ("peer_timeout_ms", &peer_timeout),
            // Authentication is the same as for the program's engine.
            ("auth", of.auth.name()),
            ("secret_file", &of.secret_file),
            ("certificate_file", &of.certificate_file),
            ("certificate_key_file", &of.certificate_key_file),
            ("trust_file", &of.trust_file),
            ("allowed_names", &of.allowed_names),
        ] {
            builder = builder.set(name, value)?;
        }
        let (sender, heard) = channel();
        let engine = Engine::builder()
            .config(builder.build()?)
            .name(&format!("rendezvous of rank {}", job.rank))
            .observer(Arc::new(Ear { sender, waiting: Mutex::default() }))
            .build()?;
        Ok(Self { engine, heard, said: Mutex::default() })
    }

    /// Sends a message, and waits while too many are in flight. A rank that leaves does not wait. A peer that accepts
    /// nothing while messages pile up is given up, because it would block the messages to the others.
    pub(super) fn say(&self, to: &Peer, message: &Message, stop: &Stop) {
        // Serialization can't fail: messages have only texts, numbers and lists.
        let Ok(bytes) = serde_json::to_vec(message) else { return };
        let mut all = self.said.lock();
        let said = all.entry(to.instance()).or_default();
        while said.front().is_some_and(Transfer::is_over) {
            said.pop_front();
        }
        if said.len() >= MOST_WAITING {
            let peer = to.name();
            tracing::warn!(target: "polyrail::rendezvous", peer, "it takes no message of {MOST_WAITING}: it is given up");
            all.remove(&to.instance());
            drop(all);
            return self.engine.remove_peer(to);
        }
        loop {
            match self.engine.notify(to, &bytes) {
                Ok(transfer) => return said.push_back(transfer),
                Err(PostError::Busy { .. }) if !stop.is_set() => stop.sleep(FULL_AGAIN),
                Err(_) => return,
            }
        }
    }

    /// Forgets messages to a lost peer. If it returns, it gets the entries in its new session.
    pub(super) fn forget(&self, peer: &Peer) {
        let said = self.said.lock().remove(&peer.instance());
        said.into_iter().flatten().for_each(Transfer::detach);
    }

    /// Sends entries, in as many messages as needed.
    pub(super) fn tell(&self, to: &Peer, entries: &[Entry], stop: &Stop) {
        let mut batch = Vec::new();
        let mut bytes = 0;
        for entry in entries {
            let length = entry.metadata.as_ref().map_or(0, String::len) + entry.name.len() + 64;
            if bytes + length > BATCH_BYTES && !batch.is_empty() {
                self.say(to, &Message::Entries(std::mem::take(&mut batch)), stop);
                bytes = 0;
            }
            bytes += length;
            batch.push(entry.clone());
        }
        if !batch.is_empty() {
            self.say(to, &Message::Entries(batch), stop);
        }
    }
}

impl Entry {
    pub(super) fn found(&self) -> Option<Found> {
        let bytes = STANDARD.decode(self.metadata.as_ref()?).ok()?;
        Some(Found::Metadata(Arc::from(bytes)))
    }
}

/// Checks the metadata that a rank sent.
pub(super) fn check(text: &str) -> Result<(), String> {
    let bytes = STANDARD.decode(text).map_err(|error| error.to_string())?;
    Found::of(bytes).map(drop).map_err(|error| error.to_string())
}

pub(super) fn text_of(metadata: &[u8]) -> String {
    STANDARD.encode(metadata)
}

/// Rails of rank 0: the interface of the address by which the other ranks know its host. A host may resolve its own
/// name to a loopback address, which other hosts don't. Then it uses all interfaces, plus loopback for local ranks.
pub(super) fn rails_of_rank_0(job: &Job, addresses: &[SocketAddr]) -> String {
    let is_here = |ip: IpAddr| TcpListener::bind((ip, 0)).is_ok();
    if let Some(wide) = addresses.iter().find(|it| !it.ip().is_loopback() && is_here(it.ip())) {
        return wide.ip().to_string();
    }
    let near = addresses.iter().find(|it| it.ip().is_loopback()).map(|it| it.ip());
    let near = near.unwrap_or(LOOPBACK);
    // A loopback address in the setting means this host.
    let is_meant = job.host == "localhost" || job.host.parse::<IpAddr>().is_ok();
    let all = match job.is_local || is_meant {
        true => Vec::new(),
        false => polyrail::rails(&Config::default()).unwrap_or_default(),
    };
    let mut rails: Vec<String> = all.iter().map(|rail| rail.address.ip().to_string()).collect();
    rails.push(if near.is_ipv4() { LOOPBACK } else { near }.to_string());
    rails.join(",")
}

/// Returns the rail that leads to an address.
pub(super) fn rails_to(address: SocketAddr) -> std::io::Result<String> {
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        SocketAddr::V6(_) => ([0; 8], 0).into(),
    };
    // Sends no packet: the system only chooses the route.
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    Ok(socket.local_addr()?.ip().to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_one_peer_says_waits_with_a_bound_and_takes_no_room_of_others() {
        let job = Job { rank: 0, size: 3, host: "127.0.0.1".to_owned(), port: 0, is_local: true };
        let start = || Small::start(&Config::default(), &job, "127.0.0.1", None).unwrap();
        let (small, loud, other) = (start(), start(), start());
        let says = |from: &Small, times: usize| {
            let peer = from.engine.add_peer(&small.engine.metadata()).unwrap();
            (0..times).for_each(|_| {
                from.engine.notify(&peer, b"word").unwrap().join().unwrap();
            });
        };
        says(&loud, MOST_WAITING + 10);
        says(&other, 1);
        let begin = Instant::now();
        let mut heard = Vec::new();
        let of_other = |heard: &[Heard]| {
            let is_other = |one: &Heard| matches!(one, Heard::Said { peer, .. } if peer.instance() == other.engine.instance());
            heard.iter().any(is_other)
        };
        while !of_other(&heard) {
            assert!(begin.elapsed() < Duration::from_secs(30), "{} are heard", heard.len());
            heard.extend(small.heard.recv_timeout(Duration::from_secs(1)));
        }
        assert_eq!(heard.len(), MOST_WAITING + 1);
        // Handled messages free their slots.
        heard.clear();
        says(&loud, 1);
        assert!(small.heard.recv_timeout(Duration::from_secs(30)).is_ok());
    }
}
