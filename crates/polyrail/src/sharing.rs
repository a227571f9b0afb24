//! Whether this process and a peer's can open each other's memory, which is tried once.
//!
//! Each engine has a page that it shows: the peer opens it, has its device pin it, and shows its own
//! in turn. Which of the many reasons there are against it holds (another user, a container that
//! numbers processes for itself, a device that pins no such memory) is known only by trying.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use polyrail_config::PathChoice;
use polyrail_proto::Time;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::message::Message;
use polyrail_proto::wire::SharedPlace;
use polyrail_sys::SharedMemory;
use polyrail_sys::threads::monotonic_ns;

use crate::op::Purpose;
use crate::peer::PeerShared;
use crate::proxy::{Pass, is_driving};
use crate::shared::EngineShared;

/// Bytes that are shown.
const PAGE_BYTES: u64 = 4096;

/// What is known of a peer.
#[derive(Default)]
pub(crate) struct Sharing {
    state: Mutex<State>,
    changed: Condvar,
    /// Whether the peer has shown memory, which it does once.
    has_looked: AtomicBool,
}

#[derive(Clone, Default)]
enum State {
    #[default]
    Unknown,
    Asked,
    /// Nobody waits for the answer any more; it will come.
    Overdue,
    Works,
    Fails(String),
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
    if sharing.is_first() {
        let page = match page(engine) {
            Ok(page) => page,
            Err(why) => {
                sharing.fail(why.clone());
                return Err(why.into());
            }
        };
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
    match &*state {
        State::Works => Ok(()),
        State::Fails(why) => Err(why.clone().into()),
        _ if peer.is_gone() => Err("the peer is gone".into()),
        State::Asked if !may_wait => {
            Err("the peer was asked whether it can, and callbacks don't wait for the answer".into())
        }
        State::Asked => {
            *state = State::Overdue;
            Err("the peer did not answer in time whether it can".into())
        }
        State::Unknown | State::Overdue => {
            Err("the peer has not answered yet whether it can".into())
        }
    }
}

/// The peer shows memory.
pub(crate) fn shown(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, place: SharedPlace) {
    let engine = pass.engine;
    if peer.sharing.has_looked.swap(true, Ordering::Relaxed) {
        tracing::debug!(target: "polyrail::share", peer = peer.name(), "shows memory again");
        return;
    }
    let answer = || {
        if engine.config.path == PathChoice::Tcp {
            return Err("the peer's setting path says tcp".to_owned());
        }
        look(engine, peer, place).map_err(|why| format!("the peer: {why}"))?;
        Ok(place_of(page(engine)?))
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
    let looked = seen.and_then(|place| look(engine, peer, place));
    let mut state = peer.sharing.lock();
    if let State::Asked | State::Overdue = *state {
        *state = match looked {
            Ok(()) => State::Works,
            Err(why) => State::Fails(why),
        };
    }
    drop(state);
    peer.sharing.changed.notify_all();
}

/// Opens what the peer shows, and has a device pin it, as it is done with rings.
fn look(engine: &EngineShared, peer: &PeerShared, place: SharedPlace) -> Result<(), String> {
    if !peer.same_host || place.bytes != PAGE_BYTES {
        return Err("it was asked to open something else than such a page".into());
    }
    let memory = open(place)?;
    if let Some(device) = engine.registry.some_device() {
        device.pin(&memory).map_err(|error| error.to_string())?;
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
    if let Some(device) = engine.registry.some_device() {
        device.pin(page.memory()).map_err(|error| error.to_string())?;
    }
    Ok(engine.page.get_or_init(|| page))
}

impl Sharing {
    /// Whether it has not been found to fail.
    pub(crate) fn may_work(&self) -> bool {
        !matches!(*self.lock(), State::Fails(_))
    }

    /// It turned out that it does not work. Says whether nobody knew.
    pub(crate) fn fail(&self, why: String) -> bool {
        let mut state = self.lock();
        let is_new = !matches!(*state, State::Fails(_));
        if is_new {
            *state = State::Fails(why);
        }
        drop(state);
        self.changed.notify_all();
        is_new
    }

    /// What is known, for people; nothing if it was never tried.
    pub(crate) fn text(&self) -> Option<String> {
        match &*self.lock() {
            State::Unknown => None,
            State::Asked | State::Overdue => Some("the peer was asked".to_owned()),
            State::Works => Some("works".to_owned()),
            State::Fails(why) => Some(format!("not used: {why}")),
        }
    }

    /// Whether nobody has asked yet; from now on somebody has.
    fn is_first(&self) -> bool {
        let mut state = self.lock();
        let is_first = matches!(*state, State::Unknown);
        if is_first {
            *state = State::Asked;
        }
        is_first
    }

    fn is_asked(&self) -> bool {
        matches!(*self.lock(), State::Asked)
    }

    fn sleep(&self, limit: Duration) {
        let state = self.lock();
        if matches!(*state, State::Asked) {
            drop(self.changed.wait_timeout(state, limit));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
