//! A device's properties as its plugin reports them.

use std::ffi::{c_char, c_float, c_int};

macro_rules! props {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $ty:ty,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $ty,)+
        }
    };
}

props! {
    /// Version 6.
    PropsV6 {
        /// Name shown in logs, unique among the plugin's devices.
        name: *const c_char,
        /// Path of the PCI device in sysfs, or null.
        pci_path: *const c_char,
        /// Devices with the same guid and port share their bandwidth.
        guid: u64,
        /// Supported kinds of memory, as bits.
        ptr_support: c_int,
        /// Speed in Mbit/s.
        speed: c_int,
        /// Port of the NIC.
        port: c_int,
        /// Latency in microseconds.
        latency: c_float,
        /// Maximum number of connections.
        max_comms: c_int,
        /// Maximum number of messages in a grouped receive.
        max_recvs: c_int,
    }
}

props! {
    /// Version 7: adds the place where receives finish, the host or the GPU.
    PropsV7 {
        /// As in version 6.
        v6: PropsV6,
        /// Device type.
        net_device_type: c_int,
        /// Version of the device type.
        net_device_version: c_int,
    }
}

props! {
    /// The first properties of version 8 and later.
    PropsHead {
        /// As in version 6.
        name: *const c_char,
        /// As in version 6.
        pci_path: *const c_char,
        /// As in version 6.
        guid: u64,
        /// As in version 6.
        ptr_support: c_int,
        /// True if a registration serves all connections.
        reg_is_global: c_int,
    }
}

props! {
    /// More properties of version 8 and later.
    PropsTail {
        /// Speed in Mbit/s.
        speed: c_int,
        /// As in version 6.
        port: c_int,
        /// Latency in microseconds.
        latency: c_float,
        /// As in version 6.
        max_comms: c_int,
        /// As in version 6.
        max_recvs: c_int,
        /// As in version 7.
        net_device_type: c_int,
        /// As in version 7.
        net_device_version: c_int,
    }
}

props! {
    /// Version 8: adds global registrations.
    PropsV8 {
        /// First properties.
        head: PropsHead,
        /// Other properties.
        tail: PropsTail,
    }
}

props! {
    /// Members of a virtual device.
    VDevices {
        /// Number of members.
        count: c_int,
        /// Numbers of the members.
        devices: [c_int; 4],
    }
}

props! {
    /// Versions 9 and 10: add virtual devices and maximum message lengths.
    PropsV9 {
        /// As in version 8.
        head: PropsHead,
        /// True if receives always have to be flushed.
        force_flush: c_int,
        /// As in version 8.
        tail: PropsTail,
        /// Members of a virtual device. Otherwise the device itself.
        v_devices: VDevices,
        /// Maximum length of a message between two ranks, in bytes.
        max_p2p_bytes: usize,
        /// Maximum length of a message of a collective, in bytes.
        max_coll_bytes: usize,
    }
}

props! {
    /// Version 11: adds requests of several parts.
    PropsV11 {
        /// Properties of version 9.
        v9: PropsV9,
        /// Maximum parts of a request.
        max_multi_request_size: c_int,
    }
}

props! {
    /// As [`VDevices`], since version 12.
    VDevices12 {
        /// Number of members.
        count: c_int,
        /// Numbers of the members.
        devices: [c_int; 8],
    }
}

props! {
    /// Version 12: adds more members in a virtual device, rails and planes.
    PropsV12 {
        /// As in version 8.
        head: PropsHead,
        /// As in version 9.
        force_flush: c_int,
        /// As in version 8.
        tail: PropsTail,
        /// Members of a virtual device. Otherwise the device itself.
        v_devices: VDevices12,
        /// As in version 9.
        max_p2p_bytes: usize,
        /// As in version 9.
        max_coll_bytes: usize,
        /// As in version 11.
        max_multi_request_size: c_int,
        /// Rail of the fabric, −1 if unknown.
        rail_id: i16,
        /// Plane of the fabric, −1 if unknown.
        plane_id: i16,
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn properties_lie_where_nccl_reads_them() {
        assert_eq!(size_of::<PropsV6>(), 48);
        assert_eq!((offset_of!(PropsV6, guid), offset_of!(PropsV6, ptr_support)), (16, 24));
        assert_eq!((offset_of!(PropsV6, speed), offset_of!(PropsV6, port)), (28, 32));
        assert_eq!((offset_of!(PropsV6, latency), offset_of!(PropsV6, max_comms)), (36, 40));
        assert_eq!(offset_of!(PropsV6, max_recvs), 44);
        assert_eq!(size_of::<PropsV7>(), 56);
        assert_eq!(offset_of!(PropsV7, net_device_type), 48);
        assert_eq!(size_of::<PropsV8>(), 64);
        assert_eq!(
            (offset_of!(PropsV8, head.reg_is_global), offset_of!(PropsV8, tail.speed)),
            (28, 32)
        );
        assert_eq!(offset_of!(PropsV8, tail.net_device_version), 56);
        assert_eq!(size_of::<PropsV9>(), 104);
        assert_eq!((offset_of!(PropsV9, force_flush), offset_of!(PropsV9, tail.speed)), (32, 36));
        assert_eq!((offset_of!(PropsV9, tail.latency), offset_of!(PropsV9, v_devices)), (44, 64));
        assert_eq!(offset_of!(PropsV9, max_p2p_bytes), 88);
        assert_eq!(offset_of!(PropsV9, max_coll_bytes), 96);
        assert_eq!(size_of::<PropsV11>(), 112);
        assert_eq!(offset_of!(PropsV11, max_multi_request_size), 104);
        assert_eq!(size_of::<PropsV12>(), 128);
        assert_eq!(offset_of!(PropsV12, v_devices), 64);
        assert_eq!(offset_of!(PropsV12, max_p2p_bytes), 104);
        assert_eq!(offset_of!(PropsV12, max_coll_bytes), 112);
        assert_eq!(offset_of!(PropsV12, max_multi_request_size), 120);
        assert_eq!((offset_of!(PropsV12, rail_id), offset_of!(PropsV12, plane_id)), (124, 126));
    }
}
