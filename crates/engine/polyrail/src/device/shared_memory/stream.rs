//! A stream of bytes both ways between two processes of one host, through memory that both have open. It replaces a
//! connection's socket, without a system call for each message.
//!
//! Each direction is a ring of bytes with one writer and one reader. The connection stays: over it each end wakes the
//! other from sleep and notices its end. `wake::stream_words` has the protocol of sleeping.
//!
//! The memory's other owner may be hostile. Impossible positions are refused, and bytes leave the ring by one copy
//! before they are looked at, so the other end can't change what was checked. There is no other state in the memory.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polyrail_sys::{In, IoVecs, Memory, Out, SharedWord};
use rustix::io::Errno;

use crate::device::shared_memory::word;
use crate::wake::stream_words::StreamWords;
use polyrail_proto::budget::Taken;

/// Bytes of a ring: fifteen messages of 64 KiB. If both ends share a CPU, each turn of one moves as much as fits; with
/// a quarter of this they moved a third of what sockets did.
const RING_BYTES: u64 = 1 << 20;
/// Free bytes at which an end that found the ring full goes on. Otherwise two ends that both poll would pass on a few
/// bytes at a time.
const ENOUGH_ROOM: u64 = RING_BYTES / 4;
/// The first line belongs to `offer`. Each end has its own line for its words of a direction.
const WORDS_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 128;
pub(super) const BYTES: u64 = WORDS_BYTES + 2 * RING_BYTES;

/// One end of a stream.
pub(crate) struct SharedStream {
    out: Direction,
    into: Direction,
    /// Set if the socket may have something to read.
    looks: AtomicBool,
    /// Set if there was no room for bytes that this end has.
    is_full: AtomicBool,
    /// The stream's place among those of its engine and peer.
    _place: Taken,
}

struct Direction {
    ring: Memory,
    written: SharedWord,
    /// Set by the writing end when it gives up the connection: its bytes must not be read any more.
    ended: SharedWord,
    writer_waits: SharedWord,
    read: SharedWord,
    reader_sleeps: SharedWord,
    /// Positions of this end and, as last seen, of the other one. Used by one thread at a time, the one that drives the
    /// flow.
    own: AtomicU64,
    other: AtomicU64,
}

/// Bytes that moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) bytes: usize,
    /// The other end sleeps and must be woken.
    pub(crate) wakes: bool,
}

impl SharedStream {
    /// Creates the end that writes to the first of these rings and reads from the second.
    pub(super) fn new(
        memory: &Memory,
        [out, into]: [u64; 2],
        place: Taken,
    ) -> Result<Arc<Self>, String> {
        let (out, into) = (Direction::new(memory, out)?, Direction::new(memory, into)?);
        let (looks, is_full) = (AtomicBool::new(true), AtomicBool::new(false));
        Ok(Arc::new(Self { out, into, looks, is_full, _place: place }))
    }

    /// Writes as many bytes as there is room for.
    pub(crate) fn send(&self, from: &IoVecs<'_, Out>) -> io::Result<Moved> {
        let Direction { ring, own, other, .. } = &self.out;
        let (written, wanted) = (own.load(Ordering::Relaxed), from.bytes() as u64);
        let mut room = RING_BYTES - (written - other.load(Ordering::Relaxed));
        if room < wanted {
            room = RING_BYTES - (written - self.out.other_has_read(written)?);
        }
        if room == 0 {
            self.is_full.store(true, Ordering::Relaxed);
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bytes = room.min(wanted);
        let (at, first) = part_before_the_end(written, bytes);
        let copied = from.copy_to(0, (ring, at), first);
        let copied = copied.and_then(|()| from.copy_to(first as usize, (ring, 0), bytes - first));
        copied.map_err(|_| no_memory())?;
        own.store(written + bytes, Ordering::Relaxed);
        self.is_full.store(false, Ordering::Relaxed);
        Ok(Moved { bytes: bytes as usize, wakes: self.out.words().publish(written + bytes) })
    }

    /// Reads the available bytes, at most as many as fit.
    pub(crate) fn receive(&self, into: &mut IoVecs<'_, In>) -> io::Result<Moved> {
        let Direction { ring, own, other, ended, .. } = &self.into;
        if ended.load(Ordering::Acquire) != 0 {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let (read, wanted) = (own.load(Ordering::Relaxed), into.bytes() as u64);
        let mut there = other.load(Ordering::Relaxed) - read;
        if there < wanted {
            there = self.into.other_has_written(read)? - read;
        }
        if there == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let bytes = there.min(wanted);
        let (at, first) = part_before_the_end(read, bytes);
        let copied = into.copy_from(0, (ring, at), first);
        let copied = copied.and_then(|()| into.copy_from(first as usize, (ring, 0), bytes - first));
        copied.map_err(|_| no_memory())?;
        own.store(read + bytes, Ordering::Relaxed);
        let is_enough = there - bytes <= RING_BYTES - ENOUGH_ROOM;
        let wakes = self.into.words().give_back(read + bytes, is_enough);
        Ok(Moved { bytes: bytes as usize, wakes })
    }

    /// Returns whether there may be something to read.
    pub(crate) fn has_come(&self) -> bool {
        let Direction { written, own, ended, .. } = &self.into;
        let is_new = written.load(Ordering::Relaxed) != own.load(Ordering::Relaxed);
        is_new || ended.load(Ordering::Relaxed) != 0
    }

    /// Returns whether there may be room again for an end that found none.
    pub(crate) fn has_room(&self) -> bool {
        self.out.read.load(Ordering::Relaxed) >= self.enough_read()
    }

    /// Returns whether this end may sleep: then every event that it waits for wakes it. With `leaves_alone`, the end
    /// does not read for now and waits for room only.
    pub(crate) fn may_sleep(&self, leaves_alone: bool) -> bool {
        let is_full = self.is_full.load(Ordering::Relaxed);
        (!is_full || self.out.words().writer_may_wait(self.enough_read()))
            && (leaves_alone
                || self.into.words().reader_may_sleep(self.into.own.load(Ordering::Relaxed)))
    }

    /// Marks this end as awake again.
    pub(crate) fn is_awake(&self) {
        self.into.words().reader_is_awake();
        self.out.words().writer_is_awake();
    }

    /// Position of the reading end at which there is enough room for an end that found none.
    fn enough_read(&self) -> u64 {
        (self.out.own.load(Ordering::Relaxed) + ENOUGH_ROOM).saturating_sub(RING_BYTES)
    }

    /// Returns whether there was no room for bytes that this end has.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Bytes that the other end says it has read; never more than were written.
    pub(crate) fn read_by_other(&self) -> u64 {
        let Direction { read, own, .. } = &self.out;
        read.load(Ordering::Relaxed).min(own.load(Ordering::Relaxed))
    }

    /// Gives up the connection. This end sends again elsewhere what was not acknowledged, so bytes still in the ring
    /// must not arrive later.
    pub(crate) fn abandon(&self) {
        self.out.ended.store(1, Ordering::Release);
    }

    /// Notes that the socket may have something to read: the other end has ended, or wakes this one.
    pub(crate) fn note_event(&self) {
        self.looks.store(true, Ordering::Relaxed);
    }

    /// Returns whether the socket must be read, and clears that.
    pub(crate) fn must_look(&self) -> bool {
        self.looks.load(Ordering::Relaxed) && self.looks.swap(false, Ordering::Relaxed)
    }
}

impl Direction {
    fn new(memory: &Memory, number: u64) -> Result<Self, String> {
        let line = |line: u64, at: u64| {
            word(memory, LINE_BYTES * (1 + 2 * number + line) + at * size_of::<u64>() as u64)
        };
        let ring = memory.part(WORDS_BYTES + number * RING_BYTES, RING_BYTES);
        Ok(Self {
            ring: ring.map_err(|error| error.to_string())?,
            written: line(0, 0)?,
            ended: line(0, 1)?,
            writer_waits: line(0, 2)?,
            read: line(1, 0)?,
            reader_sleeps: line(1, 1)?,
            own: AtomicU64::new(0),
            other: AtomicU64::new(0),
        })
    }

    fn words(&self) -> StreamWords<'_> {
        let Self { written, read, reader_sleeps, writer_waits, .. } = self;
        StreamWords { written, read, reader_sleeps, writer_waits }
    }

    /// Position of the reading end. It can't exceed the bytes written, and can't go back.
    fn other_has_read(&self, written: u64) -> io::Result<u64> {
        let read = self.read.load(Ordering::Acquire);
        self.note_other(read, self.other.load(Ordering::Relaxed)..=written)
    }

    /// Position of the writing end. It can't exceed the room, and can't go back.
    fn other_has_written(&self, read: u64) -> io::Result<u64> {
        let written = self.written.load(Ordering::Acquire);
        self.note_other(written, self.other.load(Ordering::Relaxed)..=read + RING_BYTES)
    }

    fn note_other(&self, at: u64, allowed: std::ops::RangeInclusive<u64>) -> io::Result<u64> {
        if !allowed.contains(&at) {
            let (first, last) = allowed.into_inner();
            let why = format!(
                "the peer's position in shared memory is {at}, allowed is {first} to {last}"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        self.other.store(at, Ordering::Relaxed);
        Ok(at)
    }
}

/// The kernel's error for bytes that no longer exist: the places were checked, so their file was cut off.
fn no_memory() -> io::Error {
    Errno::FAULT.into()
}

/// Returns a position's place in the ring, and how many of the bytes from there on come before the ring's end.
fn part_before_the_end(position: u64, bytes: u64) -> (u64, u64) {
    let at = position % RING_BYTES;
    (at, bytes.min(RING_BYTES - at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::shared_memory::offer::pair as streams;

    fn send(stream: &SharedStream, bytes: &[u8]) -> io::Result<Moved> {
        let mut from = IoVecs::<Out>::new();
        from.push_bytes(bytes);
        stream.send(&from)
    }

    fn receive(stream: &SharedStream, most: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; most];
        let mut into = IoVecs::<In>::new();
        into.push_buffer(&mut bytes);
        let moved = stream.receive(&mut into)?;
        bytes.truncate(moved.bytes);
        Ok(bytes)
    }

    fn is_would_block<T: std::fmt::Debug>(result: io::Result<T>) -> bool {
        result.unwrap_err().kind() == io::ErrorKind::WouldBlock
    }

    #[test]
    fn bytes_come_in_order_both_ways_however_they_are_cut() {
        let (one, two) = streams();
        for (from, to) in [(&one, &two), (&two, &one)] {
            let bytes: Vec<u8> = (0..3 * RING_BYTES).map(|at| (at * 31 / 7) as u8).collect();
            let (mut sent, mut got) = (0, Vec::new());
            let mut cut = 1;
            while got.len() < bytes.len() {
                let end = (sent + cut).min(bytes.len());
                match send(from, &bytes[sent..end]) {
                    Ok(moved) => sent += moved.bytes,
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
                cut = cut * 5 % 100_003;
                match receive(to, cut / 2 + 1) {
                    Ok(part) => got.extend(part),
                    Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
                }
            }
            assert!(got == bytes && is_would_block(receive(to, 1)));
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_who_sleeps_is_woken_once_there_is_room_enough() {
        let (one, two) = streams();
        let bytes = vec![7; RING_BYTES as usize + 1];
        assert_eq!(send(&one, &bytes).unwrap(), Moved { bytes: RING_BYTES as usize, wakes: false });
        assert!(is_would_block(send(&one, b"x")) && !one.has_room());
        assert!(one.may_sleep(false));
        let take = |bytes: u64| {
            let mut place = vec![0; bytes as usize];
            let mut into = IoVecs::<In>::new();
            into.push_buffer(&mut place);
            two.receive(&mut into).unwrap()
        };
        assert!(!take(3).wakes && !one.has_room(), "too little");
        assert!(take(ENOUGH_ROOM - 3).wakes && one.has_room());
        assert!(!one.may_sleep(false), "there is room for what it has");
        one.is_awake();
        assert_eq!(send(&one, &bytes).unwrap().bytes as u64, ENOUGH_ROOM);
        assert!(one.may_sleep(false), "all that it had is out");
        assert!(is_would_block(send(&one, b"x")));
        assert!(!take(RING_BYTES).wakes && one.has_room(), "it did not sleep");
        assert!(!one.may_sleep(true));
    }

    #[test]
    fn who_writes_is_told_once_that_the_other_end_sleeps() {
        let (one, two) = streams();
        assert!(two.may_sleep(false) && !two.has_come());
        assert!(send(&one, b"a").unwrap().wakes && !send(&one, b"b").unwrap().wakes);
        assert!(
            two.has_come() && !two.may_sleep(false) && two.may_sleep(true),
            "something is there"
        );
        assert!(!send(&one, b"c").unwrap().wakes, "so it does not sleep");
        assert_eq!(receive(&two, 9).unwrap(), b"abc");
        assert!(two.may_sleep(false));
        two.is_awake();
        assert!(!send(&one, b"d").unwrap().wakes);
    }

    #[test]
    fn positions_that_can_not_be_are_errors() {
        for wrong in [RING_BYTES + 4, 2, u64::MAX, 1 << 63] {
            let (one, two) = streams();
            send(&one, b"abc").unwrap();
            receive(&two, 3).unwrap();
            one.out.written.store(wrong, Ordering::Relaxed);
            let error = receive(&two, 3).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{wrong}");
        }
        for wrong in [4, u64::MAX, 1 << 63] {
            let (one, two) = streams();
            send(&one, b"abc").unwrap();
            two.into.read.store(wrong, Ordering::Relaxed);
            let error = send(&one, &vec![0; RING_BYTES as usize]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{wrong}");
        }
    }

    #[test]
    fn nothing_of_what_was_abandoned_is_read() {
        let (one, two) = streams();
        send(&one, b"abc").unwrap();
        assert_eq!(receive(&two, 1).unwrap(), b"a");
        one.abandon();
        assert!(two.has_come());
        assert_eq!(receive(&two, 1).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        send(&two, b"the other way").unwrap();
        assert_eq!(receive(&one, 9).unwrap(), b"the other");
    }
}
