//! A rail that can be broken: forwards TCP bytes between two engines, and cuts, stalls, delays or damages them on
//! request.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use polyrail::{Engine, Peer};
use polyrail_proto::hello::{Kind, PREFIX_BYTES, Prefix};
use polyrail_secure::RecordHeader;
use polyrail_sys::{Poller, tcp};
use socket2::SockRef;

use super::stranger::metadata_of;

/// Settings with which rails are given up soon and come back soon, and the peer is given up late.
pub(crate) const RAILS: &[(&str, &str)] = &[
    ("chunk_bytes", "64KiB"),
    ("rail_stall_ms", "200"),
    ("reconnect_max_ms", "100"),
    ("peer_timeout_ms", "30000"),
];

/// Callers make the progress.
pub(crate) const CALLER: (&str, &str) = ("progress", "caller");

/// [`RAILS`] and more.
pub(crate) fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    RAILS.iter().chain(more).copied().collect()
}

/// Bytes that a relay holds for each direction before it stops reading.
const HOLD_BYTES: usize = 4 << 20;

/// One rail of one direction of connecting.
pub(crate) struct Relay {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Ways to end the existing connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Bytes under way are lost.
    Reset,
    /// Bytes under way arrive, then the end.
    Finish,
}

/// Current behaviour of the relay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mood {
    /// Accepts and takes bytes, and passes nothing on.
    pub(crate) stalled: bool,
    /// Resets every new connection.
    pub(crate) closed: bool,
    /// Target of new connections, instead of the engine.
    pub(crate) diverted: Option<SocketAddr>,
    /// Time for which bytes are held.
    pub(crate) delay: Duration,
    /// Flips a bit in the payload of every chunk whose number is a multiple of this.
    pub(crate) damage_every: Option<u64>,
}

struct Shared {
    target: SocketAddr,
    poller: Poller,
    orders: Mutex<Orders>,
}

#[derive(Default)]
struct Orders {
    mood: Mood,
    /// The mood that the relay thread has applied.
    followed: Mood,
    cut: Option<Cut>,
    stop: bool,
    /// Bytes that were passed on.
    bytes: u64,
    /// Bits that were flipped.
    damaged: u64,
    /// Connections that were taken.
    accepted: u64,
}

/// A connection and its other half.
struct Link {
    up: Lane,
    down: Lane,
    client: TcpStream,
    server: TcpStream,
}

/// Bytes on their way in one direction.
#[derive(Default)]
struct Lane {
    held: VecDeque<(Instant, Vec<u8>)>,
    held_bytes: usize,
    /// Nothing more comes in; after the held bytes, the end goes out.
    ended: bool,
    closed: bool,
    /// For engines only; a stranger's bytes are not followed.
    frames: Option<Frames>,
}

/// Follows the records of a stream, to find payload that is not sealed.
#[derive(Default)]
struct Frames {
    head: Vec<u8>,
    stage: Stage,
    payload_left: usize,
    chunks: u64,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Hello,
    Record,
    Payload {
        damage: bool,
    },
}

impl Relay {
    /// A relay to `target`, on an address of the same network.
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(target.ip(), 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let poller = Poller::new().unwrap();
        poller.add(listener.as_fd(), 0).unwrap();
        let shared = Arc::new(Shared { target, poller, orders: Mutex::default() });
        let thread = {
            let shared = shared.clone();
            std::thread::spawn(move || shared.run(&listener))
        };
        Self { address, shared, thread: Some(thread) }
    }

    pub(crate) fn set(&self, change: impl FnOnce(&mut Mood)) {
        change(&mut self.shared.orders().mood);
        self.shared.poller.wake();
    }

    /// Stalls the relay: nothing is passed on any more when this returns.
    pub(crate) fn stall(&self) {
        self.set(|mood| mood.stalled = true);
        super::wait_for("the relay to stall", || self.shared.orders().followed.stalled);
    }

    /// Cuts the existing connections: nothing that is sent from now on passes on them.
    pub(crate) fn cut(&self, cut: Cut) {
        self.shared.orders().cut = Some(cut);
        self.shared.poller.wake();
        super::wait_for("the relay to cut", || self.shared.orders().cut.is_none());
    }

    /// Returns the bytes that were passed on, both ways.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.orders().bytes
    }

    /// Returns the number of connections that it has accepted.
    pub(crate) fn accepted(&self) -> u64 {
        self.shared.orders().accepted
    }

    pub(crate) fn damaged(&self) -> u64 {
        self.shared.orders().damaged
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.orders().stop = true;
        self.shared.poller.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("a relay panicked");
        }
    }
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, listener: &TcpListener) {
        let mut links: Vec<Link> = Vec::new();
        let mut events = Vec::new();
        let mut buffer = vec![0; 256 << 10];
        loop {
            let (mood, cut) = {
                let mut orders = self.orders();
                if orders.stop {
                    return;
                }
                orders.followed = orders.mood;
                (orders.mood, orders.cut)
            };
            match cut {
                Some(Cut::Reset) => links.drain(..).for_each(Link::reset),
                Some(Cut::Finish) => links.iter_mut().for_each(Link::finish),
                None => {}
            }
            if cut.is_some() {
                self.orders().cut = None;
            }
            self.accept(listener, mood, &mut links);
            let mut moved = 0;
            for link in &mut links {
                moved += link.run(mood, &mut buffer, self);
            }
            links.retain(|link| !link.is_over());
            self.orders().bytes += moved as u64;
            if moved == 0 {
                // Held bytes become due at their own times.
                let limit = Duration::from_millis(if mood.delay.is_zero() { 100 } else { 1 });
                self.poller.wait(&mut events, Some(limit)).unwrap();
                events.clear();
            }
        }
    }

    fn accept(&self, listener: &TcpListener, mood: Mood, links: &mut Vec<Link>) {
        while let Ok((client, _)) = listener.accept() {
            if mood.closed {
                tcp::reset_on_close(&client).unwrap();
                continue;
            }
            // The engine behind may be gone.
            let target = mood.diverted.unwrap_or(self.target);
            let Ok(server) = TcpStream::connect(target) else { continue };
            for stream in [&client, &server] {
                stream.set_nonblocking(true).unwrap();
                stream.set_nodelay(true).unwrap();
                self.poller.add(stream.as_fd(), 1).unwrap();
            }
            self.orders().accepted += 1;
            let lane = || Lane {
                frames: mood.diverted.is_none().then(Frames::default),
                ..Lane::default()
            };
            links.push(Link { up: lane(), down: lane(), client, server });
        }
    }
}

impl Link {
    fn run(&mut self, mood: Mood, buffer: &mut [u8], shared: &Shared) -> usize {
        let Self { up, down, client, server } = self;
        up.run(client, server, mood, buffer, shared)
            + down.run(server, client, mood, buffer, shared)
    }

    fn is_over(&self) -> bool {
        self.up.closed && self.down.closed
    }

    fn reset(self) {
        for stream in [&self.client, &self.server] {
            tcp::reset_on_close(stream).unwrap();
        }
    }

    fn finish(&mut self) {
        self.up.ended = true;
        self.down.ended = true;
    }
}

impl Lane {
    fn run(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        mood: Mood,
        buffer: &mut [u8],
        shared: &Shared,
    ) -> usize {
        self.take(from, mood, buffer, shared);
        let mut moved = 0;
        while let Some((due, bytes)) = self.held.front_mut() {
            if mood.stalled || Instant::now() < *due {
                break;
            }
            match Write::write(&mut &*to, bytes) {
                Ok(written) => {
                    moved += written;
                    self.held_bytes -= written;
                    bytes.drain(..written);
                    if bytes.is_empty() {
                        self.held.pop_front();
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => self.lose(from),
            }
        }
        if self.ended && self.held.is_empty() && !self.closed {
            self.closed = true;
            // The connection may be gone already.
            let _ = to.shutdown(Shutdown::Write);
        }
        moved
    }

    fn take(&mut self, from: &TcpStream, mood: Mood, buffer: &mut [u8], shared: &Shared) {
        while !self.ended && self.held_bytes < HOLD_BYTES {
            match Read::read(&mut &*from, buffer) {
                // An end or a reset on one side: bytes before it are still passed on.
                Ok(0) => self.ended = true,
                Ok(bytes) => {
                    let taken = &mut buffer[..bytes];
                    if let Some(frames) = &mut self.frames {
                        shared.orders().damaged += frames.follow(taken, mood.damage_every);
                    }
                    self.held.push_back((Instant::now() + mood.delay, taken.to_vec()));
                    self.held_bytes += bytes;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.ended = true,
            }
        }
    }

    /// Drops the bytes of this direction and closes it.
    fn lose(&mut self, from: &TcpStream) {
        self.held.clear();
        self.held_bytes = 0;
        self.ended = true;
        let _ = SockRef::from(from).shutdown(Shutdown::Both);
    }
}

impl Frames {
    /// Goes through `bytes` and flips a bit in the payload of every `damage_every`th chunk. Returns how many bits.
    fn follow(&mut self, bytes: &mut [u8], damage_every: Option<u64>) -> u64 {
        let (mut at, mut damaged) = (0, 0);
        while at < bytes.len() {
            if let Stage::Payload { damage } = self.stage {
                if damage {
                    bytes[at] ^= 1;
                    damaged += 1;
                    self.stage = Stage::Payload { damage: false };
                }
                let step = self.payload_left.min(bytes.len() - at);
                self.payload_left -= step;
                at += step;
                if self.payload_left == 0 {
                    self.stage = Stage::Record;
                }
                continue;
            }
            self.head.push(bytes[at]);
            at += 1;
            let Some((head, payload)) = self.whole_head() else { continue };
            if self.head.len() < head {
                continue;
            }
            if self.stage == Stage::Hello {
                let prefix = self.head.first_chunk::<PREFIX_BYTES>().unwrap();
                // The last message of either side before the records.
                if matches!(Prefix::decode(prefix).unwrap().kind(), Kind::Third | Kind::Reply) {
                    self.stage = Stage::Record;
                }
            } else {
                self.stage = Stage::Record;
            }
            self.head.clear();
            if payload > 0 {
                self.chunks += 1;
                let damage = damage_every.is_some_and(|every| self.chunks.is_multiple_of(every));
                self.stage = Stage::Payload { damage };
                self.payload_left = payload;
            }
        }
        damaged
    }

    /// Returns the bytes before the payload, and of the payload, once they are known.
    fn whole_head(&self) -> Option<(usize, usize)> {
        if self.stage == Stage::Hello {
            let prefix = self.head.first_chunk::<PREFIX_BYTES>()?;
            return Some((PREFIX_BYTES + Prefix::decode(prefix).unwrap().body_bytes(), 0));
        }
        let header = RecordHeader::decode(self.head.first_chunk()?).unwrap();
        Some((header.bytes(), header.raw as usize))
    }
}

/// Two engines that reach each other only through relays.
pub(crate) struct RelayedPair {
    pub(crate) a: Engine,
    pub(crate) b: Engine,
    pub(crate) to_b: Peer,
    pub(crate) to_a: Peer,
    /// By rail: the relay that a connects through.
    pub(crate) ways_to_b: Vec<Relay>,
    /// By rail: the relay that b connects through.
    pub(crate) ways_to_a: Vec<Relay>,
}

impl RelayedPair {
    pub(crate) fn new(settings: &[(&str, &str)]) -> Self {
        Self::of(settings, settings)
    }

    /// Makes a pair in which each engine has its own settings.
    pub(crate) fn of(a: &[(&str, &str)], b: &[(&str, &str)]) -> Self {
        let (a, b) = (super::engine(a), super::engine(b));
        let (ways_to_b, ways_to_a) = (ways_to(&b), ways_to(&a));
        // A hello has the true addresses. If one is read before its peer is added, it makes a peer that the user's
        // metadata then replace, with its flows. So none may arrive before both are added.
        ways_to_a.iter().for_each(Relay::stall);
        let to_a = b.add_peer(&metadata_through(&a, &ways_to_a)).unwrap();
        let to_b = a.add_peer(&metadata_through(&b, &ways_to_b)).unwrap();
        ways_to_a.iter().for_each(|way| way.set(|mood| mood.stalled = false));
        Self { a, b, to_b, to_a, ways_to_b, ways_to_a }
    }

    pub(crate) fn metadata_of_b(&self) -> Vec<u8> {
        metadata_through(&self.b, &self.ways_to_b)
    }

    pub(crate) fn relays(&self) -> impl Iterator<Item = &Relay> {
        self.ways_to_b.iter().chain(&self.ways_to_a)
    }

    /// Makes every rail work again.
    pub(crate) fn heal(&self) {
        self.relays().for_each(|relay| relay.set(|mood| *mood = Mood::default()));
    }

    pub(crate) fn resent(&self) -> u64 {
        let peers = [self.a.stats(), self.b.stats()].into_iter().flat_map(|stats| stats.peers);
        peers.flat_map(|peer| peer.rails).map(|rail| rail.resent_chunks).sum()
    }
}

fn ways_to(engine: &Engine) -> Vec<Relay> {
    engine.addresses().into_iter().map(Relay::to).collect()
}

/// Returns the metadata of an engine, with the addresses of the relays.
pub(crate) fn metadata_through(engine: &Engine, relays: &[Relay]) -> Vec<u8> {
    let mut metadata = metadata_of(engine);
    for (rail, relay) in metadata.card.rails.iter_mut().zip(relays) {
        rail.address = relay.address;
    }
    metadata.encode()
}
