//! Tables of functions that a plugin exports for each version: a name, then pointers in the order that NCCL expects. A
//! missing function is `None`.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::{
    CommConfig, DeviceHandle, Logger, NetAttributes, Opaque, ProfilerCallback, PropsV6, PropsV7,
    PropsV8, PropsV9, PropsV11, PropsV12, VDevices, VDevices12,
};

/// Reads a string of a plugin, if there is one.
pub(crate) fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null, so a terminated string of the plugin that outlives it.
    let text = unsafe { CStr::from_ptr(pointer) };
    Some(text.to_string_lossy().into_owned())
}

/// Type of a function in a table.
macro_rules! function {
    ($($arg:ty),* $(,)?) => { Option<unsafe extern "C" fn($($arg),*) -> c_int> };
}

macro_rules! table {
    ($(#[$doc:meta])* $name:ident, $words:literal { $($field:ident: $ty:ty,)+ }) => {
        $(#[$doc])*
        #[repr(C)]
        #[expect(missing_docs, reason = "named as NCCL names them")]
        pub struct $name {
            pub name: *const c_char,
            $(pub $field: $ty,)+
        }

        const _: () = assert!(size_of::<$name>() == $words * 8);

        // SAFETY: a table is only read; the string that its name points to lives as long as the library.
        unsafe impl Sync for $name {}
    };
}

table! {
    /// Since NCCL 2.12. Uses the properties of version 6.
    NetV5, 16 {
        init: function!(Option<Logger>),
        devices: function!(*mut c_int),
        get_properties: function!(c_int, *mut PropsV6),
        listen: function!(c_int, *mut c_void, *mut Opaque),
        connect: function!(c_int, *mut c_void, *mut Opaque),
        accept: function!(Opaque, *mut Opaque),
        reg_mr: function!(Opaque, *mut c_void, c_int, c_int, *mut Opaque),
        dereg_mr: function!(Opaque, Opaque),
        isend: function!(Opaque, *mut c_void, c_int, c_int, Opaque, *mut Opaque),
        irecv: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut c_int, *mut Opaque, *mut Opaque),
        iflush: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut Opaque, *mut Opaque),
        test: function!(Opaque, *mut c_int, *mut c_int),
        close_send: function!(Opaque),
        close_recv: function!(Opaque),
        close_listen: function!(Opaque),
    }
}

table! {
    /// Since NCCL 2.13.
    NetV6, 17 {
        init: function!(Option<Logger>),
        devices: function!(*mut c_int),
        get_properties: function!(c_int, *mut PropsV6),
        listen: function!(c_int, *mut c_void, *mut Opaque),
        connect: function!(c_int, *mut c_void, *mut Opaque),
        accept: function!(Opaque, *mut Opaque),
        reg_mr: function!(Opaque, *mut c_void, c_int, c_int, *mut Opaque),
        reg_mr_dma_buf: function!(Opaque, *mut c_void, usize, c_int, u64, c_int, *mut Opaque),
        dereg_mr: function!(Opaque, Opaque),
        isend: function!(Opaque, *mut c_void, c_int, c_int, Opaque, *mut Opaque),
        irecv: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut c_int, *mut Opaque, *mut Opaque),
        iflush: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut Opaque, *mut Opaque),
        test: function!(Opaque, *mut c_int, *mut c_int),
        close_send: function!(Opaque),
        close_recv: function!(Opaque),
        close_listen: function!(Opaque),
    }
}

table! {
    /// Since NCCL 2.19.
    NetV7, 19 {
        init: function!(Option<Logger>),
        devices: function!(*mut c_int),
        get_properties: function!(c_int, *mut PropsV7),
        listen: function!(c_int, *mut c_void, *mut Opaque),
        connect: function!(c_int, *mut c_void, *mut Opaque, *mut *mut DeviceHandle),
        accept: function!(Opaque, *mut Opaque, *mut *mut DeviceHandle),
        reg_mr: function!(Opaque, *mut c_void, c_int, c_int, *mut Opaque),
        reg_mr_dma_buf: function!(Opaque, *mut c_void, usize, c_int, u64, c_int, *mut Opaque),
        dereg_mr: function!(Opaque, Opaque),
        isend: function!(Opaque, *mut c_void, c_int, c_int, Opaque, *mut Opaque),
        irecv: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut c_int, *mut Opaque, *mut Opaque),
        iflush: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut Opaque, *mut Opaque),
        test: function!(Opaque, *mut c_int, *mut c_int),
        close_send: function!(Opaque),
        close_recv: function!(Opaque),
        close_listen: function!(Opaque),
        get_device_mr: function!(Opaque, Opaque, *mut Opaque),
        irecv_consumed: function!(Opaque, c_int, Opaque),
    }
}

table! {
    /// Since NCCL 2.20.
    NetV8, 19 {
        init: function!(Option<Logger>),
        devices: function!(*mut c_int),
        get_properties: function!(c_int, *mut PropsV8),
        listen: function!(c_int, *mut c_void, *mut Opaque),
        connect: function!(c_int, *mut c_void, *mut Opaque, *mut *mut DeviceHandle),
        accept: function!(Opaque, *mut Opaque, *mut *mut DeviceHandle),
        reg_mr: function!(Opaque, *mut c_void, usize, c_int, *mut Opaque),
        reg_mr_dma_buf: function!(Opaque, *mut c_void, usize, c_int, u64, c_int, *mut Opaque),
        dereg_mr: function!(Opaque, Opaque),
        isend: function!(Opaque, *mut c_void, c_int, c_int, Opaque, *mut Opaque),
        irecv: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut c_int, *mut Opaque, *mut Opaque),
        iflush: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut Opaque, *mut Opaque),
        test: function!(Opaque, *mut c_int, *mut c_int),
        close_send: function!(Opaque),
        close_recv: function!(Opaque),
        close_listen: function!(Opaque),
        get_device_mr: function!(Opaque, Opaque, *mut Opaque),
        irecv_consumed: function!(Opaque, c_int, Opaque),
    }
}

table! {
    /// Since NCCL 2.24.
    NetV9, 20 {
        init: function!(Option<Logger>),
        devices: function!(*mut c_int),
        get_properties: function!(c_int, *mut PropsV9),
        listen: function!(c_int, *mut c_void, *mut Opaque),
        connect: function!(c_int, *mut c_void, *mut Opaque, *mut *mut DeviceHandle),
        accept: function!(Opaque, *mut Opaque, *mut *mut DeviceHandle),
        reg_mr: function!(Opaque, *mut c_void, usize, c_int, *mut Opaque),
        reg_mr_dma_buf: function!(Opaque, *mut c_void, usize, c_int, u64, c_int, *mut Opaque),
        dereg_mr: function!(Opaque, Opaque),
        isend: function!(Opaque, *mut c_void, usize, c_int, Opaque, *mut Opaque),
        irecv: function!(Opaque, c_int, *mut *mut c_void, *mut usize, *mut c_int, *mut Opaque, *mut Opaque),
        iflush: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut Opaque, *mut Opaque),
        test: function!(Opaque, *mut c_int, *mut c_int),
        close_send: function!(Opaque),
        close_recv: function!(Opaque),
        close_listen: function!(Opaque),
        get_device_mr: function!(Opaque, Opaque, *mut Opaque),
        irecv_consumed: function!(Opaque, c_int, Opaque),
        make_v_device: function!(*mut c_int, *mut VDevices),
    }
}

table! {
    /// Since NCCL 2.26.
    NetV10, 20 {
        init: function!(Option<Logger>, Option<ProfilerCallback>),
        devices: function!(*mut c_int),
        get_properties: function!(c_int, *mut PropsV9),
        listen: function!(c_int, *mut c_void, *mut Opaque),
        connect: function!(c_int, *mut CommConfig, *mut c_void, *mut Opaque, *mut *mut DeviceHandle),
        accept: function!(Opaque, *mut Opaque, *mut *mut DeviceHandle),
        reg_mr: function!(Opaque, *mut c_void, usize, c_int, *mut Opaque),
        reg_mr_dma_buf: function!(Opaque, *mut c_void, usize, c_int, u64, c_int, *mut Opaque),
        dereg_mr: function!(Opaque, Opaque),
        isend: function!(Opaque, *mut c_void, usize, c_int, Opaque, *mut c_void, *mut Opaque),
        irecv: function!(Opaque, c_int, *mut *mut c_void, *mut usize, *mut c_int, *mut Opaque, *mut *mut c_void, *mut Opaque),
        iflush: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut Opaque, *mut Opaque),
        test: function!(Opaque, *mut c_int, *mut c_int),
        close_send: function!(Opaque),
        close_recv: function!(Opaque),
        close_listen: function!(Opaque),
        get_device_mr: function!(Opaque, Opaque, *mut Opaque),
        irecv_consumed: function!(Opaque, c_int, Opaque),
        make_v_device: function!(*mut c_int, *mut VDevices),
    }
}

macro_rules! context_table {
    ($(#[$doc:meta])* $name:ident, $props:ty, $v_devices:ty) => {
        table! {
            $(#[$doc])*
            $name, 22 {
                init: function!(*mut Opaque, u64, *mut CommConfig, Option<Logger>, Option<ProfilerCallback>),
                devices: function!(*mut c_int),
                get_properties: function!(c_int, *mut $props),
                listen: function!(Opaque, c_int, *mut c_void, *mut Opaque),
                connect: function!(Opaque, c_int, *mut c_void, *mut Opaque, *mut *mut DeviceHandle),
                accept: function!(Opaque, *mut Opaque, *mut *mut DeviceHandle),
                reg_mr: function!(Opaque, *mut c_void, usize, c_int, *mut Opaque),
                reg_mr_dma_buf: function!(Opaque, *mut c_void, usize, c_int, u64, c_int, *mut Opaque),
                dereg_mr: function!(Opaque, Opaque),
                isend: function!(Opaque, *mut c_void, usize, c_int, Opaque, *mut c_void, *mut Opaque),
                irecv: function!(Opaque, c_int, *mut *mut c_void, *mut usize, *mut c_int, *mut Opaque, *mut *mut c_void, *mut Opaque),
                iflush: function!(Opaque, c_int, *mut *mut c_void, *mut c_int, *mut Opaque, *mut Opaque),
                test: function!(Opaque, *mut c_int, *mut c_int),
                close_send: function!(Opaque),
                close_recv: function!(Opaque),
                close_listen: function!(Opaque),
                get_device_mr: function!(Opaque, Opaque, *mut Opaque),
                irecv_consumed: function!(Opaque, c_int, Opaque),
                make_v_device: function!(*mut c_int, *mut $v_devices),
                finalize: function!(Opaque),
                set_net_attr: function!(Opaque, *mut NetAttributes),
            }
        }
    };
}

context_table! {
    /// Since NCCL 2.28: a context for each communicator.
    NetV11, PropsV11, VDevices
}

context_table! {
    /// Since NCCL 2.30.
    NetV12, PropsV12, VDevices12
}
