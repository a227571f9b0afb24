//! Compares the devices' clocks with the host's, about once a second, and with each other.

use std::time::{Duration, Instant};

use polyrail_profile::{Anchor, AnchorMethod, Clock, Recorder};
use polyrail_report::Spread;

use crate::cuda::{SharedMeter, brackets, flags, lock};
use crate::error::ProfilerError;

/// Comparisons per window; the quickest are kept. A window takes about a millisecond.
const QUESTIONS: u32 = 200;
const KEPT: usize = 8;
const TURNS: u32 = 24;
const TURNS_KEPT: usize = 4;
/// Minimum tick of clocks that are compared at their steps.
const COARSE_TICK_NS: u64 = 200;
const EVERY: Duration = Duration::from_secs(1);
/// Maximum number of windows per session; each session has its own range of window numbers.
const WINDOWS_OF_SESSION: u32 = 1_000_000;

#[derive(Clone)]
pub struct ClockSource {
    pub(crate) meter: SharedMeter,
    pub(crate) id: u32,
    pub(crate) rank: u32,
    pub(crate) name: String,
    pub(crate) tick_ns: u64,
}

/// Time of a flag from one device to another: half of its round trip.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerLatency {
    pub src: u32,
    /// Device that the flag goes to.
    pub dst: u32,
    /// Median, in ns.
    pub median_ns: f64,
    /// Minimum, in ns.
    pub min_ns: f64,
}

/// Compares the clocks once a second.
pub(crate) struct Anchoring<'a> {
    sources: &'a [ClockSource],
    /// Whether the devices can access each other's memory.
    peers: bool,
    next: Instant,
    window: u32,
}

impl<'a> Anchoring<'a> {
    pub(crate) fn new(sources: &'a [ClockSource], peers: bool, session: u32) -> Self {
        let window = session.saturating_mul(WINDOWS_OF_SESSION);
        Self { sources, peers, next: Instant::now(), window }
    }

    /// Compares the clocks if the last time is a second ago.
    pub(crate) fn look(&mut self, recorder: &Recorder) -> Result<(), ProfilerError> {
        if self.sources.is_empty() || Instant::now() < self.next {
            return Ok(());
        }
        self.now(recorder)
    }

    pub(crate) fn now(&mut self, recorder: &Recorder) -> Result<(), ProfilerError> {
        for source in self.sources {
            for anchor in source.anchors(self.window)? {
                recorder.append_anchor(&anchor)?;
            }
        }
        if self.peers {
            for (place, one) in self.sources.iter().enumerate() {
                for other in &self.sources[place + 1..] {
                    for anchor in peer_anchors(one, other, self.window)? {
                        recorder.append_anchor(&anchor)?;
                    }
                }
            }
        }
        self.window += 1;
        self.next = Instant::now() + EVERY;
        Ok(())
    }
}

impl ClockSource {
    pub(crate) fn new(
        meter: SharedMeter,
        id: u32,
        rank: u32,
        name: String,
    ) -> Result<Self, ProfilerError> {
        let tick_ns = lock(&meter).tick_ns();
        let tick_ns = tick_ns.map_err(ProfilerError::gpu(format!("the clock of {name}")))?;
        Ok(Self { meter, id, rank, name, tick_ns })
    }

    /// Returns the clock as `run.yml` lists it.
    pub fn describe(&self) -> Clock {
        Clock {
            id: self.id,
            name: self.name.clone(),
            kind: "globaltimer".into(),
            rank: Some(self.rank),
            tick_ns: self.tick_ns as f64,
        }
    }

    fn anchors(&self, window: u32) -> Result<Vec<Anchor>, ProfilerError> {
        let at_edge = self.tick_ns >= COARSE_TICK_NS;
        let method = if at_edge { AnchorMethod::Edge } else { AnchorMethod::Bracket };
        let found = brackets(&self.meter, QUESTIONS, at_edge);
        let mut found = found.map_err(ProfilerError::gpu(format!("the clock of {}", self.name)))?;
        found.sort_by_key(|bracket| bracket.after_ns - bracket.before_ns);
        let anchor = |bracket: polyrail_gpu::cuda::measure::Bracket| Anchor {
            clock: self.id,
            parent: 0,
            window,
            method,
            parent_before_ns: bracket.before_ns,
            clock_ns: bracket.device_ns,
            parent_after_ns: bracket.after_ns,
        };
        // The answers with the tightest bounds on the offset are not always among the quickest.
        let lowest = found.iter().min_by_key(|one| one.after_ns - one.device_ns).copied();
        let highest = found.iter().max_by_key(|one| one.before_ns - one.device_ns).copied();
        found.truncate(KEPT);
        for bound in [lowest, highest].into_iter().flatten() {
            if !found.contains(&bound) {
                found.push(bound);
            }
        }
        Ok(found.into_iter().map(anchor).collect())
    }
}

fn peer_anchors(
    one: &ClockSource,
    other: &ClockSource,
    window: u32,
) -> Result<Vec<Anchor>, ProfilerError> {
    let found = flags(&one.meter, &other.meter, TURNS);
    let what = || format!("a flag between {} and {}", one.name, other.name);
    let mut found = found.map_err(ProfilerError::gpu(what()))?;
    found.sort_by_key(|trip| trip.came_ns - trip.sent_ns);
    let anchors = found.into_iter().take(TURNS_KEPT).map(|trip| Anchor {
        clock: other.id,
        parent: one.id,
        window,
        method: AnchorMethod::Peer,
        parent_before_ns: trip.sent_ns,
        clock_ns: trip.seen_ns,
        parent_after_ns: trip.came_ns,
    });
    Ok(anchors.collect())
}

/// Measures half the round trip of a flag, for all directed pairs.
pub(crate) fn latencies(sources: &[ClockSource]) -> Result<Vec<PeerLatency>, ProfilerError> {
    let mut found = Vec::new();
    for one in sources {
        for other in sources.iter().filter(|other| other.id != one.id) {
            let what = format!("a flag between {} and {}", one.name, other.name);
            // The first round trips find cold caches.
            flags(&one.meter, &other.meter, 16).map_err(ProfilerError::gpu(what.clone()))?;
            let trips = flags(&one.meter, &other.meter, 500).map_err(ProfilerError::gpu(what))?;
            let half = trips.iter().map(|trip| (trip.came_ns - trip.sent_ns) as f64 / 2.0);
            let half = Spread::of(half).expect("there were trips");
            found.push(PeerLatency {
                src: one.rank,
                dst: other.rank,
                median_ns: half.median,
                min_ns: half.min,
            });
        }
    }
    Ok(found)
}
