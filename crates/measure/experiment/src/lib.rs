//! Finds which settings change a figure, by how much, and with what certainty.
//!
//! * [`Experiment`]: factors and levels, the baseline and the measurement of a cell, read from a file.
//! * [`Plan`] and [`Looks`]: cells, the order of each block, and the times of looking at results.
//! * [`Effect`]: the effect of one level on the figure, with an interval and a verdict in words.
//! * [`Search`]: the next cells of a sweep to measure, and the best one.
//! * [`HeatMap`] and [`Sensitivity`]: the dependence of a sweep's figures on the settings.
//! * [`Report`]: all results of an experiment, as text, Markdown and JSON.
//!
//! Nothing here measures: the caller runs the cells and passes their figures.
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
