//! Many small pieces, as in a key-value cache: copied by a kernel, by the copy engines one by one, and by the engines
//! at once.

use std::sync::Arc;

use polyrail_gpu::cuda::{CudaDevice, Method, QueueOptions};
use polyrail_gpu::{CopyPlace, Device, DeviceMemory};
use polyrail_sys::Memory;

use super::ground::{
    Ground, Outcome, contents, download, finish, pattern, queue_of, same, timed, upload,
};
use super::raw::Raw;

pub(crate) const PIECES: u64 = 16_384;
pub(crate) const PIECE: u64 = 16 << 10;
const TOTAL: u64 = PIECES * PIECE;
/// Distance between consecutive pieces. Odd, so that it visits each of a power of two of places once, far from the one
/// before.
pub(crate) const STRIDE: u64 = 6_073;

#[derive(Clone, Copy)]
enum Spot<'a> {
    Device(&'a DeviceMemory),
    Host(&'a Memory),
}

impl<'a> Spot<'a> {
    fn place(self, offset: u64) -> CopyPlace<'a> {
        match self {
            Self::Device(memory) => CopyPlace::Device(memory, offset),
            Self::Host(memory) => CopyPlace::Host(memory, offset),
        }
    }
}

pub(crate) fn all(ground: &mut Ground) -> Outcome<()> {
    let (device, peer) = (ground.device.clone(), ground.peer.clone());
    device.reaches(&*peer)?;
    peer.reaches(&*device)?;
    let (near, far) = (device.allocate(TOTAL)?, peer.allocate(TOTAL)?);
    let (again, host) = (device.allocate(TOTAL)?, device.pinned(TOTAL)?);
    let source = pattern(11, TOTAL);
    upload(&device, &near, &source)?;
    let expected = scattered(&source);

    let raw = Raw::new(&device, &peer)?;
    let (to, from) = (far.address(0, TOTAL)?, near.address(0, TOTAL)?);
    let contiguous = timed(30, || raw.copy(to, from, TOTAL))?;
    let rate = TOTAL as f64 / contiguous / 1e9;
    ground.figure("256 MiB to the peer, contiguous", "cuMemcpyPeerAsync + sync", rate, "GB/s");
    drop(raw);

    let (n, f, a, h) =
        (Spot::Device(&near), Spot::Device(&far), Spot::Device(&again), Spot::Host(&host));
    let ways = [
        ("to the peer (its source's queue)", &device, n, f),
        ("to the peer (its target's queue)", &peer, n, f),
        ("in the device", &device, n, a),
        ("to the host", &device, n, h),
    ];
    for (way, device, from, to) in ways {
        let what = format!("16,384 × 16 KiB {way}");
        for options in all_options(matches!(to, Spot::Host(_))) {
            spoil(ground, to)?;
            copies(ground, &what, device, options, (to, from), (PIECES, PIECE))?;
            let found = match to {
                Spot::Device(memory) => download(memory_owner(ground, memory), memory)?,
                Spot::Host(memory) => contents(memory)?,
            };
            ground.check(&format!("{what}, {options:?}"), same(&found, &expected));
        }
    }
    // The gathered bytes are scattered from the host.
    host.write_at(0, &source)?;
    for options in all_options(true) {
        let what = "16,384 × 16 KiB from the host";
        copies(ground, what, &device, options, (a, h), (PIECES, PIECE))?;
        let result = same(&download(&device, &again)?, &expected);
        ground.check(&format!("{what}, {options:?}"), result);
    }
    thresholds(ground, &device, n, f, h)?;
    sizes(ground, &device, n, f, h)
}

/// Measures the same bytes in pieces of other sizes, and of an odd one.
fn sizes(
    ground: &mut Ground,
    device: &Arc<CudaDevice>,
    near: Spot<'_>,
    far: Spot<'_>,
    host: Spot<'_>,
) -> Outcome<()> {
    let plain = QueueOptions::default();
    for (way, to) in [("to the peer", far), ("to the host", host)] {
        for (pieces, bytes) in [
            (16_384, 512),
            (16_384, 4 << 10),
            (16_384, 8 << 10),
            (16_384, PIECE - 1),
            (4_096, 64 << 10),
            (1_024, 256 << 10),
            (256, 1 << 20),
        ] {
            let what = format!("{pieces} × {bytes} B {way}");
            copies(ground, &what, device, plain, (to, near), (pieces, bytes))?;
        }
    }
    Ok(())
}

/// Finds where the kernel begins to win, by number and size of pieces.
fn thresholds(
    ground: &mut Ground,
    device: &Arc<CudaDevice>,
    near: Spot<'_>,
    far: Spot<'_>,
    host: Spot<'_>,
) -> Outcome<()> {
    for (way, to) in [("to the peer", far), ("to the host", host)] {
        for pieces in [2, 3, 4, 6, 8] {
            for bytes in [512, 16 << 10, 256 << 10, 1 << 20] {
                let what = format!("{pieces} × {bytes} B {way}");
                for method in [Method::Kernel, Method::Engines] {
                    let options = QueueOptions { method, ..QueueOptions::default() };
                    copies(ground, &what, device, options, (to, near), (pieces, bytes))?;
                }
            }
        }
    }
    Ok(())
}

fn all_options(host: bool) -> Vec<QueueOptions> {
    let plain = QueueOptions::default();
    let blocks: &[u32] = if host { &[4, 8, 16] } else { &[16, 32, 64, 132] };
    let engines = [Method::Engines, Method::EnginesAtOnce];
    let kernels = blocks.iter().map(|blocks| QueueOptions {
        method: Method::Kernel,
        blocks: Some(*blocks),
        ..plain
    });
    let engines = engines.into_iter().map(|method| QueueOptions { method, ..plain });
    std::iter::once(plain).chain(engines).chain(kernels).collect()
}

fn copies(
    ground: &mut Ground,
    what: &str,
    device: &Arc<CudaDevice>,
    options: QueueOptions,
    (to, from): (Spot<'_>, Spot<'_>),
    (pieces, bytes): (u64, u64),
) -> Outcome<()> {
    let mut queue = queue_of(device, options)?;
    let times = if pieces > 100 { 10 } else { 200 };
    let seconds = timed(times, || {
        for piece in 0..pieces {
            let target = piece * STRIDE % PIECES.max(pieces) * PIECE;
            // Fewer pieces than places may be larger than a place; then they follow each other.
            let target = if bytes > PIECE { piece * bytes } else { target };
            let source = piece * bytes.max(PIECE);
            queue.push(to.place(target), from.place(source), bytes)?;
        }
        finish(&mut queue)
    })?;
    let blocks = options.blocks.map(|blocks| format!(", {blocks} blocks")).unwrap_or_default();
    let how = format!("{:?}{blocks}", options.method);
    let rate = (pieces * bytes) as f64 / seconds / 1e9;
    match pieces > 100 {
        true => ground.figure(what, &how, rate, "GB/s"),
        false => ground.figure(what, &how, seconds * 1e6, "µs"),
    }
    Ok(())
}

/// Returns the expected content of the target, when all pieces are in place.
fn scattered(source: &[u8]) -> Vec<u8> {
    let mut target = vec![0; source.len()];
    for piece in 0..PIECES {
        let place = (piece * STRIDE % PIECES * PIECE) as usize;
        let bytes = &source[(piece * PIECE) as usize..][..PIECE as usize];
        target[place..][..PIECE as usize].copy_from_slice(bytes);
    }
    target
}

/// Overwrites the target, so that bytes that a method leaves out are detected.
fn spoil(ground: &Ground, spot: Spot<'_>) -> Outcome<()> {
    let other = vec![0xa5; TOTAL as usize];
    match spot {
        Spot::Device(memory) => upload(memory_owner(ground, memory), memory, &other),
        Spot::Host(memory) => Ok(memory.write_at(0, &other)?),
    }
}

fn memory_owner<'a>(ground: &'a Ground, memory: &DeviceMemory) -> &'a Arc<CudaDevice> {
    let index = memory.device().identity().index;
    if index == ground.peer.identity().index { &ground.peer } else { &ground.device }
}
