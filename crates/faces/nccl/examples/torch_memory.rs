//! A library for programs in other languages. They register their own memory, such as a tensor's, by pointer, and
//! another process writes to it. `scripts/gpu-torch` does so with PyTorch.
//!
//! Each function returns 0, or -1 on failure. `out` gets the result or the reason of the failure as text.

use std::ffi::{CStr, c_char, c_int};
use std::fmt::Write as _;
use std::time::Duration;

use polyrail::{Config, Cuda, DeviceMemory, Engine, Peer, Region, Request};

const LIMIT: Duration = Duration::from_secs(30);

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// An engine and its registered regions.
pub struct Probe {
    engine: Engine,
    regions: Vec<Region>,
}

/// Creates an engine with this value of the setting `path`.
///
/// # Safety
/// `path` must be a string that ends with 0, `place` be valid, and `out` have room for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_probe_open(
    path: *const c_char,
    place: *mut *mut Probe,
    out: *mut c_char,
    room: usize,
) -> c_int {
    let open = || -> Outcome<Probe> {
        // SAFETY: as the caller promises.
        let path = unsafe { CStr::from_ptr(path) }.to_str()?;
        let config = Config::builder().set("rails", "127.0.0.1")?.set("path", path)?;
        let engine = Engine::builder().config(config.build()?).build()?;
        Ok(Probe { engine, regions: Vec::new() })
    };
    let opened = open().map(|probe| {
        // SAFETY: as the caller promises.
        unsafe { place.write(Box::into_raw(Box::new(probe))) };
        String::new()
    });
    // SAFETY: as the caller promises.
    unsafe { say(opened, out, room) }
}

/// Registers device memory by pointer. `out` gets the description by which another engine finds it.
///
/// # Safety
/// `probe` must come from [`polyrail_probe_open`] and not be closed, the memory stay until it is, and `out` have room
/// for `room` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_probe_register(
    probe: *mut Probe,
    pointer: u64,
    len: u64,
    out: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    let probe = unsafe { &mut *probe };
    let mut register = || -> Outcome<String> {
        // SAFETY: as the caller promises.
        let region = unsafe { memory_at(probe, pointer, len)? };
        let said = format!("{} {}", hex(&probe.engine.metadata()), hex(&region.describe()));
        probe.regions.push(region);
        Ok(said)
    };
    // SAFETY: as the caller promises.
    unsafe { say(register(), out, room) }
}

/// Writes device memory by pointer to the memory that another engine has described, twice. `out` gets the name of the
/// path used.
///
/// # Safety
/// As for [`polyrail_probe_register`]; `target` must be a string that ends with 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_probe_write(
    probe: *mut Probe,
    target: *const c_char,
    pointer: u64,
    len: u64,
    out: *mut c_char,
    room: usize,
) -> c_int {
    // SAFETY: as the caller promises.
    let probe = unsafe { &mut *probe };
    let write = || -> Outcome<String> {
        // SAFETY: as the caller promises.
        let target = unsafe { CStr::from_ptr(target) }.to_str()?;
        let (metadata, region) = target.split_once(' ').ok_or("no two words")?;
        let peer: Peer = probe.engine.add_peer(&unhex(metadata)?)?;
        let there = probe.engine.import(&unhex(region)?)?;
        // SAFETY: as the caller promises.
        let here = unsafe { memory_at(probe, pointer, len)? };
        let request = Request::write(&peer).segment(here.all(), there.all());
        let prepared = probe.engine.prepare(request)?;
        for _ in 0..2 {
            prepared.post()?.wait(LIMIT).ok_or("it takes too long")??;
        }
        Ok(prepared.path().to_string())
    };
    // SAFETY: as the caller promises.
    unsafe { say(write(), out, room) }
}

/// Ends the regions and the engine.
///
/// # Safety
/// `probe` must come from [`polyrail_probe_open`] and not be closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_probe_close(probe: *mut Probe) {
    // SAFETY: as the caller promises.
    drop(unsafe { Box::from_raw(probe) });
}

/// # Safety
/// The memory must stay until the region has ended.
unsafe fn memory_at(probe: &Probe, pointer: u64, len: u64) -> Outcome<Region> {
    // SAFETY: as the caller promises.
    let memory: DeviceMemory = unsafe { Cuda::load()?.memory_at(pointer, len)? };
    Ok(probe.engine.register(memory)?)
}

/// # Safety
/// `out` must have room for `room` bytes.
unsafe fn say(outcome: Outcome<String>, out: *mut c_char, room: usize) -> c_int {
    let (text, code) = match outcome {
        Ok(text) => (text, 0),
        Err(error) => (error.to_string(), -1),
    };
    let fits = text.len() < room;
    let bytes = if fits { text.as_bytes() } else { b"no room for the answer" };
    let bytes = &bytes[..bytes.len().min(room.saturating_sub(1))];
    if room > 0 {
        // SAFETY: there is room for that many bytes and one more.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), out.cast(), bytes.len());
            out.add(bytes.len()).write(0);
        }
    }
    if fits { code } else { -1 }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Outcome<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| Ok(u8::from_str_radix(std::str::from_utf8(pair)?, 16)?)).collect()
}
