//! The engine as its users see it.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use polyrail_config::Config;
use polyrail_metrics::Registration;
use polyrail_proto::InstanceId;

use crate::api::builder::EngineBuilder;
use crate::api::connecting::Connecting;
use crate::api::error::{EngineError, PeerError, PostError, RegionError};
use crate::api::observer::Watch;
use crate::api::prepared::PreparedTransfer;
use crate::api::publish;
use crate::api::register::Registrable;
use crate::api::request::{Operation, Request};
use crate::api::tasks::{Accept, Events, NextNotification};
use crate::api::transfer::Transfer;
use crate::base::invitation::Invitation;
use crate::diag::stats::Stats;
use crate::engine::inbox::Notification;
pub(crate) use crate::engine::peer_handle::Peer;
use crate::engine::prepared::Prepared;
use crate::engine::rail_selection::ChosenRail;
pub(crate) use crate::engine::state::EngineShared;
use crate::memory::region::{Region, RegionSlice, RemoteRegion, RemoteSlice};
use crate::memory::registry::{Mailbox, OpenMailbox};
use crate::path::choose::{PathRequest, choose};

/// What one process runs to move memory to and from others.
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
/// Clones are the same engine; it closes when the last one is dropped, which ends transfers that
/// are under way. All methods may be called from any thread.
///
/// It belongs to the process that built it: in one that was forked from that, calls are refused or
/// return nothing, at once, and dropping does nothing. Build another one there.
#[derive(Clone)]
pub struct Engine {
    handle: Arc<EngineHandle>,
}

/// The rails that an engine with this configuration would have. Their addresses have port 0. See
/// [`Engine`].
pub fn rails(config: &Config) -> Result<Vec<RailInfo>, EngineError> {
    let system = |source| EngineError::System { what: "interfaces", source };
    let interfaces = polyrail_sys::interfaces::list().map_err(system)?;
    let rails = crate::engine::rail_selection::select(&config.rails, &interfaces)?;
    Ok(rails.iter().map(|rail| RailInfo::new(rail, SocketAddr::new(rail.address, 0))).collect())
}

/// A rail of an [`Engine`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailInfo {
    /// The interface, with the address if it has several rails.
    pub name: String,
    /// The interface.
    pub interface: String,
    /// Where the engine listens.
    pub address: SocketAddr,
    /// Speed of the link in Mbit/s, if the driver tells.
    pub speed_mbps: Option<u32>,
}

struct EngineHandle {
    shared: Arc<EngineShared>,
    /// Serves its metrics, if the settings ask for that.
    metrics: OnceLock<Registration>,
    /// Threads to be joined.
    threads: OnceLock<Vec<std::thread::JoinHandle<()>>>,
    /// A test wants to hear of work that was left alone.
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

    /// Serves its metrics, if the settings ask for that.
    pub(crate) fn serve_metrics(&self) -> Result<(), EngineError> {
        if let Some(registration) = crate::diag::metrics::serve(self.shared())? {
            // Called once, before anybody else has the engine.
            let _ = self.handle.metrics.set(registration);
        }
        Ok(())
    }

    /// Starts to build an engine, with default settings.
    pub fn builder() -> EngineBuilder {
        EngineBuilder::default()
    }

    /// The settings in force.
    pub fn config(&self) -> &Config {
        &self.shared().config
    }

    /// What another engine needs to find this one: pass it on by any means, to
    /// [`Engine::add_peer`] there.
    ///
    /// It is a capability: whoever has it may connect to this engine, and nobody else may (but see
    /// the settings `secret_file` and `auth`). So pass it on by private means.
    pub fn metadata(&self) -> Vec<u8> {
        let shared = self.shared();
        shared.credentials.metadata(&shared.card).encode()
    }

    /// What lets somebody connect to this engine who gets the address by other means. It is as private
    /// as the metadata.
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
        Invitation { instance: shared.card.instance, capability }
    }

    /// Where this engine listens, a rail each. Any of them may be given to [`Engine::connect`].
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.shared().card.rails.iter().map(|rail| rail.address).collect()
    }

    /// The rails in use.
    pub fn rails(&self) -> Vec<RailInfo> {
        let shared = self.shared();
        let rails = shared.rails.iter().zip(&shared.card.rails);
        rails.map(|(rail, card)| RailInfo::new(rail, card.address)).collect()
    }

    /// Adds a peer by the metadata that it gave. Flows are connected in the background; transfers
    /// may be posted at once and wait for them, at most `peer_timeout_ms`.
    pub fn add_peer(&self, metadata: &[u8]) -> Result<Peer, PeerError> {
        let metadata = publish::decode_metadata(metadata)?;
        Ok(Peer { shared: self.shared().add_peer(metadata)? })
    }

    /// Adds the peer that listens on `address`, any of its rails, once it has answered.
    ///
    /// An address proves nothing. So both ends must have the same secret (setting `secret_file`), or be
    /// processes of one user on one host, or both be set to `auth=none`; else the peer refuses
    /// ([`crate::RefusedCode::Unproven`]).
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let address = other.addresses()[0];
    /// assert_eq!(engine.connect(address).join()?, peer, "it is known already");
    /// engine.remove_peer(&peer);
    /// assert!(peer.lost().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect(&self, address: SocketAddr) -> Connecting {
        Connecting::new(self.clone(), address, self.shared().introduce(address, None))
    }

    /// Adds the peer that listens on `address` and gave this invitation, once it has answered;
    /// nobody else can answer in its place.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let wrong = engine.invitation();
    /// let address = other.addresses()[0];
    /// assert!(other.connect_by(engine.addresses()[0], &other.invitation()).join().is_err());
    /// assert!(engine.connect_by(address, &wrong).join().is_err());
    /// assert_eq!(engine.connect_by(address, &other.invitation()).join()?, peer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect_by(&self, address: SocketAddr, invitation: &Invitation) -> Connecting {
        let asked = self.shared().introduce(address, Some(invitation.clone()));
        Connecting::new(self.clone(), address, asked)
    }

    /// The next peer that came to this engine by itself; waits at most `timeout`.
    pub fn accept_peer(&self, timeout: Duration) -> Option<Peer> {
        if self.shared().is_forked() { None } else { self.shared().joined.wait(timeout) }
    }

    /// The next peer that comes to this engine by itself, for asynchronous programs. `None`: the
    /// engine is closed. Dropping the future loses no peer; any number of tasks may wait.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// # let config = engine.config().clone();
    /// # let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    /// # runtime.block_on(async {
    /// let third = Engine::builder().config(config).name("third").build()?;
    /// let to_engine = third.connect(engine.addresses()[0]).await?;
    /// third.notify(&to_engine, b"hello")?.await?;
    /// let came = engine.accept().await.expect("the engine is open");
    /// assert_eq!(came.name(), "third");
    /// let notification = engine.next_notification().await.expect("the engine is open");
    /// assert_eq!((notification.peer, &notification.data[..]), (came, &b"hello"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn accept(&self) -> Accept<'_> {
        Accept::new(self)
    }

    /// The number of this run of the engine, which no other has.
    pub fn instance(&self) -> InstanceId {
        self.shared().card.instance
    }

    /// The peer of this [`Peer::instance`], if it is known.
    pub fn peer(&self, instance: InstanceId) -> Option<Peer> {
        if self.shared().is_forked() {
            return None;
        }
        Some(Peer { shared: self.shared().peer(instance)? })
    }

    /// From now on, and until what is returned is dropped, a silent peer is asked for a sign of
    /// life, and given up if there is none for `peer_timeout_ms`. While transfers are under way
    /// that is so anyway. To learn of its end, wait for [`Peer::gone`], which watches it as well.
    pub fn watch(&self, peer: &Peer) -> Watch {
        let watch = Watch::new(peer.shared.clone());
        if !self.shared().is_forked() {
            self.shared().control.nudge();
        }
        watch
    }

    /// Every peer that is known now.
    pub fn peers(&self) -> Vec<Peer> {
        if self.shared().is_forked() {
            return Vec::new();
        }
        self.shared().peers().into_iter().map(|shared| Peer { shared }).collect()
    }

    /// Ends all transfers with a peer and forgets it; it is told so. A peer of another engine stays.
    pub fn remove_peer(&self, peer: &Peer) {
        if self.shared().is_own(&peer.shared) {
            self.shared().remove_peer(&peer.shared);
        }
    }

    /// Registers memory for transfers, the host's or a device's; peers may use it, as far as its
    /// [`crate::Access`] allows, once they have its description. Overlapping registrations are independent
    /// of each other.
    ///
    /// Transfers of a device's memory, such as a GPU's, take the same calls as those of host memory,
    /// and may go between the two. Copies to and from the device overlap the sending.
    ///
    /// ```no_run
    /// # fn example(engine: &polyrail::Engine, tensor: u64, bytes: u64) -> Result<(), Box<dyn std::error::Error>> {
    /// use polyrail::{Access, Cuda, Memory, Registrable};
    ///
    /// let local = engine.register(Memory::anonymous(64 << 20)?.with_access(Access::LOCAL))?;
    /// // Any pointer that CUDA knows: cudaMalloc's, PyTorch's `tensor.data_ptr()`.
    /// // SAFETY: the tensor lives until its region is dropped.
    /// let memory = unsafe { Cuda::load()?.memory_at(tensor, bytes)? };
    /// let region = engine.register(memory)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What the device was given to do with the memory before a transfer is posted must be done: the
    /// engine's copies wait for no other stream.
    pub fn register(&self, memory: impl Registrable) -> Result<Region, RegionError> {
        self.check_original()?;
        let (memory, access, granted) = memory.exposed().into_parts();
        self.shared().registry.register(self.shared().card.instance, memory, access, granted)
    }

    /// Opens a [`Mailbox`]: peers that have its description write to it, and it decides where.
    pub fn open(&self, mailbox: Arc<dyn Mailbox>) -> Result<OpenMailbox, RegionError> {
        self.check_original()?;
        self.shared().registry.open(self.shared().card.instance, mailbox)
    }

    /// Reads the description of a peer's region; see [`RemoteRegion`].
    pub fn import(&self, description: &[u8]) -> Result<RemoteRegion, RegionError> {
        RemoteRegion::decode(description)
    }

    /// Writes bytes into a peer's memory. Done means: every byte is in place there.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let transfer = engine.write(&peer, &local.slice(0, 100)?, &remote.slice(50, 100)?)?;
    /// assert_eq!(transfer.join()?.bytes, 100);
    /// let mut byte = [0];
    /// target.read_at(149, &mut byte)?;
    /// assert_eq!(byte, [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write(
        &self,
        peer: &Peer,
        local: &RegionSlice,
        remote: &RemoteSlice,
    ) -> Result<Transfer, PostError> {
        self.post(Request::write(peer).segment(local.clone(), *remote))
    }

    /// Reads bytes of a peer's memory. Done means: every byte is in place here.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// target.write_at(0, b"over there")?;
    /// engine.read(&peer, &local.slice(0, 10)?, &remote.slice(0, 10)?)?.join()?;
    /// let mut bytes = [0; 10];
    /// local.read_at(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"over there");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read(
        &self,
        peer: &Peer,
        local: &RegionSlice,
        remote: &RemoteSlice,
    ) -> Result<Transfer, PostError> {
        self.post(Request::read(peer).segment(local.clone(), *remote))
    }

    /// Sends a message to the peer's oldest receive of this tag, and waits for there to be one.
    /// Done means: every byte is in place there. Sends of one tag keep their order.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let receive = other.receive(&back, 42, &target.all())?;
    /// let send = engine.send(&peer, 42, &local.slice(0, 1000)?)?;
    /// assert_eq!(send.join()?.bytes, 1000);
    /// assert_eq!(receive.join()?.bytes, 1000);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn send(&self, peer: &Peer, tag: u64, local: &RegionSlice) -> Result<Transfer, PostError> {
        self.post(Request::send(peer, tag).local(local.clone()))
    }

    /// Receives a message of this tag from the peer. Its length is in [`crate::Outcome::bytes`]; a
    /// message that is longer than `local` fails on both sides.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// let receive = engine.receive(&peer, 1, &local.all())?;
    /// assert_eq!(receive.wait(Duration::from_millis(1)), None, "nobody has sent anything");
    /// receive.cancel();
    /// assert_eq!(receive.wait(soon), Some(Err(TransferError::Cancelled)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn receive(
        &self,
        peer: &Peer,
        tag: u64,
        local: &RegionSlice,
    ) -> Result<Transfer, PostError> {
        self.post(Request::receive(peer, tag).local(local.clone()))
    }

    /// Sends a notification of its own. No order is promised between notifications.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// engine.notify(&peer, b"ready")?.detach();
    /// let notification = other.wait_notification(soon).expect("it comes");
    /// assert_eq!((notification.data, notification.peer), (b"ready".to_vec(), back));
    /// assert!(other.take_notifications().is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn notify(&self, peer: &Peer, data: &[u8]) -> Result<Transfer, PostError> {
        self.post(Request::write(peer).notification(data.to_vec()))
    }

    /// All notifications that have arrived, in order of arrival. Never blocks.
    pub fn take_notifications(&self) -> Vec<Notification> {
        if self.shared().is_forked() {
            return Vec::new();
        }
        self.shared().help();
        let taken = self.shared().inbox.take_all();
        self.shared().resume_reading(taken.iter().map(|one| &one.peer.shared));
        taken
    }

    /// The next notification; waits for it, at most `timeout`. `None` at once when the engine is
    /// closed and all were taken.
    pub fn wait_notification(&self, timeout: Duration) -> Option<Notification> {
        let shared = self.shared();
        if shared.is_forked() {
            return None;
        }
        let until = Instant::now().checked_add(timeout);
        let taken = loop {
            shared.wait_until(
                until,
                || !shared.inbox.queue.is_empty() || shared.is_closing(),
                |limit| shared.inbox.queue.sleep(limit),
            );
            let taken = shared.inbox.queue.pop();
            // Another thread may have been faster.
            if taken.is_some() || until.is_some_and(|until| Instant::now() >= until) {
                break taken;
            }
            if shared.is_closing() {
                break None;
            }
        };
        shared.resume_reading(taken.iter().map(|one| &one.peer.shared));
        taken
    }

    /// The next notification, for asynchronous programs; [`Engine::accept`] has an example. `None`:
    /// the engine is closed, and all were taken. Dropping the future loses none; any number of tasks
    /// may wait, and each notification goes to one of them.
    ///
    /// With `progress = caller` each poll moves data, and asks to be polled again at once.
    pub fn next_notification(&self) -> NextNotification<'_> {
        NextNotification::new(self)
    }

    /// A descriptor that is readable once a transfer has ended, a notification or a peer has come, a
    /// peer is gone, or an attempt to connect has ended: for programs with a loop of their own.
    /// [`Events`] says how.
    pub fn events(&self) -> Result<Events, EngineError> {
        let shared = self.shared();
        if shared.is_forked() {
            return Err(EngineError::Forked);
        }
        let system = |source| EngineError::System { what: "eventfd", source };
        Ok(Events::new(shared.bells.hang().map_err(system)?, shared.original.clone()))
    }

    /// Checks a request and cuts it into chunks, once for many posts.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// // Every second block of 64 bytes; the notification comes when all are in place.
    /// let blocks = (0..32).map(|i| (local.slice(64 * i, 64), remote.slice(128 * i, 64)));
    /// let blocks: Vec<_> = blocks.map(|(l, r)| Ok((l?, r?))).collect::<Result<_, polyrail::RegionError>>()?;
    /// let request = Request::write(&peer).segments(blocks).notification(b"layer 7".to_vec());
    /// let prepared = engine.prepare(request.timeout(soon))?;
    /// for _ in 0..3 {
    ///     let transfer = prepared.post()?;
    ///     assert_eq!(other.wait_notification(soon).expect("it comes").data, b"layer 7");
    ///     assert_eq!(transfer.join()?.bytes, 2048);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare<O: Operation>(
        &self,
        request: Request<O>,
    ) -> Result<PreparedTransfer, PostError> {
        if self.shared().is_forked() {
            return Err(PostError::Forked);
        }
        let limits = self.shared().settings.request_limits();
        let request = request.spec;
        let (kind, peer, pairs) = request.parts();
        if !self.shared().is_own(&peer.shared) {
            return Err(PostError::ForeignPeer { peer: peer.name().to_owned() });
        }
        let touches_device = request.touches_device();
        let asked = PathRequest { kind, peer: &peer.shared, pairs, touches_device };
        let path = choose(self.shared(), &asked);
        let prepared = Arc::new(Prepared::new(request, path, &limits)?);
        Ok(PreparedTransfer { prepared, engine: self.clone() })
    }

    /// Prepares a request and posts it, for one that is posted once.
    pub fn post<O: Operation>(&self, request: Request<O>) -> Result<Transfer, PostError> {
        self.prepare(request)?.post()
    }

    /// Closes the engine for all its clones: tells the peers, ends all transfers with an error, and
    /// stops its threads. Blocks for a second at most, while peers are told. Dropping the last clone
    /// does the same.
    ///
    /// Afterwards posts are refused with [`PostError::Closed`] and peers with [`PeerError::Closed`];
    /// notifications that came before can be taken, and nobody waits for more. Regions stay readable
    /// and writable here. Closing twice is fine. In a callback nothing moves meanwhile, so peers are
    /// not told in time.
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

    /// Moves data if callers are to (`progress = caller`); says whether any moved. Does nothing
    /// otherwise.
    pub fn progress(&self) -> bool {
        self.shared().help()
    }

    /// Waits until every transfer that was posted here is over, detached ones too, and the listener
    /// of each has been told, at most `timeout`. `None`: some are under way yet.
    pub fn drain(&self, timeout: Duration) -> Option<()> {
        const LOOK_EVERY: Duration = Duration::from_micros(200);
        if self.shared().is_forked() {
            return None;
        }
        let until = Instant::now().checked_add(timeout);
        // Copies by devices that nobody asks about.
        self.shared().proxies.all.iter().for_each(|proxy| proxy.wake());
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

    /// All counters.
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

    /// The state of everything, for people: peers, flows, what is outstanding and what it waits
    /// for. The same text that the signal `dump_signal` writes.
    pub fn dump(&self) -> String {
        if self.shared().is_forked() {
            return format!("{self:?} belongs to the process that this one was forked from\n");
        }
        crate::diag::dump::text(self.shared())
    }

    /// A copy of the process registers nothing, for no peer reaches it.
    fn check_original(&self) -> Result<(), RegionError> {
        if self.shared().is_forked() { Err(RegionError::Forked) } else { Ok(()) }
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

impl RailInfo {
    fn new(rail: &ChosenRail, address: SocketAddr) -> Self {
        Self {
            name: rail.name.clone(),
            interface: rail.interface.clone(),
            address,
            speed_mbps: rail.speed_mbps.filter(|speed| *speed > 0),
        }
    }
}

impl Drop for EngineHandle {
    fn drop(&mut self) {
        if self.shared.is_forked() {
            // Threads, connections and peers are the original's: nothing of it is touched, and what it
            // holds is left to the end of this process.
            std::mem::forget(self.threads.take());
            std::mem::forget(self.shared.clone());
            return;
        }
        drop(self.metrics.take());
        self.shared.close();
        for thread in self.threads.take().into_iter().flatten() {
            // An observer may be the last to let go of an engine, on one of its own threads.
            if thread.thread().id() == std::thread::current().id() {
                continue;
            }
            if thread.join().is_err() {
                tracing::error!(target: "polyrail::proxy", "a thread of the engine panicked");
            }
        }
        self.shared.finish_copies();
        self.shared.finish_trace();
        if self.strict && !std::thread::panicking() {
            let (engine, all) = (self.shared.rescues.get(), self.shared.rescues());
            assert_eq!(all, 0, "work was left alone: {} by proxies, {engine} by all", all - engine);
        }
    }
}
