//! Changes to a host that can be undone.
//!
//! Every change takes the same steps: a [`Plan`] names each value, old and new, and the reason;
//! [`apply()`] takes a lock, writes a backup and a journal, carries the plan out and reads it back;
//! [`verify()`] checks that it still holds; [`reset()`] undoes it from the journal alone, so also
//! after the process was killed.
//!
//! * [`irq`]: placement of network interfaces' interrupts on CPUs.
//! * [`profile`]: settings for fast TCP, as data.
//! * [`nic`]: queues, rings, coalescing and RSS of an interface.
//!
//! Reading needs no privileges; only [`apply()`] and [`reset()`] write.
#![forbid(unsafe_code)]

mod apply;
mod balancer;
mod error;
mod hash;
mod host_id;
pub mod irq;
mod journal;
mod lock;
mod machine;
pub mod nic;
mod plan;
pub mod profile;
mod reach;
mod reset;
mod target;
mod verify;
mod yaml;

pub use apply::{Applied, ApplyOptions, Effect, Outcome, apply, check_host};
pub use error::{Blame, TuneError};
pub use host_id::HostId;
pub use journal::{Disk, Entry, RealDisk, Session, StateDir, Status};
pub use lock::HostLock;
pub use machine::{Fault, Machine, Meaning, Step, SysMachine};
pub use plan::{Change, Difference, Kept, PLAN_LIMIT_BYTES, Plan, SCHEMA_VERSION, Skipped};
pub use reach::{Reach, refuse_disruptive};
pub use reset::{Restored, Which, reset};
pub use target::{Target, VectorId};
pub use verify::{Checked, State, is_good, verify};
