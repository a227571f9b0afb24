//! The results of an experiment.

mod markdown;
mod text;

use std::collections::BTreeMap;

use polyrail_report::{Host, Spread};
use serde::{Deserialize, Serialize};

use crate::effect::{Better, Effect, Rule};
use crate::figure::Figure;
use crate::plan::{Design, Looks, MISS, Plan};
use crate::record::{Measured, Verified, whole_blocks};
use crate::spec::{Experiment, Measure};

/// Version of [`Report`]; raised when a field changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;

/// Results of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema_version: u32,
    pub name: String,
    /// Purpose of the experiment.
    pub about: String,
    /// Version of the program.
    pub version: String,
    pub host: Host,
    /// Measurement of a cell.
    pub measure: Measure,
    /// Place of the figure in the output.
    pub figure: Figure,
    /// Direction of better figures: higher or lower.
    pub better: Better,
    /// Choice of cells.
    pub design: Design,
    /// Seed of the order.
    pub seed: u64,
    /// Requested half width of an interval, in percent.
    pub precision_percent: f64,
    /// Joint confidence of all intervals, in percent.
    pub confidence_percent: f64,
    /// Numbers of blocks after which the results are looked at.
    pub looks: Vec<usize>,
    /// Confidence of each single interval that gives the joint one, in percent.
    pub each_confidence_percent: f64,
    /// Reason for the end of the run.
    pub stopped: Stopped,
    /// Number of whole blocks.
    pub blocks: usize,
    /// Total duration of the cells, in seconds.
    pub measured_s: f64,
    /// Effect of each level.
    pub effects: Vec<Effect>,
    /// All cells; the baseline is the first.
    pub cells: Vec<CellResult>,
    /// Cells that could not be measured here, with the reason.
    pub left_out: Vec<String>,
    /// Notes for the reader, one sentence each.
    pub notes: Vec<String>,
}

/// Reason for the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// Every interval is narrow enough.
    Narrow,
    /// All blocks were measured.
    Blocks,
    /// The time was used up.
    Time,
    /// Ctrl-C, or a signal.
    Interrupted,
    /// A cell could not be measured.
    Failed,
}

/// Figures of one cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CellResult {
    /// Name of the cell for people.
    pub label: String,
    /// Level of each factor.
    pub levels: BTreeMap<String, String>,
    /// Median, minimum and maximum of the figures; `null` without a whole block.
    pub figure: Option<Spread>,
    /// Result of reading the levels back.
    pub verified: Option<Verified>,
}

impl Report {
    /// Creates the report of these measurements. `earlier_ends`: number of earlier ends of the run between two looks.
    pub fn new(
        experiment: &Experiment,
        plan: &Plan,
        looks: &Looks,
        measured: &[Measured],
        stopped: Stopped,
        earlier_ends: usize,
        machine: (Host, String),
    ) -> Self {
        let blocks = whole_blocks(measured, plan.cells.len());
        let miss = looks.miss_at(blocks.len(), earlier_ends);
        let rule = Rule { better: experiment.better, precision: experiment.precision, miss };
        let cell = |at: usize| {
            let mine = |one: &&Measured| one.cell == at && one.block < blocks.len() as u64;
            let verified = measured.iter().filter(mine).map(|one| one.verified);
            CellResult {
                label: plan.label(at),
                levels: plan.level_map(at),
                figure: Spread::of(blocks.iter().map(|block| block[at])),
                verified: verified.max_by_key(|one| *one == Verified::NotReported),
            }
        };
        let (host, version) = machine;
        let mut report = Self {
            schema_version: SCHEMA_VERSION,
            name: experiment.name.clone(),
            about: experiment.about.clone(),
            version,
            host,
            measure: experiment.measure.clone(),
            figure: experiment.figure.clone(),
            better: experiment.better,
            design: experiment.design,
            seed: experiment.seed,
            precision_percent: experiment.precision * 100.0,
            confidence_percent: (1.0 - MISS) * 100.0,
            looks: looks.after.clone(),
            each_confidence_percent: (1.0 - miss) * 100.0,
            stopped,
            blocks: blocks.len(),
            // The sum of nothing is −0.
            measured_s: measured.iter().map(|one| one.seconds).fold(0.0, |sum, one| sum + one),
            effects: rule.effects(plan, &blocks),
            cells: (0..plan.cells.len()).map(cell).collect(),
            left_out: Vec::new(),
            notes: Vec::new(),
        };
        if report.cells.iter().any(|cell| cell.verified == Some(Verified::NotReported)) {
            report.notes.push(
                "the settings of some cells could not be read back, because the command does not report them".to_owned(),
            );
        }
        report
    }

    /// Formats the report for a terminal of `columns` columns; without a limit, each sentence and each row is one line.
    pub fn text(&self, columns: Option<usize>) -> String {
        text::text(self, columns)
    }

    /// Returns one sentence on the run.
    pub fn summary(&self) -> String {
        text::summary(self)
    }

    /// Returns all notes: cells that were left out, notes of the run, and the confidence of the intervals.
    pub fn all_notes(&self) -> Vec<String> {
        text::notes(self)
    }

    pub fn markdown(&self) -> String {
        markdown::markdown(self)
    }
}

impl Stopped {
    /// Returns the end of a sentence that begins with "it ended because".
    pub fn words(self, precision_percent: f64) -> String {
        match self {
            Self::Narrow => format!("every interval is at most ± {precision_percent:.1} %"),
            Self::Blocks => "all blocks were measured".to_owned(),
            Self::Time => "the time was up".to_owned(),
            Self::Interrupted => "it was interrupted".to_owned(),
            Self::Failed => "a cell could not be measured".to_owned(),
        }
    }
}
