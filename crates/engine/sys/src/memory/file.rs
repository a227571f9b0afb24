//! Memory that is a range of a file. The file may be cut off at any moment, and an instruction of this process that touches
//! a page of it that is gone ends the process by SIGBUS. So none does: the CPU reaches these bytes through the file's
//! descriptor, and the mapping is for the kernel, which returns an error for such a page. [`copy`] is where CPUs copy.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap};

use super::{BLOCK_BYTES, Map, Memory, OutOfRange, page_bytes};
use crate::signals::without_write_signals;

/// A mapped range of a file, and the file.
pub(crate) struct FileMap {
    map: Map,
    /// Offset in the file of the first mapped byte.
    offset: u64,
    file: OwnedFd,
}

/// Bytes that CPUs copy from or to: an address, and the mapping of a file that it is in.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) at: *mut u8,
    pub(crate) file: Option<&'a FileMap>,
}

/// The file has fewer bytes now, or can't be read or written.
pub(crate) struct Cut;

impl FileMap {
    /// Returns the offset in the file of a byte that is mapped here.
    fn offset_of(&self, at: *const u8) -> u64 {
        self.offset + (at as usize - self.map.base.as_ptr() as usize) as u64
    }

    /// Returns the number of bytes that the file has from this one on.
    pub(super) fn left_from(&self, at: *const u8) -> u64 {
        let bytes = fstat(&self.file).map_or(0, |stat| stat.st_size.unsigned_abs());
        bytes.saturating_sub(self.offset_of(at))
    }

    /// # Safety
    /// `to` must be valid for writes of `len` bytes, and `from` be mapped here.
    unsafe fn read(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), Cut> {
        // SAFETY: the caller's promise.
        unsafe { read_into(self.file.as_fd(), self.offset_of(from), to, len) }.map_err(|_| Cut)
    }

    /// # Safety
    /// `from` must be valid for reads of `len` bytes, and `to` be mapped here.
    unsafe fn write(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), Cut> {
        // A write beyond the end would extend a file that was cut off.
        if self.left_from(to) < len as u64 {
            return Err(Cut);
        }
        // SAFETY: the caller's promise.
        unsafe { write_from(self.file.as_fd(), self.offset_of(to), from, len) }.map_err(|_| Cut)
    }
}

impl<'a> Place<'a> {
    /// Bytes that don't belong to a file.
    pub(crate) fn plain(at: *mut u8) -> Self {
        Self { at, file: None }
    }

    /// # Safety
    /// So many bytes further on must be in the same memory, or at its end.
    pub(crate) unsafe fn plus(self, bytes: usize) -> Self {
        // SAFETY: the caller's promise.
        Self { at: unsafe { self.at.add(bytes) }, ..self }
    }
}

/// Copies bytes between places that may overlap. On an error some of them are copied.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `len` bytes, by the kernel where they are of a file.
#[inline]
pub(crate) unsafe fn copy(from: Place<'_>, to: Place<'_>, len: usize) -> Result<(), Cut> {
    if from.file.is_some() || to.file.is_some() {
        // SAFETY: the caller's promise.
        return unsafe { copy_of_files(from, to, len) };
    }
    // SAFETY: the caller's promise; such bytes are only reached by copies.
    unsafe { std::ptr::copy(from.at, to.at, len) };
    Ok(())
}

/// # Safety
/// As for [`copy`].
#[cold]
unsafe fn copy_of_files(from: Place<'_>, to: Place<'_>, len: usize) -> Result<(), Cut> {
    let (source, target) = match (from.file, to.file) {
        (Some(source), Some(target)) => (source, target),
        // SAFETY: the caller's promise.
        (Some(source), None) => return unsafe { source.read(from.at, to.at, len) },
        // SAFETY: the caller's promise.
        (None, Some(target)) => return unsafe { target.write(from.at, to.at, len) },
        (None, None) => return Ok(()),
    };
    let mut block = [0_u8; BLOCK_BYTES];
    let blocks = len.div_ceil(BLOCK_BYTES);
    let is_backwards = to.at > from.at;
    for index in 0..blocks {
        let begin = if is_backwards { blocks - 1 - index } else { index } * BLOCK_BYTES;
        let part = BLOCK_BYTES.min(len - begin);
        // SAFETY: the block has room for the part, which is inside of both ranges.
        unsafe {
            source.read(from.at.add(begin), block.as_mut_ptr(), part)?;
            target.write(block.as_ptr(), to.at.add(begin), part)?;
        }
    }
    Ok(())
}

impl Memory {
    /// `len` bytes of a regular file, from byte `offset` on, shared with it: bytes that arrive here are in the file, and
    /// [`File::sync_all`] makes them durable. Any offset will do. The file stays open until the memory is gone.
    ///
    /// Bytes may arrive in it only if the file is open for reading and writing; otherwise register it with `Access::READ`: a
    /// read or a receive into it fails as if the region had ended. Leave the flags of the open file as they are: with
    /// `O_APPEND` set later, bytes would arrive at its end.
    /// If the file is cut off, loses its room on the disk or can't be read, transfers end with an error, and this
    /// process gets no SIGBUS. Rails of a plugin (`rails=plugin:…`) touch the bytes themselves: an engine that has some
    /// refuses such memory. If the file was cut off inside a page, the rest of that page reads as zeros.
    ///
    /// ```
    /// use polyrail_sys::Memory;
    ///
    /// let file = std::fs::File::open("Cargo.toml")?;
    /// let memory = Memory::map_file(&file, 1, 7)?;
    /// let mut bytes = [0; 7];
    /// memory.read_at(0, &mut bytes)?;
    /// assert_eq!(&bytes, b"package");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `UnexpectedEof`: the file has fewer bytes. `InvalidInput`: it isn't a regular file, or is open for writing only,
    /// for appending, or with `O_DIRECT`. `OutOfMemory`: there is no room in the address space. Others are those of
    /// fstat, fcntl and mmap.
    pub fn map_file(file: &File, offset: u64, len: u64) -> io::Result<Self> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why);
        let stat = fstat(file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(invalid("only a regular file can be mapped"));
        }
        let flags = fcntl_getfl(file)?;
        let may_write = flags.contains(OFlags::RDWR);
        // Such a descriptor reads or writes in another place, or not at all.
        let others = OFlags::WRONLY | OFlags::APPEND | OFlags::DIRECT | OFlags::PATH;
        if flags.intersects(others) {
            return Err(invalid(
                "the file is open for writing only, for appending or with O_DIRECT; allowed: for reading, or for reading \
                 and writing",
            ));
        }
        check_size(stat.st_size.unsigned_abs(), offset, len)?;
        if len == 0 {
            return Ok(Self::from(Vec::new()));
        }
        let lead = offset % page_bytes() as u64;
        let size = usize::try_from(lead + len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let map = Map::of_file(file, offset - lead, size, may_write)?;
        let file = file.as_fd().try_clone_to_owned()?;
        let map = FileMap { map, offset: offset - lead, file };
        // SAFETY: the mapping has `lead` bytes and more.
        let base = unsafe { map.map.base.add(lead as usize) };
        Ok(Self { base, len, file: Some(Arc::new(map)), _owner: None })
    }

    /// Reads `len` bytes of a file, from byte `from` of it on, to byte `at` of this memory. The kernel copies them into
    /// place, where the memory is not a file's itself.
    ///
    /// # Errors
    /// `UnexpectedEof`: the file has fewer bytes. `InvalidInput`: the range is not inside the memory. Others are those of
    /// pread. Some of the bytes may be in place then.
    pub fn fill_from(&self, at: u64, len: u64, file: BorrowedFd<'_>, from: u64) -> io::Result<()> {
        let to = self.at(at, len).map_err(outside)?;
        if self.file.is_none() {
            // SAFETY: the range was checked. Such bytes are only reached by copies.
            return unsafe { read_into(file, from, to, len as usize) };
        }
        let mut block = [0_u8; BLOCK_BYTES];
        in_blocks(len, |done, part| {
            // SAFETY: the block has room for the part.
            unsafe { read_into(file, from + done, block.as_mut_ptr(), part) }?;
            self.write_at(at + done, &block[..part]).map_err(outside)
        })
    }

    /// Writes `len` bytes from byte `at` of this memory on to a file, from byte `to` of it on. The file grows as needed.
    ///
    /// # Errors
    /// `InvalidInput`: the range is not inside the memory, or the file is open for appending, where Linux ignores `to`.
    /// Others are those of pwrite. Some of the bytes may be in the file then.
    pub fn store_to(&self, at: u64, len: u64, file: BorrowedFd<'_>, to: u64) -> io::Result<()> {
        if fcntl_getfl(file)?.contains(OFlags::APPEND) {
            let text = "the file is open for appending, so bytes can't be stored at a place of it";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let from = self.at(at, len).map_err(outside)?;
        if self.file.is_none() {
            // SAFETY: the range was checked. Such bytes are only reached by copies.
            return unsafe { write_from(file, to, from, len as usize) };
        }
        let mut block = [0_u8; BLOCK_BYTES];
        in_blocks(len, |done, part| {
            self.read_at(at + done, &mut block[..part]).map_err(outside)?;
            // SAFETY: the block has the part.
            unsafe { write_from(file, to + done, block.as_ptr(), part) }
        })
    }

    /// Takes the pages of a range from the system, for writing: one call instead of a fault for each page. Does nothing
    /// before Linux 5.14, and for memory that may not be written.
    ///
    /// # Errors
    /// `UnexpectedEof`: the file of the memory was cut off. `StorageFull`: the file system of the file has no room for the
    /// pages, or has failed. `InvalidInput`: the range is not inside the memory. Others are those of madvise.
    pub fn populate(&self, offset: u64, len: u64) -> io::Result<()> {
        let begin = self.at(offset, len).map_err(outside)? as usize;
        if len == 0 {
            return Ok(());
        }
        let first = begin & !(page_bytes() - 1);
        let size = begin + len as usize - first;
        // SAFETY: the call changes no byte, and the kernel checks the range.
        let done =
            unsafe { libc::madvise(first as *mut libc::c_void, size, libc::MADV_POPULATE_WRITE) };
        if done == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINVAL) => Ok(()),
            Some(libc::EFAULT) if self.left() < offset + len => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file was cut off"))
            }
            Some(libc::EFAULT) if self.file.is_some() => {
                let text = "no room for the file's pages: its disk or tmpfs is full, or has failed; free room there";
                Err(io::Error::new(io::ErrorKind::StorageFull, text))
            }
            _ => Err(error),
        }
    }
}

impl Map {
    fn of_file(file: &File, offset: u64, len: usize, may_write: bool) -> io::Result<Self> {
        let write = if may_write { ProtFlags::WRITE } else { ProtFlags::empty() };
        let protection = ProtFlags::READ | write;
        let null = std::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mmap(null, len, protection, MapFlags::SHARED, file, offset)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }
}

fn check_size(size: u64, offset: u64, len: u64) -> io::Result<()> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => {
            let why = format!(
                "the file has {size} bytes; {len} from byte {offset} on are wanted: set its length first"
            );
            Err(io::Error::new(io::ErrorKind::UnexpectedEof, why))
        }
    }
}

fn outside(error: OutOfRange) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

/// Calls `each` with the bytes before each block and its length.
fn in_blocks(len: u64, mut each: impl FnMut(u64, usize) -> io::Result<()>) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let part = (len - done).min(BLOCK_BYTES as u64);
        each(done, part as usize)?;
        done += part;
    }
    Ok(())
}

/// Reads all of it.
///
/// # Safety
/// `to` must be valid for writes of `len` bytes.
unsafe fn read_into(file: BorrowedFd<'_>, from: u64, to: *mut u8, len: usize) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let at = offset_of(from, done)?;
        // SAFETY: the rest of the range is inside of what the caller promised.
        let read = unsafe { libc::pread(file.as_raw_fd(), to.add(done).cast(), len - done, at) };
        match usize::try_from(read) {
            Ok(0) => {
                let why = format!("the file ended {done} bytes behind byte {from}; wanted: {len}");
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
            }
            Ok(bytes) => done += bytes,
            Err(_) => go_on()?,
        }
    }
    Ok(())
}

/// Writes all of it.
///
/// # Safety
/// `from` must be valid for reads of `len` bytes.
unsafe fn write_from(file: BorrowedFd<'_>, to: u64, from: *const u8, len: usize) -> io::Result<()> {
    let mut done = 0;
    without_write_signals(|| {
        while done < len {
            let at = offset_of(to, done)?;
            // SAFETY: the rest of the range is inside of what the caller promised.
            let wrote =
                unsafe { libc::pwrite(file.as_raw_fd(), from.add(done).cast(), len - done, at) };
            match usize::try_from(wrote) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => done += bytes,
                Err(_) => go_on()?,
            }
        }
        Ok(())
    })
}

fn offset_of(begin: u64, done: usize) -> io::Result<libc::off_t> {
    let at = begin.checked_add(done as u64).and_then(|at| libc::off_t::try_from(at).ok());
    at.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Returns the last error, unless the call may be repeated.
fn go_on() -> io::Result<()> {
    let error = io::Error::last_os_error();
    match error.raw_os_error() == Some(Errno::INTR.raw_os_error()) {
        true => Ok(()),
        false => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::io::Write;

    use super::*;
    use crate::{IoVecs, Out, send};

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at * 31 / 7) as u8).collect()
    }

    fn all(memory: &Memory) -> Vec<u8> {
        let mut bytes = vec![0; memory.len() as usize];
        memory.read_at(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn a_file_is_memory_from_any_offset_on_and_what_is_written_is_in_it() {
        let want = pattern(100_000);
        let file = file_of(&want);
        for (offset, len) in [(0, 100_000), (1, 99_999), (4096, 4096), (70_001, 3), (100_000, 0)] {
            let memory = Memory::map_file(&file, offset, len).unwrap();
            let (begin, end) = (offset as usize, (offset + len) as usize);
            assert!(all(&memory) == want[begin..end], "{offset}+{len}");
            let mut more = vec![1, 2];
            memory.append_to(&mut more, 0, len).unwrap();
            assert!(more[2..] == want[begin..end]);
            let plain = Memory::from(want[begin..end].to_vec());
            assert_eq!(memory.crc32c(7, 0, len), plain.crc32c(7, 0, len));
        }
        let memory = Memory::map_file(&file, 5, 90_000).unwrap();
        memory.part(60_000, 10).unwrap().write_at(2, b"abc").unwrap();
        let mut three = [0; 3];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut three, 60_007).unwrap();
        assert_eq!(&three, b"abc");
        // Within one file the ranges may overlap, either way.
        for (from, to) in [(10, 30_010), (30_010, 10)] {
            let mut want = all(&memory);
            want.copy_within(from..from + 50_000, to);
            memory.copy_to(from as u64, (&memory, to as u64), 50_000).unwrap();
            assert!(all(&memory) == want, "{from} to {to}");
        }
    }

    #[test]
    fn memory_is_filled_from_a_file_and_stored_to_one() {
        let want = pattern(100_000);
        let (source, target) = (file_of(&want), file_of(b""));
        let mapped = file_of(&[0; 50_000]);
        for memory in
            [Memory::anonymous(50_000).unwrap(), Memory::map_file(&mapped, 0, 50_000).unwrap()]
        {
            memory.fill_from(10, 40_000, source.as_fd(), 3).unwrap();
            assert!(all(&memory)[10..40_010] == want[3..40_003]);
            memory.store_to(10, 40_000, target.as_fd(), 7).unwrap();
            let stored = Memory::map_file(&target, 7, 40_000).unwrap();
            assert!(all(&stored) == want[3..40_003]);
            let short = memory.fill_from(0, 11, source.as_fd(), 99_990).unwrap_err();
            assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
            let outside = memory.store_to(49_999, 2, target.as_fd(), 0).unwrap_err();
            assert_eq!(outside.kind(), io::ErrorKind::InvalidInput);
            memory.populate(5, 49_995).unwrap();
        }
        Memory::from(Vec::new()).populate(0, 0).unwrap();
    }

    #[test]
    fn nothing_is_stored_to_a_file_that_is_open_for_appending() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, [7; 10]).unwrap();
        let appending = OpenOptions::new().append(true).open(&path).unwrap();
        let mapped = file_of(&[1; 4]);
        for memory in [Memory::from(vec![1; 4]), Memory::map_file(&mapped, 0, 4).unwrap()] {
            let refused = memory.store_to(0, 4, appending.as_fd(), 3).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
            assert!(refused.to_string().contains("open for appending"), "{refused}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), [7; 10]);
    }

    #[test]
    fn only_a_regular_file_that_is_long_enough_and_can_be_read_is_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, [7; 10]).unwrap();
        let refused = |file: &File| Memory::map_file(file, 0, 1).unwrap_err().kind();
        assert_eq!(refused(&File::open(folder.path()).unwrap()), io::ErrorKind::InvalidInput);
        assert_eq!(refused(&File::open("/dev/null").unwrap()), io::ErrorKind::InvalidInput);
        let open = |options: &mut OpenOptions| options.open(&path).unwrap();
        let writing = open(OpenOptions::new().write(true));
        assert_eq!(refused(&writing), io::ErrorKind::InvalidInput);
        let appending = open(OpenOptions::new().read(true).append(true));
        assert_eq!(refused(&appending), io::ErrorKind::InvalidInput);
        let reading = File::open(&path).unwrap();
        let error = Memory::map_file(&reading, 3, 8).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (
                io::ErrorKind::UnexpectedEof,
                "the file has 10 bytes; 8 from byte 3 on are wanted: set its length first"
            )
        );
        assert!(Memory::map_file(&reading, u64::MAX, 2).is_err());
        let memory = Memory::map_file(&reading, 3, 7).unwrap();
        assert!(memory.write_at(0, b"x").is_err(), "it is open for reading");
        memory.populate(0, 7).unwrap();
        assert_eq!(all(&memory), [7; 7]);
    }

    #[test]
    fn a_file_that_is_cut_off_is_an_error_and_no_signal() {
        let file = file_of(&pattern(100_000));
        let memory = Memory::map_file(&file, 4096, 90_000).unwrap();
        file.set_len(8192).unwrap();
        let gone = OutOfRange { offset: 5000, len: 4, size: 4096 };
        assert_eq!(memory.read_at(5000, &mut [0; 4]), Err(gone));
        assert_eq!(memory.write_at(5000, &[0; 4]), Err(gone));
        assert_eq!(memory.crc32c(0, 5000, 4), Err(gone));
        let mut bytes = vec![1];
        assert_eq!(memory.append_to(&mut bytes, 5000, 4), Err(gone));
        assert_eq!(bytes, [1]);
        let plain = Memory::from(vec![0; 90_000]);
        assert!(memory.copy_to(0, (&plain, 0), 5000).is_err());
        assert!(plain.copy_to(0, (&memory, 0), 5000).is_err());
        assert_eq!(memory.missing_in(0, 4096), Ok(None));
        assert!(memory.missing_in(4000, 200).unwrap().is_some());
        assert_eq!(file.metadata().unwrap().len(), 8192, "it has not grown");
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut out = IoVecs::<Out>::new();
        out.push_memory(&memory, 8192, 4096).unwrap();
        let error = send(socket.as_fd(), &mut out).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
        assert!(out.copy_to(0, (&plain, 0), 4096).is_err());
        let error = memory.populate(0, 5000).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        memory.populate(0, 4096).unwrap();
        // Inside of a page the file's own size counts.
        file.set_len(4100).unwrap();
        assert!(memory.missing_in(0, 5).unwrap().is_some());
        assert!(memory.read_at(0, &mut [0; 5]).is_err() && memory.read_at(0, &mut [0; 4]).is_ok());
        assert!(memory.address(0, 1).is_err(), "devices copy by themselves");
    }
}
