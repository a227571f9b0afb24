//! Operations that devices copy from end to end. The caller's own thread gives them the copies, which
//! takes microseconds. A waiting thread looks at the ticket, which is a load; a proxy looks for those
//! that nobody waits for. Chunks that are staged for rails: `sender/flow/device_chunks.rs` and
//! `receiver/flow/device_chunks.rs`.

use std::sync::Arc;

use polyrail_proto::wire::RefusalCode;

use crate::base::error::TransferError;
use crate::device::peer_copy::Copies;
use crate::device::staging::CopyError;
use crate::engine::op::Op;
use crate::engine::peer::PeerShared;
use crate::engine::proxy_handle::{ProxyCommand, ProxyHandle};
use crate::engine::state::EngineShared;

impl EngineShared {
    /// Begins the copies of an operation.
    pub(crate) fn post_copies(self: &Arc<Self>, op: &Arc<Op>, copies: &Copies) {
        match self.peer_copies.begin(copies) {
            Ok(tickets) => {
                op.set_copying(tickets);
                let prepared = &op.prepared;
                let bytes = prepared.plan.bytes();
                prepared.peer.tally.peer_copy_bytes.add(bytes);
                let proxy = self.watcher(&prepared.peer);
                let command = ProxyCommand::Copying(op.clone());
                // Whoever waits, or asks, looks for himself.
                let is_told = op.notifies() || prepared.listener.is_some();
                match is_told || self.bells.are_used() {
                    true => proxy.command(command),
                    false => proxy.leave(command),
                }
            }
            Err(CopyError::RegionDropped) => {
                let local = op.prepared.check_regions().is_err();
                op.fail(match local {
                    true => TransferError::RegionDropped,
                    false => TransferError::Refused {
                        peer: op.prepared.peer_name(),
                        code: RefusalCode::RegionDropped,
                    },
                });
            }
            Err(CopyError::Device(why)) => op.fail(TransferError::Device { why }),
        }
    }

    /// Nobody asks any more how the operation goes: a proxy does.
    pub(crate) fn watch_copies(&self, op: &Op) {
        if op.is_copying() {
            self.watcher(&op.prepared.peer).wake();
        }
    }

    /// The proxy that looks when devices are done.
    fn watcher(&self, peer: &PeerShared) -> &ProxyHandle {
        &self.proxies.all[peer.tx_proxies.proxies().first().copied().unwrap_or_default()]
    }
}
