//! The engines of this process: between two of them a device copies without a word to the other
//! side, and queues of each may keep memory of all.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use polyrail_proto::InstanceId;
use polyrail_sys::PerProcess;

use crate::engine::state::EngineShared;
use crate::memory::region_core::RegionCore;

/// Engines, with their numbers.
type Engines = Vec<(InstanceId, Weak<EngineShared>)>;

/// The engines of this process.
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

/// The list is not locked meanwhile: whoever is the last to have an engine ends it.
fn engines_here() -> impl Iterator<Item = Arc<EngineShared>> {
    let engines = ENGINES.get().lock().clone();
    engines.into_iter().filter_map(|(_, engine)| engine.upgrade())
}

/// A region of that engine has ended: nothing waits for it any longer. Queues of all engines may keep a
/// device's memory until they are used again, and should not.
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
