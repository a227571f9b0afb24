//! Properties of a device, in the layout of each version.

use std::ffi::c_int;

use polyrail_nccl_abi::{
    DEVICE_HOST, DEVICE_UNPACK, MAX_MESSAGE_BYTES, PTR_CUDA, PTR_HOST, PropsHead, PropsTail,
    PropsV6, PropsV7, PropsV8, PropsV9, PropsV11, VDevices,
};

use crate::error::CallError;
use crate::metadata::MESSAGE_BYTES_MAX;
use crate::plugin::{plugin, text};
use crate::settings::Mode;

/// Value of TCPX, `tcpxGetProperties` in `net_tcpx.cc`.
const MAX_COMMS: c_int = 65_536;

/// Properties of all versions.
pub(crate) fn v11(device: c_int) -> Result<PropsV11, CallError> {
    let plugin = plugin()?;
    let settings = &plugin.settings;
    let index = plugin.device(device)?;
    let (name, _) = &settings.devices[index];
    let pci_path = settings.pci_paths.get(index).or(settings.pci_paths.last());
    let pci_path = pci_path.map_or(std::ptr::null(), |path| text(path).as_ptr());
    let (ptr_support, longest) = match settings.mode {
        Mode::Plain => (PTR_HOST, MAX_MESSAGE_BYTES),
        Mode::Unpack => (PTR_HOST, MESSAGE_BYTES_MAX as usize),
        Mode::UnpackGpu(_) => (PTR_HOST | PTR_CUDA, MESSAGE_BYTES_MAX as usize),
    };
    let (net_device_type, net_device_version) = match settings.mode {
        Mode::Plain => (DEVICE_HOST, 0),
        Mode::Unpack | Mode::UnpackGpu(_) => (DEVICE_UNPACK, settings.unpack_version),
    };
    let v9 = PropsV9 {
        head: PropsHead {
            name: text(name).as_ptr(),
            pci_path,
            guid: index as u64,
            ptr_support,
            reg_is_global: 0,
        },
        force_flush: 0,
        tail: PropsTail {
            speed: settings.speed_mbps,
            port: 0,
            latency: 0.0,
            max_comms: MAX_COMMS,
            max_recvs: 1,
            net_device_type,
            net_device_version,
        },
        v_devices: VDevices { count: 1, devices: [device, 0, 0, 0] },
        max_p2p_bytes: longest,
        max_coll_bytes: longest,
    };
    Ok(PropsV11 { v9, max_multi_request_size: 1 })
}

pub(crate) fn v8(device: c_int) -> Result<PropsV8, CallError> {
    let PropsV9 { head, tail, .. } = v11(device)?.v9;
    Ok(PropsV8 { head, tail })
}

pub(crate) fn v7(device: c_int) -> Result<PropsV7, CallError> {
    let PropsV8 { head, tail } = v8(device)?;
    let v6 = PropsV6 {
        name: head.name,
        pci_path: head.pci_path,
        guid: head.guid,
        ptr_support: head.ptr_support,
        speed: tail.speed,
        port: tail.port,
        latency: tail.latency,
        max_comms: tail.max_comms,
        max_recvs: tail.max_recvs,
    };
    let (net_device_type, net_device_version) = (tail.net_device_type, tail.net_device_version);
    Ok(PropsV7 { v6, net_device_type, net_device_version })
}
