//! Reconnection times of a flow.

use std::time::Duration;

use super::backoff::Backoff;

/// Maximum duration of an attempt to connect, as a multiple of the pause before the next one.
const ATTEMPT_PAUSES: u32 = 10;

/// Bounds of attempts to connect.
#[derive(Clone, Copy, Debug)]
pub struct ReconnectSettings {
    /// Pause after the first failure; it doubles with each further one.
    pub min: Duration,
    /// Longest pause. A connection that lasted this long and moved its data is healthy.
    pub max: Duration,
    /// Longest attempt.
    pub timeout: Duration,
}

/// Summary of a connection that has ended.
#[derive(Clone, Copy, Debug)]
pub struct FlowLife {
    /// Duration of the connection.
    pub lasted: Duration,
    /// Chunks were sent on it.
    pub sent: bool,
    /// At least one of the chunks was acknowledged or refused.
    pub answered: bool,
}

/// Decides when to reconnect one flow.
///
/// A healthy connection that ends is tried again at once: its reset often means nothing more. One that ends early might
/// be accepted and closed by the other side forever, or its path might drop all large packets. The pause before the
/// next attempt doubles while connections of the flow end early.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reconnect {
    failures: Backoff,
    early_deaths: Backoff,
}

impl Reconnect {
    /// Returns how long an attempt that begins now may take.
    pub fn attempt_timeout(&self, settings: &ReconnectSettings) -> Duration {
        let pause = self.failures.peek(settings.min, settings.max);
        settings.timeout.min(pause.saturating_mul(ATTEMPT_PAUSES))
    }

    /// Records that an attempt failed. Returns the pause before the next one.
    pub fn handle_failed(&mut self, settings: &ReconnectSettings) -> Duration {
        self.failures.take(settings.min, settings.max)
    }

    /// Records that the other side answered and refused the flow: the next attempt waits the longest. Returns the pause
    /// before it.
    pub fn handle_refused(&mut self, settings: &ReconnectSettings) -> Duration {
        self.failures.exhaust();
        self.handle_failed(settings)
    }

    /// Records that the connection has ended. Returns the pause before the next attempt; zero for at once.
    pub fn handle_lost(&mut self, settings: &ReconnectSettings, life: &FlowLife) -> Duration {
        self.failures.reset();
        if life.lasted >= settings.max && (life.answered || !life.sent) {
            self.early_deaths.reset();
            return Duration::ZERO;
        }
        self.early_deaths.take(settings.min, settings.max)
    }

    /// Returns whether the last connection ended early.
    pub fn dies_young(&self) -> bool {
        !self.early_deaths.is_fresh()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SETTINGS: ReconnectSettings = ReconnectSettings {
        min: MS.saturating_mul(100),
        max: MS.saturating_mul(1000),
        timeout: MS.saturating_mul(3000),
    };

    fn life(ms: u32, sent: bool, answered: bool) -> FlowLife {
        FlowLife { lasted: MS * ms, sent, answered }
    }

    #[test]
    fn pauses_after_failures_double_and_attempts_last_longer() {
        let mut flow = Reconnect::default();
        let mut seen = Vec::new();
        for _ in 0..5 {
            let timeout = flow.attempt_timeout(&SETTINGS).as_millis();
            seen.push((timeout, flow.handle_failed(&SETTINGS).as_millis()));
        }
        assert_eq!(seen, [(1000, 100), (2000, 200), (3000, 400), (3000, 800), (3000, 1000)]);
        assert_eq!(flow.handle_lost(&SETTINGS, &life(5000, true, true)), Duration::ZERO);
        assert_eq!(flow.handle_failed(&SETTINGS), MS * 100, "it was up in between");
        assert_eq!(flow.handle_refused(&SETTINGS), MS * 1000);
        assert_eq!(flow.handle_failed(&SETTINGS), MS * 1000);
    }

    /// A path that drops large packets: each connection comes up, and its data is never acknowledged.
    #[test]
    fn a_flow_that_comes_up_and_dies_young_again_and_again_is_tried_less_and_less() {
        for young in [life(800, true, false), life(3000, true, false), life(10, false, false)] {
            let mut flow = Reconnect::default();
            let pauses = [(); 6].map(|()| {
                assert_eq!(flow.attempt_timeout(&SETTINGS), MS * 1000);
                flow.handle_lost(&SETTINGS, &young).as_millis()
            });
            assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000], "{young:?}");
            assert!(flow.dies_young());
        }
    }

    #[test]
    fn a_healthy_connection_is_tried_again_at_once() {
        for healthy in [life(1000, true, true), life(60_000, false, false)] {
            let mut flow = Reconnect::default();
            assert_eq!(flow.handle_lost(&SETTINGS, &life(10, true, true)), MS * 100);
            assert_eq!(flow.handle_lost(&SETTINGS, &healthy), Duration::ZERO, "{healthy:?}");
            assert!(!flow.dies_young());
            assert_eq!(flow.handle_lost(&SETTINGS, &life(10, true, true)), MS * 100, "anew");
        }
    }
}
