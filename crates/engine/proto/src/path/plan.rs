//! Paths that are open between two kinds of memory, here and at a peer. Nothing that this depends on changes while the
//! peer is known, so it is decided once. Only the length and the regions are left to each request.

use std::fmt;
use std::sync::OnceLock;

use super::kind::{PathKind, TransferPath};
use super::reason::{OnlyPath, PathObstacle, PathReason};

/// Kind of the memory at one end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Host memory.
    Host,
    /// Memory of devices.
    Device,
    /// Parts of either kind.
    Both,
}

/// Other end of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FarEnd {
    /// Regions of the peer.
    Memory(MemoryKind),
    /// A receive of the peer, for a send from here.
    Receive,
    /// A send of the peer, for a receive here.
    Send,
}

/// Location of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerPlace {
    /// On another host.
    OtherHost,
    /// In another process of this host.
    ThisHost,
    /// In this process. Holds the settings of its engine.
    ThisProcess(PathSettings),
}

/// Settings of an engine that choose paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSettings {
    /// The only path that they allow, if they name one.
    pub only: Option<OnlyPath>,
    /// CPUs may copy from end to end.
    pub single_copy: bool,
}

/// Decision on a path, as far as it is the same for all requests between two kinds of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPlan {
    /// The rails.
    Rails(TransferPath),
    /// Shared memory, because the setting `path` names it.
    Shared,
    /// CPUs copy, if that is worth it and possible.
    CopyByCpus,
    /// A device copies, if it reaches both ends.
    CopyByDevice,
    /// Shared memory or, if that is not possible, the rails: nothing copies from end to end.
    Share {
        /// Reason why nothing copies from end to end.
        no_copy: PathObstacle,
        /// Short requests may go by a stage instead of shared memory.
        stages: Stages,
    },
}

/// Cooperation of a device and CPUs on a short request, by a stage in pinned memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stages {
    /// The two kinds of memory need no stage, or none helps them.
    Unfit,
    /// The settings forbid it, for this reason.
    Forbidden(PathObstacle),
    /// Used, if the request is short and both copies are possible.
    Possible,
}

/// Plans for a peer, each made for the first request that needs it.
#[derive(Default)]
pub struct PathPlans([OnceLock<PathPlan>; MemoryKind::COUNT * FarEnd::COUNT]);

impl PathSettings {
    /// Returns why the settings forbid a single copy, if they do.
    pub fn no_single_copy(self) -> Option<PathObstacle> {
        match (self.only, self.single_copy) {
            (None, true) => None,
            (None, false) => Some(PathObstacle::NoCopiesByCpus),
            (Some(path), _) => Some(PathObstacle::PathSetting(path)),
        }
    }
}

impl MemoryKind {
    const COUNT: usize = 3;
    const ALL: [Self; Self::COUNT] = [Self::Host, Self::Device, Self::Both];

    /// Returns the kind of memory of several parts, given for each whether it is in a device's memory.
    pub fn of(are_on_device: impl Iterator<Item = bool>) -> Self {
        let (mut device, mut host) = (false, false);
        are_on_device
            .for_each(|is_on_device| *(if is_on_device { &mut device } else { &mut host }) = true);
        match (device, host) {
            (true, true) => Self::Both,
            (true, false) => Self::Device,
            (false, _) => Self::Host,
        }
    }
}

impl FarEnd {
    const COUNT: usize = MemoryKind::COUNT + 2;
    const ALL: [Self; Self::COUNT] = [
        Self::Memory(MemoryKind::Host),
        Self::Memory(MemoryKind::Device),
        Self::Memory(MemoryKind::Both),
        Self::Receive,
        Self::Send,
    ];

    #[inline]
    fn number(self) -> usize {
        match self {
            Self::Memory(kind) => kind as usize,
            Self::Receive => MemoryKind::COUNT,
            Self::Send => MemoryKind::COUNT + 1,
        }
    }

    /// Returns whether a device's memory may be part of a request.
    fn has_device(self) -> bool {
        matches!(self, Self::Memory(MemoryKind::Device | MemoryKind::Both))
    }
}

impl PathPlans {
    /// Returns the plan for requests between these kinds of memory, decided by `decide` for the first one.
    pub fn between(
        &self,
        near: MemoryKind,
        far: FarEnd,
        decide: impl FnOnce() -> PathPlan,
    ) -> &PathPlan {
        self.cell(near, far).get_or_init(decide)
    }

    /// Returns the path of all requests between these kinds of memory, if it was decided before that the rails carry
    /// them.
    #[inline]
    pub fn rails_between(&self, near: MemoryKind, far: FarEnd) -> Option<&TransferPath> {
        match self.cell(near, far).get()? {
            PathPlan::Rails(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the plans decided so far, with the kinds of memory that they are for.
    pub fn known(&self) -> impl Iterator<Item = (MemoryKind, FarEnd, &PathPlan)> {
        let all = self.0.iter().zip(0..);
        all.filter_map(|(plan, number): (_, usize)| {
            let (near, far) = (number / FarEnd::COUNT, number % FarEnd::COUNT);
            Some((MemoryKind::ALL[near], FarEnd::ALL[far], plan.get()?))
        })
    }

    #[inline]
    fn cell(&self, near: MemoryKind, far: FarEnd) -> &OnceLock<PathPlan> {
        &self.0[near as usize * FarEnd::COUNT + far.number()]
    }
}

impl PathPlan {
    /// Returns the plan of an engine with these settings.
    pub fn new(settings: PathSettings, place: PeerPlace, near: MemoryKind, far: FarEnd) -> Self {
        if settings.only == Some(OnlyPath::Shared) {
            return Self::Shared;
        }
        if near == MemoryKind::Host && !far.has_device() {
            return Self::between_host_memories(settings, place, far);
        }
        if settings.only == Some(OnlyPath::Tcp) {
            return Self::Rails(TransferPath::new(PathKind::Tcp, PathReason::Setting));
        }
        let FarEnd::Memory(far) = far else { return Self::share(PathObstacle::NotMatched) };
        match (place, near, far) {
            (PeerPlace::OtherHost, ..) => Self::share(PathObstacle::OtherHost),
            (PeerPlace::ThisProcess(peer), ..) if peer.only.is_some() => {
                Self::share(PathObstacle::PeerSettings)
            }
            (PeerPlace::ThisProcess(_), ..)
            | (PeerPlace::ThisHost, MemoryKind::Device | MemoryKind::Both, MemoryKind::Device) => {
                Self::CopyByDevice
            }
            (PeerPlace::ThisHost, MemoryKind::Device, MemoryKind::Host) => Self::Share {
                no_copy: PathObstacle::FarHostMemory,
                stages: settings.no_single_copy().map_or(Stages::Possible, Stages::Forbidden),
            },
            (PeerPlace::ThisHost, _, MemoryKind::Host | MemoryKind::Both) => {
                Self::share(PathObstacle::FarHostMemory)
            }
            (PeerPlace::ThisHost, MemoryKind::Host, MemoryKind::Device) => {
                Self::share(PathObstacle::NearHostMemory)
            }
        }
    }

    fn share(no_copy: PathObstacle) -> Self {
        Self::Share { no_copy, stages: Stages::Unfit }
    }

    fn between_host_memories(settings: PathSettings, place: PeerPlace, far: FarEnd) -> Self {
        let against = match (settings.no_single_copy(), place) {
            (_, PeerPlace::OtherHost) => {
                return Self::Rails(TransferPath::new(PathKind::Tcp, PathObstacle::NoDevice));
            }
            (Some(why), _) => Some(why),
            (None, _) if far == FarEnd::Send => Some(PathObstacle::NotMatched),
            (None, PeerPlace::ThisProcess(peer)) => {
                peer.no_single_copy().map(|_| PathObstacle::PeerSettings)
            }
            (None, PeerPlace::ThisHost) => None,
        };
        match against {
            Some(why) => Self::Rails(TransferPath::only_rails(why)),
            None => Self::CopyByCpus,
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Host => "host memory",
            Self::Device => "a device's memory",
            Self::Both => "memory of host and devices",
        })
    }
}

impl fmt::Display for FarEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(kind) => write!(f, "{kind} of the peer"),
            Self::Receive => f.write_str("receives of the peer"),
            Self::Send => f.write_str("sends of the peer"),
        }
    }
}

/// For people. Choices that depend on the single request are left out.
impl fmt::Display for PathPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rails(path) => path.fmt(f),
            Self::Shared => write!(f, "shared memory: {}", PathReason::Setting),
            Self::CopyByCpus => f.write_str("single copy"),
            Self::CopyByDevice => f.write_str("peer copy"),
            Self::Share { stages: Stages::Possible, .. } => {
                f.write_str("single copy of short requests, shared memory")
            }
            Self::Share { no_copy, .. } => write!(f, "shared memory: {no_copy}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryKind::{Both, Device, Host};
    use super::*;

    const AUTO: PathSettings = PathSettings { only: None, single_copy: true };
    const OFF: PathSettings = PathSettings { single_copy: false, ..AUTO };
    const TCP: PathSettings = PathSettings { only: Some(OnlyPath::Tcp), ..AUTO };
    const HERE: PeerPlace = PeerPlace::ThisProcess(AUTO);

    #[test]
    fn each_two_kinds_of_memory_have_a_plan() {
        use PathPlan::{CopyByCpus, CopyByDevice, Shared};
        use PeerPlace::{OtherHost, ThisHost, ThisProcess};
        let memory = FarEnd::Memory;
        let setting = PathPlan::Rails(TransferPath::new(PathKind::Tcp, PathReason::Setting));
        let rails = |why| PathPlan::Rails(TransferPath::only_rails(why));
        let staged = |stages| PathPlan::Share { no_copy: PathObstacle::FarHostMemory, stages };
        let forbidden = |why| staged(Stages::Forbidden(why));
        let other_host = TransferPath::new(PathKind::Tcp, PathObstacle::NoDevice);
        for (settings, place, near, far, plan) in [
            (AUTO, ThisHost, Host, memory(Host), CopyByCpus),
            (AUTO, HERE, Host, FarEnd::Receive, CopyByCpus),
            (AUTO, ThisHost, Host, FarEnd::Send, rails(PathObstacle::NotMatched)),
            (AUTO, OtherHost, Host, memory(Host), PathPlan::Rails(other_host)),
            (OFF, ThisHost, Host, memory(Host), rails(PathObstacle::NoCopiesByCpus)),
            (AUTO, ThisProcess(OFF), Host, memory(Host), rails(PathObstacle::PeerSettings)),
            (TCP, HERE, Device, memory(Device), setting.clone()),
            (TCP, ThisHost, Host, memory(Both), setting),
            (AUTO, ThisHost, Device, memory(Device), CopyByDevice),
            (AUTO, HERE, Host, memory(Device), CopyByDevice),
            (
                AUTO,
                ThisProcess(TCP),
                Host,
                memory(Device),
                PathPlan::share(PathObstacle::PeerSettings),
            ),
            (AUTO, ThisHost, Host, memory(Device), PathPlan::share(PathObstacle::NearHostMemory)),
            (AUTO, ThisHost, Both, memory(Host), PathPlan::share(PathObstacle::FarHostMemory)),
            (AUTO, ThisHost, Device, memory(Host), staged(Stages::Possible)),
            (OFF, ThisHost, Device, memory(Host), forbidden(PathObstacle::NoCopiesByCpus)),
            (AUTO, OtherHost, Device, memory(Device), PathPlan::share(PathObstacle::OtherHost)),
            (AUTO, ThisHost, Device, FarEnd::Receive, PathPlan::share(PathObstacle::NotMatched)),
            (
                PathSettings { only: Some(OnlyPath::Shared), ..AUTO },
                OtherHost,
                Host,
                memory(Host),
                Shared,
            ),
        ] {
            let got = PathPlan::new(settings, place, near, far);
            assert_eq!(got, plan, "{settings:?} {place:?} {near:?} {far:?}");
        }
    }

    #[test]
    fn a_plan_is_decided_once_for_each_two_kinds() {
        let plans = PathPlans::default();
        let kinds = [Host, Device, Both];
        let fars = kinds.map(FarEnd::Memory).into_iter().chain([FarEnd::Receive, FarEnd::Send]);
        let pairs = || fars.clone().flat_map(move |far| kinds.map(move |near| (near, far)));
        for (near, far) in pairs() {
            let why = PathObstacle::from(format!("{near:?} {far:?}"));
            plans.between(near, far, || PathPlan::share(why));
        }
        assert!(
            plans
                .known()
                .map(|(near, far, _)| (near, far))
                .eq(kinds.into_iter().flat_map(|near| fars.clone().map(move |far| (near, far))))
        );
        for (near, far) in pairs() {
            let plan = plans.between(near, far, || unreachable!("it is known"));
            assert_eq!(*plan, PathPlan::share(format!("{near:?} {far:?}").into()));
            assert_eq!(plans.rails_between(near, far), None);
        }
    }

    #[test]
    fn a_path_over_the_rails_is_known_once_it_was_decided() {
        let (plans, far) = (PathPlans::default(), FarEnd::Memory(Host));
        assert_eq!(plans.rails_between(Host, far), None);
        let path = TransferPath::only_rails(PathObstacle::NoCopiesByCpus);
        plans.between(Host, far, || PathPlan::Rails(path.clone()));
        assert_eq!(plans.rails_between(Host, far), Some(&path));
        assert_eq!(plans.rails_between(Device, far), None);
    }

    #[test]
    fn memory_of_several_parts_is_of_both_kinds_if_they_differ() {
        for (parts, kind) in
            [(&[][..], Host), (&[false, false], Host), (&[true], Device), (&[true, false], Both)]
        {
            assert_eq!(MemoryKind::of(parts.iter().copied()), kind);
        }
    }
}
