//! Analyses a profile: statistics of each configuration, a model of each link, anomalies, comparison with another
//! profile or with a simulator's predictions, inputs for simulators, and a report for people. `docs/analyze.md`
//! explains every result.
//!
//! * [`Analysis::of`] analyses a [`Folder`](polyrail_profile::Folder); it serialises to the JSON of
//!   `polyrail analyze --json`.
//! * [`Comparison::of`] compares two analyses; [`Judgement::of`] judges [`read_predictions`].
//! * [`export`] writes input files for ASTRA-sim, Chakra, SimAI and Vidur.
//! * [`html`] makes the report: one file that needs no network. [`page`] makes such a page from other data.
//!
//! All types are `Send + Sync`.
#![forbid(unsafe_code)]

pub mod export;

mod analysis;
mod compare;
mod conclusion;
mod devices;
mod drift;
mod error;
mod fit;
mod links;
mod page;
mod paths;
mod predictions;
mod report;
mod states;
mod stats;
mod summary;

pub use analysis::{About, Analysis, Options, PathMetric, SCHEMA_VERSION};
pub use compare::{Compared, Comparison, MATTERS_PERCENT, Verdict};
pub use devices::{ClockReport, Clocks, Thermal, ThermalPoint, TriangleReport};
pub use drift::{Drift, DriftOf};
pub use error::AnalyzeError;
pub use fit::{Break, FitError, Model, Regime, RegimeKind, Segment};
pub use links::{AlphaBeta, Asymmetry, Link, LogGp, SizeClass, SlowLink};
pub use page::{NOISY_PERCENT, PageHead, PageVerdict, Tone, flaw, page};
pub use paths::PathFigures;
pub use predictions::{
    ErrorSummary, JudgedPoint, Judgement, LinkErrors, PointVerdict, Prediction, read_predictions,
};
pub use report::html;
pub use states::SourceStates;
pub use summary::{Counts, Outlier, State, Summary};
