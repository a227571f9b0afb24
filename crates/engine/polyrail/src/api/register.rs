//! Memory that can be registered, and the access that peers get.

use std::sync::Arc;

use polyrail_gpu::DeviceMemory;
use polyrail_proto::InstanceId;
use polyrail_sys::Memory;

use crate::memory::access::Access;
use crate::memory::region_memory::RegionMemory;

/// Memory that [`crate::Engine::register`] takes: the host's ([`Memory`], `Vec<u8>`) or a device's ([`DeviceMemory`]).
/// By default peers may read and write it ([`Access::ALL`]):
///
/// ```
#[doc = include_str!("../../doc/two_engines.txt")]
/// use polyrail::{Access, RefusalCode, Registrable};
///
/// let weights = other.register(Memory::from(vec![1; 64]).with_access(Access::READ))?;
/// let weights = engine.import(&weights.describe())?;
/// let error = engine.write(&peer, &local.slice(0, 64)?, &weights.all())?.join().unwrap_err();
/// assert!(matches!(error, TransferError::Refused { code: RefusalCode::AccessDenied, .. }));
/// engine.read(&peer, &local.slice(0, 64)?, &weights.all())?.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Registrable: sealed::Sealed + Sized {
    /// Returns the same memory, with this access for peers.
    fn with_access(self, access: Access) -> WithAccess {
        WithAccess { access, ..self.exposed() }
    }

    /// Returns the same memory, for these peers only: others are refused, even if they have its description. A peer
    /// that comes again as a new run is a different peer.
    ///
    /// ```
    #[doc = include_str!("../../doc/two_engines.txt")]
    /// use polyrail::{RefusalCode, Registrable};
    ///
    /// let nobody: [polyrail::InstanceId; 0] = [];
    /// let hidden = other.register(Memory::from(vec![1; 64]).granted_to(nobody))?;
    /// let shown = other.register(Memory::from(vec![1; 64]).granted_to([engine.instance()]))?;
    /// let read = |description: &[u8]| {
    ///     let remote = engine.import(description).expect("it is one");
    ///     engine.read(&peer, &local.slice(0, 64).expect("4096 bytes"), &remote.all())
    /// };
    /// let error = read(&hidden.describe())?.join().unwrap_err();
    /// assert!(matches!(error, TransferError::Refused { code: RefusalCode::AccessDenied, .. }));
    /// read(&shown.describe())?.join()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    fn granted_to(self, peers: impl IntoIterator<Item = InstanceId>) -> WithAccess {
        WithAccess { granted: Some(peers.into_iter().collect()), ..self.exposed() }
    }
}

/// Memory with the access that peers get; see [`Registrable`].
#[derive(Debug)]
pub struct WithAccess {
    memory: RegionMemory,
    access: Access,
    /// Set if not all peers may use it.
    granted: Option<Arc<[InstanceId]>>,
}

mod sealed {
    pub trait Sealed {
        /// Returns the memory with its access, which is the default unless it was set.
        fn exposed(self) -> super::WithAccess;
    }
}

impl WithAccess {
    pub(crate) fn into_parts(self) -> (RegionMemory, Access, Option<Arc<[InstanceId]>>) {
        (self.memory, self.access, self.granted)
    }
}

impl Registrable for Memory {}
impl Registrable for Vec<u8> {}
impl Registrable for DeviceMemory {}
impl Registrable for WithAccess {}

impl sealed::Sealed for Memory {
    fn exposed(self) -> WithAccess {
        WithAccess { memory: RegionMemory::Host(self), access: Access::ALL, granted: None }
    }
}

impl sealed::Sealed for Vec<u8> {
    fn exposed(self) -> WithAccess {
        Memory::from(self).exposed()
    }
}

impl sealed::Sealed for DeviceMemory {
    fn exposed(self) -> WithAccess {
        WithAccess { memory: RegionMemory::Device(self), access: Access::ALL, granted: None }
    }
}

impl sealed::Sealed for WithAccess {
    fn exposed(self) -> WithAccess {
        self
    }
}
