//! The boundary to the user's own code: observers, mailboxes, and callbacks that receive completions. A panic there
//! must not take a thread of the engine with it.
//!
//! The thread that drops the last owner of a user's object runs its `Drop`, which is the user's code, too: a closure
//! may hold a transfer or the engine itself. That drop waits until the thread holds no lock that this code may take
//! ([`Users`], [`HoldsUserLock`]).

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Calls of the user's code that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Locks that this thread holds.
    static HELD: Cell<u32> = const { Cell::new(0) };
    /// Whether `ENDED` holds anything.
    static ANY_ENDED: Cell<bool> = const { Cell::new(false) };
    /// Objects to drop once this thread holds no lock.
    static ENDED: RefCell<Vec<Box<dyn Anything>>> = const { RefCell::new(Vec::new()) };
}

trait Anything {}

impl<T> Anything for T {}

/// A value that belongs to the user.
#[derive(Clone)]
pub(crate) struct Users<T: 'static>(Option<T>);

impl<T> Users<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(Some(value))
    }
}

impl<T> Deref for Users<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect("it is taken only when it is dropped")
    }
}

impl<T> Drop for Users<T> {
    fn drop(&mut self) {
        let Some(value) = self.0.take() else { return };
        if HELD.get() > 0 {
            ENDED.with_borrow_mut(|ended| ended.push(Box::new(value)));
            ANY_ENDED.set(true);
        } else {
            end(value);
        }
    }
}

/// Drops a user's value, and catches its panic.
fn end<T>(value: T) {
    let _inside = Inside::begin();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        tracing::error!(target: "polyrail::engine", "what the user gave panicked at its end");
        forget(panic);
    }
}

/// Drops a panic's payload. If that panics as well, the second payload is leaked.
fn forget(panic: Box<dyn Any + Send>) {
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        std::mem::forget(another);
    }
}

/// Marks, for as long as it lives, that this thread holds a lock which the user's code may take. The end of the
/// outermost one drops the user's objects ([`Users`]) that have no owner left.
pub(crate) struct HoldsUserLock(PhantomData<*const ()>);

impl HoldsUserLock {
    pub(crate) fn begin() -> Self {
        HELD.set(HELD.get() + 1);
        Self(PhantomData)
    }
}

impl Drop for HoldsUserLock {
    fn drop(&mut self) {
        HELD.set(HELD.get() - 1);
        // Dropping one object may drop others: HELD is 0, so those end at once.
        if HELD.get() == 0 && ANY_ENDED.replace(false) {
            ENDED.take().into_iter().for_each(end);
        }
    }
}

/// Calls the user's code, and counts its panics.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    panics: AtomicU64,
}

/// Marks, for as long as it lives, that this thread is in the user's code.
struct Inside;

/// Whether this thread is in a call of the user's code.
pub(crate) fn is_inside() -> bool {
    DEPTH.get() > 0
}

impl Inside {
    fn begin() -> Self {
        DEPTH.set(DEPTH.get() + 1);
        Self
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

impl Callbacks {
    pub(crate) fn panics(&self) -> u64 {
        self.panics.load(Ordering::Relaxed)
    }

    /// Returns the result of the user's code, or `None` if it panics.
    pub(crate) fn call<T>(&self, what: &str, callback: impl FnOnce() -> T) -> Option<T> {
        let _inside = Inside::begin();
        // A panic can leave only the user's own state inconsistent: the closure holds none of the engine's.
        match catch_unwind(AssertUnwindSafe(callback)) {
            Ok(returned) => Some(returned),
            Err(panic) => {
                self.panics.fetch_add(1, Ordering::Relaxed);
                let why = text_of(&*panic);
                tracing::error!(target: "polyrail::engine", what, why, "a callback panicked");
                forget(panic);
                None
            }
        }
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no text".to_owned())
}
