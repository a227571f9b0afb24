//! One system call over many pieces of memory, or one copy.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::memory::{FileMap, Memory, OutOfRange, Place, copy};

/// The most pieces of one call: a chunk of 256 places, its head, and the head of the next one.
pub const MAX_IO_PIECES: usize = 320;

/// Direction of a list of places that are read and sent.
pub enum Out {}
/// Direction of a list of places that are filled.
pub enum In {}

/// Places for one vectored call of one direction. Lives on the stack; costs nothing to make.
///
/// [`IoVecs<Out>`] is for [`send`], [`IoVecs<In>`] for [`receive`].
pub struct IoVecs<'a, Direction> {
    entries: [MaybeUninit<libc::iovec>; MAX_IO_PIECES],
    /// The places that are bytes of a file, by their number, in order.
    files: Vec<(usize, &'a FileMap)>,
    used: usize,
    bytes: usize,
    _borrows: PhantomData<(&'a mut [u8], Direction)>,
}

impl<D> Default for IoVecs<'_, D> {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a, D> IoVecs<'a, D> {
    /// No place yet.
    pub fn new() -> Self {
        Self {
            entries: [const { MaybeUninit::uninit() }; MAX_IO_PIECES],
            files: Vec::new(),
            used: 0,
            bytes: 0,
            _borrows: PhantomData,
        }
    }

    /// Whether no further place fits.
    pub fn is_full(&self) -> bool {
        self.used == MAX_IO_PIECES
    }

    /// Bytes of all places.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a range of memory, to be read or written. It is the caller's duty that nothing relies
    /// on the bytes while the call runs; the range itself is checked.
    pub fn push_memory(
        &mut self,
        memory: &'a Memory,
        offset: u64,
        len: u64,
    ) -> Result<(), OutOfRange> {
        let Place { at, file } = memory.place(offset, len)?;
        self.files.extend(file.map(|file| (self.used, file)));
        self.push(at, len as usize);
        Ok(())
    }

    /// The parts of all places from the `skip`th byte on, up to `most` bytes, in order.
    fn parts(&self, skip: usize, most: usize) -> impl Iterator<Item = (Place<'a>, usize)> + '_ {
        let (mut skip, mut left) = (skip, most);
        self.entries[..self.used].iter().enumerate().filter_map(move |(index, entry)| {
            // SAFETY: the entries are initialised up to `used`.
            let place = unsafe { entry.assume_init() };
            let passed = skip.min(place.iov_len);
            skip -= passed;
            let len = (place.iov_len - passed).min(left);
            left -= len;
            // SAFETY: `passed` is at most the length of the place.
            let base = unsafe { place.iov_base.cast::<u8>().add(passed) };
            let found = self.files.binary_search_by_key(&index, |(index, _)| *index);
            let file = found.ok().map(|found| self.files[found].1);
            (len > 0).then_some((Place { at: base, file }, len))
        })
    }

    fn push(&mut self, base: *mut u8, len: usize) {
        assert!(self.used < MAX_IO_PIECES, "callers ask is_full first");
        self.entries[self.used].write(libc::iovec { iov_base: base.cast(), iov_len: len });
        self.used += 1;
        self.bytes += len;
    }

    /// The call for one place, or the one for many. By number: the C library's wrappers are
    /// cancellation points, which cost two more atomic operations.
    fn call(
        &mut self,
        socket: BorrowedFd<'_>,
        single: libc::c_long,
        many: libc::c_long,
        flags: libc::c_int,
    ) -> io::Result<usize> {
        let socket = socket.as_raw_fd();
        let moved = if self.used == 1 {
            // SAFETY: the first entry is initialised, since one is used.
            let place = unsafe { self.entries[0].assume_init() };
            let nowhere = std::ptr::null_mut::<libc::c_void>();
            // SAFETY: `send` only reads and `receive` only writes within the place, which is memory
            // that `self` borrows, or a `Memory`, which is borrowed and may change at any time.
            unsafe {
                libc::syscall(
                    single,
                    socket,
                    place.iov_base,
                    place.iov_len,
                    flags,
                    nowhere,
                    nowhere,
                )
            }
        } else {
            // SAFETY: all-zero is the documented empty value of msghdr.
            let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
            message.msg_iov = self.entries.as_mut_ptr().cast();
            // A size in glibc, an int and padding in musl, and the same to the kernel.
            message.msg_iovlen = self.used as _;
            // SAFETY: the entries are initialised up to `used`, and each is as above.
            unsafe { libc::syscall(many, socket, &raw mut message, flags) }
        };
        usize::try_from(moved).map_err(|_| io::Error::last_os_error())
    }
}

impl<'a> IoVecs<'a, Out> {
    /// Adds bytes to be sent.
    pub fn push_bytes(&mut self, bytes: &'a [u8]) {
        // The list can only be sent, and sending reads.
        self.push(bytes.as_ptr().cast_mut(), bytes.len());
    }

    /// Copies the bytes of all places from the `skip`th on to `to`, up to `most` of them.
    ///
    /// # Errors
    /// The range is not inside the memory; or one of a file is not there any more, which its size of 0 says.
    pub fn copy_to(
        &self,
        skip: usize,
        (to, offset): (&Memory, u64),
        most: u64,
    ) -> Result<(), OutOfRange> {
        let cut = OutOfRange { offset, len: most, size: 0 };
        let mut to = to.place(offset, most)?;
        for (from, len) in self.parts(skip, most as usize) {
            // SAFETY: the part is readable, as above, and all parts together have at most the `most`
            // bytes that `place` has checked. Both sides are only reached by copies, or `from` is
            // borrowed; they may overlap.
            unsafe {
                copy(from, to, len).map_err(|_| cut)?;
                to = to.plus(len);
            }
        }
        Ok(())
    }
}

impl<'a> IoVecs<'a, In> {
    /// Adds a buffer to be filled.
    pub fn push_buffer(&mut self, buffer: &'a mut [u8]) {
        self.push(buffer.as_mut_ptr(), buffer.len());
    }

    /// Fills all places from the `skip`th byte on with up to `most` bytes of `from`.
    ///
    /// # Errors
    /// As for [`IoVecs::copy_to`].
    pub fn copy_from(
        &mut self,
        skip: usize,
        (from, offset): (&Memory, u64),
        most: u64,
    ) -> Result<(), OutOfRange> {
        let cut = OutOfRange { offset, len: most, size: 0 };
        let mut from = from.place(offset, most)?;
        for (to, len) in self.parts(skip, most as usize) {
            // SAFETY: the part is writable, as above, and all parts together have at most the `most`
            // bytes that `place` has checked. Both sides are only reached by copies, or `to` is
            // exclusively borrowed; they may overlap.
            unsafe {
                copy(from, to, len).map_err(|_| cut)?;
                from = from.plus(len);
            }
        }
        Ok(())
    }
}

/// Sends from the places, in order, without blocking. Returns how many bytes the kernel took.
///
/// A connection that is gone is an error, never a signal.
pub fn send(socket: BorrowedFd<'_>, from: &mut IoVecs<'_, Out>) -> io::Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    from.call(socket, libc::SYS_sendto, libc::SYS_sendmsg, flags)
}

/// Fills the places, in order, without blocking. Returns how many bytes came; 0 is the end of the
/// stream (if any place was given).
pub fn receive(socket: BorrowedFd<'_>, into: &mut IoVecs<'_, In>) -> io::Result<usize> {
    into.call(socket, libc::SYS_recvfrom, libc::SYS_recvmsg, libc::MSG_DONTWAIT)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn one_call_gathers_and_one_scatters() {
        let (a, b) = UnixStream::pair().unwrap();
        let source = Memory::from(b"....payload....".to_vec());
        let mut out = IoVecs::<Out>::new();
        out.push_bytes(b"head:");
        out.push_memory(&source, 4, 7).unwrap();
        assert_eq!((out.bytes(), send(a.as_fd(), &mut out).unwrap()), (12, 12));

        let target = Memory::from(vec![0; 16]);
        let (mut head, mut tail) = ([0; 5], [0; 8]);
        let mut into = IoVecs::<In>::new();
        into.push_buffer(&mut head);
        into.push_memory(&target, 2, 3).unwrap();
        into.push_buffer(&mut tail);
        assert_eq!(receive(b.as_fd(), &mut into).unwrap(), 12);
        let mut landed = [0; 7];
        target.read_at(0, &mut landed).unwrap();
        assert_eq!((&head, &landed, &tail[..4]), (b"head:", b"\0\0pay\0\0", &b"load"[..]));
    }

    #[test]
    fn places_are_copied_from_and_to_in_parts_and_never_beyond_the_memory() {
        let (source, ring) = (Memory::from(b"..pay..".to_vec()), Memory::from(vec![b'-'; 8]));
        let mut out = IoVecs::<Out>::new();
        out.push_bytes(b"head");
        out.push_memory(&source, 2, 3).unwrap();
        out.push_bytes(b"end");
        out.copy_to(2, (&ring, 1), 4).unwrap();
        out.copy_to(6, (&ring, 5), 3).unwrap();
        let mut inside = [0; 8];
        ring.read_at(0, &mut inside).unwrap();
        assert_eq!(&inside, b"-adpayen");
        assert!(out.copy_to(0, (&ring, 6), 3).is_err());

        let target = Memory::from(vec![0; 4]);
        let (mut head, mut tail) = ([0; 3], [0; 4]);
        let mut into = IoVecs::<In>::new();
        into.push_buffer(&mut head);
        into.push_memory(&target, 1, 3).unwrap();
        into.push_buffer(&mut tail);
        into.copy_from(0, (&ring, 1), 4).unwrap();
        into.copy_from(4, (&ring, 5), 3).unwrap();
        assert!(into.copy_from(0, (&ring, 8), 1).is_err());
        let mut landed = [0; 4];
        target.read_at(0, &mut landed).unwrap();
        assert_eq!((&head, &landed, &tail), (b"adp", b"\0aye", b"n\0\0\0"));
    }

    #[test]
    fn nothing_to_read_is_would_block_and_a_closed_peer_is_an_error_or_the_end() {
        let (a, b) = UnixStream::pair().unwrap();
        let mut buffer = [0; 4];
        let mut into = IoVecs::<In>::new();
        into.push_buffer(&mut buffer);
        assert_eq!(receive(b.as_fd(), &mut into).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(a);
        let mut into = IoVecs::<In>::new();
        into.push_buffer(&mut buffer);
        assert_eq!(receive(b.as_fd(), &mut into).unwrap(), 0);
        let mut out = IoVecs::<Out>::new();
        out.push_bytes(b"x");
        assert_eq!(send(b.as_fd(), &mut out).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
