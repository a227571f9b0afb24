//! Admission of peers that connect by themselves: their claims, and the decision.

use std::net::SocketAddr;

use polyrail_proto::InstanceId;
use polyrail_proto::hello::Card;

use polyrail_proto::life::Names;

/// The user's code that decides.
pub(crate) type Hook = dyn Fn(&Incoming) -> Admission + Send + Sync;

/// A peer that wants to join by itself, as [`crate::EngineBuilder::admit`] sees it. Its address comes from the kernel.
/// Its instance is proven, and so are the names on its certificate, if it has one. Its name is only its own claim.
///
/// ```
/// use polyrail::{Admission, Incoming};
///
/// /// Lets in who comes from one of the addresses that it says it listens on.
/// fn is_honest(incoming: &Incoming) -> Admission {
///     let from = incoming.address().ip();
///     if incoming.listens_on().iter().any(|address| address.ip() == from) {
///         return Admission::Accept;
///     }
///     let here = if incoming.is_same_host() { "this host" } else { "another host" };
///     let (name, run) = (incoming.name(), incoming.instance());
///     Admission::refuse(format!("{name}, run {run}, says that it is on {here}, not at {from}"))
/// }
/// # let config = polyrail::Config::builder().set("rails", "127.0.0.1")?.build()?;
/// let engine = polyrail::Engine::builder().config(config).admit(is_honest).build()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Incoming {
    pub(crate) card: Card,
    pub(crate) address: SocketAddr,
    pub(crate) same_host: bool,
    pub(crate) names: Names,
}

/// The answer to a peer that wants to join; [`crate::EngineBuilder::admit`] has an example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Accept the peer.
    Accept,
    /// Refuse the peer for this reason, of which 512 bytes are sent to it.
    Refuse(String),
}

impl Incoming {
    /// Remote address of its connection. The port is that of this connection only.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Name that the engine gives itself.
    pub fn name(&self) -> &str {
        &self.card.name
    }

    /// The DNS names and SPIFFE IDs on its certificate, of which `allowed_names` allows one. Empty if the peer did not
    /// authenticate with a certificate.
    ///
    /// ```
    /// use polyrail::{Admission, Incoming};
    ///
    /// /// Of all that `allowed_names` allows, only trainers may connect to this engine.
    /// fn is_trainer(incoming: &Incoming) -> Admission {
    ///     let is_below = |name: &String| name.starts_with("spiffe://example.org/train/");
    ///     match incoming.proven_names().iter().any(is_below) {
    ///         true => Admission::Accept,
    ///         false => Admission::refuse("trainers only"),
    ///     }
    /// }
    /// # let config = polyrail::Config::builder().set("rails", "127.0.0.1")?.build()?;
    /// let engine = polyrail::Engine::builder().config(config).admit(is_trainer).build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn proven_names(&self) -> &[String] {
        &self.names
    }

    /// Number of the engine's run.
    pub fn instance(&self) -> InstanceId {
        self.card.instance
    }

    /// Addresses that it claims to listen on, one for each rail.
    pub fn listens_on(&self) -> Vec<SocketAddr> {
        self.card.rails.iter().map(|rail| rail.address).collect()
    }

    /// Whether it claims to be on this host.
    pub fn is_same_host(&self) -> bool {
        self.same_host
    }
}

impl Admission {
    /// Refuses for this reason; see [`crate::EngineBuilder::admit`].
    pub fn refuse(reason: impl Into<String>) -> Self {
        Self::Refuse(reason.into())
    }
}
