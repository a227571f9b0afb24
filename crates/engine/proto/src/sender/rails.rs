//! Estimates of a sender's rails: the speed of each, and its data in flight. They decide whether to leave a chunk to
//! another rail.
//!
//! In the end a transfer waits for the chunk on its slowest rail. So a rail takes a chunk only if it will land it
//! before the other rails have landed everything that is left, or if no other rail would land it earlier. All channels
//! of a rail share its rate and are counted together.
//!
//! Rates are measured from one acknowledgement to another while something is in flight throughout, so that a rail with
//! little load isn't taken for a slow one. An idle rail of unknown rate counts as fast as the fastest known one:
//! otherwise a single rail would carry everything that fits in its window.
//!
//! Chunks of a device's memory are copied at both ends, which takes longer than the wire. So a rail with few of them in
//! flight seems slow, would get fewer, and would seem slower. For these chunks rails count as equal unless their rates
//! differ widely.
//!
//! Some rails may be nearer to the memory than others. A chunk is left to one of them that is idle.

use std::time::Duration;

use crate::id::Time;

/// Difference below which rails count as equal: waking another rail takes as long.
const SLACK_NS: f64 = 20_000.0;
/// Difference relative to the time of the chunk itself, since measured rates have an error.
const SLACK: f64 = 0.25;
/// Minimum of a measurement. It also spans all chunks in flight when it began: the flows of a rail alternate on the
/// wire, so their acknowledgements arrive in bunches.
const MEASURE_NS: f64 = 200_000.0;
const MEASURE_CHUNKS: u32 = 4;
/// Minimum mean chunk size of a measurement: smaller chunks measure the cost of handling them, not the rail.
const MEASURE_MEAN_BYTES: f64 = 16_384.0;
/// Time over which measurements are averaged.
const AVERAGE_NS: f64 = 2_000_000.0;
/// Maximum payload in flight on a rail, as time, besides the delay of its acknowledgements.
const QUEUE_NS: f64 = 4_000_000.0;
/// Chunks that may be in flight on a rail however slow it is: one on the wire, and the next.
const CHUNKS_MIN: u32 = 2;
/// Bytes in flight on a rail from which on it leaves chunks to an idle rail of unknown rate: that one has to be tried
/// some time, and this one may be stuck.
const TRY_BYTES: u64 = 1 << 20;
/// Lateness from which on a silent rail, compared with the expected time of its payload in flight, counts as slow as
/// its silence.
const LATE_NS: f64 = 5_000_000.0;
/// Ratio up to which rails count as equally fast, for chunks that devices copy.
const EVEN: f64 = 8.0;
/// Time without use after which a rail counts as twice as fast as measured; after twice the time as four times as fast.
/// Otherwise the sender would never try a rail again that was slow for a moment.
const HOPE_NS: f64 = 100_000_000.0;
/// Maximum of the time that replaces [`HOPE_NS`]. A transfer whose chunk tries a rail waits for as long as the rail
/// takes. So where a try takes longer than [`HOPE_NS`], its time replaces that, and doubles with each try that finds
/// the rail no faster: up to this.
const HOPE_MAX_NS: f64 = 10_000_000_000.0;

/// A chunk in flight, as its rail sees it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Load {
    /// Payload in bytes.
    pub(super) bytes: u32,
    /// Payload in flight on the rail when it was pulled, including its own.
    ahead: u64,
    pulled: Time,
}

/// Chunk that a rail might take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next {
    pub(super) bytes: u64,
    /// Devices copy it, here or at the peer.
    pub(super) is_copied: bool,
    /// Rails near its memory, a bit each; 0 if none is nearer than the others.
    pub(super) near: u64,
}

/// Rails to a peer.
#[derive(Debug)]
pub(super) struct Rails {
    all: Vec<Rail>,
}

#[derive(Debug, Default)]
struct Rail {
    /// A flow is up that takes chunks.
    usable: bool,
    in_flight: u64,
    chunks: u32,
    /// In bytes per nanosecond, once it is known.
    rate: Option<f64>,
    /// The rate was measured, not guessed from a first chunk.
    is_measured: bool,
    /// Time that acknowledgements take beyond that of the bytes before them.
    delay_ns: f64,
    /// The last acknowledgement, or the pull that ended its idleness.
    heard: Time,
    /// Replacement of [`HOPE_NS`], where a try takes longer than that.
    hope_ns: f64,
    measuring: Measuring,
}

/// A measurement in progress.
#[derive(Clone, Copy, Debug, Default)]
struct Measuring {
    since: Time,
    bytes: u64,
    chunks: u32,
    /// Chunks in flight at its beginning.
    begun: u32,
    /// The measurement began with a pull, not with an acknowledgement, so its time includes a round trip.
    cold: bool,
}

impl Rails {
    pub(super) fn new(count: u32) -> Self {
        Self { all: (0..count.max(1)).map(|_| Rail::default()).collect() }
    }

    /// Returns the number of rails.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    pub(super) fn set_usable(&mut self, rail: usize, usable: bool) {
        self.all[rail].usable = usable;
    }

    /// Returns whether nothing is in flight there.
    pub(super) fn is_idle(&self, rail: usize) -> bool {
        self.all[rail].chunks == 0
    }

    /// Records that a chunk is sent there.
    pub(super) fn take(&mut self, now: Time, rail: usize, bytes: u32) -> Load {
        let rail = &mut self.all[rail];
        if rail.chunks == 0 {
            rail.heard = now;
            rail.measuring = Measuring { since: now, cold: true, ..Measuring::default() };
        }
        rail.chunks += 1;
        rail.in_flight += u64::from(bytes);
        Load { bytes, ahead: rail.in_flight, pulled: now }
    }

    /// Records that a chunk will not arrive there.
    pub(super) fn give_back(&mut self, rail: usize, load: Load) {
        self.all[rail].remove(load);
    }

    /// Records that a chunk was acknowledged. Call [`Self::heard`] after the last one of an acknowledgement.
    pub(super) fn landed(&mut self, now: Time, rail: usize, load: Load) {
        let rail = &mut self.all[rail];
        rail.remove(load);
        rail.measuring.bytes += u64::from(load.bytes);
        rail.measuring.chunks += 1;
        rail.note_delay(nanos(now, load.pulled), load);
    }

    /// Records that the rail acknowledged something.
    pub(super) fn heard(&mut self, now: Time, rail: usize) {
        let rail = &mut self.all[rail];
        rail.measure(now);
        rail.heard = now;
    }

    /// Returns whether a rail is not among those near some memory, one of which is usable.
    pub(super) fn is_far(&self, rail: usize, near: u64) -> bool {
        near != 0 && !is_among(near, rail) && self.near(near).any(|at| self.all[at].usable)
    }

    fn near(&self, near: u64) -> impl Iterator<Item = usize> {
        (0..self.all.len()).filter(move |rail| is_among(near, *rail))
    }

    /// Returns whether a rail should take a chunk, given all bytes that wait.
    pub(super) fn may_take(&self, now: Time, rail: usize, next: Next, waiting: u64) -> bool {
        // A guess from a first chunk counts less than being near.
        let begins = |at: usize| {
            let near = &self.all[at];
            let is_idle = near.usable && near.chunks == 0;
            is_idle && (!near.is_measured || self.is_worth_while(now, at, next, waiting))
        };
        match is_among(next.near, rail) {
            true if begins(rail) => return true,
            false if self.near(next.near).any(begins) => return false,
            _ => {}
        }
        self.is_worth_while(now, rail, next, waiting)
    }

    /// Returns the same, regardless of where its memory is.
    fn is_worth_while(&self, now: Time, rail: usize, next: Next, waiting: u64) -> bool {
        let Next { bytes, is_copied, .. } = next;
        let me = &self.all[rail];
        // The common case of many small messages.
        let is_little = |rate| (me.in_flight + bytes) as f64 <= rate * SLACK_NS;
        if me.rate.map_or(me.in_flight < TRY_BYTES, is_little) {
            return true;
        }
        let is_untried = |rail: &Rail| rail.usable && rail.rate.is_none() && rail.chunks == 0;
        if me.in_flight >= TRY_BYTES && self.all.iter().any(is_untried) {
            return false;
        }
        let fastest = self.all.iter().filter_map(|rail| rail.rate).fold(0.0, f64::max);
        // Only if the chunk reveals the rate: small ones would be sent there again and again, however slow it is.
        let is_worth_a_try = bytes as f64 >= MEASURE_MEAN_BYTES && me.rate.is_some();
        let rate_of = |rail: &Rail| {
            if is_worth_a_try && is_untried(rail) {
                return Some(fastest);
            }
            let rate = rail.rate_now(now, fastest)?;
            Some(if is_copied && rate * EVEN >= fastest { fastest } else { rate })
        };
        let Some(rate) = rate_of(me) else { return true };
        let (mut others_rate, mut others_bytes, mut earliest) = (0.0, waiting as f64, f64::MAX);
        for (index, other) in self.all.iter().enumerate() {
            if index == rail || !other.usable {
                continue;
            }
            // A busy rail of unknown rate may be fast, but that is no reason to wait for it.
            let Some(rate) = rate_of(other) else { continue };
            others_rate += rate;
            let queued = other.queued(now, rate);
            others_bytes += queued;
            earliest = earliest.min((queued + bytes as f64) / rate);
        }
        if others_rate == 0.0 {
            return true;
        }
        let mine = (me.queued(now, rate) + bytes as f64) / rate;
        if me.is_measured && me.chunks >= CHUNKS_MIN && mine > QUEUE_NS + 2.0 * me.delay_ns {
            return false;
        }
        let without_me = others_bytes / others_rate;
        mine <= without_me.max(earliest) + bytes as f64 / rate * SLACK + SLACK_NS
    }
}

impl Rail {
    fn remove(&mut self, load: Load) {
        self.chunks -= 1;
        self.in_flight -= u64::from(load.bytes);
    }

    /// Records that a chunk took this long. With much in flight before it, that shows nothing about the delay.
    ///
    /// Don't subtract the time of the bytes before it: the measured rate may only reflect the limit on bytes in flight.
    /// The delay would then seem to be zero, and the limit would shrink further.
    fn note_delay(&mut self, took_ns: f64, load: Load) {
        let Some(rate) = self.rate else { return };
        let delay = (took_ns - f64::from(load.bytes) / rate).max(0.0);
        if delay < self.delay_ns {
            self.delay_ns += (delay - self.delay_ns) / 16.0;
        } else if load.ahead <= 2 * u64::from(load.bytes) {
            self.delay_ns += (delay - self.delay_ns) / 4.0;
        }
    }

    fn measure(&mut self, now: Time) {
        let Measuring { since, bytes, chunks, begun, cold } = self.measuring;
        let is_over = self.chunks == 0;
        let nanos = nanos(now, since);
        let is_enough = chunks >= begun.max(MEASURE_CHUNKS) && nanos >= MEASURE_NS;
        if chunks == 0 || !(cold || is_enough || (is_over && nanos >= MEASURE_NS)) {
            return;
        }
        self.measuring = Measuring { since: now, begun: self.chunks, ..Measuring::default() };
        let got = bytes as f64 / nanos.max(1.0);
        let mean = bytes as f64 / f64::from(chunks);
        let is_small = mean < MEASURE_MEAN_BYTES;
        let is_faster = self.rate.is_some_and(|rate| got >= 2.0 * rate);
        if cold && !is_small {
            self.hope_ns = match nanos <= HOPE_NS || is_faster {
                true => 0.0,
                false => (2.0 * self.hope_ns).max(nanos).min(HOPE_MAX_NS),
            };
        }
        match self.rate {
            // Small chunks give only a lower bound of the rate, which is not enough to begin with.
            None if is_small => {}
            None => self.rate = Some(got),
            Some(_) if !self.is_measured && !cold && !is_small => {
                (self.rate, self.is_measured) = (Some(got), true);
            }
            Some(rate) if (cold || is_small) && got < rate => {
                // The time includes a round trip. Lower the rate only if the round trip can't explain it.
                let expected = bytes as f64 / rate + self.delay_ns;
                if cold && !is_small && nanos > 2.0 * expected + MEASURE_NS {
                    self.average(rate, bytes as f64 / (nanos - self.delay_ns), nanos);
                }
            }
            Some(rate) => self.average(rate, got, nanos),
        }
    }

    fn average(&mut self, rate: f64, got: f64, nanos: f64) {
        self.rate = Some(rate + (got - rate) * nanos / (nanos + AVERAGE_NS));
    }

    /// Returns the estimated bytes still in flight: parts of chunks may have arrived without an acknowledgement yet.
    fn queued(&self, now: Time, rate: f64) -> f64 {
        let in_flight = self.in_flight as f64;
        in_flight - (rate * nanos(now, self.heard)).min(in_flight / 2.0)
    }

    /// Returns the rate as far as it can be known now.
    fn rate_now(&self, now: Time, fastest: f64) -> Option<f64> {
        let rate = self.rate?;
        let silence = nanos(now, self.heard);
        if self.chunks == 0 {
            let hope = (silence / self.hope_ns.max(HOPE_NS)).exp2();
            return Some((rate * hope).min(fastest.max(rate)));
        }
        let expected = self.in_flight as f64 / rate + self.delay_ns;
        if silence > 2.0 * expected + LATE_NS {
            return Some(rate * (expected / silence));
        }
        Some(rate)
    }
}

fn is_among(rails: u64, rail: usize) -> bool {
    rail < u64::BITS as usize && rails >> rail & 1 == 1
}

fn nanos(now: Time, then: Time) -> f64 {
    let elapsed: Duration = now.since(then);
    elapsed.as_nanos() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time that 10 MB take at one byte per nanosecond.
    const EXPECTED_NS: u64 = 10_000_000;

    fn rate_after(silence_ns: u64) -> f64 {
        let in_flight = EXPECTED_NS;
        let rail = Rail { rate: Some(1.0), chunks: 2, in_flight, ..Rail::default() };
        rail.rate_now(Time(silence_ns), 1.0).unwrap()
    }

    #[test]
    fn a_silent_rail_counts_as_slow_after_twice_the_time_of_its_bytes() {
        let late = 2 * EXPECTED_NS + LATE_NS as u64;
        assert_eq!(rate_after(late), 1.0);
        assert_eq!(rate_after(2 * late), EXPECTED_NS as f64 / (2 * late) as f64);
    }

    #[test]
    fn an_idle_rail_counts_as_faster_the_longer_it_is_idle_up_to_the_fastest() {
        let rail = Rail { rate: Some(1.0), ..Rail::default() };
        let after = |times: f64| rail.rate_now(Time((times * HOPE_NS) as u64), 3.0).unwrap();
        assert_eq!((after(0.0), after(1.0), after(5.0)), (1.0, 2.0, 3.0));
    }
}
