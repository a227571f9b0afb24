//! The built-in baseline: a plugin that works like NCCL's own socket transport.

use polyrail_nccl_abi::{Net, NetError, NetV12, Table};

unsafe extern "C" {
    /// Function table of the baseline, from the plugin's harness.
    static socket_like_v12: NetV12;
}

/// Initializes a plugin that works like NCCL's own socket transport. `SOCKET_LIKE_THREADS`, `SOCKET_LIKE_SOCKETS` and
/// `SOCKET_LIKE_ADDRESSES` configure it.
///
/// # Errors
/// If the plugin refuses to initialize.
pub fn baseline() -> Result<Net, NetError> {
    // SAFETY: a constant table, whose functions pass the harness.
    unsafe { Net::from_table(Table::V12(&socket_like_v12)) }
}
