//! Memory that two processes of one machine have open.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    FallocateFlags, FileType, MemfdFlags, Mode, OFlags, SealFlags, fallocate, fcntl_add_seals,
    fcntl_get_seals, fstat, fstatfs, ftruncate, memfd_create, open,
};

use crate::memory::{Map, Memory};
use crate::process::descriptor_of;

/// What stands before the bytes: the token. A page, so that the bytes begin with one.
const HEAD_BYTES: u64 = 4096;
const TOKEN_BYTES: usize = 16;
/// `TMPFS_MAGIC` of `linux/magic.h`: what is behind a `memfd`.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Memory of this process that others may open, as long as this lives; what they have opened they
/// keep. Its size never changes, so that nobody can be made to touch what is not there.
pub struct SharedMemory {
    memory: Memory,
    file: OwnedFd,
    token: u128,
}

impl SharedMemory {
    /// `bytes` zeroed bytes. Whoever opens it shows the token, so that a descriptor which stands for
    /// something else by then is not taken for it.
    ///
    /// The pages are taken from the system when they are first touched, or by [`Self::populate`].
    pub fn create(bytes: u64, token: u128) -> io::Result<Self> {
        let size = bytes.checked_add(HEAD_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("polyrail", flags)?;
        ftruncate(&file, size)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        // The head is written here, and must be there for it.
        fallocate(&file, FallocateFlags::empty(), 0, HEAD_BYTES)?;
        let whole = map(file.as_fd(), size)?;
        whole.write_at(0, &token.to_le_bytes()).map_err(io::Error::other)?;
        let memory = whole.part(HEAD_BYTES, bytes).map_err(io::Error::other)?;
        Ok(Self { memory, file, token })
    }

    /// Takes the pages from the system now: later a lack of them would end the process.
    pub fn populate(&self) -> io::Result<()> {
        Ok(fallocate(&self.file, FallocateFlags::empty(), HEAD_BYTES, self.memory.len().max(1))?)
    }

    /// The bytes.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The number of its file descriptor in this process.
    pub fn descriptor(&self) -> u32 {
        self.file.as_raw_fd().unsigned_abs()
    }

    /// What the head says.
    pub fn token(&self) -> u128 {
        self.token
    }

    /// Memory of another process, by its number and that of the descriptor there. The system allows
    /// it to processes of the same user whose numbers hold for both.
    pub fn open(process: u32, descriptor: u32, bytes: u64, token: u128) -> io::Result<Memory> {
        let file = open_descriptor(process, descriptor)?;
        let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
        let other = || wrong("the process of that number has something else there");
        // Only memory of this kind has seals, and only with this one it can't go away in parts.
        let seals = fcntl_get_seals(&file).map_err(|_| other())?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(wrong("it may become smaller"));
        }
        // Huge pages have seals, too, and whoever punches a hole takes one away for good, where the
        // system has no other to give.
        if fstatfs(&file)?.f_type != TMPFS_MAGIC {
            return Err(wrong("it is not of ordinary pages"));
        }
        let size = bytes.checked_add(HEAD_BYTES).ok_or_else(|| wrong("it is too large"))?;
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

/// The file behind another process's descriptor. It is opened anew, which takes less than a copy of
/// the descriptor: no right to trace the process. Where `/proc` does not show it a copy may do.
fn open_descriptor(process: u32, descriptor: u32) -> io::Result<OwnedFd> {
    reopen(&format!("/proc/{process}/fd/{descriptor}"))
        .or_else(|error| descriptor_of(process, descriptor).map_err(|_| error))
}

/// Opens a file, unless it is one where opening does something: a device, or a pipe.
fn reopen(path: &str) -> io::Result<OwnedFd> {
    let looked = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    if !FileType::from_raw_mode(fstat(&looked)?.st_mode).is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no file"));
    }
    let path = format!("/proc/self/fd/{}", looked.as_raw_fd());
    Ok(open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

fn map(file: impl AsFd, size: u64) -> io::Result<Memory> {
    let size_here = usize::try_from(size).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let map = Map::shared(file, size_here)?;
    let base = map.base();
    // SAFETY: the mapping is of that size and lives as long as its owner, and nobody has a
    // reference into it.
    Ok(unsafe { Memory::owned(base, size, Arc::new(map)) })
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    const TOKEN: u128 = 77 << 100;

    fn opened(shared: &SharedMemory, bytes: u64, token: u128) -> io::Result<Memory> {
        SharedMemory::open(std::process::id(), shared.descriptor(), bytes, token)
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
        assert!(refused(opened(&shared, 10_000, TOKEN + 1)).contains("something else"));
        assert!(refused(opened(&shared, 9_999, TOKEN)).contains("something else"));
        assert!(refused(opened(&shared, u64::MAX, TOKEN)).contains("too large"));
        let own = std::process::id();
        SharedMemory::open(own, 1 << 20, 10_000, TOKEN).unwrap_err();
        SharedMemory::open(0, 0, 10_000, TOKEN).unwrap_err();
        // A file is not memory, and memory without a seal could go away.
        let file = tempfile();
        let number = file.as_raw_fd() as u32;
        assert!(refused(SharedMemory::open(own, number, 0, 0)).contains("something else"));
        let loose = memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
        let number = loose.as_raw_fd() as u32;
        assert!(refused(SharedMemory::open(own, number, 0, 0)).contains("smaller"));
        let huge = MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
        let huge = memfd_create("huge", huge).unwrap();
        fcntl_add_seals(&huge, SealFlags::SHRINK).unwrap();
        let number = huge.as_raw_fd() as u32;
        assert!(refused(SharedMemory::open(own, number, 0, 0)).contains("ordinary pages"));
    }

    #[test]
    fn nothing_is_opened_where_that_does_something() {
        let (reader, _writer) = io::pipe().unwrap();
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        assert_eq!(reopen(&path).unwrap_err().to_string(), "it is no file");
        assert_eq!(reopen("/dev/null").unwrap_err().to_string(), "it is no file");
    }

    fn tempfile() -> File {
        let path = std::env::temp_dir().join(format!("polyrail-sys-{}", std::process::id()));
        let file = File::create_new(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(HEAD_BYTES).unwrap();
        file
    }
}
