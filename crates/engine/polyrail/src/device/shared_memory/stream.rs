//! A stream of bytes both ways between two processes of one host, through memory that both have open:
//! what a connection's socket does, without a system call for each message.
//!
//! Each direction is a ring of bytes with one writer and one reader. The connection stays: over it
//! each end wakes the other one when that sleeps, and learns of its end. `wake::stream_words` has the
//! protocol of sleeping.
//!
//! The memory's other owner may be hostile. Nothing here believes a position that can't be, and bytes
//! leave the ring by being copied, once, before anybody looks at them: so nobody can change what was
//! checked. There is no other state in the memory.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use polyrail_sys::{In, IoVecs, Memory, Out, SharedWord};

use crate::device::shared_memory::word;
use crate::wake::stream_words::StreamWords;
use polyrail_proto::budget::Taken;

/// Bytes of a ring: fifteen messages of 64 KiB. Where both ends share a CPU, each turn of one moves as much as fits; with a
/// quarter of this they moved a third of what sockets did.
const RING_BYTES: u64 = 1 << 20;
/// Who found a ring full goes on when so much of it is free: two ends that both poll would pass on a few
/// bytes at a time otherwise.
const ENOUGH_ROOM: u64 = RING_BYTES / 4;
/// The first line belongs to `offer`. Each end's words of a direction have a line of their own.
const WORDS_BYTES: u64 = 4096;
const LINE_BYTES: u64 = 128;
pub(super) const BYTES: u64 = WORDS_BYTES + 2 * RING_BYTES;

/// One end of a stream.
pub(crate) struct SharedStream {
    out: Direction,
    into: Direction,
    /// The socket may have something to say.
    looks: AtomicBool,
    /// There was no room for bytes that this end has.
    is_full: AtomicBool,
    /// Its place among the streams of its engine and peer.
    _place: Taken,
}

struct Direction {
    ring: Memory,
    written: SharedWord,
    /// The end that writes has given up the connection: what it wrote is not to be read any more.
    ended: SharedWord,
    writer_waits: SharedWord,
    read: SharedWord,
    reader_sleeps: SharedWord,
    /// How far this end is, and how far it has seen the other one. Whoever drives the flow uses them,
    /// one at a time.
    own: AtomicU64,
    other: AtomicU64,
}

/// Bytes that moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) bytes: usize,
    /// The other end sleeps, and has to be woken.
    pub(crate) wakes: bool,
}

impl SharedStream {
    /// The end that writes to the first of these rings and reads from the second.
    pub(super) fn new(
        memory: &Memory,
        [out, into]: [u64; 2],
        place: Taken,
    ) -> Result<Arc<Self>, String> {
        let (out, into) = (Direction::new(memory, out)?, Direction::new(memory, into)?);
        let (looks, is_full) = (AtomicBool::new(true), AtomicBool::new(false));
        Ok(Arc::new(Self { out, into, looks, is_full, _place: place }))
    }

    /// Writes what there is room for.
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
        copied.map_err(io::Error::other)?;
        own.store(written + bytes, Ordering::Relaxed);
        self.is_full.store(false, Ordering::Relaxed);
        Ok(Moved { bytes: bytes as usize, wakes: self.out.words().publish(written + bytes) })
    }

    /// Reads what there is, at most what there are places for.
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
        copied.map_err(io::Error::other)?;
        own.store(read + bytes, Ordering::Relaxed);
        let is_enough = there - bytes <= RING_BYTES - ENOUGH_ROOM;
        let wakes = self.into.words().give_back(read + bytes, is_enough);
        Ok(Moved { bytes: bytes as usize, wakes })
    }

    /// Whether there may be something to read.
    pub(crate) fn has_come(&self) -> bool {
        let Direction { written, own, ended, .. } = &self.into;
        let is_new = written.load(Ordering::Relaxed) != own.load(Ordering::Relaxed);
        is_new || ended.load(Ordering::Relaxed) != 0
    }

    /// Whether there may be room again for an end that found none.
    pub(crate) fn has_room(&self) -> bool {
        self.out.read.load(Ordering::Relaxed) >= self.enough_read()
    }

    /// Whether this end may sleep: whatever it waits for will wake it. An end that leaves alone what has
    /// come, for now, waits for room only.
    pub(crate) fn may_sleep(&self, leaves_alone: bool) -> bool {
        let is_full = self.is_full.load(Ordering::Relaxed);
        (!is_full || self.out.words().writer_may_wait(self.enough_read()))
            && (leaves_alone
                || self.into.words().reader_may_sleep(self.into.own.load(Ordering::Relaxed)))
    }

    /// This end is awake again.
    pub(crate) fn is_awake(&self) {
        self.into.words().reader_is_awake();
        self.out.words().writer_is_awake();
    }

    /// How far the other end has read when there is room enough for an end that found none.
    fn enough_read(&self) -> u64 {
        (self.out.own.load(Ordering::Relaxed) + ENOUGH_ROOM).saturating_sub(RING_BYTES)
    }

    /// Whether there was no room for bytes that this end has.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Bytes that the other end has read, as it says: no more than were written.
    pub(crate) fn read_by_other(&self) -> u64 {
        let Direction { read, own, .. } = &self.out;
        read.load(Ordering::Relaxed).min(own.load(Ordering::Relaxed))
    }

    /// This end has given up the connection, and sends again elsewhere what was not acknowledged: what
    /// is still in the ring is not to arrive later.
    pub(crate) fn abandon(&self) {
        self.out.ended.store(1, Ordering::Release);
    }

    /// The socket may have something to say: that the other end has ended, or wakes this one.
    pub(crate) fn note_event(&self) {
        self.looks.store(true, Ordering::Relaxed);
    }

    /// Whether the socket has to be looked at; from now on it has not.
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

    /// How far the end that reads is, which has not read more than was written, nor takes anything back.
    fn other_has_read(&self, written: u64) -> io::Result<u64> {
        let read = self.read.load(Ordering::Acquire);
        self.note_other(read, self.other.load(Ordering::Relaxed)..=written)
    }

    /// How far the end that writes is, which has not written more than there is room for, nor takes
    /// anything back.
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

/// Where in the ring a position lies, and how many of the bytes from there on come before its end.
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
