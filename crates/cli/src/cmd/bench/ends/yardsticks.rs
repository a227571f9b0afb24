//! Yardsticks of a size: limits that are measured, and the numbers of the size that its verdict uses.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use polyrail::PathKind;
use polyrail_report::{PayloadProtection, RailShare, Spread, show_size};

use super::measure::{Bench, Rounds, Yardsticks};
use super::sums::Sums;
use crate::cmd::bench::judge::{
    BesideRails, Copied, Copies, Deeper, Evidence, MESSAGE_BYTES, Use, is_open, starved,
};
use crate::cmd::bench::options::{Op, Schedule, Verify};
use crate::cmd::bench::output::TCP;
use crate::cmd::bench::talk::Load;
use crate::cmd::bench::trial::{Taken, add_new};
use crate::fault::Fault;

impl Bench<'_> {
    /// Measures the limits to compare this size with, after the size and in the way it moved. Measures nothing if other
    /// programs take nearly all of the CPUs: the result would show only what they leave, and take minutes.
    pub(crate) fn yardsticks(
        &self,
        size: u64,
        rounds: &Rounds,
        sums: &Sums,
        notes: &mut Vec<String>,
    ) -> Result<Yardsticks, Fault> {
        let by_devices = self.beside_rails(rounds).is_some_and(|path| path.by_devices);
        if by_devices || self.schedule.latency || self.schedule.no_limits {
            return Ok(Yardsticks::default());
        }
        if let Some(starved) = self.starved(rounds) {
            let shown = show_size(size);
            notes.push(format!("no limit of the machine was measured at {shown}: {starved}"));
            return Ok(Yardsticks { starved: Some(starved), ..Yardsticks::default() });
        }
        // A thread counts if it moved bytes in any of the samples.
        let most = |load: fn(&Taken) -> &Load| {
            let movers = rounds.engine.iter().map(|taken| &load(taken).movers);
            movers.max_by_key(|movers| movers.len()).cloned().unwrap_or_default()
        };
        let movers = [most(|taken| &taken.local_load), most(|taken| &taken.peer_load)];
        let used = self.memory_use(size, movers, rounds);
        self.progress.say(format!("{}: measuring copies of memory", show_size(size)));
        let copy = match self.copies.borrow_mut().of(&used, sums.spread.median)? {
            Copied::Rate(rate) => Some(rate),
            Copied::Starved { got } => {
                notes.push(format!(
                    "how fast memory is copied is not known at {}: measuring it got {:.1} % of the CPU time that it wanted",
                    show_size(size),
                    got * 100.0
                ));
                None
            }
        };
        let mut yardsticks = Yardsticks { copy, ..Yardsticks::default() };
        // If another limit is reached, these would change nothing.
        if self.schedule.fit.is_none() && is_open(&self.evidence(size, sums, rounds, &yardsticks)) {
            yardsticks.messages_per_s = self.message_rate(size)?;
            yardsticks.deeper = self.deeper(size, sums)?;
        }
        Ok(yardsticks)
    }

    /// Returns the time limit of a yardstick. One that takes longer shows only what other programs leave, and is
    /// discarded.
    fn limit(&self) -> Duration {
        (self.schedule.time / 4).max(LIMIT_LEAST)
    }

    /// Describes the CPU time of the last sample if other programs had nearly all of it in each sample.
    fn starved(&self, rounds: &Rounds) -> Option<String> {
        let of = |taken: &Taken| starved(&taken.local_load, &taken.peer_load, self.same_host);
        rounds.engine.iter().map(of).collect::<Option<Vec<_>>>()?.pop()
    }

    /// Returns the path of the bytes if they did not use the rails.
    fn beside_rails(&self, rounds: &Rounds) -> Option<BesideRails> {
        let name =
            rounds.path.as_ref().map(|path| path.taken.clone()).filter(|path| path != TCP)?;
        let on_host = self.bank.is_host() && self.peer_on_host;
        let by_devices = !on_host || name == PathKind::PeerCopy.name();
        Some(BesideRails { name, by_devices })
    }

    /// Describes the use of this machine's memory by its threads.
    fn memory_use(&self, size: u64, [here, there]: [Vec<Vec<u32>>; 2], rounds: &Rounds) -> Use {
        let schedule = self.schedule;
        let layout = schedule.layout(size);
        let config = self.link.engine.config();
        let region = layout.region_bytes();
        // Devices copy through a bounce buffer of each flow.
        let staging = config.staging_bytes * self.link.peer.flows().total as u64;
        let end = |is_host: bool| if is_host { region } else { staging.min(region) };
        let on_host = [self.bank.is_host(), self.peer_on_host];
        let (out, is_both_ways) = (schedule.op != Op::Read, schedule.bidir);
        let (copies, movers, is_host) = if self.same_host {
            let ends = if out { on_host } else { [on_host[1], on_host[0]] };
            let is_once = |path: &BesideRails| path.name == PathKind::SingleCopy.name();
            let once = self.beside_rails(rounds).as_ref().is_some_and(is_once);
            let copies = if once { Copies::Once } else { Copies::Twice };
            (copies, [here, there].concat(), ends)
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

    /// Measures transfers of 8 bytes per second at this depth, for small sizes only.
    fn message_rate(&self, size: u64) -> Result<Option<f64>, Fault> {
        let schedule = self.schedule;
        let depth = schedule.depth(size);
        // With --iters the user chose the number of transfers, so run no others.
        if !(MESSAGE_BYTES + 1..=SMALL_BYTES).contains(&size)
            || depth == 1
            || schedule.iters.is_some()
        {
            return Ok(None);
        }
        if let Some(known) = self.messages.borrow().get(&depth) {
            return Ok(Some(*known));
        }
        let schedule = Schedule { segments: 1, depth: Some(depth), ..schedule.clone() };
        self.progress.say(format!("{}: measuring small transfers", show_size(size)));
        let trial = self.set_up(self.link, &schedule, MESSAGE_BYTES, None)?;
        let count = trial.warm_up(MESSAGES_TIME, MESSAGES_TIME)?;
        let (begin, mut most) = (Instant::now(), 0.0_f64);
        for round in 0..MESSAGES_ROUNDS {
            if begin.elapsed() > self.limit() {
                trial.tear_down()?;
                return Ok(None);
            }
            let sample = trial.sample(Verify::Off, count, round)?.sample;
            most = most.max(count as f64 / sample.seconds);
        }
        trial.tear_down()?;
        self.messages.borrow_mut().insert(depth, most);
        Ok(Some(most))
    }

    /// Measures the gain from more outstanding transfers, if the channels have room for them.
    fn deeper(&self, size: u64, sums: &Sums) -> Result<Option<Deeper>, Fault> {
        let schedule = self.schedule;
        let Some(depth) = self.deeper_depth(size) else { return Ok(None) };
        let is_short = depth.saturating_mul(size) as f64 <= sums.spread.max * 1e9 * DEEPER_SECONDS;
        if !is_short {
            return Ok(None);
        }
        self.progress.say(format!("{}: measuring {DEEPER} times the depth", show_size(size)));
        // Prepare memory for outstanding transfers only: filling more takes longer than the turns.
        let deep = Schedule { depth: Some(depth), iters: Some(depth), ..schedule.clone() };
        let mut trial = self.set_up(self.link, &deep, size, None)?;
        let depths = [schedule.depth(size), depth];
        let mut counts = [0; 2];
        for (depth, count) in depths.into_iter().zip(&mut counts) {
            trial.set_depth(depth)?;
            *count = trial.warm_up(SHORT_WARMUP, SHORT_TURN)?;
        }
        let (begin, mut ratios) = (Instant::now(), Vec::new());
        for _ in 0..DEEPER_ROUNDS {
            self.interrupt.check()?;
            if begin.elapsed() > self.limit() {
                trial.tear_down()?;
                return Ok(None);
            }
            let mut rates = [0.0; 2];
            for ((depth, count), rate) in depths.into_iter().zip(counts).zip(&mut rates) {
                trial.set_depth(depth)?;
                *rate = trial.gb_per_s(count)?;
            }
            ratios.push(rates[1] / rates[0]);
        }
        trial.tear_down()?;
        Ok(Spread::of(ratios).map(|ratio| Deeper { depth, ratio }))
    }

    /// Returns the greater depth to try, or `None` if it is not possible.
    fn deeper_depth(&self, size: u64) -> Option<u64> {
        let schedule = self.schedule;
        let depth = schedule.depth(size).saturating_mul(DEEPER);
        let is_possible = depth <= u64::from(self.link.engine.config().ops_pool)
            && depth.saturating_mul(schedule.segments) <= SEGMENTS_AT_ONCE
            && depth.saturating_mul(size) <= BYTES_AT_ONCE
            && schedule.depth(size).saturating_mul(size) < self.window_bytes();
        (schedule.iters.is_none() && is_possible).then_some(depth)
    }

    /// Returns the maximum number of outstanding bytes of all channels together.
    fn window_bytes(&self) -> u64 {
        let config = self.link.engine.config();
        let channels = self.link.peer.flows().total as u64 / u64::from(config.sockets);
        channels * u64::from(config.window_chunks) * config.chunk_bytes
    }

    /// Returns the protection of the payload that moves, if any.
    fn payload_in_use(&self) -> Option<String> {
        let [sent, received] = self.payload;
        let in_use = match (self.schedule.bidir, self.schedule.op) {
            (true, _) => vec![sent, received],
            (false, Op::Read) => vec![received],
            (false, _) => vec![sent],
        };
        let protected = in_use.into_iter().find(|payload| *payload != PayloadProtection::None);
        protected.map(|payload| payload.to_string())
    }

    /// Gathers the evidence for the verdict. The numbers are those of the sample nearest to the median rate.
    pub(crate) fn evidence(
        &self,
        size: u64,
        sums: &Sums,
        rounds: &Rounds,
        yardsticks: &Yardsticks,
    ) -> Evidence {
        let (median, rails) = (sums.spread.median, sums.rails.as_slice());
        let distance = |taken: &&Taken| (taken.sample.gb_per_s() - median).abs();
        let middle = rounds.engine.iter().min_by(|a, b| distance(a).total_cmp(&distance(b)));
        let is_mixed = middle.is_some_and(|taken| distance(&taken) > MIXED_SHARE * median);
        let down_in_some = is_mixed && down_in_some(&rounds.engine);
        let has_resent = middle.is_some_and(|taken| {
            let down = taken.local_load.down.iter().chain(&taken.peer_load.down);
            let down: Vec<&str> = down.map(|rail| rail.name.as_str()).collect();
            let mut rails = taken.rails.iter();
            rails.any(|rail| rail.resent_chunks > 0 && down.contains(&rail.name.as_str()))
        });
        let (local, peer, window_full_share) = middle.map_or_else(Default::default, |taken| {
            let share = taken.sample.window_full_share;
            (taken.local_load.clone(), taken.peer_load.clone(), share)
        });
        let mut down_elsewhen = [Vec::new(), Vec::new()];
        let [here, there] = &mut down_elsewhen;
        for taken in &rounds.engine {
            add_new(here, &taken.local_load.down);
            add_new(there, &taken.peer_load.down);
        }
        here.retain(|rail| local.down.iter().all(|known| known.name != rail.name));
        there.retain(|rail| peer.down.iter().all(|known| known.name != rail.name));
        Evidence {
            has_resent,
            down_in_some,
            down_elsewhen,
            gb_per_s: median,
            ways: if self.schedule.bidir { 2 } else { 1 },
            local,
            peer,
            same_host: self.same_host,
            copy: yardsticks.copy.clone(),
            messages_per_s: yardsticks.messages_per_s,
            line: self.line.clone(),
            peer_line: self.peer_line.clone(),
            rails: rails.iter().map(|rail| (rail.name.clone(), rail.share)).collect(),
            lost: most_lost(rails),
            beside_rails: self.beside_rails(rounds),
            window_full_share,
            payload: self.payload_in_use(),
            ping_pong: self.schedule.latency,
            depth: self.schedule.depth(size),
            size,
            window_bytes: self.window_bytes(),
            deeper: yardsticks.deeper,
            p50_us: sums.latency_us.map(|latency| latency.p50),
        }
    }
}

/// Whether the rails that were down, at either end, differ between samples.
fn down_in_some(samples: &[Taken]) -> bool {
    let faults = |taken: &Taken| -> BTreeSet<(bool, String, bool)> {
        let ends = [(true, &taken.local_load), (false, &taken.peer_load)];
        let of_end = |(is_here, load): (bool, &Load)| {
            let faults = load.down.iter().filter(|rail| rail.why.is_fault());
            faults.map(|rail| (is_here, rail.name.clone(), rail.went)).collect::<Vec<_>>()
        };
        ends.into_iter().flat_map(of_end).collect()
    };
    samples.windows(2).any(|two| faults(&two[0]) != faults(&two[1]))
}

/// Largest distance of the middle sample from the median, as a share of the median.
const MIXED_SHARE: f64 = 0.05;

/// Returns the rail that retransmitted the greatest share of its bytes.
fn most_lost(rails: &[RailShare]) -> Option<(String, f64)> {
    let lost = |rail: &RailShare| (rail.retransmits * SEGMENT_BYTES) as f64 / rail.bytes as f64;
    let rails = rails.iter().filter(|rail| rail.bytes > 0);
    rails.map(|rail| (rail.name.clone(), lost(rail))).max_by(|a, b| a.1.total_cmp(&b.1))
}

/// Payload bytes of a packet of 1500 bytes. With larger packets, more is lost than this estimates.
const SEGMENT_BYTES: u64 = 1448;
/// Maximum size for which the message may cost more than its bytes.
const SMALL_BYTES: u64 = 256 << 10;
const MESSAGES_TIME: Duration = Duration::from_millis(50);
const MESSAGES_ROUNDS: u64 = 3;
/// Minimum time limit of a yardstick, after its warm-up.
const LIMIT_LEAST: Duration = Duration::from_millis(300);
/// Factor of the greater depth that is tried.
const DEEPER: u64 = 4;
const DEEPER_ROUNDS: u64 = 3;
/// Maximum time in seconds for the outstanding bytes: slow rails would take minutes.
const DEEPER_SECONDS: f64 = 0.2;
const SHORT_WARMUP: Duration = Duration::from_millis(20);
const SHORT_TURN: Duration = Duration::from_millis(50);
/// Maximum bytes outstanding at the greater depth. Preparing more memory, or more segments than [`SEGMENTS_AT_ONCE`],
/// takes longer than moving it.
const BYTES_AT_ONCE: u64 = 64 << 20;
const SEGMENTS_AT_ONCE: u64 = 1 << 16;
