//! Ways for the bytes of a request to travel.

use std::fmt;

use smallvec::SmallVec;

use super::reason::{PathObstacle, PathReason};

/// Way for the bytes of a request to travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathKind {
    /// TCP over the rails, and through pinned host memory where an end is a device.
    Tcp,
    /// Through pinned host memory that both processes have open; only headers and acknowledgements take the rails.
    Shared,
    /// A device copies from memory to memory.
    PeerCopy,
    /// CPUs of this host copy from host memory to host memory, once.
    SingleCopy,
}

/// Path of the bytes of a request, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferPath {
    /// Kind of path.
    pub kind: PathKind,
    /// Reason for the choice.
    pub reason: PathReason,
    not_possible: SmallVec<[(PathKind, PathObstacle); 3]>,
}

impl PathKind {
    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shared => "shared memory",
            Self::PeerCopy => "peer copy",
            Self::SingleCopy => "single copy",
        }
    }
}

impl TransferPath {
    /// Returns a path of this kind, taken for this reason.
    pub fn new(kind: PathKind, reason: impl Into<PathReason>) -> Self {
        Self { kind, reason: reason.into(), not_possible: SmallVec::new() }
    }

    /// Adds a path that would have been better, though not as good as those added before.
    #[must_use]
    pub fn without(mut self, kind: PathKind, why: PathObstacle) -> Self {
        self.not_possible.push((kind, why));
        self
    }

    /// Returns the paths that would have been better and are not possible, best first, with the reason of each.
    pub fn not_possible(&self) -> &[(PathKind, PathObstacle)] {
        &self.not_possible
    }
}

impl fmt::Display for TransferPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.reason)
    }
}
