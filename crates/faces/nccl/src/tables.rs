//! Tables that NCCL looks for, one for each version of its interface.

use polyrail_nccl_abi::{NetV6, NetV7, NetV8, NetV9, NetV10, NetV11, NetV12};

use crate::entry::*;
use crate::props::*;

/// Exports a table, with the parts common to all versions.
macro_rules! export {
    ($symbol:ident: $table:ident { $($field:ident: $value:expr,)+ }) => {
        #[doc = concat!("The plugin, for NCCL versions that look for `", stringify!($symbol), "`.")]
        #[unsafe(no_mangle)]
        pub static $symbol: $table = $table {
            name: NAME,
            devices: Some(devices),
            reg_mr_dma_buf: None,
            dereg_mr: Some(dereg_mr),
            iflush: Some(iflush),
            test: Some(test),
            close_send: Some(close),
            close_recv: Some(close),
            close_listen: Some(close),
            $($field: $value,)+
        };
    };
}

export! { ncclNetPlugin_v6: NetV6 {
    init: Some(init),
    get_properties: Some(properties_v6),
    listen: Some(listen),
    connect: Some(connect),
    accept: Some(accept),
    reg_mr: Some(reg_mr_v6),
    isend: Some(isend_v6),
    irecv: Some(irecv_v6),
} }

export! { ncclNetPlugin_v7: NetV7 {
    init: Some(init),
    get_properties: Some(properties_v7),
    listen: Some(listen),
    connect: Some(connect_v7),
    accept: Some(accept_v7),
    reg_mr: Some(reg_mr_v6),
    isend: Some(isend_v6),
    irecv: Some(irecv_v6),
    get_device_mr: None,
    irecv_consumed: None,
} }

export! { ncclNetPlugin_v8: NetV8 {
    init: Some(init),
    get_properties: Some(properties_v8),
    listen: Some(listen),
    connect: Some(connect_v7),
    accept: Some(accept_v7),
    reg_mr: Some(reg_mr),
    isend: Some(isend_v6),
    irecv: Some(irecv_v6),
    get_device_mr: None,
    irecv_consumed: None,
} }

export! { ncclNetPlugin_v9: NetV9 {
    init: Some(init),
    get_properties: Some(properties_v9),
    listen: Some(listen),
    connect: Some(connect_v7),
    accept: Some(accept_v7),
    reg_mr: Some(reg_mr),
    isend: Some(isend_v9),
    irecv: Some(irecv_v9),
    get_device_mr: None,
    irecv_consumed: None,
    make_v_device: None,
} }

export! { ncclNetPlugin_v10: NetV10 {
    init: Some(init_with_profiler),
    get_properties: Some(properties_v9),
    listen: Some(listen),
    connect: Some(connect_v10),
    accept: Some(accept_v7),
    reg_mr: Some(reg_mr),
    isend: Some(isend_v10),
    irecv: Some(irecv_v10),
    get_device_mr: None,
    irecv_consumed: None,
    make_v_device: None,
} }

export! { ncclNetPlugin_v11: NetV11 {
    init: Some(init_context),
    get_properties: Some(properties_v11),
    listen: Some(listen_context),
    connect: Some(connect_context),
    accept: Some(accept_v7),
    reg_mr: Some(reg_mr),
    isend: Some(isend_v10),
    irecv: Some(irecv_v10),
    get_device_mr: None,
    irecv_consumed: None,
    make_v_device: None,
    finalize: Some(finalize),
    set_net_attr: Some(set_net_attr),
} }

export! { ncclNetPlugin_v12: NetV12 {
    init: Some(init_context),
    get_properties: Some(properties_v12),
    listen: Some(listen_context),
    connect: Some(connect_context),
    accept: Some(accept_v7),
    reg_mr: Some(reg_mr),
    isend: Some(isend_v10),
    irecv: Some(irecv_v10),
    get_device_mr: None,
    irecv_consumed: None,
    make_v_device: None,
    finalize: Some(finalize),
    set_net_attr: Some(set_net_attr),
} }
