//! How two engines of one host agree on a stream: who connects offers memory in its hello, and the other end
//! opens it and says so in the memory, before it replies.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use polyrail_proto::wire::SharedPlace;
use polyrail_sys::{SharedMemory, SharedWord};

use crate::base::places::{Place, Places};
use crate::device::shared_page::{create, open, place_of};
use crate::device::shared_stream::{BYTES, SharedStream, word};

/// Where the word stands that says what became of the offer.
const STATE_AT: u64 = 0;
const OFFERED: u64 = 0;
const OPENED: u64 = 1;
const WITHDRAWN: u64 = 2;
/// Why there is no stream where the other end did not want one.
const NOT_OPENED: &str = "the peer did not open the memory that was offered, and its log says why";
/// Streams of an engine, 64 MiB of memory: further connections use their sockets.
const STREAMS_MAX: usize = 32;

/// What became of it with a peer when a connection was made last, for people.
#[derive(Default)]
pub(crate) struct StreamNews(Mutex<Option<Result<(), Cow<'static, str>>>>);

/// A stream that the other end may open.
pub(crate) struct StreamOffer {
    shared: SharedMemory,
    state: SharedWord,
    place: Place,
}

fn take(places: &Places) -> Result<Place, String> {
    let full = || format!("{STREAMS_MAX} connections have shared memory already");
    places.take(STREAMS_MAX).ok_or_else(full)
}

impl StreamOffer {
    pub(crate) fn new(places: &Places) -> Result<Self, String> {
        let place = take(places)?;
        let shared = create(BYTES)?;
        // Running out of memory later would kill the process.
        shared.populate().map_err(|error| format!("{BYTES} bytes: {error}"))?;
        let state = word(shared.memory(), STATE_AT)?;
        Ok(Self { shared, state, place })
    }

    /// How the other end finds it.
    pub(crate) fn place(&self) -> SharedPlace {
        place_of(&self.shared)
    }

    /// The other end has answered: the stream, if it has opened it before. It can't any more.
    pub(crate) fn conclude(self) -> Result<Arc<SharedStream>, Cow<'static, str>> {
        match self.state.swap(WITHDRAWN, Ordering::AcqRel) {
            OPENED => Ok(SharedStream::new(self.shared.memory(), [0, 1], self.place)?),
            _ => Err(NOT_OPENED.into()),
        }
    }
}

impl StreamNews {
    /// Notes it, and hands the stream on.
    pub(crate) fn note(
        &self,
        made: Result<Arc<SharedStream>, Cow<'static, str>>,
    ) -> Option<Arc<SharedStream>> {
        let news = made.as_ref().map(drop).map_err(Cow::clone);
        *self.0.lock() = Some(news);
        made.ok()
    }

    /// The last, once there was one.
    pub(crate) fn last(&self) -> Option<Result<(), Cow<'static, str>>> {
        self.0.lock().clone()
    }
}

/// Whether both ends are meant to be in the same place. That the host is the same is not enough: a container
/// or a lab is another place, whose links are meant.
pub(crate) fn are_in_one_place(from: IpAddr, to: IpAddr) -> Result<(), &'static str> {
    let is_one = from == to || from.is_loopback() && to.is_loopback();
    if is_one { Ok(()) } else { Err("both ends have not the same address") }
}

/// Opens what the other end offers.
pub(crate) fn accept(place: SharedPlace, places: &Places) -> Result<Arc<SharedStream>, String> {
    if place.bytes != BYTES {
        return Err(format!("{} bytes were offered, allowed is {BYTES}", place.bytes));
    }
    let taken = take(places)?;
    let memory = open(place)?;
    let stream = SharedStream::new(&memory, [1, 0], taken)?;
    let state = word(&memory, STATE_AT)?;
    match state.compare_exchange(OFFERED, OPENED, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(stream),
        Err(_) => Err("it was withdrawn".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_opened_in_time_can_not_be_opened() {
        let offer = StreamOffer::new(&Places::default()).unwrap();
        let (place, shared) = (offer.place(), offer.shared.memory().clone());
        let wrong = SharedPlace { bytes: place.bytes - 1, ..place };
        assert!(accept(wrong, &Places::default()).is_err());
        let late = word(&shared, STATE_AT).unwrap();
        assert_eq!(offer.conclude().map(drop).unwrap_err(), NOT_OPENED);
        assert_eq!(late.load(Ordering::Relaxed), WITHDRAWN);
        assert!(accept(place, &Places::default()).is_err(), "its file is closed");
    }

    #[test]
    fn an_engine_has_so_many_streams_and_gets_places_back() {
        let places = Places::default();
        let offers: Vec<_> = (0..STREAMS_MAX).map(|_| StreamOffer::new(&places)).collect();
        assert!(offers.iter().all(Result::is_ok));
        let why = StreamOffer::new(&places).map(drop).unwrap_err();
        assert!(why.contains("32 connections"), "{why}");
        drop(offers);
        assert!(StreamOffer::new(&places).is_ok());
    }
}
