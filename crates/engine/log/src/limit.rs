//! Selection of records by level and subsystem, and a rate limit for each place in the code.

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

/// Maximum number of records per place in the code in each [`WINDOW`].
const MOST_RECORDS: u32 = 100;

/// Passes the selected records to `inner`, and reports how many of each kind were dropped.
///
/// `tracing` combines the filters of several layers, so this layer filters when the record arrives.
pub struct Bounded<L> {
    inner: L,
    level: LevelFilter,
    subsystems: Subsystems,
    limiter: Mutex<Limiter>,
}

impl<L> Bounded<L> {
    /// Creates a layer that passes records of these subsystems with at least this severity.
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

/// True if a record's target, such as `polyrail::rail`, belongs to an allowed subsystem. Records of libraries, and
/// records of this project without a subsystem, pass: only named subsystems can be excluded.
fn is_allowed(subsystems: Subsystems, target: &str) -> bool {
    let Some(name) = subsystem(target) else { return true };
    !polyrail_config::SUBSYSTEMS.contains(&name) || subsystems.allows(name)
}

/// Number of records written by each place in the code. The number of places in the program bounds the table.
struct Limiter {
    per_minute: u32,
    places: HashMap<Identifier, Place>,
    /// Earliest end of a window in which a place has dropped records.
    next_due: Option<Instant>,
}

struct Place {
    metadata: &'static Metadata<'static>,
    begun: Instant,
    written: u32,
    left_out: u64,
}

/// Records that a place dropped in a window.
struct LeftOut {
    metadata: &'static Metadata<'static>,
    count: u64,
}

impl Limiter {
    fn new(per_minute: u32) -> Self {
        Self { per_minute, places: HashMap::new(), next_due: None }
    }

    /// True if this record is written.
    fn admit(&mut self, metadata: &'static Metadata<'static>, now: Instant) -> bool {
        let first = Place { metadata, begun: now, written: 0, left_out: 0 };
        let place = self.places.entry(metadata.callsite()).or_insert(first);
        // A window with dropped records ends in `due`, which reports them.
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

    /// Dropped records to report now.
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

/// Callsite of the reports about dropped records, as `tracing` requires one.
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
    // Reports bypass all filters, so interest does not matter.
    fn set_interest(&self, _: Interest) {}

    fn metadata(&self) -> &Metadata<'_> {
        &TOLD
    }
}

impl LeftOut {
    /// Passes the report as a record to `write`.
    fn tell(&self, write: impl FnOnce(&Event<'_>)) {
        let file = self.metadata.file().unwrap_or("unknown");
        let at = format!("{file}:{}", self.metadata.line().unwrap_or(0));
        let mut fields = TOLD.fields().iter();
        // The number of fields in `TOLD`, above.
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
        // After the storm, the next record of any place triggers the last report.
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
