//! Rival for copies between devices: the driver's own copy, which any program can call.

use std::time::Instant;

use polyrail::{DeviceMemory, Engine};
use polyrail_nccl_ref::{DriverCopy, Span};
use polyrail_report::Histogram;
use polyrail_sys::threads::process_cpu_seconds;

use super::standing::{Rival, Turn};
use crate::cmd::bench::memory::{Bank, Buffers, Needs};
use crate::cmd::bench::options::{Layout, Piece, Schedule, Verify, not_devices};
use crate::fault::Fault;

/// Rival that copies from the engine's own source to memory like its destination, in this process.
pub(crate) struct CudaRival {
    copy: DriverCopy,
    /// Pieces of each slot.
    spans: Vec<Vec<Span>>,
    dest: Buffers,
    size: u64,
    depth: u64,
    transfers: u64,
    verify: Verify,
}

impl CudaRival {
    /// Sets up the rival. `bank` is on the other end's device; `seed` is that of the contents of `source`.
    pub(crate) fn open(
        engine: &Engine,
        source: &DeviceMemory,
        bank: &Bank,
        schedule: &Schedule,
        size: u64,
        seed: u64,
        transfers: u64,
    ) -> Result<Self, Fault> {
        let layout = schedule.layout(size);
        let needs = Needs { source_seed: None, dest_seed: Some(seed) };
        let dest = Buffers::new(engine, bank, layout, needs)?;
        let copy = match dest.dest.as_ref().and_then(|store| store.device_memory()) {
            Some(memory) => DriverCopy::new(source, memory)?,
            None => return Err(not_devices("cuda")),
        };
        let spans = spans_of(layout);
        let depth = schedule.depth(size);
        let mut rival = Self { copy, spans, dest, size, depth, transfers, verify: schedule.verify };
        rival.move_all(depth)?;
        Ok(rival)
    }

    /// Copies in batches of as many transfers as the engine has outstanding, and waits for each batch.
    fn move_all(&mut self, transfers: u64) -> Result<Histogram, Fault> {
        let mut times = Histogram::default();
        let mut batch = Vec::new();
        let mut begun = 0;
        while begun < transfers {
            let end = transfers.min(begun + self.depth);
            batch.clear();
            for transfer in begun..end {
                batch.extend_from_slice(&self.spans[transfer as usize % self.spans.len()]);
            }
            let started = Instant::now();
            self.copy.copy(&batch)?;
            times.record(started.elapsed().as_nanos() as u64);
            begun = end;
        }
        Ok(times)
    }
}

impl Rival for CudaRival {
    fn turn(&mut self, round: u64) -> Result<Turn, Fault> {
        self.dest.poison()?;
        let cpu = process_cpu_seconds();
        let started = Instant::now();
        let times = self.move_all(self.transfers)?;
        let seconds = started.elapsed().as_secs_f64();
        let cpu = process_cpu_seconds() - cpu;
        let slots = self.transfers.min(self.dest.layout.slots);
        self.dest.verify(self.verify, slots, round)?;
        let gb = (self.transfers * self.size) as f64 / 1e9;
        let p50 = times.quantile_ns(0.5).map(|ns| ns as f64 / 1e3);
        Ok(Turn {
            gb_per_s: gb / seconds,
            cpu_seconds_per_gb: Some(cpu / gb),
            p50_us: p50.filter(|_| self.depth == 1),
        })
    }

    fn finish(self: Box<Self>) -> Result<(), Fault> {
        Ok(())
    }
}

/// Returns the pieces of every slot.
pub(crate) fn spans_of(layout: Layout) -> Vec<Vec<Span>> {
    let span = |piece: Piece| Span { from: piece.source, to: piece.dest, len: piece.len };
    (0..layout.slots).map(|slot| layout.pieces(slot).map(span).collect()).collect()
}
