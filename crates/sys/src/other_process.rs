//! Memory of another process of this machine, copied by the kernel: `process_vm_readv` and
//! `process_vm_writev`.
//!
//! The kernel allows that to whoever may trace the process: the same user, where neither
//! `ptrace_scope`, a seccomp filter, nor `PR_SET_DUMPABLE` forbids it; or one with `CAP_SYS_PTRACE`.

use std::io;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::memory::{Memory, OutOfRange};
use crate::process::Process;

/// Pieces that one call copies.
const PIECES: usize = 64;

/// Another process, told from every later one that gets its number.
#[derive(Debug)]
pub struct OtherProcess {
    number: Pid,
    /// Readable once the process has ended.
    descriptor: OwnedFd,
}

/// Bytes in another process. That process may unmap them at any time; then copies fail.
#[derive(Clone, Debug)]
pub struct ForeignMemory {
    process: Arc<OtherProcess>,
    base: u64,
    len: u64,
}

/// Which way bytes are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the other process to this one.
    FromOther,
    /// From this process to the other one.
    ToOther,
}

/// Pieces that one system call copies, between this process and another one.
pub struct ForeignCopy<'a> {
    direction: Direction,
    process: Option<&'a OtherProcess>,
    local: [libc::iovec; PIECES],
    foreign: [libc::iovec; PIECES],
    count: usize,
    bytes: u64,
    /// The local memory.
    borrowed: PhantomData<&'a Memory>,
}

impl OtherProcess {
    /// Keeps track of that process. This process is refused: a copy to an address that somebody
    /// else has told must not change what this program's own references point to.
    pub fn open(process: Process) -> io::Result<Self> {
        if process.number == std::process::id() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is this process"));
        }
        let number = i32::try_from(process.number).ok().and_then(Pid::from_raw);
        let number = number.ok_or(io::ErrorKind::InvalidInput)?;
        let descriptor = pidfd_open(number, PidfdFlags::empty())?;
        let other = Self { number, descriptor };
        // The number may have been another one's when it was told, and until the descriptor was open.
        if process.has_ended() || !other.is_alive() {
            return Err(Errno::SRCH.into());
        }
        Ok(other)
    }

    /// Whether it has not ended.
    pub fn is_alive(&self) -> bool {
        let mut ends = [PollFd::new(&self.descriptor, PollFlags::IN)];
        loop {
            match poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
                Ok(ended) => return ended == 0,
                Err(Errno::INTR) => {}
                // Who can't ask must not copy.
                Err(_) => return false,
            }
        }
    }

    /// `len` bytes of it from this address on, as it has told.
    pub fn memory(self: &Arc<Self>, base: u64, len: u64) -> Result<ForeignMemory, OutOfRange> {
        match base.checked_add(len) {
            Some(end) if usize::try_from(end).is_ok() => {
                Ok(ForeignMemory { process: self.clone(), base, len })
            }
            _ => Err(OutOfRange { offset: base, len, size: u64::MAX }),
        }
    }
}

impl ForeignMemory {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whose they are.
    pub fn process(&self) -> &Arc<OtherProcess> {
        &self.process
    }

    fn address(&self, offset: u64, len: u64) -> Result<u64, OutOfRange> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.base + offset),
            _ => Err(OutOfRange { offset, len, size: self.len }),
        }
    }
}

impl<'a> ForeignCopy<'a> {
    /// No pieces yet.
    pub fn new(direction: Direction) -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (local, foreign) = ([none; PIECES], [none; PIECES]);
        let (process, borrowed) = (None, PhantomData);
        Self { direction, process, local, foreign, count: 0, bytes: 0, borrowed }
    }

    /// Whether there is room for one more piece, if it is of that process.
    pub fn takes(&self, foreign: &ForeignMemory) -> bool {
        let is_same = |process: &OtherProcess| std::ptr::eq(process, &*foreign.process);
        self.count < PIECES && self.process.is_none_or(is_same)
    }

    /// Adds a piece, if [`Self::takes`] says so.
    pub fn push(
        &mut self,
        (local, local_offset): (&'a Memory, u64),
        (foreign, foreign_offset): (&'a ForeignMemory, u64),
        len: u64,
    ) -> Result<(), OutOfRange> {
        let here = local.at(local_offset, len)?;
        let there = foreign.address(foreign_offset, len)?;
        if !self.takes(foreign) {
            return Err(OutOfRange { offset: self.count as u64, len: 1, size: PIECES as u64 });
        }
        self.process = Some(&foreign.process);
        // Both ranges were checked, so their length fits.
        self.local[self.count] = libc::iovec { iov_base: here.cast(), iov_len: len as usize };
        self.foreign[self.count] =
            libc::iovec { iov_base: there as usize as *mut libc::c_void, iov_len: len as usize };
        self.count += 1;
        self.bytes += len;
        Ok(())
    }

    /// Copies all pieces, and makes sure that the process was alive before and after. A few
    /// instructions lie between that look and the copy: a process that ends, is waited for, and
    /// whose number is given to another one of the same user within them, would go unnoticed before
    /// the copy, but not after it.
    ///
    /// An error leaves some of the pieces copied. `ESRCH`: the process has ended; `EFAULT`: it has
    /// no such memory; `EPERM`: this process may not.
    pub fn run(&self) -> io::Result<()> {
        let Some(process) = self.process else { return Ok(()) };
        if self.bytes == 0 {
            return Ok(());
        }
        if !process.is_alive() {
            return Err(Errno::SRCH.into());
        }
        let call = match self.direction {
            Direction::FromOther => libc::process_vm_readv,
            Direction::ToOther => libc::process_vm_writev,
        };
        let (number, count) = (process.number.as_raw_pid(), self.count as libc::c_ulong);
        // SAFETY: the local pieces were checked against memories that are borrowed for as long as
        // this value lives, and that are only reached by copies. The foreign ones are addresses of
        // another process (`open` refuses this one), which the kernel checks.
        let copied =
            unsafe { call(number, self.local.as_ptr(), count, self.foreign.as_ptr(), count, 0) };
        // Before anything else can change it.
        let error = io::Error::last_os_error();
        if !process.is_alive() {
            return Err(Errno::SRCH.into());
        }
        match u64::try_from(copied) {
            Err(_) => Err(error),
            Ok(copied) if copied == self.bytes => Ok(()),
            // It stops at the first page that is not there.
            Ok(_) => Err(Errno::FAULT.into()),
        }
    }
}

/// Whether the kernel lets this process copy between processes at all: it tries with itself, which
/// only a seccomp filter forbids.
pub fn may_copy_between_processes() -> io::Result<()> {
    let (from, mut to) = ([7_u8; 8], [0_u8; 8]);
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let foreign = libc::iovec { iov_base: from.as_ptr().cast_mut().cast(), iov_len: from.len() };
    let own = std::process::id().cast_signed();
    // SAFETY: both pieces are arrays that live here; the kernel only reads the foreign one.
    let copied =
        unsafe { libc::process_vm_readv(own, &raw const local, 1, &raw const foreign, 1, 0) };
    if copied < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    fn child() -> (std::process::Child, Process) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        (child, process)
    }

    /// Has the kernel refuse `process_vm_readv` to this process and its children for good.
    fn forbid_copies() {
        const LOAD_NUMBER: u16 = 0x20;
        const JUMP_IF_EQUAL: u16 = 0x15;
        const RETURN: u16 = 0x06;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let call = libc::SYS_process_vm_readv as u32;
        let mut steps = [
            step(LOAD_NUMBER, 0, 0, 0),
            step(JUMP_IF_EQUAL, 0, 1, call),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
        // SAFETY: the calls read their arguments, which live here, and change only what this thread
        // may do from now on.
        let results = unsafe {
            [
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
                libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
            ]
        };
        assert_eq!(results, [0, 0], "{}", io::Error::last_os_error());
    }

    #[test]
    fn a_seccomp_filter_is_found_by_trying() {
        // A thread's filter ends with the thread.
        let forbidden = std::thread::spawn(|| {
            may_copy_between_processes().unwrap();
            forbid_copies();
            may_copy_between_processes().unwrap_err()
        });
        let error = forbidden.join().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        may_copy_between_processes().unwrap();
    }

    #[test]
    fn this_process_and_one_that_started_at_another_time_are_refused() {
        let own = Process::own().unwrap();
        let error = OtherProcess::open(own).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let (mut child, process) = child();
        OtherProcess::open(process).unwrap();
        let later = Process { started: process.started + 1, ..process };
        let error = OtherProcess::open(later).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::SRCH.raw_os_error()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(OtherProcess::open(process).is_err());
    }

    #[test]
    fn copies_end_with_the_process_and_at_the_end_of_its_memory() {
        let (mut child, process) = child();
        let other = Arc::new(OtherProcess::open(process).unwrap());
        let local = Memory::from(vec![1; 64]);
        // Nothing is mapped there.
        let nothing = other.memory(8, 64).unwrap();
        let mut copy = ForeignCopy::new(Direction::FromOther);
        copy.push((&local, 0), (&nothing, 0), 64).unwrap();
        assert!(copy.push((&local, 1), (&nothing, 0), 64).is_err(), "beyond the local memory");
        assert!(copy.push((&local, 0), (&nothing, 1), 64).is_err(), "beyond the foreign memory");
        let error = copy.run().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::FAULT.raw_os_error()));
        assert!(other.memory(u64::MAX, 2).is_err());

        child.kill().unwrap();
        let began = Instant::now();
        while other.is_alive() {
            assert!(began.elapsed() < Duration::from_secs(30), "it was killed");
            std::thread::yield_now();
        }
        let error = copy.run().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::SRCH.raw_os_error()));
        child.wait().unwrap();
    }

    #[test]
    fn bytes_of_a_child_are_read_and_written() {
        // `cat` maps its own file, whose first bytes are known.
        let (mut child, process) = child();
        let other = Arc::new(OtherProcess::open(process).unwrap());
        let mut magic = [0; 4];
        let began = Instant::now();
        // Until it has become `cat`, it is a copy of this program; both begin so.
        while magic != *b"\x7fELF" {
            assert!(began.elapsed() < Duration::from_secs(30), "{magic:?}");
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.number)).unwrap();
            let Some(begin) =
                maps.split('-').next().and_then(|at| u64::from_str_radix(at, 16).ok())
            else {
                continue;
            };
            let foreign = other.memory(begin, 4096).unwrap();
            let local = Memory::from(vec![0; 4]);
            let mut copy = ForeignCopy::new(Direction::FromOther);
            // In two pieces that come in another order.
            copy.push((&local, 2), (&foreign, 2), 2).unwrap();
            copy.push((&local, 0), (&foreign, 0), 2).unwrap();
            if copy.run().is_ok() {
                local.read_at(0, &mut magic).unwrap();
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        may_copy_between_processes().unwrap();
    }
}
