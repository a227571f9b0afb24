//! Counting allocator for test programs that bound allocations.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

static ALL: AtomicU64 = AtomicU64::new(0);
static IS_SHOWN: AtomicBool = AtomicBool::new(false);

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static IS_SHOWING: Cell<bool> = const { Cell::new(false) };
}

/// Allocations, by where they were made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allocations {
    /// By the calling thread.
    pub(crate) here: u64,
    /// By all others.
    pub(crate) elsewhere: u64,
}

/// Returns the allocations of the program while `run` runs.
pub(crate) fn during(run: impl FnOnce()) -> Allocations {
    let count = || (ALL.load(Ordering::SeqCst), HERE.get());
    let before = count();
    run();
    let after = count();
    let (all, here) = (after.0 - before.0, after.1 - before.1);
    Allocations { here, elsewhere: all - here }
}

/// Returns the bytes that the calling thread has allocated and not freed.
pub(crate) fn live_bytes() -> isize {
    LIVE.get()
}

/// Prints the source of each allocation while `run` runs.
pub(crate) fn shown(run: impl FnOnce()) {
    IS_SHOWN.store(true, Ordering::SeqCst);
    run();
    IS_SHOWN.store(false, Ordering::SeqCst);
}

fn note(bytes: usize) {
    if IS_SHOWING.get() {
        return;
    }
    ALL.fetch_add(1, Ordering::SeqCst);
    HERE.set(HERE.get() + 1);
    if IS_SHOWN.load(Ordering::SeqCst) {
        IS_SHOWING.set(true);
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread");
        eprintln!("{name} allocates {bytes} bytes:\n{}", Backtrace::force_capture());
        IS_SHOWING.set(false);
    }
}

/// Adds to the bytes of the calling thread.
fn note_live(bytes: isize) {
    LIVE.set(LIVE.get() + bytes);
}

// SAFETY: every call goes on to `System`, which keeps the rules.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        note_live(layout.size() as isize);
        // SAFETY: the caller keeps the rules of this call, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        note_live(layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        note_live(-(layout.size() as isize));
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(size);
        note_live(size as isize - layout.size() as isize);
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }
}
