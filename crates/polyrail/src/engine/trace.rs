//! A trace of each chunk's life as Chrome JSON, which Perfetto and `chrome://tracing` load.
//!
//! Format: "Trace Event Format", JSON object with `traceEvents`, complete events (`ph: "X"`) with
//! `ts` and `dur` in microseconds. Times are the machine's monotonic clock, so the files of two
//! engines of one host can be merged by joining their lists.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use polyrail_proto::wire::ChunkHeader;
use polyrail_proto::{FlowIndex, TransferId};
use polyrail_sys::threads::monotonic_ns;

use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;

/// Collects events in memory, up to a limit, and writes them when the engine closes.
pub(crate) struct Trace {
    path: PathBuf,
    events: Mutex<Vec<Event>>,
    limit: usize,
    dropped: AtomicU64,
}

#[derive(Clone, Copy)]
struct Event {
    sent: bool,
    peer: u32,
    flow: u32,
    rail: u32,
    transfer: u64,
    chunk: u32,
    bytes: u32,
    from_ns: u64,
    to_ns: u64,
    /// For a chunk that was sent: when its transfer was posted and when its last byte was with the
    /// kernel.
    posted_ns: u64,
    written_ns: u64,
}

/// A chunk on its way, as the sending flow remembers it.
#[derive(Clone, Copy)]
pub(crate) struct SentChunk {
    pub(crate) transfer: TransferId,
    pub(crate) chunk: u32,
    pub(crate) bytes: u32,
    pub(crate) posted_ns: u64,
    pub(crate) pulled_ns: u64,
    /// 0 until its last byte is with the kernel.
    pub(crate) written_ns: u64,
}

impl Trace {
    pub(crate) fn new(path: String, limit: u32) -> Self {
        Self {
            path: path.into(),
            events: Mutex::default(),
            limit: limit as usize,
            dropped: AtomicU64::new(0),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A chunk was acknowledged: from the moment it was pulled to now.
    pub(crate) fn chunk_sent(
        &self,
        peer: &PeerShared,
        flow: FlowIndex,
        sent: SentChunk,
        acknowledged_ns: u64,
    ) {
        self.record(Event {
            sent: true,
            peer: peer.number,
            flow: flow.0,
            rail: peer.layout.pair_of(flow).0 as u32,
            transfer: sent.transfer.0,
            chunk: sent.chunk,
            bytes: sent.bytes,
            from_ns: sent.pulled_ns,
            to_ns: acknowledged_ns,
            posted_ns: sent.posted_ns,
            written_ns: sent.written_ns,
        });
    }

    /// A chunk landed: from the moment its header was seen to now.
    pub(crate) fn chunk_landed(
        &self,
        peer: &PeerShared,
        flow: FlowIndex,
        rail: usize,
        header: &ChunkHeader,
        from_ns: u64,
    ) {
        self.record(Event {
            sent: false,
            peer: peer.number,
            flow: flow.0,
            rail: rail as u32,
            transfer: header.transfer.0,
            chunk: header.chunk,
            bytes: header.payload_len,
            from_ns,
            to_ns: monotonic_ns(),
            posted_ns: 0,
            written_ns: 0,
        });
    }

    /// Writes the file.
    pub(crate) fn write(&self, engine: &EngineShared) -> io::Result<()> {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = BufWriter::new(File::create(&self.path)?);
        let pid = std::process::id();
        let name = engine.card.name.replace(['"', '\\'], "_");
        write!(
            out,
            "{{\"displayTimeUnit\":\"ns\",\"dropped_events\":{},\"traceEvents\":[\n\
             {{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{pid},\"args\":{{\"name\":\"{name}\"}}}}",
            self.dropped.load(Ordering::Relaxed)
        )?;
        for event in events.iter() {
            let direction = if event.sent { "tx" } else { "rx" };
            // A lane for each direction and flow of each peer.
            let lane = event.peer << 16 | event.flow << 1 | u32::from(event.sent);
            let rail = engine.rails.get(event.rail as usize).map_or("?", |rail| &rail.name);
            write!(
                out,
                ",\n{{\"ph\":\"X\",\"cat\":\"chunk\",\"name\":\"{direction} t{}#{}\",\"pid\":{pid},\
                 \"tid\":{lane},\"ts\":{:.3},\"dur\":{:.3},\"args\":{{\"bytes\":{},\"rail\":\"{rail}\",\
                 \"flow\":{},\"peer\":{}{}}}}}",
                event.transfer,
                event.chunk,
                event.from_ns as f64 / 1e3,
                event.to_ns.saturating_sub(event.from_ns) as f64 / 1e3,
                event.bytes,
                event.flow,
                event.peer,
                event.moments(),
            )?;
        }
        writeln!(out, "\n]}}")?;
        out.flush()
    }

    fn record(&self, event: Event) {
        let mut events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        if events.len() < self.limit {
            events.push(event);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Event {
    /// What happened to a sent chunk between the ends of its bar, as further arguments.
    fn moments(&self) -> String {
        if !self.sent {
            return String::new();
        }
        let us = |ns: u64| ns as f64 / 1e3;
        let (posted, written) = (us(self.posted_ns), us(self.written_ns));
        format!(",\"posted_us\":{posted:.3},\"written_us\":{written:.3}")
    }
}
