//! Measurement of one size: the engine, and the baselines in turn with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;

use polyrail_report::{
    AgainstSample, BenchResult, Histogram, PathTaken, PayloadProtection, counted, show_gb_per_s,
    show_size,
};

use super::sums::Sums;
use crate::cmd::bench::judge::{Cause, CopyRate, CopyRates, Cost, Deeper, KNOWN_FILE, Line};
use crate::cmd::bench::memory::Bank;
use crate::cmd::bench::options::{Against, MemoryKind, Op, Schedule, not_devices};
use crate::cmd::bench::output::path_of;
use crate::cmd::bench::rivals::{
    CudaRival, NcclRival, RawClient, Rival, RivalKind, Standing, TrialRival,
};
use crate::cmd::bench::talk::{Link, RawSpec};
use crate::cmd::bench::trial::{Taken, Trial, Watch};
use crate::fault::Fault;
use crate::files::state_folder;
use crate::interrupt::Interrupt;
use crate::progress::Progress;

/// Parts that all sizes of a run have in common.
pub(crate) struct Bench<'a> {
    pub(crate) schedule: &'a Schedule,
    pub(crate) link: &'a Link<'a>,
    pub(crate) bank: &'a Bank,
    /// Devices of both ends, by their numbers in this process, if both are in this machine.
    pub(crate) devices: Option<[MemoryKind; 2]>,
    /// Other pairs of engines and their purposes.
    pub(crate) others: &'a [(RivalKind, Link<'a>)],
    pub(crate) interrupt: &'a Interrupt,
    pub(crate) progress: &'a Progress,
    /// Counters for `--sample`.
    pub(crate) watch: Option<&'a Watch>,
    pub(crate) seed: u64,
    /// Begin of the run, in milliseconds since 1970 UTC.
    pub(crate) began_unix_ms: u64,
    /// Rates of copies of memory, by the use of the memory.
    pub(crate) copies: &'a RefCell<CopyRates>,
    /// Transfers of 8 bytes per second, by depth.
    pub(crate) messages: RefCell<HashMap<u64, f64>>,
    /// Costs of the ends for the sizes so far, with `--fit`.
    pub(crate) costs: RefCell<Vec<Cost>>,
    /// Maximum rates of this end's rails.
    pub(crate) line: Option<Line>,
    /// Maximum rates of the other end's rails.
    pub(crate) peer_line: Option<Line>,
    /// Protection of the payload that this end sends, and of the payload that it receives.
    pub(crate) payload: [PayloadProtection; 2],
    pub(crate) same_host: bool,
    /// Names of the machines of this end and the other one.
    pub(crate) hosts: [String; 2],
    /// Whether the other end's memory is host memory.
    pub(crate) peer_on_host: bool,
}

/// The rounds of one size so far.
#[derive(Default)]
pub(crate) struct Rounds {
    pub(crate) engine: Vec<Taken>,
    pub(crate) raw: Vec<(AgainstSample, Histogram)>,
    pub(crate) standings: Vec<Standing>,
    pub(crate) path: Option<PathTaken>,
}

/// Measured limits to compare a size with.
#[derive(Default)]
pub(crate) struct Yardsticks {
    pub(crate) copy: Option<CopyRate>,
    pub(crate) messages_per_s: Option<f64>,
    pub(crate) deeper: Option<Deeper>,
    /// Share of the CPUs that the run got, in words, if it was too small for measuring.
    pub(crate) starved: Option<String>,
}

/// Properties of a baseline of plain sockets.
pub(crate) struct RawFacts {
    pub(crate) flows: usize,
    pub(crate) chunk_bytes: u64,
    pub(crate) congestion: String,
}

/// Rival and its place in the report.
type NamedRival<'l> = (RivalKind, Box<dyn Rival + 'l>);

impl Bench<'_> {
    /// Measures a size, and adds to the notes. If an error ends the measurement, the results so far are returned with
    /// the error.
    pub(crate) fn measure(
        &self,
        size: u64,
        notes: &mut Vec<String>,
    ) -> (Option<BenchResult>, Result<(), Fault>) {
        let mut rounds = Rounds::default();
        let mut raw_facts = None;
        let mut end = self.rounds(size, &mut rounds, &mut raw_facts);
        if rounds.engine.is_empty() {
            return (None, end);
        }
        if let Err(fault) = &end {
            notes.extend(self.cut_short(size, rounds.engine.len() as u32, fault));
        }
        let sums = Sums::of(&rounds.engine);
        let mut yardsticks = Yardsticks::default();
        if end.is_ok() {
            end = self.yardsticks(size, &rounds, &sums, notes).map(|found| yardsticks = found);
        }
        if end.is_ok() && self.schedule.fit.is_some() {
            match self.costs_of(size, &rounds.engine, yardsticks.copy.as_ref()) {
                Ok(costs) => self.costs.borrow_mut().extend(costs),
                Err(fault) => end = Err(fault),
            }
        }
        let (mut result, causes) = self.result(size, rounds, sums, raw_facts, &yardsticks);
        let is_earlier = yardsticks.copy.as_ref().is_some_and(|copy| copy.age.is_some());
        let note = earlier_rate();
        if is_earlier && causes.contains(&Cause::Memory) && !notes.contains(&note) {
            notes.push(note);
        }
        if end.is_ok() && self.schedule.why && yardsticks.starved.is_some() {
            self.progress.did(self.why_work(size));
            let size = show_size(size);
            notes.push(format!("--why at {size} tried nothing: no change shows where a program gets so little CPU time"));
        } else if end.is_ok() && self.schedule.why {
            end = self.why(size, result.path.as_ref(), &causes, &mut result.tried, notes);
        }
        (Some(result), end)
    }

    /// Returns a note on the number of rounds behind the results of a size, if these are not all.
    fn cut_short(&self, size: u64, done: u32, fault: &Fault) -> Option<String> {
        let planned = self.schedule.rounds;
        let ended = if fault.is_interrupted() { "interrupted" } else { "ended" };
        let text = || {
            format!(
                "{ended} in round {} of {planned} ({}): its results are of {}",
                done + 1,
                show_size(size),
                counted(u64::from(done), "round")
            )
        };
        (done < planned).then(text)
    }

    /// Returns the work of a size for the progress, in seconds: a turn of each contender in each round, and one for its
    /// warm-up.
    pub(crate) fn work(&self, size: u64) -> f64 {
        let schedule = self.schedule;
        let wants = |who| schedule.against.contains(&who);
        let modes = if wants(Against::Nccl) { schedule.nccl_modes.len() } else { 0 };
        let baselines = [Against::Raw, Against::Cuda].into_iter().filter(|who| wants(*who)).count();
        let contenders = 1 + self.others.len() + baselines + modes;
        let turns = contenders as f64 * f64::from(schedule.rounds + 1);
        turns * self.turn_work(size) + self.why_work(size)
    }

    fn turn_work(&self, size: u64) -> f64 {
        self.seconds(size, self.schedule.time / self.schedule.rounds)
    }

    /// Returns [`Schedule::turn_seconds`] on these rails.
    pub(crate) fn seconds(&self, size: u64, turn: Duration) -> f64 {
        self.schedule.turn_seconds(size, turn, self.line.as_ref().map(Line::gb_per_s))
    }

    fn rounds(
        &self,
        size: u64,
        rounds: &mut Rounds,
        raw_facts: &mut Option<RawFacts>,
    ) -> Result<(), Fault> {
        let schedule = self.schedule;
        let name = show_size(size);
        let did = || self.progress.did(self.turn_work(size));
        self.progress.say(format!("{name} {}: warming up", schedule.op.name()));
        let trial = self.set_up(self.link, schedule, size, self.watch)?;
        rounds.path = trial.example().map(|one| path_of(one, self.link.engine.config()));
        let count = self.transfers(&trial)?;
        did();
        let mut rivals = Vec::new();
        for (kind, rival) in self.rivals(size, &trial, count)? {
            rivals.push(rival);
            rounds.standings.push(Standing { kind, turns: Vec::new() });
        }
        let mut raw = None;
        if schedule.against.contains(&Against::Raw) {
            let spec = self.raw_spec(size)?;
            let pieces = (count * size).div_ceil(spec.piece);
            let mut client = RawClient::open(self.link, self.interrupt, spec.clone())?;
            client.round(pieces.div_ceil(4))?;
            did();
            let congestion = client.congestion().to_owned();
            let (flows, chunk_bytes) = (spec.flows, spec.piece);
            *raw_facts = Some(RawFacts { flows, chunk_bytes, congestion });
            raw = Some((client, pieces));
        }

        for round in 0..u64::from(schedule.rounds) {
            self.interrupt.check()?;
            // The step shows a first rate long before the table.
            let before = rounds.engine.last().map(|taken| taken.sample.gb_per_s());
            let before =
                before.map_or(String::new(), |rate| format!(" after {} GB/s", show_gb_per_s(rate)));
            let op = schedule.op.name();
            self.progress.say(format!("{name} {op}: round {}{before}", round + 1));
            let taken = trial.sample(schedule.verify, count, round)?;
            did();
            if let Some((client, pieces)) = &mut raw {
                rounds.raw.push(client.round(*pieces)?);
                did();
            }
            for (rival, standing) in rivals.iter_mut().zip(&mut rounds.standings) {
                self.interrupt.check()?;
                let kind = &standing.kind;
                self.progress.say(format!("{name} {op}: round {}, {kind}", round + 1));
                standing.turns.push(rival.turn(round)?);
                did();
            }
            // Pushed last, so that each engine sample has its baselines.
            rounds.engine.push(taken);
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

    /// Returns the path of a transfer of this size, without moving any data.
    pub(crate) fn explain(&self, size: u64) -> Result<Option<PathTaken>, Fault> {
        let trial = self.set_up(self.link, self.schedule, size, None)?;
        let path = trial.example().map(|one| path_of(one, self.link.engine.config()));
        trial.tear_down()?;
        Ok(path)
    }

    /// Sets up the contenders that take turns with the engine.
    fn rivals<'l>(
        &'l self,
        size: u64,
        trial: &Trial<'_>,
        transfers: u64,
    ) -> Result<Vec<NamedRival<'l>>, Fault> {
        let schedule = self.schedule;
        let did = || self.progress.did(self.turn_work(size));
        let mut rivals: Vec<NamedRival<'l>> = Vec::new();
        for (kind, link) in self.others {
            let schedule = kind.schedule(schedule, size);
            let name = show_size(size);
            self.progress.say(format!("{name} {}: warming up {kind}", schedule.op.name()));
            let trial = self.set_up(link, &schedule, size, None)?;
            let transfers = self.transfers(&trial)?;
            let (verify, is_alone) = (schedule.verify, schedule.depth(size) == 1);
            let rival = TrialRival { trial, verify, transfers, is_alone };
            rivals.push((kind.clone(), Box::new(rival)));
            did();
        }
        if schedule.against.contains(&Against::Cuda) {
            let source = trial.source().and_then(|store| store.device_memory());
            let (Some(source), Some([_, there])) = (source, self.devices) else {
                return Err(not_devices("cuda"));
            };
            let (engine, bank) = (self.link.engine, Bank::open(there)?);
            let rival =
                CudaRival::open(engine, source, &bank, schedule, size, self.seed, transfers)?;
            let kind = RivalKind::Baseline("cuda".into());
            did();
            rivals.push((kind, Box::new(rival)));
        }
        if schedule.against.contains(&Against::Nccl) {
            let devices = self.devices.ok_or_else(|| not_devices("nccl"))?;
            let library = schedule.nccl_library.as_deref();
            for &mode in &schedule.nccl_modes {
                self.progress.say(format!("starting {}", mode.name()));
                let rival = NcclRival::open(
                    mode,
                    devices,
                    schedule,
                    size,
                    self.seed,
                    library,
                    self.interrupt,
                )?;
                let kind = RivalKind::Baseline(mode.name());
                did();
                rivals.push((kind, Box::new(rival)));
            }
        }
        Ok(rivals)
    }

    pub(crate) fn set_up<'l>(
        &'l self,
        link: &'l Link<'l>,
        schedule: &Schedule,
        size: u64,
        watch: Option<&'l Watch>,
    ) -> Result<Trial<'l>, Fault> {
        Trial::set_up(link, self.bank, schedule, size, self.seed, self.interrupt, watch)
    }

    /// Warms up, and returns the number of transfers in a sample.
    fn transfers(&self, trial: &Trial<'_>) -> Result<u64, Fault> {
        let schedule = self.schedule;
        let fitting = trial.warm_up(schedule.warmup, schedule.time / schedule.rounds)?;
        Ok(schedule.iters.unwrap_or(fitting))
    }

    /// Describes plain sockets with the engine's flows, chunks, congestion control and buffers.
    fn raw_spec(&self, size: u64) -> Result<RawSpec, Fault> {
        let schedule = self.schedule;
        let config = self.link.engine.config();
        let stats = self.link.engine.stats();
        let mut flows =
            stats.peers.iter().flat_map(|peer| &peer.rails).flat_map(|rail| &rail.flows);
        let all = self.link.peer.flows().total;
        let in_use = flows.find(|flow| !flow.congestion.is_empty());
        let count = if schedule.latency { 1 } else { all.max(1) };
        let piece = if schedule.latency { size } else { config.chunk_bytes.min(size) };
        let layout = schedule.layout(size);
        let part = layout.slots * size / count as u64;
        let reads = schedule.op == Op::Read;
        Ok(RawSpec {
            flows: count,
            piece,
            area: (part / piece).max(1) * piece,
            to_peer: schedule.bidir || !reads,
            to_us: schedule.bidir || reads,
            ping_pong: schedule.latency,
            congestion: in_use.map_or(String::new(), |flow| flow.congestion.clone()),
            send_buffer: config.socket_buffer_bytes,
            recv_buffer: config.socket_buffer_bytes,
            seed: self.seed ^ RAW_SEED,
        })
    }
}

fn earlier_rate() -> String {
    let file = state_folder().unwrap_or_default().join(KNOWN_FILE);
    format!(
        "how fast memory is copied was measured by an earlier run: --why, or deleting {}, measures it again",
        file.display()
    )
}

/// Makes the baseline's data differ from the engine's.
const RAW_SEED: u64 = 0x7261_7700_0000_0000;
