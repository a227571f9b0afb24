//! Injected faults and their times. Each fault is a list of timed actions, of which the last ones restore everything.

use std::fmt;
use std::time::Duration;

use polyrail_testkit::Rng;

/// Number and speed of the lab's rails.
pub(crate) const RAILS: usize = 4;
pub(crate) const RAIL_MBIT: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// No fault.
    Calm,
    /// A rail loses its link for a while.
    Cut,
    /// A rail loses its link repeatedly.
    Flap,
    /// A rail becomes slow.
    Throttle,
    /// All rails are cut.
    Blackout,
    /// A process is killed and restarted.
    Kill,
    /// A process is stopped and continued later.
    Stop,
    /// A process can open no descriptors while a rail flaps.
    Descriptors,
    /// A process gets no memory.
    Memory,
    /// A process ends the registrations that others write to.
    Regions,
    /// The unauthenticated client, which is always present, opens hundreds of connections.
    Stranger,
}

/// An action of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Link {
        rail: usize,
        up: bool,
    },
    Rate {
        rail: usize,
        mbit: u64,
    },
    Kill(usize),
    Start(usize),
    Stop(usize),
    Continue(usize),
    /// Limits descriptors to the present number and `spare` more, or removes the limit.
    Descriptors {
        worker: usize,
        spare: Option<u64>,
    },
    /// Limits the address space to the present size and these MiB, or removes the limit.
    Memory {
        worker: usize,
        spare_mib: Option<u64>,
    },
    Withdraw(usize),
    Flood,
    /// The fault of this target is over.
    Over(Target),
}

impl Action {
    /// Worker whose process the action needs.
    pub(crate) fn process(&self) -> Option<usize> {
        match *self {
            Self::Kill(worker)
            | Self::Stop(worker)
            | Self::Continue(worker)
            | Self::Descriptors { worker, .. }
            | Self::Memory { worker, .. }
            | Self::Withdraw(worker) => Some(worker),
            Self::Link { .. }
            | Self::Rate { .. }
            | Self::Start(_)
            | Self::Flood
            | Self::Over(_) => None,
        }
    }
}

/// Target, which has one fault at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Rail(usize),
    AllRails,
    Worker(usize),
    /// A worker and a rail.
    Pair(usize, usize),
    Nothing,
}

/// A fault with its timed actions.
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) actions: Vec<(Duration, Action)>,
}

impl Kind {
    pub(crate) const ALL: [Self; 11] = [
        Self::Calm,
        Self::Cut,
        Self::Flap,
        Self::Throttle,
        Self::Blackout,
        Self::Kill,
        Self::Stop,
        Self::Descriptors,
        Self::Memory,
        Self::Regions,
        Self::Stranger,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Calm => "calm",
            Self::Cut => "cut",
            Self::Flap => "flap",
            Self::Throttle => "throttle",
            Self::Blackout => "blackout",
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Descriptors => "descriptors",
            Self::Memory => "memory",
            Self::Regions => "regions",
            Self::Stranger => "stranger",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// True if the fault may cause the loss of peers. Otherwise a rail is up at any time, and all processes run.
    pub(crate) fn may_lose_peers(self) -> bool {
        matches!(self, Self::Blackout | Self::Kill | Self::Stop)
    }

    /// Plans its actions, if its target has no other fault now.
    pub(crate) fn plan(self, rng: &mut Rng, workers: usize, busy: &[Target]) -> Option<Plan> {
        let worker = rng.index(workers);
        let rail = rng.index(RAILS);
        let target = match self {
            Self::Calm => return None,
            Self::Cut | Self::Flap | Self::Throttle => Target::Rail(rail),
            Self::Blackout => Target::AllRails,
            Self::Kill | Self::Stop | Self::Memory | Self::Regions => Target::Worker(worker),
            Self::Descriptors => Target::Pair(worker, rail),
            Self::Stranger => Target::Nothing,
        };
        // One rail always stays up, except in a blackout.
        let rails = busy.iter().filter(|target| target.has_rail()).count();
        if busy.iter().any(|other| other.meets(target)) || (target.has_rail() && rails >= RAILS - 1)
        {
            return None;
        }
        let mut times = Vec::new();
        let mut at = Duration::ZERO;
        let mut then = |after_ms: u64, action| {
            at += Duration::from_millis(after_ms);
            times.push((at, action));
        };
        let (cut, mended) = (Action::Link { rail, up: false }, Action::Link { rail, up: true });
        match self {
            Self::Calm => {}
            Self::Cut => {
                then(0, cut);
                then(rng.between(200, 5000), mended);
            }
            Self::Flap => {
                for _ in 0..rng.between(3, 8) {
                    then(rng.between(20, 300), cut);
                    then(rng.between(20, 300), mended);
                }
            }
            Self::Throttle => {
                then(0, Action::Rate { rail, mbit: rng.between(1, 20) });
                then(rng.between(500, 4000), Action::Rate { rail, mbit: rng.between(1, 20) });
                then(rng.between(500, 4000), Action::Rate { rail, mbit: RAIL_MBIT });
            }
            Self::Blackout => {
                (0..RAILS).for_each(|rail| then(0, Action::Link { rail, up: false }));
                then(rng.between(200, 7000), Action::Link { rail: 0, up: true });
                (1..RAILS).for_each(|rail| then(0, Action::Link { rail, up: true }));
            }
            Self::Kill => {
                then(0, Action::Kill(worker));
                then(rng.between(300, 3000), Action::Start(worker));
            }
            Self::Stop => {
                then(0, Action::Stop(worker));
                then(rng.between(100, 7000), Action::Continue(worker));
            }
            Self::Descriptors => {
                then(0, Action::Descriptors { worker, spare: Some(rng.below(4)) });
                then(rng.between(100, 500), cut);
                then(rng.between(100, 2000), mended);
                then(rng.between(500, 3000), Action::Descriptors { worker, spare: None });
            }
            Self::Memory => {
                then(0, Action::Memory { worker, spare_mib: Some(rng.between(48, 96)) });
                then(rng.between(500, 5000), Action::Memory { worker, spare_mib: None });
            }
            Self::Regions => then(0, Action::Withdraw(worker)),
            Self::Stranger => then(0, Action::Flood),
        }
        then(0, Action::Over(target));
        Some(Plan { target, actions: times })
    }
}

impl Target {
    /// True if it makes rails fail.
    pub(crate) fn has_rail(self) -> bool {
        matches!(self, Self::Rail(_) | Self::AllRails | Self::Pair(..))
    }

    fn worker(self) -> Option<usize> {
        match self {
            Self::Worker(worker) | Self::Pair(worker, _) => Some(worker),
            _ => None,
        }
    }

    fn rail(self) -> Option<usize> {
        match self {
            Self::Rail(rail) | Self::Pair(_, rail) => Some(rail),
            _ => None,
        }
    }

    fn meets(self, other: Self) -> bool {
        let same = |a: Option<usize>, b: Option<usize>| a.is_some() && a == b;
        same(self.worker(), other.worker())
            || same(self.rail(), other.rail())
            || (self == Self::AllRails && other.has_rail())
            || (other == Self::AllRails && self.has_rail())
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Link { rail, up: false } => write!(f, "rail{rail} is cut"),
            Self::Link { rail, up: true } => write!(f, "rail{rail} is mended"),
            Self::Rate { rail, mbit } => write!(f, "rail{rail} has {mbit} Mbit/s"),
            Self::Kill(worker) => write!(f, "worker {worker} is killed"),
            Self::Start(worker) => write!(f, "worker {worker} is started"),
            Self::Stop(worker) => write!(f, "worker {worker} is stopped"),
            Self::Continue(worker) => write!(f, "worker {worker} goes on"),
            Self::Descriptors { worker, spare: Some(spare) } => {
                write!(f, "worker {worker} may open {spare} more descriptors")
            }
            Self::Descriptors { worker, spare: None } => {
                write!(f, "worker {worker} may open descriptors")
            }
            Self::Memory { worker, spare_mib: Some(spare) } => {
                write!(f, "worker {worker} may have {spare} MiB more of address space")
            }
            Self::Memory { worker, spare_mib: None } => {
                write!(f, "worker {worker} may have memory")
            }
            Self::Withdraw(worker) => write!(f, "worker {worker} ends its windows"),
            Self::Flood => f.write_str("the stranger floods all listeners"),
            Self::Over(_) => f.write_str("a fault is over"),
        }
    }
}
