//! Rings that two processes of one host have open: the sender's device copies a chunk to the ring, its head goes over
//! the flow, and the receiver's device copies the chunk from there.
//!
//! A ring belongs to one connection of a flow and is never reused for another: if the receiver still copies when the
//! connection is gone, the bytes that it reads stay as they are. The ring reuses a place only when the chunk there is
//! acknowledged, and the receiver acknowledges when its device is done.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use polyrail_gpu::Device;
use polyrail_proto::Time;
use polyrail_proto::budget::Stock;
use polyrail_proto::liveness::Retry;
use polyrail_proto::wire::SharedPlace;
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{Badge, Memory, ProvenProcess};

use crate::device::shared_memory::{Shown, open};
use crate::device::staging::{Ring, as_much_as_there_is};

/// The sender's end.
pub(crate) struct SharedRing {
    pub(crate) ring: Ring,
    stock: Arc<Stock>,
    _shown: Shown,
    /// Set until the ring is announced to the peer on this connection.
    unannounced: Option<SharedPlace>,
    is_pinned: bool,
    /// Frames of the flow, counted from 1, whose payload lies here, oldest first. Includes frames whose payload is also
    /// sent.
    frames: VecDeque<u64>,
}

/// The receiver's end.
pub(crate) struct PeersRing {
    pub(crate) place: SharedPlace,
    open: Option<Opened>,
    retry: Retry,
}

struct Opened {
    memory: Memory,
    is_pinned: bool,
}

impl SharedRing {
    /// Makes a ring, see [`Ring::new`]. The memory is pinned for `device`, if there is one. `badge` lets the peer,
    /// whose process is known, find out which process this one is.
    pub(crate) fn new(
        _peer: &ProvenProcess,
        badge: &Badge,
        device: Option<&dyn Device>,
        wanted: u64,
        least: u64,
        stock: &Arc<Stock>,
    ) -> Result<Self, String> {
        let make = |bytes| -> Result<(Ring, Shown), String> {
            let taken = stock.take(bytes, least).map_err(|short| short.why)?;
            let shown = device.map_or_else(|| Shown::new(bytes), |_| Shown::to_pin(bytes))?;
            let memory = pinned(device, shown.memory().clone().with(taken), stock)?;
            Ok((Ring::of(memory), shown))
        };
        let (ring, shown) = stock.insist(|| as_much_as_there_is(wanted, least, make))?;
        let (is_pinned, frames) = (device.is_some(), VecDeque::new());
        let (stock, unannounced) = (stock.clone(), Some(shown.place(badge)));
        Ok(Self { ring, stock, _shown: shown, unannounced, is_pinned, frames })
    }

    /// Pins the memory, if it isn't pinned yet.
    pub(crate) fn pin_for(&mut self, device: Option<&dyn Device>) -> Result<(), String> {
        if device.is_some() && !self.is_pinned {
            self.ring.replace(pinned(device, self.ring.memory().clone(), &self.stock)?);
            self.is_pinned = true;
        }
        Ok(())
    }

    /// Whether the memory is pinned, so that a device can copy to it.
    pub(crate) fn is_pinned(&self) -> bool {
        self.is_pinned
    }

    /// Notes that the payload of frame `frame` lies in the place taken last, and is sent with the frame as well: the
    /// peer need not know of the ring.
    pub(crate) fn keep(&mut self, frame: u64) {
        self.frames.push_back(frame);
    }

    /// Notes that the payload of frame `frame` lies in the place taken last. Returns the ring's place if it must be
    /// announced to the peer first.
    pub(crate) fn note(&mut self, frame: u64) -> Option<SharedPlace> {
        self.keep(frame);
        self.unannounced.take()
    }

    /// Releases the places of all frames up to this one, which the peer is done with.
    pub(crate) fn release(&mut self, frame: u64) {
        while self.frames.front().is_some_and(|oldest| *oldest <= frame) {
            self.frames.pop_front();
            self.ring.release();
        }
    }
}

impl PeersRing {
    pub(crate) fn new(place: SharedPlace) -> Self {
        Self { place, open: None, retry: Retry::default() }
    }

    /// Whether a device, or else the CPU, can copy chunks from the ring.
    pub(crate) fn is_open(&self, for_device: bool) -> bool {
        self.open.as_ref().is_some_and(|open| open.is_pinned || !for_device)
    }

    /// Opens the ring, unless that has failed a moment ago. Only the first failure returns an error. Takes
    /// milliseconds.
    pub(crate) fn open(
        &mut self,
        peer: Result<&Arc<ProvenProcess>, Cow<'static, str>>,
        device: Option<&dyn Device>,
        stock: &Arc<Stock>,
    ) -> Result<(), String> {
        if self.is_open(device.is_some()) || !self.retry.may_try(Time(monotonic_ns())) {
            return Ok(());
        }
        let peer = peer.map_err(Cow::into_owned);
        match peer.and_then(|peer| stock.insist(|| self.opened(peer, device, stock))) {
            Ok(open) => (self.open, self.retry) = (Some(open), Retry::default()),
            Err(why) => {
                self.open = None;
                if self.retry.fail(Time(monotonic_ns())) {
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    fn opened(
        &self,
        peer: &ProvenProcess,
        device: Option<&dyn Device>,
        stock: &Arc<Stock>,
    ) -> Result<Opened, String> {
        let memory = match self.memory() {
            Some(memory) => memory.clone(),
            None => {
                let bytes = self.place.bytes;
                let taken = stock.take(bytes, bytes).map_err(|short| short.why)?;
                open(peer, self.place)?.with(taken)
            }
        };
        Ok(Opened { memory: pinned(device, memory, stock)?, is_pinned: device.is_some() })
    }

    /// Releases the memory, from which no copy may be under way. It can be opened again. Returns whether it was open.
    pub(crate) fn close(&mut self) -> bool {
        self.open.take().is_some()
    }

    /// Returns the ring's memory, if it is open.
    pub(crate) fn memory(&self) -> Option<&Memory> {
        self.open.as_ref().map(|open| &open.memory)
    }

    /// Whether a chunk of `len` bytes at `at` lies within the ring.
    pub(crate) fn holds(&self, at: u64, len: u64) -> bool {
        at.checked_add(len).is_some_and(|end| end <= self.place.bytes)
    }
}

/// Returns the memory, pinned for the device, if there is one.
fn pinned(
    device: Option<&dyn Device>,
    memory: Memory,
    stock: &Arc<Stock>,
) -> Result<Memory, String> {
    let Some(device) = device else { return Ok(memory) };
    let pinned = device.pin(&memory);
    let pinned = pinned.map_err(|error| format!("shared memory can't be pinned: {error}"))?;
    Ok(pinned.with(stock.enter()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use polyrail_gpu::fake::FakeDevice;
    use polyrail_gpu::{CopyPlace, Queue};
    use polyrail_proto::budget::StagingBudget;

    use super::*;
    use crate::device::host_proof::neighbours;
    use crate::device::staging::Direction;

    const RING: u64 = 1 << 16;

    /// Stands for the peer: this process is both ends.
    fn this_process() -> Arc<ProvenProcess> {
        neighbours().1
    }

    fn ring_of(
        device: Option<&dyn Device>,
        wanted: u64,
        least: u64,
        stock: &Arc<Stock>,
    ) -> Result<SharedRing, String> {
        let (badge, process) = neighbours();
        SharedRing::new(&process, &badge, device, wanted, least, stock)
    }

    fn stock(direction: Direction) -> Arc<Stock> {
        StagingBudget::new(RING).stock(direction)
    }

    fn device() -> Arc<FakeDevice> {
        FakeDevice::new(0, Duration::ZERO, 1)
    }

    #[test]
    fn a_ring_counts_once_at_either_end_also_when_it_is_pinned_later() {
        let device = device();
        let (here, there) = (stock(Direction::Out), stock(Direction::In));
        let mut ring = ring_of(None, RING, RING, &here).unwrap();
        ring.pin_for(Some(&*device)).unwrap();
        let mut peers = PeersRing::new(ring.note(1).unwrap());
        peers.open(Ok(&this_process()), None, &there).unwrap();
        assert!(peers.is_open(false) && !peers.is_open(true));
        peers.open(Ok(&this_process()), Some(&*device), &there).unwrap();
        assert!(peers.is_open(true));
        for stock in [&here, &there] {
            assert!(stock.take(1, 1).is_err() && stock.holders() == 1, "it is all in use");
        }
        drop((ring, peers));
        for stock in [&here, &there] {
            assert!(stock.take(RING, RING).is_ok() && stock.holders() == 0, "it is all given back");
        }
    }

    #[test]
    fn a_ring_counts_until_the_last_copy_from_it_is_done() {
        let fake = device();
        let stock = stock(Direction::Out);
        let ring = ring_of(Some(&*fake), RING, RING, &stock).unwrap();
        let target = fake.memory(&[0; 64]);
        let device: Arc<dyn Device> = fake.clone();
        let mut queue = Queue::new(&device).unwrap();
        fake.hold(true);
        queue
            .push(CopyPlace::Device(&target, 0), CopyPlace::Host(ring.ring.memory(), 0), 64)
            .unwrap();
        let ticket = queue.begin().unwrap();
        drop(ring);
        assert!(stock.take(1, 1).is_err(), "a device still reads it");
        fake.hold(false);
        assert!(ticket.wait(Duration::from_secs(20)).unwrap());
        assert_eq!(queue.under_way(), 0);
        assert!(stock.take(RING, RING).is_ok());
    }

    #[test]
    fn a_ring_that_can_not_be_opened_is_left_alone_for_a_while() {
        let (device, theirs) = (device(), stock(Direction::In));
        let mut ring = ring_of(None, RING, RING, &stock(Direction::Out)).unwrap();
        let mut peers = PeersRing::new(ring.note(1).unwrap());
        let taken = theirs.take(1, 1).unwrap();
        let why = peers.open(Ok(&this_process()), Some(&*device), &theirs).unwrap_err();
        assert!(why.contains("staging_limit_bytes"), "{why}");
        drop(taken);
        peers.open(Ok(&this_process()), Some(&*device), &theirs).unwrap();
        assert!(peers.memory().is_none(), "it was tried a moment ago");
        // The ring is not retried for this long.
        std::thread::sleep(Retry::SHORTEST);
        peers.open(Ok(&this_process()), Some(&*device), &theirs).unwrap();
        assert!(peers.is_open(true));
    }
}
