//! Two engines in one process, over real sockets.
//!
//! The tests of an area are one program, in which one test waits while another computes. A test that needs its own
//! program says why at the top.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod acquaintance;
pub(crate) mod devices;
pub(crate) mod meddler;
pub(crate) mod pki;
pub(crate) mod puppet;
pub(crate) mod relay;
pub(crate) mod stranger;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use polyrail::{
    Config, Engine, EngineBuilder, Memory, Outcome, Peer, Region, RemoteRegion, Transfer,
    TransferError,
};

/// Long enough for a loaded machine; no test waits it out unless it fails.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) const FOUR_RAILS: &str = "127.0.0.1,127.0.0.2,127.0.0.3,127.0.0.4";

/// Settings with which rails carry all that no device copies, though all is on one host: rails are the subject of most
/// tests.
pub(crate) fn config(settings: &[(&str, &str)]) -> Config {
    let mut builder = Config::builder().set("rails", FOUR_RAILS).unwrap();
    builder = builder.set("path", "device").unwrap();
    for (name, value) in settings {
        builder = builder.set(name, value).unwrap();
    }
    builder.build().unwrap()
}

/// Makes the builder of an engine that a test ends: it panics then if work was left undone.
pub(crate) fn builder() -> EngineBuilder {
    Engine::builder().strict()
}

pub(crate) fn engine(settings: &[(&str, &str)]) -> Engine {
    builder().config(config(settings)).build().unwrap()
}

/// Makes an engine with a single rail and, unless `settings` say otherwise, a single connection to each peer.
pub(crate) fn one_rail(settings: &[(&str, &str)]) -> Engine {
    engine(&[&[("rails", "127.0.0.1"), ("channels", "1")], settings].concat())
}

pub(crate) struct Pair {
    pub(crate) a: Engine,
    pub(crate) b: Engine,
    /// b, as a knows it.
    pub(crate) to_b: Peer,
    /// a, as b knows it.
    pub(crate) to_a: Peer,
}

/// Two engines that know each other.
pub(crate) fn pair(settings: &[(&str, &str)]) -> Pair {
    acquainted(engine(settings), engine(settings))
}

/// Adds each of these engines to the other.
pub(crate) fn acquainted(a: Engine, b: Engine) -> Pair {
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let to_a = b.add_peer(&a.metadata()).unwrap();
    Pair { a, b, to_b, to_a }
}

/// Makes two engines that know each other and treat each other as another process's.
pub(crate) fn apart(a: &[(&str, &str)], b: &[(&str, &str)]) -> Pair {
    let build = |settings| builder().config(config(settings)).apart().build().unwrap();
    let (a, b) = (build(a), build(b));
    let to_b = a.add_peer(&b.metadata()).unwrap();
    let to_a = b.add_peer(&a.metadata()).unwrap();
    Pair { a, b, to_b, to_a }
}

/// Returns the payload so far that rails carried and that was left in shared memory.
pub(crate) fn sent_bytes(engine: &Engine) -> u64 {
    let peers = engine.stats().peers;
    let rails = peers.iter().flat_map(|peer| &peer.rails).map(|rail| rail.tx_bytes);
    rails.chain(peers.iter().map(|peer| peer.shared_bytes)).sum()
}

/// Returns how often a flow to a peer was lost.
pub(crate) fn lost_flows(engine: &Engine) -> u64 {
    let rails = engine.stats().peers.into_iter().flat_map(|peer| peer.rails);
    rails.map(|rail| rail.down_count).sum()
}

/// Makes bytes that depend on their position, so that a swapped or shifted chunk is detected.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|i| {
            let mut x = (i / 8 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed;
            x ^= x >> 29;
            (x.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> (8 * (i % 8))) as u8
        })
        .collect()
}

pub(crate) fn filled(engine: &Engine, len: usize, seed: u64) -> Region {
    engine.register(Memory::from(pattern(len, seed))).unwrap()
}

pub(crate) fn zeroed(engine: &Engine, len: usize) -> Region {
    engine.register(Memory::from(vec![0; len])).unwrap()
}

/// Imports a region at the other engine.
pub(crate) fn remote(engine: &Engine, region: &Region) -> RemoteRegion {
    engine.import(&region.describe()).unwrap()
}

pub(crate) fn bytes(region: &Region) -> Vec<u8> {
    let mut out = vec![0; region.len() as usize];
    region.read_at(0, &mut out).unwrap();
    out
}

/// Waits for a condition, and names it if it does not come true.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < LONG, "waited too long for {what}");
        // Polls again: conditions send no event when they hold.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a transfer is complete.
pub(crate) fn finished(transfer: &Transfer) {
    transfer.ended().unwrap();
}

/// Waits for an end that must come.
pub(crate) trait InTime {
    fn ended(&self) -> Result<Outcome, TransferError>;
}

impl InTime for Transfer {
    fn ended(&self) -> Result<Outcome, TransferError> {
        self.wait(LONG).expect("still under way")
    }
}

/// Random numbers, reproducible by their seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }
}

/// Tells a thread to end, also when the test fails.
pub(crate) struct TellOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for TellOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
