//! System calls without a safe wrapper crate: the old ethtool call, and fanotify.
#![expect(unsafe_code, reason = "these calls take pointers; each is wrapped once, here")]

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// The longest request of [`ethtool_ioctl`].
pub(crate) const IOCTL_BYTES: usize = 1 << 20;

/// Hands `request` to the driver of an interface, which answers in place.
///
/// The caller must size `request` for everything that the kernel writes for the command in its
/// first four bytes: the count inside must not exceed the buffer. Every command used here states
/// its count.
pub(crate) fn ethtool_ioctl(
    socket: BorrowedFd<'_>,
    interface: &str,
    request: &mut [u32],
) -> io::Result<()> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    assert!(request.len() * 4 <= IOCTL_BYTES, "requests are bounded by their makers");
    if interface.len() >= libc::IFNAMSIZ || interface.bytes().any(|byte| byte == 0) {
        return Err(io::Error::from_raw_os_error(libc::ENODEV));
    }
    // SAFETY: an all-zero `ifreq` is a valid one: an array of characters and a union of plain data.
    let mut ifreq: libc::ifreq = unsafe { std::mem::zeroed() };
    for (place, byte) in ifreq.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    ifreq.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
    // SAFETY: the kernel reads and writes `ifreq`, which lives across the call, and the buffer it
    // points to, which is exclusively borrowed and has room for everything that the command writes:
    // the callers in `ioctl.rs` ensure that.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &raw mut ifreq) };
    if result >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Opens a queue of events about files, with a descriptor in each event.
pub(crate) fn fanotify() -> io::Result<OwnedFd> {
    let flags = libc::FAN_CLOEXEC | libc::FAN_CLASS_NOTIF | libc::FAN_NONBLOCK;
    let of_events = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as libc::c_uint;
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::fanotify_init(flags, of_events) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor, and no other owner exists.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Requests an event whenever a process has written to `path`.
pub(crate) fn fanotify_mark_writes(queue: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_encoded_bytes())
        .map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    // SAFETY: the path is a terminated string that lives across the call.
    let result = unsafe {
        libc::fanotify_mark(
            queue.as_raw_fd(),
            libc::FAN_MARK_ADD,
            libc::FAN_MODIFY,
            libc::AT_FDCWD,
            path.as_ptr(),
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Takes ownership of a descriptor from a fanotify event.
pub(crate) fn own_event_descriptor(fd: i32) -> Option<OwnedFd> {
    if fd < 0 {
        return None;
    }
    // SAFETY: called once per event that was read from a fanotify queue; the kernel opened the
    // descriptor in that event for its reader, and no other owner exists.
    Some(unsafe { OwnedFd::from_raw_fd(fd) })
}
