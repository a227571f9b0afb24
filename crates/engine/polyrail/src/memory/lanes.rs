//! Plugin connections that know the memory of a region: they forget it before its owner frees it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_carrier::{Bytes, Holder, Lane, Piece, Stuck};
use polyrail_gpu::Ticket;

use crate::base::driving::is_driving;
use crate::base::pause::wait_patiently;
use crate::memory::region_memory::RegionMemory;

/// Longest wait of a callback for bytes that plugins have. Bytes that the other end has sent arrive in a moment, and no
/// proxy should be blocked for longer.
const CALLBACK_PATIENCE: Duration = Duration::from_millis(50);

/// The lanes that a region's bytes were posted on.
pub(crate) struct Lanes {
    /// The region's identity, as the lanes know it.
    holder: Holder,
    known: Mutex<Vec<Known>>,
}

#[derive(Clone)]
struct Known {
    lane: Lane,
    /// Ticket of the last message with bytes of the region.
    last: Ticket,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { holder: Holder::unique(), known: Mutex::default() }
    }
}

impl Lanes {
    /// Returns a part of the region's memory, to be posted; `None` if plugins can't access it.
    pub(crate) fn piece(&self, memory: &RegionMemory, offset: u64, len: u64) -> Option<Piece> {
        Some(Piece { holder: self.holder, bytes: bytes_of(memory)?, offset, len })
    }

    /// Notes that bytes of the region were posted on the lane. The caller has held a pin of the region since before the
    /// post.
    pub(crate) fn note(&self, lane: &Lane, ticket: &Ticket) {
        let (lane, last) = (lane.clone(), ticket.clone());
        let mut all = self.known.lock();
        match all.iter_mut().find(|known| known.lane.is(&lane)) {
            Some(known) => known.last = last,
            None => {
                // A lane that is broken and not closed may still touch its memory.
                all.retain(|known| !known.lane.is_closed());
                all.push(Known { lane, last });
            }
        }
    }

    /// Ends the region: waits until no plugin touches or knows its memory any more. Several threads may do so at the
    /// same time.
    pub(crate) fn end(&self) {
        let all = self.known.lock().clone();
        let is_through = |known: &Known| !matches!(known.last.is_done(), Ok(false));
        let busy = || all.iter().filter(|known| !is_through(known)).map(|known| known.lane.clone());
        wait_for_lanes(busy, || all.iter().all(is_through));
        for Known { lane, .. } in &all {
            // A thread that moves data may wait for the plugin itself: other threads notice the hang.
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

/// Waits until the operation is over for which these lanes have bytes to move. Proxies drive the lanes, and give up
/// silent ones. A callback may block just that proxy, and the peer's: so a callback does both itself.
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
        // If the plugin does not return, this fails the operations that wait for it.
        polyrail_carrier::stuck();
        is_over()
    });
}

fn is_given_up(lane: &Lane) -> bool {
    polyrail_carrier::stuck();
    lane.is_given_up()
}

/// Patience of a thread that waits for other threads to stop using memory: it is over if those hang inside a plugin. To
/// be polled during the wait.
#[derive(Default)]
pub(crate) struct Patience(Option<Instant>);

impl Patience {
    /// Threads that are not inside the plugin take microseconds.
    const OF_OTHERS: Duration = Duration::from_secs(1);

    pub(crate) fn is_over(&mut self) -> bool {
        if !polyrail_carrier::stuck().iter().any(Stuck::holds_payload) {
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() > Self::OF_OTHERS
    }
}

/// Returns the memory as plugins access it. `None` if they can't: memory of other devices, and memory of a file, whose bytes
/// only the kernel may touch.
pub(crate) fn bytes_of(memory: &RegionMemory) -> Option<Bytes> {
    match memory {
        RegionMemory::Host(memory) if memory.address(0, memory.len()).is_err() => None,
        RegionMemory::Host(memory) => Some(Bytes::Host(memory.clone())),
        RegionMemory::Device(memory) if memory.device().is_cuda() => {
            Some(Bytes::Cuda(memory.clone()))
        }
        RegionMemory::Device(_) | RegionMemory::Foreign(_) => None,
    }
}
