//! Setup of an engine.

use std::fmt;
use std::sync::Arc;

use polyrail_config::Config;

use crate::api::engine::Engine;
use crate::api::error::EngineError;
use crate::api::observer::Observer;
use crate::control::build;
use crate::engine::joining::{Admission, Hook, Incoming};

/// Builds an [`Engine`].
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use std::time::Duration;
///
/// use polyrail::{Config, Engine, LostReason, Observer, Peer};
///
/// #[derive(Default)]
/// struct Inbox(Mutex<Vec<Vec<u8>>>);
///
/// impl Observer for Inbox {
///     fn notified(&self, _peer: &Peer, data: Vec<u8>) -> Option<Vec<u8>> {
///         self.0.lock().unwrap().push(data);
///         None
///     }
///     fn lost(&self, peer: &Peer, why: &LostReason) {
///         eprintln!("{} is gone: {why}", peer.name());
///     }
/// }
///
/// let config = Config::builder().set("rails", "127.0.0.1")?.build()?;
/// let inbox = Arc::new(Inbox::default());
/// let builder = Engine::builder().config(config.clone()).name("server");
/// let server = builder.observer(inbox.clone()).build()?;
/// let client = Engine::builder().config(config).build()?;
/// let peer = client.connect(server.addresses()[0]).join()?;
/// client.notify(&peer, b"hello")?.join()?;
/// assert_eq!((peer.name(), &*inbox.0.lock().unwrap()), ("server", &vec![b"hello".to_vec()]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Default)]
pub struct EngineBuilder {
    config: Config,
    name: Option<String>,
    observer: Option<Arc<dyn Observer>>,
    admit: Option<Arc<Hook>>,
    apart: bool,
    strict: bool,
}

impl Engine {
    /// Starts to build an engine, with default settings.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }
}

impl EngineBuilder {
    /// Uses these settings instead of the defaults.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// Sets the name of this engine in messages of its peers, in metrics and logs: 1 to 128 bytes in one line. The
    /// default is host name and process id.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Calls this observer for events, as they happen.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Calls this hook before a peer joins by itself. Without a hook, every peer may join that proves that it may
    /// connect (setting `auth`). The hook is not called for peers that the user adds, by metadata or address.
    ///
    /// ```
    /// use polyrail::{Admission, Config, Engine, LostReason, RefusedCode};
    ///
    /// let config = Config::builder().set("rails", "127.0.0.1")?.build()?;
    /// let builder = Engine::builder().config(config.clone());
    /// let server = builder.admit(|incoming| match incoming.name().starts_with("worker") {
    ///     true if incoming.address().ip().is_loopback() => Admission::Accept,
    ///     _ => Admission::refuse("workers of this host only"),
    /// });
    /// let server = server.build()?;
    /// let worker = Engine::builder().config(config.clone()).name("worker 1").build()?;
    /// worker.connect(server.addresses()[0]).join()?;
    /// let other = Engine::builder().config(config).name("somebody").build()?;
    /// let error = other.connect(server.addresses()[0]).join().unwrap_err();
    /// assert!(error.to_string().contains("refused: workers of this host only"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A peer that connects by address gets the refusal at once; one that has this engine's metadata loses this engine
    /// ([`crate::LostReason::Refused`]) and may add it again. Here [`crate::Stats::refused_connections`] counts the
    /// refusal, and the log reports it.
    ///
    /// The hook runs on its own threads (`pr-admit`, up to 8 at a time), once for each peer that comes, and not again
    /// for its further connections. It may block: meanwhile only the peers wait that it is running for, each until the
    /// deadline of its handshake (`connect_timeout_ms`). Then the peer is asked to retry. If the hook has accepted it
    /// by then, the retry succeeds. A hook that panics refuses, and the panic is counted. A hook that never returns
    /// keeps its thread, but not the engine.
    #[must_use]
    pub fn admit(mut self, hook: impl Fn(&Incoming) -> Admission + Send + Sync + 'static) -> Self {
        self.admit = Some(Arc::new(hook));
        self
    }

    /// Treats other engines of this process as if they were in another one. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Panics when the engine ends if any of its work was left undone, see [`Stats::rescues`]. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Starts the engine: it listens on every rail when this returns.
    pub fn build(self) -> Result<Engine, EngineError> {
        let (shared, threads) =
            build::start(self.config, self.name, (self.observer, self.admit), self.apart)?;
        let engine = Engine::new(shared, threads, self.strict);
        engine.serve_metrics()?;
        Ok(engine)
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineBuilder({:?})", self.name)
    }
}
