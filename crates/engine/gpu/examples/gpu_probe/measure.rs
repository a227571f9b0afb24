//! Rates and latencies, each compared with the driver's own call in the same run.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use polyrail_gpu::cuda::{CudaDevice, Method, QueueOptions};
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, Queue};
use polyrail_sys::Memory;

use super::ground::{
    Ground, LIMIT, Outcome, finish, median, pattern, queue, queue_of, timed, upload,
};
use super::raw::Raw;

const GIB: u64 = 1 << 30;
/// Batches that a queue has under way when rates to the host are measured.
const DEPTH: usize = 4;

pub(crate) fn all(ground: &mut Ground) -> Outcome<()> {
    ground.device.reaches(&*ground.peer)?;
    host_rates(ground)?;
    both_directions(ground)?;
    on_threads(ground)?;
    poll_cost(ground)?;
    let (from, to) = (ground.device.allocate(GIB)?, ground.peer.allocate(GIB)?);
    upload(&ground.device, &from.part(0, 1 << 24)?, &pattern(1, 1 << 24))?;
    peer_rates(ground, &from, &to)?;
    small(ground, &from, &to)?;
    begin_cost(ground, &from, &to)
}

/// Measures device to host and back, by size of piece and number of queues.
fn host_rates(ground: &mut Ground) -> Outcome<()> {
    let device = ground.device.clone();
    let (memory, host) = (device.allocate(GIB / 2)?, device.pinned(GIB / 2)?);
    let plain = QueueOptions::default();
    let ways = [("", plain), (", events", QueueOptions { stream_writes: false, ..plain })];
    for (way, options) in ways {
        host_rates_of(ground, way, options, &memory, &host)?;
    }
    Ok(())
}

fn host_rates_of(
    ground: &mut Ground,
    how: &str,
    options: QueueOptions,
    memory: &DeviceMemory,
    host: &Memory,
) -> Outcome<()> {
    const QUEUES: usize = 4;
    let mut queues = Vec::new();
    for _ in 0..QUEUES {
        queues.push(queue_of(&ground.device, options)?);
    }
    for to_host in [true, false] {
        for shift in [16, 18, 20, 21, 22, 24] {
            let piece = 1_u64 << shift;
            for count in [1, 2, QUEUES] {
                let total = (piece * 400).clamp(GIB / 16, GIB / 2);
                let run =
                    |queues: &mut [Queue]| stream(queues, memory, host, piece, total, to_host);
                run(&mut queues[..count])?;
                let seconds = median(vec![
                    run(&mut queues[..count])?,
                    run(&mut queues[..count])?,
                    run(&mut queues[..count])?,
                ]);
                let way = if to_host { "device to host" } else { "host to device" };
                let what = format!("{way}, pieces of {} KiB", piece >> 10);
                let rate = total as f64 / seconds / 1e9;
                ground.figure(&what, &format!("{count} queues{how}"), rate, "GB/s");
            }
        }
    }
    Ok(())
}

/// Moves bytes in batches of one piece, a few under way on each queue. Returns the seconds it took.
fn stream(
    queues: &mut [Queue],
    memory: &DeviceMemory,
    host: &Memory,
    piece: u64,
    total: u64,
    to_host: bool,
) -> Outcome<f64> {
    let begin = Instant::now();
    let mut under_way = VecDeque::new();
    let most = queues.len() * DEPTH;
    for index in 0..total / piece {
        let queue = &mut queues[index as usize % queues.len()];
        let (device, host) =
            (CopyPlace::Device(memory, index * piece), CopyPlace::Host(host, index * piece));
        match to_host {
            true => queue.push(host, device, piece)?,
            false => queue.push(device, host, piece)?,
        }
        under_way.push_back(queue.begin()?);
        if under_way.len() >= most {
            wait(under_way.pop_front())?;
        }
    }
    while !under_way.is_empty() {
        wait(under_way.pop_front())?;
    }
    Ok(begin.elapsed().as_secs_f64())
}

fn wait(ticket: Option<polyrail_gpu::Ticket>) -> Outcome<()> {
    match ticket.map(|ticket| ticket.wait(LIMIT)) {
        Some(Ok(false)) => Err("a batch did not end".into()),
        Some(Err(error)) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Measures both directions between device and host at once, in pieces of 1 MiB.
fn both_directions(ground: &mut Ground) -> Outcome<()> {
    let device = ground.device.clone();
    let one = |to_host: bool| -> Result<f64, String> {
        let run = || -> Outcome<f64> {
            let (memory, host) = (device.allocate(GIB)?, device.pinned(GIB)?);
            let mut queues = [queue(&device, Method::Auto)?, queue(&device, Method::Auto)?];
            stream(&mut queues, &memory, &host, 1 << 20, GIB, to_host)
        };
        run().map_err(|error| error.to_string())
    };
    let (down, up) = std::thread::scope(|scope| {
        let down = scope.spawn(|| one(true));
        let up = one(false);
        (down.join(), up)
    });
    let down = down.map_err(|_| "a thread panicked")??;
    ground.figure(
        "both directions, device to host",
        "2 queues each",
        GIB as f64 / down / 1e9,
        "GB/s",
    );
    ground.figure(
        "both directions, host to device",
        "2 queues each",
        GIB as f64 / up? / 1e9,
        "GB/s",
    );
    Ok(())
}

/// Measures threads with one queue each, as flows have, in pieces of 512 KiB to the host.
fn on_threads(ground: &mut Ground) -> Outcome<()> {
    const BYTES: u64 = 1 << 28;
    let device = ground.device.clone();
    let (memory, host) = (device.allocate(BYTES)?, device.pinned(BYTES)?);
    for (how, stream_writes) in [("", true), (", events", false)] {
        let options = QueueOptions { stream_writes, ..QueueOptions::default() };
        for count in [1, 4, 16] {
            let run = || -> Result<(), String> {
                let run = || -> Outcome<()> {
                    let mut queues = [queue_of(&device, options)?];
                    stream(&mut queues, &memory, &host, 1 << 19, BYTES, true)?;
                    Ok(())
                };
                run().map_err(|error| error.to_string())
            };
            let begin = Instant::now();
            let done: Result<(), String> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..count).map(|_| scope.spawn(run)).collect();
                let mut joined = threads.into_iter().map(|thread| thread.join());
                joined.try_for_each(|done| done.unwrap_or_else(|_| Err("it panicked".into())))
            });
            done?;
            let rate = (count * BYTES) as f64 / begin.elapsed().as_secs_f64() / 1e9;
            let how = format!("{count} threads{how}");
            ground.figure("device to host, pieces of 512 KiB", &how, rate, "GB/s");
        }
    }
    Ok(())
}

/// Measures the cost of polling a copy that isn't done.
fn poll_cost(ground: &mut Ground) -> Outcome<()> {
    const POLLS: u32 = 2000;
    let device = ground.device.clone();
    let (memory, host) = (device.allocate(GIB / 2)?, device.pinned(GIB / 2)?);
    for (how, stream_writes) in [("by a word", true), ("by events", false)] {
        let options = QueueOptions { stream_writes, ..QueueOptions::default() };
        let mut queue = queue_of(&device, options)?;
        queue.push(CopyPlace::Host(&host, 0), CopyPlace::Device(&memory, 0), GIB / 2)?;
        let ticket = queue.begin()?;
        let begin = Instant::now();
        for _ in 0..POLLS {
            if ticket.is_done()? {
                return Err("half a gibibyte came too soon".into());
            }
        }
        let cost = begin.elapsed().as_secs_f64() / f64::from(POLLS);
        ground.figure("asking whether a copy is done", how, cost * 1e9, "ns");
        wait(Some(ticket))?;
    }
    Ok(())
}

/// Copies from a place to another one, and waits.
type Copier = Box<dyn FnMut(&DeviceMemory, &DeviceMemory, u64) -> Outcome<()>>;

/// Makes a copier that divides each copy among a few queues.
fn copier(device: &Arc<CudaDevice>, options: QueueOptions, count: usize) -> Outcome<Copier> {
    let mut queues = Vec::new();
    for _ in 0..count {
        queues.push(queue_of(device, options)?);
    }
    Ok(Box::new(move |to, from, len| {
        let share = len.div_ceil(queues.len() as u64);
        let mut tickets = Vec::with_capacity(queues.len());
        for (index, queue) in queues.iter_mut().enumerate() {
            let start = share * index as u64;
            let len = share.min(len - start);
            queue.push(CopyPlace::Device(to, start), CopyPlace::Device(from, start), len)?;
            tickets.push(queue.begin()?);
        }
        tickets.into_iter().try_for_each(|ticket| wait(Some(ticket)))
    }))
}

fn peer_rates(ground: &mut Ground, from: &DeviceMemory, to: &DeviceMemory) -> Outcome<()> {
    let raw = Raw::new(&ground.device, &ground.peer)?;
    let (base_to, base_from) = (to.address(0, GIB)?, from.address(0, GIB)?);
    let plain = QueueOptions::default();
    let kernel = |blocks| QueueOptions {
        method: Method::Kernel,
        blocks: Some(blocks),
        ..QueueOptions::default()
    };
    let mut ways = Vec::new();
    for count in [1, 2, 4] {
        ways.push((format!("Auto, {count} queues"), copier(&ground.device, plain, count)?));
    }
    for blocks in [32, 64, 132] {
        ways.push((format!("Kernel, {blocks} blocks"), copier(&ground.device, kernel(blocks), 1)?));
    }
    for (bytes, times) in
        [(1 << 20, 400), (4 << 20, 300), (16 << 20, 200), (256 << 20, 30), (GIB, 15)]
    {
        let baseline = timed(times, || raw.copy(base_to, base_from, bytes))?;
        let what = format!("to the peer, {} MiB", bytes >> 20);
        ground.figure(&what, "cuMemcpyPeerAsync + sync", bytes as f64 / baseline / 1e9, "GB/s");
        let plainly = timed(times, || raw.copy_plainly(base_to, base_from, bytes))?;
        ground.figure(&what, "cuMemcpyPeer + sync", bytes as f64 / plainly / 1e9, "GB/s");
        for (name, copy) in &mut ways {
            let seconds = timed(times, || copy(to, from, bytes))?;
            ground.figure(&what, name, bytes as f64 / seconds / 1e9, "GB/s");
            ground.figure(&what, &format!("{name}, ratio"), baseline / seconds, "");
        }
    }
    Ok(())
}

/// Measures the latency of single copies, from before `begin` to done.
fn small(ground: &mut Ground, from: &DeviceMemory, to: &DeviceMemory) -> Outcome<()> {
    let raw = Raw::new(&ground.device, &ground.peer)?;
    let (base_to, base_from) = (to.address(0, GIB)?, from.address(0, GIB)?);
    let host = ground.device.pinned(1 << 20)?;
    let mut queues = [
        ("Auto", queue(&ground.device, Method::Auto)?),
        ("Engines", queue(&ground.device, Method::Engines)?),
    ];
    let events = QueueOptions { method: Method::Engines, stream_writes: false, blocks: None };
    let mut events = queue_of(&ground.device, events)?;
    for bytes in [8, 4 << 10, 64 << 10, 256 << 10, 1 << 20] {
        let places = [
            ("to the peer", CopyPlace::Device(to, 0), CopyPlace::Device(from, 0)),
            ("to the host", CopyPlace::Host(&host, 0), CopyPlace::Device(from, 0)),
            ("from the host", CopyPlace::Device(from, 0), CopyPlace::Host(&host, 0)),
        ];
        let seconds = timed(2000, || raw.copy(base_to, base_from, bytes))?;
        let what = format!("latency to the peer, {bytes} B");
        ground.figure(&what, "cuMemcpyPeerAsync + sync", seconds * 1e6, "µs");
        let seconds = timed(2000, || raw.copy_plainly(base_to, base_from, bytes))?;
        ground.figure(&what, "cuMemcpyPeer + sync", seconds * 1e6, "µs");
        for (way, to, from) in places {
            let what = format!("latency {way}, {bytes} B");
            for (name, queue) in &mut queues {
                let seconds = timed(2000, || {
                    queue.push(to, from, bytes)?;
                    finish(queue)
                })?;
                ground.figure(&what, name, seconds * 1e6, "µs");
            }
        }
        let what = format!("latency to the peer, {bytes} B");
        let seconds = timed(500, || {
            events.push(CopyPlace::Device(to, 0), CopyPlace::Device(from, 0), bytes)?;
            finish(&mut events)
        })?;
        ground.figure(&what, "Engines, events", seconds * 1e6, "µs");
    }
    Ok(())
}

/// Measures the CPU cost of `push` and `begin`.
fn begin_cost(ground: &mut Ground, from: &DeviceMemory, to: &DeviceMemory) -> Outcome<()> {
    for method in [Method::Auto, Method::Engines] {
        let mut queue = queue(&ground.device, method)?;
        for (pieces, bytes) in
            [(1, 8), (1, 1 << 20), (4, 4096), (16, 4096), (256, 4096), (4096, 4096)]
        {
            let mut costs = Vec::new();
            for _ in 0..50 {
                let begin = Instant::now();
                for piece in 0..pieces {
                    let place = piece * bytes;
                    queue.push(
                        CopyPlace::Device(to, place),
                        CopyPlace::Device(from, place),
                        bytes,
                    )?;
                }
                let ticket = queue.begin()?;
                costs.push(begin.elapsed().as_secs_f64());
                wait(Some(ticket))?;
            }
            let what = format!("CPU for push and begin, {pieces} × {bytes} B");
            ground.figure(&what, &format!("{method:?}"), median(costs) * 1e6, "µs");
        }
    }
    Ok(())
}
