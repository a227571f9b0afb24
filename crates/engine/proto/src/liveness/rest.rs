//! Periods in which a flow takes no chunks that need memory.

use std::time::Duration;

use super::backoff::Backoff;
use crate::id::Time;

const SHORTEST: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_millis(640);

/// Period in which a flow takes nothing because only other flows can send it: this one has no pinned memory, or the
/// peer has none for it. Longer each time, until the peer has taken something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rest {
    until: Time,
    pauses: Backoff,
    gives_up: bool,
}

impl Rest {
    /// Begins a rest. `gives_up`: the peer has no memory for the flow, so others may have this flow's memory. Returns
    /// the end of the rest.
    pub fn begin(&mut self, now: Time, gives_up: bool) -> Time {
        self.until = now.after(self.pauses.take(SHORTEST, LONGEST));
        self.gives_up = gives_up;
        self.until
    }

    /// Ends the rest: the peer has taken something.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// Returns the end of the rest, while it lasts.
    pub fn until(&self, now: Time) -> Option<Time> {
        (now < self.until).then_some(self.until)
    }

    /// Returns whether the flow rests.
    pub fn is_on(&self, now: Time) -> bool {
        now < self.until
    }

    /// Returns whether the flow rests, and other flows may have its memory.
    pub fn gives_up(&self, now: Time) -> bool {
        self.gives_up && self.is_on(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_are_longer_each_time_until_the_peer_takes_something() {
        let (mut rest, mut now) = (Rest::default(), Time(5));
        assert!(!rest.is_on(now));
        let lengths = [(); 7].map(|()| {
            let until = rest.begin(now, false);
            assert_eq!((rest.until(now), rest.until(until)), (Some(until), None));
            let length = until.since(now);
            now = until;
            length.as_millis()
        });
        assert_eq!(lengths, [20, 40, 80, 160, 320, 640, 640]);
        rest.end();
        assert_eq!(rest.begin(now, true), now.after(SHORTEST));
        assert!(rest.gives_up(now) && !rest.gives_up(now.after(SHORTEST)));
    }
}
