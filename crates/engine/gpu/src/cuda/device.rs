//! One of NVIDIA's devices, or a part of one.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;

use super::Cuda;
use super::code::{COPY, Code, GATHER, Kernels};
use super::driver::{ContextHandle, Driver, Ordinal};
use super::mappings::Mappings;
use super::near::node_of;
use crate::device::{DeviceMemory, Identity};
use crate::error::GpuError;

/// A device. Its primary context is retained when a queue, memory or a peer first needs it, and
/// released with the last clone.
pub struct CudaDevice {
    cuda: Arc<Cuda>,
    ordinal: Ordinal,
    pub(super) identity: Identity,
    /// The memory node that it is attached to.
    pub(super) node: Option<usize>,
    context: OnceLock<ContextHandle>,
    /// Held while the context is made.
    making: Mutex<()>,
    copying: OnceLock<Option<Kernels>>,
    gathering: OnceLock<Option<Kernels>>,
    mappings: Mappings,
}

/// Makes the device's context current on this thread as long as this lives; then restores the
/// previous one.
pub(super) struct Current<'a>(&'a Driver);

impl CudaDevice {
    pub(super) fn new(cuda: Arc<Cuda>, ordinal: Ordinal, identity: Identity) -> Arc<Self> {
        let node = node_of(identity.pci);
        Arc::new(Self {
            cuda,
            ordinal,
            identity,
            node,
            context: OnceLock::new(),
            making: Mutex::new(()),
            copying: OnceLock::new(),
            gathering: OnceLock::new(),
            mappings: Mappings::default(),
        })
    }

    /// The driver that the device belongs to.
    pub fn cuda(&self) -> &Arc<Cuda> {
        &self.cuda
    }

    /// Memory of the device, not zeroed. Freed with the last clone. Takes milliseconds.
    pub fn allocate(self: &Arc<Self>, bytes: u64) -> Result<DeviceMemory, GpuError> {
        self.own_memory(bytes)
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.cuda.driver
    }

    pub(super) fn ordinal(&self) -> Ordinal {
        self.ordinal
    }

    pub(super) fn mappings(&self) -> &Mappings {
        &self.mappings
    }

    /// Returns the copy kernels, loaded on first use. `None` if the driver can't compile them, which is logged once.
    pub(super) fn kernels(&self) -> Option<&Kernels> {
        self.kernel_of(&self.copying, &COPY)
    }

    /// Returns the kernel for fragments, loaded in the same way.
    pub(super) fn gather_kernel(&self) -> Option<&Kernels> {
        self.kernel_of(&self.gathering, &GATHER)
    }

    fn kernel_of<'a>(
        &self,
        place: &'a OnceLock<Option<Kernels>>,
        code: &'static Code,
    ) -> Option<&'a Kernels> {
        let load = || {
            let _current = self.current()?;
            Kernels::load(self.driver(), code)
        };
        let loaded = || match load() {
            Ok(kernels) => Some(kernels),
            Err(error) => {
                let device = &self.identity;
                tracing::warn!(target: "polyrail::gpu",
                    %device, %error, "no copy kernel, many pieces are slower");
                None
            }
        };
        place.get_or_init(loaded).as_ref()
    }

    /// Returns the primary context, retained if it isn't yet.
    pub(super) fn context(&self) -> Result<ContextHandle, GpuError> {
        if let Some(context) = self.context.get() {
            return Ok(*context);
        }
        let _making = self.making.lock();
        if let Some(context) = self.context.get() {
            return Ok(*context);
        }
        let mut context = ContextHandle::NONE;
        // SAFETY: the place is valid. It is released once, when the device is dropped.
        unsafe { self.driver().primary_retain(&raw mut context, self.ordinal)? };
        Ok(*self.context.get_or_init(|| context))
    }

    /// Makes the context current on this thread.
    pub(super) fn current(&self) -> Result<Current<'_>, GpuError> {
        let context = self.context()?;
        // SAFETY: the context is retained as long as the device lives, which the guard borrows.
        unsafe { self.driver().context_push(context)? };
        Ok(Current(self.driver()))
    }

    pub(super) fn unsupported(&self, what: &'static str) -> GpuError {
        GpuError::Unsupported { device: self.identity.to_string(), what }
    }
}

impl fmt::Debug for CudaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.identity, f)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        for place in [&self.copying, &self.gathering] {
            if let Some(Some(kernels)) = place.get()
                && let Ok(_current) = self.current()
            {
                kernels.unload(self.driver());
            }
        }
        if self.context.get().is_some() {
            // SAFETY: retained once. This fails only if the driver is gone before the process ends.
            let _ = unsafe { self.driver().primary_release(self.ordinal) };
        }
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = ContextHandle::NONE;
        // SAFETY: the place is valid; what is popped is what was pushed, since every call in
        // between leaves the stack as it was.
        let _ = unsafe { self.0.context_pop(&raw mut popped) };
    }
}
