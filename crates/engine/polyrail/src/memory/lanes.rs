//! Connections of plugins that know the memory of a region: they forget it before its owner frees it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_carrier::{Bytes, Holder, Lane, Piece, Stuck};
use polyrail_gpu::Ticket;

use crate::base::driving::is_driving;
use crate::base::pause::wait_patiently;
use crate::memory::region_memory::RegionMemory;

/// How long a callback waits for what plugins have. What the other end has is through here in a moment, and for
/// longer no proxy should stand still.
const CALLBACK_PATIENCE: Duration = Duration::from_millis(50);

/// The lanes that a region's bytes were posted on.
pub(crate) struct Lanes {
    /// The region, as they know it.
    holder: Holder,
    known: Mutex<Vec<Known>>,
}

#[derive(Clone)]
struct Known {
    lane: Lane,
    /// Of the last message with bytes of the region.
    last: Ticket,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { holder: Holder::unique(), known: Mutex::default() }
    }
}

impl Lanes {
    /// A part of the region's memory, to be posted; none if no plugin can see it.
    pub(crate) fn piece(&self, memory: &RegionMemory, offset: u64, len: u64) -> Option<Piece> {
        Some(Piece { holder: self.holder, bytes: bytes_of(memory)?, offset, len })
    }

    /// Bytes of the region were posted there. Whoever says so has held a pin of the region since before that.
    pub(crate) fn note(&self, lane: &Lane, ticket: &Ticket) {
        let (lane, last) = (lane.clone(), ticket.clone());
        let mut all = self.known.lock();
        match all.iter_mut().find(|known| known.lane.is(&lane)) {
            Some(known) => known.last = last,
            None => {
                // One that is broken and not closed may still touch what it has.
                all.retain(|known| !known.lane.is_closed());
                all.push(Known { lane, last });
            }
        }
    }

    /// The region has ended. Waits until no plugin touches its memory or knows it any more, as others may do at the
    /// same time.
    pub(crate) fn end(&self) {
        let all = self.known.lock().clone();
        let is_through = |known: &Known| !matches!(known.last.is_done(), Ok(false));
        let busy = || all.iter().filter(|known| !is_through(known)).map(|known| known.lane.clone());
        wait_for_lanes(busy, || all.iter().all(is_through));
        for Known { lane, .. } in &all {
            // Whoever moves data may wait for the plugin, which others see.
            let forget = if is_driving() { Lane::forget } else { Lane::forget_elsewhere };
            if !forget(lane, self.holder) {
                wait_patiently(|| lane.is_closed() || is_given_up(lane));
            }
        }
        if all.iter().any(|known| known.lane.is_given_up()) {
            tracing::error!(target: "polyrail::carrier",
                "a plugin does not return from a call, and may touch the memory of a region that has ended");
        }
        self.known.lock().clear();
    }
}

/// Waits until that is over for which these lanes have bytes to move. Proxies move them on, and give up those that
/// are silent. A callback may stand in the way of just that proxy, and of the peer's: so it does both itself.
pub(crate) fn wait_for_lanes<L: Iterator<Item = Lane>>(
    busy: impl Fn() -> L,
    mut is_over: impl FnMut() -> bool,
) {
    if is_driving() {
        let until = Instant::now() + CALLBACK_PATIENCE;
        wait_patiently(|| {
            busy().for_each(|lane| lane.poll());
            is_over() || Instant::now() >= until
        });
        if !is_over() {
            busy().for_each(|lane| lane.close());
        }
    }
    wait_patiently(|| {
        // What it is that waits fails if the plugin does not return.
        polyrail_carrier::stuck();
        is_over()
    });
}

fn is_given_up(lane: &Lane) -> bool {
    polyrail_carrier::stuck();
    lane.is_given_up()
}

/// Whether who waits for others that use memory gives up: they are within a plugin that does not return. To be asked
/// while one waits.
#[derive(Default)]
pub(crate) struct Patience(Option<Instant>);

impl Patience {
    /// Those that are not within the plugin take microseconds.
    const OF_OTHERS: Duration = Duration::from_secs(1);

    pub(crate) fn is_over(&mut self) -> bool {
        if !polyrail_carrier::stuck().iter().any(Stuck::holds_payload) {
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() > Self::OF_OTHERS
    }
}

/// As plugins get to see it; none if none can.
pub(crate) fn bytes_of(memory: &RegionMemory) -> Option<Bytes> {
    match memory {
        RegionMemory::Host(memory) => Some(Bytes::Host(memory.clone())),
        RegionMemory::Device(memory) if memory.device().is_cuda() => {
            Some(Bytes::Cuda(memory.clone()))
        }
        RegionMemory::Device(_) | RegionMemory::Foreign(_) => None,
    }
}
