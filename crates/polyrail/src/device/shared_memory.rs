//! Whether this process and a peer's can open each other's memory, which is found out by trying.
//!
//! Each engine has a page that it shows: the peer opens it, has its device pin it, and shows its own
//! in turn. Which of the many reasons there are against it holds (another user, a container that
//! numbers processes for itself, a device that pins no such memory) is known only by trying. Some
//! pass, as a lack of pinned memory does: so it is tried again, after a pause that grows.

use std::borrow::Cow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use polyrail_config::PathChoice;
use polyrail_proto::Time;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::message::Message;
use polyrail_proto::wire::SharedPlace;
use polyrail_sys::SharedMemory;
use polyrail_sys::threads::monotonic_ns;

use crate::base::driving::is_driving;
use crate::engine::op::Purpose;
use crate::engine::pass::Pass;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;

/// Bytes that are shown.
const PAGE_BYTES: u64 = 4096;

/// What a peer hears that shows memory which is not opened here. Why that is so it could use to find
/// out which processes there are.
const NOT_OPENED: &str = "the peer can't open memory of this process; its log says why";

/// What is known of a peer.
#[derive(Default)]
pub(crate) struct Sharing {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    known: Known,
    /// Why it did not work when it was tried last, and when it will be tried again.
    trouble: Option<(String, Pause)>,
    /// When the peer showed memory last.
    shown: Option<Instant>,
}

#[derive(Clone, Copy, Default)]
enum Known {
    #[default]
    Unknown,
    Asked,
    /// Nobody waits for the answer any more; it will come.
    Overdue,
    /// It did once.
    Works,
}

/// How long what failed is left alone: twice as long each time that it fails again soon.
#[derive(Clone, Copy)]
pub(crate) struct Pause {
    until: Instant,
    length: Duration,
}

/// The page that an engine shows, once it is needed.
pub(crate) type Page = OnceLock<SharedMemory>;

/// Whether payload to and from the peer may lie in memory that both have open, or why not.
pub(crate) fn is_possible(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
) -> Result<(), Cow<'static, str>> {
    if !peer.same_host {
        return Err("the peer is on another host".into());
    }
    if !peer.card.capabilities.contains(Capabilities::SHARED_MEMORY) {
        return Err("the peer is of a version without it".into());
    }
    let sharing = &peer.sharing;
    if let Some(why) = sharing.lock().trouble() {
        return Err(why.to_owned().into());
    }
    let page = match page(engine) {
        Ok(page) => page,
        Err(why) => {
            sharing.fail(why.clone());
            return Err(why.into());
        }
    };
    if sharing.is_first() {
        let mut tx = peer.tx();
        // Whoever loses a peer ends what it was told after that.
        if peer.is_gone() {
            return Err("the peer is gone".into());
        }
        let message = Message::MemoryShown { place: place_of(page) };
        tx.tell(Time(monotonic_ns()), &message, Purpose::Tell);
        drop(tx);
        engine.send_soon(peer);
    }
    let may_wait = !is_driving();
    if may_wait {
        let until = Instant::now() + engine.settings.connect_timeout;
        let is_over = || !sharing.is_asked() || peer.is_gone();
        engine.wait_until(Some(until), is_over, |limit| sharing.sleep(limit));
    }
    let mut state = sharing.lock();
    if let Some(why) = state.trouble() {
        return Err(why.to_owned().into());
    }
    match state.known {
        Known::Works => Ok(()),
        _ if peer.is_gone() => Err("the peer is gone".into()),
        Known::Asked if !may_wait => {
            Err("the peer was asked whether it can, and callbacks don't wait for the answer".into())
        }
        Known::Asked => {
            state.known = Known::Overdue;
            Err("the peer did not answer in time whether it can".into())
        }
        Known::Unknown | Known::Overdue => {
            Err("the peer has not answered yet whether it can".into())
        }
    }
}

/// The peer shows memory.
pub(crate) fn shown(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, place: SharedPlace) {
    let (engine, name) = (pass.engine, peer.name());
    if !peer.tx().may_answer() {
        tracing::debug!(target: "polyrail::share", peer = name, "shows memory, takes no answers");
        return;
    }
    let last = peer.sharing.lock().shown.replace(Instant::now());
    let answer = || {
        if engine.config.path == PathChoice::Tcp {
            return Err("the peer's setting path says tcp".to_owned());
        }
        // One that hears that it failed waits for longer.
        if last.is_some_and(|last| last.elapsed() < Pause::SHORTEST) {
            return Err("the peer was asked a moment ago".to_owned());
        }
        let memory = open_page(peer, place).map_err(|why| {
            if last.is_none() {
                tracing::warn!(target: "polyrail::share", peer = name, why, "no shared memory");
            } else {
                tracing::debug!(target: "polyrail::share", peer = name, why, "still none");
            }
            NOT_OPENED.to_owned()
        })?;
        let own = pin(engine, &memory).and_then(|()| page(engine));
        own.map(place_of).map_err(|why| format!("the peer: {why}"))
    };
    let message = Message::MemorySeen { seen: answer() };
    peer.tx().answer(Time(pass.now), &message);
    pass.engine.send_soon(peer);
}

/// The peer's answer.
pub(crate) fn seen(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    seen: Result<SharedPlace, String>,
) {
    if !matches!(peer.sharing.lock().known, Known::Asked | Known::Overdue) {
        tracing::debug!(target: "polyrail::share", peer = peer.name(), "answers what nobody asked");
        return;
    }
    let looked = seen.and_then(|place| pin(engine, &open_page(peer, place)?));
    let mut state = peer.sharing.lock();
    match looked {
        Ok(()) => state.known = Known::Works,
        Err(why) => {
            state.known = Known::Unknown;
            state.fail(why);
        }
    }
    drop(state);
    peer.sharing.changed.notify_all();
}

/// Opens what the peer shows.
fn open_page(peer: &PeerShared, place: SharedPlace) -> Result<polyrail_sys::Memory, String> {
    if !peer.same_host || place.bytes != PAGE_BYTES {
        return Err("it was asked to open something else than such a page".into());
    }
    open(place)
}

/// Has a device pin a page for a moment, as it is done with rings.
fn pin(engine: &EngineShared, page: &polyrail_sys::Memory) -> Result<(), String> {
    if let Some(device) = engine.registry.some_device() {
        device.pin(page).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Memory of the peer.
pub(crate) fn open(place: SharedPlace) -> Result<polyrail_sys::Memory, String> {
    let SharedPlace { process, descriptor, bytes, token } = place;
    SharedMemory::open(process, descriptor, bytes, token).map_err(|error| {
        format!("file descriptor {descriptor} of process {process} can't be opened: {error}")
    })
}

/// How the peer finds it.
pub(crate) fn place_of(memory: &SharedMemory) -> SharedPlace {
    SharedPlace {
        process: std::process::id(),
        descriptor: memory.descriptor(),
        bytes: memory.memory().len(),
        token: memory.token(),
    }
}

/// New memory that peers may open.
pub(crate) fn create(bytes: u64) -> Result<SharedMemory, String> {
    let random = || getrandom::u64().map_err(|error| format!("no random bits: {error}"));
    let token = u128::from(random()?) << 64 | u128::from(random()?);
    SharedMemory::create(bytes, token)
        .map_err(|error| format!("{bytes} bytes of shared memory can't be had: {error}"))
}

fn page(engine: &EngineShared) -> Result<&SharedMemory, String> {
    if let Some(page) = engine.page.get() {
        return Ok(page);
    }
    // What fails now may succeed for the next peer.
    let page = create(PAGE_BYTES)?;
    pin(engine, page.memory())?;
    Ok(engine.page.get_or_init(|| page))
}

impl Sharing {
    /// Whether it may be tried: it did not fail a moment ago.
    pub(crate) fn may_work(&self) -> bool {
        self.lock().trouble().is_none()
    }

    /// It turned out that it does not work. Says whether that is news.
    pub(crate) fn fail(&self, why: String) -> bool {
        let is_news = self.lock().fail(why);
        self.changed.notify_all();
        is_news
    }

    /// What is known, for people; nothing if it was never tried.
    pub(crate) fn text(&self) -> Option<String> {
        let state = self.lock();
        match (state.known, &state.trouble) {
            (Known::Works, Some((_, pause))) if pause.is_over() => Some("works".to_owned()),
            (_, Some((why, _))) => Some(format!("not used: {why}")),
            (Known::Unknown, None) => None,
            (Known::Asked | Known::Overdue, None) => Some("the peer was asked".to_owned()),
            (Known::Works, None) => Some("works".to_owned()),
        }
    }

    /// Whether nobody has asked yet, or not since it failed; from now on somebody has.
    fn is_first(&self) -> bool {
        let mut state = self.lock();
        let is_first = matches!(state.known, Known::Unknown) && state.trouble().is_none();
        if is_first {
            state.known = Known::Asked;
        }
        is_first
    }

    /// The peer is gone, and will not answer.
    pub(crate) fn stop_waiting(&self) {
        let mut state = self.lock();
        if matches!(state.known, Known::Asked) {
            state.known = Known::Overdue;
        }
        drop(state);
        self.changed.notify_all();
    }

    fn is_asked(&self) -> bool {
        matches!(self.lock().known, Known::Asked)
    }

    fn sleep(&self, limit: Duration) {
        let state = self.lock();
        if matches!(state.known, Known::Asked) {
            drop(self.changed.wait_timeout(state, limit));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Why it is left alone, if it is.
    fn trouble(&self) -> Option<&str> {
        self.trouble.as_ref().filter(|(_, pause)| !pause.is_over()).map(|(why, _)| &**why)
    }

    /// Says whether it is the first failure of a row.
    fn fail(&mut self, why: String) -> bool {
        // What others had begun before that fails, too.
        if self.trouble().is_some() {
            return false;
        }
        let pause = Pause::after(self.trouble.as_ref().map(|(_, pause)| *pause));
        self.trouble = Some((why, pause));
        pause.is_first()
    }
}

impl Pause {
    pub(crate) const SHORTEST: Duration = Duration::from_secs(2);
    const LONGEST: Duration = Duration::from_secs(60);

    /// The pause that begins now, after the last one.
    pub(crate) fn after(last: Option<Self>) -> Self {
        Self::from(Instant::now(), last)
    }

    fn from(now: Instant, last: Option<Self>) -> Self {
        let lately = last.filter(|last| now < last.until + last.length);
        let length = lately.map_or(Self::SHORTEST, |last| (last.length * 2).min(Self::LONGEST));
        Self { until: now + length, length }
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    /// Whether it worked for long before, or was not tried.
    pub(crate) fn is_first(&self) -> bool {
        self.length == Self::SHORTEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_minute_while_it_fails_again_soon() {
        let mut now = Instant::now();
        let mut last = None;
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            let pause = Pause::from(now, last);
            assert_eq!(pause.length, Duration::from_secs(seconds));
            assert_eq!(pause.is_first(), seconds == 2);
            assert!(!pause.is_over());
            // It is tried a moment after.
            now = pause.until + Duration::from_millis(100);
            last = Some(pause);
        }
        now += Pause::LONGEST;
        assert!(Pause::from(now, last).is_first(), "it worked for longer than it was left alone");
    }

    #[test]
    fn what_fails_at_once_with_others_is_one_failure() {
        let sharing = Sharing::default();
        assert!(sharing.may_work());
        assert!(sharing.fail("no memory".into()) && !sharing.may_work());
        assert!(!sharing.fail("no memory here either".into()));
        assert_eq!(sharing.text().as_deref(), Some("not used: no memory"));
        assert_eq!(sharing.lock().trouble.as_ref().unwrap().1.length, Pause::SHORTEST);
    }
}
