//! Agreement of two engines of one host on a stream: the connecting end offers memory in its hello. The other end opens
//! it and notes that in the memory, before it replies.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use polyrail_proto::Time;
use polyrail_proto::budget::{Budget, PeerShare, Taken};
use polyrail_proto::liveness::Retry;
use polyrail_proto::wire::SharedPlace;
use polyrail_sys::threads::monotonic_ns;
use polyrail_sys::{Badge, ProvenProcess, SharedWord};

#[cfg(test)]
use crate::device::host_proof::neighbours;
use crate::device::shared_memory::stream::{BYTES, SharedStream};
use crate::device::shared_memory::{Shown, open, word};

/// Offset of the word that holds the state of the offer.
const STATE_AT: u64 = 0;
/// Offset of the number that identifies the layout of the memory and the sealing of its records.
const LAYOUT_AT: u64 = 8;
/// Number of this layout. Any change to the places or meaning of words and rings, or to the sealing of records, takes
/// the next.
const LAYOUT: u64 = 2;
const OFFERED: u64 = 0;
const OPENED: u64 = 1;
const WITHDRAWN: u64 = 2;
/// Error when the other end did not open the stream.
const NOT_OPENED: &str = "the peer did not open the memory that was offered, and its log says why";

/// The streams with one peer.
pub(crate) struct PeerStreams {
    /// Among those of all peers.
    share: Arc<PeerShare>,
    news: Mutex<News>,
}

#[derive(Default)]
struct News {
    /// Outcome for the connection that was made last, for display.
    last: Option<Result<(), Cow<'static, str>>>,
    /// Pause in the offers after the peer did not open one.
    retry: Retry,
}

/// A stream that the other end may open.
pub(crate) struct StreamOffer {
    shown: Shown,
    place: SharedPlace,
    state: SharedWord,
    /// The place it takes among the streams of its engine and peer.
    taken: Taken,
}

impl StreamOffer {
    /// Makes an offer for a connection to the peer, whose process is `_process`. `badge` lets the peer find out which
    /// process this one is.
    pub(crate) fn new(
        _process: &ProvenProcess,
        badge: &Badge,
        peer: &PeerStreams,
    ) -> Result<Self, Cow<'static, str>> {
        if !peer.news.lock().retry.may_try(Time(monotonic_ns())) {
            return Err(NOT_OPENED.into());
        }
        let taken = peer.share.take_stream()?;
        let shown = Shown::new(BYTES)?;
        word(shown.memory(), LAYOUT_AT)?.store(LAYOUT, Ordering::Relaxed);
        let state = word(shown.memory(), STATE_AT)?;
        Ok(Self { place: shown.place(badge), shown, state, taken })
    }

    /// Returns how the other end finds the memory.
    pub(crate) fn place(&self) -> SharedPlace {
        self.place
    }

    /// Concludes the offer after the other end's answer: returns the stream if the other end has opened it, and
    /// withdraws the offer otherwise.
    fn conclude(self) -> Result<Arc<SharedStream>, Cow<'static, str>> {
        match self.state.swap(WITHDRAWN, Ordering::AcqRel) {
            OPENED => Ok(SharedStream::new(self.shown.memory(), [0, 1], self.taken)?),
            _ => Err(NOT_OPENED.into()),
        }
    }
}

impl PeerStreams {
    /// Makes the streams of a peer, within the budget of all peers.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self { share: budget.share(), news: Mutex::default() }
    }

    /// Concludes the offer after the peer's answer. Returns the stream, if the peer has opened it.
    pub(crate) fn conclude(
        &self,
        offer: Result<StreamOffer, Cow<'static, str>>,
    ) -> Option<Arc<SharedStream>> {
        let made = offer.map(StreamOffer::conclude);
        if let Ok(answered) = &made {
            let retry = &mut self.news.lock().retry;
            match answered {
                Ok(_) => *retry = Retry::default(),
                Err(_) => drop(retry.fail(Time(monotonic_ns()))),
            }
        }
        self.note(made.and_then(|made| made))
    }

    /// Notes the outcome, and passes the stream on.
    pub(crate) fn note(
        &self,
        made: Result<Arc<SharedStream>, Cow<'static, str>>,
    ) -> Option<Arc<SharedStream>> {
        self.news.lock().last = Some(made.as_ref().map(drop).map_err(Cow::clone));
        made.ok()
    }

    /// Returns the last outcome, once there was one.
    pub(crate) fn last(&self) -> Option<Result<(), Cow<'static, str>>> {
        self.news.lock().last.clone()
    }
}

/// Whether both ends are meant to be in the same place. The same host is not enough: a container or a lab is another
/// place, whose links are meant to be used.
pub(crate) fn are_in_one_place(from: IpAddr, to: IpAddr) -> Result<(), &'static str> {
    let is_one = from == to || from.is_loopback() && to.is_loopback();
    if is_one { Ok(()) } else { Err("both ends have not the same address") }
}

/// Opens what the peer offers for a connection; `process` is the peer's.
pub(crate) fn accept(
    process: &ProvenProcess,
    place: SharedPlace,
    peer: &PeerStreams,
) -> Result<Arc<SharedStream>, String> {
    if place.bytes != BYTES {
        return Err(format!("{} bytes were offered, allowed is {BYTES}", place.bytes));
    }
    let taken = peer.share.take_stream()?;
    let memory = open(process, place)?;
    let layout = word(&memory, LAYOUT_AT)?.load(Ordering::Acquire);
    if layout != LAYOUT {
        return Err(format!(
            "the memory that the peer offered has layout {layout}, this engine's is {LAYOUT}: both need the same version"
        ));
    }
    let stream = SharedStream::new(&memory, [1, 0], taken)?;
    let state = word(&memory, STATE_AT)?;
    match state.compare_exchange(OFFERED, OPENED, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(stream),
        Err(_) => Err("it was withdrawn".to_owned()),
    }
}

/// Returns both ends of a stream.
#[cfg(test)]
pub(crate) fn pair() -> (Arc<SharedStream>, Arc<SharedStream>) {
    let peer = PeerStreams::new(&Budget::new());
    let (badge, process) = neighbours();
    let offer = StreamOffer::new(&process, &badge, &peer).unwrap();
    let there = accept(&process, offer.place(), &peer).unwrap();
    (offer.conclude().unwrap(), there)
}

#[cfg(test)]
mod tests {
    use polyrail_proto::budget::{STREAMS_MAX, STREAMS_OF_A_PEER_MAX};

    use super::*;

    fn offer(peer: &PeerStreams) -> Result<StreamOffer, Cow<'static, str>> {
        let (badge, process) = neighbours();
        StreamOffer::new(&process, &badge, peer)
    }

    fn accept(place: SharedPlace, peer: &PeerStreams) -> Result<Arc<SharedStream>, String> {
        super::accept(&neighbours().1, place, peer)
    }

    fn why<T>(result: Result<T, impl Into<Cow<'static, str>>>) -> Cow<'static, str> {
        result.map(drop).map_err(Into::into).unwrap_err()
    }

    #[test]
    fn what_nobody_opened_in_time_can_not_be_opened() {
        let peer = PeerStreams::new(&Budget::new());
        let offer = offer(&peer).unwrap();
        let (place, shared) = (offer.place(), offer.shown.memory().clone());
        let wrong = SharedPlace { bytes: place.bytes - 1, ..place };
        assert!(accept(wrong, &peer).is_err());
        let late = word(&shared, STATE_AT).unwrap();
        assert_eq!(why(offer.conclude()), NOT_OPENED);
        assert_eq!(late.load(Ordering::Relaxed), WITHDRAWN);
        assert!(accept(place, &peer).is_err(), "its file is closed");
    }

    #[test]
    fn memory_of_another_layout_is_not_opened() {
        let peer = PeerStreams::new(&Budget::new());
        let offer = offer(&peer).unwrap();
        let layout = word(offer.shown.memory(), LAYOUT_AT).unwrap();
        layout.store(LAYOUT + 1, Ordering::Relaxed);
        let why_not = why(accept(offer.place(), &peer));
        assert!(why_not.contains("has layout 3, this engine's is 2"), "{why_not}");
        assert_eq!(offer.state.load(Ordering::Relaxed), OFFERED);
        layout.store(LAYOUT, Ordering::Relaxed);
        assert!(accept(offer.place(), &peer).is_ok());
    }

    #[test]
    fn a_peer_has_a_share_of_the_streams_of_an_engine_which_gets_places_back() {
        let budget = Budget::new();
        let peers: Vec<_> = (0..9).map(|_| PeerStreams::new(&budget)).collect();
        let all = |peer| -> Vec<_> { std::iter::from_fn(|| offer(peer).ok()).collect() };
        let mut offers = all(&peers[0]);
        assert_eq!(offers.len() as u64, STREAMS_OF_A_PEER_MAX);
        let why_not = why(offer(&peers[0]));
        assert!(why_not.contains("8 connections with the peer have"), "{why_not}");
        let numbers: Vec<usize> = peers[1..8]
            .iter()
            .map(|peer| {
                let of_peer = all(peer);
                let number = of_peer.len();
                offers.extend(of_peer);
                number
            })
            .collect();
        assert_eq!(numbers, [8, 8, 4, 1, 1, 1, 1], "the last ones have one each");
        assert_eq!(offers.len() as u64, STREAMS_MAX);
        let last = &peers[8];
        let why_not = why(offer(last));
        assert!(why_not.contains("32 connections have"), "{why_not}");
        drop(offers);
        assert!(offer(last).is_ok() && offer(&peers[0]).is_ok());
    }

    #[test]
    fn a_peer_that_opens_nothing_is_offered_nothing_for_a_while() {
        let peer = PeerStreams::new(&Budget::new());
        let offers = [offer(&peer), offer(&peer)];
        for offered in offers {
            assert!(peer.conclude(offered).is_none());
        }
        assert_eq!(why(offer(&peer)), NOT_OPENED);
        assert_eq!(peer.last(), Some(Err(NOT_OPENED.into())));
        assert!(offer(&PeerStreams::new(&Budget::new())).is_ok(), "another peer");
        // A later offer, after the pause (skipped here), which the peer opens.
        peer.news.lock().retry = Retry::default();
        let offered = offer(&peer);
        assert!(accept(offered.as_ref().unwrap().place(), &peer).is_ok());
        assert!(peer.conclude(offered).is_some());
        assert!(offer(&peer).is_ok() && peer.last() == Some(Ok(())));
    }
}
