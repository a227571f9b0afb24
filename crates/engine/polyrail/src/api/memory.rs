//! Memory of an engine: registration, mailboxes, and the import of descriptions of peers' regions.

use std::sync::{Arc, Once};

use polyrail_config::PathChoice;
use polyrail_sys::{Memory, Protection, first_denied};

use crate::api::engine::Engine;
use crate::api::error::RegionError;
use crate::api::register::Registrable;
use crate::memory::access::Access;
use crate::memory::region::Region;
use crate::memory::region_memory::RegionMemory;
use crate::memory::registry::{Mailbox, OpenMailbox};
use crate::memory::remote_region::RemoteRegion;

impl Engine {
    /// Registers memory of the host or of a device for transfers. Peers may use it, as far as its [`crate::Access`]
    /// allows, once they have its description. Overlapping registrations are independent of each other.
    ///
    /// Transfers of a device's memory, such as a GPU's, take the same calls as those of host memory, and may go between
    /// the two. Copies to and from the device overlap the sending.
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
    /// Work that the device does with the memory must be complete before a transfer is posted: the engine's copies wait
    /// for no other stream.
    ///
    /// # Errors
    /// - The first or the last byte of host memory can't be read, so the address or the length is wrong. With
    ///   `path=device` the engine does not check this.
    /// - Host memory does not allow the access that peers have: some part is not mapped, can't be read though peers may
    ///   read it, or can't be written though peers may write it.
    /// - The memory is of a file ([`Memory::map_file`]), and the engine has rails of a plugin.
    /// - A device, or its driver, fails to do what was asked.
    /// - The engine is closed.
    pub fn register(&self, memory: impl Registrable) -> Result<Region, RegionError> {
        self.check_open()?;
        let (memory, access, granted) = memory.exposed().into_parts();
        // With that setting, avoid the call: a seccomp filter may kill a process that makes it.
        let may_look = self.config().path != PathChoice::Device;
        let host = memory.host().filter(|_| may_look);
        if let Some((memory, at)) = host.and_then(|host| Some((host, host.missing()?))) {
            let (base, len) = (memory.address(0, 0).unwrap_or(at), memory.len());
            return Err(RegionError::NotThere { base, len, at });
        }
        if let RegionMemory::Host(memory) = &memory {
            check_protection(memory, access)?;
            check_file(memory, self.shared().host.is_some())?;
        }
        self.shared().registry.register(self.shared().card.instance, memory, access, granted)
    }

    /// Opens a [`Mailbox`]: peers that have its description write to it, and it decides where the bytes go.
    ///
    /// # Errors
    /// The engine is closed, or has as many regions and mailboxes as it may.
    pub fn open(&self, mailbox: Arc<dyn Mailbox>) -> Result<OpenMailbox, RegionError> {
        self.check_open()?;
        self.shared().registry.open(self.shared().card.instance, mailbox)
    }

    /// Decodes the description of a peer's region; see [`RemoteRegion`]. Also works on a closed engine.
    pub fn import(&self, description: &[u8]) -> Result<RemoteRegion, RegionError> {
        RemoteRegion::decode(description)
    }

    /// Refuses in a copy of the process, and on a closed engine: no peer reaches them.
    fn check_open(&self) -> Result<(), RegionError> {
        match self.shared() {
            shared if shared.is_forked() => Err(RegionError::Forked),
            shared if shared.is_closed() => Err(RegionError::Closed),
            _ => Ok(()),
        }
    }
}

/// Refuses memory that does not allow the access that peers have: a peer's write would kill this process.
fn check_protection(memory: &Memory, access: Access) -> Result<(), RegionError> {
    static REPORT: Once = Once::new();
    let needs = Protection { read: access.remote_read, write: access.remote_write };
    if memory.is_empty() || !(needs.read || needs.write) {
        return Ok(());
    }
    let (base, len) = (memory.address(0, 0)?, memory.len());
    match first_denied(base, len, needs) {
        Ok(None) => Ok(()),
        Ok(Some(denied)) => {
            let (does, allows) = (words(needs), denied.protection.map_or("not mapped", words_of));
            Err(RegionError::Protected { base, len, at: denied.at, needs: does, allows })
        }
        Err(error) => {
            REPORT.call_once(|| {
                tracing::info!(target: "polyrail::engine", %error,
                    "regions are registered without a look at their protection: /proc/self/maps is hidden");
            });
            Ok(())
        }
    }
}

/// Refuses memory of a file where a plugin would touch it: a file that is cut off would end this process.
fn check_file(memory: &Memory, is_for_plugin: bool) -> Result<(), RegionError> {
    match is_for_plugin && memory.address(0, memory.len()).is_err() {
        true => Err(RegionError::FileWithPlugin),
        false => Ok(()),
    }
}

fn words(needs: Protection) -> &'static str {
    match needs {
        Protection { write: false, .. } => "read",
        Protection { read: false, .. } => "write",
        _ => "read and write",
    }
}

fn words_of(mapping: Protection) -> &'static str {
    match mapping {
        Protection { read: false, write: false } => "mapped without access",
        Protection { write: false, .. } => "mapped read-only",
        _ => "mapped write-only",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_file_is_refused_where_a_plugin_would_touch_it() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10).unwrap();
        let (mapped, plain) = (Memory::map_file(&file, 3, 7).unwrap(), Memory::from(vec![0; 7]));
        assert_eq!(check_file(&mapped, true), Err(RegionError::FileWithPlugin));
        assert_eq!((check_file(&mapped, false), check_file(&plain, true)), (Ok(()), Ok(())));
    }
}
