//! Memory that two processes of one machine have open.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FallocateFlags, MemfdFlags, Mode, OFlags, SealFlags, StatxFlags, fallocate,
    fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create, open, statx,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::badge::ProvenProcess;
use crate::memory::{Map, Memory};
use crate::signals::without_write_signals;

/// The token takes the first page, so that the bytes begin at a page boundary.
const HEAD_BYTES: u64 = 4096;
const TOKEN_BYTES: usize = 16;
/// Seals on all memory of this kind.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory of this process that others may open while this value lives. Processes that have opened it keep it. Its size
/// never changes, so no process can be made to touch pages that are gone.
pub struct SharedMemory {
    memory: Memory,
    file: OwnedFd,
    token: u128,
}

impl SharedMemory {
    /// Allocates `bytes` zeroed bytes. Processes that open them present the token, which is random, so a descriptor
    /// number that was reused for another file does not pass for this memory.
    ///
    /// The system allocates the pages when they are first touched, or in [`Self::populate`].
    ///
    /// # Errors
    /// Shared memory is a file to the kernel, so its size is limited by `RLIMIT_FSIZE`.
    pub fn create(bytes: u64, token: u128) -> io::Result<Self> {
        let size = bytes.checked_add(HEAD_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let file = memory_file()?;
        enlarge(&file, size)?;
        fcntl_add_seals(&file, SEALS)?;
        // The head is written below, so its page must exist.
        fallocate(&file, FallocateFlags::empty(), 0, HEAD_BYTES)?;
        let whole = map(file.as_fd(), size)?;
        whole.write_at(0, &token.to_le_bytes()).map_err(io::Error::other)?;
        let memory = whole.part(HEAD_BYTES, bytes).map_err(io::Error::other)?;
        Ok(Self { memory, file, token })
    }

    /// Allocates the pages now. Running out of them later would kill the process.
    pub fn populate(&self) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::empty(), HEAD_BYTES, self.memory.len().max(1))?)
    }

    /// The bytes.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Number of the file descriptor in this process.
    pub fn descriptor(&self) -> u32 {
        self.file.as_raw_fd().unsigned_abs()
    }

    /// Token in the head.
    pub fn token(&self) -> u128 {
        self.token
    }

    /// Opens memory of another process by its descriptor number there. The kernel allows this to processes of the same
    /// user in the same PID namespace, if `/proc` is mounted.
    ///
    /// The process may lie about the file. So this checks the file before it opens it, accepts only files that
    /// [`Self::create`] makes, and never returns memory whose pages can go away.
    pub fn open(
        process: &ProvenProcess,
        descriptor: u32,
        bytes: u64,
        token: u128,
    ) -> io::Result<Memory> {
        // The head of foreign memory may begin with zeroes.
        if token == 0 {
            return Err(wrong("its token is 0, which no memory of an engine has"));
        }
        let file = reopen(&process.path_of_descriptor(descriptor))?;
        // Until here no other process had its number.
        if process.has_ended() {
            return Err(Errno::SRCH.into());
        }
        // Without these seals the owner could shrink the file, or it was not made by an engine.
        if !fcntl_get_seals(&file)?.contains(SEALS) {
            return Err(wrong("its size may change"));
        }
        let size = bytes.checked_add(HEAD_BYTES).ok_or_else(|| wrong("it is too large"))?;
        let other = || wrong("that process has another file under this number");
        if u64::try_from(fstat(&file)?.st_size).ok() != Some(size) {
            return Err(other());
        }
        let whole = map(file.as_fd(), size)?;
        let mut found = [0; TOKEN_BYTES];
        whole.read_at(0, &mut found).map_err(io::Error::other)?;
        if u128::from_le_bytes(found) != token {
            return Err(other());
        }
        whole.part(HEAD_BYTES, bytes).map_err(io::Error::other)
    }
}

fn wrong(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Sets the size of an empty file. Every way to enlarge a memfd of ordinary pages is subject to `RLIMIT_FSIZE`.
fn enlarge(file: &OwnedFd, size: u64) -> io::Result<()> {
    match without_write_signals(|| ftruncate(file, size)) {
        Err(Errno::FBIG) => {
            let limit = getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX);
            let why = format!(
                "a file may have {limit} bytes here (RLIMIT_FSIZE), shared memory of {size} needs more: \
                 raise the limit (ulimit -f unlimited)"
            );
            Err(io::Error::new(io::ErrorKind::FileTooLarge, why))
        }
        enlarged => Ok(enlarged?),
    }
}

/// Creates a memfd that can't be executed, if the kernel knows that flag: `vm.memfd_noexec` (Linux 6.3) may forbid all
/// others.
fn memory_file() -> io::Result<OwnedFd> {
    memory_file_by(|flags| memfd_create("polyrail", flags))
}

fn memory_file_by(create: impl Fn(MemfdFlags) -> Result<OwnedFd, Errno>) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match create(flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => Ok(create(flags)?),
        created => Ok(created?),
    }
}

/// Opens a memfd, perhaps of another process. Refuses other files: opening a device or a pipe has side effects. Huge
/// pages can be taken away from processes that have them open, and so can the pages of a FUSE file, whose file system
/// is a process that may never answer.
///
/// Opens the file again instead of copying the descriptor: a copy needs the right to trace the process, and closing it
/// would call the file system.
fn reopen(path: &str) -> io::Result<OwnedFd> {
    // `O_PATH` only allows looking at the file, and does not call its file system.
    let looked = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // All memfds of ordinary pages are on one kernel-internal file system, which holds nothing else.
    if file_system(&looked)? != file_system(memory_file()?)? {
        return Err(wrong("it is not memory of ordinary pages"));
    }
    let path = format!("/proc/self/fd/{}", looked.as_raw_fd());
    Ok(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Device number of the file system that holds a file. `fstat` would call that file system.
fn file_system(file: impl AsFd) -> io::Result<(u32, u32)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let about = statx(file, "", flags, StatxFlags::empty())?;
    Ok((about.stx_dev_major, about.stx_dev_minor))
}

fn map(file: impl AsFd, size: u64) -> io::Result<Memory> {
    let size_here = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let map = Map::shared(file, size_here)?;
    let base = map.base();
    // SAFETY: the mapping has that size and lives as long as its owner, and there are no references into it.
    Ok(unsafe { Memory::owned(base, size, Arc::new(map)) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Command, Stdio};

    use super::*;

    const TOKEN: u128 = 77 << 100;

    fn own() -> ProvenProcess {
        ProvenProcess::assumed(std::process::id())
    }

    fn opened(shared: &SharedMemory, bytes: u64, token: u128) -> io::Result<Memory> {
        SharedMemory::open(&own(), shared.descriptor(), bytes, token)
    }

    #[test]
    fn bytes_written_on_one_side_are_read_on_the_other_also_after_its_end() {
        let shared = SharedMemory::create(10_000, TOKEN).unwrap();
        shared.populate().unwrap();
        let opened = opened(&shared, 10_000, TOKEN).unwrap();
        shared.memory().write_at(9_990, b"0123456789").unwrap();
        let mut out = [0; 4];
        opened.read_at(9_993, &mut out).unwrap();
        assert_eq!(&out, b"3456");
        opened.write_at(0, b"back").unwrap();
        shared.memory().read_at(0, &mut out).unwrap();
        assert_eq!(&out, b"back");
        drop(shared);
        opened.read_at(9_996, &mut out).unwrap();
        assert_eq!(&out, b"6789");
    }

    #[test]
    fn what_is_not_meant_is_not_opened() {
        let shared = SharedMemory::create(10_000, TOKEN).unwrap();
        let refused = |opened: io::Result<Memory>| opened.unwrap_err().to_string();
        assert!(refused(opened(&shared, 10_000, TOKEN + 1)).contains("another file"));
        assert!(refused(opened(&shared, 9_999, TOKEN)).contains("another file"));
        assert!(refused(opened(&shared, u64::MAX, TOKEN)).contains("too large"));
        let own = own();
        SharedMemory::open(&own, 1 << 20, 10_000, TOKEN).unwrap_err();
        // Refused: ordinary files, on a disk or in tmpfs, and a memfd without all the seals.
        let try_file = |file: &dyn AsRawFd| {
            refused(SharedMemory::open(&own, file.as_raw_fd().unsigned_abs(), 0, TOKEN))
        };
        for folder in [std::env::temp_dir(), "/dev/shm".into()] {
            assert_eq!(try_file(&file_in(&folder)), NOT_MEMORY, "{}", folder.display());
        }
        assert_eq!(try_file(&File::open("/proc/self/status").unwrap()), NOT_MEMORY);
        let app = memory_file().unwrap();
        ftruncate(&app, HEAD_BYTES).unwrap();
        for seals in [SealFlags::empty(), SealFlags::SHRINK] {
            fcntl_add_seals(&app, seals).unwrap();
            assert!(try_file(&app).contains("its size may change"), "{seals:?}");
        }
        // Memory of a program that is not an engine's mostly begins with zeroes.
        fcntl_add_seals(&app, SEALS).unwrap();
        assert!(try_file(&app).contains("another file"));
        let number = app.as_raw_fd().unsigned_abs();
        assert!(refused(SharedMemory::open(&own, number, 0, 0)).contains("token is 0"));
        let huge = |flags| memfd_create("huge", flags | MemfdFlags::HUGETLB);
        let huge = memory_file_by(huge).unwrap();
        fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
        assert_eq!(try_file(&huge), NOT_MEMORY);
    }

    #[test]
    fn memory_of_a_process_that_has_ended_is_not_opened() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let process = ProvenProcess::assumed(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        let error = SharedMemory::open(&process, 0, 0, TOKEN).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn nothing_is_opened_where_that_does_something() {
        let (reader, _writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        assert_eq!(reopen(&path).unwrap_err().to_string(), NOT_MEMORY);
        assert_eq!(reopen("/dev/null").unwrap_err().to_string(), NOT_MEMORY);
    }

    #[test]
    fn memory_can_not_be_run_where_the_system_knows_of_that() {
        let noexec = MemfdFlags::NOEXEC_SEAL;
        let file = || File::open("/dev/null").unwrap().into();
        // Kernels that insist on the flag, that don't know it, and that are out of memory.
        let strict = |flags: MemfdFlags| flags.contains(noexec).then(file).ok_or(Errno::ACCESS);
        let old = |flags: MemfdFlags| (!flags.contains(noexec)).then(file).ok_or(Errno::INVAL);
        memory_file_by(strict).unwrap();
        memory_file_by(old).unwrap();
        let none = memory_file_by(|_| Err(Errno::NOMEM)).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(Errno::NOMEM.raw_os_error()));

        let shared = SharedMemory::create(64, TOKEN).unwrap();
        let seals = fcntl_get_seals(&shared.file).unwrap();
        let knows = memfd_create("probe", noexec).is_ok();
        assert_eq!(seals.contains(SealFlags::EXEC), knows, "{seals:?}");
        opened(&shared, 64, TOKEN).unwrap();
    }

    const NOT_MEMORY: &str = "it is not memory of ordinary pages";

    fn file_in(folder: &std::path::Path) -> File {
        let path = folder.join(format!("polyrail-sys-{}", std::process::id()));
        let file = File::create_new(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(HEAD_BYTES).unwrap();
        file
    }
}
