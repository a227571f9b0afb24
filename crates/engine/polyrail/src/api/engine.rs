//! The engine as its users see it: the handle, its settings, its statistics and its end. Its operations are in `peers`,
//! `memory`, `transfers` and `notifications`.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use polyrail_config::Config;
use polyrail_metrics::Registration;
use polyrail_proto::InstanceId;
use polyrail_proto::invitation::Invitation;
use polyrail_proto::rails::LeftOut;

use crate::api::error::EngineError;
use crate::api::rails::RailInfo;
use crate::base::pause::wait_patiently;
use crate::diag::stats::Stats;
pub(crate) use crate::engine::peer_handle::Peer;
pub(crate) use crate::engine::state::EngineShared;
use crate::memory::lanes::Patience;

/// Endpoint of a process that moves memory to and from other processes.
///
/// ```
/// use std::time::Duration;
///
/// use polyrail::{Config, Engine, Request};
///
/// let config = Config::builder().set("rails", "127.0.0.1")?.build()?;
/// for rail in polyrail::rails(&config)? {
///     println!("{} on {} at {:?} Mbit/s", rail.name, rail.interface, rail.speed_mbps);
/// }
/// let engine = Engine::builder().config(config.clone()).build()?;
/// let other = Engine::builder().config(config).name("other").build()?;
/// assert_eq!((engine.config().rails.as_str(), engine.rails().len()), ("127.0.0.1", 1));
///
/// // The one end adds the other, by metadata or by an address; there it comes by itself.
/// let peer = engine.add_peer(&other.metadata())?;
/// let watch = engine.watch(&peer);
/// assert_eq!(engine.peer(other.instance()), Some(peer.clone()));
/// engine.post(Request::write(&peer).notification(b"hello".to_vec()))?.detach();
/// let came = other.accept_peer(Duration::from_secs(10)).expect("it comes");
/// assert_eq!(other.peers(), [came]);
/// while other.take_notifications().is_empty() {
///     // With `progress = caller` this is where data moves.
///     other.progress();
/// }
/// assert_eq!(other.wait_notification(Duration::ZERO).map(|came| came.data), None);
/// engine.drain(Duration::from_secs(10)).expect("all transfers are over");
/// print!("{}", engine.dump());
/// drop(watch);
/// engine.remove_peer(&peer);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Clones are handles on the same engine. Dropping the last one closes it, which ends transfers that are under way. All
/// methods may be called from any thread.
///
/// An engine belongs to the process that built it: in a process forked from that, calls are refused or return nothing,
/// at once, and dropping does nothing. Build another engine there.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<EngineHandle>,
}

struct EngineHandle {
    shared: Arc<EngineShared>,
    /// Servers of its metrics, where the settings ask for them.
    metrics: OnceLock<Vec<Registration>>,
    /// Threads to join.
    threads: OnceLock<Vec<std::thread::JoinHandle<()>>>,
    /// Panic at the end if work was left undone, for tests.
    strict: bool,
}

impl Engine {
    pub(crate) fn new(
        shared: Arc<EngineShared>,
        threads: Vec<std::thread::JoinHandle<()>>,
        strict: bool,
    ) -> Self {
        let (metrics, threads) = (OnceLock::new(), OnceLock::from(threads));
        Self { handle: Arc::new(EngineHandle { shared, metrics, threads, strict }) }
    }

    /// Serves the engine's metrics, where the settings ask for that.
    pub(crate) fn serve_metrics(&self) -> Result<(), EngineError> {
        // Called once, before any other code has the engine.
        let _ = self.handle.metrics.set(crate::diag::metrics::serve(self.shared())?);
        Ok(())
    }

    /// Returns the settings in force.
    pub fn config(&self) -> &Config {
        &self.shared().config
    }

    /// Returns the data by which another engine finds this one. Pass it on by any means, to [`Engine::add_peer`] there.
    ///
    /// The metadata is a capability: only engines that have it may connect to this one (but see the settings
    /// `secret_file` and `auth`). So pass it on by private means.
    pub fn metadata(&self) -> Vec<u8> {
        let shared = self.shared();
        shared.credentials.metadata(&shared.card).encode()
    }

    /// Returns the credential that lets an engine connect to this one if it gets the address by other means. Keep it as
    /// private as the metadata.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let invitation = other.invitation();
    /// assert_eq!(invitation.instance(), other.instance());
    /// assert_eq!(engine.connect_by(other.addresses()[0], &invitation).join()?, peer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn invitation(&self) -> Invitation {
        let shared = self.shared();
        let capability = shared.credentials.capability.clone();
        Invitation::new(shared.card.instance, capability)
    }

    /// Returns the addresses on which this engine listens, one per rail. Any of them may be given to
    /// [`Engine::connect`].
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared().card.rails.iter().map(|rail| rail.address).collect()
    }

    /// Returns the rails in use.
    pub fn rails(&self) -> Vec<RailInfo> {
        let shared = self.shared();
        let rails = shared.rails.iter().zip(&shared.card.rails);
        rails.map(|(rail, card)| RailInfo::new(rail, card.address)).collect()
    }

    /// Returns the interfaces that are not used as rails, with the reasons, as of the start of the engine. See
    /// [`Engine`].
    pub fn left_out(&self) -> Vec<LeftOut> {
        self.shared().left_out.clone()
    }

    /// Returns the number of this run of the engine. It is unique.
    pub fn instance(&self) -> InstanceId {
        self.shared().card.instance
    }

    /// Closes the engine for all its clones: notifies the peers, ends all transfers with an error, and stops its
    /// threads. Blocks for a second at most, while peers are notified. Dropping the last clone does the same.
    ///
    /// Afterwards requests are refused with [`crate::PostError::Closed`], peers with [`crate::PeerError::Closed`] and
    /// memory with [`crate::RegionError::Closed`]. Notifications that came before can still be taken, and waiting for
    /// more returns at once. Regions stay readable and writable here. Closing twice is fine. In a callback nothing
    /// moves meanwhile, so peers are not notified in time.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// # use polyrail::PostError;
    /// let pending = engine.receive(&peer, 1, &local.all())?;
    /// engine.close();
    /// assert!(matches!(pending.join(), Err(TransferError::PeerLost { .. })));
    /// assert!(matches!(engine.notify(&peer, b"hello"), Err(PostError::Closed)));
    /// assert!(engine.wait_notification(soon).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn close(&self) {
        self.shared().close();
    }

    /// Moves data if that is left to callers (`progress = caller`); returns whether any moved. Does nothing otherwise.
    pub fn progress(&self) -> bool {
        self.shared().help()
    }

    /// Waits until every transfer that was posted here is over, detached ones too, and the listener of each has been
    /// called, at most `timeout`. Returns `None` if some are still under way.
    pub fn drain(&self, timeout: Duration) -> Option<()> {
        const LOOK_EVERY: Duration = Duration::from_micros(200);
        if self.shared().is_forked() {
            return None;
        }
        let until = Instant::now().checked_add(timeout);
        // This finds copies by devices that have ended with no thread polling them.
        self.shared().proxies.all.iter().for_each(|proxy| proxy.doorbell.ring());
        while !self.shared().pool.is_drained() {
            if until.is_some_and(|until| Instant::now() >= until) {
                return None;
            }
            if !self.progress() {
                std::thread::sleep(LOOK_EVERY);
            }
        }
        Some(())
    }

    /// Returns all counters.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// engine.write(&peer, &local.all(), &remote.all())?.join()?;
    /// let rail = &engine.stats().peers[0].rails[0];
    /// println!("{} sent {} bytes, {} retransmits", rail.name, rail.tx_bytes, rail.retransmits);
    /// assert_eq!(rail.name, "lo");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stats(&self) -> Stats {
        if self.shared().is_forked() { Stats::default() } else { self.shared().stats() }
    }

    /// Returns a description of the engine's state, for people: peers, flows, what is outstanding and what it waits
    /// for. The signal `dump_signal` writes the same text.
    pub fn dump(&self) -> String {
        if self.shared().is_forked() {
            return format!("{self:?} belongs to the process that this one was forked from\n");
        }
        crate::diag::dump::text(self.shared())
    }

    pub(crate) fn shared(&self) -> &Arc<EngineShared> {
        &self.handle.shared
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({}, {})", self.shared().card.name, self.shared().card.instance)
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // Threads, connections and peers are the original's: do not touch them, and leave their resources to the
            // end of this process.
            std::mem::forget(self.threads.take());
            std::mem::forget(self.shared.clone());
            return;
        }
        drop(self.metrics.take());
        self.shared.close();
        let mut patience = Patience::default();
        for thread in self.threads.take().into_iter().flatten() {
            // An observer may drop the last handle of an engine, on one of the engine's own threads.
            if thread.thread().id() == std::thread::current().id() {
                continue;
            }
            // A thread that hangs inside a plugin is left running, with all that it holds.
            if self.shared.host.is_some() {
                wait_patiently(|| thread.is_finished() || patience.is_over());
                if !thread.is_finished() {
                    continue;
                }
            }
            if thread.join().is_err() {
                tracing::error!(target: "polyrail::proxy", "a thread of the engine panicked");
            }
        }
        self.shared.copying.host_copies.end();
        self.shared.finish_proxies();
        self.shared.finish_trace();
        if self.strict && !std::thread::panicking() {
            assert_eq!(self.shared.pace.rescues.get(), 0, "work was left alone; the log has more");
        }
    }
}
