//! How the bytes of a request travel.

use std::fmt;

use smallvec::SmallVec;

use super::reason::{PathObstacle, PathReason};

/// How the bytes of a request travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PathKind {
    /// TCP over the rails, and through pinned host memory where an end is a device.
    Tcp,
    /// Through pinned host memory that both processes have open; only heads and acknowledgements
    /// take the rails.
    Shared,
    /// A device copies from memory to memory.
    PeerCopy,
    /// CPUs of this host copy from host memory to host memory, once.
    SingleCopy,
}

/// How the bytes of a request travel, and why so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferPath {
    /// How.
    pub kind: PathKind,
    /// Why.
    pub reason: PathReason,
    not_possible: SmallVec<[(PathKind, PathObstacle); 3]>,
}

impl PathKind {
    /// What it is called.
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
    /// A path that is taken for a reason of its own.
    pub fn new(kind: PathKind, reason: impl Into<PathReason>) -> Self {
        Self { kind, reason: reason.into(), not_possible: SmallVec::new() }
    }

    /// Adds a path that would have been better, though not as good as those added before.
    #[must_use]
    pub fn without(mut self, kind: PathKind, why: PathObstacle) -> Self {
        self.not_possible.push((kind, why));
        self
    }

    /// Paths that would have been better and are not possible, best first, with the reason of each.
    pub fn not_possible(&self) -> &[(PathKind, PathObstacle)] {
        &self.not_possible
    }
}

impl fmt::Display for TransferPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.reason)
    }
}
