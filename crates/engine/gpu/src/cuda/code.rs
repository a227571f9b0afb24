//! The code of kernels, and loading it into a device's context.

use std::ffi::{CStr, c_void};

use super::driver::{Driver, FunctionHandle, ModuleHandle};
use crate::error::GpuError;

/// The text of a kernel, and its launch parameters.
#[derive(Debug)]
pub(super) struct Code {
    /// Ends with a 0 byte, as the driver requires.
    text: &'static str,
    name: &'static CStr,
    pub(super) threads: u32,
    /// Default number of blocks.
    pub(super) blocks: u32,
    /// Default number of blocks where host memory is read or written.
    pub(super) host_blocks: u32,
}

/// Copies pieces between any kinds of memory.
pub(super) static COPY: Code = Code {
    text: concat!(include_str!("copy.ptx"), "\0"),
    name: c"polyrail_copy_pieces",
    threads: THREADS,
    blocks: BLOCKS,
    host_blocks: HOST_BLOCKS,
};

/// Copies fragments within a device.
pub(super) static GATHER: Code = Code {
    text: concat!(include_str!("gather.ptx"), "\0"),
    name: c"polyrail_gather",
    threads: GATHER_THREADS,
    blocks: GATHER_BLOCKS,
    host_blocks: GATHER_BLOCKS,
};

pub(super) const THREADS: u32 = 256;
/// Blocks that keep NVLink busy (on an H200: 343 GB/s with 132, 338 with 64, 325 with 32).
pub(super) const BLOCKS: u32 = 64;
/// Blocks that keep the bus to the host busy, both ways (4 are slower from the host).
const HOST_BLOCKS: u32 = 8;
/// Threads of a block. Many, because a multiprocessor has one such block: they hide the latency of memory.
const GATHER_THREADS: u32 = 1024;
/// Multiprocessors that gathering may take from other work.
const GATHER_BLOCKS: u32 = 8;

/// `CU_JIT_ERROR_LOG_BUFFER` and its size.
const LOG_OPTIONS: [i32; 2] = [5, 6];

/// The code, loaded into a device's context.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) code: &'static Code,
    module: ModuleHandle,
    pub(super) pieces: FunctionHandle,
}

impl Kernels {
    /// Compiles the code for the device of the current context.
    pub(super) fn load(driver: &Driver, code: &'static Code) -> Result<Self, GpuError> {
        let module = load_code(driver, code.text)?;
        let pieces = function_of(driver, module, code.name)?;
        Ok(Self { code, module, pieces })
    }

    /// Returns the kernel that copies the pieces of a table, for launches with [`THREADS`] threads a block.
    pub(super) fn pieces(&self) -> FunctionHandle {
        self.pieces
    }

    /// Unloads the code from the context, which must be current. No launch may be running it.
    pub(super) fn unload(&self, driver: &Driver) {
        // SAFETY: called once, when the device and so all its queues are gone.
        let _ = unsafe { driver.module_unload(self.module) };
    }
}

/// Compiles code, text that ends with a 0 byte, for the device of the current context. That takes some 50 ms the first
/// time on a machine; the driver keeps the result in a cache on disk. The caller must unload the module.
pub(super) fn load_code(driver: &Driver, code: &str) -> Result<ModuleHandle, GpuError> {
    let mut log = [0_u8; 4096];
    let values = [log.as_mut_ptr().cast(), log.len() as *mut c_void];
    let mut module = ModuleHandle::NONE;
    // SAFETY: the image is text ended by 0, the options have a value each, and the buffer is of the
    // size that is given.
    let loaded = unsafe {
        let image = code.as_ptr().cast();
        driver.module_load(&raw mut module, image, 2, LOG_OPTIONS.as_ptr(), values.as_ptr())
    };
    if let Err(refused) = loaded {
        let log = CStr::from_bytes_until_nul(&log).unwrap_or_default().to_string_lossy();
        return Err(match driver.explain(refused) {
            GpuError::Driver { call, name, text } if !log.is_empty() => {
                GpuError::Driver { call, name, text: format!("{text}: {}", log.trim()) }
            }
            error => error,
        });
    }
    Ok(module)
}

/// Finds a kernel in code that is loaded into the current context.
pub(super) fn function_of(
    driver: &Driver,
    module: ModuleHandle,
    name: &CStr,
) -> Result<FunctionHandle, GpuError> {
    let mut function = FunctionHandle::NONE;
    // SAFETY: the place is valid, and the name is ended by 0.
    unsafe { driver.module_function(&raw mut function, module, name.as_ptr())? };
    Ok(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_has_the_kernel_and_runs_from_volta_on() {
        for Code { text, name, .. } in [&COPY, &GATHER] {
            for word in [".version 6.0\n", ".target sm_70\n", ".address_size 64\n"] {
                assert_eq!(text.matches(word).count(), 1, "{word}");
            }
            let entry = format!(".visible .entry {}(", name.to_str().unwrap());
            assert_eq!(text.matches(&entry).count(), 1, "{entry}");
            assert_eq!(text.matches('{').count(), text.matches('}').count());
            assert_eq!(text.find('\0'), Some(text.len() - 1), "it ends by the only 0");
            assert!(text.is_ascii(), "the driver's compiler takes nothing else");
        }
    }

    #[test]
    fn the_kernel_makes_its_copies_visible_to_the_system_before_it_ends() {
        for (code, copy) in [(&COPY, "call.uni copy_bytes"), (&GATHER, "st.global.v4")] {
            let kernel = code.text.split(".visible .entry").nth(1).unwrap();
            let places = [copy, "@more bra PIECE;", "fence.acq_rel.sys;", "ret;"];
            let places = places.map(|word| kernel.find(word).unwrap());
            assert!(places.is_sorted(), "copy, next piece, fence, end: {places:?}");
        }
    }
}
