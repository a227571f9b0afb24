//! One size on one pair of engines, from the measuring end: set-up, warm-up, samples.

mod arrivals;
mod away;
mod down;
mod machine;
mod observe;
mod part;
mod ping_pong;
mod programs;
mod queued;
mod queues;
mod quotas;
mod watch;
mod work;

use std::time::Duration;

use polyrail::PreparedTransfer;
use polyrail_profiler::drive::Ran;
use polyrail_report::{Histogram, Sample, Spread};

pub(crate) use self::down::rails_down;
pub(crate) use self::observe::{Poster, Snapshot};
pub(crate) use self::part::Part;
pub(crate) use self::watch::{Watch, attach};
pub(crate) use self::work::{buffers_of, regions_of};
use crate::cmd::bench::faults;
use crate::cmd::bench::memory::{Bank, Buffers, Store};
use crate::cmd::bench::options::{Schedule, Verify};
use crate::cmd::bench::talk::{
    Answer, Ask, Counted, DownRail, End, Link, Load, RailDelta, Regions, SetUp, process, unexpected,
};
use crate::fault::Fault;
use crate::interrupt::Interrupt;

/// A size that is set up at both ends.
pub(crate) struct Trial<'l> {
    link: &'l Link<'l>,
    set_up: SetUp,
    buffers: Buffers,
    part: Part<'l>,
    interrupt: &'l Interrupt,
    watch: Option<&'l Watch>,
}

/// A measured interval with everything that was seen of it.
pub(crate) struct Taken {
    pub(crate) sample: Sample,
    pub(crate) times: Histogram,
    /// By rail, as the sending side counts it; of both directions the sum.
    pub(crate) rails: Vec<RailDelta>,
    pub(crate) local_load: Load,
    pub(crate) peer_load: Load,
    pub(crate) verified_bytes: u64,
    /// Of both ends, if both count them.
    pub(crate) rescues: Option<u64>,
}

impl<'l> Trial<'l> {
    /// Registers memory and prepares requests at both ends.
    pub(crate) fn set_up(
        link: &'l Link<'l>,
        bank: &Bank,
        schedule: &Schedule,
        size: u64,
        seed: u64,
        interrupt: &'l Interrupt,
        watch: Option<&'l Watch>,
    ) -> Result<Self, Fault> {
        let mut set_up = SetUp {
            op: schedule.op,
            layout: schedule.layout(size),
            depth: schedule.depth(size),
            posters: schedule.posters,
            bidir: schedule.bidir,
            latency: schedule.latency,
            seed,
            process: process(),
            sample: watch.is_some(),
            regions: Regions::default(),
        };
        let buffers = buffers_of(&set_up, link.engine, bank, End::Client)?;
        set_up.regions = regions_of(&buffers);
        let ask = Ask::SetUp(set_up.clone());
        let theirs = match link.ask(&ask)? {
            Answer::Ready(regions) => regions,
            other => return Err(unexpected(&ask, &other)),
        };
        let part = Part::new(link, &buffers, &set_up, &theirs, End::Client)?;
        Ok(Self { link, set_up, buffers, part, interrupt, watch })
    }

    /// What is sent from here.
    pub(crate) fn source(&self) -> Option<&Store> {
        self.buffers.source.as_ref()
    }

    /// One of the requests that this end posts.
    pub(crate) fn example(&self) -> Option<&PreparedTransfer> {
        self.part.example()
    }

    /// Runs unmeasured for `time` and says how many transfers take `aim` then.
    pub(crate) fn warm_up(&self, time: Duration, aim: Duration) -> Result<u64, Fault> {
        let least = self.set_up.depth.max(1);
        let mut transfers = least * 2;
        let mut left = time.as_secs_f64();
        let mut rates = Vec::new();
        loop {
            let (ran, _) = self.run(transfers)?;
            left -= ran.seconds;
            let rate = transfers as f64 / ran.seconds.max(1e-9);
            rates.push(rate);
            if left <= 0.0 {
                // One hiccup must make the samples neither short nor long.
                let rate = Spread::of(rates).map_or(rate, |spread| spread.median);
                return Ok(((rate * aim.as_secs_f64()) as u64).max(least));
            }
            // Twice as many, but no more than the time that is left.
            let fitting = (rate * left * 1.1) as u64;
            transfers = (transfers * 2).min(fitting.max(1));
        }
    }

    /// Poisons the destinations, moves the data, and compares.
    pub(crate) fn sample(
        &self,
        verify: Verify,
        transfers: u64,
        round: u64,
    ) -> Result<Taken, Fault> {
        self.buffers.poison()?;
        self.link.tell(&Ask::Poison)?;
        let started_unix_ms = crate::host::unix_ms();
        let before = Snapshot::begin(self.link.engine, self.watch);
        let (ran, counted) = self.run(transfers)?;
        // After the other end has counted: by then this end's proxies have counted as well.
        let poster = Poster::of(self.link.engine, &ran);
        let interval = before.until(&Snapshot::take(self.link.engine, self.watch), Some(poster));
        let verified_bytes = self.verify(verify, transfers, round)?;

        let ways = self.ways();
        // Of two directions at once the longer one ends the sample.
        let seconds =
            if self.set_up.bidir { ran.seconds.max(counted.sample.seconds) } else { ran.seconds };
        let micros = |q| ran.times.quantile_ns(q).map(|ns| ns as f64 / 1e3);
        let is_sender = self.set_up.sends(End::Client);
        let sender = if is_sender { &interval.load } else { &counted.load };
        let sample = Sample {
            started_unix_ms,
            transfers: transfers * ways,
            bytes: transfers * ways * self.set_up.layout.size,
            seconds,
            local_cpu_seconds: interval.cpu_seconds,
            machine_busy_share: interval.load.machine_busy,
            p50_us: micros(0.5),
            p99_us: micros(0.99),
            window_full_share: sender.window_full_share,
            socket_full_share: sender.socket_full_share,
            peer: counted.sample,
        };
        let rails = match (is_sender, self.set_up.sends(End::Server)) {
            (true, true) => sum(interval.rails, &counted.rails),
            (true, false) => interval.rails,
            (false, _) => counted.rails,
        };
        let (mut local_load, mut peer_load) = (interval.load, counted.load);
        self.link.note_silent(&local_load);
        // Each end says to which rails of the other one it sends nothing.
        add_new(&mut peer_load.down, &local_load.unsent);
        add_new(&mut local_load.down, &peer_load.unsent);
        let rescues = interval.rescues.zip(counted.rescues).map(|(here, there)| here + there);
        let times = ran.times;
        Ok(Taken { sample, times, rails, local_load, peer_load, verified_bytes, rescues })
    }

    /// Gives back the memory of both ends.
    pub(crate) fn tear_down(self) -> Result<(), Fault> {
        self.link.tell(&Ask::TearDown)
    }

    /// Directions in use.
    pub(crate) fn ways(&self) -> u64 {
        let sends = [End::Client, End::Server].map(|end| u64::from(self.set_up.sends(end)));
        sends.iter().sum()
    }

    /// Moves data, with both ends counting.
    fn run(&self, transfers: u64) -> Result<(Ran, Counted), Fault> {
        self.interrupt.check()?;
        self.link.tell(&Ask::Begin { transfers })?;
        let stop = |_| self.interrupt.is_raised();
        let ran = match &self.part {
            Part::Stream(work) => work.start(transfers)?.finish(stop)?,
            Part::PingPong(game) => Some(game.start()?.play(End::Client, transfers, stop)?),
        };
        let counted = match self.link.ask(&Ask::End)? {
            Answer::Counted(counted) => *counted,
            other => return Err(unexpected(&Ask::End, &other)),
        };
        match ran {
            Some(ran) => Ok((ran, counted)),
            // This end always posts something; `Work` sees to it.
            None => Err(faults::protocol("begin", "nothing to post".into())),
        }
    }

    fn verify(&self, mode: Verify, transfers: u64, round: u64) -> Result<u64, Fault> {
        let slots = transfers.min(self.set_up.layout.slots);
        let here = self.buffers.verify(mode, slots, round)?;
        let ask = Ask::Verify { mode, slots, round };
        match self.link.ask(&ask)? {
            Answer::Verified { bytes } => Ok(here + bytes),
            other => Err(unexpected(&ask, &other)),
        }
    }
}

/// Adds the rails that are not among them yet.
pub(crate) fn add_new(down: &mut Vec<DownRail>, more: &[DownRail]) {
    for rail in more {
        if down.iter().all(|known| known.name != rail.name) {
            down.push(rail.clone());
        }
    }
}

/// Both ends' sides of the same rails, as far as both have them.
fn sum(mut mine: Vec<RailDelta>, theirs: &[RailDelta]) -> Vec<RailDelta> {
    mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| mine.add(theirs));
    mine
}
