//! The engines of this process. Between two of them a device copies without a message to the other side, and queues of
//! each may keep memory of all.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use polyrail_proto::InstanceId;
use polyrail_sys::PerProcess;

use crate::engine::state::EngineShared;
use crate::memory::region_core::RegionCore;

type Engines = Vec<(InstanceId, Weak<EngineShared>)>;

static ENGINES: PerProcess<Mutex<Engines>> = PerProcess::new();

/// Makes an engine known to the others of this process.
pub(crate) fn announce(engine: &Arc<EngineShared>) {
    let mut engines = ENGINES.get().lock();
    engines.retain(|(_, engine)| engine.strong_count() > 0);
    engines.push((engine.card.instance, Arc::downgrade(engine)));
}

/// The engine of this process with that number.
pub(crate) fn engine_here(instance: InstanceId) -> Option<Arc<EngineShared>> {
    let engines = ENGINES.get().lock();
    engines.iter().find(|(known, _)| *known == instance).and_then(|(_, engine)| engine.upgrade())
}

/// Iterates without the list's lock, because the last holder of an engine ends it.
fn engines_here() -> impl Iterator<Item = Arc<EngineShared>> {
    let engines = ENGINES.get().lock().clone();
    engines.into_iter().filter_map(|(_, engine)| engine.upgrade())
}

/// Handles the end of a region: ends the operations that still wait with it, and releases a device's memory. Queues of
/// all engines would keep that memory until their next use.
pub(crate) fn region_ended(region: &Arc<RegionCore>) {
    if region.is_waited_for()
        && let Some(engine) = engine_here(region.owner)
    {
        engine.end_waiting(region);
    }
    if region.memory.device().is_none() {
        return;
    }
    for engine in engines_here() {
        engine.copying.peer_copies.let_go();
        engine.proxies.all.iter().for_each(|proxy| proxy.let_go());
    }
}
