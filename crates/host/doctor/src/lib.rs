//! Checks a host for fast TCP: the faults, the evidence, the cost of each, and the fix.
//!
//! * [`CHECKS`]: the checks as data. Each reads files below a [`Sysroot`](polyrail_host::Sysroot) and [`Probes`], which
//!   hold the answers that only a running kernel can give.
//! * [`examine`]: runs the checks and makes a [`Report`], which is also the JSON.
//! * [`plan_fix`]: plans the fix for a finding. The fix can be undone.
//! * [`fleet::compare`]: finds the host that differs from the others.
//!
//! A check that can't know reports "unknown": a missing file never makes it clean. This crate does not change the host.
#![forbid(unsafe_code)]

mod check;
mod checks;
mod context;
mod error;
mod facts;
mod fix;
pub mod fleet;
mod plugins;
mod probes;
mod report;

pub use check::{Answer, Answers, Change, Check, Cost, Evidence, Finding, Group};
pub use checks::CHECKS;
pub use context::{Context, Options, examined};
pub use error::DoctorError;
pub use fix::plan_fix;
pub use plugins::PluginProbe;
pub use probes::{CoalesceProbe, NicProbe, OffloadsProbe, Probes, RingProbe, RouteProbe};
pub use report::{CheckReport, Report, SCHEMA_VERSION, Status, Summary, examine};
