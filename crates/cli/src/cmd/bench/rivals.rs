//! Rivals that take turns with the engine: the engine used in another way, or another program.

mod cuda;
mod nccl;
mod nccl_rank;
mod other;
mod raw;
mod standing;

pub(crate) use self::cuda::CudaRival;
pub(crate) use self::nccl::NcclRival;
pub(crate) use self::nccl_rank::run_nccl_rank;
pub(crate) use self::other::{Other, TrialRival};
pub(crate) use self::raw::{RawClient, RawServer};
pub(crate) use self::standing::{Rival, RivalKind, Standing, alone, baselines, sweep};
