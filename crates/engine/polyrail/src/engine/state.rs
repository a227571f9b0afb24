//! What all parts of an engine share. `posting` is how operations enter, `waiting` how callers wait for their ends.

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

/// An engine. The parts in [`Local`] are its fields as well.
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
    /// It takes no operations and no peers any more.
    closed: Arc<AtomicBool>,
    /// Its threads are to end.
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
    /// What peers of this host open to see whether they can.
    pub(crate) page: Page,
}

/// The arrivals for the user, and the means to wake those who wait for them.
pub(crate) struct Arrived {
    pub(crate) inbox: Inbox,
    /// Peers that came by themselves and wait to be accepted.
    pub(crate) joined: Awaited<VecDeque<Peer>>,
    pub(crate) bells: Arc<Bells>,
    pub(crate) callbacks: Arc<Callbacks>,
}

/// The waits of threads, and the number of wakes that were missed.
pub(crate) struct Pace {
    pub(crate) pollers: Pollers,
    /// How long callers have waited lately.
    pub(super) waits: Waits,
    /// Work for which no thread was woken; see [`crate::engine::audit`].
    pub(crate) rescues: Counter,
}

/// What an engine has from its beginning to its end.
pub(crate) struct Local {
    pub(crate) config: Config,
    pub(crate) settings: EngineSettings,
    pub(crate) credentials: Credentials,
    pub(crate) card: Card,
    pub(crate) rails: Vec<ChosenRail>,
    /// The interfaces that are no rails, with the reasons.
    pub(crate) left_out: Vec<LeftOut>,
    /// The plugin that some of the rails come from.
    pub(crate) host: Option<Host>,
    pub(crate) proxies: ProxySet,
    pub(crate) control: ControlHandle,
    pub(crate) trace: Option<Trace>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Says who may join.
    pub(crate) admit: Option<Arc<Hook>>,
    /// The ways of messages between processes of this host.
    pub(crate) message_paths: Box<dyn MessagePaths>,
}

/// The peers of an engine, and what is left of those that are gone.
pub(crate) struct Peers {
    pub(crate) list: RwLock<Vec<Arc<PeerShared>>>,
    /// What moved with peers that are gone; added to while the list of peers is locked.
    pub(crate) past: Mutex<Totals>,
    /// What the statistics have told of all peers so far.
    pub(crate) told: Mutex<Totals>,
    pub(crate) parted: Mutex<Parted>,
    /// Whom certificates say that others are.
    pub(crate) names: Mutex<ProvenNames>,
    /// The number of the next one, from 1 on.
    pub(crate) next_number: AtomicU32,
    /// Peers that were removed where nobody may wait, and until when they hear of it.
    pub(crate) leaving: Mutex<Vec<(Arc<PeerShared>, Instant)>>,
    /// Peers that are gone, while a proxy has something of theirs yet: it may be within a plugin that does not return.
    pub(crate) held: Mutex<Vec<Arc<PeerShared>>>,
}

impl Deref for EngineShared {
    type Target = Local;

    fn deref(&self) -> &Local {
        &self.local
    }
}

impl EngineShared {
    /// `region_ended`: to be called when a region of this engine has ended.
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

    /// Whether this process is a copy, by `fork`, of the one whose engine this is: its threads are
    /// not here, its connections are not to be touched, and locks may be held for ever.
    pub(crate) fn is_forked(&self) -> bool {
        self.original.is_copy()
    }

    /// Whether it takes no operations and no peers any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The same, for other engines of this process.
    pub(crate) fn closed(&self) -> Arc<AtomicBool> {
        self.closed.clone()
    }

    /// Whether its threads are to end.
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

    /// Finds out who listens at one of these addresses. With an invitation it must be the engine that gave it.
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
            // The control thread may not look any more.
            self.control.forget_commands();
        }
        asked
    }

    /// Tells proxies to read again from those peers whose share of the inbox was full and is no
    /// more.
    pub(crate) fn resume_reading<'a>(&self, peers: impl IntoIterator<Item = &'a Arc<PeerShared>>) {
        for peer in peers {
            if self.arrived.inbox.limits.resume(&peer.account.inbox_share) {
                for proxy in self.proxies.rx.proxies() {
                    self.proxies.all[proxy].command(ProxyCommand::Resume { peer: peer.clone() });
                }
            }
        }
    }

    /// A peer waits for pinned memory and has none: flows of others give back what they don't use.
    pub(crate) fn want_staging(&self, now_ns: u64) {
        if self.budgets.staging.must_ask(now_ns) {
            self.proxies.all.iter().for_each(|proxy| proxy.command(ProxyCommand::GiveBack));
        }
    }

    /// When it has closed: ends what devices still copy, and the connections that proxies were given
    /// too late.
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

    /// Ends everything, having told the peers if that is possible at once.
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
