//! Copies between this process and another one by the kernel: `process_vm_readv` and `process_vm_writev`.

use std::io;
use std::marker::PhantomData;

use rustix::io::Errno;

use crate::foreign_memory::{ForeignMemory, WORD_BYTES, WORDS, piece_at};
use crate::guard_page::SCRATCH_OFFSET;
use crate::memory::{Memory, OutOfRange};
use crate::threads::monotonic_ns;

/// Maximum pieces of one call.
const PIECES: usize = 64;
/// Entries of one call: the pieces, and the guard before and after them.
const PLACES: usize = WORDS + PIECES + WORDS;

/// Maximum age of the guard check when a write begins. Far shorter than a process is usually stopped, and far longer
/// than the check takes.
const FRESH_NS: u64 = 20_000_000;

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the other process to this one.
    FromOther,
    /// From this process to the other one.
    ToOther,
}

/// Pieces copied by one system call between this process and memory of another one.
pub struct ForeignCopy<'a> {
    direction: Direction,
    memory: &'a ForeignMemory,
    /// Pieces, with room for the guard in front.
    local: [libc::iovec; PLACES],
    foreign: [libc::iovec; PLACES],
    count: usize,
    bytes: u64,
    /// Borrow of the local memory.
    borrowed: PhantomData<&'a Memory>,
}

impl<'a> ForeignCopy<'a> {
    /// Creates a copy without pieces.
    pub fn new(direction: Direction, memory: &'a ForeignMemory) -> Self {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        let (local, foreign) = ([none; PLACES], [none; PLACES]);
        Self { direction, memory, local, foreign, count: 0, bytes: 0, borrowed: PhantomData }
    }

    /// True if there is room for one more piece of that memory.
    pub fn takes(&self, memory: &ForeignMemory) -> bool {
        self.count < PIECES && std::ptr::eq(self.memory, memory)
    }

    /// Adds a piece. Fails if there is no room.
    pub fn push(
        &mut self,
        (local, local_offset): (&'a Memory, u64),
        foreign_offset: u64,
        len: u64,
    ) -> Result<(), OutOfRange> {
        let here = local.at(local_offset, len)?;
        let there = self.memory.address(foreign_offset, len)?;
        if self.count == PIECES {
            return Err(OutOfRange { offset: PIECES as u64, len: 1, size: PIECES as u64 });
        }
        let index = WORDS + self.count;
        // Both ranges were checked, so the length fits in `usize`.
        self.local[index] = libc::iovec { iov_base: here.cast(), iov_len: len as usize };
        self.foreign[index] = piece_at(there, len as usize);
        self.count += 1;
        self.bytes += len;
        Ok(())
    }

    /// Copies all pieces, if the other memory may be used.
    ///
    /// After an error some pieces are copied. In this process's memory they may be bytes that were no longer valid.
    /// `ESTALE`: the memory may not be used any more; `ESRCH`: the process has ended; `EFAULT`: the process has no such
    /// memory; `EPERM`: this process lacks the permission.
    pub fn run(self) -> io::Result<()> {
        match self.direction {
            Direction::FromOther => self.read(),
            Direction::ToOther => {
                // The process may have exec'ed another program, whose pages have no such words. Stopped processes stop
                // at system calls; reading the clock makes none, so a small difference means no stop.
                loop {
                    let before = monotonic_ns();
                    self.memory.check()?;
                    if monotonic_ns() - before < FRESH_NS {
                        return self.write();
                    }
                }
            }
        }
    }

    /// Reads the words, the pieces, and the words again.
    fn read(mut self) -> io::Result<()> {
        let mut found = [[0_u64; WORDS]; 2];
        let [before, after] = &mut found;
        let local =
            |word: &mut u64| libc::iovec { iov_base: (&raw mut *word).cast(), iov_len: WORD_BYTES };
        self.put_guard([before, after].map(|words| words.each_mut().map(local)), 0);
        self.call(libc::process_vm_readv, WORD_BYTES)?;
        found.into_iter().try_for_each(|words| self.memory.found(words))
    }

    /// Writes to the guard's pages, to the pieces, and to the pages again. The kernel keeps this order and stops at a
    /// closed page. So nothing is written after a page that was closed before the call, and a page closed during the
    /// call is reported. A stop of this process before the call makes no difference.
    fn write(mut self) -> io::Result<()> {
        let mut scratch = 0_u8;
        let byte = libc::iovec { iov_base: (&raw mut scratch).cast(), iov_len: 1 };
        self.put_guard([[byte; WORDS]; 2], SCRATCH_OFFSET);
        self.call(libc::process_vm_writev, 1)
    }

    /// Puts the guard before and after the pieces, at this offset from its words.
    fn put_guard(&mut self, local: [[libc::iovec; WORDS]; 2], offset: u64) {
        let end = WORDS + self.count;
        for (begin, local) in [0, end].into_iter().zip(local) {
            for (index, (place, local)) in self.memory.guard.places.iter().zip(local).enumerate() {
                self.local[begin + index] = local;
                self.foreign[begin + index] = piece_at(place.wrapping_add(offset), local.iov_len);
            }
        }
    }

    /// `guard` is the number of bytes in each guard piece.
    fn call(&self, call: Call, guard: usize) -> io::Result<()> {
        let number = self.memory.process().number.as_raw_pid();
        let count = (WORDS + self.count + WORDS) as libc::c_ulong;
        // SAFETY: the local pieces were checked against memories that are borrowed for as long as
        // this value lives, and that are only reached by copies; those of the guard live as long as the caller of
        // this. The foreign ones are addresses of another process (`open` refuses this one), which the kernel checks.
        let copied =
            unsafe { call(number, self.local.as_ptr(), count, self.foreign.as_ptr(), count, 0) };
        match u64::try_from(copied) {
            Ok(copied) if copied == self.bytes + (2 * WORDS * guard) as u64 => return Ok(()),
            // The kernel stops at the first page that is not mapped.
            Ok(_) => {}
            Err(_) => {
                let error = io::Error::last_os_error();
                if Errno::from_io_error(&error) != Some(Errno::FAULT) {
                    return Err(error);
                }
            }
        }
        self.memory.check()?;
        Err(Errno::FAULT.into())
    }
}

/// `process_vm_readv` or `process_vm_writev`.
type Call = unsafe extern "C" fn(
    libc::pid_t,
    *const libc::iovec,
    libc::c_ulong,
    *const libc::iovec,
    libc::c_ulong,
    libc::c_ulong,
) -> libc::ssize_t;

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use std::sync::Arc;

    use super::*;
    use crate::{Guard, GuardPage, ProvenProcess};

    const OWNER: &str = "POLYRAIL_TEST_OWNER";
    const BYTES: usize = 64;

    /// A separate process that has memory and its guard. It prints their addresses, closes the pages whose numbers it
    /// reads, and prints the content of its memory.
    #[test]
    #[ignore = "another test starts it in a process of its own"]
    fn owner() {
        if std::env::var_os(OWNER).is_none() {
            return;
        }
        let pages = [7, 8].map(|word| GuardPage::new(word).unwrap());
        let memory = Memory::from(vec![1; BYTES]);
        let [one, two] = pages.each_ref().map(GuardPage::place);
        println!("@@ {one} {two} {}", memory.address(0, 1).unwrap());
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if let Ok(number) = line.parse::<usize>() {
                pages[number].close().unwrap();
            }
            let mut bytes = [0; BYTES];
            memory.read_at(0, &mut bytes).unwrap();
            println!("@@ {}", bytes[0]);
        }
    }

    struct Owner {
        child: std::process::Child,
        output: BufReader<std::process::ChildStdout>,
        memory: ForeignMemory,
    }

    impl Owner {
        fn start() -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["foreign_copy::tests::owner", "--exact", "--ignored", "--nocapture"])
                .env(OWNER, "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let mut output = BufReader::new(child.stdout.take().unwrap());
            let [one, two, base] = said(&mut output)[..] else { panic!("three places") };
            let process = Arc::new(ProvenProcess::assumed(child.id()));
            let guard = Guard { places: [one, two], values: [7, 8] };
            let memory = process.memory(base, BYTES as u64, guard).unwrap();
            Self { child, output, memory }
        }

        /// Sends an order and returns the first byte of the owner's memory.
        fn ask(&mut self, order: &str) -> u64 {
            writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
            said(&mut self.output)[0]
        }
    }

    impl Drop for Owner {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn said(output: &mut impl BufRead) -> Vec<u64> {
        for line in output.lines().map_while(Result::ok) {
            if let Some((_, words)) = line.split_once("@@ ") {
                return words.split(' ').map(|word| word.parse().unwrap()).collect();
            }
        }
        panic!("it has ended")
    }

    /// Replays a process that is stopped between its check and the system call, and then continues.
    #[test]
    fn no_byte_lands_in_memory_whose_page_was_closed_after_the_look() {
        for closed in 0..WORDS {
            let mut owner = Owner::start();
            let memory = owner.memory.clone();
            let local = Memory::from(vec![2; BYTES]);
            let copy = |direction| {
                let mut copy = ForeignCopy::new(direction, &memory);
                copy.push((&local, 0), 0, BYTES as u64).unwrap();
                copy
            };
            copy(Direction::ToOther).run().unwrap();
            assert_eq!(owner.ask("look"), 2);
            local.write_at(0, &[3; BYTES]).unwrap();
            let late = copy(Direction::ToOther);
            memory.check().unwrap();
            assert_eq!(owner.ask(&closed.to_string()), 2);
            let stale = Some(Errno::STALE.raw_os_error());
            assert_eq!(late.write().unwrap_err().raw_os_error(), stale, "page {closed}");
            assert_eq!(owner.ask("look"), 2, "a late copy landed");
            for direction in [Direction::ToOther, Direction::FromOther] {
                let error = copy(direction).run().unwrap_err();
                assert_eq!(error.raw_os_error(), stale, "{direction:?}");
            }
        }
    }
}
