//! Plugin calls in progress, by thread. A call can't be made to return, so code that waits behind one checks here
//! whether waiting still makes sense.

use std::cell::{Cell, OnceCell};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use polyrail_nccl_abi::{Call, Observer};
use polyrail_sys::threads::monotonic_ns;

/// NCCL's names of the functions. Those called most often come first.
const FUNCTIONS: &[&str] = &[
    "test",
    "irecv",
    "isend",
    "irecvConsumed",
    "iflush",
    "regMr",
    "deregMr",
    "regMrDmaBuf",
    "connect",
    "accept",
    "listen",
    "closeSend",
    "closeRecv",
    "closeListen",
    "getProperties",
    "devices",
    "init",
    "finalize",
    "getDeviceMr",
    LOAD,
];

/// Number of functions, at the front, that are called for a lane.
const OF_LANES: u8 = 8;

/// Name for the time in which a library is loaded.
pub(crate) const LOAD: &str = "dlopen";

/// Maximum time counted between two looks. In longer gaps this process, or the looking thread, had no CPU.
const LOOK_GAP: Duration = Duration::from_millis(100);

/// A plugin call that has not returned within its limit.
#[derive(Clone, Debug)]
pub struct Stuck {
    /// Thread inside the call.
    pub thread: std::thread::Thread,
    /// NCCL's name of the function.
    pub function: &'static str,
    /// Duration as observed by looks.
    pub lasted: Duration,
    /// Lane that the call is for. The lane is stuck, and so is the thread that drove it.
    pub(crate) lane: Option<u64>,
}

impl Stuck {
    /// True if payload is stuck behind this call. The memory that the plugin has for it stays in use forever.
    pub fn holds_payload(&self) -> bool {
        self.lane.is_some()
    }
}

/// State of a thread.
struct Thread {
    handle: std::thread::Thread,
    /// Index into [`FUNCTIONS`] plus 1. 0 outside of calls.
    function: AtomicU8,
    /// Number of calls begun.
    begun: AtomicU64,
    /// Lane that this thread drove last. 0 for none.
    lane: AtomicU64,
    is_given_up: AtomicBool,
    look: Mutex<Look>,
}

/// Result of the last look at a thread.
#[derive(Default)]
struct Look {
    begun: u64,
    at_ns: u64,
    lasted: Duration,
}

thread_local! {
    static HERE: OnceCell<Arc<Thread>> = const { OnceCell::new() };
    /// Function that this thread is in. Needs no drop, so that it still exists when a plugin ends the process.
    static FUNCTION: Cell<Option<&'static str>> = const { Cell::new(None) };
}

static THREADS: Mutex<Vec<Weak<Thread>>> = Mutex::new(Vec::new());

/// Number of calls given up at the moment.
static GIVEN_UP: AtomicUsize = AtomicUsize::new(0);

/// Limit of a call in nanoseconds: the longest that any host allows.
static LIMIT: AtomicU64 = AtomicU64::new(0);

/// Raises the limit of calls to `limit`, if that is longer.
pub(crate) fn allow(limit: Duration) {
    LIMIT.fetch_max(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

/// Observer that records each plugin call.
pub(crate) fn observer() -> Observer {
    Arc::new(|call| match call {
        Call::Begins(function) => begins(function),
        Call::Ends(..) => ends(),
    })
}

/// Runs a closure, and records it as a call that observers don't see.
pub(crate) fn within<T>(function: &'static str, run: impl FnOnce() -> T) -> T {
    begins(function);
    let done = run();
    ends();
    done
}

fn begins(function: &'static str) {
    FUNCTION.set(Some(function));
    here(|thread| thread.begins(function));
}

fn ends() {
    FUNCTION.set(None);
    here(Thread::ends);
}

/// Records that this thread drives the lane.
pub(crate) fn moves(lane: u64) {
    here(|thread| thread.lane.store(lane, Ordering::Relaxed));
}

/// Function that this thread is in.
pub(crate) fn function_here() -> Option<&'static str> {
    FUNCTION.get()
}

/// Functions that all threads are in.
pub(crate) fn under_way() -> Vec<&'static str> {
    let threads = THREADS.lock();
    threads.iter().filter_map(|thread| thread.upgrade()?.function()).collect()
}

/// Checks all threads and returns the calls that are given up, because they have exceeded the longest limit of a host.
/// Waiting code must call this repeatedly: only time observed by looks counts.
pub fn stuck() -> Vec<Stuck> {
    let limit = match LIMIT.load(Ordering::Relaxed) {
        0 => return Vec::new(),
        limit => Duration::from_nanos(limit),
    };
    let now = monotonic_ns();
    let mut threads = THREADS.lock();
    threads.retain(|thread| thread.strong_count() > 0);
    threads.iter().filter_map(|thread| thread.upgrade()?.look(now, limit)).collect()
}

/// True if any thread is inside a call that moves payload.
pub fn is_inside() -> bool {
    let is_inside = |thread: Arc<Thread>| thread.lane().is_some();
    THREADS.lock().iter().filter_map(Weak::upgrade).any(is_inside)
}

/// True if calls that match are given up, as of the last look.
pub(crate) fn are_given_up(such: impl Fn(&Stuck) -> bool) -> bool {
    // Fast path while no call is stuck.
    if GIVEN_UP.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let given_up = |thread: &Weak<Thread>| {
        let thread = thread.upgrade()?;
        let is_given_up = thread.is_given_up.load(Ordering::Relaxed);
        let lasted = thread.look.lock().lasted;
        thread.function().filter(|_| is_given_up).map(|function| thread.stuck(function, lasted))
    };
    THREADS.lock().iter().filter_map(given_up).any(|call| such(&call))
}

fn here(run: impl FnOnce(&Thread)) {
    // A thread that ends may close something in its destructors.
    let _ = HERE.try_with(|here| run(here.get_or_init(Thread::new)));
}

impl Thread {
    fn new() -> Arc<Self> {
        let thread = Arc::new(Self {
            handle: std::thread::current(),
            function: AtomicU8::new(0),
            begun: AtomicU64::new(0),
            lane: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            look: Mutex::default(),
        });
        THREADS.lock().push(Arc::downgrade(&thread));
        thread
    }

    fn begins(&self, function: &'static str) {
        let place = FUNCTIONS.iter().position(|known| *known == function);
        let place = place.map_or(FUNCTIONS.len(), |place| place) + 1;
        self.begun.store(self.begun.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        self.function.store(place as u8, Ordering::Relaxed);
    }

    fn ends(&self) {
        self.function.store(0, Ordering::Relaxed);
        if self.is_given_up.load(Ordering::Relaxed)
            && self.is_given_up.swap(false, Ordering::AcqRel)
        {
            GIVEN_UP.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn function(&self) -> Option<&'static str> {
        let place = usize::from(self.function.load(Ordering::Relaxed)).checked_sub(1)?;
        Some(FUNCTIONS.get(place).copied().unwrap_or("a function"))
    }

    fn look(&self, now: u64, limit: Duration) -> Option<Stuck> {
        let function = self.function()?;
        let mut look = self.look.lock();
        let gap = Duration::from_nanos(now.saturating_sub(look.at_ns)).min(LOOK_GAP);
        look.at_ns = now;
        let begun = self.begun.load(Ordering::Relaxed);
        look.lasted = if look.begun == begun { look.lasted + gap } else { Duration::ZERO };
        look.begun = begun;
        if look.lasted < limit {
            return None;
        }
        if !self.is_given_up.swap(true, Ordering::AcqRel) {
            GIVEN_UP.fetch_add(1, Ordering::Relaxed);
        }
        Some(self.stuck(function, look.lasted))
    }

    fn stuck(&self, function: &'static str, lasted: Duration) -> Stuck {
        Stuck { thread: self.handle.clone(), function, lasted, lane: self.lane() }
    }

    /// Lane that the call is for. A thread that closes or connects may have driven a lane before.
    fn lane(&self) -> Option<u64> {
        let is_of_lane = (1..=OF_LANES).contains(&self.function.load(Ordering::Relaxed));
        Some(self.lane.load(Ordering::Relaxed)).filter(|lane| is_of_lane && *lane > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_moves_a_lane_on_holds_its_payload() {
        let thread = Thread::new();
        thread.lane.store(7, Ordering::Relaxed);
        for (function, lane) in [
            ("test", Some(7)),
            ("deregMr", Some(7)),
            ("regMrDmaBuf", Some(7)),
            ("connect", None),
            ("closeSend", None),
        ] {
            thread.begins(function);
            assert_eq!(thread.stuck(function, Duration::ZERO).lane, lane, "{function}");
            thread.ends();
            assert_eq!(thread.lane(), None);
        }
    }
}
