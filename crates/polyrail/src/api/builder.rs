//! How an engine is set up.

use std::fmt;
use std::sync::Arc;

use polyrail_config::Config;

use crate::api::engine::Engine;
use crate::api::error::EngineError;
use crate::api::observer::Observer;
use crate::engine::build;

/// Builds an [`Engine`].
#[derive(Default)]
pub struct EngineBuilder {
    config: Config,
    name: Option<String>,
    observer: Option<Arc<dyn Observer>>,
    apart: bool,
    strict: bool,
}

impl EngineBuilder {
    /// Uses these settings instead of the defaults.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// What peers call this engine in messages; host name and process id if not given.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Tells this observer of what happens, as it happens.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Behaves to other engines of this process as if it were in another one. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn apart(mut self) -> Self {
        self.apart = true;
        self
    }

    /// Panics when the engine ends if any of its work was left alone, see [`Stats::rescues`]. For
    /// tests.
    #[doc(hidden)]
    #[must_use]
    pub fn strict(mut self) -> Self {
        self.strict = true;
        self
    }

    /// Starts the engine: it listens on every rail when this returns.
    pub fn build(self) -> Result<Engine, EngineError> {
        let (shared, threads) = build::start(self.config, self.name, self.observer, self.apart)?;
        Ok(Engine::new(shared, threads, self.strict))
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineBuilder({:?})", self.name)
    }
}
