//! A FUSE file is refused as shared memory, and opening it never calls its file system: that is a process, which may
//! answer late or not at all.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::channel;
use std::time::Duration;

use polyrail_sys::{Badge, ProvenProcess, SharedMemory};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount,
    fsopen,
};

// Requests of `linux/fuse.h`, and the size of the header before answers.
const LOOKUP: u32 = 1;
const OPEN: u32 = 14;
const INIT: u32 = 26;
const HEAD_BYTES: usize = 16;
/// Larger than the kernel's minimum for a reader's buffer.
const REQUEST_BYTES: usize = 64 << 10;

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_file_whose_file_system_never_answers_is_refused_at_once() {
    let Some((device, mount)) = file_system() else { return };
    let server = std::thread::spawn(move || answer_until_opened(device));
    let file = openat(mount, "memory", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    // From here on the file system's requests are not answered.
    let device = server.join().unwrap();
    let file = File::from(file);
    let number = file.as_raw_fd().unsigned_abs();
    let ((tell, opened), (tell_size, size)) = (channel(), channel());
    let name = format!("polyrail-test-fuse-{}", std::process::id());
    let _badge = Badge::take(&name).unwrap();
    let own = ProvenProcess::with_name(&name).unwrap();
    let opens = std::thread::spawn(move || {
        tell.send(SharedMemory::open(&own, number, 4096, 1)).unwrap();
    });
    let asks = std::thread::spawn(move || {
        tell_size.send(file.metadata().is_ok()).unwrap();
    });
    let opened = opened.recv_timeout(LIMIT);
    let size = size.recv_timeout(Duration::from_millis(100));
    // Closing the device makes all waiting calls fail.
    drop(device);
    opens.join().unwrap();
    asks.join().unwrap();
    let error = opened.expect("it was asked").unwrap_err();
    assert_eq!(error.to_string(), "it is not memory of ordinary pages");
    assert!(size.is_err(), "who asks does not wait: the test shows nothing");
}

/// Creates an unmounted file system, and the device that serves it.
fn file_system() -> Option<(File, OwnedFd)> {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let opened =
        device.and_then(|device| Ok((device, fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?)));
    let (device, system) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let reason = format!("no FUSE here: {error}");
            polyrail_skip::skip(reason, "sudo -E cargo test -p polyrail-sys --test fuse");
            return None;
        }
    };
    let number = device.as_raw_fd().to_string();
    let options = [("fd", &*number), ("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")];
    for (key, value) in options {
        fsconfig_set_string(&system, key, value).unwrap();
    }
    fsconfig_create(&system).unwrap();
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    Some((device, fsmount(system, flags, MountAttrFlags::empty()).unwrap()))
}

/// Serves a file system with one file, until the file was opened once.
fn answer_until_opened(mut device: File) -> File {
    let mut request = vec![0; REQUEST_BYTES];
    loop {
        let bytes = device.read(&mut request).unwrap();
        assert!(bytes >= 16, "{bytes} bytes are no request");
        let operation = u32::from_le_bytes(request[4..8].try_into().unwrap());
        let number = &request[8..16];
        let (error, body) = match operation {
            INIT => (0, init()),
            LOOKUP => (0, entry()),
            // Answer: the first handle, without flags.
            OPEN => (0, vec![0; 16]),
            _ => (-Errno::NOSYS.raw_os_error(), Vec::new()),
        };
        let len = (HEAD_BYTES + body.len()) as u32;
        let answer = [&len.to_le_bytes(), &error.to_le_bytes(), number, &body[..]].concat();
        device.write_all(&answer).unwrap();
        if operation == OPEN {
            return device;
        }
    }
}

/// `fuse_init_out`: version 7.31, small writes, no optional features.
fn init() -> Vec<u8> {
    let mut out = vec![0; 64];
    out[..4].copy_from_slice(&7_u32.to_le_bytes());
    out[4..8].copy_from_slice(&31_u32.to_le_bytes());
    out[20..24].copy_from_slice(&4096_u32.to_le_bytes());
    out
}

/// `fuse_entry_out`: an ordinary file of two pages, with a cache time of zero.
fn entry() -> Vec<u8> {
    const ATTRIBUTES: usize = 40;
    let (node, size, mode, links) = (2_u64, 8192_u64, 0o100_666_u32, 1_u32);
    let mut out = vec![0; 128];
    let mut set = |at: usize, bytes: &[u8]| out[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, &node.to_le_bytes());
    set(ATTRIBUTES, &node.to_le_bytes());
    set(ATTRIBUTES + 8, &size.to_le_bytes());
    set(ATTRIBUTES + 60, &mode.to_le_bytes());
    set(ATTRIBUTES + 64, &links.to_le_bytes());
    out
}
