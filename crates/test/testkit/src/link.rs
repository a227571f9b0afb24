//! One direction of a connection: a stream of bytes through a send buffer, a wire, and a receive buffer, as in a
//! kernel.

use std::collections::VecDeque;
use std::time::Duration;

use polyrail_proto::Time;

use crate::rng::Rng;
use crate::tap::Tap;

/// Maximum bytes of a packet.
const PACKET_BYTES: u64 = 8 << 10;

/// A stream of bytes from a writer to a reader. Order is kept and nothing is lost, but either may learn late, or never,
/// that the other is gone.
#[derive(Debug)]
pub struct Link {
    sending: VecDeque<u8>,
    transit: VecDeque<Packet>,
    received: VecDeque<u8>,
    send_capacity: usize,
    receive_capacity: usize,
    writer: Writer,
    /// A reset, which the reader sees after it has read the earlier bytes.
    reset: bool,
    reader_gone: bool,
    stalled_until: Time,
    delivered: u64,
    tap: Option<Tap>,
}

/// Way in which a writer left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// The send buffer is still delivered, then the stream ends.
    Finish,
    /// The send buffer is lost. Bytes on the wire arrive, then a reset.
    Abort,
    /// The send buffer is lost, and the reader never notices.
    Vanish,
}

/// End of a stream that a reader sees when there are no bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Finished,
    /// The connection was reset.
    Reset,
}

/// One direction of a rail, which all of its connections share.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// Bytes per second.
    pub rate: u64,
    /// Time on the wire.
    pub latency: Duration,
    pub up: bool,
    /// Time at which all queued bytes are sent.
    pub busy_until: Time,
}

/// Result of [`Link::advance`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Advance {
    /// The reader has new bytes or the end to read.
    pub readable: bool,
    /// The writer has more room.
    pub writable: bool,
    /// Time of the next event. `None` if it depends on the reader, the writer, or the rail.
    pub next: Option<Time>,
}

#[derive(Debug)]
struct Packet {
    arrives: Time,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Here,
    Left(Leave),
    /// The writer left, and the reader knows that.
    Told,
}

impl Link {
    /// Creates a link with buffers of these sizes, in bytes.
    pub fn new(send_capacity: usize, receive_capacity: usize) -> Self {
        Self {
            sending: VecDeque::new(),
            transit: VecDeque::new(),
            received: VecDeque::new(),
            send_capacity,
            receive_capacity,
            writer: Writer::Here,
            reset: false,
            reader_gone: false,
            stalled_until: Time::default(),
            delivered: 0,
            tap: None,
        }
    }

    /// Adds an attacker on its path.
    #[must_use]
    pub fn tapped(mut self, rng: Rng) -> Self {
        self.tap = Some(Tap::new(rng));
        self
    }

    /// The attacker on the path, if there is one.
    pub fn tap(&mut self) -> Option<&mut Tap> {
        self.tap.as_mut()
    }

    /// Bytes that [`Self::write`] would take. An attacker on the path may have put more into the buffer than it has
    /// room for.
    pub fn room(&self) -> usize {
        self.send_capacity.saturating_sub(self.sending.len())
    }

    /// Writes the beginning of `bytes` to the send buffer. Returns the number of bytes that fitted.
    pub fn write(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.room());
        if self.writer == Writer::Here {
            match &mut self.tap {
                None => self.sending.extend(&bytes[..taken]),
                Some(tap) => self.sending.extend(tap.pass(&bytes[..taken])),
            }
        }
        taken
    }

    /// Bytes that can be read now.
    pub fn readable(&self) -> usize {
        self.received.len()
    }

    /// Takes at most `max` bytes out of the receive buffer.
    pub fn read(&mut self, max: usize) -> Vec<u8> {
        let count = max.min(self.received.len());
        self.received.drain(..count).collect()
    }

    /// End of the stream for its reader, if it is over.
    pub fn ended(&self) -> Option<Ended> {
        if !self.received.is_empty() {
            None
        } else if self.reset {
            Some(Ended::Reset)
        } else if self.writer == Writer::Told {
            Some(Ended::Finished)
        } else {
            None
        }
    }

    /// Bytes that have reached the reader's side since the beginning, as a transport measures its own progress.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Closes the writer's end.
    pub fn leave(&mut self, how: Leave) {
        if self.writer == Writer::Here {
            self.writer = Writer::Left(how);
            if how != Leave::Finish {
                self.sending.clear();
            }
        }
    }

    /// Closes the reader's end: later bytes are dropped.
    pub fn reader_leaves(&mut self) {
        self.reader_gone = true;
        self.received.clear();
    }

    /// Tears the connection in the middle. Bytes in the receive buffer can still be read.
    pub fn tear(&mut self) {
        self.sending.clear();
        self.transit.clear();
        self.writer = Writer::Told;
        self.reset = true;
    }

    /// Stops the stream until `until`.
    pub fn stall(&mut self, until: Time) {
        self.stalled_until = self.stalled_until.max(until);
    }

    /// Moves all bytes that can move by `now`: from the wire to the reader, and from the writer to the wire.
    pub fn advance(&mut self, now: Time, lane: &mut Lane, rng: &mut Rng) -> Advance {
        let mut advance = Advance::default();
        if !lane.up {
            return advance;
        }
        if now < self.stalled_until {
            advance.next = Some(self.stalled_until);
            return advance;
        }
        while self.transit.front().is_some_and(|packet| packet.arrives <= now) {
            let Some(packet) = self.transit.pop_front() else { break };
            self.delivered += packet.bytes.len() as u64;
            if !self.reader_gone {
                self.received.extend(&packet.bytes);
                advance.readable = true;
            }
        }
        if !self.sending.is_empty() && self.window_open() && lane.busy_until <= now {
            self.send_packet(now, lane, rng);
            advance.writable = true;
        }
        self.tell_end(&mut advance);
        let arrival = self.transit.front().map(|packet| packet.arrives);
        let departure = (!self.sending.is_empty() && self.window_open()).then_some(lane.busy_until);
        advance.next = [arrival, departure].into_iter().flatten().min();
        advance
    }

    /// True if the receive buffer has room for more than the bytes on the wire.
    fn window_open(&self) -> bool {
        let wire: usize = self.transit.iter().map(|packet| packet.bytes.len()).sum();
        self.reader_gone || self.received.len() + wire < self.receive_capacity
    }

    fn send_packet(&mut self, now: Time, lane: &mut Lane, rng: &mut Rng) {
        let count = (rng.between(1, PACKET_BYTES) as usize).min(self.sending.len());
        let bytes: Vec<u8> = self.sending.drain(..count).collect();
        let nanos = (count as u64).saturating_mul(1_000_000_000) / lane.rate.max(1);
        lane.busy_until = now.after(Duration::from_nanos(nanos));
        let jitter = Duration::from_nanos(rng.below(lane.latency.as_nanos() as u64 / 2 + 1));
        let arrives = lane.busy_until.after(lane.latency + jitter);
        // Packets of one connection do not overtake each other.
        let arrives = self.transit.back().map_or(arrives, |last| arrives.max(last.arrives));
        self.transit.push_back(Packet { arrives, bytes });
    }

    fn tell_end(&mut self, advance: &mut Advance) {
        let Writer::Left(how) = self.writer else { return };
        if how != Leave::Vanish && self.sending.is_empty() && self.transit.is_empty() {
            self.writer = Writer::Told;
            self.reset = how == Leave::Abort;
            advance.readable = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Lane {
        let latency = Duration::from_micros(10);
        Lane { rate: 100_000_000, latency, up: true, busy_until: Time::default() }
    }

    /// Lets time pass until no event is left.
    fn settle(link: &mut Link, lane: &mut Lane, now: &mut Time) {
        let mut rng = Rng::new(1);
        while let Some(next) = link.advance(*now, lane, &mut rng).next {
            *now = next.max(*now);
        }
    }

    #[test]
    fn bytes_arrive_in_order_and_after_their_time() {
        let (mut link, mut lane, mut now) = (Link::new(1000, 1000), lane(), Time(0));
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(link.write(&bytes), 256);
        link.advance(now, &mut lane, &mut Rng::new(1));
        assert_eq!(link.readable(), 0);
        settle(&mut link, &mut lane, &mut now);
        assert!(now >= Time(10_000));
        assert_eq!(link.read(usize::MAX), bytes);
    }

    #[test]
    fn buffers_are_limits() {
        let (mut link, mut lane, mut now) = (Link::new(10_000, 100), lane(), Time(0));
        assert_eq!(link.write(&[7; 30_000]), 10_000);
        settle(&mut link, &mut lane, &mut now);
        let there = link.readable();
        assert!((100..10_000).contains(&there), "{there}: a reader that does not read stops it");
        let mut total = link.read(usize::MAX).len();
        while total < 10_000 {
            settle(&mut link, &mut lane, &mut now);
            total += link.read(usize::MAX).len();
        }
        assert_eq!((total, link.delivered()), (10_000, 10_000));
    }

    #[test]
    fn a_rail_that_is_down_keeps_what_is_on_the_wire_for_later() {
        let (mut link, mut lane, mut now) = (Link::new(1000, 1000), lane(), Time(0));
        link.write(b"late");
        link.advance(now, &mut lane, &mut Rng::new(1));
        lane.up = false;
        link.leave(Leave::Finish);
        now = Time(1_000_000_000);
        settle(&mut link, &mut lane, &mut now);
        assert_eq!((link.readable(), link.ended()), (0, None));
        lane.up = true;
        settle(&mut link, &mut lane, &mut now);
        assert_eq!(link.ended(), None, "bytes come before the end");
        assert_eq!(link.read(10), b"late");
        assert_eq!(link.ended(), Some(Ended::Finished));
    }

    #[test]
    fn bytes_in_the_receive_buffer_outlive_a_reset() {
        let (mut link, mut lane, mut now) = (Link::new(1000, 1000), lane(), Time(0));
        link.write(b"here");
        settle(&mut link, &mut lane, &mut now);
        link.write(b"lost");
        link.tear();
        assert_eq!((link.ended(), link.read(100)), (None, b"here".to_vec()));
        assert_eq!(link.ended(), Some(Ended::Reset));
        assert_eq!(link.write(b"unaware"), 7);
        settle(&mut link, &mut lane, &mut now);
        assert_eq!(link.readable(), 0, "nothing follows a gap");
    }

    #[test]
    fn one_who_vanishes_is_never_missed() {
        let (mut link, mut lane, mut now) = (Link::new(1000, 1000), lane(), Time(0));
        link.write(b"never");
        link.leave(Leave::Vanish);
        settle(&mut link, &mut lane, &mut now);
        assert_eq!((link.readable(), link.ended()), (0, None));
    }
}
