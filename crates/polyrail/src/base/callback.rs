//! The boundary to the user's own code: observers, mailboxes, and whoever is told of ends. A panic
//! there is the user's, and must not take a thread of the engine with it.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Calls of the user's code that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Calls the user's code, and counts what goes wrong there.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    panics: AtomicU64,
}

/// Says for as long as it lives that this thread is in the user's code.
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

    /// What the user's code returns; `None` if it panics.
    pub(crate) fn call<T>(&self, what: &str, callback: impl FnOnce() -> T) -> Option<T> {
        let _inside = Inside::begin();
        // What the user's code has left in disorder is the user's; of the engine it has nothing.
        match catch_unwind(AssertUnwindSafe(callback)) {
            Ok(returned) => Some(returned),
            Err(panic) => {
                self.panics.fetch_add(1, Ordering::Relaxed);
                let why = text_of(&*panic);
                tracing::error!(target: "polyrail::engine", what, why, "a callback panicked");
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
