//! Gathering of fragments from a bounce buffer: checks that every byte arrives in its place, and measures the rate.

use std::sync::Arc;
use std::time::Instant;

use polyrail_gpu::cuda::{CudaDevice, Method, QueueOptions};
use polyrail_gpu::{CopyPlace, DeviceMemory, Fragment, Queue};

use super::ground::{
    Dice, Ground, LIMIT, Outcome, download, finish, median, pattern, queue, queue_of, same, upload,
};

const GIB: u64 = 1 << 30;
/// Most bytes of a receive of GPUDirect-TCPX.
const MESSAGE: u64 = 4 << 20;
const PAGE: u64 = 4096;
const ROUNDS: usize = 7;
/// Lengths around each boundary of the code: an element, a round of a warp, an entry of the table.
const LENS: [u32; 22] = [
    0, 1, 7, 15, 16, 17, 31, 33, 100, 511, 512, 513, 1023, 1025, 2047, 2049, 4095, 4096, 4097,
    16_383, 16_385, 40_001,
];

pub(crate) fn all(ground: &mut Ground) -> Outcome<()> {
    let device = ground.device.clone();
    for blocks in [None, Some(1), Some(16)] {
        let how = blocks.map_or("8 blocks".to_owned(), |blocks| format!("{blocks} blocks"));
        let result = every_alignment(&device, blocks);
        ground.check(&format!("every alignment with every length, {how}"), result);
    }
    let result = random_messages(&device);
    ground.check("256 messages in fragments of odd lengths at random places", result);
    rates(ground, &device)
}

fn gatherer(device: &Arc<CudaDevice>, blocks: Option<u32>) -> Outcome<Queue> {
    queue_of(device, QueueOptions { method: Method::Gather, blocks, ..QueueOptions::default() })
}

fn run(
    queue: &mut Queue,
    to: &DeviceMemory,
    bounce: &DeviceMemory,
    list: &[Fragment],
) -> Outcome<()> {
    let (to, bounce) = (CopyPlace::Device(to, 0), CopyPlace::Device(bounce, 0));
    match queue.gather(to, bounce, list)?.wait(LIMIT)? {
        true => Ok(()),
        false => Err("a gather did not end in 20 s".into()),
    }
}

/// Returns the expected content of memory that was filled with `0xa5`, once all fragments are in place.
fn gathered(source: &[u8], fragments: &[Fragment], len: u64) -> Vec<u8> {
    let mut target = vec![0xa5; len as usize];
    for Fragment { from, len, to } in fragments {
        let bytes = &source[*from as usize..][..*len as usize];
        target[*to as usize..][..*len as usize].copy_from_slice(bytes);
    }
    target
}

/// Gathers fragments of each length, from each of 16 alignments to each of 16, with bytes between them that must stay.
fn every_alignment(device: &Arc<CudaDevice>, blocks: Option<u32>) -> Outcome<()> {
    let mut fragments = Vec::new();
    let (mut from, mut to) = (0_u64, 0_u64);
    for len in LENS {
        for (source, target) in (0..256).map(|pair| (pair / 16, pair % 16)) {
            from = from.next_multiple_of(16) + source;
            to = to.next_multiple_of(16) + target;
            fragments.push(Fragment { from: from as u32, len, to });
            from += u64::from(len) + 1;
            to += u64::from(len) + 1;
        }
    }
    let (bounce, target) = (device.allocate(from)?, device.allocate(to)?);
    let source = pattern(3, from);
    upload(device, &bounce, &source)?;
    upload(device, &target, &vec![0xa5; to as usize])?;
    run(&mut gatherer(device, blocks)?, &target, &bounce, &fragments)?;
    same(&download(device, &target)?, &gathered(&source, &fragments, to))
}

/// Gathers messages one after the other, as they come from a NIC: several under way, each in its own memory.
fn random_messages(device: &Arc<CudaDevice>) -> Outcome<()> {
    const BOUNCE: u64 = 64 << 20;
    const ROOM: u64 = 8192;
    let mut dice = Dice(77);
    let bounce = device.allocate(BOUNCE)?;
    let source = pattern(4, BOUNCE);
    upload(device, &bounce, &source)?;
    let mut queue = gatherer(device, None)?;
    for _ in 0..32 {
        let mut under_way = Vec::new();
        for _ in 0..8 {
            let bytes = 1 + dice.below(MESSAGE);
            let mut fragments = Vec::new();
            let mut to = 0;
            while to < bytes {
                let len = (3073 + dice.below(2047)).min(bytes - to);
                let from = dice.below(BOUNCE / ROOM) * ROOM + dice.below(ROOM - len);
                fragments.push(Fragment { from: from as u32, len: len as u32, to });
                to += len;
            }
            Fragment::check(&fragments, bytes)?;
            let target = device.allocate(bytes)?;
            let places = (CopyPlace::Device(&target, 0), CopyPlace::Device(&bounce, 0));
            let ticket = queue.gather(places.0, places.1, &fragments)?;
            under_way.push((ticket, target, fragments, bytes));
        }
        for (ticket, target, fragments, bytes) in under_way {
            if !ticket.wait(LIMIT)? {
                return Err("a gather did not end in 20 s".into());
            }
            same(&download(device, &target)?, &gathered(&source, &fragments, bytes))?;
        }
    }
    Ok(())
}

/// Makes 1 GiB of fragments of some 4 KiB, with places in random order.
fn pages(
    lens: impl Fn(&mut Dice) -> u64,
    shift: impl Fn(&mut Dice) -> u64,
    room: u64,
) -> Vec<Fragment> {
    let mut dice = Dice(5);
    let mut places: Vec<u64> = (0..GIB / PAGE).collect();
    for index in (1..places.len()).rev() {
        places.swap(index, dice.below(index as u64 + 1) as usize);
    }
    let mut to = 0;
    let mut fragments = Vec::new();
    for place in places {
        let len = lens(&mut dice).min(GIB - to);
        if len == 0 {
            break;
        }
        let from = (place * room + shift(&mut dice)) as u32;
        fragments.push(Fragment { from, len: len as u32, to });
        to += len;
    }
    fragments
}

fn rates(ground: &mut Ground, device: &Arc<CudaDevice>) -> Outcome<()> {
    // Room for fragments that are longer than a page.
    const ROOM: u64 = 8192;
    const BOUNCE: u64 = GIB / PAGE * ROOM;
    let (bounce, target) = (device.allocate(BOUNCE)?, device.allocate(GIB)?);
    let source = pattern(6, BOUNCE);
    upload(device, &bounce, &source)?;
    let whole = pages(|_| PAGE, |_| 0, ROOM);
    let odd = pages(|dice| 3073 + dice.below(2047), |dice| dice.below(3000), ROOM);
    let total = |list: &[Fragment]| list.iter().map(|one| u64::from(one.len)).sum::<u64>();

    for (what, fragments) in [("whole pages", &whole), ("odd lengths and places", &odd)] {
        let bytes = total(fragments);
        let kernel = QueueOptions { method: Method::Kernel, ..QueueOptions::default() };
        let mut ways = Vec::new();
        for blocks in [1, 2, 4, 8, 16] {
            ways.push((format!("gather, {blocks} blocks"), gatherer(device, Some(blocks))?));
        }
        for blocks in [8, 64] {
            let options = QueueOptions { blocks: Some(blocks), ..kernel };
            ways.push((format!("copy kernel, {blocks} blocks"), queue_of(device, options)?));
        }
        let mut engines = queue(device, Method::Engines)?;
        let mut seconds = vec![Vec::new(); ways.len()];
        let mut plain = Vec::new();
        // All methods in each round, so that they have the same conditions. The first round warms up.
        for round in 0..=ROUNDS {
            for ((_, queue), seconds) in ways.iter_mut().zip(&mut seconds) {
                let begin = Instant::now();
                run(queue, &target, &bounce, fragments)?;
                if round > 0 {
                    seconds.push(begin.elapsed().as_secs_f64());
                }
            }
            let begin = Instant::now();
            let (to, from) = (CopyPlace::Device(&target, 0), CopyPlace::Device(&bounce, 0));
            engines.push(to, from, bytes)?;
            finish(&mut engines)?;
            if round > 0 {
                plain.push(begin.elapsed().as_secs_f64());
            }
        }
        let name = format!("1 GiB in fragments of 4 KiB, {what}");
        for ((way, _), seconds) in ways.iter().zip(seconds) {
            figures(ground, &name, way, bytes, seconds);
        }
        figures(ground, &name, "one copy by an engine", bytes, plain);
        upload(device, &target, &vec![0xa5; GIB as usize])?;
        run(&mut gatherer(device, None)?, &target, &bounce, fragments)?;
        let result = same(&download(device, &target)?, &gathered(&source, fragments, GIB));
        ground.check(&name, result);
    }
    messages(ground, device, &bounce, &target, &odd)
}

/// Measures messages of 4 MiB, each gathered separately, sixteen under way: the depth of TCPX's queue.
fn messages(
    ground: &mut Ground,
    device: &Arc<CudaDevice>,
    bounce: &DeviceMemory,
    target: &DeviceMemory,
    fragments: &[Fragment],
) -> Outcome<()> {
    const DEPTH: usize = 16;
    let lists: Vec<&[Fragment]> = fragments.chunks(1000).collect();
    let bytes = fragments.iter().map(|fragment| u64::from(fragment.len)).sum();
    let mut queue = gatherer(device, None)?;
    let (mut seconds, mut single) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let begin = Instant::now();
        let mut tickets = std::collections::VecDeque::new();
        for list in &lists {
            let places = (CopyPlace::Device(target, 0), CopyPlace::Device(bounce, 0));
            tickets.push_back(queue.gather(places.0, places.1, list)?);
            if tickets.len() == DEPTH {
                tickets.pop_front().map(|ticket| ticket.wait(LIMIT)).transpose()?;
            }
        }
        for ticket in tickets {
            ticket.wait(LIMIT)?;
        }
        if round > 0 {
            seconds.push(begin.elapsed().as_secs_f64());
        }
    }
    for list in lists.iter().take(100) {
        let begin = Instant::now();
        run(&mut queue, target, bounce, list)?;
        single.push(begin.elapsed().as_secs_f64());
    }
    figures(ground, "messages of 1000 fragments, 16 under way", "gather, 8 blocks", bytes, seconds);
    let us = median(single) * 1e6;
    ground.figure("a message of 1000 fragments alone", "gather, 8 blocks", us, "µs");
    Ok(())
}

/// Records the median of the rates, with the least and the greatest.
fn figures(ground: &mut Ground, what: &str, how: &str, bytes: u64, seconds: Vec<f64>) {
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    let slowest = seconds.iter().copied().fold(0.0, f64::max);
    let fastest = seconds.iter().copied().fold(f64::INFINITY, f64::min);
    ground.figure(what, how, rate(median(seconds)), "GB/s");
    let spread = format!("{how}, least");
    ground.figure(what, &spread, rate(slowest), "GB/s");
    ground.figure(what, &format!("{how}, most"), rate(fastest), "GB/s");
}
