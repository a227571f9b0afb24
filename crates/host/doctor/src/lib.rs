//! Checks a host for fast TCP: what is wrong, the evidence, what it costs, and how to fix it.
//!
//! * [`CHECKS`]: the checks as data. Each reads files below a [`Sysroot`](polyrail_host::Sysroot)
//!   and [`Probes`], which hold what only a running kernel can be asked.
//! * [`examine`]: runs them and makes a [`Report`], which is the JSON, too.
//! * [`plan_fix`]: plans the fix for a finding, which can be undone.
//! * [`fleet::compare`]: finds the host that differs from the others.
//!
//! A check that can't know says so: a missing file never makes it clean. Nothing here changes the
//! host.
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
