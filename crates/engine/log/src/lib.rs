//! The log of a process: which records are written, how often, how and where.
//!
//! The engine says what happens by `tracing`, and a program decides where that goes. The command and
//! the NCCL plugin leave it to this crate, which follows the settings `log_*`. `docs/logs.md` has the
//! rules for users.

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
