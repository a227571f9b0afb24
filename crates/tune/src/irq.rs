//! Which CPUs the interrupts of network interfaces go to.

mod map;
mod napi;
mod policy;
mod role;
mod show;
mod vectors;
mod watch;

pub use map::{IrqMap, MapEntry};
pub use policy::{Policy, PolicyOptions, plan, plan_from_map};
pub use role::Role;
pub use show::{Shown, rivals_running, show};
pub use vectors::{Vector, Vectors};
pub use watch::{Sighting, Watch, Writer};
