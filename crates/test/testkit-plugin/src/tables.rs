//! Tables that hosts look for: the version of TCPX, the next one, and one with contexts.

use polyrail_nccl_abi::{NetV7, NetV8, NetV11};

use crate::entry::*;

/// Exports a table, with the parts common to all versions.
macro_rules! export {
    ($symbol:ident: $table:ident { $($field:ident: $value:expr,)+ }) => {
        #[doc = concat!("The plugin, for hosts that look for `", stringify!($symbol), "`.")]
        #[unsafe(no_mangle)]
        pub static $symbol: $table = $table {
            name: NAME,
            devices: Some(devices),
            accept: Some(accept),
            reg_mr_dma_buf: None,
            dereg_mr: Some(dereg_mr),
            iflush: Some(iflush),
            test: Some(test),
            close_send: Some(close_send),
            close_recv: Some(close_recv),
            close_listen: Some(close_listen),
            get_device_mr: Some(get_device_mr),
            irecv_consumed: Some(irecv_consumed),
            $($field: $value,)+
        };
    };
}

export! { ncclNetPlugin_v7: NetV7 {
    init: Some(init),
    get_properties: Some(properties_v7),
    listen: Some(listen),
    connect: Some(connect),
    reg_mr: Some(reg_mr_v7),
    isend: Some(isend),
    irecv: Some(irecv),
} }

export! { ncclNetPlugin_v8: NetV8 {
    init: Some(init),
    get_properties: Some(properties_v8),
    listen: Some(listen),
    connect: Some(connect),
    reg_mr: Some(reg_mr),
    isend: Some(isend),
    irecv: Some(irecv),
} }

export! { ncclNetPlugin_v11: NetV11 {
    init: Some(init_context),
    get_properties: Some(properties_v11),
    listen: Some(listen_context),
    connect: Some(connect_context),
    reg_mr: Some(reg_mr),
    isend: Some(isend_v11),
    irecv: Some(irecv_v11),
    make_v_device: None,
    finalize: Some(finalize),
    set_net_attr: Some(set_net_attr),
} }
