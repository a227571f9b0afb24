//! Reads metadata and bounce buffers as a GPU does for NCCL.

use polyrail_nccl_abi::DeviceHandle;

const DEPTH: usize = 16;
const FRAGMENTS: usize = 2048;

/// A `loadMeta` of NCCL's `unpack_defs.h`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fragment {
    pub(crate) src_off: u32,
    pub(crate) len: u32,
    pub(crate) dst_off: u64,
}

/// A `netUnpackMeta`.
#[repr(C)]
struct Metadata {
    fragments: [[Fragment; FRAGMENTS]; DEPTH],
    counts: [u64; DEPTH],
}

/// Target of a device handle: an `unpackNetDeviceHandle`, and the size of the bounce buffer, which the test plugin adds
/// in host memory.
#[repr(C)]
struct Control {
    metadata: *const Metadata,
    bounce: *const u8,
    head: u64,
    bounce_bytes: u64,
}

pub(crate) struct Reader {
    control: *const Control,
    head: u64,
}

impl Reader {
    /// Creates a reader for a connection, which must stay open while this is used.
    pub(crate) fn new(handle: &DeviceHandle) -> Self {
        assert_eq!((handle.net_device_type, handle.net_device_version), (1, 7));
        assert_eq!((handle.size, handle.needs_proxy_progress), (32, 1));
        let control: *const Control = handle.handle.cast();
        // SAFETY: the plugin made it, in host memory.
        let head = unsafe { (*control).head };
        assert_eq!(head.wrapping_add(1), 0, "the next slot is the first one");
        Self { control, head }
    }

    pub(crate) fn bounce_bytes(&self) -> u64 {
        // SAFETY: as above.
        unsafe { (*self.control).bounce_bytes }
    }

    /// Fragments of the next message, and their announced number.
    pub(crate) fn next(&mut self) -> (Vec<Fragment>, u64) {
        self.head = self.head.wrapping_add(1);
        let slot = (self.head % DEPTH as u64) as usize;
        // SAFETY: as above; the plugin does not write this slot until the message is consumed.
        unsafe {
            let metadata = (*self.control).metadata;
            let count = (*metadata).counts[slot];
            let fragments = (*metadata).fragments[slot];
            (fragments[..(count as usize).min(FRAGMENTS)].to_vec(), count)
        }
    }

    /// Assembles a message from its fragments.
    pub(crate) fn gather(&mut self, to: &mut [u8]) -> Vec<Fragment> {
        let (fragments, count) = self.next();
        assert_eq!(fragments.len() as u64, count);
        for Fragment { src_off, len, dst_off } in &fragments {
            assert!(u64::from(src_off + len) <= self.bounce_bytes(), "{src_off}+{len}");
            let target = &mut to[*dst_off as usize..][..*len as usize];
            // SAFETY: within the bounce buffer, by the check above; the message is not consumed.
            let source = unsafe {
                std::slice::from_raw_parts(
                    (*self.control).bounce.add(*src_off as usize),
                    *len as usize,
                )
            };
            target.copy_from_slice(source);
        }
        fragments
    }
}
