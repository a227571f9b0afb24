//! Every unsafe system call of this crate.

use std::io;
use std::os::fd::RawFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Gives the calling thread a new network namespace; other threads stay where they are.
pub(crate) fn unshare_network() -> Result<(), Errno> {
    // SAFETY: the contract concerns `FILES` only, which would split the table of descriptors.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
}

/// Gives the calling process, which must have one thread, a new user namespace and a network
/// namespace that belongs to the new user namespace.
pub(crate) fn unshare_user_and_network() -> Result<(), Errno> {
    // SAFETY: as above, the table of descriptors is not touched.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET) }
}

/// Runs `child` in a copy of this process that ends with the returned exit status.
///
/// # Safety
/// Other threads are gone in the copy, and locks they held stay locked forever. So `child` may make
/// bare system calls only: no allocation, no lock, no `std::io`, no panic.
pub(crate) unsafe fn fork(child: impl FnOnce() -> i32) -> io::Result<Pid> {
    // SAFETY: fork itself has no precondition; the caller guarantees that `child` is safe to run in
    // the copy.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = child();
            // SAFETY: ends the copy at once, without the exit handlers of the original.
            unsafe { libc::_exit(status) }
        }
        pid => Pid::from_raw(pid).ok_or_else(|| io::Error::from(Errno::SRCH)),
    }
}

/// Lets `join` run in the child between fork and exec.
///
/// # Safety
/// The same rule as for [`fork`]: `join` makes bare system calls only.
pub(crate) unsafe fn before_exec(
    command: &mut Command,
    join: impl FnMut() -> io::Result<()> + Send + Sync + 'static,
) {
    // SAFETY: the caller guarantees that `join` is safe between fork and exec.
    unsafe { command.pre_exec(join) };
}

/// Closes every descriptor but two. For a forked copy only: nothing may use the others again.
///
/// # Safety
/// No value in this process may own a descriptor that this closes and still be used or dropped.
pub(crate) unsafe fn close_all_but(keep: [RawFd; 2]) -> Result<(), Errno> {
    let [low, high] = if keep[0] < keep[1] { keep } else { [keep[1], keep[0]] };
    let (low, high) = (low as u32, high as u32);
    for (first, last) in [(0, low.wrapping_sub(1)), (low + 1, high - 1), (high + 1, u32::MAX)] {
        // `low` may be 0, which leaves nothing below it.
        if first > last || last == u32::MAX && first == 0 {
            continue;
        }
        // SAFETY: plain integers; the caller guarantees that the closed descriptors are not used.
        let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        if result != 0 {
            return Err(Errno::NOSYS);
        }
    }
    Ok(())
}

/// Resets every signal to the default of a new program, so that no handler of the original runs.
pub(crate) fn reset_signals() {
    for signal in 1..=64 {
        // SAFETY: sets no handler; signals that cannot be changed return an error.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
