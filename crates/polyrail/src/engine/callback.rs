//! The boundary to the user's own code: observers, mailboxes, and whoever is told of ends.
//!
//! A panic there is the user's, and must not take a thread of the engine with it. And what is done in
//! such a call may end transfers whose listener is to be told as well: that happens when the call has
//! returned, one after the other, so that no chain of them fills the stack.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::api::error::TransferError;
use crate::api::observer::Listener;
use crate::engine::op::{OpsPool, Outcome};

thread_local! {
    /// Calls of the user's code that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Ends to be told of once the present call has returned; `None` while there is no such call.
    static WAITING: RefCell<Option<VecDeque<End>>> = const { RefCell::new(None) };
}

/// Calls the user's code, and counts what goes wrong there.
#[derive(Debug, Default)]
pub(crate) struct Callbacks {
    panics: AtomicU64,
}

/// A transfer that is over, and who wants to know.
pub(crate) struct End {
    pub(crate) listener: Listener,
    pub(crate) result: Result<Outcome, TransferError>,
    pub(crate) pool: Arc<OpsPool>,
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

impl End {
    /// Tells the listener: now, or once the call of a listener that this thread is in has returned.
    pub(crate) fn tell(self) {
        let own = WAITING.with_borrow_mut(|waiting| match waiting {
            Some(waiting) => {
                waiting.push_back(self);
                None
            }
            None => {
                *waiting = Some(VecDeque::new());
                Some(self)
            }
        });
        let mut next = own;
        while let Some(Self { listener, result, pool }) = next {
            // The listener goes with the call, since its own end is the user's code, too.
            pool.callbacks.call("on_end", move || listener.target.ended(listener.token, &result));
            pool.told();
            next = WAITING.with_borrow_mut(|waiting| {
                let end = waiting.as_mut().and_then(VecDeque::pop_front);
                if end.is_none() {
                    *waiting = None;
                }
                end
            });
        }
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no text".to_owned())
}
