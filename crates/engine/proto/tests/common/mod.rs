//! Receivers, chunk headers for them, and payload of senders.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::sync::Arc;

use polyrail_proto::wire::{ChunkHeader, Flags, WireOp};
use polyrail_proto::{FlowIndex, Plan, Receiver, ReceiverLimits, Source, TransferId, Verdict};

pub(crate) const A: FlowIndex = FlowIndex(0);
pub(crate) const B: FlowIndex = FlowIndex(1);

/// Returns a receiver of four flows with small limits.
pub(crate) fn receiver() -> Receiver {
    Receiver::new(ReceiverLimits {
        flows: 4,
        transfers: 8,
        chunks: 100,
        window: 4,
        ..ReceiverLimits::default()
    })
}

/// Returns the header of a chunk of 10 bytes.
pub(crate) fn chunk(transfer: u64, chunk: u32, chunk_count: u32) -> ChunkHeader {
    ChunkHeader {
        op: WireOp::Write,
        flags: Flags::NONE,
        meta_len: 0,
        payload_len: 10,
        pieces: 1,
        transfer: TransferId(transfer),
        chunk,
        chunk_count,
        floor: TransferId(1),
        context: 0,
        checksum: 0,
        place: 0,
    }
}

pub(crate) fn begin(receiver: &mut Receiver, flow: FlowIndex, header: ChunkHeader) -> Verdict {
    receiver.handle_chunk(flow, &header, &[], b"", || Ok(())).unwrap()
}

/// Payload without a message.
#[derive(Clone, Debug)]
pub(crate) struct Payload(pub(crate) Arc<Plan>);

impl Source for Payload {
    fn plan(&self) -> &Plan {
        &self.0
    }

    fn meta(&self) -> &[u8] {
        b""
    }
}
