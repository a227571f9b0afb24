//! Identifiers. Each has its own type, so one can't be used for another.

use std::fmt;
use std::time::Duration;

/// One run of one engine: the first 128 bits of a hash of its public key.
///
/// A peer that restarts has another instance; messages for the old one never reach the new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceId(pub u128);

impl fmt::Display for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The first 32 bits tell two engines apart in a log; equality always uses all 128.
        write!(f, "{:08x}", (self.0 >> 96) as u32)
    }
}

impl fmt::Debug for InstanceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A transfer of one sender to one peer; counts up from 1 without gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransferId(pub u64);

impl fmt::Display for TransferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// Key that a peer must present to access a registered region.
///
/// `slot` finds the region. `generation` says which registration of the slot is meant (for a readable error). `nonce`
/// is 64 random bits, known only to peers that were given the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RegionKey {
    /// Index in the registration table.
    pub slot: u32,
    /// Number of regions that the slot has held before, plus one.
    pub generation: u32,
    /// Random bits drawn at registration.
    pub nonce: u64,
}

/// A flow of one direction between two engines: `channel * sockets + socket`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FlowIndex(pub u32);

impl fmt::Display for FlowIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flow {}", self.0)
    }
}

/// A point in time, in nanoseconds since an origin that the driver chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// Returns the time since `earlier`; zero if it is not in the past.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Returns the time `delay` later; saturates far in the future.
    pub fn after(self, delay: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX)))
    }
}
