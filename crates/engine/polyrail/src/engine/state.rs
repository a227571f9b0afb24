//! State that all parts of an engine share. Operations enter through `posting`. Callers wait for their ends through
//! `waiting`.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, RwLock};
use polyrail_carrier::Host;
use polyrail_config::MetricsListen;
use polyrail_config::{Config, Spin};
use polyrail_proto::InstanceId;
use polyrail_proto::hello::{Card, Metadata};
use polyrail_proto::invitation::Invitation;
use polyrail_proto::life::{Parted, PeerEvent, ProvenNames};
use polyrail_proto::progress::{Pollers, Waits};
use polyrail_proto::rails::{ChosenRail, LeftOut};
use polyrail_proto::reason::{LostReason, Unmet};
use polyrail_proto::tally::{Counter, Durations};
use polyrail_sys::process::Original;

use crate::base::callback::Callbacks;
use crate::device::host_copy::HostCopier;
use crate::device::host_proof::Proofs;
use crate::device::imports::Imports;
use crate::device::peer_copy::PeerCopyQueues;
use crate::device::shared_memory::trial::Page;
use crate::engine::awaited::Awaited;
use crate::engine::budgets::Budgets;
use crate::engine::control_handle::{ControlCommand, ControlHandle};
use crate::engine::credentials::Credentials;
use crate::engine::inbox::Inbox;
use crate::engine::joining::Hook;
use crate::engine::kernel_routes::KernelRoutes;
use crate::engine::near_rails::NearRails;
use crate::engine::observer::Observer;
use crate::engine::peer::{OpsPool, PeerShared};
use crate::engine::peer_handle::Peer;
use crate::engine::proxy_handle::ProxyCommand;
use crate::engine::settings::EngineSettings;
use crate::engine::tasks::{Bells, PendingAnswer, question};
use crate::engine::totals::Totals;
use crate::engine::trace::Trace;
use crate::memory::region_core::RegionCore;
use crate::memory::registry::Registry;

mod above;

pub(crate) use above::{Drive, MessagePaths, ProxySet};

/// An engine. Derefs to [`Local`].
pub(crate) struct EngineShared {
    local: Local,
    pub(crate) registry: Arc<Registry>,
    pub(crate) pool: Arc<OpsPool>,
    pub(crate) budgets: Budgets,
    pub(crate) copying: Copying,
    pub(crate) arrived: Arrived,
    pub(crate) pace: Pace,
    pub(crate) peers: Peers,
    /// The rails of a plugin that are near a GPU.
    pub(crate) near: NearRails,
    pub(crate) kernel_routes: KernelRoutes,
    /// Set once the engine takes no more operations and peers.
    closed: Arc<AtomicBool>,
    /// Set once its threads must end.
    closing: AtomicBool,
    pub(crate) original: Arc<Original>,
    pub(crate) started: Instant,
}

/// The copiers of bytes within this host, and the known memory of other processes.
pub(crate) struct Copying {
    pub(crate) peer_copies: PeerCopyQueues,
    pub(crate) host_copies: HostCopier,
    pub(crate) proofs: Proofs,
    pub(crate) imports: Imports,
    /// Page that peers of this host open to test whether they can.
    pub(crate) page: Page,
}

/// Arrivals for the user, and the means to wake waiting threads and tasks.
pub(crate) struct Arrived {
    pub(crate) inbox: Inbox,
    /// Peers that connected by themselves and wait to be accepted.
    pub(crate) joined: Awaited<VecDeque<Peer>>,
    pub(crate) bells: Arc<Bells>,
    pub(crate) callbacks: Arc<Callbacks>,
}

/// Waits of threads, and the number of missed wake-ups.
pub(crate) struct Pace {
    pub(crate) pollers: Pollers,
    /// Recent waiting times of callers.
    pub(super) waits: Waits,
    /// Work for which no thread was woken; see [`crate::engine::audit`].
    pub(crate) rescues: Counter,
}

/// Parts of an engine that stay the same from its beginning to its end.
pub(crate) struct Local {
    pub(crate) config: Config,
    pub(crate) settings: EngineSettings,
    pub(crate) credentials: Credentials,
    pub(crate) card: Card,
    pub(crate) rails: Vec<ChosenRail>,
    /// Interfaces that are not rails, with the reasons.
    pub(crate) left_out: Vec<LeftOut>,
    /// The plugin that brings some of the rails.
    pub(crate) host: Option<Host>,
    pub(crate) proxies: ProxySet,
    pub(crate) control: ControlHandle,
    pub(crate) trace: Option<Trace>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Decides which engines may join.
    pub(crate) admit: Option<Arc<Hook>>,
    /// Paths of messages between processes of this host.
    pub(crate) message_paths: Box<dyn MessagePaths>,
}

/// Peers of an engine, and records of those that are gone.
pub(crate) struct Peers {
    pub(crate) list: RwLock<Vec<Arc<PeerShared>>>,
    /// Totals of peers that are gone. Added to while the list of peers is locked.
    pub(crate) past: Mutex<Totals>,
    /// Totals of all peers that the statistics have reported so far.
    pub(crate) told: Mutex<Totals>,
    pub(crate) parted: Mutex<Parted>,
    /// Names that certificates prove for other engines.
    pub(crate) names: Mutex<ProvenNames>,
    /// Number of the next peer, from 1 on.
    pub(crate) next_number: AtomicU32,
    /// Peers that were removed where waiting is not allowed, and the time until which their goodbye may be sent.
    pub(crate) leaving: Mutex<Vec<(Arc<PeerShared>, Instant)>>,
    /// Peers that are gone while a proxy still has operations of theirs: the proxy may be inside a plugin that does not
    /// return.
    pub(crate) held: Mutex<Vec<Arc<PeerShared>>>,
}

impl Deref for EngineShared {
    type Target = Local;

    fn deref(&self) -> &Local {
        &self.local
    }
}

impl EngineShared {
    /// Creates the state. `region_ended` is called when a region of this engine has ended.
    pub(crate) fn new(local: Local, region_ended: fn(&Arc<RegionCore>)) -> Self {
        let Local { config, settings, .. } = &local;
        let (callbacks, original) = (Arc::<Callbacks>::default(), Arc::<Original>::default());
        let bells = Arc::new(Bells::new(callbacks.clone()));
        let budgets = Budgets::new(config.staging_limit_bytes);
        Self {
            near: NearRails::new(&local.rails, local.host.as_ref()),
            kernel_routes: KernelRoutes::open(),
            pool: Arc::new(OpsPool::new(
                config.ops_pool,
                matches!(MetricsListen::parse(&config.metrics_listen), Ok(Some(_)))
                    .then(Durations::new),
                callbacks.clone(),
                bells.clone(),
            )),
            registry: Arc::new(Registry::new(callbacks.clone(), original.clone(), region_ended)),
            copying: Copying {
                peer_copies: PeerCopyQueues::default(),
                host_copies: HostCopier::new(settings.cpus, &budgets.staging),
                proofs: Proofs::new(local.card.instance, local.control.poller.clone()),
                imports: Imports::default(),
                page: Page::new(),
            },
            arrived: Arrived {
                inbox: Inbox::new(config.notification_queue as usize, bells.clone()),
                joined: Awaited::new(bells.clone()),
                bells,
                callbacks,
            },
            pace: Pace {
                pollers: Pollers::new(config.spin != Spin::Off, settings.cpus),
                waits: Waits::default(),
                rescues: Counter::default(),
            },
            budgets,
            peers: Peers {
                list: RwLock::default(),
                past: Mutex::default(),
                told: Mutex::default(),
                parted: Mutex::default(),
                names: Mutex::default(),
                next_number: AtomicU32::new(1),
                leaving: Mutex::default(),
                held: Mutex::default(),
            },
            closed: Arc::default(),
            closing: AtomicBool::new(false),
            original,
            started: Instant::now(),
            local,
        }
    }

    /// Whether this process is a copy, by `fork`, of the engine's process. A copy lacks the engine's threads, must not
    /// touch its connections, and may find locks held forever.
    pub(crate) fn is_forked(&self) -> bool {
        self.original.is_copy()
    }

    /// Whether the engine takes no more operations and peers.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The flag of [`is_closed`](Self::is_closed), for other engines of this process.
    pub(crate) fn closed(&self) -> Arc<AtomicBool> {
        self.closed.clone()
    }

    /// Whether its threads must end.
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    pub(crate) fn peers(&self) -> Vec<Arc<PeerShared>> {
        self.peers.list.read().clone()
    }

    pub(crate) fn peer(&self, instance: InstanceId) -> Option<Arc<PeerShared>> {
        let peers = self.peers.list.read();
        peers.iter().find(|peer| peer.instance() == instance).cloned()
    }

    /// Asks which engine listens at one of these addresses. With an invitation it must be the engine that issued it.
    pub(crate) fn introduce(
        &self,
        addresses: Vec<SocketAddr>,
        invitation: Option<Invitation>,
    ) -> PendingAnswer<Result<Metadata, Unmet>> {
        if self.is_forked() {
            return PendingAnswer::of_nobody(&self.arrived.bells);
        }
        let (answer, asked) = question(&self.arrived.bells);
        self.control.command(ControlCommand::Introduce { addresses, invitation, answer });
        if self.is_closing() {
            // The control thread may not read commands any more.
            self.control.forget_commands();
        }
        asked
    }

    /// Makes proxies read again from those peers whose share of the inbox was full and no longer is.
    pub(crate) fn resume_reading<'a>(&self, peers: impl IntoIterator<Item = &'a Arc<PeerShared>>) {
        for peer in peers {
            if self.arrived.inbox.limits.resume(&peer.account.inbox_share) {
                for proxy in self.proxies.rx.proxies() {
                    self.proxies.all[proxy].command(ProxyCommand::Resume { peer: peer.clone() });
                }
            }
        }
    }

    /// Asks flows of other peers to give back unused pinned memory: a peer waits for some and has none.
    pub(crate) fn want_staging(&self, now_ns: u64) {
        if self.budgets.staging.must_ask(now_ns) {
            self.proxies.all.iter().for_each(|proxy| proxy.command(ProxyCommand::GiveBack));
        }
    }

    /// Ends the copies of devices and the connections that proxies received too late, after the engine has closed.
    pub(crate) fn finish_proxies(self: &Arc<Self>) {
        self.proxies.driven.iter().for_each(|proxy| proxy.finish(self));
    }

    pub(crate) fn finish_trace(&self) {
        if let Some(trace) = &self.trace
            && let Err(error) = trace.write(&self.card.name, &self.rails)
        {
            let path = trace.path().display().to_string();
            tracing::error!(target: "polyrail::engine", path, %error, "can't write the trace");
        }
    }

    pub(crate) fn connect_flows(&self, peer: &Arc<PeerShared>) {
        // In this order: most often they are connected, and a look costs less.
        if !peer.life.standing.wants_flows() && peer.life.standing.want_flows() {
            self.control.command(ControlCommand::Connect { peer: peer.clone() });
        }
    }

    /// Ends everything, after telling the peers if that is possible at once.
    pub(crate) fn close(self: &Arc<Self>) {
        if self.is_forked() || self.closed.swap(true, Ordering::AcqRel) {
            return;
        }
        let peers = self.peers();
        self.say_bye(&peers, PeerEvent::Close);
        for peer in peers {
            self.lose_peer(&peer, PeerEvent::Told, LostReason::EngineClosed);
        }
        self.closing.store(true, Ordering::Release);
        self.arrived.inbox.queue.close();
        self.arrived.joined.close();
        for proxy in &self.proxies.all {
            proxy.doorbell.ring();
        }
        self.control.wake();
    }
}
