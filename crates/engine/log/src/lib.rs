//! The log of a process: selection, rate limit, format and destination of records.
//!
//! The engine emits `tracing` events, and a program decides where they go. The command and the NCCL plugin use this
//! crate, which follows the settings `log_*`. `docs/logs.md` has the rules for users.

#![forbid(unsafe_code)]

mod json;
mod limit;
mod output;
mod owner;
mod stamp;

pub use limit::Bounded;
pub use output::{LogError, ToStderr};
pub use owner::{Settings, start, start_beside, start_to};
pub use polyrail_config::harmless;
pub use stamp::utc_now;
