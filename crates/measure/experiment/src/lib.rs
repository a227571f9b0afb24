//! Which setting changes a figure, by how much, and how sure that is.
//!
//! * [`Experiment`]: factors and levels, the baseline, what measures a cell, as a file says.
//! * [`Plan`] and [`Looks`]: cells, the order of each block, and when results are looked at.
//! * [`Effect`]: what one level does to the figure, with an interval and a verdict in words.
//! * [`Search`]: which cells of a sweep to measure next, and which is the best.
//! * [`HeatMap`] and [`Sensitivity`]: what a sweep saw of the settings.
//! * [`Report`]: everything that an experiment found out, as text, Markdown and JSON.
//!
//! Nothing here measures: the caller runs the cells and hands over their figures.
#![forbid(unsafe_code)]

mod dice;
mod effect;
mod error;
mod figure;
mod landscape;
mod plan;
pub mod ranks;
mod record;
mod report;
mod search;
mod spec;

pub use dice::Dice;
pub use effect::{Better, Effect, Rule, Verdict, half_percent, show};
pub use error::ExperimentError;
pub use figure::{Figure, unit_of};
pub use landscape::{HeatMap, Sensitivity, heat_map, sensitivity};
pub use plan::{CELLS_MAX, Cell, Comparison, Design, Factor, Kind, Looks, MISS, Plan};
pub use record::{Measured, Verified, whole_blocks};
pub use report::{CellResult, Report, SCHEMA_VERSION, Stopped};
pub use search::Search;
pub use spec::{Experiment, Measure};
