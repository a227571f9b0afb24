//! Properties of a device, in the layout of each version.

use std::ffi::{c_char, c_int};

use polyrail_nccl_abi::{
    DEVICE_HOST, MAX_MESSAGE_BYTES, PTR_HOST, PropsHead, PropsTail, PropsV6, PropsV7, PropsV8,
    PropsV9, PropsV11, PropsV12, VDevices, VDevices12,
};

use crate::entry::{guard, put};
use crate::error::CallError;
use crate::runtime;

/// Minimum latency of a message in microseconds, for NCCL's choice of algorithm.
const LATENCY_US: f32 = 10.0;
const MAX_COMMS: c_int = 65_536;

/// Properties common to all versions.
struct Common {
    name: *const c_char,
    pci_path: *const c_char,
    guid: u64,
    speed: c_int,
}

fn common(device: c_int) -> Result<Common, CallError> {
    runtime::with_device(device, |known| Common {
        name: runtime::intern(&known.name).as_ptr(),
        pci_path: known
            .pci_path
            .as_ref()
            .map_or(std::ptr::null(), |path| runtime::intern(path).as_ptr()),
        guid: device as u64,
        speed: c_int::try_from(known.speed_mbps).unwrap_or(c_int::MAX),
    })
}

fn v6(Common { name, pci_path, guid, speed }: Common) -> PropsV6 {
    PropsV6 {
        name,
        pci_path,
        guid,
        ptr_support: PTR_HOST,
        speed,
        port: 0,
        latency: LATENCY_US,
        max_comms: MAX_COMMS,
        max_recvs: 1,
    }
}

fn v7(common: Common) -> PropsV7 {
    PropsV7 { v6: v6(common), net_device_type: DEVICE_HOST, net_device_version: 0 }
}

fn v8(Common { name, pci_path, guid, speed }: Common) -> PropsV8 {
    PropsV8 {
        head: PropsHead { name, pci_path, guid, ptr_support: PTR_HOST, reg_is_global: 0 },
        tail: PropsTail {
            speed,
            port: 0,
            latency: LATENCY_US,
            max_comms: MAX_COMMS,
            max_recvs: 1,
            net_device_type: DEVICE_HOST,
            net_device_version: 0,
        },
    }
}

fn v9(common: Common) -> PropsV9 {
    let PropsV8 { head, tail } = v8(common);
    PropsV9 {
        head,
        force_flush: 0,
        tail,
        v_devices: VDevices { count: 1, devices: [head.guid as c_int, 0, 0, 0] },
        max_p2p_bytes: MAX_MESSAGE_BYTES,
        max_coll_bytes: MAX_MESSAGE_BYTES,
    }
}

fn v11(common: Common) -> PropsV11 {
    PropsV11 { v9: v9(common), max_multi_request_size: 1 }
}

fn v12(common: Common) -> PropsV12 {
    let v9 = v9(common);
    PropsV12 {
        head: v9.head,
        force_flush: v9.force_flush,
        tail: v9.tail,
        v_devices: VDevices12 { count: 1, devices: [v9.v_devices.devices[0], 0, 0, 0, 0, 0, 0, 0] },
        max_p2p_bytes: v9.max_p2p_bytes,
        max_coll_bytes: v9.max_coll_bytes,
        max_multi_request_size: 1,
        rail_id: -1,
        plane_id: -1,
    }
}

/// Defines a `getProperties` for each version.
macro_rules! properties {
    ($($function:ident: $props:ty = $make:ident;)+) => {$(
        pub(crate) unsafe extern "C" fn $function(device: c_int, props: *mut $props) -> c_int {
            // SAFETY: NCCL gives a place for the properties.
            guard(|| unsafe { put(props, $make(common(device)?), "props") })
        }
    )+};
}

properties! {
    properties_v6: PropsV6 = v6;
    properties_v7: PropsV7 = v7;
    properties_v8: PropsV8 = v8;
    properties_v9: PropsV9 = v9;
    properties_v11: PropsV11 = v11;
    properties_v12: PropsV12 = v12;
}
