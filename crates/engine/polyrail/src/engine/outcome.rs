//! The outcome of a transfer, and the listeners that are called with it.
//!
//! A listener may end other transfers. The engine calls their listeners after it has returned, one
//! after the other, so that no chain of calls fills the stack.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use polyrail_proto::error::TransferError;

use crate::base::callback::{Callbacks, Users};

thread_local! {
    /// Ends to be told of once the present call has returned; `None` while there is no such call.
    static WAITING: RefCell<Option<VecDeque<TransferEnd>>> = const { RefCell::new(None) };
}

/// A completed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// Payload bytes that are in place. For a receive: the length of the message.
    pub bytes: u64,
    /// From post to completion.
    pub duration: Duration,
}

/// Is told of the end of transfers; given to [`crate::Request::tell`], which has a closure for it in
/// [`crate::Request::on_end`].
///
/// Called once for each post, on the thread where it ends, which may be the one that posts. The
/// rules of an [`Observer`](crate::Observer) hold here, too. If such a call ends other transfers, their
/// listeners are called when it has returned.
pub trait OnEnd: Send + Sync {
    /// The transfer of this token is over.
    fn ended(&self, token: u64, result: &Result<Outcome, TransferError>);
}

/// A closure that is told.
pub(crate) struct Closure<F>(pub(crate) F);

impl<F: Fn(&Result<Outcome, TransferError>) + Send + Sync> OnEnd for Closure<F> {
    fn ended(&self, _token: u64, result: &Result<Outcome, TransferError>) {
        (self.0)(result);
    }
}

/// Whom to tell, and of what.
#[derive(Clone)]
pub(crate) struct EndListener {
    pub(crate) target: Users<Arc<dyn OnEnd>>,
    pub(crate) token: u64,
}

/// Calls listeners, and counts those that it has yet to call.
pub(crate) struct Listeners {
    callbacks: Arc<Callbacks>,
    /// Transfers that are over and whose listener has not been told.
    untold: AtomicU32,
}

/// A transfer that is over, and who wants to know.
struct TransferEnd {
    listener: EndListener,
    result: Result<Outcome, TransferError>,
    listeners: Arc<Listeners>,
}

impl Listeners {
    pub(crate) fn new(callbacks: Arc<Callbacks>) -> Self {
        Self { callbacks, untold: AtomicU32::new(0) }
    }

    /// A transfer is over whose listener is to be told.
    pub(crate) fn note(&self) {
        self.untold.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether every listener that was noted has been told.
    pub(crate) fn are_told(&self) -> bool {
        self.untold.load(Ordering::Acquire) == 0
    }

    /// Tells a listener that was noted: now, or once the call of a listener that this thread is in has returned.
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
