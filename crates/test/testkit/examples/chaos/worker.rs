//! A process with one engine: it posts random operations to all others, and verifies their effects on its memory.

mod ends;
mod inbound;
mod link;
mod operations;

use std::collections::{BTreeMap, HashMap};
use std::io::stdin;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use polyrail::{
    Config, Engine, InstanceId, Memory, Observer, Outcome, Peer, Region, TransferError,
};
use polyrail_testkit::Rng;

use crate::bytes::{SLOT_BYTES, Slot, Text, memory};
use crate::crew::{CHANNELS, WORKERS};
use crate::talk::{Oracle, Order, Tally, Word, hear, say};
use ends::Resting;
use inbound::Inbound;
use link::Link;
use operations::Running;

/// Time for which a peer may be silent before the engine gives it up.
pub(crate) const PEER_TIMEOUT_MS: u64 = 4000;
/// Maximum operations in flight per worker, without receives that others request.
const OUTSTANDING_MAX: usize = 4;
/// Room for its own operations and for a message from each other worker.
const ARENA_SLOTS: usize = OUTSTANDING_MAX + WORKERS;
const TALLY_EVERY: Duration = Duration::from_millis(500);

pub(crate) fn run(index: usize, generation: u32, seed: u64) -> ExitCode {
    match Worker::start(index, generation, seed) {
        Ok(worker) => worker.work(),
        Err(error) => {
            let what = format!("worker {index} can't start: {error}");
            let _ =
                say(&mut std::io::stdout(), &Word::Violation { oracle: Oracle::Unexplained, what });
            ExitCode::FAILURE
        }
    }
}

/// Event of the worker's single loop.
enum Event {
    Order(Order),
    /// The supervisor is gone.
    Alone,
    Ended {
        id: u64,
        result: Result<Outcome, TransferError>,
    },
    Notified {
        from: InstanceId,
        data: Vec<u8>,
    },
}

struct Worker {
    index: usize,
    engine: Engine,
    text: Text,
    rng: Rng,
    /// Sender for callbacks.
    sender: Sender<Event>,
    events: Receiver<Event>,
    links: BTreeMap<usize, Link>,
    running: HashMap<u64, Running>,
    next_id: u64,
    next_post: Duration,
    /// Free slots for this end of operations.
    free: Vec<Slot>,
    resting: Vec<Resting>,
    exposed: Region,
    exposed_seed: u64,
    inbound: Inbound,
    hoard: Vec<Region>,
    clock: Awake,
    /// Time at which each worker was last stopped or continued, or last became unreachable.
    outages: [Duration; WORKERS],
    is_posting: bool,
    /// True if the supervisor waits for [`Word::Quiet`].
    is_asked: bool,
    tally: Tally,
    next_tally: Duration,
}

/// Time in which this process ran. While it is stopped, it can't meet deadlines.
struct Awake {
    last: Instant,
    total: Duration,
}

/// Passes notifications to the loop.
struct Ears(Mutex<Sender<Event>>);

impl Observer for Ears {
    fn notified(&self, peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        let event = Event::Notified { from: peer.instance(), data };
        // The loop ends before the engine does; later notifications are not needed.
        let _ = self.0.lock().map(|sender| sender.send(event));
        None
    }
}

impl Awake {
    /// Maximum time between two looks of a running process.
    const GAP_MAX: Duration = Duration::from_millis(250);

    fn now(&mut self) -> Duration {
        let now = Instant::now();
        self.total += now.duration_since(self.last).min(Self::GAP_MAX);
        self.last = now;
        self.total
    }
}

impl Worker {
    fn start(index: usize, generation: u32, seed: u64) -> Result<Self, Box<dyn std::error::Error>> {
        let (sender, events) = mpsc::channel();
        let config = Config::builder()
            .set("rails", "rail")?
            .set("channels", &CHANNELS.to_string())?
            .set("chunk_bytes", "128KiB")?
            .set("peer_timeout_ms", &PEER_TIMEOUT_MS.to_string())?
            // Engines with different settings meet.
            .set("proxy_layout", if index.is_multiple_of(2) { "split" } else { "merged" })?
            .set("payload", ["none", "crc32c", "none", "aead"][index % 4])?
            .build()?;
        let ears = Arc::new(Ears(Mutex::new(sender.clone())));
        let name = format!("worker {index}.{generation}");
        let engine = Engine::builder().config(config).name(&name).observer(ears).build()?;

        let text = Text::new();
        let register = |slots: usize| -> Result<Region, Box<dyn std::error::Error>> {
            let region = engine.register(Memory::anonymous(slots as u64 * SLOT_BYTES)?)?;
            for slot in 0..slots as u64 {
                Slot { region: region.clone(), offset: slot * SLOT_BYTES }.clear_all()?;
            }
            Ok(region)
        };
        let arena = register(ARENA_SLOTS)?;
        let slot = |at| Slot { region: arena.clone(), offset: at as u64 * SLOT_BYTES };
        let exposed = register(1)?;
        let mut rng = Rng::new(seed);
        let exposed_seed = rng.bits();
        let mut bytes = vec![0; SLOT_BYTES as usize];
        text.copy(exposed_seed, 0, &mut bytes);
        exposed.write_at(0, &bytes)?;

        let commands = sender.clone();
        thread::spawn(move || {
            let orders = hear(stdin().lock()).map(Event::Order);
            orders.chain([Event::Alone]).try_for_each(|event| commands.send(event))
        });
        Ok(Self {
            index,
            text,
            rng,
            sender,
            events,
            links: BTreeMap::new(),
            running: HashMap::new(),
            next_id: 0,
            next_post: Duration::ZERO,
            free: (0..ARENA_SLOTS).map(slot).collect(),
            resting: Vec::new(),
            exposed,
            exposed_seed,
            inbound: Inbound::default(),
            hoard: Vec::new(),
            clock: Awake { last: Instant::now(), total: Duration::ZERO },
            outages: [Duration::ZERO; WORKERS],
            is_posting: false,
            is_asked: false,
            tally: Tally::default(),
            next_tally: Duration::ZERO,
            engine,
        })
    }

    fn work(mut self) -> ExitCode {
        let (metadata, addresses) = (self.engine.metadata(), self.engine.addresses());
        self.say(&Word::Ready { metadata, addresses });
        loop {
            let now = self.clock.now();
            let pause = self.next_post.saturating_sub(now);
            let pause = pause.clamp(Duration::from_millis(1), Duration::from_millis(20));
            match self.events.recv_timeout(pause) {
                Ok(Event::Order(Order::Finish)) => break,
                Ok(Event::Alone) | Err(RecvTimeoutError::Disconnected) => {
                    return ExitCode::FAILURE;
                }
                Ok(event) => self.handle(event),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look();
        }
        self.tell_tally();
        self.engine.close();
        self.say(&Word::Finished);
        ExitCode::SUCCESS
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Order(order) => self.obey(order),
            Event::Ended { id, result } => self.ended(id, result),
            Event::Notified { from, data } => self.notified(from, &data),
            // The loop does not pass this on.
            Event::Alone => {}
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Peer { index, generation, metadata } => self.meet(index, generation, metadata),
            Order::Letter { from, letter } => self.read_letter(from, letter),
            Order::Go => self.is_posting = true,
            Order::Pause => (self.is_posting, self.is_asked) = (false, true),
            Order::Withdraw => self.withdraw_all(),
            Order::Hoard => self.hoard(),
            Order::GiveBack => self.hoard.clear(),
            Order::Outage { of } => {
                let now = self.clock.now();
                let whole = 0..WORKERS;
                of.map_or(whole, |one| one..one + 1).for_each(|one| self.outages[one] = now);
            }
            // This order ends the loop.
            Order::Finish => {}
        }
    }

    /// Periodic work.
    fn look(&mut self) {
        let now = self.clock.now();
        self.tend_links();
        self.look_at_running(now);
        self.look_at_resting(now);
        self.look_at_inbound(now);
        if self.is_posting && now >= self.next_post {
            self.next_post = now + Duration::from_millis(self.rng.between(0, 25));
            let own = self.running.values().filter(|running| running.is_own()).count();
            if own < OUTSTANDING_MAX {
                self.post_any(now);
            }
        }
        // Peers that connected on their own are also known by their metadata.
        while self.engine.accept_peer(Duration::ZERO).is_some() {}
        if now >= self.next_tally {
            self.next_tally = now + TALLY_EVERY;
            self.tell_tally();
        }
        if self.is_asked && self.is_quiet() {
            self.is_asked = false;
            self.tell_tally();
            self.say(&Word::Quiet);
        }
    }

    fn is_quiet(&self) -> bool {
        self.running.is_empty()
            && self.resting.is_empty()
            && self.inbound.is_quiet()
            && self.links.len() == WORKERS - 1
            && self.links.values().all(Link::is_quiet)
    }

    /// Takes memory in ever smaller pieces until there is none, and leaves some for the engine.
    fn hoard(&mut self) {
        const MIB: u64 = 1 << 20;
        // Without a limit of the address space it would take all memory.
        const PIECES_MAX: usize = 64;
        for mib in [16, 8, 4, 1] {
            while self.hoard.len() < PIECES_MAX
                && let Some(memory) = memory(mib * MIB)
            {
                match self.engine.register(memory) {
                    Ok(region) => self.hoard.push(region),
                    Err(_) => break,
                }
            }
            self.tally.refused_registrations += u64::from(self.hoard.len() < PIECES_MAX);
        }
    }

    fn tell_tally(&mut self) {
        let stats = self.engine.stats();
        self.tally.rescues = stats.rescues;
        self.tally.callback_panics = stats.callback_panics;
        self.tally.refused_connections = stats.refused_connections;
        let tally = self.tally.clone();
        self.say(&Word::Tally(tally));
    }

    /// Reports a violation, with the state of the engine.
    fn violation(&mut self, oracle: Oracle, what: &str) {
        let what = format!("worker {}: {what}\n{}", self.index, self.engine.dump());
        self.say(&Word::Violation { oracle, what });
    }

    fn say(&self, word: &Word) {
        // Without a supervisor standard input ends as well, which ends the loop.
        let _ = say(&mut std::io::stdout().lock(), word);
    }
}
