//! Thread that owns a backend, and the table it keeps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::backend::{Backend, News};
use crate::error::RendezvousError;
use crate::member::{Event, Found, Member};
use crate::stop::Stop;

/// Shortest and longest pause after a failed poll. Each pause is twice as long as the one before.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Maximum time for leaving. A place that does not answer notices the end later.
const GOODBYE: Duration = Duration::from_secs(3);

/// A running backend.
pub(crate) struct Session {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Process that has the thread. A forked copy has no thread, and locks that the thread held stay locked there.
    process: u32,
}

struct Shared {
    stop: Stop,
    table: Mutex<Table>,
    changed: Condvar,
}

/// Members, and those already reported.
#[derive(Default)]
struct Table {
    /// Name of this engine, which is not a member to itself.
    own: Option<String>,
    members: BTreeMap<String, Found>,
    told: BTreeMap<String, Found>,
    /// Names whose state was not reported yet. This bounds the pending events by the number of names.
    changed: BTreeSet<String>,
    /// Time until which no member leaves, because the place was unreachable and may have forgotten living members.
    doubt: Option<Instant>,
    /// Members missing at the place that may return until then.
    absent: BTreeSet<String>,
    /// True after the first look.
    is_known: bool,
    is_over: bool,
}

impl Session {
    /// Starts the thread. The backend has already entered.
    pub(crate) fn start(
        backend: Box<dyn Backend>,
        own: Option<String>,
    ) -> Result<Self, RendezvousError> {
        let shared = Arc::new(Shared {
            stop: Stop::default(),
            table: Mutex::new(Table { own, ..Table::default() }),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("pr-rendezvous".to_owned())
            .spawn(move || theirs.run(backend))
            .map_err(RendezvousError::Thread)?;
        Ok(Self { shared, thread: Some(thread), process: std::process::id() })
    }

    /// Leaves the group. All waits end. A place that does not answer delays this only briefly.
    pub(crate) fn end(&self) {
        if self.is_copy() {
            return;
        }
        self.shared.stop.set();
        let until = Instant::now() + GOODBYE;
        let mut table = self.shared.table.lock();
        while !table.is_over && !self.shared.changed.wait_until(&mut table, until).timed_out() {}
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.is_copy() || self.shared.stop.is_set()
    }

    fn is_copy(&self) -> bool {
        std::process::id() != self.process
    }

    /// Returns the next change, and waits for it at most `timeout`.
    pub(crate) fn next_event(&self, timeout: Duration) -> Option<Event> {
        let mut event = None;
        self.wait(timeout, |table| {
            event = table.next_event();
            event.is_some()
        });
        event
    }

    /// Waits for the first look and for `count` members.
    pub(crate) fn wait_for(&self, count: usize, timeout: Duration) -> Option<Vec<Member>> {
        let mut members = None;
        self.wait(timeout, |table| {
            members = (table.is_known && table.members.len() >= count).then(|| table.list());
            members.is_some()
        });
        members
    }

    pub(crate) fn members(&self) -> Vec<Member> {
        let mut members = Vec::new();
        self.wait(Duration::ZERO, |table| {
            members = table.list();
            true
        });
        members
    }

    fn wait(&self, timeout: Duration, mut is_there: impl FnMut(&mut Table) -> bool) {
        if self.is_copy() {
            return;
        }
        let until = Instant::now().checked_add(timeout);
        let mut table = self.shared.table.lock();
        while !is_there(&mut table) && !table.is_over {
            let Some(until) = until else {
                self.shared.changed.wait(&mut table);
                continue;
            };
            if self.shared.changed.wait_until(&mut table, until).timed_out() {
                is_there(&mut table);
                return;
            }
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.is_copy() {
            return;
        }
        self.end();
        // Otherwise the thread is blocked in the system. It ends when that returns.
        if self.shared.table.lock().is_over
            && let Some(thread) = thread
        {
            let _ = thread.join();
        }
    }
}

/// Ends all waits, however the thread ends.
struct Over<'a>(&'a Shared);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.table.lock().is_over = true;
        self.0.changed.notify_all();
    }
}

impl Shared {
    fn run(&self, mut backend: Box<dyn Backend>) {
        let over = Over(self);
        let mut pause = PAUSES.0;
        // Current error of the place.
        let mut trouble: Option<String> = None;
        let mut was_wrong = None;
        while !self.stop.is_set() {
            match backend.poll(&self.stop) {
                Ok(news) => {
                    if trouble.is_some() {
                        tracing::warn!(target: "polyrail::rendezvous", "the rendezvous works again");
                    }
                    let was_away = trouble.take().is_some() || matches!(news, News::WasSilent);
                    let grace = was_away.then(|| backend.grace());
                    // A place that works only for a moment keeps its long pauses.
                    if was_wrong.is_none_or(|at: Instant| at.elapsed() > 2 * PAUSES.1) {
                        pause = PAUSES.0;
                    }
                    self.apply(news, grace);
                }
                Err(_) if self.stop.is_set() => {}
                Err(error) => {
                    let what = error.to_string();
                    if trouble.as_ref() != Some(&what) {
                        tracing::warn!(target: "polyrail::rendezvous", "{what}; it is tried again");
                    }
                    trouble = Some(what);
                    was_wrong = Some(Instant::now());
                    self.stop.sleep(pause);
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        }
        self.stop.leave();
        backend.leave(&self.stop);
        drop(over);
    }

    /// Applies news. `grace` is set after the place was unreachable and may have forgotten living members.
    fn apply(&self, news: News, grace: Option<Duration>) {
        let mut table = self.table.lock();
        if table.apply(news, grace, Instant::now()) {
            self.changed.notify_all();
        }
    }
}

impl Table {
    /// Applies news and returns whether anything has changed.
    fn apply(&mut self, news: News, grace: Option<Duration>, now: Instant) -> bool {
        let mut has_changed = false;
        if let Some(grace) = grace {
            self.doubt = Some(now + grace);
        }
        if self.doubt.is_some_and(|until| until <= now) {
            self.doubt = None;
            for name in std::mem::take(&mut self.absent) {
                has_changed |= self.put(name, None);
            }
        }
        match news {
            News::All(all) => {
                has_changed |= !std::mem::replace(&mut self.is_known, true);
                let gone: Vec<String> =
                    self.members.keys().filter(|name| !all.contains_key(*name)).cloned().collect();
                for name in gone {
                    has_changed |= self.put(name, None);
                }
                for (name, found) in all {
                    has_changed |= self.put(name, Some(found));
                }
            }
            News::Changes(changes) => {
                for (name, found) in changes {
                    has_changed |= self.put(name, found);
                }
            }
            News::WasSilent => {}
        }
        has_changed
    }

    fn put(&mut self, name: String, found: Option<Found>) -> bool {
        if found.is_none() && self.doubt.is_some() {
            if self.members.contains_key(&name) {
                self.absent.insert(name);
            }
            return false;
        }
        self.absent.remove(&name);
        if self.own.as_ref() == Some(&name) {
            return false;
        }
        if self.members.get(&name) == found.as_ref() {
            return false;
        }
        match found {
            Some(found) => drop(self.members.insert(name.clone(), found)),
            None => drop(self.members.remove(&name)),
        }
        // A member that came and left before it was reported is not reported.
        match self.told.get(&name) == self.members.get(&name) {
            true => drop(self.changed.remove(&name)),
            false => drop(self.changed.insert(name)),
        }
        true
    }

    fn next_event(&mut self) -> Option<Event> {
        let name = self.changed.first()?.clone();
        // A replaced member is reported as left first.
        if self.told.remove(&name).is_some() {
            if !self.members.contains_key(&name) {
                self.changed.remove(&name);
            }
            return Some(Event::Left { name });
        }
        self.changed.remove(&name);
        let found = self.members.get(&name)?.clone();
        self.told.insert(name.clone(), found.clone());
        Some(Event::Joined(Member { name, found }))
    }

    fn list(&self) -> Vec<Member> {
        let member =
            |(name, found): (&String, &Found)| Member { name: name.clone(), found: found.clone() };
        self.members.iter().map(member).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Found {
        Found::Metadata(text.as_bytes().into())
    }

    fn all(names: &[(&str, &str)]) -> News {
        News::All(names.iter().map(|(name, text)| ((*name).to_owned(), found(text))).collect())
    }

    fn events(table: &mut Table) -> Vec<String> {
        std::iter::from_fn(|| table.next_event())
            .map(|event| match event {
                Event::Joined(member) => format!("+{}", member.name),
                Event::Left { name } => format!("-{name}"),
            })
            .collect()
    }

    #[test]
    fn each_change_is_told_once_and_one_who_is_replaced_has_left_first() {
        let (mut table, now) = (Table::default(), Instant::now());
        assert!(table.apply(all(&[("a", "1"), ("b", "1")]), None, now));
        assert_eq!(events(&mut table), ["+a", "+b"]);
        assert!(!table.apply(all(&[("a", "1"), ("b", "1")]), None, now));
        assert!(events(&mut table).is_empty());
        assert!(table.apply(all(&[("b", "2"), ("c", "1")]), None, now));
        assert_eq!(events(&mut table), ["-a", "-b", "+b", "+c"]);
        // A member that comes and goes between two events is not reported.
        let changes = vec![("d".to_owned(), Some(found("1"))), ("d".to_owned(), None)];
        table.apply(News::Changes(changes), None, now);
        assert!(events(&mut table).is_empty());
        assert_eq!(table.list().len(), 2);
    }

    #[test]
    fn whom_a_place_has_forgotten_leaves_only_after_the_grace() {
        let (mut table, now) = (Table::default(), Instant::now());
        let grace = Duration::from_secs(10);
        table.apply(all(&[("a", "1"), ("b", "1")]), None, now);
        events(&mut table);
        table.apply(all(&[]), Some(grace), now);
        assert!(events(&mut table).is_empty(), "the place was out of reach");
        table.apply(all(&[]), None, now + grace / 2);
        assert!(events(&mut table).is_empty());
        let back = News::Changes(vec![("a".to_owned(), Some(found("1")))]);
        table.apply(back, None, now + grace / 2);
        table.apply(News::none(), None, now + grace);
        assert_eq!(events(&mut table), ["-b"], "a came back");
    }

    #[test]
    fn after_a_silence_whoever_is_taken_for_dead_and_comes_back_has_not_left() {
        let (mut table, now) = (Table::default(), Instant::now());
        let grace = Duration::from_secs(10);
        table.apply(all(&[("a", "1"), ("b", "1")]), None, now);
        events(&mut table);
        table.apply(News::WasSilent, Some(grace), now);
        let dead = ["a", "b"].map(|name| (name.to_owned(), None));
        table.apply(News::Changes(dead.into()), None, now + grace / 4);
        assert!(events(&mut table).is_empty());
        // A second silence restarts the grace time.
        table.apply(News::WasSilent, Some(grace), now + grace / 2);
        let back = News::Changes(vec![("a".to_owned(), Some(found("1")))]);
        table.apply(back, None, now + grace);
        assert!(events(&mut table).is_empty());
        table.apply(News::none(), None, now + grace * 2);
        assert_eq!(events(&mut table), ["-b"]);
        table.apply(News::Changes(vec![("a".to_owned(), None)]), None, now + grace * 2);
        assert_eq!(events(&mut table), ["-a"], "nothing is in doubt any more");
    }
}
