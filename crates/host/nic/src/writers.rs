//! Finds the process that writes to a file of `/proc`, with fanotify.
//!
//! A change by the kernel or a driver makes no such event, which distinguishes it from a process's.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::NicError;
use crate::os;
use polyrail_netlink::{u16_at, u32_at};

/// Watches files for writes. Needs `CAP_SYS_ADMIN` in the first user namespace.
#[derive(Debug)]
pub struct WriteWatch {
    queue: OwnedFd,
    /// Files kept open, because the kernel drops the mark on a file of `/proc` once it is closed.
    _held: Vec<File>,
}

/// A process has written to a watched file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Written {
    pub path: PathBuf,
    pub pid: u32,
    /// The process's name; empty if it ended before this process looked.
    pub name: String,
    /// The process's command line, at most 200 characters; empty if the process has ended.
    pub command: String,
    /// The process's control group, which names the service; empty if unknown.
    pub cgroup: String,
}

/// `struct fanotify_event_metadata`.
const EVENT_BYTES: usize = 24;
const EVENT_VERSION: u8 = 3;
const COMMAND_CHARS: usize = 200;

impl WriteWatch {
    /// Watches `paths` on the running machine.
    ///
    /// # Errors
    /// [`NicError::Open`] without the capability, on kernels without fanotify, and for a missing
    /// file.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Self, NicError> {
        let failed = |source| NicError::Open { what: "a watch on writes (fanotify)", source };
        let queue = os::fanotify().map_err(failed)?;
        let mut held = Vec::with_capacity(paths.len());
        for path in paths {
            held.push(File::open(path).map_err(failed)?);
            os::fanotify_mark_writes(queue.as_fd(), path.as_ref()).map_err(failed)?;
        }
        Ok(Self { queue, _held: held })
    }

    /// Returns the descriptor to poll for input.
    pub fn source(&self) -> BorrowedFd<'_> {
        self.queue.as_fd()
    }

    /// Returns the writes since the last call, without waiting, including those of this process.
    ///
    /// # Errors
    /// [`NicError::Refused`] if the kernel ends the watch.
    pub fn take(&self) -> Result<Vec<Written>, NicError> {
        let mut buffer = [0; 4096];
        let mut found = Vec::new();
        loop {
            let length = match rustix::io::read(&self.queue, &mut buffer) {
                Ok(length) => length,
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(found),
                Err(error) => {
                    let source = io::Error::from(error);
                    let asked = "a watch on writes".to_owned();
                    return Err(NicError::Refused { asked, source, said: None });
                }
            };
            if length == 0 {
                return Ok(found);
            }
            for (fd, pid) in events(&buffer[..length]) {
                let Some(file) = os::own_event_descriptor(fd) else { continue };
                found.extend(written(&file, pid));
            }
        }
    }
}

/// For fuzzing: walks over events without touching their descriptors.
pub(crate) fn examine(bytes: &[u8]) -> usize {
    events(bytes).count()
}

/// Walks over events: the descriptor and the process of each.
fn events(mut bytes: &[u8]) -> impl Iterator<Item = (i32, u32)> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let metadata = usize::from(u16_at(bytes, 6)?);
        if *bytes.get(4)? != EVENT_VERSION || length < EVENT_BYTES || metadata < EVENT_BYTES {
            return None;
        }
        let event = (u32_at(bytes, 16)? as i32, u32_at(bytes, 20)?);
        bytes = bytes.get(length..).unwrap_or_default();
        Some(event)
    })
}

fn written(file: &OwnedFd, pid: u32) -> Option<Written> {
    let path = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok()?;
    let of_process = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
    let command = of_process("cmdline");
    let words = command.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let command: Vec<_> = words.map(String::from_utf8_lossy).collect();
    let cgroup = of_process("cgroup");
    let cgroup = String::from_utf8_lossy(&cgroup).into_owned();
    let cgroup = cgroup.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    Some(Written {
        path,
        pid,
        name: String::from_utf8_lossy(&of_process("comm")).trim().to_owned(),
        command: command.join(" ").chars().take(COMMAND_CHARS).collect(),
        cgroup: cgroup.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_walked_by_their_own_length_and_only_those_of_the_known_version() {
        let mut bytes = vec![0; 24 + 32];
        for (at, length) in [(0, 24u32), (24, 32)] {
            bytes[at..at + 4].copy_from_slice(&length.to_ne_bytes());
            bytes[at + 4] = EVENT_VERSION;
            bytes[at + 6..at + 8].copy_from_slice(&24u16.to_ne_bytes());
            bytes[at + 20..at + 24].copy_from_slice(&(length + 1).to_ne_bytes());
        }
        assert_eq!(events(&bytes).map(|(_, pid)| pid).collect::<Vec<_>>(), [25, 33]);
        bytes[4] = 9;
        assert_eq!(events(&bytes).count(), 0);
    }
}
