//! Data of a profile: the plan of the measurement, the folder that holds it, and traces for other programs.
//! `docs/profile-format.md` describes every file.
//!
//! * [`PlanBuilder`] makes a [`Plan`]; [`Plan::steps`] is its pseudo-random order.
//! * [`Folder::create`] begins a folder, [`Folder::resume`] continues one; both return a [`Recorder`] that writes each
//!   [`Sample`], [`Temperature`] and [`Anchor`] immediately.
//! * [`Folder::open`] reads a folder strictly: errors name file, line and column.
//! * [`Alignment`] converts raw clocks to one timeline, with an error bound.
//! * [`Folder::write_derived`] writes the execution log and the traces.
//!
//! ```
//! use polyrail_profile::*;
//!
//! # let dir = tempfile::tempdir().unwrap();
//! # let dir = dir.path().join("p");
//! let node = |name: &str| Endpoint {
//!     rank: 0, // the builder numbers them
//!     kind: EndpointKind::Host,
//!     name: name.into(),
//!     host: "node1".into(),
//!     device: "numa0".into(),
//! };
//! let plan = PlanBuilder::new([node("a"), node("b")]).path(PathKind::Tcp).repetitions(3).build()?;
//! let mut recorder = Folder::create(&dir, &plan, &Run::default())?;
//! for step in recorder.remaining().into_iter().take(10) {
//!     // Transfer `step.warmups` times, then measure once.
//!     recorder.append(&Sample {
//!         order: step.order,
//!         session: recorder.session(),
//!         configuration: step.configuration,
//!         repetition: step.repetition,
//!         t_host_ns: Some(1_500.0),
//!         verify: Verify::Ok,
//!         ..Sample::default()
//!     })?;
//! }
//! recorder.finish(&Run { state: State::Interrupted, ..Run::default() })?;
//! assert_eq!(Folder::open(&dir)?.samples()?.len(), 10);
//! # Ok::<(), ProfileError>(())
//! ```
//!
//! The only I/O is on files. All types are `Send + Sync`.
#![forbid(unsafe_code)]

pub mod protobuf;
pub mod synthetic;

mod clock;
mod document;
mod error;
mod fault;
mod folder;
mod order;
mod plan;
mod run;
mod sample;
mod table;
mod thermal;
mod trace;
mod yaml;

pub use clock::{Aligned, Alignment, Anchor, AnchorMethod, Clock, ClockFit, Triangle, Window};
pub use error::{ProfileError, shown_path};
pub use folder::{Claim, Folder, Part, Recorder};
pub use order::SplitMix64;
pub use plan::{
    Configuration, Endpoint, EndpointKind, Load, PLAN_VERSION, PathKind, Plan, PlanBuilder,
    Sentinel, Step, default_sizes,
};
pub use polyrail_sys::files::read_limited;
pub use run::{Layout, Metadata, RUN_VERSION, Run, State, allowed_environment};
pub use sample::{End, Flags, Metric, Sample, Verify};
pub use table::{Cells, Table, Unknown, Word};
pub use thermal::Temperature;
