//! Times in which a thread that watches deadlines had no CPU: no peer is to blame for what it did not see then.

use std::collections::VecDeque;
use std::time::Duration;

use crate::id::Time;

/// Lateness of a thread that does not count: about as much as is normal where CPUs are busy.
const SLACK: Duration = Duration::from_millis(50);
/// Maximum remembered absences: at least about 50 seconds of them.
const REMEMBERED: usize = 1024;

/// Absences of a thread, from its reports about its sleep.
#[derive(Debug)]
pub struct Absences {
    woke: Time,
    due: Option<Time>,
    /// Start and end of each absence, in order.
    spans: VecDeque<(Time, Time)>,
}

impl Absences {
    /// Returns the record of a thread that is awake now.
    pub fn new(now: Time) -> Self {
        Self { woke: now, due: None, spans: VecDeque::new() }
    }

    /// Records that the thread goes to sleep, for `limit` at most.
    pub fn sleeps(&mut self, now: Time, limit: Option<Duration>) {
        self.due = limit.map(|limit| now.after(limit));
        // The thread's work while awake takes negligible time.
        self.note(self.woke, now);
    }

    /// Records that the thread is awake again. Returns how long it was away since it last woke up, beyond its sleep.
    pub fn wakes(&mut self, now: Time) -> Duration {
        let woke = std::mem::replace(&mut self.woke, now);
        if let Some(due) = self.due.take() {
            self.note(due, now);
        }
        self.within(woke, now)
    }

    /// Returns how much of a time it was away.
    pub fn within(&self, since: Time, now: Time) -> Duration {
        let late = self.spans.iter().rev().take_while(|(_, end)| *end > since);
        late.map(|(begin, end)| (*end).min(now).since((*begin).max(since))).sum()
    }

    /// Returns how long something has lasted for this thread.
    pub fn lasted(&self, since: Time, now: Time) -> Duration {
        now.since(since).saturating_sub(self.within(since, now))
    }

    /// Returns how long something has been silent for this thread, where it was silent for `silence` by the clock.
    pub fn silence(&self, silence: Duration, now: Time) -> Duration {
        // `None` if it is longer than the clock's time.
        let silent_ns = u64::try_from(silence.as_nanos()).unwrap_or(u64::MAX);
        let since = now.0.checked_sub(silent_ns).map(Time);
        since.map_or(silence, |since| self.lasted(since, now))
    }

    fn note(&mut self, begin: Time, end: Time) {
        if end.since(begin) > SLACK {
            if self.spans.len() == REMEMBERED {
                self.spans.pop_front();
            }
            self.spans.push_back((begin, end));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_time_of_which_a_part_was_missed_is_shorter_by_that_part() {
        let start = Time(1 << 50);
        let at = |after: u64| start.after(ms(after));
        let mut absences = Absences::new(at(0));
        absences.sleeps(at(1), Some(ms(49)));
        assert_eq!(absences.wakes(at(60)), ms(0), "a little late");
        absences.sleeps(at(61), Some(ms(39)));
        assert_eq!(absences.wakes(at(4100)), ms(4000));
        assert_eq!(absences.lasted(at(0), at(4100)), ms(100));
        assert_eq!(absences.lasted(at(2100), at(4200)), ms(100));
        assert_eq!(absences.lasted(at(4100), at(9000)), ms(4900));
        assert_eq!(absences.lasted(at(0), at(1100)), ms(100), "an end within");
        assert_eq!(absences.silence(ms(4100), at(4100)), ms(100));
        assert_eq!(absences.silence(Duration::MAX, at(4100)), Duration::MAX);
    }

    #[test]
    fn a_thread_that_loses_its_cpu_while_it_is_awake_was_away_too() {
        let start = Time(1 << 50);
        let mut absences = Absences::new(start);
        absences.sleeps(start.after(ms(1000)), Some(ms(50)));
        assert_eq!(absences.wakes(start.after(ms(3050))), ms(3000));
        assert_eq!(absences.lasted(start, start.after(ms(3050))), ms(50));
    }

    #[test]
    fn a_sleep_without_an_end_is_none_too_long() {
        let start = Time(1 << 50);
        let mut absences = Absences::new(start);
        absences.sleeps(start, None);
        assert_eq!(absences.wakes(start.after(ms(60_000))), ms(0));
        assert_eq!(absences.lasted(start, start.after(ms(60_000))), ms(60_000));
    }

    #[test]
    fn not_more_is_remembered_than_is_meant() {
        let mut now = Time(1 << 50);
        let mut absences = Absences::new(now);
        for _ in 0..3 * REMEMBERED {
            absences.sleeps(now, Some(ms(1)));
            now = now.after(ms(100));
            absences.wakes(now);
        }
        assert_eq!(absences.spans.len(), REMEMBERED);
        assert_eq!(absences.lasted(Time(now.0 - 5_000_000_000), now), ms(50));
    }
}
