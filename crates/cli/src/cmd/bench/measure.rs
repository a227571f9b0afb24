//! Measures one size: the engine, and the baselines in turn with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use polyrail_report::{
    AgainstRaw, AgainstSample, BenchResult, Histogram, LatencyUs, PathTaken, RailShare, Spread,
    show_size,
};

use super::buffers::Verify;
use super::control::{Link, RawSpec};
use super::cuda::{CudaRival, not_devices};
use super::error::BenchError;
use super::interrupt::Interrupt;
use super::machine::{Copies, CopyRate, CopyRates, Use};
use super::memory::{Bank, MemoryKind};
use super::nccl::NcclRival;
use super::observe::{Load, RailDelta};
use super::path::{TCP, path_of};
use super::plan::{Against, Op, Plan};
use super::progress::Progress;
use super::raw::RawClient;
use super::rivals::{Kind, Rival, Standing, TrialRival, alone, baselines, sweep};
use super::trial::{Taken, Trial};
use super::verdict::{Evidence, Line, judge};
use super::watch::Watch;

/// What all sizes of a run have in common.
pub(super) struct Bench<'a> {
    pub(super) plan: &'a Plan,
    pub(super) link: &'a Link<'a>,
    pub(super) bank: &'a Bank,
    /// The devices of both ends, by their numbers in this process, if both are here.
    pub(super) devices: Option<[MemoryKind; 2]>,
    /// Other pairs of engines, and what they are for.
    pub(super) others: &'a [(Kind, Link<'a>)],
    pub(super) interrupt: &'a Interrupt,
    pub(super) progress: &'a Progress,
    /// With `--sample`.
    pub(super) watch: Option<&'a Watch>,
    pub(super) seed: u64,
    /// What copying reaches, by how memory is used.
    pub(super) copies: RefCell<CopyRates>,
    /// Transfers of 8 bytes per second, by depth.
    pub(super) messages: RefCell<HashMap<u64, f64>>,
    pub(super) line: Option<Line>,
    pub(super) same_host: bool,
    /// Whether the other end's memory is its machine's.
    pub(super) peer_on_host: bool,
}

/// The rounds of one size so far.
#[derive(Default)]
struct Rounds {
    engine: Vec<Taken>,
    raw: Vec<(AgainstSample, Histogram)>,
    standings: Vec<Standing>,
    path: Option<PathTaken>,
}

/// What a size is held against.
#[derive(Default)]
struct Limits {
    copy: Option<CopyRate>,
    messages_per_s: Option<f64>,
}

/// A rival and its place in the report.
type NamedRival<'l> = (Kind, Box<dyn Rival + 'l>);

/// What a baseline of plain sockets was like.
struct RawFacts {
    flows: usize,
    chunk_bytes: u64,
    congestion: String,
}

impl Bench<'_> {
    /// Measures a size. What was measured until an error ended it comes with the error.
    pub(super) fn measure(&self, size: u64) -> (Option<BenchResult>, Result<(), BenchError>) {
        let mut rounds = Rounds::default();
        let mut raw_facts = None;
        let mut end = self.rounds(size, &mut rounds, &mut raw_facts);
        if rounds.engine.is_empty() {
            return (None, end);
        }
        let mut limits = Limits::default();
        if end.is_ok() {
            end = self.limits(size, &rounds).map(|found| limits = found);
        }
        (Some(self.result(size, rounds, raw_facts, &limits)), end)
    }

    fn rounds(
        &self,
        size: u64,
        rounds: &mut Rounds,
        raw_facts: &mut Option<RawFacts>,
    ) -> Result<(), BenchError> {
        let plan = self.plan;
        let name = show_size(size);
        self.progress.say(format!("{name} {}: warming up", plan.op.name()));
        let trial = self.set_up(self.link, plan, size, self.watch)?;
        rounds.path = trial.example().map(path_of);
        let count = self.transfers(&trial)?;
        let mut rivals = Vec::new();
        for (kind, rival) in self.rivals(size, &trial, count)? {
            rivals.push(rival);
            rounds.standings.push(Standing { kind, turns: Vec::new() });
        }
        let mut raw = None;
        if plan.against.contains(&Against::Raw) {
            let spec = self.raw_spec(size)?;
            let pieces = (count * size).div_ceil(spec.piece);
            let mut client = RawClient::open(self.link, spec.clone())?;
            client.round(pieces.div_ceil(4))?;
            let congestion = client.congestion().to_owned();
            let (flows, chunk_bytes) = (spec.flows, spec.piece);
            *raw_facts = Some(RawFacts { flows, chunk_bytes, congestion });
            raw = Some((client, pieces));
        }

        for round in 0..u64::from(plan.rounds) {
            self.interrupt.check()?;
            self.progress.say(format!("{name} {}: round {}", plan.op.name(), round + 1));
            let taken = trial.sample(plan.verify, count, round)?;
            if let Some((client, pieces)) = &mut raw {
                rounds.raw.push(client.round(*pieces)?);
            }
            for (rival, standing) in rivals.iter_mut().zip(&mut rounds.standings) {
                self.interrupt.check()?;
                standing.turns.push(rival.turn(round)?);
            }
            // Last, so that each engine sample has its baselines.
            rounds.engine.push(taken);
            self.progress.step();
        }

        if let Some((client, _)) = raw {
            client.verify()?;
            client.close()?;
        }
        for rival in rivals {
            rival.finish()?;
        }
        trial.tear_down()
    }

    /// How a transfer of this size would go, without moving any.
    pub(super) fn explain(&self, size: u64) -> Result<Option<PathTaken>, BenchError> {
        let trial = self.set_up(self.link, self.plan, size, None)?;
        let path = trial.example().map(path_of);
        trial.tear_down()?;
        Ok(path)
    }

    /// All that is measured in turn, set up.
    fn rivals<'l>(
        &'l self,
        size: u64,
        trial: &Trial<'_>,
        transfers: u64,
    ) -> Result<Vec<NamedRival<'l>>, BenchError> {
        let plan = self.plan;
        let mut rivals: Vec<NamedRival<'l>> = Vec::new();
        for (kind, link) in self.others {
            let plan = kind.plan(plan, size);
            let trial = self.set_up(link, &plan, size, None)?;
            let transfers = self.transfers(&trial)?;
            let (verify, is_alone) = (plan.verify, plan.depth(size) == 1);
            let rival = TrialRival { trial, verify, transfers, is_alone };
            rivals.push((kind.clone(), Box::new(rival)));
        }
        if plan.against.contains(&Against::Cuda) {
            let source = trial.source().and_then(|store| store.device_memory());
            let (Some(source), Some([_, there])) = (source, self.devices) else {
                return Err(not_devices("cuda"));
            };
            let (engine, bank) = (self.link.engine, Bank::open(there)?);
            let rival = CudaRival::open(engine, source, &bank, plan, size, self.seed, transfers)?;
            rivals.push((Kind::Baseline("cuda".into()), Box::new(rival)));
        }
        if plan.against.contains(&Against::Nccl) {
            let devices = self.devices.ok_or_else(|| not_devices("nccl"))?;
            let library = plan.nccl_library.as_deref();
            for &mode in &plan.nccl_modes {
                self.progress.say(format!("starting {}", mode.name()));
                let rival = NcclRival::open(mode, devices, plan, size, self.seed, library)?;
                rivals.push((Kind::Baseline(mode.name()), Box::new(rival)));
            }
        }
        Ok(rivals)
    }

    fn set_up<'l>(
        &'l self,
        link: &'l Link<'l>,
        plan: &Plan,
        size: u64,
        watch: Option<&'l Watch>,
    ) -> Result<Trial<'l>, BenchError> {
        Trial::set_up(link, self.bank, plan, size, self.seed, self.interrupt, watch)
    }

    /// Warms up, and says how many transfers make a sample.
    fn transfers(&self, trial: &Trial<'_>) -> Result<u64, BenchError> {
        let plan = self.plan;
        let fitting = trial.warm_up(plan.warmup, plan.time / plan.rounds)?;
        Ok(plan.iters.unwrap_or(fitting))
    }

    /// The engine's flows, chunks, congestion control and buffers.
    fn raw_spec(&self, size: u64) -> Result<RawSpec, BenchError> {
        let plan = self.plan;
        let config = self.link.engine.config();
        let stats = self.link.engine.stats();
        let mut flows =
            stats.peers.iter().flat_map(|peer| &peer.rails).flat_map(|rail| &rail.flows);
        let all = self.link.peer.flows().total;
        let in_use = flows.find(|flow| !flow.congestion.is_empty());
        let count = if plan.latency { 1 } else { all.max(1) };
        let piece = if plan.latency { size } else { config.chunk_bytes.min(size) };
        let layout = plan.layout(size);
        let part = layout.slots * size / count as u64;
        let reads = plan.op == Op::Read;
        Ok(RawSpec {
            flows: count,
            piece,
            area: (part / piece).max(1) * piece,
            to_peer: plan.bidir || !reads,
            to_us: plan.bidir || reads,
            ping_pong: plan.latency,
            congestion: in_use.map_or(String::new(), |flow| flow.congestion.clone()),
            send_buffer: config.send_buffer_bytes,
            recv_buffer: config.recv_buffer_bytes,
            seed: self.seed ^ RAW_SEED,
        })
    }

    fn result(
        &self,
        size: u64,
        rounds: Rounds,
        raw_facts: Option<RawFacts>,
        limits: &Limits,
    ) -> BenchResult {
        let plan = self.plan;
        let mut times = Histogram::default();
        let mut rails = Vec::new();
        for taken in &rounds.engine {
            times.merge(&taken.times);
            add(&mut rails, &taken.rails);
        }
        let samples = || rounds.engine.iter().map(|taken| &taken.sample);
        let seconds: f64 = samples().map(|sample| sample.seconds).sum();
        let rates: Vec<f64> = samples().map(|sample| sample.gb_per_s()).collect();
        let spread = Spread::of(rates.iter().copied());
        // There is at least one sample, and its rate is a number.
        let spread = spread.unwrap_or(Spread { median: 0.0, min: 0.0, max: 0.0 });
        let median = |values: &mut dyn Iterator<Item = f64>| Spread::of(values).map(|s| s.median);
        let latency_us = LatencyUs::of(&times);
        let rails = shares(&rails, seconds);
        let p50_us = latency_us.map(|latency| latency.p50);
        let limit = judge(&self.evidence(size, spread.median, &rounds, &rails, p50_us, limits));
        let rescues: Option<u64> = rounds.engine.iter().map(|taken| taken.rescues).sum();
        BenchResult {
            size_bytes: size,
            op: plan.op.name().into(),
            segments: plan.segments,
            depth: plan.depth(size),
            bidir: plan.bidir,
            ping_pong: plan.latency,
            transfers: samples().map(|sample| sample.transfers).sum(),
            bytes: samples().map(|sample| sample.bytes).sum(),
            seconds,
            transfers_per_s: spread.median * 1e9 / size as f64,
            gb_per_s: spread.median,
            spread_gb_per_s: spread,
            latency_us,
            verified: plan.verify != Verify::Off,
            verify: plan.verify.name().into(),
            verified_bytes: rounds.engine.iter().map(|taken| taken.verified_bytes).sum(),
            path: rounds.path.clone(),
            rescues,
            rails,
            cpu_seconds_per_gb: median(&mut samples().map(|sample| sample.cpu_seconds_per_gb())),
            against: raw_facts.and_then(|facts| against_raw(plan, &rounds, facts)),
            alone: alone(&rates, &rounds.standings),
            baselines: baselines(&rates, &rounds.standings),
            sweep: sweep(&rounds.standings),
            limit,
            samples: samples().cloned().collect(),
        }
    }

    /// What this size is held against, measured after it as it went.
    fn limits(&self, size: u64, rounds: &Rounds) -> Result<Limits, BenchError> {
        let is_on_rails = rounds.path.as_ref().is_none_or(|path| path.taken == TCP);
        if !is_on_rails || self.plan.latency {
            return Ok(Limits::default());
        }
        // A thread that moved bytes in any of the samples is one of them.
        let most = |load: fn(&Taken) -> &Load| {
            let movers = rounds.engine.iter().map(|taken| &load(taken).movers);
            movers.max_by_key(|movers| movers.len()).cloned().unwrap_or_default()
        };
        let movers = [most(|taken| &taken.local_load), most(|taken| &taken.peer_load)];
        let used = self.memory_use(size, movers);
        self.progress.say(format!("{}: measuring how fast memory is copied so", show_size(size)));
        let copy = Some(self.copies.borrow_mut().of(&used)?);
        Ok(Limits { copy, messages_per_s: self.message_rate(size)? })
    }

    /// How the threads of this machine used its memory.
    fn memory_use(&self, size: u64, [here, there]: [Vec<Vec<u32>>; 2]) -> Use {
        let plan = self.plan;
        let layout = plan.layout(size);
        let config = self.link.engine.config();
        let region = layout.region_bytes();
        // What devices copy from and to is a ring of each flow.
        let staging = config.staging_bytes * self.link.peer.flows().total as u64;
        let end = |is_host: bool| if is_host { region } else { staging.min(region) };
        let on_host = [self.bank.is_host(), self.peer_on_host];
        let (out, is_both_ways) = (plan.op != Op::Read, plan.bidir);
        let (copies, movers, is_host) = if self.same_host {
            let ends = if out { on_host } else { [on_host[1], on_host[0]] };
            (Copies::Twice, [here, there].concat(), ends)
        } else {
            let copies = match (is_both_ways, out) {
                (true, _) => Copies::OutAndIn,
                (false, true) => Copies::Out,
                (false, false) => Copies::In,
            };
            (copies, here, [on_host[0]; 2])
        };
        let footprint_bytes = is_host.map(end);
        Use { layout, chunk_bytes: config.chunk_bytes, footprint_bytes, copies, movers }
    }

    /// How many transfers of 8 bytes a second this depth makes, where small ones are measured.
    fn message_rate(&self, size: u64) -> Result<Option<f64>, BenchError> {
        let plan = self.plan;
        let depth = plan.depth(size);
        // Who says how many transfers are to be made wants no others.
        if !(MESSAGE_BYTES + 1..=SMALL_BYTES).contains(&size) || depth == 1 || plan.iters.is_some()
        {
            return Ok(None);
        }
        if let Some(known) = self.messages.borrow().get(&depth) {
            return Ok(Some(*known));
        }
        let plan = Plan { segments: 1, depth: Some(depth), ..plan.clone() };
        let trial = self.set_up(self.link, &plan, MESSAGE_BYTES, None)?;
        let count = trial.warm_up(MESSAGES_TIME, MESSAGES_TIME)?;
        let mut most = 0.0_f64;
        for round in 0..MESSAGES_ROUNDS {
            let sample = trial.sample(Verify::Off, count, round)?.sample;
            most = most.max(count as f64 / sample.seconds);
        }
        trial.tear_down()?;
        self.messages.borrow_mut().insert(depth, most);
        Ok(Some(most))
    }

    /// The numbers of the sample in the middle.
    fn evidence(
        &self,
        size: u64,
        median: f64,
        rounds: &Rounds,
        rails: &[RailShare],
        p50_us: Option<f64>,
        limits: &Limits,
    ) -> Evidence {
        let distance = |taken: &&Taken| (taken.sample.gb_per_s() - median).abs();
        let middle = rounds.engine.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let (local, peer, window_full_share) = middle.map_or_else(Default::default, |taken| {
            let share = taken.sample.window_full_share;
            (taken.local_load.clone(), taken.peer_load.clone(), share)
        });
        let config = self.link.engine.config();
        let flows = self.link.peer.flows().total;
        let channels = flows as u64 / u64::from(config.sockets);
        Evidence {
            gb_per_s: median,
            ways: if self.plan.bidir { 2 } else { 1 },
            local,
            peer,
            same_host: self.same_host,
            copy: limits.copy.clone(),
            messages_per_s: limits.messages_per_s,
            line: self.line.clone(),
            rails: rails.iter().map(|rail| (rail.name.clone(), rail.share)).collect(),
            beside_rails: rounds.path.as_ref().map(|path| path.taken.clone()).filter(|p| p != TCP),
            window_full_share,
            ping_pong: self.plan.latency,
            depth: self.plan.depth(size),
            size,
            window_bytes: channels * u64::from(config.window_chunks) * config.chunk_bytes,
            p50_us,
        }
    }
}

fn add(sums: &mut Vec<RailDelta>, rails: &[RailDelta]) {
    for rail in rails {
        match sums.iter_mut().find(|sum| sum.name == rail.name) {
            None => sums.push(rail.clone()),
            Some(sum) => {
                sum.tx_bytes += rail.tx_bytes;
                sum.retransmits += rail.retransmits;
                sum.resent_chunks += rail.resent_chunks;
            }
        }
    }
}

fn shares(rails: &[RailDelta], seconds: f64) -> Vec<RailShare> {
    let all: u64 = rails.iter().map(|rail| rail.tx_bytes).sum();
    let share = |rail: &RailDelta| RailShare {
        name: rail.name.clone(),
        bytes: rail.tx_bytes,
        share: rail.tx_bytes as f64 / all.max(1) as f64,
        gb_per_s: rail.tx_bytes as f64 / 1e9 / seconds,
        retransmits: rail.retransmits,
        resent_chunks: rail.resent_chunks,
    };
    rails.iter().map(share).collect()
}

/// Ratios are taken within a round, so that a drift of the machine cancels out.
fn against_raw(plan: &Plan, rounds: &Rounds, facts: RawFacts) -> Option<AgainstRaw> {
    let pairs = || rounds.engine.iter().zip(&rounds.raw);
    let median = |values: Vec<f64>| Spread::of(values).map(|spread| spread.median);
    let ratio = |(engine, (raw, times)): (&Taken, &(AgainstSample, Histogram))| {
        if plan.latency {
            let micros = times.quantile_ns(0.5).map_or(f64::NAN, |ns| ns as f64 / 1e3);
            engine.sample.p50_us.map_or(f64::NAN, |engine| engine / micros)
        } else {
            engine.sample.gb_per_s() / raw.gb_per_s()
        }
    };
    let cpu_ratio = |(engine, (raw, _)): (&Taken, &(AgainstSample, Histogram))| {
        engine.sample.cpu_seconds_per_gb() / raw.cpu_seconds_per_gb()
    };
    let mut times = Histogram::default();
    pairs().for_each(|(_, (_, raw_times))| times.merge(raw_times));
    let samples: Vec<AgainstSample> = pairs().map(|(_, (raw, _))| raw.clone()).collect();
    Some(AgainstRaw {
        raw_gb_per_s: median(samples.iter().map(AgainstSample::gb_per_s).collect())?,
        ratio: median(pairs().map(ratio).collect())?,
        raw_cpu_seconds_per_gb: median(
            samples.iter().map(AgainstSample::cpu_seconds_per_gb).collect(),
        ),
        cpu_ratio: median(pairs().map(cpu_ratio).collect()),
        raw_latency_us: LatencyUs::of(&times),
        flows: facts.flows,
        chunk_bytes: facts.chunk_bytes,
        congestion: facts.congestion,
        samples,
    })
}

/// Keeps the baseline's data apart from the engine's.
const RAW_SEED: u64 = 0x7261_7700_0000_0000;

/// The smallest transfer: what is left of it is the work for one message.
const MESSAGE_BYTES: u64 = 8;
/// Above this the bytes cost more than the message.
const SMALL_BYTES: u64 = 256 << 10;
const MESSAGES_TIME: Duration = Duration::from_millis(50);
const MESSAGES_ROUNDS: u64 = 3;
