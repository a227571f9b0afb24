//! Checks that bytes arrive, that errors are reported, and that nothing else is disturbed.

use std::sync::Arc;

use polyrail_gpu::cuda::{Cuda, CudaDevice, Method, QueueOptions};
use polyrail_gpu::{CopyPlace, Device, DeviceMemory, GpuError, Queue};
use polyrail_sys::{Badge, Memory, ProvenProcess, SharedMemory};

use super::ground::{
    Dice, Ground, Outcome, contents, download, finish, pattern, queue, queue_of, same, upload,
};
use super::raw::Raw;

/// Sizes around every threshold in the code.
const SIZES: [u64; 22] = [
    1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 255, 256, 1000, 4097, 16384, 16385, 65536, 65537,
    262_144, 262_145, 1_000_003,
];
const COUNTS: [u64; 9] = [1, 1, 2, 3, 4, 7, 8, 33, 200];
const SPOT_BYTES: u64 = 1 << 20;
const ROUNDS: u64 = 16;

/// Kind of memory that bytes are copied from or to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Device,
    Peer,
    Pinned,
    /// Pinned twice, once by each device, as two processes do with memory that both have open.
    Shared,
    Pageable,
}

enum Spot {
    Device(Arc<CudaDevice>, DeviceMemory),
    Host(Memory),
    /// Shared memory, as each of two processes sees it.
    Shared(SharedMemory, [Memory; 2]),
}

pub(crate) fn all(ground: &mut Ground) -> Outcome<()> {
    let methods = [Method::Auto, Method::Engines, Method::EnginesAtOnce, Method::Kernel];
    let reached = ground.device.reaches(&*ground.peer)?;
    println!("peer access: {reached}");
    use Kind::{Device, Pageable, Peer, Pinned, Shared};
    let ways = [
        (Device, Device),
        (Device, Peer),
        (Peer, Device),
        (Device, Pinned),
        (Pinned, Device),
        (Peer, Pinned),
        (Pinned, Pinned),
        (Device, Shared),
        (Shared, Device),
        (Device, Pageable),
        (Pageable, Device),
    ];
    for method in methods {
        for (from, to) in ways {
            let options = QueueOptions { method, ..QueueOptions::default() };
            let result = random_batches(ground, from, to, options);
            ground.check(&format!("random pieces, {method:?}, {from:?} to {to:?}"), result);
        }
    }
    let events = QueueOptions { stream_writes: false, ..QueueOptions::default() };
    let result = random_batches(ground, Device, Peer, events);
    ground.check("random pieces, batches end by events", result);
    let result = on_threads(ground);
    ground.check("random pieces on four threads at once", result);
    let result = many_batches(ground);
    ground.check("40,000 batches on two queues, in order, with tables that wrap", result);
    let result = a_batch_larger_than_the_ring(ground);
    ground.check("a batch of 100,000 pieces", result);
    let result = current_context(ground);
    ground.check("the caller's current context stays", result);
    let result = drop_waits(ground);
    ground.check("a dropped queue has made its copies", result);
    errors(ground)
}

/// Checks that contexts are made only where something is allocated, and released with the last user. To be run before
/// anything else in the process.
pub(crate) fn contexts(cuda: &Arc<Cuda>, index: u32) -> Outcome<()> {
    let with = |cuda: &Arc<Cuda>| -> Outcome<Vec<u32>> {
        let mut with = Vec::new();
        for index in 0..cuda.count() {
            if cuda.has_context(index)? {
                with.push(index);
            }
        }
        Ok(with)
    };
    let device = cuda.device(index)?;
    if !with(cuda)?.is_empty() || cuda.current_context()? != 0 {
        return Err("loading made a context".into());
    }
    let memory = device.allocate(1000)?;
    let queue = queue(&device, Method::Auto)?;
    if with(cuda)? != [index] || cuda.current_context()? != 0 {
        return Err(format!("allocating made contexts on {:?}", with(cuda)?).into());
    }
    drop(device);
    drop(queue);
    if with(cuda)? != [index] {
        return Err("the context is gone while there is memory".into());
    }
    drop(memory);
    if !with(cuda)?.is_empty() {
        return Err("the context is there after its last user".into());
    }
    Ok(())
}

fn spot(ground: &Ground, kind: Kind, bytes: &[u8]) -> Outcome<Spot> {
    let on = |device: &Arc<CudaDevice>| -> Outcome<Spot> {
        let memory = device.allocate(bytes.len() as u64)?;
        upload(device, &memory, bytes)?;
        Ok(Spot::Device(device.clone(), memory))
    };
    match kind {
        Kind::Device => on(&ground.device),
        Kind::Peer => on(&ground.peer),
        Kind::Pinned => {
            let memory = ground.device.pinned(bytes.len() as u64)?;
            memory.write_at(0, bytes)?;
            Ok(Spot::Host(memory))
        }
        Kind::Shared => {
            let (len, token) = (bytes.len() as u64, 0x1234_5678);
            let shared = SharedMemory::create(len, token)?;
            // This process plays the other end, too.
            let name = format!("polyrail-gpu-probe-{}", std::process::id());
            let badge = Badge::take(&name)?;
            let process = ProvenProcess::with_name(&name)?;
            drop(badge);
            let opened = SharedMemory::open(&process, shared.descriptor(), len, token)?;
            let ends = [ground.device.pin(shared.memory())?, ground.peer.pin(&opened)?];
            ends[0].write_at(0, bytes)?;
            Ok(Spot::Shared(shared, ends))
        }
        Kind::Pageable => Ok(Spot::Host(Memory::from(bytes.to_vec()))),
    }
}

impl Spot {
    fn place(&self, offset: u64) -> CopyPlace<'_> {
        match self {
            Self::Device(_, memory) => CopyPlace::Device(memory, offset),
            Self::Host(memory) => CopyPlace::Host(memory, offset),
            // The mapping that the other process would use.
            Self::Shared(_, ends) => CopyPlace::Host(&ends[1], offset),
        }
    }

    fn contents(&self) -> Outcome<Vec<u8>> {
        match self {
            Self::Device(device, memory) => download(device, memory),
            Self::Host(memory) => contents(memory),
            Self::Shared(shared, _) => contents(shared.memory()),
        }
    }
}

/// Copies batches of random pieces at random places. All bytes around them must stay as they were.
fn random_batches(ground: &Ground, from: Kind, to: Kind, options: QueueOptions) -> Outcome<()> {
    let source = pattern(1, SPOT_BYTES);
    let mut expected = pattern(2, SPOT_BYTES);
    let (from, to) = (spot(ground, from, &source)?, spot(ground, to, &expected)?);
    let mut queue = queue_of(&ground.device, options)?;
    let mut dice = Dice(0x5eed);
    for round in 0..ROUNDS {
        let count = dice.one_of(&COUNTS);
        let slot = SPOT_BYTES / count;
        for index in 0..count {
            let (shift, aligned) = (dice.below(33), dice.below(2) == 0);
            let shift = if aligned { shift & !15 } else { shift };
            let len = dice.one_of(&SIZES).min(slot - shift);
            let target = index * slot + shift;
            let mut start = dice.below(SPOT_BYTES - len + 1);
            if aligned {
                // The same alignment as the target's, which the fast methods need.
                start = (start & !15 | target & 15).min(SPOT_BYTES - len);
            }
            queue.push(to.place(target), from.place(start), len)?;
            let bytes = &source[start as usize..][..len as usize];
            expected[target as usize..][..len as usize].copy_from_slice(bytes);
        }
        finish(&mut queue)?;
        same(&to.contents()?, &expected).map_err(|error| format!("round {round}: {error}"))?;
    }
    Ok(())
}

fn on_threads(ground: &Ground) -> Outcome<()> {
    use Kind::{Device, Peer, Pinned};
    let ways = [(Device, Peer), (Peer, Device), (Device, Pinned), (Pinned, Device)];
    let results: Vec<_> = std::thread::scope(|scope| {
        let run = |(from, to)| {
            let plain = QueueOptions::default();
            random_batches(ground, from, to, plain).map_err(|error| error.to_string())
        };
        let threads = ways.map(|way| scope.spawn(move || run(way)));
        threads.map(|thread| thread.join().unwrap_or_else(|_| Err("it panicked".into()))).into()
    });
    Ok(results.into_iter().collect::<Result<(), String>>()?)
}

/// Runs batches on two queues at once; each batch moves the bytes of the one before.
fn many_batches(ground: &Ground) -> Outcome<()> {
    const BATCHES: u64 = 20_000;
    const PIECES: u64 = 16;
    let start = pattern(3, PIECES * 64);
    let mut lanes = Vec::new();
    for device in [&ground.device, &ground.peer] {
        let memory = device.allocate(2 * PIECES * 64)?;
        upload(device, &memory.part(0, PIECES * 64)?, &start)?;
        lanes.push((queue(device, Method::Auto)?, memory));
    }
    for batch in 0..BATCHES {
        for (queue, memory) in &mut lanes {
            // From one half to the other, each piece moved one place on.
            let (to, from) = if batch % 2 == 0 { (PIECES * 64, 0) } else { (0, PIECES * 64) };
            for piece in 0..PIECES {
                let target = to + (piece + 1) % PIECES * 64;
                let (to, from) = (
                    CopyPlace::Device(memory, target),
                    CopyPlace::Device(memory, from + piece * 64),
                );
                queue.push(to, from, 64)?;
            }
            queue.begin()?;
        }
    }
    let turned = (BATCHES % PIECES * 64) as usize;
    let mut expected = start;
    expected.rotate_right(turned);
    for ((mut queue, memory), device) in lanes.into_iter().zip([&ground.device, &ground.peer]) {
        finish(&mut queue)?;
        same(&download(device, &memory.part(0, PIECES * 64)?)?, &expected)?;
    }
    Ok(())
}

fn a_batch_larger_than_the_ring(ground: &Ground) -> Outcome<()> {
    const PIECES: u64 = 100_000;
    let source = pattern(4, PIECES * 16);
    let (from, to) = (ground.device.allocate(PIECES * 16)?, ground.peer.allocate(PIECES * 16)?);
    upload(&ground.device, &from, &source)?;
    let mut queue = queue(&ground.device, Method::Auto)?;
    for piece in 0..PIECES {
        let target = (PIECES - 1 - piece) * 16;
        queue.push(CopyPlace::Device(&to, target), CopyPlace::Device(&from, piece * 16), 16)?;
    }
    finish(&mut queue)?;
    let expected: Vec<u8> = source.chunks(16).rev().flatten().copied().collect();
    same(&download(&ground.peer, &to)?, &expected)
}

fn current_context(ground: &Ground) -> Outcome<()> {
    let raw = Raw::new(&ground.device, &ground.peer)?;
    for which in [0, 1] {
        let before = raw.make_current(which)?;
        let stays = |what: &str| match ground.cuda.current_context()? {
            now if now == before => Ok(()),
            _ => Err(Box::<dyn std::error::Error>::from(format!("{what} changed it"))),
        };
        let memory = ground.device.allocate(1 << 20)?;
        stays("allocate")?;
        let host = ground.device.pinned(1 << 20)?;
        stays("pinned")?;
        let mut queue = queue(&ground.device, Method::Auto)?;
        stays("open_queue")?;
        for len in [8, 1 << 20] {
            queue.push(CopyPlace::Host(&host, 0), CopyPlace::Device(&memory, 0), len)?;
            finish(&mut queue)?;
            stays("copying")?;
        }
        ground.device.reaches(&*ground.peer)?;
        ground.device.export(&memory)?;
        stays("exporting")?;
        drop((queue, memory, host));
        stays("dropping")?;
    }
    Ok(())
}

fn drop_waits(ground: &Ground) -> Outcome<()> {
    let source = pattern(5, 64 << 20);
    let (from, to) = (ground.device.allocate(64 << 20)?, ground.peer.allocate(64 << 20)?);
    upload(&ground.device, &from, &source)?;
    let mut queue = queue(&ground.device, Method::Auto)?;
    queue.push(CopyPlace::Device(&to, 0), CopyPlace::Device(&from, 0), 64 << 20)?;
    let ticket = queue.begin()?;
    drop(queue);
    if !ticket.is_done()? {
        return Err("its ticket doesn't say so".into());
    }
    same(&download(&ground.peer, &to)?, &source)
}

/// Checks that the error is the expected one.
fn expect<T>(result: Result<T, GpuError>, is_it: impl Fn(&GpuError) -> bool) -> Outcome<()> {
    match result {
        Ok(_) => Err("no error".into()),
        Err(error) if is_it(&error) => Ok(()),
        Err(error) => Err(format!("another error: {error}").into()),
    }
}

fn errors(ground: &mut Ground) -> Outcome<()> {
    let cuda = ground.cuda.clone();
    // SAFETY: where a call expects success, the memory stays allocated.
    let at = |pointer, len| unsafe { cuda.memory_at(pointer, len) };
    let no_memory = |error: &GpuError| matches!(error, GpuError::NotDeviceMemory { .. });
    let beyond = |error: &GpuError| matches!(error, GpuError::BeyondAllocation { .. });
    let raw = Raw::new(&ground.device, &ground.peer)?;

    let result = expect(cuda.device(99), |error| matches!(error, GpuError::NoDevice { .. }));
    ground.check("device 99 does not exist", result);
    ground.check("address 8 is not device memory", expect(at(8, 8), no_memory));
    let pageable = Box::new([0_u8; 100]);
    let result = expect(at(pageable.as_ptr() as u64, 100), no_memory);
    ground.check("the heap is not device memory", result);
    let pinned = ground.device.pinned(100)?;
    let result = expect(at(pinned.address(0, 1)? as u64, 100), no_memory);
    ground.check("pinned memory is not device memory", result);

    raw.make_current(0)?;
    let base = raw.allocate(3 << 20)?;
    ground.check("one byte beyond an allocation", expect(at(base, (3 << 20) + 1), beyond));
    ground.check("a length that wraps around", expect(at(base + 5, u64::MAX - 4), beyond));
    let inside = |pointer, len, index| -> Outcome<()> {
        let found = at(pointer, len)?;
        let (device, len) = (found.device().identity().index, found.len());
        if (device, len) != (index, len) || found.address(0, len)? != pointer {
            return Err(format!("it is {found:?}").into());
        }
        Ok(())
    };
    let index = ground.device.identity().index;
    ground.check("a range inside an allocation", inside(base + 100, (3 << 20) - 100, index));
    let result = std::thread::scope(|scope| {
        let ask = || inside(base + 1, 7, index).map_err(|error| error.to_string());
        scope.spawn(ask).join().unwrap_or_else(|_| Err("it panicked".into()))
    });
    ground.check("the same on a thread without a context", result.map_err(Into::into));
    raw.free(base)?;
    ground.check("a freed pointer", expect(at(base, 8), no_memory));
    let other = ground.peer.allocate(1 << 20)?;
    let index = ground.peer.identity().index;
    ground.check("memory of the peer", inside(other.address(7, 9)?, 9, index));
    let managed = raw.allocate_managed()?;
    let unsupported = |error: &GpuError| matches!(error, GpuError::Unsupported { .. });
    ground.check("managed memory is refused", expect(at(managed, 8), unsupported));
    raw.free(managed)?;

    let mapped = ground.device.allocate_mapped(&[2 << 20, 4 << 20, 2 << 20])?;
    let (base, index) = (mapped.address(0, 0)?, ground.device.identity().index);
    ground.check("a range over three mappings", inside(base + 5, (8 << 20) - 5, index));
    ground.check("one byte beyond the last mapping", expect(at(base, (8 << 20) + 1), beyond));
    drop(mapped);
    ground.check("memory that is unmapped", expect(at(base, 8), no_memory));

    let no_room = |error: &GpuError| error.to_string().contains("OUT_OF_MEMORY");
    ground.check("a pebibyte on the device", expect(ground.device.allocate(1 << 50), no_room));
    ground.check("a pebibyte of pinned memory", expect(ground.device.pinned(1 << 46), no_room));
    let result = ground.device.pinned(1 << 20).map(|_| ()).map_err(Into::into);
    ground.check("after that a mebibyte", result);
    let empty = || -> Outcome<()> {
        let mut queue: Queue = queue(&ground.device, Method::Auto)?;
        finish(&mut queue)
    };
    let result = empty();
    ground.check("a batch of nothing ends", result);
    Ok(())
}
