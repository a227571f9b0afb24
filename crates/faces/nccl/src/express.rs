//! Caller lane (`Express`, `Way`): small messages that pass through no thread but NCCL's own.
//!
//! Each device has a second engine without progress threads. The thread that posts a small message sends it, and the
//! thread that tests a receive reads the socket. So no message passes between threads, which costs more than the way
//! through the kernel. Large messages and all messages about connections use the progress threads: there many threads
//! copy, and no thread has to test.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use polyrail::{Config, Engine, InstanceId, OnEnd, Peer, PostError, Request};
use polyrail_config::ConfigError;
use polyrail_sys::threads::monotonic_ns;

use crate::device::speed_of;
use crate::error::CallError;
use crate::hub::Hub;
use crate::log;
use crate::request::Handle;
use crate::wire::{Body, ExpressCard, Message, TOLD_BYTES, put_part};

/// Settings of a device that this engine takes over. The others are about progress threads, or about things that a
/// process can have only once.
const TAKEN: [&str; 12] = [
    "rails",
    "congestion",
    "connect_timeout_ms",
    "rail_stall_ms",
    "reconnect_max_ms",
    "peer_timeout_ms",
    "auth",
    "payload",
    "path",
    "secret_file",
    "flow_limit",
    "metrics_listen",
];

/// Maximum bytes in flight to a process. Further messages use the progress threads. So a message posted here mostly
/// finds room in the socket and has left when posting returns. (Otherwise it leaves when a receive is tested, or within
/// 50 ms.)
const MOST_UNDER_WAY: u64 = 256 << 10;
/// Limit on a device of several rails, for messages that progress threads would not copy either: the bytes that this
/// lane's rail carries in this time. Meanwhile the progress threads can send the rest over the other rails.
const RAIL_TIME: Duration = Duration::from_micros(30);
/// Lower bound of that limit, for slow rails.
const LEAST_OF_RAIL: u64 = 32 << 10;
/// Maximum bytes that wait to travel with the next message, so that both together are not too long.
const MOST_LEFT: usize = 16 << 10;
/// Time for which one request's look at the sockets counts for the others. NCCL tests its requests one after another,
/// mostly within this time, so each round looks once.
const WATCH_NS: u64 = 2_000;
/// Mark in tokens of caller-lane messages. The rest of the token is the message's share of the limit.
const BY_EXPRESS: u64 = 1 << 63;
/// Share of the smallest message.
const LEAST_BYTES: u64 = 1 << 10;

/// An engine driven by its callers.
pub(crate) struct Express {
    engine: Engine,
    metadata: Vec<u8>,
    /// Maximum size of its messages.
    bytes: u64,
    /// Maximum bytes in flight to a process when a message is posted that progress threads would not send inline.
    most_of_rail: u64,
    /// Lines by the number of the other process's caller-driven engine.
    lines: Mutex<HashMap<InstanceId, Arc<Line>>>,
    /// Met processes by the number of their engine with progress threads.
    met: Mutex<HashMap<InstanceId, Met>>,
    watch: Watch,
}

/// Tracks looks at the sockets. All requests of a process share the sockets, so only one of those that NCCL tests in a
/// round has to look.
#[derive(Default)]
struct Watch {
    /// Address of the request that looked last, and the time.
    by: AtomicU64,
    at_ns: AtomicU64,
}

impl Watch {
    /// True if a request should look now. Then the caller must look.
    fn is_turn_of(&self, request: u64, now_ns: u64) -> bool {
        let is_watched = now_ns.saturating_sub(self.at_ns.load(Ordering::Relaxed)) < WATCH_NS;
        if is_watched && self.by.load(Ordering::Relaxed) != request {
            return false;
        }
        self.by.store(request, Ordering::Relaxed);
        self.at_ns.store(now_ns, Ordering::Relaxed);
        true
    }
}

/// A process that has authenticated to the engine with progress threads, and has named a caller-driven engine.
struct Met {
    process: Peer,
    /// `None` if that engine is not its own.
    express: Option<InstanceId>,
    /// Set if this end connects.
    added: Option<Peer>,
}

impl Met {
    /// True if this end has connected and the connection is up.
    fn has(&self, express: InstanceId) -> bool {
        let is_up = |peer: &Peer| peer.lost().is_none();
        self.express == Some(express) && self.added.as_ref().is_some_and(is_up)
    }
}

/// Caller lane of a connection.
pub(crate) struct Way {
    express: Arc<Express>,
    /// Number of the other process's caller-driven engine.
    instance: InstanceId,
    /// Number of its engine with progress threads.
    process: InstanceId,
    /// Known once either side has connected.
    peer: OnceLock<Peer>,
    line: Arc<Line>,
}

/// State that all connections to a process share.
#[derive(Default)]
struct Line {
    /// Bytes in flight to it.
    under_way: AtomicU64,
    /// Parts of [`Body::Many`] that leave with the next message.
    waiting: Mutex<Vec<u8>>,
}

impl Express {
    /// Creates the engine for the caller lane beside `engine`. `None` if it is turned off, or these settings don't
    /// allow it.
    pub(crate) fn new(
        config: &Config,
        hub: &Arc<Hub>,
        engine: &Engine,
    ) -> Result<Option<Arc<Self>>, CallError> {
        if config.nccl_express_bytes == 0 {
            return Ok(None);
        }
        if !config.chooses_ports() {
            // A second engine can't listen there, and other ports may not be open.
            log::info("no express way for small messages, since listen_port is set");
            return Ok(None);
        }
        let wrong = |error: &dyn Display| CallError::Config(error.to_string());
        let rails = polyrail::rails(config).map_err(|error| wrong(&error))?;
        let speeds: Vec<u32> = rails.iter().map(speed_of).collect();
        let most_of_rail = most_of_rail(&speeds);
        let settings = derive(config, rails.len()).map_err(|error| wrong(&error))?;
        // The name shows the other end to which process the engine belongs.
        let builder = Engine::builder().name(&engine.companion_name()).config(settings);
        let engine = builder
            .observer(hub.clone())
            .build()
            .map_err(|error| CallError::Engine(error.to_string()))?;
        let (metadata, bytes) = (engine.metadata(), config.nccl_express_bytes);
        let (lines, met, watch) = (Mutex::default(), Mutex::default(), Watch::default());
        Ok(Some(Arc::new(Self { engine, metadata, bytes, most_of_rail, lines, met, watch })))
    }

    pub(crate) fn card(&self) -> ExpressCard<'_> {
        ExpressCard { instance: self.engine.instance().0, metadata: &self.metadata }
    }

    /// Connects with another process, which does the same. Only one of the two really connects, so both directions
    /// share one connection and acknowledgements travel with answers.
    ///
    /// `process` sent the card and has authenticated to the engine with progress threads. Its first card counts until
    /// it is gone, and must describe an engine at its own addresses. Returns the number of that engine if this card
    /// describes it.
    pub(crate) fn meet(&self, process: &Peer, card: ExpressCard<'_>) -> Option<InstanceId> {
        let express = InstanceId(card.instance);
        let mut met = self.met.lock();
        if let Some(known) = met.get(&process.instance()).filter(|known| known.process == *process)
        {
            return known.express.filter(|known| *known == express);
        }
        let gone = met.extract_if(|_, known| known.process.lost().is_some());
        gone.filter_map(|(_, gone)| gone.added).for_each(|peer| self.engine.remove_peer(&peer));
        let is_taken = met.values().any(|known| known.has(express));
        let is_own = process.companion(card.metadata) == Some(express) && !is_taken;
        let mut added = None;
        if !is_own {
            let name = process.name();
            log::warn(&format!(
                "small messages take the proxies: {name} named another process's engine as its own"
            ));
        } else if self.engine.instance() < express {
            match self.engine.add_peer(card.metadata) {
                Ok(peer) => added = Some(peer),
                Err(error) => log::info(&format!("small messages take the proxies: {error}")),
            }
        }
        let express = is_own.then_some(express);
        met.insert(process.instance(), Met { process: process.clone(), express, added });
        express
    }

    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Reads received data, unless another thread is doing so.
    fn progress(&self) {
        self.engine.progress();
    }

    /// Reads received data on behalf of a tested request, unless another request looks often enough.
    pub(crate) fn look(&self, request: &Handle) {
        if self.watch.is_turn_of(std::ptr::from_ref(request).addr() as u64, monotonic_ns()) {
            self.progress();
        }
    }

    /// Waits until all sent messages have arrived.
    pub(crate) fn drain(&self, timeout: Duration) {
        self.engine.drain(timeout);
    }
}

impl Way {
    /// Creates the lane to the engine with this number, once both have [met](Express::meet). `process` is the number of
    /// the engine with progress threads there.
    pub(crate) fn to(express: &Arc<Express>, instance: InstanceId, process: InstanceId) -> Self {
        let mut all = express.lines.lock();
        // Drop the lines of processes that are gone, with all connections to them.
        all.retain(|_, line| Arc::strong_count(line) > 1);
        let line = all.entry(instance).or_default().clone();
        drop(all);
        let express = express.clone();
        Self { express, instance, process, peer: OnceLock::new(), line }
    }

    pub(crate) fn express(&self) -> &Express {
        &self.express
    }

    /// True if a peer is the engine at the lane's other end.
    pub(crate) fn leads_to(&self, peer: &Peer) -> bool {
        self.instance == peer.instance() && peer.is_companion_of(self.process)
    }

    /// Returns the peer for a message of this size, or `None` if the message can't use the lane now.
    pub(crate) fn take(&self, len: u64) -> Option<&Peer> {
        if len > self.express.bytes {
            return None;
        }
        let peer = match self.peer.get() {
            Some(peer) => peer,
            None => {
                let peer = self.express.engine.peer(self.instance)?;
                // The peer's own name confirms its process, as another process may have announced this engine.
                if !self.leads_to(&peer) {
                    return None;
                }
                self.peer.get_or_init(|| peer)
            }
        };
        if peer.flows().up == 0 {
            return None;
        }
        let under_way = &self.line.under_way;
        let most = match len <= TOLD_BYTES as u64 {
            true => MOST_UNDER_WAY,
            false => self.express.most_of_rail,
        };
        if under_way.load(Ordering::Relaxed) >= most / 2 {
            // Acknowledgements may have arrived and not been read.
            self.express.progress();
        }
        (under_way.load(Ordering::Relaxed) < most).then_some(peer)
    }

    /// Queues a message that is not urgent: it travels with the next one to the process. Returns true if queued. If the
    /// lane is lost later, so is the message.
    pub(crate) fn leave(&self, message: &Message<'_>) -> bool {
        let is_open = self.take(0).is_some();
        let mut waiting = self.waiting();
        let leaves = is_open && waiting.len() < MOST_LEFT;
        if leaves {
            put_part(&message.encode(), &mut waiting);
        }
        leaves
    }

    /// True if such a message is queued.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting().is_empty()
    }

    /// Drops the queued messages: no message can carry them any more.
    pub(crate) fn forget(&self) {
        self.waiting().clear();
    }

    /// Sends the queued messages, like [`Way::tell`].
    pub(crate) fn flush(&self, peer: &Peer, target: Arc<dyn OnEnd>) -> Result<(), PostError> {
        let left = std::mem::take(&mut *self.waiting());
        self.send_many(peer, left, &[], target)
    }

    /// Sends a message. When it has arrived, `target` gets a token for which [`Way::is_token`] is true, and must call
    /// [`Way::ended`].
    pub(crate) fn tell(
        &self,
        peer: &Peer,
        message: Vec<u8>,
        target: Arc<dyn OnEnd>,
    ) -> Result<(), PostError> {
        let left = std::mem::take(&mut *self.waiting());
        if left.is_empty() {
            return self.send(peer, message, target);
        }
        self.send_many(peer, left, &message, target)
    }

    /// Sends the queued messages, and the given message if any, as one.
    fn send_many(
        &self,
        peer: &Peer,
        mut left: Vec<u8>,
        message: &[u8],
        target: Arc<dyn OnEnd>,
    ) -> Result<(), PostError> {
        let before = left.len();
        if !message.is_empty() {
            put_part(message, &mut left);
        }
        let many = Message { to: 0, body: Body::Many { parts: &left } }.encode();
        // Hold no lock here: a message that arrives meanwhile may want to send, too.
        self.send(peer, many, target).inspect_err(|_| {
            self.waiting().extend_from_slice(&left[..before]);
        })
    }

    fn send(&self, peer: &Peer, message: Vec<u8>, target: Arc<dyn OnEnd>) -> Result<(), PostError> {
        let bytes = LEAST_BYTES.max(message.len() as u64);
        let token = BY_EXPRESS | bytes;
        let request = Request::write(peer).notification(message).tell(target, token);
        let prepared = self.express.engine.prepare(request)?;
        self.line.under_way.fetch_add(bytes, Ordering::Relaxed);
        prepared.post().inspect_err(|_| self.ended(token))?.detach();
        Ok(())
    }

    /// True if a token belongs to a message on this lane.
    pub(crate) fn is_token(token: u64) -> bool {
        token & BY_EXPRESS != 0
    }

    /// Records that the message of this token has arrived, or never will.
    pub(crate) fn ended(&self, token: u64) {
        self.line.under_way.fetch_sub(token & !BY_EXPRESS, Ordering::Relaxed);
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<u8>> {
        self.line.waiting.lock()
    }
}

/// Maximum bytes that this lane's rail may have to carry before messages use the progress threads. The rail is the
/// first of these speeds in Mbit/s.
fn most_of_rail(speeds: &[u32]) -> u64 {
    let [first, _, ..] = speeds else { return MOST_UNDER_WAY };
    let carried = f64::from(*first) * 1e6 / 8.0 * RAIL_TIME.as_secs_f64();
    (carried as u64).clamp(LEAST_OF_RAIL, MOST_UNDER_WAY)
}

/// Settings of the caller-driven engine of a device with this many rails.
fn derive(config: &Config, rails: usize) -> Result<Config, ConfigError> {
    let builder = Config::builder()
        .set("preset", "latency")?
        // All messages use the first rail; the others stand by in case it fails.
        .set("channels", &rails.to_string())?
        // Messages are few and small, so they never wait for the window.
        .set("window_chunks", "1024")?
        // The thread that posts does not wait for the message, so the engine must not delay it for batching.
        .set("append_batch", "1")?;
    let taken = config.rows().into_iter().filter(|row| TAKEN.contains(&row.name));
    taken.into_iter().try_fold(builder, |builder, row| builder.set(row.name, &row.value))?.build()
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use polyrail::{Outcome, TransferError};

    use super::*;
    use crate::wire::{Body, Message};

    struct Ignored;

    impl OnEnd for Ignored {
        fn ended(&self, _: u64, _: &Result<Outcome, TransferError>) {}
    }

    fn configured(settings: &[(&str, &str)]) -> Config {
        let builder = Config::builder().set("rails", "127.0.0.1").unwrap();
        let set = |builder: polyrail_config::ConfigBuilder, pair: &(&str, &str)| {
            builder.set(pair.0, pair.1).unwrap()
        };
        settings.iter().fold(builder, set).build().unwrap()
    }

    #[test]
    fn it_connects_as_the_device_does_and_has_no_proxies() {
        let device = configured(&[
            ("tx_bindings", "0"),
            ("proxy_layout", "merged"),
            ("peer_timeout_ms", "777"),
        ]);
        let settings = derive(&device, 3).unwrap();
        assert_eq!(settings.channels, 3, "one for each rail");
        assert_eq!((settings.peer_timeout_ms, settings.rails.as_str()), (777, "127.0.0.1"));
        assert_eq!(settings.progress, polyrail_config::Progress::Caller);
        assert_eq!(settings.tx_bindings, "");
    }

    #[test]
    fn every_setting_that_is_taken_exists() {
        assert!(TAKEN.iter().all(|name| polyrail_config::names().any(|known| known == *name)));
    }

    #[test]
    fn it_can_be_switched_off_and_does_not_take_the_port_of_the_device() {
        let hub = Arc::<Hub>::default();
        for settings in [("nccl_express_bytes", "0"), ("listen_port", "4711")] {
            let config = configured(&[settings]);
            let engine = Engine::builder().config(configured(&[])).build().unwrap();
            assert!(Express::new(&config, &hub, &engine).unwrap().is_none());
        }
    }

    #[test]
    fn of_requests_that_are_tested_in_turn_one_looks() {
        let watch = Watch::default();
        // Three requests, 100 ns apart.
        let looks: Vec<u64> =
            (0..30).filter(|at| watch.is_turn_of(1 + at % 3, 5_000 + at * 100)).collect();
        assert_eq!(looks, (0..30).step_by(3).collect::<Vec<_>>());
        // The first request is over. After its look expires, the others look again.
        let last = 5_000 + 27 * 100;
        assert!(!watch.is_turn_of(2, last + WATCH_NS - 1));
        assert!(watch.is_turn_of(3, last + WATCH_NS));
        assert!(watch.is_turn_of(3, last + WATCH_NS + 1));
    }

    /// Two connected engines. `most` bytes may be in flight from the first one on its rail.
    fn met(most: u64) -> [Arc<Express>; 2] {
        let engines = [(); 2].map(|()| Engine::builder().config(configured(&[])).build().unwrap());
        let [mut here, there] = engines.each_ref().map(|engine| {
            Express::new(&configured(&[]), &Arc::<Hub>::default(), engine).unwrap().unwrap()
        });
        Arc::get_mut(&mut here).unwrap().most_of_rail = most;
        let [to_there, to_here] =
            [[0, 1], [1, 0]].map(|[a, b]| engines[a].add_peer(&engines[b].metadata()).unwrap());
        assert!(there.meet(&to_here, here.card()).is_some());
        assert!(here.meet(&to_there, there.card()).is_some());
        let way = self::way(&here, &there);
        let start = Instant::now();
        while way.take(100).is_none() {
            assert!(start.elapsed() < Duration::from_secs(30), "not connected");
            std::thread::yield_now();
        }
        [here, there]
    }

    fn way(here: &Arc<Express>, there: &Arc<Express>) -> Way {
        let met = here.met.lock();
        let process = met.values().next().unwrap().process.instance();
        drop(met);
        Way::to(here, there.engine.instance(), process)
    }

    #[test]
    fn beside_other_rails_it_takes_what_its_rail_carries_soon_and_alone_everything() {
        assert_eq!(most_of_rail(&[1_000]), MOST_UNDER_WAY);
        assert_eq!(most_of_rail(&[1_000, 1_000]), LEAST_OF_RAIL);
        assert_eq!(most_of_rail(&[25_000, 1_000]), 93_750);
        assert_eq!(most_of_rail(&[u32::MAX, 1_000]), MOST_UNDER_WAY);
        for (most, takes_more) in [(MOST_UNDER_WAY, true), (LEAST_OF_RAIL, false)] {
            let [here, there] = met(most);
            let way = self::way(&here, &there);
            way.line.under_way.store(most - 1, Ordering::Relaxed);
            assert!(way.take(16 << 10).is_some(), "{most}");
            way.line.under_way.store(MOST_UNDER_WAY - 1, Ordering::Relaxed);
            assert_eq!(way.take(16 << 10).is_some(), takes_more, "{most}");
            assert!(way.take(TOLD_BYTES as u64).is_some(), "{most}: it is small");
            way.line.under_way.store(MOST_UNDER_WAY, Ordering::Relaxed);
            assert!(way.take(TOLD_BYTES as u64).is_none(), "{most}");
        }
    }

    #[test]
    fn a_burst_leaves_with_the_thread_that_posts_it() {
        let [here, there] = met(MOST_UNDER_WAY);
        let way = self::way(&here, &there);
        let peer = way.take(100).unwrap();
        let sent = || here.engine.stats().peers[0].rails.iter().map(|r| r.tx_chunks).sum::<u64>();
        // No acknowledgement is read meanwhile, and no message is waited for.
        for count in 1..=MOST_UNDER_WAY / LEAST_BYTES {
            let message = Message { to: 1, body: Body::Told { seq: count, bytes: &[7; 100] } };
            way.tell(peer, message.encode(), Arc::new(Ignored)).unwrap();
            // The control thread, which looks every 50 ms, may hold the engine for a moment.
            (0..1000).take_while(|_| sent() < count).for_each(|_| std::thread::yield_now());
            assert_eq!(sent(), count, "it waits for somebody to look");
        }
        assert_eq!(way.line.under_way.load(Ordering::Relaxed), MOST_UNDER_WAY);
        let other = self::way(&here, &there);
        assert!(
            other.line.under_way.load(Ordering::Relaxed) > 0,
            "all connections share the socket"
        );
    }
}
