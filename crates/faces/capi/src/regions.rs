//! Regions: memory registered here, and descriptions of peers' regions.

use std::ffi::{c_int, c_void};

use polyrail::{Access, Cuda, Memory, Registrable, WithAccess};

use crate::bytes::Bytes;
use crate::call::{Out, Versioned, bytes, call, choice, flags, list, room, versioned, wrong};
use crate::engine::{Engine, Instance};
use crate::handles::{close, find, open};
use crate::peers::release;
use crate::status::{Failure, Status};

/// Memory that an engine may send from and receive into. It may be used by several threads at a time.
pub struct Region {
    pub(crate) region: polyrail::Region,
    info: RegionInfo,
}

/// A peer's region, as its key tells.
pub struct Remote(pub(crate) polyrail::RemoteRegion);

/// In polyrail_memory.kind: memory of this process, by pointer.
pub const POLYRAIL_HOST: u32 = 0;
/// In polyrail_memory.kind: memory of an NVIDIA GPU, by any device pointer that CUDA knows.
pub const POLYRAIL_CUDA: u32 = 1;

/// In polyrail_memory.access: peers may read it.
pub const POLYRAIL_REMOTE_READ: u32 = 1;
/// In polyrail_memory.access: peers may write it.
pub const POLYRAIL_REMOTE_WRITE: u32 = 2;

/// Memory to be registered.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MemoryOptions {
    /// sizeof(polyrail_memory).
    pub size: usize,
    /// Its first byte, here or on the device.
    pub base: *mut c_void,
    /// Bytes.
    pub length: u64,
    /// POLYRAIL_HOST or POLYRAIL_CUDA.
    pub kind: u32,
    /// What peers may do: 0, POLYRAIL_REMOTE_READ, POLYRAIL_REMOTE_WRITE, or both. Own transfers may
    /// always use it.
    pub access: u32,
    /// The peers that may use it; NULL: all that have its key.
    pub granted: *const Instance,
    /// How many are granted; not looked at if `granted` is NULL.
    pub granted_count: usize,
}

/// What is known of a region, here or at a peer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RegionInfo {
    /// sizeof(polyrail_region_info).
    pub size: usize,
    /// Bytes.
    pub length: u64,
    /// What peers may do: POLYRAIL_REMOTE_READ and POLYRAIL_REMOTE_WRITE.
    pub access: u32,
    /// 1 if it is memory of a device.
    pub is_on_device: u32,
}

// SAFETY: `repr(C)`, the size is first, and the fields are numbers and raw pointers.
unsafe impl Versioned for MemoryOptions {
    const NAME: &'static str = "polyrail_memory";
}

// SAFETY: as above.
unsafe impl Versioned for RegionInfo {
    const NAME: &'static str = "polyrail_region_info";
}

/// Registers memory. It must stay allocated until polyrail_region_close() has returned, whatever becomes
/// of the engine meanwhile. Overlapping regions are independent of each other.
///
/// What a GPU was given to do with the memory before a transfer is posted must be done: the engine's copies
/// wait for no stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_register(
    engine: *mut Engine,
    memory: *const MemoryOptions,
    region: *mut *mut Region,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (out, memory) = unsafe { (Out::new("region", region)?, versioned("memory", memory)?) };
        // SAFETY: the caller's promise of the memory, and of the list.
        let registrable = unsafe { registrable(&memory)? };
        let region = find("engine", engine)?.engine.register(registrable)?;
        let info = RegionInfo {
            size: size_of::<RegionInfo>(),
            length: memory.length,
            access: memory.access,
            is_on_device: (memory.kind != POLYRAIL_HOST).into(),
        };
        out.set(open(Region { region, info })?);
        Ok(Status::PolyrailOk)
    })
}

/// # Safety
/// The memory stays valid as long as its region, and the list as long as this call.
unsafe fn registrable(memory: &MemoryOptions) -> Result<WithAccess, Failure> {
    let known = [(POLYRAIL_HOST, "POLYRAIL_HOST", true), (POLYRAIL_CUDA, "POLYRAIL_CUDA", false)];
    let is_host = choice("memory.kind", memory.kind, &known)?;
    let access =
        flags("memory.access", memory.access, POLYRAIL_REMOTE_READ | POLYRAIL_REMOTE_WRITE)?;
    let access = Access {
        remote_read: access & POLYRAIL_REMOTE_READ != 0,
        remote_write: access & POLYRAIL_REMOTE_WRITE != 0,
    };
    let (base, length) = (memory.base, memory.length);
    if base.is_null() && length > 0 {
        return Err(wrong(format!("memory.base is NULL, allowed is a pointer to {length} bytes")));
    }
    let room = usize::MAX - base.addr();
    let limit = room.min(isize::MAX as usize) as u64;
    if length > limit {
        return Err(wrong(format!(
            "memory.length is {length}, allowed is 0 to {limit} from {base:?} on"
        )));
    }
    let exposed = if is_host {
        // SAFETY: as the caller promises: the memory stays until the region is closed, and there are no Rust references
        // to it.
        unsafe { Memory::from_raw(base.cast(), length) }.with_access(access)
    } else {
        // SAFETY: as above, for memory of a device.
        let memory = unsafe { Cuda::load()?.memory_at(base.addr() as u64, length)? };
        memory.with_access(access)
    };
    if memory.granted.is_null() {
        return Ok(exposed);
    }
    // SAFETY: the caller's promise of the list.
    let granted = unsafe { list("memory.granted", memory.granted, memory.granted_count)? };
    Ok(exposed.granted_to(granted.iter().map(|instance| instance.id())))
}

/// Ends the registration. When this returns, nobody touches the memory through it any more, and it may be
/// freed. Transfers that still need it fail with POLYRAIL_ERR_REGION_CLOSED, and peers are refused.
///
/// Close a region before its memory goes, also if its engine is closed. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_close(region: *mut Region) -> c_int {
    call(|| {
        if !region.is_null() {
            // Calls of other threads with this handle are refused from now on.
            close("region", region)?.region.end();
        }
        Ok(Status::PolyrailOk)
    })
}

/// What a peer needs to reach the region: pass it on, to polyrail_remote_import() there. Whoever has it and
/// a connection can use the region as its access allows.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_key(region: *mut Region, key: *mut Bytes) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("key", key)? };
        out.set(Bytes::new(find("region", region)?.region.describe()));
        Ok(Status::PolyrailOk)
    })
}

/// What is known of a region of this engine. Fill in `info->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_describe(
    region: *mut Region,
    info: *mut RegionInfo,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::versioned("info", info)? };
        out.set(find("region", region)?.info);
        Ok(Status::PolyrailOk)
    })
}

/// Copies bytes of a region out, to where they don't overlap it; from a device by a detour, for a look at
/// them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_read(
    region: *mut Region,
    offset: u64,
    into: *mut c_void,
    length: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller promises `length` bytes from there on, which are not used elsewhere.
        let into = unsafe { room("into", into.cast::<u8>(), length)? };
        find("region", region)?.region.read_at(offset, into)?;
        Ok(Status::PolyrailOk)
    })
}

/// Copies bytes into a region, from where they don't overlap it; to a device by a detour.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_region_write(
    region: *mut Region,
    offset: u64,
    from: *const c_void,
    length: usize,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the bytes.
        let bytes = unsafe { bytes("from", from, length)? };
        find("region", region)?.region.write_at(offset, bytes)?;
        Ok(Status::PolyrailOk)
    })
}

/// Reads a key that a peer gave, by polyrail_region_key() there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_remote_import(
    engine: *mut Engine,
    key: *const c_void,
    key_length: usize,
    remote: *mut *mut Remote,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of both.
        let (out, key) = unsafe { (Out::new("remote", remote)?, bytes("key", key, key_length)?) };
        let remote = find("engine", engine)?.engine.import(key)?;
        out.set(open(Remote(remote))?);
        Ok(Status::PolyrailOk)
    })
}

/// What is known of a peer's region. Fill in `info->size` before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_remote_describe(
    remote: *mut Remote,
    info: *mut RegionInfo,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::versioned("info", info)? };
        out.set(RegionInfo::of(&find("remote", remote)?.0));
        Ok(Status::PolyrailOk)
    })
}

/// Ends the handle. Requests that were prepared with it stay as they are. NULL is fine.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_remote_free(remote: *mut Remote) -> c_int {
    release("remote", remote)
}

impl RegionInfo {
    fn of(region: &polyrail::RemoteRegion) -> Self {
        let access = region.access();
        let bits = [
            (access.remote_read, POLYRAIL_REMOTE_READ),
            (access.remote_write, POLYRAIL_REMOTE_WRITE),
        ];
        Self {
            size: size_of::<Self>(),
            length: region.len(),
            access: bits.iter().map(|(is_set, bit)| u32::from(*is_set) * bit).sum(),
            is_on_device: region.is_on_device().into(),
        }
    }
}
