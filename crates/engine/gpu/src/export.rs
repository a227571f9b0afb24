//! Description of device memory, by which another process copies from and to it.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use crate::error::GpuError;

/// Most parts of exported memory: far more than the descriptors that a process may have open.
const PARTS_MAX: usize = 64 << 10;
const MAGIC: [u8; 4] = *b"PRX1";
const HEAD_BYTES: usize = 64;
const HANDLE_BYTES: usize = 64;

/// Device memory on its way to another process of this machine: bytes, and for memory that was mapped piece by piece
/// file descriptors, which travel over a Unix socket. An export does not keep the memory: the owner must keep it until
/// the other process has closed it.
#[derive(Debug)]
pub struct Export {
    pub(crate) process: [u8; 16],
    pub(crate) device: [u8; 16],
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) source: Source,
}

/// The memory that the range is a part of, from `offset` on.
#[derive(Debug)]
pub(crate) enum Source {
    /// An allocation of this size, by the driver's handle.
    Handle { handle: [u8; HANDLE_BYTES], size: u64 },
    /// Mapped parts that follow each other, with their sizes.
    Descriptors(Vec<(OwnedFd, u64)>),
}

impl Export {
    /// Returns the UUID of the device that holds the memory.
    pub fn device(&self) -> [u8; 16] {
        self.device
    }

    /// Size of the memory in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this process made the export.
    pub fn is_own(&self) -> bool {
        self.process == process()
    }

    /// Returns the parts to send: bytes, and descriptors in this order.
    pub fn into_parts(self) -> (Vec<u8>, Vec<OwnedFd>) {
        let (kind, count) = match &self.source {
            Source::Handle { .. } => (1_u32, 1),
            Source::Descriptors(parts) => (2, parts.len() as u32),
        };
        let mut out = Vec::with_capacity(HEAD_BYTES + HANDLE_BYTES + 8);
        out.extend(MAGIC);
        out.extend(kind.to_le_bytes());
        out.extend(self.process);
        out.extend(self.device);
        out.extend(self.offset.to_le_bytes());
        out.extend(self.len.to_le_bytes());
        out.extend(count.to_le_bytes());
        out.extend([0; 4]);
        let mut descriptors = Vec::new();
        match self.source {
            Source::Handle { handle, size } => {
                out.extend(handle);
                out.extend(size.to_le_bytes());
            }
            Source::Descriptors(parts) => {
                for (descriptor, size) in parts {
                    out.extend(size.to_le_bytes());
                    descriptors.push(descriptor);
                }
            }
        }
        (out, descriptors)
    }

    /// Decodes the parts that were sent. The bytes are untrusted: this checks what it can, and importing checks the
    /// rest against the memory itself.
    pub fn from_parts(bytes: &[u8], descriptors: Vec<OwnedFd>) -> Result<Self, GpuError> {
        let mut rest = bytes;
        let magic = take::<4>(&mut rest)?;
        let kind = u32::from_le_bytes(take(&mut rest)?);
        let process = take(&mut rest)?;
        let device = take(&mut rest)?;
        let offset = u64::from_le_bytes(take(&mut rest)?);
        let len = u64::from_le_bytes(take(&mut rest)?);
        let count = u32::from_le_bytes(take(&mut rest)?) as usize;
        let zero = u32::from_le_bytes(take(&mut rest)?);
        if magic != MAGIC || zero != 0 {
            return Err(bad("is of another version"));
        }
        let (source, size) = match kind {
            1 if count == 1 && descriptors.is_empty() => {
                let handle = take(&mut rest)?;
                let size = u64::from_le_bytes(take(&mut rest)?);
                (Source::Handle { handle, size }, size)
            }
            2 if count == descriptors.len() && (1..=PARTS_MAX).contains(&count) => {
                let mut parts = Vec::with_capacity(count);
                let mut total = 0_u64;
                for descriptor in descriptors {
                    let size = u64::from_le_bytes(take(&mut rest)?);
                    total = total.checked_add(size).ok_or_else(|| bad("has endless parts"))?;
                    if size == 0 {
                        return Err(bad("has an empty part"));
                    }
                    parts.push((descriptor, size));
                }
                (Source::Descriptors(parts), total)
            }
            1 | 2 => return Err(bad("has another number of file descriptors")),
            _ => return Err(bad("is of an unknown kind")),
        };
        if !rest.is_empty() {
            return Err(bad("is too long"));
        }
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(bad("goes beyond its allocation"));
        }
        Ok(Self { process, device, offset, len, source })
    }
}

/// A random number that identifies this process as long as it lives. PIDs repeat, and containers
/// use the same ones at the same time.
pub(crate) fn process() -> [u8; 16] {
    static PROCESS: OnceLock<[u8; 16]> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        // The standard library's hash maps have keys from the system's random source.
        let half = || RandomState::new().build_hasher().finish().to_le_bytes();
        let mut both = [0; 16];
        both[..8].copy_from_slice(&half());
        both[8..].copy_from_slice(&half());
        both
    })
}

pub(crate) fn bad(reason: &'static str) -> GpuError {
    GpuError::BadExport { reason }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], GpuError> {
    let (taken, left) = rest.split_first_chunk().ok_or_else(|| bad("is too short"))?;
    *rest = left;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn by_handle(offset: u64, len: u64, size: u64) -> Export {
        let source = Source::Handle { handle: [7; 64], size };
        Export { process: process(), device: [3; 16], offset, len, source }
    }

    fn descriptors(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect()
    }

    #[test]
    fn an_export_comes_back_from_its_bytes_and_descriptors() {
        let (bytes, none) = by_handle(4096, 100, 8192).into_parts();
        assert!(none.is_empty());
        let back = Export::from_parts(&bytes, none).unwrap();
        assert!(back.is_own() && back.len() == 100 && back.device() == [3; 16]);
        assert_eq!(back.into_parts().0, bytes);

        let parts = descriptors(3).into_iter().zip([10, 20, 30]).collect();
        let source = Source::Descriptors(parts);
        let export = Export { source, ..by_handle(5, 55, 60) };
        let (bytes, sent) = export.into_parts();
        assert_eq!(sent.len(), 3);
        let back = Export::from_parts(&bytes, sent).unwrap();
        let Source::Descriptors(parts) = back.source else { panic!("not by descriptors") };
        assert_eq!(parts.iter().map(|(_, size)| *size).collect::<Vec<_>>(), [10, 20, 30]);
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let reason = |export: Export, more: usize| {
            let (bytes, mut sent) = export.into_parts();
            sent.extend(descriptors(more));
            Export::from_parts(&bytes, sent).unwrap_err().to_string()
        };
        assert!(reason(by_handle(1, 100, 100), 0).contains("beyond its allocation"));
        assert!(reason(by_handle(u64::MAX, 2, 100), 0).contains("beyond its allocation"));
        assert!(reason(by_handle(0, 1, 100), 1).contains("file descriptors"));
        let parts = |sizes: &[u64]| {
            let parts = descriptors(sizes.len()).into_iter().zip(sizes.to_vec()).collect();
            Export { source: Source::Descriptors(parts), ..by_handle(0, 1, 1) }
        };
        assert!(reason(parts(&[1, 0]), 0).contains("empty part"));
        assert!(reason(parts(&[u64::MAX, 1]), 0).contains("endless"));
        assert!(reason(parts(&[1]), 1).contains("file descriptors"));
        assert!(reason(parts(&[]), 0).contains("file descriptors"));
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_it_is_an_export_or_an_error(
            mut bytes in prop::collection::vec(any::<u8>(), 0..200), starts_well in any::<bool>(),
        ) {
            if starts_well && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(b"PRX1\x01\0\0\0");
            }
            if let Ok(export) = Export::from_parts(&bytes, Vec::new()) {
                prop_assert_eq!(export.into_parts().0, bytes);
            }
        }

        #[test]
        fn a_changed_or_cut_export_is_never_taken_for_a_larger_one(
            place in 0_usize..136, value in any::<u8>(), cut in 0_usize..137,
        ) {
            let (mut bytes, _) = by_handle(4096, 100, 8192).into_parts();
            bytes[place] = value;
            if let Ok(export) = Export::from_parts(&bytes[..cut], Vec::new()) {
                prop_assert_eq!(cut, 136);
                let Source::Handle { size, .. } = export.source else { panic!("another kind") };
                prop_assert!(export.offset + export.len <= size);
            }
        }
    }
}
