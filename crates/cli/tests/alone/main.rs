//! Tests that measure, or look at all engines of their process. Another test would change the result, so
//! `.cargo/runner` runs these one at a time.

mod bench;
mod causes;
#[path = "../common/mod.rs"]
mod common;
mod nccl_tune;
mod top;
