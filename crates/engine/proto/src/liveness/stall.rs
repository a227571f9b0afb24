//! Decides when to give up a flow that waits for its peer: the rail may be dead, the peer slow, or a local device busy.

use std::time::Duration;

use crate::id::Time;

/// Stall timeout of the flows to one peer, if longer than the setting.
///
/// Doubles each time a flow is given up, as long as no acknowledgement arrives. Then the peer itself is slow, and no
/// other rail will do better.
#[derive(Clone, Copy, Debug, Default)]
pub struct Patience {
    least: Duration,
}

impl Patience {
    /// Returns how long a flow may stall, given the setting `stall`.
    pub fn of(&self, stall: Duration) -> Duration {
        stall.max(self.least)
    }

    /// Records that the peer acknowledged a chunk.
    pub fn handle_acknowledged(&mut self) {
        self.least = Duration::ZERO;
    }

    /// Records that a flow was given up. A peer that is silent for `peer_timeout` is given up itself.
    pub fn handle_stalled(&mut self, stall: Duration, peer_timeout: Duration) {
        self.least = (self.of(stall) * 2).min(peer_timeout / 2);
    }
}

/// Silence of one flow with chunks in flight.
///
/// The other kernel takes as much as its buffers hold even for a process that is stopped. So its acknowledged bytes are
/// noted some time into a silence, and only bytes that it takes after that count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stall {
    /// Start of the silence.
    since: Time,
    /// Bytes that the other kernel had taken by the time of the first check.
    taken: u64,
}

/// The driver's facts about a flow that may be stalled.
#[derive(Clone, Copy, Debug)]
pub struct Silence {
    /// When the flow last made progress.
    pub since: Time,
    /// Maximum time without progress; see [`Patience::of`].
    pub patience: Duration,
    /// Time for which a local device has been copying the next chunk, if the peer has answered all others.
    pub device: Option<Duration>,
    /// Time for which a plugin that carries payload of the flow has moved nothing, if there is one.
    pub carrier: Option<Duration>,
    /// Maximum time of a device's copy, and of a peer's silence.
    pub peer_timeout: Duration,
}

/// Result of checking a silent flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallVerdict {
    /// No result yet; see [`Stall::next_look`].
    Waits,
    /// Bytes move, or the silence is not the peer's: it starts over.
    Moves,
    /// A local device has not copied a chunk for too long: the flow is given up.
    DeviceStuck,
    /// The flow is given up.
    Stalled,
}

impl Stall {
    /// Returns how long into a silence to check the flow next.
    pub fn next_look(&self, since: Time, patience: Duration) -> Duration {
        if self.since == since { patience } else { patience / 2 }
    }

    /// Judges a flow that has been silent for [`Self::next_look`]. `taken` returns how many bytes the other kernel has
    /// taken in all.
    pub fn judge(&mut self, silence: &Silence, taken: impl FnOnce() -> u64) -> StallVerdict {
        let Silence { since, patience, device, carrier, peer_timeout } = *silence;
        if let Some(waited) = device {
            // The peer waits for this end, which waits for a device.
            let is_late = waited >= peer_timeout;
            return if is_late { StallVerdict::DeviceStuck } else { StallVerdict::Moves };
        }
        // The connection's own count does not include bytes that a plugin moves.
        if carrier.is_some_and(|silence| silence < patience / 2) {
            return StallVerdict::Moves;
        }
        let taken = taken();
        if self.since != since {
            *self = Self { since, taken };
            return StallVerdict::Waits;
        }
        if taken > self.taken { StallVerdict::Moves } else { StallVerdict::Stalled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn silence(since_ms: u64) -> Silence {
        Silence {
            since: Time(since_ms * 1_000_000),
            patience: MS * 400,
            device: None,
            carrier: None,
            peer_timeout: MS * 10_000,
        }
    }

    #[test]
    fn a_flow_stalls_if_the_other_kernel_takes_nothing_in_the_second_half_of_its_patience() {
        let (mut stall, silent) = (Stall::default(), silence(1000));
        assert_eq!(stall.next_look(silent.since, silent.patience), MS * 200);
        assert_eq!(stall.judge(&silent, || 5000), StallVerdict::Waits);
        assert_eq!(stall.next_look(silent.since, silent.patience), MS * 400);
        assert_eq!(stall.judge(&silent, || 5001), StallVerdict::Moves);
        assert_eq!(stall.judge(&silent, || 5000), StallVerdict::Stalled);
        let later = silence(2000);
        assert_eq!(stall.next_look(later.since, later.patience), MS * 200, "another silence");
        assert_eq!(stall.judge(&later, || 5000), StallVerdict::Waits);
    }

    #[test]
    fn a_device_or_a_plugin_that_is_busy_is_no_fault_of_the_rail() {
        let table = [
            (Some(MS * 9999), None, StallVerdict::Moves),
            (Some(MS * 10_000), None, StallVerdict::DeviceStuck),
            (None, Some(MS * 199), StallVerdict::Moves),
            (None, Some(MS * 200), StallVerdict::Stalled),
        ];
        for (device, carrier, verdict) in table {
            let (mut stall, silent) = (Stall::default(), silence(1000));
            assert_eq!(stall.judge(&silent, || 0), StallVerdict::Waits);
            let busy = Silence { device, carrier, ..silent };
            assert_eq!(stall.judge(&busy, || 0), verdict, "{device:?} {carrier:?}");
        }
    }

    #[test]
    fn patience_doubles_until_the_peer_acknowledges_something() {
        let (stall, peer_timeout) = (MS * 400, MS * 3000);
        let mut patience = Patience::default();
        let seen = [(); 4].map(|()| {
            let now = patience.of(stall);
            patience.handle_stalled(stall, peer_timeout);
            now.as_millis()
        });
        assert_eq!(seen, [400, 800, 1500, 1500]);
        patience.handle_acknowledged();
        assert_eq!(patience.of(stall), stall);
    }
}
