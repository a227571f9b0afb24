//! Memory of another process of this machine, which the kernel copies: [`ForeignCopy`](crate::ForeignCopy).
//!
//! The kernel allows that to processes that may trace the other one: those of the same user, if neither `ptrace_scope`,
//! a seccomp filter, nor `PR_SET_DUMPABLE` forbids it; and those with `CAP_SYS_PTRACE`.

use std::io;
use std::sync::Arc;

use rustix::io::Errno;

use crate::badge::ProvenProcess;
use crate::memory::OutOfRange;

/// Number of words in a guard.
pub(crate) const WORDS: usize = 2;
pub(crate) const WORD_BYTES: usize = size_of::<u64>();

/// Two words in another process that have these values as long as its memory may be used. Each begins a
/// [`GuardPage`](crate::GuardPage). Their owner draws them at random, and closes the page before it reuses the memory.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// Addresses of the words in that process.
    pub places: [u64; WORDS],
    /// Expected values of the words.
    pub values: [u64; WORDS],
}

/// Bytes in another process. That process may unmap them at any time; then copies fail.
#[derive(Clone, Debug)]
pub struct ForeignMemory {
    process: Arc<ProvenProcess>,
    base: u64,
    len: u64,
    pub(crate) guard: Guard,
}

impl ProvenProcess {
    /// Memory of `len` bytes from the address `base` on, as announced by the process. Refuses this process itself: a
    /// copy to an address from a peer must not change memory that this program has references to.
    pub fn memory(
        self: &Arc<Self>,
        base: u64,
        len: u64,
        guard: Guard,
    ) -> io::Result<ForeignMemory> {
        if self.number() == std::process::id() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is this process"));
        }
        match base.checked_add(len) {
            Some(end) if usize::try_from(end).is_ok() => {
                Ok(ForeignMemory { process: self.clone(), base, len, guard })
            }
            _ => Err(io::Error::other(OutOfRange { offset: base, len, size: u64::MAX })),
        }
    }

    fn words(&self, places: [u64; WORDS]) -> io::Result<[u64; WORDS]> {
        let mut words = [0_u64; WORDS];
        let local =
            libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: WORDS * WORD_BYTES };
        let foreign = places.map(|at| piece_at(at, WORD_BYTES));
        let number = self.number.as_raw_pid();
        // SAFETY: the local piece is `words`, which lives here. The foreign ones are addresses of
        // another process (`memory` refuses this one), which the kernel checks.
        let read =
            unsafe { libc::process_vm_readv(number, &raw const local, 1, foreign.as_ptr(), 2, 0) };
        match usize::try_from(read) {
            Err(_) => Err(io::Error::last_os_error()),
            Ok(read) if read == WORDS * WORD_BYTES => Ok(words),
            Ok(_) => Err(Errno::FAULT.into()),
        }
    }
}

/// An iovec for bytes in another process.
pub(crate) fn piece_at(address: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: len }
}

impl ForeignMemory {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Process that owns the memory.
    pub(crate) fn process(&self) -> &ProvenProcess {
        &self.process
    }

    /// Checks that the memory may be used now: `ESTALE` if not. Success also proves that it is still the same process,
    /// because no other process has these words there.
    pub fn check(&self) -> io::Result<()> {
        self.found(self.process.words(self.guard.places)?)
    }

    /// Compares words read from the guard with the expected ones.
    pub(crate) fn found(&self, words: [u64; WORDS]) -> io::Result<()> {
        if words == self.guard.values { Ok(()) } else { Err(Errno::STALE.into()) }
    }

    pub(crate) fn address(&self, offset: u64, len: u64) -> Result<u64, OutOfRange> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.base + offset),
            _ => Err(OutOfRange { offset, len, size: self.len }),
        }
    }
}

/// Checks that the kernel lets this process copy between processes at all. Tries it with this process itself, which
/// only a seccomp filter forbids.
pub fn may_copy_between_processes() -> io::Result<()> {
    let (mut here, mut there) = ([7_u8; 8], [0_u8; 8]);
    let local = libc::iovec { iov_base: here.as_mut_ptr().cast(), iov_len: here.len() };
    let foreign = libc::iovec { iov_base: there.as_mut_ptr().cast(), iov_len: there.len() };
    let own = std::process::id().cast_signed();
    // A filter may forbid one of the two calls.
    for call in [libc::process_vm_readv, libc::process_vm_writev] {
        // SAFETY: both pieces are arrays that live here, to which nothing refers during the call.
        let copied = unsafe { call(own, &raw const local, 1, &raw const foreign, 1, 0) };
        if copied < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Direction, ForeignCopy, Memory};

    fn child() -> (std::process::Child, Arc<ProvenProcess>) {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = Arc::new(ProvenProcess::assumed(child.id()));
        (child, process)
    }

    /// Makes the kernel refuse the system call to this thread, for good.
    fn forbid(call: libc::c_long) {
        const LOAD_NUMBER: u16 = 0x20;
        const JUMP_IF_EQUAL: u16 = 0x15;
        const RETURN: u16 = 0x06;
        let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
        let mut steps = [
            step(LOAD_NUMBER, 0, 0, 0),
            step(JUMP_IF_EQUAL, 0, 1, call as u32),
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
        for call in [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev] {
            // A thread's filter ends with the thread.
            let forbidden = std::thread::spawn(move || {
                may_copy_between_processes().unwrap();
                forbid(call);
                may_copy_between_processes().unwrap_err()
            });
            let error = forbidden.join().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
        may_copy_between_processes().unwrap();
    }

    #[test]
    fn memory_of_this_process_is_refused() {
        let own = Arc::new(ProvenProcess::assumed(std::process::id()));
        let guard = Guard { places: [0; WORDS], values: [0; WORDS] };
        let error = own.memory(0, 1, guard).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    /// Address of the child's program, after exec.
    fn program(process: &ProvenProcess) -> u64 {
        let began = Instant::now();
        loop {
            assert!(began.elapsed() < Duration::from_secs(30), "it does not begin");
            let maps = std::fs::read_to_string(format!("/proc/{}/maps", process.number())).unwrap();
            // Before exec, it is a copy of this program.
            let first = maps.lines().next().filter(|line| {
                line.contains("cat") || line.contains("busybox") || line.contains("coreutils")
            });
            if let Some((begin, _)) = first.and_then(|line| line.split_once('-')) {
                return u64::from_str_radix(begin, 16).unwrap();
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn bytes_of_a_child_are_copied_while_its_words_are_what_they_should_be() {
        let (mut child, other) = child();
        let begin = program(&other);
        // The first bytes of every ELF program are known.
        let places = [begin, begin + 8];
        let values = other.words(places).unwrap();
        assert_eq!(values[0].to_le_bytes()[..4], *b"\x7fELF");
        let good = other.memory(begin, 64, Guard { places, values }).unwrap();
        let local = Memory::from(vec![0; 4]);
        let mut copy = ForeignCopy::new(Direction::FromOther, &good);
        // Two pieces in a different order.
        copy.push((&local, 2), 2, 2).unwrap();
        copy.push((&local, 0), 0, 2).unwrap();
        assert!(copy.push((&local, 3), 0, 2).is_err(), "beyond the local memory");
        assert!(copy.push((&local, 0), 63, 2).is_err(), "beyond the foreign memory");
        copy.run().unwrap();
        let mut magic = [0; 4];
        local.read_at(0, &mut magic).unwrap();
        assert_eq!(magic, *b"\x7fELF");

        let code = |memory: &ForeignMemory| {
            let mut copy = ForeignCopy::new(Direction::FromOther, memory);
            copy.push((&local, 0), 0, 4).unwrap();
            copy.run().unwrap_err().raw_os_error().unwrap()
        };
        let others = Guard { places, values: [values[0], values[1] ^ 1] };
        let revoked = other.memory(begin, 64, others).unwrap();
        assert_eq!(code(&revoked), Errno::STALE.raw_os_error());
        // This address is not mapped.
        let nothing = other.memory(8, 64, Guard { places, values }).unwrap();
        assert_eq!(code(&nothing), Errno::FAULT.raw_os_error());
        assert!(other.memory(u64::MAX, 2, others).is_err());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(code(&good), Errno::SRCH.raw_os_error());
        may_copy_between_processes().unwrap();
    }
}
