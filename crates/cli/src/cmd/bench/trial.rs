//! Measuring end of one size on one pair of engines: set-up, warm-up, samples.

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

use std::time::{Duration, Instant};

use polyrail::PreparedTransfer;
use polyrail_profiler::drive::Ran;
use polyrail_report::{Histogram, Sample, Spread};

pub(crate) use self::down::rails_down;
pub(crate) use self::observe::{Poster, Snapshot};
pub(crate) use self::part::Part;
pub(crate) use self::quotas::Quotas;
pub(crate) use self::watch::{Watch, attach};
pub(crate) use self::work::{needs_of, regions_of};
use crate::cmd::bench::faults;
use crate::cmd::bench::memory::{Bank, Buffers, Store};
use crate::cmd::bench::options::{Schedule, Verify};
use crate::cmd::bench::talk::{
    Answer, Ask, Counted, DownRail, End, Link, Load, RailDelta, Regions, SetUp, process, unexpected,
};
use crate::fault::Fault;
use crate::interrupt::Interrupt;

/// Size that is set up at both ends.
pub(crate) struct Trial<'l> {
    link: &'l Link<'l>,
    set_up: SetUp,
    buffers: Buffers,
    part: Part<'l>,
    interrupt: &'l Interrupt,
    watch: Option<&'l Watch>,
}

/// Measured interval with everything that was observed during it.
pub(crate) struct Taken {
    pub(crate) sample: Sample,
    pub(crate) times: Histogram,
    /// Counters by rail, from the sending end. With two directions, the sums of both ends.
    pub(crate) rails: Vec<RailDelta>,
    pub(crate) local_load: Load,
    pub(crate) peer_load: Load,
    pub(crate) verified_bytes: u64,
    /// Sum of both ends, if both count them.
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
        let needs = needs_of(&set_up, End::Client);
        let mut buffers = Buffers::registered(link.engine, bank, set_up.layout, needs)?;
        set_up.regions = regions_of(&buffers);
        // Both ends fill their memory at the same time.
        let ask = Ask::SetUp(set_up.clone());
        link.begin(&ask)?;
        let filled = buffers.renew(needs);
        let theirs = regions_from(&ask, link.answer_to(&ask)?)?;
        filled?;
        let part = Part::new(link, &buffers, &set_up, &theirs, End::Client)?;
        Ok(Self { link, set_up, buffers, part, interrupt, watch })
    }

    /// Changes the number of outstanding transfers, in the same memory.
    pub(crate) fn set_depth(&mut self, depth: u64) -> Result<(), Fault> {
        self.set_up.depth = depth;
        let ask = Ask::SetUp(self.set_up.clone());
        let theirs = regions_from(&ask, self.link.ask(&ask)?)?;
        self.part = Part::new(self.link, &self.buffers, &self.set_up, &theirs, End::Client)?;
        Ok(())
    }

    /// Returns the memory that this end sends from.
    pub(crate) fn source(&self) -> Option<&Store> {
        self.buffers.source.as_ref()
    }

    /// Returns one of the requests that this end posts.
    pub(crate) fn example(&self) -> Option<&PreparedTransfer> {
        self.part.example()
    }

    /// Runs unmeasured for `time` after the first transfer, and returns the number of transfers that take `aim`.
    pub(crate) fn warm_up(&self, time: Duration, aim: Duration) -> Result<u64, Fault> {
        let least = self.set_up.depth.max(1);
        let mut transfers = least * 2;
        let (begin, mut rates) = (Instant::now(), Vec::new());
        loop {
            let (ran, _) = self.run(transfers)?;
            let left = time.as_secs_f64() - begin.elapsed().as_secs_f64();
            let rate = transfers as f64 / ran.seconds.max(1e-9);
            rates.push(rate);
            if left <= 0.0 {
                // A single hiccup must not change the length of the samples.
                let rate = Spread::of(rates).map_or(rate, |spread| spread.median);
                return Ok(((rate * aim.as_secs_f64()) as u64).max(least));
            }
            // Twice as many transfers, but no more than fit into the remaining time.
            let fitting = (rate * left * 1.1) as u64;
            transfers = (transfers * 2).min(fitting.max(1));
        }
    }

    /// Returns the rate of some transfers, without verifying them.
    pub(crate) fn gb_per_s(&self, transfers: u64) -> Result<f64, Fault> {
        let (ran, counted) = self.run(transfers)?;
        let bytes = transfers * self.ways() * self.set_up.layout.size;
        Ok(bytes as f64 / 1e9 / self.seconds(&ran, &counted))
    }

    /// Returns the seconds of a run. With two directions, the longer one ends the sample.
    fn seconds(&self, ran: &Ran, counted: &Counted) -> f64 {
        if self.set_up.bidir { ran.seconds.max(counted.sample.seconds) } else { ran.seconds }
    }

    /// Poisons the destinations, moves the data, and verifies them.
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
        // After the other end has counted: by then this end's progress threads have counted, too.
        let poster = Poster::of(self.link.engine, &ran);
        let interval = before.until(&Snapshot::take(self.link.engine, self.watch), Some(poster));
        let verified_bytes = self.verify(verify, transfers, round)?;

        let ways = self.ways();
        let seconds = self.seconds(&ran, &counted);
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
        // Each end reports the rails of the other one to which it sends nothing.
        add_new(&mut peer_load.down, &local_load.unsent);
        add_new(&mut local_load.down, &peer_load.unsent);
        let rescues = interval.rescues.zip(counted.rescues).map(|(here, there)| here + there);
        let times = ran.times;
        Ok(Taken { sample, times, rails, local_load, peer_load, verified_bytes, rescues })
    }

    /// Frees the memory of both ends.
    pub(crate) fn tear_down(self) -> Result<(), Fault> {
        self.link.tell(&Ask::TearDown)
    }

    /// Returns the number of directions in use.
    pub(crate) fn ways(&self) -> u64 {
        let sends = [End::Client, End::Server].map(|end| u64::from(self.set_up.sends(end)));
        sends.iter().sum()
    }

    /// Moves data while both ends count.
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
            // `Work` ensures that this end always posts something.
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

/// Returns the regions of the other end.
fn regions_from(ask: &Ask, answer: Answer) -> Result<Regions, Fault> {
    match answer {
        Answer::Ready(regions) => Ok(regions),
        other => Err(unexpected(ask, &other)),
    }
}

/// Adds the rails whose names are not in the list yet.
pub(crate) fn add_new(down: &mut Vec<DownRail>, more: &[DownRail]) {
    for rail in more {
        if down.iter().all(|known| known.name != rail.name) {
            down.push(rail.clone());
        }
    }
}

/// Adds up both ends' counters of the same rails, for the rails that both ends have.
fn sum(mut mine: Vec<RailDelta>, theirs: &[RailDelta]) -> Vec<RailDelta> {
    mine.iter_mut().zip(theirs).for_each(|(mine, theirs)| mine.add(theirs));
    mine
}
