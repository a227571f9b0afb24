//! Waiting for a peer's end.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use polyrail_proto::reason::LostReason;

use crate::api::engine::Peer;
use crate::engine::observer::Watch;
use crate::engine::peer::Owner;
use crate::engine::tasks::TaskPlace;

/// The end of a peer, returned by [`Peer::gone`]: wait for it, or await it.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// use polyrail::LostReason;
///
/// let gone = peer.gone();
/// assert_eq!(gone.try_wait(), None, "it is there");
/// assert_eq!(gone.wait(Duration::from_millis(1)), None);
/// engine.remove_peer(&peer);
/// assert_eq!(gone.wait(soon), Some(LostReason::Removed));
/// assert_eq!(gone.join(), LostReason::Removed);
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// assert_eq!(runtime.block_on(gone), LostReason::Removed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// While it lives, the peer is watched ([`crate::Engine::watch`]): one that is silent is asked for a
/// sign of life, so that its end is noticed though no transfer is under way. All methods may be called
/// from any thread.
#[must_use = "wait for it, or await it"]
pub struct Gone {
    peer: Peer,
    /// `None` once the engine is dropped, and then the peer is gone.
    engine: Option<Arc<dyn Owner>>,
    _watch: Watch,
    place: TaskPlace,
}

impl Peer {
    /// Returns a handle that waits for the peer's end. Like [`Peer::lost`], which never waits, it gives the reason;
    /// transfers with the peer have ended by then or are about to. [`Gone`] has an example.
    ///
    /// A peer that comes back is a new peer: get it by [`crate::Engine::accept_peer`] or [`crate::Engine::peer`].
    pub fn gone(&self) -> Gone {
        let engine = self.shared.life.ending.owner();
        let watch = Watch::new(self.shared.clone());
        if let Some(engine) = engine.as_ref().filter(|engine| !engine.is_forked()) {
            engine.look_after();
        }
        Gone { peer: self.clone(), engine, _watch: watch, place: None }
    }
}

impl Gone {
    /// Returns why the peer is gone, `None` while it is there. Never blocks; with `progress = caller` it also moves
    /// data.
    pub fn try_wait(&self) -> Option<LostReason> {
        match &self.engine {
            Some(engine) if engine.is_forked() => {
                return Some(self.peer.lost().unwrap_or(LostReason::Forked));
            }
            Some(engine) if !self.is_over() => drop(engine.clone().help()),
            _ => {}
        }
        self.peer.lost()
    }

    /// Waits until the peer is gone, at most `timeout`, and returns why. `None`: the peer is still there.
    pub fn wait(&self, timeout: Duration) -> Option<LostReason> {
        // No limit if the sum overflows.
        self.wait_until(Instant::now().checked_add(timeout))
    }

    /// Waits until the peer is gone, without a limit, and returns why.
    pub fn join(&self) -> LostReason {
        loop {
            if let Some(why) = self.wait_until(None) {
                return why;
            }
        }
    }

    fn wait_until(&self, until: Option<Instant>) -> Option<LostReason> {
        if let Some(engine) = &self.engine {
            let sleep = |limit| self.peer.shared.life.ending.sleep(limit);
            engine.clone().wait_until(until, &|| self.is_over(), &sleep);
        }
        self.try_wait()
    }

    fn is_over(&self) -> bool {
        self.peer.shared.is_gone()
    }
}

/// Resolves when the peer is gone. With `progress = caller` each poll moves data, and asks to be polled again at once.
impl Future for Gone {
    type Output = LostReason;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(why) = self.try_wait() {
            return Poll::Ready(why);
        }
        let this = &mut *self;
        let ended = this.peer.shared.life.ending.poll(&mut this.place, context.waker());
        if ended.is_pending()
            && let Some(engine) = &this.engine
        {
            engine.poll_again(context.waker());
        }
        ended.map(|()| this.peer.shared.lost_reason())
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        // In a copy of the process a lock may be held and never released.
        if !self.engine.as_ref().is_some_and(|engine| engine.is_forked()) {
            self.peer.shared.life.ending.forget_task(self.place);
        }
    }
}

impl fmt::Debug for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gone({:?}, {:?})", self.peer, self.peer.lost())
    }
}
