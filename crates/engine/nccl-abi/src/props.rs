//! A device as its plugin describes it.

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
        /// Shown in logs; no two devices of a plugin have the same.
        name: *const c_char,
        /// Path of the PCI device in sysfs, or null.
        pci_path: *const c_char,
        /// Devices of one guid and port share their bandwidth.
        guid: u64,
        /// Kinds of memory that it takes, as bits.
        ptr_support: c_int,
        /// In Mbit/s.
        speed: c_int,
        /// Port of the card.
        port: c_int,
        /// In microseconds.
        latency: c_float,
        /// Connections.
        max_comms: c_int,
        /// Messages of a grouped receive.
        max_recvs: c_int,
    }
}

props! {
    /// Version 7: where receives finish, on the host or on the GPU.
    PropsV7 {
        /// As in version 6.
        v6: PropsV6,
        /// Kind.
        net_device_type: c_int,
        /// Version of the kind.
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
        /// Whether a registration serves all connections.
        reg_is_global: c_int,
    }
}

props! {
    /// More properties of version 8 and later.
    PropsTail {
        /// In Mbit/s.
        speed: c_int,
        /// As in version 6.
        port: c_int,
        /// In microseconds.
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
    /// Version 8: whether a registration serves all connections.
    PropsV8 {
        /// The first properties.
        head: PropsHead,
        /// The others.
        tail: PropsTail,
    }
}

props! {
    /// Devices that a virtual device is made of.
    VDevices {
        /// How many.
        count: c_int,
        /// Their numbers.
        devices: [c_int; 4],
    }
}

props! {
    /// Versions 9 and 10: virtual devices, and how long messages may be.
    PropsV9 {
        /// As in version 8.
        head: PropsHead,
        /// Whether receives have to be flushed always.
        force_flush: c_int,
        /// As in version 8.
        tail: PropsTail,
        /// The devices it is made of: itself, unless it is virtual.
        v_devices: VDevices,
        /// Longest message between two ranks, in bytes.
        max_p2p_bytes: usize,
        /// Longest message of a collective, in bytes.
        max_coll_bytes: usize,
    }
}

props! {
    /// Version 11: requests of several parts.
    PropsV11 {
        /// As in version 9.
        v9: PropsV9,
        /// Parts of a request.
        max_multi_request_size: c_int,
    }
}

props! {
    /// As [`VDevices`], since version 12.
    VDevices12 {
        /// How many.
        count: c_int,
        /// Their numbers.
        devices: [c_int; 8],
    }
}

props! {
    /// Version 12: more devices in a virtual one, rails and planes.
    PropsV12 {
        /// As in version 8.
        head: PropsHead,
        /// As in version 9.
        force_flush: c_int,
        /// As in version 8.
        tail: PropsTail,
        /// The devices it is made of: itself, unless it is virtual.
        v_devices: VDevices12,
        /// As in version 9.
        max_p2p_bytes: usize,
        /// As in version 9.
        max_coll_bytes: usize,
        /// As in version 11.
        max_multi_request_size: c_int,
        /// Rail of the fabric, −1 if not known.
        rail_id: i16,
        /// Plane of the fabric, −1 if not known.
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
