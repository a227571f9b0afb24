//! Placement of network interfaces' interrupts on CPUs.

mod map;
mod napi;
mod policy;
mod rivals;
mod role;
mod show;
mod vectors;
mod watch;

pub use map::{IrqMap, MapEntry};
pub use policy::{Policy, PolicyOptions, plan, plan_from_map};
pub use rivals::{rivals_running, stop_irqbalance};
pub use role::Role;
pub use show::{Shown, show};
pub use vectors::{Vector, Vectors, without_vectors};
pub use watch::{Sighting, Watch, Writer};
