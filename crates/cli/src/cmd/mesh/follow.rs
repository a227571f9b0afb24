//! Carries out the orders of the first worker: memory, filling, sending, comparing.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use polyrail::RemoteRegion;

use super::counters::Counters;
use super::crew::Crew;
use super::faults;
use super::plan::Pair;
use super::post::{self, Source};
use super::talk::{About, Answer, Done, Order, Said, SetUp, Side};
use crate::cmd::bench::{Bank, Buffers, MemoryKind, Needs, Verify};
use crate::fault::Fault;
use crate::together::{Begun, start_all};

/// Follows orders until the first worker says goodbye.
pub(crate) fn follow(crew: &Crew) -> Result<(), Fault> {
    let is_first_of_node = crew.me.is_multiple_of(crew.grid.workers_per_node());
    let mut follower = Follower {
        crew,
        counters: Counters::open(is_first_of_node)?,
        sources: BTreeMap::new(),
        dests: BTreeMap::new(),
    };
    crew.say(0, Said::Answer(Answer::Hello(Box::new(about(crew)))))?;
    loop {
        let order = crew.inbox.wait(Instant::now() + LOOK, |heard| heard.orders.pop_front());
        let Some(order) = order else {
            crew.check([0])?;
            continue;
        };
        if matches!(order, Order::Bye) {
            return Ok(());
        }
        let answer = match follower.handle(order) {
            Ok(answer) => answer,
            Err(fault) if fault.is_interrupted() => continue,
            Err(fault) => Answer::Failed(fault),
        };
        crew.say(0, Said::Answer(answer))?;
    }
}

struct Follower<'c> {
    crew: &'c Crew,
    counters: Counters,
    /// Senders on this worker, by pair.
    sources: BTreeMap<u32, Source>,
    /// Memory of the receivers on this worker, by pair.
    dests: BTreeMap<u32, Buffers>,
}

impl Follower<'_> {
    fn handle(&mut self, order: Order) -> Result<Answer, Fault> {
        match order {
            Order::SetUp(set_up) => self.set_up(&set_up),
            Order::Prepare { pairs, seed } => self.prepare(&pairs, seed),
            Order::Go { pairs, ms, measured } => {
                let done = self.go(&pairs, Duration::from_millis(ms), measured)?;
                Ok(Answer::Done(Box::new(done)))
            }
            Order::Verify { pairs } => self.verify(&pairs),
            Order::Bye => Ok(Answer::Ready),
        }
    }

    /// Allocates the memory of all pairs, and sends each sender the key to its destination.
    fn set_up(&mut self, set_up: &SetUp) -> Result<Answer, Fault> {
        let (crew, grid) = (self.crew, self.crew.grid);
        if set_up.grid != grid {
            let all = |grid: &super::plan::Grid| {
                let (nodes, endpoints) = (grid.nodes, grid.endpoints);
                format!(
                    "--nodes {nodes} --endpoints-per-node {endpoints} --layout {}",
                    grid.layout.name()
                )
            };
            return Err(Fault::usage(
                "options",
                all(&grid),
                "differ from those of node0",
                all(&set_up.grid),
            )
            .with_help("start all nodes with the same options"));
        }
        (self.sources, self.dests) = (BTreeMap::new(), BTreeMap::new());
        let mine = crew.grid.endpoints_of(crew.me);
        let mut banks = BTreeMap::new();
        for endpoint in mine.clone() {
            // The number of the device is that of the endpoint on its node.
            let kind = match set_up.on_gpus {
                true => MemoryKind::Cuda((endpoint % grid.endpoints) as u32),
                false => MemoryKind::Host,
            };
            banks.insert(endpoint, Bank::open(kind)?);
        }
        let layout = post::layout(set_up.size, set_up.depth);
        let mut filled = Vec::new();
        for pair in grid.pairs() {
            let id = pair.id(&grid);
            if let Some(bank) = banks.get(&pair.to) {
                let needs = Needs { source_seed: None, dest_seed: Some(0) };
                let buffers = Buffers::new(&crew.engine, bank, layout, needs)?;
                let key = buffers.dest.as_ref().map(|dest| dest.region().describe());
                let key = key.unwrap_or_default();
                crew.say(grid.worker_of(pair.from), Said::Region { pair: id, key })?;
                self.dests.insert(id, buffers);
            }
            if let Some(bank) = banks.get(&pair.from) {
                let needs = Needs { source_seed: Some(0), dest_seed: None };
                filled.push((pair, Buffers::new(&crew.engine, bank, layout, needs)?));
            }
        }
        for (pair, buffers) in filled {
            let source = self.source(pair, buffers)?;
            self.sources.insert(source.pair, source);
        }
        Ok(Answer::Ready)
    }

    fn source(&self, pair: Pair, buffers: Buffers) -> Result<Source, Fault> {
        let (crew, grid) = (self.crew, &self.crew.grid);
        let (id, to) = (pair.id(grid), grid.worker_of(pair.to));
        let key = self.wait("set up", [to], |heard| heard.regions.remove(&id))?;
        let remote: RemoteRegion = crew.engine.import(&key)?;
        // Pairs are between nodes, so the receiver is another worker.
        let Some(peer) = crew.peers[to].clone() else {
            return Err(faults::protocol(&crew.name(to), "set up", "a pair within a worker"));
        };
        Source::new(&crew.engine, (id, name(pair, crew)), peer, buffers, &remote)
    }

    fn prepare(&mut self, pairs: &[u32], seed: u64) -> Result<Answer, Fault> {
        for id in pairs {
            let own = seed.wrapping_add(u64::from(*id) << 32);
            if let Some(source) = self.sources.get_mut(id) {
                source.buffers.renew(Needs { source_seed: Some(own), dest_seed: None })?;
            }
            if let Some(dest) = self.dests.get_mut(id) {
                dest.renew(Needs { source_seed: None, dest_seed: Some(own) })?;
            }
        }
        self.crew.inbox.change(|heard| heard.arrivals.clear());
        Ok(Answer::Ready)
    }

    fn go(&mut self, pairs: &[u32], time: Duration, measured: bool) -> Result<Done, Fault> {
        let crew = self.crew;
        let mut by_endpoint: BTreeMap<usize, Vec<&Source>> = BTreeMap::new();
        for (id, source) in pairs.iter().filter_map(|id| Some((*id, self.sources.get(id)?))) {
            let from = Pair::of_id(id, &crew.grid).map_or(0, |pair| pair.from);
            by_endpoint.entry(from).or_default().push(source);
        }
        let before = self.counters.begin(&crew.engine);
        let sent: Result<Vec<Vec<Side>>, Fault> = thread::scope(|scope| {
            let senders = by_endpoint.values().map(|sources| {
                let is_over = || crew.is_over();
                move || post::send(&crew.engine, sources, time, measured, &is_over)
            });
            let failed = |source| Fault::system("starting threads that send", source);
            let begun = start_all(scope, senders).map_err(failed)?;
            begun.into_iter().filter_map(Begun::join).collect()
        });
        let sent: Vec<Side> = sent?.concat();
        let got = if measured { self.arrived(pairs)? } else { Vec::new() };
        let grown = self.counters.since(&before, &crew.engine);
        Ok(Done {
            seconds: grown.seconds,
            sent,
            got,
            rails: grown.rails,
            cpu_seconds: grown.cpu_seconds,
            machine: grown.machine,
        })
    }

    /// Waits for all transfers that the senders of these pairs announced.
    fn arrived(&self, pairs: &[u32]) -> Result<Vec<Side>, Fault> {
        let mut got = Vec::new();
        for id in pairs.iter().filter(|id| self.dests.contains_key(id)) {
            let Some(pair) = Pair::of_id(*id, &self.crew.grid) else { continue };
            let from = self.crew.grid.worker_of(pair.from);
            let whole = |heard: &mut super::talk::Heard| {
                heard.arrivals.get(id).filter(|arrival| arrival.is_whole()).copied()
            };
            let arrival = self.wait("go", [from], whole)?;
            let announced = arrival.announced.unwrap_or(0);
            if arrival.transfers != announced {
                let (pair, arrived) = (name(pair, self.crew), arrival.transfers);
                return Err(faults::lost(&pair, announced, arrived));
            }
            got.push(Side {
                pair: *id,
                seconds: (arrival.last - arrival.begun).as_secs_f64(),
                transfers: arrival.transfers,
                under_way_s: 0.0,
            });
        }
        Ok(got)
    }

    fn verify(&self, pairs: &[u32]) -> Result<Answer, Fault> {
        let mut bytes = 0;
        for (id, dest) in pairs.iter().filter_map(|id| Some((*id, self.dests.get(id)?))) {
            let verified = dest.verify(Verify::Full, dest.layout.slots, 0);
            let pair = || {
                Pair::of_id(id, &self.crew.grid).map_or_else(String::new, |it| name(it, self.crew))
            };
            bytes += verified.map_err(|fault| fault.about(&pair()))?;
        }
        Ok(Answer::Verified { bytes })
    }

    /// Waits for a message of the worker `from`. Fails if that worker is gone or silent.
    fn wait<T>(
        &self,
        order: &'static str,
        from: [usize; 1],
        mut look: impl FnMut(&mut super::talk::Heard) -> Option<T>,
    ) -> Result<T, Fault> {
        let until = Instant::now() + self.crew.timeout;
        loop {
            if let Some(found) = self.crew.inbox.wait(Instant::now() + LOOK, &mut look) {
                return Ok(found);
            }
            if self.crew.is_over() {
                return Err(Fault::interrupted());
            }
            self.crew.check(from)?;
            if Instant::now() > until {
                let (who, waited) = (self.crew.name(from[0]), self.crew.timeout);
                return Err(faults::silent(&who, order, waited));
            }
        }
    }
}

fn name(pair: Pair, crew: &Crew) -> String {
    let of = |endpoint| crew.grid.endpoint_name(endpoint);
    format!("{} to {}", of(pair.from), of(pair.to))
}

fn about(crew: &Crew) -> About {
    About {
        build: crate::version::build(),
        host: crate::host::describe(),
        rails: crew.engine.rails().iter().map(|rail| rail.name.clone()).collect(),
        pid: std::process::id(),
    }
}

/// Interval between checks for lost workers.
const LOOK: Duration = Duration::from_millis(100);
