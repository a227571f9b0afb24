//! Access of peers to a region, and the check of its bounds.

use polyrail_sys::OutOfRange;

use crate::base::error::RegionError;

/// Access that peers have to a region: [`Access::ALL`], unless set with [`crate::Registrable::with_access`].
///
/// ```
/// use polyrail::Access;
///
/// assert_eq!(Access::ALL, Access { remote_read: true, remote_write: true });
/// assert_eq!(Access::READ, Access { remote_read: true, remote_write: false });
/// assert_eq!(Access::WRITE, Access { remote_read: false, remote_write: true });
/// assert_eq!(Access::LOCAL, Access { remote_read: false, remote_write: false });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// Peers may read it with [`crate::Engine::read`].
    pub remote_read: bool,
    /// Peers may write it with [`crate::Engine::write`].
    pub remote_write: bool,
}

impl Access {
    /// Peers may read and write: the default.
    pub const ALL: Self = Self { remote_read: true, remote_write: true };
    /// Peers may read, and not write.
    pub const READ: Self = Self { remote_read: true, remote_write: false };
    /// Peers may write, and not read.
    pub const WRITE: Self = Self { remote_read: false, remote_write: true };
    /// Peers may neither read nor write: only this engine's own transfers use the region.
    pub const LOCAL: Self = Self { remote_read: false, remote_write: false };
}

impl From<OutOfRange> for RegionError {
    fn from(error: OutOfRange) -> Self {
        Self::OutOfBounds { offset: error.offset, len: error.len, size: error.size }
    }
}

pub(super) fn check_range(offset: u64, len: u64, size: u64) -> Result<(), RegionError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(RegionError::OutOfBounds { offset, len, size }),
    }
}
