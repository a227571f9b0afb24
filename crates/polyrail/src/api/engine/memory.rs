//! Memory of an engine: what it registers, mailboxes, and descriptions of what peers have registered.

use std::sync::Arc;

use polyrail_config::SingleCopy;

use super::Engine;
use crate::api::error::RegionError;
use crate::api::register::Registrable;
use crate::memory::region::Region;
use crate::memory::registry::{Mailbox, OpenMailbox};
use crate::memory::remote_region::RemoteRegion;

impl Engine {
    /// Registers memory for transfers, the host's or a device's; peers may use it, as far as its
    /// [`crate::Access`] allows, once they have its description. Overlapping registrations are independent
    /// of each other.
    ///
    /// Transfers of a device's memory, such as a GPU's, take the same calls as those of host memory,
    /// and may go between the two. Copies to and from the device overlap the sending.
    ///
    /// ```no_run
    /// # fn example(engine: &polyrail::Engine, tensor: u64, bytes: u64) -> Result<(), Box<dyn std::error::Error>> {
    /// use polyrail::{Access, Cuda, Memory, Registrable};
    ///
    /// let local = engine.register(Memory::anonymous(64 << 20)?.with_access(Access::LOCAL))?;
    /// // Any pointer that CUDA knows: cudaMalloc's, PyTorch's `tensor.data_ptr()`.
    /// // SAFETY: the tensor lives until its region is dropped.
    /// let memory = unsafe { Cuda::load()?.memory_at(tensor, bytes)? };
    /// let region = engine.register(memory)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// What the device was given to do with the memory before a transfer is posted must be done: the
    /// engine's copies wait for no other stream.
    ///
    /// # Errors
    /// The first or the last byte of host memory can't be read, which says that the address or the length is
    /// wrong; what lies between is not looked at, and nothing is with `single_copy=off`. A device, or its driver, does not do what was asked.
    /// The engine is closed.
    pub fn register(&self, memory: impl Registrable) -> Result<Region, RegionError> {
        self.check_open()?;
        let (memory, access, granted) = memory.exposed().into_parts();
        // A filter that ends who makes such a call is met by that setting.
        let may_look = self.config().single_copy == SingleCopy::Auto;
        let host = memory.host().filter(|_| may_look);
        if let Some((memory, at)) = host.and_then(|host| Some((host, host.missing()?))) {
            let (base, len) = (memory.address(0, 0).unwrap_or(at), memory.len());
            return Err(RegionError::NotThere { base, len, at });
        }
        self.shared().registry.register(self.shared().card.instance, memory, access, granted)
    }

    /// Opens a [`Mailbox`]: peers that have its description write to it, and it decides where.
    ///
    /// # Errors
    /// The engine is closed, or has as many regions and mailboxes as it may.
    pub fn open(&self, mailbox: Arc<dyn Mailbox>) -> Result<OpenMailbox, RegionError> {
        self.check_open()?;
        self.shared().registry.open(self.shared().card.instance, mailbox)
    }

    /// Reads the description of a peer's region; see [`RemoteRegion`]. A closed engine reads them, too.
    pub fn import(&self, description: &[u8]) -> Result<RemoteRegion, RegionError> {
        RemoteRegion::decode(description)
    }

    /// A copy of the process registers nothing, and neither does a closed engine, for no peer reaches them.
    fn check_open(&self) -> Result<(), RegionError> {
        match self.shared() {
            shared if shared.is_forked() => Err(RegionError::Forked),
            shared if shared.is_closed() => Err(RegionError::Closed),
            _ => Ok(()),
        }
    }
}
