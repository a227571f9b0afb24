//! A peer's region, as its description says.

use polyrail_proto::published::RegionDescription;
use polyrail_proto::{InstanceId, RegionKey};

use crate::base::error::RegionError;
use crate::memory::access::{Access, check_range};

/// A peer's region, as its description says; made by [`crate::Engine::import`].
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// assert_eq!((remote.len(), remote.is_empty()), (4096, false));
/// assert_eq!((remote.access(), remote.is_on_device()), (polyrail::Access::ALL, false));
/// assert!(remote.slice(4090, 10).is_err());
/// engine.write(&peer, &local.all(), &remote.all())?.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteRegion {
    pub(crate) instance: InstanceId,
    pub(crate) key: RegionKey,
    len: u64,
    access: Access,
    is_on_device: bool,
}

/// A part of a [`RemoteRegion`], for requests.
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// let slice = remote.slice(4000, 0)?;
/// assert_eq!((slice.len(), slice.is_empty()), (0, true));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteSlice {
    pub(crate) region: RemoteRegion,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl RemoteRegion {
    /// Decodes a description made by [`Region::describe`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, RegionError> {
        let told = RegionDescription::decode(bytes);
        let told = told.map_err(|what| RegionError::Description { what })?;
        let RegionDescription { instance, key, len, may_read, may_write, is_on_device } = told;
        let access = Access { remote_read: may_read, remote_write: may_write };
        Ok(Self { instance, key, len, access, is_on_device })
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether its bytes are in a device's memory, such as a GPU's.
    pub fn is_on_device(&self) -> bool {
        self.is_on_device
    }

    /// Returns the access that its engine grants.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Returns the slice of `len` bytes from `offset` on.
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteSlice, RegionError> {
        check_range(offset, len, self.len)?;
        Ok(RemoteSlice { region: *self, offset, len })
    }

    /// Returns the whole region as a slice.
    pub fn all(&self) -> RemoteSlice {
        RemoteSlice { region: *self, offset: 0, len: self.len }
    }
}

impl RemoteSlice {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
