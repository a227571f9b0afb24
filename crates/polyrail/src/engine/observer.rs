//! Being told at once, instead of asking.
//!
//! A listener may end other transfers. The engine calls their listeners after it has returned, one
//! after the other, so that no chain of calls fills the stack.

use std::cell::RefCell;
use std::collections::VecDeque;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use polyrail_proto::error::TransferError;
use polyrail_proto::reason::LostReason;

use crate::base::callback::Users;
use crate::engine::op::{OpsPool, Outcome};
use crate::engine::peer::PeerShared;
use crate::engine::peer_handle::Peer;

thread_local! {
    /// Ends to be told of once the present call has returned; `None` while there is no such call.
    static WAITING: RefCell<Option<VecDeque<TransferEnd>>> = const { RefCell::new(None) };
}

/// What an engine tells its user as it happens, for programs that can't wait for an answer to a
/// question; given to [`crate::EngineBuilder::observer`]. Each method may be left out: what it
/// would be told is then found where it is found without an observer.
///
/// Called on the thread where it happens, mostly a proxy, several of them at a time. Posting is
/// fine here; waiting is not, since nothing else moves on that proxy meanwhile. A panic is caught,
/// logged and counted ([`crate::Stats::callback_panics`]).
pub trait Observer: Send + Sync {
    /// A notification arrived. Its transfer ends at the peer after this has returned. What this returns goes to
    /// [`crate::Engine::take_notifications`] and its like, by default all of it; `None`: nothing does, as this has taken it.
    fn notified(&self, peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
        let _ = peer;
        Some(data)
    }

    /// The peer is gone, for the reason given; transfers with it have ended or are about to.
    fn lost(&self, peer: &Peer, why: &LostReason) {
        let _ = (peer, why);
    }
}

/// Is told of the end of transfers; given to [`crate::Request::tell`], which has a closure for it in
/// [`crate::Request::on_end`].
///
/// Called once for each post, on the thread where it ends, which may be the one that posts. What
/// holds for an [`Observer`] holds here, too. What ends by what is done in such a call is told when
/// it has returned.
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

/// A transfer that is over, and who wants to know.
pub(crate) struct TransferEnd {
    pub(crate) listener: EndListener,
    pub(crate) result: Result<Outcome, TransferError>,
    pub(crate) pool: Arc<OpsPool>,
}

/// While it lives, a peer that is silent is asked for a sign of life, so that its death is noticed
/// though no transfer with it is under way. See [`crate::Engine::watch`].
#[must_use = "the peer is watched until this is dropped"]
pub struct Watch {
    peer: Arc<PeerShared>,
}

impl Watch {
    pub(crate) fn new(peer: Arc<PeerShared>) -> Self {
        peer.watches.fetch_add(1, Ordering::Relaxed);
        Self { peer }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.peer.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TransferEnd {
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
