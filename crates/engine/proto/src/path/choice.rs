//! Paths of requests for which the plan left a choice.

use std::borrow::Cow;

use super::kind::{PathKind, TransferPath};
use super::reason::{PathObstacle, PathReason};

impl TransferPath {
    /// Returns the path of a request for which the setting `path` names shared memory.
    pub fn forced_to_share(shares: Result<(), PathObstacle>) -> Self {
        match shares {
            Ok(()) => Self::new(PathKind::Shared, PathReason::Setting),
            Err(why) => {
                let reason = PathReason::SettingNotPossible(why.clone());
                Self::new(PathKind::Tcp, reason).without(PathKind::Shared, why)
            }
        }
    }

    /// Returns the path of a request that no device copies from end to end, for the reason `no_copy`, and no device and
    /// CPUs together, for the reason `no_stages` if these were to. `shares` tells whether shared memory is possible.
    pub fn not_copied_by_devices(
        no_copy: PathObstacle,
        no_stages: Option<PathObstacle>,
        shares: Result<(), PathObstacle>,
    ) -> Self {
        let path = match &shares {
            Err(against) if *against == no_copy => Self::new(PathKind::Tcp, no_copy.clone()),
            _ => Self::not_copied(no_copy.clone(), &shares, PathReason::NoPeerCopy),
        };
        let path = path.without(PathKind::PeerCopy, no_copy);
        let others = [(PathKind::SingleCopy, no_stages), (PathKind::Shared, shares.err())];
        let others = others.into_iter().filter_map(|(kind, why)| Some((kind, why?)));
        others.fold(path, |path, (kind, why)| path.without(kind, why))
    }

    /// Returns the path of a request between host memories of this host that CPUs can't copy at once, for the reason
    /// `no_copy`. `shares` tells whether they can copy it through memory that both processes have open.
    pub fn not_copied_by_cpus(no_copy: PathObstacle, shares: Result<(), PathObstacle>) -> Self {
        let path = Self::not_copied(no_copy.clone(), &shares, PathReason::NoSingleCopy);
        let path = path.without_copies(no_copy);
        match shares {
            Ok(()) => path,
            Err(against) => path.without(PathKind::Shared, against),
        }
    }

    /// Returns the path of a request between host memories of this host that can only take the rails, since CPUs don't
    /// copy it.
    pub fn only_rails(no_copy: PathObstacle) -> Self {
        Self::new(PathKind::Tcp, no_copy.clone()).without_copies(no_copy)
    }

    fn without_copies(self, no_copy: PathObstacle) -> Self {
        let path = self.without(PathKind::PeerCopy, PathObstacle::NoDevice);
        path.without(PathKind::SingleCopy, no_copy)
    }

    fn not_copied(
        no_copy: PathObstacle,
        shares: &Result<(), PathObstacle>,
        reason: fn(PathObstacle) -> PathReason,
    ) -> Self {
        match shares.clone() {
            Ok(()) => Self::new(PathKind::Shared, reason(no_copy)),
            Err(no_sharing) => {
                let reason = PathReason::NeitherCopiedNorShared { no_copy, no_sharing };
                Self::new(PathKind::Tcp, reason)
            }
        }
    }
}

impl PathObstacle {
    /// Returns why CPUs do not copy a short request. `streams` tells whether the connections to the peer go through
    /// shared memory or why not, if this was tried.
    pub fn of_short(streams: Option<Result<(), Cow<'static, str>>>) -> Self {
        match streams {
            Some(Ok(())) => Self::ShortAndStreamed,
            Some(Err(why)) => Self::ShortNotStreamed(why),
            None => Self::Short,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPY: PathObstacle = PathObstacle::NearHostMemory;
    const SHARE: PathObstacle = PathObstacle::OtherHost;

    fn check(path: &TransferPath, kind: PathKind, reason: impl Into<PathReason>, not: &[PathKind]) {
        assert_eq!((path.kind, &path.reason), (kind, &reason.into()));
        assert!(path.not_possible().iter().map(|(kind, _)| kind).eq(not), "{path:?}");
    }

    #[test]
    fn a_path_that_shares_is_taken_where_nothing_copies_and_else_the_rails_with_all_reasons() {
        use PathKind::{PeerCopy, Shared, SingleCopy, Tcp};
        let neither = PathReason::NeitherCopiedNorShared { no_copy: COPY, no_sharing: SHARE };
        let by_devices = TransferPath::not_copied_by_devices;
        check(&by_devices(COPY, None, Ok(())), Shared, PathReason::NoPeerCopy(COPY), &[PeerCopy]);
        let path = by_devices(COPY, Some(PathObstacle::Long), Err(SHARE));
        check(&path, Tcp, neither.clone(), &[PeerCopy, SingleCopy, Shared]);
        check(&by_devices(SHARE, None, Err(SHARE)), Tcp, SHARE, &[PeerCopy, Shared]);

        let by_cpus = TransferPath::not_copied_by_cpus;
        let path = by_cpus(COPY, Ok(()));
        check(&path, Shared, PathReason::NoSingleCopy(COPY), &[PeerCopy, SingleCopy]);
        check(&by_cpus(COPY, Err(SHARE)), Tcp, neither, &[PeerCopy, SingleCopy, Shared]);
        let same = PathReason::NeitherCopiedNorShared { no_copy: SHARE, no_sharing: SHARE };
        check(&by_cpus(SHARE, Err(SHARE)), Tcp, same, &[PeerCopy, SingleCopy, Shared]);
        check(&TransferPath::only_rails(COPY), Tcp, COPY, &[PeerCopy, SingleCopy]);

        let forced = TransferPath::forced_to_share;
        check(&forced(Ok(())), Shared, PathReason::Setting, &[]);
        check(&forced(Err(SHARE)), Tcp, PathReason::SettingNotPossible(SHARE), &[Shared]);
    }
}
