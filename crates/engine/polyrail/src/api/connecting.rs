//! Connection to a peer by its address.

use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use polyrail_proto::error::PeerError;
use polyrail_proto::hello::Metadata;
use polyrail_proto::reason::{ConnectReason, Unmet};

use crate::api::engine::{Engine, Peer};
use crate::engine::tasks::{PendingAnswer, TaskPlace};

/// A peer that is being connected to, by [`Engine::connect`]: wait for it, or await it.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
/// let address = other.addresses()[0];
/// let connecting = engine.connect(address);
/// while connecting.wait(Duration::from_millis(100)).is_none() {
///     println!("not yet");
/// }
/// assert_eq!(connecting.try_wait().expect("it has answered")?, peer);
/// assert_eq!(connecting.join()?, peer);
/// assert_eq!(runtime.block_on(engine.connect(address))?, peer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The attempt fails if the peer has not answered after `connect_timeout_ms`, counting only time in which this process
/// runs. Dropping it gives up waiting.
#[must_use = "wait for it, or await it"]
pub struct Connecting {
    engine: Engine,
    /// The first of the addresses that are tried.
    address: SocketAddr,
    answer: PendingAnswer<Result<Metadata, Unmet>>,
    place: TaskPlace,
}

impl Connecting {
    pub(crate) fn new(
        engine: Engine,
        address: SocketAddr,
        answer: PendingAnswer<Result<Metadata, Unmet>>,
    ) -> Self {
        Self { engine, address, answer, place: None }
    }

    /// Returns the peer if it has answered, `None` until then. Never blocks.
    pub fn try_wait(&self) -> Option<Result<Peer, PeerError>> {
        self.refused().or_else(|| self.answer.get().map(|answer| self.result(answer)))
    }

    /// Waits until the peer has answered, at most `timeout`. Returns `None` if it may still answer.
    pub fn wait(&self, timeout: Duration) -> Option<Result<Peer, PeerError>> {
        let answer = || self.answer.wait(timeout).map(|answer| self.result(answer));
        self.refused().or_else(answer)
    }

    /// Waits until the peer has answered, at most `connect_timeout_ms`.
    pub fn join(&self) -> Result<Peer, PeerError> {
        // The control thread decides whether the answer takes too long, since it knows whether it was running to see
        // the answer. Only a thread that waits in a callback, for itself, never gets that decision.
        let timeout = self.engine.shared().settings.connect_timeout;
        let no_answer = || Err(self.failed(ConnectReason::NoAnswer));
        self.wait(timeout * 2).unwrap_or_else(no_answer)
    }

    /// In a copy of the process no answer comes, and the thread that held the lock of the answer does not exist.
    fn refused(&self) -> Option<Result<Peer, PeerError>> {
        self.engine.shared().is_forked().then_some(Err(PeerError::Forked))
    }

    fn result(&self, answer: Option<Result<Metadata, Unmet>>) -> Result<Peer, PeerError> {
        let shared = self.engine.shared();
        match answer {
            Some(Ok(metadata)) => Ok(Peer { shared: shared.add_peer(metadata)? }),
            Some(Err(Unmet { address, why })) => Err(PeerError::Connect { address, why }),
            None => Err(PeerError::Closed),
        }
    }

    fn failed(&self, why: ConnectReason) -> PeerError {
        PeerError::Connect { address: self.address, why }
    }
}

/// Resolves when the peer has answered.
impl Future for Connecting {
    type Output = Result<Peer, PeerError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if let Some(refused) = this.refused() {
            return Poll::Ready(refused);
        }
        this.answer.poll(&mut this.place, context.waker()).map(|answer| this.result(answer))
    }
}

impl fmt::Debug for Connecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connecting({})", self.address)
    }
}
