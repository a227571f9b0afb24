//! A trace of each chunk's life as Chrome JSON, which Perfetto and `chrome://tracing` load.
//!
//! Format: "Trace Event Format", JSON object with `traceEvents`, complete events (`ph: "X"`) with
//! `ts` and `dur` in microseconds. Times are the machine's monotonic clock, so the files of two
//! engines of one host can be merged by joining their lists.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use polyrail_proto::rails::ChosenRail;
use polyrail_proto::wire::ChunkHeader;
use polyrail_proto::{FlowIndex, TransferId};
use polyrail_sys::files::regular_file;
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::without_write_signals;
use serde_json::{Value, json};

use crate::engine::peer::PeerShared;

/// Maximum number of events in an engine's trace. Later ones are only counted.
pub(crate) const TRACE_EVENTS: u32 = 1 << 20;

/// Collects events in memory, up to a limit, and writes them when the engine closes.
pub(crate) struct Trace {
    path: PathBuf,
    file: File,
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
    /// For a sent chunk: when its transfer was posted, and when the kernel had its last byte.
    posted_ns: u64,
    written_ns: u64,
}

/// A chunk in flight, as the sending flow remembers it.
#[derive(Clone, Copy)]
pub(crate) struct SentChunk {
    pub(crate) transfer: TransferId,
    pub(crate) chunk: u32,
    pub(crate) bytes: u32,
    pub(crate) posted_ns: u64,
    pub(crate) pulled_ns: u64,
    /// 0 until the kernel has its last byte.
    pub(crate) written_ns: u64,
}

impl Trace {
    /// Opens the file, so that a file that can't be written is an error now and not at the end. Its old content stays
    /// until `write`.
    pub(crate) fn new(path: PathBuf, limit: u32) -> io::Result<Self> {
        Ok(Self {
            file: regular_file::append_to(&path)?,
            path,
            events: Mutex::default(),
            limit: limit as usize,
            dropped: AtomicU64::new(0),
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Records an acknowledged chunk, from the moment it was pulled until now.
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

    /// Records a landed chunk, from the moment its header was read until now.
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

    /// Writes the file, with the engine's name and rails.
    pub(crate) fn write(&self, engine: &str, rails: &[ChosenRail]) -> io::Result<()> {
        let rail = |number: u32| rails.get(number as usize).map_or("?", |rail| &rail.name);
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        without_write_signals(|| self.write_to(BufWriter::new(&self.file), engine, rail))
    }

    /// One event a line, so that a truncated file can be repaired by hand.
    fn write_to<'a>(
        &self,
        mut out: impl Write,
        engine: &str,
        rail: impl Fn(u32) -> &'a str,
    ) -> io::Result<()> {
        let events = self.events.lock();
        let pid = std::process::id();
        let dropped = self.dropped.load(Ordering::Relaxed);
        let head = format!("\"displayTimeUnit\":\"ns\",\"dropped_events\":{dropped}");
        writeln!(out, "{{{head},\"traceEvents\":[")?;
        let process =
            json!({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": engine}});
        serde_json::to_writer(&mut out, &process)?;
        for event in events.iter() {
            out.write_all(b",\n")?;
            serde_json::to_writer(&mut out, &event.as_json(pid, rail(event.rail)))?;
        }
        writeln!(out, "\n]}}")?;
        out.flush()
    }

    fn record(&self, event: Event) {
        let mut events = self.events.lock();
        if events.len() < self.limit {
            events.push(event);
        } else {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Event {
    fn as_json(&self, pid: u32, rail: &str) -> Value {
        let us = |ns: u64| ns as f64 / 1e3;
        let direction = if self.sent { "tx" } else { "rx" };
        let mut args =
            json!({"bytes": self.bytes, "rail": rail, "flow": self.flow, "peer": self.peer});
        if self.sent {
            // Events between the ends of the bar.
            args["posted_us"] = us(self.posted_ns).into();
            args["written_us"] = us(self.written_ns).into();
        }
        json!({
            "ph": "X",
            "cat": "chunk",
            "name": format!("{direction} t{}#{}", self.transfer, self.chunk),
            "pid": pid,
            // A lane for each direction and flow of each peer.
            "tid": self.peer << 16 | self.flow << 1 | u32::from(self.sent),
            "ts": us(self.from_ns),
            "dur": us(self.to_ns.saturating_sub(self.from_ns)),
            "args": args,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_rails_and_engines_may_hold_any_sign() {
        let trace = Trace::new("/dev/null".into(), 2).unwrap();
        let event = Event {
            sent: true,
            peer: 1,
            flow: 3,
            rail: 1,
            transfer: 7,
            chunk: 5,
            bytes: 4096,
            from_ns: 12_345_678_901_234_567,
            to_ns: 12_345_678_901_236_067,
            posted_ns: 1_000,
            written_ns: 2_500,
        };
        for sent in [true, false, true] {
            trace.record(Event { sent, ..event });
        }
        let mut out = Vec::new();
        let rail = |number: u32| if number == 1 { "e\"t\\h\u{1b}1" } else { "?" };
        trace.write_to(&mut out, "no\"de\n", rail).unwrap();

        let read: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(read["dropped_events"], 1);
        let events = read["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 3);
        assert_eq!(events[0]["args"]["name"], "no\"de\n");
        assert_eq!(events[1]["args"]["rail"], "e\"t\\h\u{1b}1");
        assert_eq!(
            (&events[1]["name"], &events[2]["name"]),
            (&json!("tx t7#5"), &json!("rx t7#5"))
        );
        assert_eq!((&events[1]["tid"], &events[1]["dur"]), (&json!(65_543), &json!(1.5)));
        assert_eq!(events[1]["args"]["written_us"], 2.5);
        assert_eq!(events[2]["args"].get("written_us"), None);
    }
}
