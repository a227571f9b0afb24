//! Finding out, by trying with a page, whether this process and a peer's can open each other's memory.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_config::PathChoice;
use polyrail_proto::Time;
use polyrail_proto::hello::Capabilities;
use polyrail_proto::liveness::Retry;
use polyrail_proto::message::Message;
use polyrail_proto::wire::SharedPlace;

use crate::device::shared_memory::trial::{PAGE_BYTES, Trial};
use crate::device::shared_memory::{Shown, open};
use crate::engine::local_engines::engine_here;
use crate::engine::pass::Pass;
use crate::engine::peer::PeerShared;
use crate::engine::state::EngineShared;
use crate::path::asking::{ask, wait_for_answer};

/// What a peer hears that shows memory which is not opened here. Why that is so it could use to find
/// out which processes there are.
const NOT_OPENED: &str = "the peer can't open memory of this process; its log says why";

/// Whether payload to and from the peer may lie in memory that both have open, or why not. Waits at most
/// `limit` for the peer's answer.
pub(crate) fn is_possible(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    limit: Duration,
) -> Result<(), Cow<'static, str>> {
    find_out(engine, peer)?;
    let sharing = &peer.sharing;
    let is_answered = || !sharing.is_asked();
    let sleep = |limit| sharing.sleep(limit);
    let may_wait = wait_for_answer(engine, peer, limit, is_answered, sleep);
    let mut state = sharing.lock();
    if let Some(why) = state.trouble() {
        return Err(why.to_owned().into());
    }
    match state.known {
        Trial::Works => Ok(()),
        _ if peer.is_gone() => Err("the peer is gone".into()),
        Trial::Asked if !may_wait => {
            Err("the peer was asked whether it can, and callbacks don't wait for the answer".into())
        }
        Trial::Asked if limit.is_zero() => {
            Err("the peer was asked whether it can, and has not answered yet".into())
        }
        Trial::Asked => {
            state.known = Trial::Overdue;
            Err("the peer did not answer in time whether it can".into())
        }
        Trial::Unknown | Trial::Overdue => {
            Err("the peer has not answered yet whether it can".into())
        }
    }
}

/// Asks the peer whether it can open memory of this process, if nobody has asked; an error if it is known
/// that nothing can come of it. Waits for nothing.
pub(super) fn find_out(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
) -> Result<(), Cow<'static, str>> {
    if let Some(why) = peer.process.obstacle() {
        return Err(why.into());
    }
    if !peer.card.capabilities.contains(Capabilities::SHARED_MEMORY) {
        return Err("the peer is of a version without it".into());
    }
    let sharing = &peer.sharing;
    if let Some(why) = sharing.lock().trouble() {
        return Err(why.to_owned().into());
    }
    let place = match shown_page(engine) {
        Ok(place) => place,
        Err(why) => {
            sharing.fail(why.clone());
            return Err(why.into());
        }
    };
    if sharing.is_first() {
        let is_asked = ask(engine, peer, Message::MemoryShown { place });
        if !is_asked {
            return Err("the peer is gone".into());
        }
    }
    Ok(())
}

/// The peer shows memory.
pub(crate) fn shown(pass: &mut Pass<'_>, peer: &Arc<PeerShared>, place: SharedPlace) {
    let (engine, name) = (pass.engine, peer.name());
    if !peer.quotas.of_messages.may_answer() {
        tracing::debug!(target: "polyrail::share", peer = name, "shows memory, takes no answers");
        return;
    }
    let last = peer.sharing.lock().shown.replace(Instant::now());
    let answer = || {
        if engine.config.path == PathChoice::Tcp {
            return Err("the peer's setting path says tcp".to_owned());
        }
        // One that hears that it failed waits for longer.
        if last.is_some_and(|last| last.elapsed() < Retry::SHORTEST) {
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

/// The peer's answer.
pub(crate) fn seen(
    engine: &Arc<EngineShared>,
    peer: &Arc<PeerShared>,
    seen: Result<SharedPlace, String>,
) {
    if !matches!(peer.sharing.lock().known, Trial::Asked | Trial::Overdue) {
        tracing::debug!(target: "polyrail::share", peer = peer.name(), "answers what nobody asked");
        return;
    }
    let looked = seen.and_then(|place| pin(engine, &open_page(engine, peer, place)?));
    let mut state = peer.sharing.lock();
    match looked {
        Ok(()) => state.known = Trial::Works,
        Err(why) => {
            state.known = Trial::Unknown;
            state.fail(why);
        }
    }
    drop(state);
    peer.sharing.changed.notify_all();
}

/// Opens what the peer shows.
fn open_page(
    engine: &EngineShared,
    peer: &PeerShared,
    place: SharedPlace,
) -> Result<polyrail_sys::Memory, String> {
    let process = peer.process.prove(&engine.proofs)?;
    if place.bytes != PAGE_BYTES {
        return Err("it was asked to open something else than such a page".into());
    }
    open(process, place)
}

/// The place of the page that this engine shows.
fn shown_page(engine: &EngineShared) -> Result<SharedPlace, String> {
    let badge = engine.proofs.badge()?;
    page(engine).map(|page| page.place(&badge))
}

/// Has a device pin a page for a moment, as it is done with rings.
fn pin(engine: &EngineShared, page: &polyrail_sys::Memory) -> Result<(), String> {
    if let Some(device) = engine.registry.some_device() {
        device.pin(page).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Makes the page that peers on this host are shown, before anybody posts: to get memory can take as long as others keep
/// the CPUs. What fails is told once a transfer wants it.
pub(crate) fn prepare(engine: &EngineShared, peer: &PeerShared) {
    if peer.process.obstacle().is_none() && engine_here(peer.instance()).is_none() {
        let _ = page(engine);
    }
}

fn page(engine: &EngineShared) -> Result<&Shown, String> {
    if let Some(page) = engine.page.get() {
        return Ok(page);
    }
    // What fails now may succeed for the next peer.
    let page = Shown::new(PAGE_BYTES)?;
    pin(engine, page.memory())?;
    Ok(engine.page.get_or_init(|| page))
}
