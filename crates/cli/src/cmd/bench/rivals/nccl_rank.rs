//! Process of NCCL, which takes its orders from the measuring bench.

use std::time::Instant;

use polyrail::{Config, DeviceMemory, Engine};
use polyrail_nccl_ref::{Comm, Nccl, Span, UniqueId};
use polyrail_sys::threads::process_cpu_seconds;

use super::cuda::spans_of;
use super::nccl::{Order, Reply, Task};
use crate::cmd::bench::faults;
use crate::cmd::bench::memory::{Bank, Buffers, Needs, Store};
use crate::cmd::bench::options::not_devices;
use crate::cmd::bench::talk::{from_hex, to_hex};
use crate::fault::{Cause, Fault};
use crate::orders::{Orders, reply};

/// State that the first order set up.
struct Rank {
    comm: Comm,
    buffers: Buffers,
    /// Pieces of each slot.
    spans: Vec<Vec<Span>>,
    /// A few bytes for each direction, whose exchange starts both processes at the same time.
    beat: [DeviceMemory; 2],
    task: Task,
}

/// Follows orders until standard input ends. Errors are sent as replies.
pub(crate) fn run_nccl_rank(config: Config, bank: &Bank) -> Result<(), Fault> {
    let orders = Orders::follow()?;
    // The engine only registers memory, and moves nothing.
    let engine = Engine::builder().config(config).build()?;
    let mut rank = match Rank::meet(&engine, bank, orders.next()?) {
        Ok(rank) => rank,
        Err(fault) => return reply(&Reply::Failed(fault)),
    };
    reply(&Reply::Done)?;
    loop {
        let answer = match rank.obey(orders.next()?) {
            Ok(answer) => answer,
            Err(Fault { cause: Cause::Mismatch(mismatch), .. }) => Reply::Mismatch(mismatch),
            Err(fault) => Reply::Failed(fault),
        };
        reply(&answer)?;
    }
}

impl Rank {
    fn meet(engine: &Engine, bank: &Bank, task: Task) -> Result<Self, Fault> {
        let Bank::Device(device) = bank else { return Err(not_devices("nccl")) };
        let nccl = Nccl::load(task.library.as_deref())?;
        let id = match &task.id {
            Some(text) => from_hex(text).and_then(|bytes| bytes.try_into().ok()).map(UniqueId),
            None => {
                let id = nccl.unique_id()?;
                reply(&Reply::Id { id: to_hex(&id.0) })?;
                Some(id)
            }
        };
        let Some(id) = id else {
            return Err(faults::protocol("a task of NCCL", "no identity".into()));
        };
        let is_first = task.rank == 0;
        let needs = Needs {
            source_seed: (is_first || task.bidir).then_some(task.seed + u64::from(!is_first)),
            dest_seed: (!is_first || task.bidir).then_some(task.seed + u64::from(is_first)),
        };
        let buffers = Buffers::new(engine, bank, task.layout, needs)?;
        let beat = [device.memory(BEAT_BYTES)?, device.memory(BEAT_BYTES)?];
        let comm = nccl.join(device.device().as_ref(), id, task.rank)?;
        Ok(Self { comm, buffers, spans: spans_of(task.layout), beat, task })
    }

    fn obey(&mut self, order: Order) -> Result<Reply, Fault> {
        match order {
            Order::Poison => self.buffers.poison().map(|()| Reply::Done),
            Order::Run { transfers } => self.transfer(transfers),
            Order::Verify { slots, round } => {
                self.buffers.verify(self.task.verify, slots, round).map(|_| Reply::Done)
            }
        }
    }

    fn transfer(&mut self, transfers: u64) -> Result<Reply, Fault> {
        let [out, into] = &self.beat;
        let beat = Span { from: 0, to: 0, len: BEAT_BYTES };
        self.comm.exchange(Some(out), Some(into), [beat])?;
        let cpu = process_cpu_seconds();
        let started = Instant::now();
        let spans = &self.spans;
        let slots = (0..transfers).map(|transfer| &spans[transfer as usize % spans.len()]);
        let memory = |store: &'_ Option<Store>| {
            store.as_ref().and_then(|store| store.device_memory()).cloned()
        };
        let (source, dest) = (memory(&self.buffers.source), memory(&self.buffers.dest));
        self.comm.exchange(source.as_ref(), dest.as_ref(), slots.flatten().copied())?;
        let seconds = started.elapsed().as_secs_f64();
        Ok(Reply::Ran { seconds, cpu_seconds: process_cpu_seconds() - cpu })
    }
}

const BEAT_BYTES: u64 = 8;
