//! Trial, with a page, of whether this process and a peer's can open each other's memory.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use polyrail_config::PathChoice;
use polyrail_proto::Time;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::liveness::Retry;
use polyrail_proto::message::Message;
use polyrail_proto::wire::SharedPlace;

use crate::device::shared_memory::trial::{PAGE_BYTES, now};
use crate::device::shared_memory::{Shown, open};
use crate::engine::local_engines::engine_here;
use crate::engine::pass::Pass;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;
use crate::path::asking::{ask, wait_for_answer};

/// Answer to a peer whose memory is not opened here. The exact reason would let the peer find out which processes
/// exist.
const NOT_OPENED: &str = "the peer can't open memory of this process; its log says why";

/// Checks whether payload to and from the peer may lie in memory that both have open; the error says why not. Waits at
/// most `limit` for the peer's answer.
pub(crate) fn is_possible(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    limit: Duration,
) -> Result<(), Cow<'static, str>> {
    find_out(engine, peer)?;
    let sharing = &peer.beside.sharing;
    let is_answered = || !sharing.lock().is_asked();
    let may_wait = wait_for_answer(engine, peer, limit, is_answered, |limit| sharing.sleep(limit));
    sharing.lock().result((may_wait, limit), peer.is_gone(), now)
}

/// Asks the peer whether it can open memory of this process, unless it was asked before. An error if it is known that
/// this can't work. Waits for nothing.
pub(super) fn find_out(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
) -> Result<(), Cow<'static, str>> {
    if let Some(why) = peer.beside.process.obstacle() {
        return Err(why.into());
    }
    if !peer.card.capabilities.contains(Capabilities::SHARED_MEMORY) {
        return Err("the peer is of a version without it".into());
    }
    let sharing = &peer.beside.sharing;
    if let Some(why) = sharing.lock().trouble(now) {
        return Err(why.to_owned().into());
    }
    let place = match shown_page(engine) {
        Ok(place) => place,
        Err(why) => {
            sharing.fail(why.clone());
            return Err(why.into());
        }
    };
    if sharing.lock().begin(now) {
        let is_asked = ask(engine, peer, Message::MemoryShown { place });
        if !is_asked {
            return Err("the peer is gone".into());
        }
    }
    Ok(())
}

/// Handles a page that the peer shows.
pub(crate) fn shown(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, place: SharedPlace) {
    let (engine, name) = (pass.engine, peer.name());
    if !peer.account.quotas.of_messages.may_answer() {
        tracing::debug!(target: "polyrail::share", peer = name, "shows memory, takes no answers");
        return;
    }
    let last = peer.beside.sharing.lock().handle_shown(now());
    let answer = || {
        if engine.config.path == PathChoice::Tcp {
            return Err("the peer's setting path says tcp".to_owned());
        }
        // A peer that gets an error waits for longer.
        if last.is_some_and(|ago| ago < Retry::SHORTEST) {
            return Err("the peer was asked a moment ago".to_owned());
        }
        let memory = open_page(engine, peer, place).map_err(|why| {
            if last.is_none() {
                tracing::warn!(target: "polyrail::share", peer = name, why, "no shared memory");
            } else {
                tracing::debug!(target: "polyrail::share", peer = name, why, "still none");
            }
            NOT_OPENED.to_owned()
        })?;
        let own = pin(engine, &memory).and_then(|()| shown_page(engine));
        own.map_err(|why| format!("the peer: {why}"))
    };
    let message = Message::MemorySeen { seen: answer() };
    peer.tx().answer(Time(pass.now), &message);
    pass.engine.announce(peer);
}

/// Handles the peer's answer.
pub(crate) fn seen(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    seen: Result<SharedPlace, String>,
) {
    if !peer.beside.sharing.lock().is_owed() {
        tracing::debug!(target: "polyrail::share", peer = peer.name(), "answers what nobody asked");
        return;
    }
    let tried = seen.and_then(|place| pin(engine, &open_page(engine, peer, place)?));
    peer.beside.sharing.lock().handle_answer(tried, now());
    peer.beside.sharing.changed.notify_all();
}

/// Opens the page that the peer shows.
fn open_page(
    engine: &EngineShared,
    peer: &PeerShared,
    place: SharedPlace,
) -> Result<polyrail_sys::Memory, String> {
    let process = peer.beside.process.prove(&engine.copying.proofs)?;
    if place.bytes != PAGE_BYTES {
        return Err("it was asked to open something else than such a page".into());
    }
    open(process, place)
}

/// Returns the place of the page that this engine shows.
fn shown_page(engine: &EngineShared) -> Result<SharedPlace, String> {
    let badge = engine.copying.proofs.badge()?;
    page(engine).map(|page| page.place(&badge))
}

/// Pins a page with a device for a moment, as rings are pinned.
fn pin(engine: &EngineShared, page: &polyrail_sys::Memory) -> Result<(), String> {
    if let Some(device) = engine.registry.some_device() {
        device.pin(page).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Makes the page that is shown to peers on this host before the first post: getting memory can take as long as others
/// keep the CPUs busy. Errors are reported once a transfer needs the page.
pub(crate) fn prepare(engine: &EngineShared, peer: &PeerShared) {
    if peer.beside.process.obstacle().is_none() && engine_here(peer.instance()).is_none() {
        let _ = page(engine);
    }
}

fn page(engine: &EngineShared) -> Result<&Shown, String> {
    if let Some(page) = engine.copying.page.get() {
        return Ok(page);
    }
    // An error now need not recur for the next peer.
    let page = Shown::new(PAGE_BYTES)?;
    pin(engine, page.memory())?;
    Ok(engine.copying.page.get_or_init(|| page))
}
