//! Which records are written: those of the wanted level and subsystems, and of each place in the code
//! only so many per minute.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_config::Subsystems;
use tracing::callsite::{Callsite, Identifier};
use tracing::field::{FieldSet, Value};
use tracing::level_filters::LevelFilter;
use tracing::metadata::Kind;
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use crate::json::subsystem;

const WINDOW: Duration = Duration::from_secs(60);

/// The most records that one place in the code may write per [`WINDOW`].
const MOST_RECORDS: u32 = 100;

/// Passes to `inner` the records that are wanted, and tells it how many of each kind it left out.
///
/// `tracing` asks several layers together whether a record is wanted, so this one decides when the
/// record has come.
pub struct Bounded<L> {
    inner: L,
    level: LevelFilter,
    subsystems: Subsystems,
    limiter: Mutex<Limiter>,
}

impl<L> Bounded<L> {
    /// Passes records of these subsystems that are at least as severe as `level`.
    pub fn new(inner: L, level: LevelFilter, subsystems: Subsystems) -> Self {
        Self { inner, level, subsystems, limiter: Mutex::new(Limiter::new(MOST_RECORDS)) }
    }

    fn wants(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= self.level && is_allowed(self.subsystems, metadata.target())
    }
}

impl<S: Subscriber, L: Layer<S>> Layer<S> for Bounded<L> {
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if !self.wants(event.metadata()) {
            return;
        }
        let (due, is_written) = {
            let mut limiter = self.limiter.lock();
            let now = Instant::now();
            (limiter.due(now), limiter.admit(event.metadata(), now))
        };
        for one in &due {
            one.tell(|event| self.inner.on_event(event, context.clone()));
        }
        if is_written {
            self.inner.on_event(event, context);
        }
    }
}

/// Whether a record's target, such as `polyrail::rail`, belongs to an allowed subsystem. Records of
/// libraries, and ours without a subsystem, pass: only what is named can be left out.
fn is_allowed(subsystems: Subsystems, target: &str) -> bool {
    let Some(name) = subsystem(target) else { return true };
    !polyrail_config::SUBSYSTEMS.contains(&name) || subsystems.allows(name)
}

/// How many records each place in the code has written. There are only as many places as the program
/// has, so the table is bounded.
struct Limiter {
    per_minute: u32,
    places: HashMap<Identifier, Place>,
    /// When the first of the places that left something out begins a new minute.
    next_due: Option<Instant>,
}

struct Place {
    metadata: &'static Metadata<'static>,
    begun: Instant,
    written: u32,
    left_out: u64,
}

/// What a place left out in a minute.
struct LeftOut {
    metadata: &'static Metadata<'static>,
    count: u64,
}

impl Limiter {
    fn new(per_minute: u32) -> Self {
        Self { per_minute, places: HashMap::new(), next_due: None }
    }

    /// Whether this record is written.
    fn admit(&mut self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        let first = Place { metadata, begun: now, written: 0, left_out: 0 };
        let place = self.places.entry(metadata.callsite()).or_insert(first);
        // A minute that left something out ends in `due`, which tells of it.
        if place.left_out == 0 && now.duration_since(place.begun) >= WINDOW {
            (place.begun, place.written) = (now, 0);
        }
        if place.written < self.per_minute {
            place.written += 1;
            return true;
        }
        place.left_out += 1;
        let ends = place.begun + WINDOW;
        self.next_due = Some(self.next_due.map_or(ends, |due| due.min(ends)));
        false
    }

    /// What is to be told now.
    fn due(&mut self, now: Instant) -> Vec<LeftOut> {
        if self.next_due.is_none_or(|due| now < due) {
            return Vec::new();
        }
        let mut told = Vec::new();
        self.next_due = None;
        for place in self.places.values_mut().filter(|place| place.left_out > 0) {
            let ends = place.begun + WINDOW;
            if now < ends {
                self.next_due = Some(self.next_due.map_or(ends, |due| due.min(ends)));
                continue;
            }
            told.push(LeftOut { metadata: place.metadata, count: place.left_out });
            (place.begun, place.written, place.left_out) = (now, 0, 0);
        }
        told
    }
}

/// What tells of records that were left out, as a place in the code that `tracing` knows.
struct Telling;

static TELLING: Telling = Telling;

static TOLD: Metadata<'static> = Metadata::new(
    "left out",
    "polyrail::log",
    Level::WARN,
    None,
    None,
    None,
    FieldSet::new(&["message", "left_out", "of", "at"], Identifier(&TELLING)),
    Kind::EVENT,
);

impl Callsite for Telling {
    // It is written past every filter, so nobody's interest matters.
    fn set_interest(&self, _: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        &TOLD
    }
}

impl LeftOut {
    /// Hands a record of it to `write`.
    fn tell(&self, write: impl FnOnce(&Event<'_>)) {
        let file = self.metadata.file().unwrap_or("unknown");
        let at = format!("{file}:{}", self.metadata.line().unwrap_or(0));
        let mut fields = TOLD.fields().iter();
        // As many as `TOLD` names, above.
        let keys: [_; 4] = std::array::from_fn(|_| fields.next().expect("four fields"));
        let message =
            "of more than 100 records of one kind in a minute, the later ones were left out";
        let of = self.metadata.target();
        write(&Event::new(
            &TOLD,
            &TOLD.fields().value_set(&[
                (&keys[0], Some(&message as &dyn Value)),
                (&keys[1], Some(&self.count as &dyn Value)),
                (&keys[2], Some(&of as &dyn Value)),
                (&keys[3], Some(&at as &dyn Value)),
            ]),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn place() -> &'static Metadata<'static> {
        &TOLD
    }

    #[test]
    fn a_record_belongs_to_the_subsystem_its_target_names() {
        let some = Subsystems::parse("peer,rail").unwrap();
        assert!(is_allowed(some, "polyrail::peer"));
        assert!(is_allowed(some, "polyrail::rail::listener"));
        assert!(!is_allowed(some, "polyrail::flow"));
        assert!(is_allowed(some, "polyrail"), "records without a subsystem pass");
        assert!(is_allowed(some, "another_crate::flow"));
    }

    #[test]
    fn each_minute_has_its_share_and_what_was_left_out_is_told_once() {
        let begin = Instant::now();
        let mut limiter = Limiter::new(3);
        let (mut written, mut told) = (Vec::new(), Vec::new());
        for second in 0..150 {
            let now = begin + SECOND * second;
            told.extend(limiter.due(now).into_iter().map(|one| (second, one.count)));
            if limiter.admit(place(), now) {
                written.push(second);
            }
        }
        assert_eq!(written, [0, 1, 2, 60, 61, 62, 120, 121, 122]);
        assert_eq!(told, [(60, 57), (120, 57)]);
        // The storm is over; the next record of whatever place tells the rest.
        let later: Vec<u64> =
            limiter.due(begin + SECOND * 1000).iter().map(|one| one.count).collect();
        assert_eq!(later, [27]);
        assert!(limiter.due(begin + SECOND * 2000).is_empty());
    }

    #[test]
    fn a_place_within_its_limit_is_told_of_nothing() {
        let begin = Instant::now();
        let mut limiter = Limiter::new(3);
        for second in (0..600).step_by(21) {
            let now = begin + SECOND * second;
            assert!(limiter.due(now).is_empty());
            assert!(limiter.admit(place(), now), "{second}");
        }
    }
}
