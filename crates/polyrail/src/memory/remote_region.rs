//! What a peer's region is here: what its description tells, and how a region describes itself.

use polyrail_proto::published::{REGION_MAGIC, recognise};
use polyrail_proto::{InstanceId, RegionKey};

use crate::base::error::RegionError;
use crate::memory::access::{Access, check_range};

const DESCRIPTION_VERSION: u8 = 1;
const DESCRIPTION_BYTES: usize = 46;

/// A peer's region, as its description tells; made by [`crate::Engine::import`].
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

pub(super) fn describe(
    instance: InstanceId,
    key: RegionKey,
    len: u64,
    access: Access,
    is_on_device: bool,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(DESCRIPTION_BYTES);
    out.extend_from_slice(&REGION_MAGIC);
    out.push(DESCRIPTION_VERSION);
    let flags = [access.remote_read, access.remote_write, is_on_device];
    out.push(flags.iter().rev().fold(0, |bits, flag| bits << 1 | u8::from(*flag)));
    out.extend_from_slice(&instance.0.to_le_bytes());
    out.extend_from_slice(&key.slot.to_le_bytes());
    out.extend_from_slice(&key.generation.to_le_bytes());
    out.extend_from_slice(&key.nonce.to_le_bytes());
    out.extend_from_slice(&len.to_le_bytes());
    out
}

impl RemoteRegion {
    /// Reads what [`Region::describe`] made.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, RegionError> {
        let bad = |what| RegionError::Description { what };
        if let Some(what) = recognise(bytes).filter(|_| !bytes.starts_with(&REGION_MAGIC)) {
            return Err(bad(what));
        }
        let bytes: &[u8; DESCRIPTION_BYTES] = bytes
            .try_into()
            .map_err(|_| bad("they must be the 46 bytes that `describe()` returned"))?;
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(bad("there are none"))?;
        if *magic != REGION_MAGIC {
            return Err(bad("they do not begin like one"));
        }
        if rest[0] != DESCRIPTION_VERSION {
            return Err(bad("they were made by another version"));
        }
        let access = Access { remote_read: rest[1] & 1 != 0, remote_write: rest[1] & 2 != 0 };
        let u64_at = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&rest[at..at + 8]);
            u64::from_le_bytes(word)
        };
        // Both halves of the 128-bit instance, low word first.
        let instance = InstanceId(u128::from(u64_at(2)) | u128::from(u64_at(10)) << 64);
        let slots = u64_at(18);
        let key =
            RegionKey { slot: slots as u32, generation: (slots >> 32) as u32, nonce: u64_at(26) };
        let is_on_device = rest[1] & 4 != 0;
        Ok(Self { instance, key, len: u64_at(34), access, is_on_device })
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

    /// What its engine allows.
    pub fn access(&self) -> Access {
        self.access
    }

    /// `len` bytes from `offset` on.
    pub fn slice(&self, offset: u64, len: u64) -> Result<RemoteSlice, RegionError> {
        check_range(offset, len, self.len)?;
        Ok(RemoteSlice { region: *self, offset, len })
    }

    /// All of it.
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
