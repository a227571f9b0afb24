//! Path of the bytes of a request, and the reason for it. The driver finds out from the kernel and devices what is
//! possible, and carries out copies.

mod choice;
mod copying;
mod kind;
mod plan;
mod reason;

pub use copying::{
    Copyist, Facts, copy_threads, copyist, copyist_of_message, is_message_worth_a_copy,
    is_worth_a_copy, is_worth_leaving, looks_for, may_be_shared, may_be_staged,
};
pub use kind::{PathKind, TransferPath};
pub use plan::{FarEnd, MemoryKind, PathPlan, PathPlans, PathSettings, PeerPlace, Stages};
pub use reason::{OnlyPath, PathObstacle, PathReason};
