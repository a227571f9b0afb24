//! Memory that others write while we hold it. `file` has that of files.

mod file;

use std::any::Any;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;

use thiserror::Error;

pub(crate) use self::file::{FileMap, Place, copy};
use crate::checksum::crc32c;

/// Bytes copied at a time where a reference is needed: fits in the first-level cache.
const BLOCK_BYTES: usize = 16 << 10;

/// A range of bytes that peers and the kernel may change at any moment.
///
/// There is never a `&[u8]` to it: it is read and written by copies, so that a peer's write in the
/// middle of a read gives old or new bytes, not undefined behaviour in safe code. Clones share the
/// bytes; they are freed with the last clone. Safe to use from any thread.
#[derive(Clone)]
pub struct Memory {
    base: NonNull<u8>,
    len: u64,
    /// The file whose bytes they are: CPUs reach them through it only.
    file: Option<Arc<FileMap>>,
    /// Keeps the bytes alive; `None` for memory that the caller promised to keep, or of a file.
    _owner: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: `base` points to memory that is valid as long as the value lives (by its owner, or by
// the promise of `from_raw`), and is accessed only by raw copies, from whichever thread.
unsafe impl Send for Memory {}
// SAFETY: as above; no method hands out a reference.
unsafe impl Sync for Memory {}

/// A range that is not inside the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("range {offset}+{len} is outside the memory of {size} bytes")]
pub struct OutOfRange {
    /// Start of the range, in bytes.
    pub offset: u64,
    /// Length of the range, in bytes.
    pub len: u64,
    /// Size of the memory, in bytes.
    pub size: u64,
}

impl Memory {
    /// `len` zeroed bytes of their own pages; huge pages where the system has them to give.
    ///
    /// The pages are taken from the system when they are first touched.
    pub fn anonymous(len: u64) -> io::Result<Self> {
        let size = usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        if size == 0 {
            return Ok(Self::from(Vec::new()));
        }
        let map = Map::new(size)?;
        Ok(Self { base: map.base, len, file: None, _owner: Some(Arc::new(map)) })
    }

    /// Memory with another owner.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes until this value, its clones, and
    /// every region registered from them are gone, and no reference to those bytes may be used
    /// while a transfer can touch them.
    pub unsafe fn from_raw(base: *mut u8, len: u64) -> Self {
        // C programs pass a null pointer of length 0 for "nothing".
        let base = NonNull::new(base).unwrap_or(NonNull::dangling());
        Self { base, len, file: None, _owner: None }
    }

    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies bytes out, from `offset` on.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), OutOfRange> {
        let (from, len) = (self.place(offset, out.len() as u64)?, out.len());
        // SAFETY: `place` checked that the source range is inside the memory; `out` is exclusively
        // borrowed.
        let copied = unsafe { copy(from, Place::plain(out.as_mut_ptr()), len) };
        copied.map_err(|_| self.cut(offset, len as u64))
    }

    /// Copies bytes out behind those in `out`. On an error `out` stays as it is.
    pub fn append_to(&self, out: &mut Vec<u8>, offset: u64, len: u64) -> Result<(), OutOfRange> {
        let from = self.place(offset, len)?;
        // A length inside a memory fits into an address space.
        let (begin, size) = (out.len(), len as usize);
        out.reserve(size);
        // SAFETY: `place` checked that the source range is inside the memory, and `reserve` made room
        // for `size` bytes behind `begin`; `out` is exclusively borrowed. The bytes up to the new length
        // were just written.
        unsafe {
            let to = Place::plain(out.as_mut_ptr().add(begin));
            copy(from, to, size).map_err(|_| self.cut(offset, len))?;
            out.set_len(begin + size);
        }
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), OutOfRange> {
        let (to, len) = (self.place(offset, bytes.len() as u64)?, bytes.len());
        // SAFETY: `place` checked that the destination range is inside the memory; `bytes` is only read.
        let copied = unsafe { copy(Place::plain(bytes.as_ptr().cast_mut()), to, len) };
        copied.map_err(|_| self.cut(offset, len as u64))
    }

    /// Copies bytes to another memory, or within this one, where the ranges may overlap.
    pub fn copy_to(
        &self,
        offset: u64,
        (to, to_offset): (&Self, u64),
        len: u64,
    ) -> Result<(), OutOfRange> {
        let (from, place) = (self.place(offset, len)?, to.place(to_offset, len)?);
        // SAFETY: `place` checked that both ranges are inside their memories, which are borrowed; both
        // are only reached by copies.
        let copied = unsafe { copy(from, place, len as usize) };
        // One of the two is of a file that has less now.
        copied.map_err(|_| match self.left() < offset + len {
            true => self.cut(offset, len),
            false => to.cut(to_offset, len),
        })
    }

    /// Continues the CRC-32C `crc` over a range.
    pub fn crc32c(&self, crc: u32, offset: u64, len: u64) -> Result<u32, OutOfRange> {
        self.at(offset, len)?;
        let mut block = [0; BLOCK_BYTES];
        let mut crc = crc;
        let mut done = 0;
        while done < len {
            let take = (len - done).min(BLOCK_BYTES as u64) as usize;
            self.read_at(offset + done, &mut block[..take])?;
            crc = crc32c(crc, &block[..take]);
            done += take as u64;
        }
        Ok(crc)
    }

    /// Returns the address of a byte range, checked: for devices that copy by themselves. The caller must keep a clone
    /// for as long.
    ///
    /// # Errors
    /// The range is not inside the memory, or has bytes of a file, which may go away: fill other memory from the file.
    pub fn address(&self, offset: u64, len: u64) -> Result<usize, OutOfRange> {
        self.direct(offset, len).map(|at| at as usize)
    }

    /// The address of its first or last byte if that can't be read: nothing is mapped there, or not for
    /// this process's CPUs, as memory of a device. What lies between is not looked at.
    pub fn missing(&self) -> Option<usize> {
        let first = self.base.as_ptr() as usize;
        let ends = [first, first.wrapping_add((self.len as usize).wrapping_sub(1))];
        ends.into_iter().filter(|_| self.len > 0).find(|at| !can_be_read(*at))
    }

    /// The address of the first byte of a range that can't be read, in one of its pages: see [`Self::missing`].
    pub fn missing_in(&self, offset: u64, len: u64) -> Result<Option<usize>, OutOfRange> {
        let (first, page) = (self.at(offset, len)? as usize, page_bytes());
        let end = first + len as usize;
        // The last page of a file can be read to its end.
        let left = (self.base.as_ptr() as usize).saturating_add(self.left() as usize);
        if len > 0 && left < end {
            return Ok(Some(left.max(first)));
        }
        let next = |at: &usize| Some((at & !(page - 1)) + page);
        let mut pages = std::iter::successors(Some(first), next).take_while(|at| *at < end);
        Ok(pages.find(|at| !can_be_read(*at)))
    }

    /// Memory that `owner` keeps.
    ///
    /// # Safety
    /// `base` must be valid for reads and writes of `len` bytes as long as `owner` lives, and no
    /// reference to those bytes may be used meanwhile.
    pub unsafe fn owned(base: NonNull<u8>, len: u64, owner: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, len, file: None, _owner: Some(owner) }
    }

    /// A range of it, which keeps the whole.
    pub fn part(&self, offset: u64, len: u64) -> Result<Self, OutOfRange> {
        let base = NonNull::new(self.at(offset, len)?).unwrap_or(NonNull::dangling());
        Ok(Self { base, len, ..self.clone() })
    }

    /// The same bytes; they also keep `owner` alive until they are freed.
    pub fn with(self, kept: impl Any + Send + Sync) -> Self {
        let (base, len, file) = (self.base, self.len, self.file.clone());
        Self { base, len, file, _owner: Some(Arc::new((self, kept))) }
    }

    /// The bytes of a range for [`copy`], checked.
    pub(crate) fn place(&self, offset: u64, len: u64) -> Result<Place<'_>, OutOfRange> {
        Ok(Place { at: self.at(offset, len)?, file: self.file.as_deref() })
    }

    /// The address of a byte range that the CPU, or a device, may use.
    pub(crate) fn direct(&self, offset: u64, len: u64) -> Result<*mut u8, OutOfRange> {
        match &self.file {
            Some(_) if len > 0 => Err(OutOfRange { offset, len, size: 0 }),
            _ => self.at(offset, len),
        }
    }

    /// Bytes that are there: a file may have fewer now.
    fn left(&self) -> u64 {
        let of_file = |file: &Arc<FileMap>| file.left_from(self.base.as_ptr());
        self.file.as_ref().map_or(self.len, of_file).min(self.len)
    }

    /// The error for a range whose file is cut off, or can't be read or written.
    fn cut(&self, offset: u64, len: u64) -> OutOfRange {
        OutOfRange { offset, len, size: self.left() }
    }

    /// The address of a byte range, checked: for the kernel. CPUs copy by [`Self::place`].
    pub(crate) fn at(&self, offset: u64, len: u64) -> Result<*mut u8, OutOfRange> {
        match offset.checked_add(len) {
            // SAFETY: `offset` is at most `len`, so the result is inside the memory or one past it.
            Some(end) if end <= self.len => Ok(unsafe { self.base.as_ptr().add(offset as usize) }),
            _ => Err(OutOfRange { offset, len, size: self.len }),
        }
    }
}

impl From<Vec<u8>> for Memory {
    fn from(bytes: Vec<u8>) -> Self {
        Self::from(bytes.into_boxed_slice())
    }
}

impl From<Box<[u8]>> for Memory {
    fn from(bytes: Box<[u8]>) -> Self {
        let len = bytes.len() as u64;
        let boxed = Boxed(NonNull::from(Box::leak(bytes)));
        Self { base: boxed.0.cast(), len, file: None, _owner: Some(Arc::new(boxed)) }
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Memory({:p}, {} bytes)", self.base, self.len)
    }
}

pub(crate) fn page_bytes() -> usize {
    // SAFETY: it takes a number, and changes nothing.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// Whether a byte of this process can be read, by the kernel's word: nothing here reads it.
fn can_be_read(at: usize) -> bool {
    let mut byte = 0_u8;
    let here = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let there = libc::iovec { iov_base: at as *mut libc::c_void, iov_len: 1 };
    let own = std::process::id().cast_signed();
    // SAFETY: the local piece is a byte that lives here, to which nothing refers during the call. The other
    // one is an address, which the kernel checks.
    let read = unsafe { libc::process_vm_readv(own, &raw const here, 1, &raw const there, 1, 0) };
    if read == 1 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT) {
        return true;
    }
    let page = page_bytes();
    let start = (at & !(page - 1)) as *mut libc::c_void;
    // SAFETY: the kernel checks the page, and writes of it one byte to what lives here.
    let is_mapped = unsafe { libc::mincore(start, 1, &raw mut byte) } == 0;
    // The call above finds no memory that a driver has mapped, though CPUs can read it. So another one is to read it
    // as its argument, and then refuses what it is to do.
    const NOTHING: libc::c_int = -1;
    let set = (at & !7) as *const libc::c_void;
    // SAFETY: the kernel checks the address of the set, and changes nothing: it finds that nothing is to be done.
    let read = || unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, NOTHING, set, std::ptr::null_mut::<u8>(), 8_usize)
    };
    is_mapped && (read() == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT))
}

/// A boxed slice given up to raw access, so that no `Box` claims to be its only user.
struct Boxed(NonNull<[u8]>);

// SAFETY: the pointer owns its allocation and is used only to free it.
unsafe impl Send for Boxed {}
// SAFETY: as above.
unsafe impl Sync for Boxed {}

impl Drop for Boxed {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::leak` and is freed once, here.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// A mapping.
pub(crate) struct Map {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    fn new(len: usize) -> io::Result<Self> {
        use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), len, protection, flags)? };
        // SAFETY: the range is the mapping just made. Only a hint: without huge pages all works.
        let _ = unsafe { madvise(base, len, Advice::LinuxHugepage) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Memory that is all zero in a copy of this process.
    pub(crate) fn wiped_on_fork(len: usize) -> io::Result<Self> {
        let map = Self::new(len)?;
        // SAFETY: the range is the mapping just made, which no other code knows.
        unsafe {
            rustix::mm::madvise(map.base.as_ptr().cast(), len, rustix::mm::Advice::LinuxWipeOnFork)
        }?;
        Ok(map)
    }

    /// Maps a file from its start, shared with everybody else who maps it.
    pub(crate) fn shared(file: impl AsFd, len: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice aliases nothing; what others
        // do to the file's bytes is what every access to a `Memory` expects.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, flags, file, 0)? };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no longer used: this is its last owner.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_go_in_and_out_by_copy() {
        for memory in [Memory::from(vec![0; 10_000]), Memory::anonymous(10_000).unwrap()] {
            memory.write_at(9_990, b"0123456789").unwrap();
            let mut out = [0; 4];
            memory.clone().read_at(9_993, &mut out).unwrap();
            assert_eq!(&out, b"3456");
        }
    }

    #[test]
    fn bytes_are_copied_between_memories_and_within_one() {
        let (one, other) = (Memory::from(b"0123456789".to_vec()), Memory::from(vec![0; 4]));
        one.copy_to(3, (&other, 1), 3).unwrap();
        one.copy_to(0, (&one, 2), 8).unwrap();
        let (mut all, mut four) = ([0; 10], [0; 4]);
        one.read_at(0, &mut all).unwrap();
        other.read_at(0, &mut four).unwrap();
        assert_eq!((&all, &four), (b"0101234567", b"\x00345"));
        assert!(one.copy_to(0, (&other, 1), 4).is_err() && one.copy_to(8, (&other, 0), 3).is_err());
    }

    #[test]
    fn what_is_kept_with_bytes_goes_after_the_last_clone_of_them() {
        let kept = Arc::new(());
        let memory = Memory::from(vec![7; 8]).with(kept.clone());
        let clone = memory.part(2, 4).unwrap();
        drop(memory);
        let mut out = [0; 4];
        clone.read_at(0, &mut out).unwrap();
        assert_eq!((out, Arc::strong_count(&kept)), ([7; 4], 2));
        drop(clone);
        assert_eq!(Arc::strong_count(&kept), 1);
    }

    #[test]
    fn memory_whose_first_or_last_byte_can_not_be_read_is_told_apart() {
        use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};
        let page = page_bytes();
        let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping, of which only addresses are used.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), 3 * page, read_write, private) };
        let base = base.unwrap();
        // SAFETY: what `missing` looks at, only the kernel does.
        let memory = |from: usize, len: usize| unsafe {
            Memory::from_raw(base.cast::<u8>().wrapping_add(from), len as u64)
        };
        assert_eq!(memory(0, 3 * page).missing(), None);
        // A page that is unmapped here might soon be another test's.
        for hidden in [0, 2 * page] {
            // SAFETY: the pages are of the mapping above.
            unsafe { mprotect(base.wrapping_byte_add(hidden), page, MprotectFlags::empty()) }
                .unwrap();
        }
        let at = |offset: usize| Some(base as usize + offset);
        assert_eq!(memory(page, page).missing(), None, "to its last byte");
        assert_eq!(memory(page, page + 1).missing(), at(2 * page), "a page that nobody may read");
        assert_eq!(memory(page - 1, 2).missing(), at(page - 1), "a page before it");
        let all = memory(0, 3 * page);
        let found = |offset: usize, len: usize| all.missing_in(offset as u64, len as u64).unwrap();
        assert_eq!((found(page + 7, page - 7), found(page + 7, 0)), (None, None));
        assert_eq!(found(page + 7, 2 * page - 7), at(2 * page));
        assert_eq!(found(3, 2 * page), at(3));
        assert_eq!(memory(0, 0).missing(), None, "no bytes");
        // SAFETY: as above.
        let wrong = unsafe { Memory::from_raw(8 as *mut u8, u64::MAX) };
        assert_eq!(wrong.missing(), Some(8));
        assert_eq!(Memory::anonymous(1 << 20).unwrap().missing(), None, "that nobody has touched");
        // SAFETY: the mapping above.
        unsafe { munmap(base, 3 * page).unwrap() };
    }

    #[test]
    fn a_range_outside_is_refused_and_changes_nothing() {
        let memory = Memory::from(vec![7; 8]);
        for (offset, len) in [(8, 1), (0, 9), (u64::MAX, 2), (9, 0)] {
            let expected = OutOfRange { offset, len, size: 8 };
            assert_eq!(memory.write_at(offset, &vec![1; len as usize]), Err(expected));
        }
        let mut out = [0; 8];
        memory.read_at(0, &mut out).unwrap();
        assert_eq!(out, [7; 8]);
        assert_eq!(Memory::anonymous(0).unwrap().read_at(0, &mut []), Ok(()));
    }

    #[test]
    fn the_checksum_is_the_known_crc32c() {
        // Check value of CRC-32C for "123456789" (RFC 3720, appendix B.4 uses the same polynomial).
        let memory = Memory::from(b"xx123456789".to_vec());
        assert_eq!(memory.crc32c(0, 2, 9).unwrap(), 0xe306_9283);
        let half = memory.crc32c(0, 2, 4).unwrap();
        assert_eq!(memory.crc32c(half, 6, 5).unwrap(), 0xe306_9283);
    }
}
