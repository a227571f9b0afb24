//! The outcome of a transfer, and the listeners that are called with it.
//!
//! A listener may end other transfers. The engine calls their listeners after it returns, one after the other, so that
//! no chain of calls fills the stack.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use polyrail_proto::error::TransferError;

use crate::base::callback::{Callbacks, Users};

thread_local! {
    /// Ends to report once the present call returns; `None` while there is no such call.
    static WAITING: RefCell<Option<VecDeque<TransferEnd>>> = const { RefCell::new(None) };
}

/// A completed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Payload bytes that have landed. For a receive: the length of the message.
    pub bytes: u64,
    /// Time from post to completion.
    pub duration: Duration,
}

/// Callback for ends of transfers; given to [`crate::Request::tell`]. [`crate::Request::on_end`] takes a closure
/// instead.
///
/// Called once for each post, on the thread where the transfer ends, which may be the thread that posts. The rules of
/// an [`Observer`](crate::Observer) apply here, too. If such a call ends other transfers, their listeners are called
/// after it returns.
pub trait OnEnd: Send + Sync {
    /// The transfer with this token is over.
    fn ended(&self, token: u64, result: &Result<Outcome, TransferError>);
}

/// A closure as a listener.
pub(crate) struct Closure<F>(pub(crate) F);

impl<F: Fn(&Result<Outcome, TransferError>) + Send + Sync> OnEnd for Closure<F> {
    fn ended(&self, _token: u64, result: &Result<Outcome, TransferError>) {
        (self.0)(result);
    }
}

/// A listener, and the token to pass to it.
#[derive(Clone)]
pub(crate) struct EndListener {
    pub(crate) target: Users<Arc<dyn OnEnd>>,
    pub(crate) token: u64,
}

/// Calls listeners, and counts those that it has yet to call.
pub(crate) struct Listeners {
    callbacks: Arc<Callbacks>,
    /// Number of finished transfers whose listener has not been called.
    untold: AtomicU32,
}

/// A finished transfer and its listener.
struct TransferEnd {
    listener: EndListener,
    result: Result<Outcome, TransferError>,
    listeners: Arc<Listeners>,
}

impl Listeners {
    pub(crate) fn new(callbacks: Arc<Callbacks>) -> Self {
        Self { callbacks, untold: AtomicU32::new(0) }
    }

    /// Counts a finished transfer whose listener must be called.
    pub(crate) fn note(&self) {
        self.untold.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether every counted listener has been called.
    pub(crate) fn are_told(&self) -> bool {
        self.untold.load(Ordering::Acquire) == 0
    }

    /// Calls a counted listener: now, or after the listener call that this thread is in returns.
    pub(crate) fn tell(
        self: &Arc<Self>,
        listener: EndListener,
        result: Result<Outcome, TransferError>,
    ) {
        let end = TransferEnd { listener, result, listeners: self.clone() };
        let own = WAITING.with_borrow_mut(|waiting| match waiting {
            Some(waiting) => {
                waiting.push_back(end);
                None
            }
            None => {
                *waiting = Some(VecDeque::new());
                Some(end)
            }
        });
        let mut next = own;
        while let Some(TransferEnd { listener, result, listeners }) = next {
            let tell = move || listener.target.ended(listener.token, &result);
            listeners.callbacks.call("on_end", tell);
            listeners.untold.fetch_sub(1, Ordering::Release);
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
