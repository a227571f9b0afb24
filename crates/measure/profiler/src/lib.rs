//! Measures every link between endpoints and fills a profile: the library behind `polyrail profile`.
//!
//! A [`Station`] has endpoints, each with a source and a sink of memory, and a [`Carrier`] for each path between them.
//! [`run`] makes the steps of a plan that a folder lacks: warm-ups, then a measurement with every byte verified. It
//! compares the clocks about once a second, and logs the devices' temperatures in a separate thread. A failure removes
//! only its own link from the run.
//!
//! One process drives all endpoints. `docs/profile.md` defines exactly what is timed.
#![forbid(unsafe_code)]

mod carrier;
mod clocks;
mod copy;
mod cuda;
pub mod drive;
mod error;
mod estimate;
mod lock;
mod nccl;
mod pattern;
mod peer;
mod rails;
mod rewarm;
mod run;
mod station;
mod thermal;

pub use carrier::{Cargo, Carrier, Measured};
pub use clocks::{ClockSource, PeerLatency};
pub use error::ProfilerError;
pub use estimate::{Estimate, memory_bytes};
pub use lock::ClockLock;
pub use peer::{Accelerator, Gated, Peer, TwoEnds};
pub use rewarm::{Rewarm, Rewarmed};
pub use run::{Hooks, Limits, Outcome, run};
pub use station::{Spot, Station, StationOptions, WARMING};
pub use thermal::{Foreign, Thermometer, Watcher, busy_devices, device_names, unlock_clocks};

/// `CLOCK_MONOTONIC_RAW` in ns, the reference of all profiles.
pub fn reference_ns() -> i64 {
    polyrail_gpu::cuda::measure::raw_ns()
}
