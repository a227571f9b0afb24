//! Which path the bytes of a request take, and why. The driver asks the kernel and devices what is possible.

mod kind;
mod plan;
mod reason;

pub use kind::{PathKind, TransferPath};
pub use plan::{
    FarEnd, MemoryKind, PathPlan, PathPlans, PathSettings, PeerPlace, not_copied_by_cpus,
};
pub use reason::{OnlyPath, PathObstacle, PathReason};
