//! Holding the core of a proxy, and what is done when it is given back.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::core::Core;
use super::{COPY_SLEEP, Proxy};
use crate::engine::EngineShared;

/// A core while this thread drives it. What others left meanwhile is sent when it is given back.
pub(super) struct Held<'a> {
    // Fields are dropped in this order.
    core: MutexGuard<'a, Core>,
    _then: Settles<'a>,
}

struct Settles<'a> {
    proxy: &'a Proxy,
    engine: &'a Arc<EngineShared>,
}

impl<'a> Held<'a> {
    pub(super) fn new(
        core: MutexGuard<'a, Core>,
        proxy: &'a Proxy,
        engine: &'a Arc<EngineShared>,
    ) -> Self {
        Self { core, _then: Settles { proxy, engine } }
    }
}

impl Drop for Settles<'_> {
    fn drop(&mut self) {
        // A proxy with a thread of its own is woken instead.
        if self.engine.settings.caller_driven {
            self.proxy.settle(self.engine);
        }
    }
}

impl Deref for Held<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

/// Waits for somebody who is done in a moment, unless that thread has no CPU. To yield costs nothing
/// then where CPUs are idle. Where they are short it costs a turn of every other thread, and some
/// kernels take it for a wish to come last for seconds, so that is not done again and again.
#[derive(Default)]
pub(crate) struct Pause {
    began: Option<Instant>,
}

impl Pause {
    const YIELDS_FOR: Duration = Duration::from_micros(50);

    pub(crate) fn a_moment(&mut self) {
        let began = *self.began.get_or_insert_with(Instant::now);
        if began.elapsed() < Self::YIELDS_FOR {
            std::thread::yield_now();
        } else {
            std::thread::sleep(COPY_SLEEP);
        }
    }
}
