//! What processes of one machine can take from each other.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, getrlimit, pidfd_getfd, pidfd_open,
};

use crate::memory::Map;

/// A copy of another process's file descriptor. The system allows that to whoever may trace the
/// process: the same user where `ptrace_scope` is 0, or one with `CAP_SYS_PTRACE`.
pub fn descriptor_of(process: u32, descriptor: u32) -> io::Result<OwnedFd> {
    let number = |value: u32| i32::try_from(value).map_err(|_| io::ErrorKind::InvalidInput);
    let process = Pid::from_raw(number(process)?).ok_or(io::ErrorKind::InvalidInput)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    Ok(pidfd_getfd(process, number(descriptor)?, PidfdGetfdFlags::empty())?)
}

/// How many file descriptors this process may have open.
pub fn descriptor_limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// This process's PID namespace, by the kernel's number: every container numbers its own processes.
/// `None` without `/proc`.
pub fn namespace() -> Option<u64> {
    Some(std::fs::metadata("/proc/self/ns/pid").ok()?.ino())
}

/// Tells a process from its forked copies, at the price of one load.
pub struct Original {
    /// Holds a 1 that the kernel zeroes in a forked copy.
    page: Option<Map>,
    process: u32,
}

impl Default for Original {
    /// Marks this process as the original.
    fn default() -> Self {
        let page = Map::wiped_on_fork(PAGE_BYTES).ok();
        if let Some(page) = &page {
            mark_of(page).store(1, Ordering::Relaxed);
        }
        Self { page, process: std::process::id() }
    }
}

impl Original {
    /// Whether this process is a forked copy of that one.
    pub fn is_copy(&self) -> bool {
        match &self.page {
            Some(page) => mark_of(page).load(Ordering::Relaxed) == 0,
            // Kernels before 4.14 zero nothing.
            None => std::process::id() != self.process,
        }
    }
}

const PAGE_BYTES: usize = 4096;

fn mark_of(page: &Map) -> &AtomicU8 {
    // SAFETY: the first byte of a mapping that lives as long as the borrow, touched here only.
    unsafe { AtomicU8::from_ptr(page.base().as_ptr()) }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_process_has_the_namespace_of_its_children() {
        let text = std::process::Command::new("readlink").arg("/proc/self/ns/pid").output();
        let text = String::from_utf8(text.unwrap().stdout).unwrap();
        assert_eq!(text.trim(), format!("pid:[{}]", namespace().unwrap()));
    }

    #[test]
    fn a_descriptor_of_this_process_is_the_same_file() {
        let (mut reader, writer) = io::pipe().unwrap();
        let copy = descriptor_of(std::process::id(), writer.as_raw_fd() as u32).unwrap();
        drop(writer);
        std::fs::File::from(copy).write_all(b"x").unwrap();
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "x");
        assert!(descriptor_of(std::process::id(), 1 << 20).is_err());
        assert!(descriptor_of(0, 0).is_err() && descriptor_of(u32::MAX, 0).is_err());
    }
}
