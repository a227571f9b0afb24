//! A device's properties as its plugin reports them, in any version.

use std::ffi::c_int;
use std::path::{Path, PathBuf};

use crate::tables::text;
use crate::{
    DEVICE_HOST, DEVICE_UNPACK, MAX_MESSAGE_BYTES, PTR_CUDA, PTR_DMA_BUF, PTR_HOST, PropsHead,
    PropsTail, PropsV6, PropsV7, PropsV8, PropsV9, PropsV11, PropsV12, UNPACK_VERSION,
};

/// Properties of a device. Properties that a version lacks have the value that NCCL assumes.
#[derive(Clone, Debug, PartialEq)]
pub struct Properties {
    /// Name of the device.
    pub name: String,
    /// Folder of its PCI device, if it has one.
    pub pci_path: Option<PathBuf>,
    /// Devices with the same guid and port share their bandwidth.
    pub guid: u64,
    /// Supported kinds of memory, as bits.
    pub ptr_support: c_int,
    /// True if a registration serves all connections.
    pub reg_is_global: bool,
    /// True if receives into GPU memory always have to be flushed.
    pub force_flush: bool,
    /// Speed in Mbit/s.
    pub speed_mbps: i32,
    /// Port of the NIC.
    pub port: i32,
    /// Latency in microseconds.
    pub latency_us: f32,
    /// Maximum number of connections.
    pub max_comms: i32,
    /// Maximum number of messages in a grouped receive.
    pub max_recvs: i32,
    /// Place where receives finish: [`DEVICE_HOST`], [`DEVICE_UNPACK`](crate::DEVICE_UNPACK) or another kind.
    pub device_type: c_int,
    /// Version of the device type.
    pub device_version: c_int,
    /// Maximum message length in bytes.
    pub max_p2p_bytes: usize,
}

/// Value that NCCL assumes for versions before 9.
const MAX_BYTES_BEFORE_V9: usize = 1 << 30;

impl Properties {
    /// Impossible properties, each as the end of a sentence. NCCL still uses such a device, or fails later in another
    /// place.
    pub fn faults(&self) -> Vec<String> {
        let kinds = PTR_HOST | PTR_CUDA | PTR_DMA_BUF;
        let pci = self.pci_path.as_deref().unwrap_or(Path::new("/"));
        [
            (self.name.is_empty(), "has no name".to_owned()),
            (
                self.speed_mbps <= 0,
                format!("tells a speed of {} Mbit/s; NCCL takes 10000 instead", self.speed_mbps),
            ),
            (
                !pci.is_absolute(),
                format!("tells the PCI path {}; a folder of /sys is expected", pci.display()),
            ),
            (
                self.ptr_support & PTR_HOST == 0,
                format!("takes no memory of the host (ptrSupport {:#x})", self.ptr_support),
            ),
            (
                self.ptr_support & !kinds != 0,
                format!("has unknown kinds of memory (ptrSupport {:#x})", self.ptr_support),
            ),
            (self.max_comms < 1, format!("allows {} connections", self.max_comms)),
            (self.max_recvs < 1, format!("allows {} messages in a receive", self.max_recvs)),
            (
                !(self.latency_us >= 0.0 && self.latency_us.is_finite()),
                format!("tells a latency of {} us", self.latency_us),
            ),
            (
                !(1..=MAX_MESSAGE_BYTES).contains(&self.max_p2p_bytes),
                format!(
                    "tells a longest message of {} bytes; 1 to {MAX_MESSAGE_BYTES} are possible",
                    self.max_p2p_bytes
                ),
            ),
            (
                !self.is_host() && !self.is_unpack(),
                format!(
                    "finishes receives in a way that NCCL does not know (netDeviceType {}, version {})",
                    self.device_type, self.device_version
                ),
            ),
        ]
        .into_iter()
        .filter_map(|(is_wrong, what)| is_wrong.then_some(what))
        .collect()
    }

    /// True if data is in place when a receive completes.
    pub fn is_host(&self) -> bool {
        self.device_type == DEVICE_HOST
    }

    /// True if a kernel on the GPU has to gather received data, in the form that NCCL knows.
    pub fn is_unpack(&self) -> bool {
        (self.device_type, self.device_version) == (DEVICE_UNPACK, UNPACK_VERSION)
    }

    /// True if the device takes host memory.
    pub fn takes_host(&self) -> bool {
        self.ptr_support & PTR_HOST != 0
    }

    /// True if the device takes GPU addresses.
    pub fn takes_cuda(&self) -> bool {
        self.ptr_support & PTR_CUDA != 0
    }

    /// True if the device takes GPU memory by DMA-BUF.
    pub fn takes_dma_buf(&self) -> bool {
        self.ptr_support & PTR_DMA_BUF != 0
    }
}

impl From<&PropsV6> for Properties {
    fn from(props: &PropsV6) -> Self {
        Self {
            name: text(props.name).unwrap_or_default(),
            pci_path: text(props.pci_path).map(PathBuf::from),
            guid: props.guid,
            ptr_support: props.ptr_support,
            reg_is_global: false,
            force_flush: false,
            speed_mbps: props.speed,
            port: props.port,
            latency_us: props.latency,
            max_comms: props.max_comms,
            max_recvs: props.max_recvs,
            device_type: DEVICE_HOST,
            device_version: 0,
            max_p2p_bytes: MAX_BYTES_BEFORE_V9,
        }
    }
}

impl From<&PropsV7> for Properties {
    fn from(props: &PropsV7) -> Self {
        Self {
            device_type: props.net_device_type,
            device_version: props.net_device_version,
            ..Self::from(&props.v6)
        }
    }
}

/// Properties common to version 8 and later.
fn common(head: &PropsHead, tail: &PropsTail) -> Properties {
    Properties {
        name: text(head.name).unwrap_or_default(),
        pci_path: text(head.pci_path).map(PathBuf::from),
        guid: head.guid,
        ptr_support: head.ptr_support,
        reg_is_global: head.reg_is_global != 0,
        force_flush: false,
        speed_mbps: tail.speed,
        port: tail.port,
        latency_us: tail.latency,
        max_comms: tail.max_comms,
        max_recvs: tail.max_recvs,
        device_type: tail.net_device_type,
        device_version: tail.net_device_version,
        max_p2p_bytes: MAX_BYTES_BEFORE_V9,
    }
}

impl From<&PropsV8> for Properties {
    fn from(props: &PropsV8) -> Self {
        common(&props.head, &props.tail)
    }
}

impl From<&PropsV9> for Properties {
    fn from(props: &PropsV9) -> Self {
        let (force_flush, max_p2p_bytes) = (props.force_flush != 0, props.max_p2p_bytes);
        Self { force_flush, max_p2p_bytes, ..common(&props.head, &props.tail) }
    }
}

impl From<&PropsV11> for Properties {
    fn from(props: &PropsV11) -> Self {
        Self::from(&props.v9)
    }
}

impl From<&PropsV12> for Properties {
    fn from(props: &PropsV12) -> Self {
        let (force_flush, max_p2p_bytes) = (props.force_flush != 0, props.max_p2p_bytes);
        Self { force_flush, max_p2p_bytes, ..common(&props.head, &props.tail) }
    }
}
