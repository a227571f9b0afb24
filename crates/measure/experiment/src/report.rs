//! Everything that an experiment found out.

mod html;
mod markdown;
mod text;

use std::collections::BTreeMap;

use polyrail_report::{Host, Spread};
use serde::Serialize;

use crate::effect::{Better, Effect, Rule};
use crate::figure::Figure;
use crate::plan::{Design, Looks, MISS, Plan};
use crate::record::{Measured, Verified, whole_blocks};
use crate::spec::{Experiment, Measure};

/// The version of [`Report`]; raised when a field changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// What an experiment found out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub schema_version: u32,
    pub name: String,
    /// What it is for.
    pub about: String,
    /// The version of the program.
    pub version: String,
    pub host: Host,
    /// What measured a cell.
    pub measure: Measure,
    /// Where the figure was.
    pub figure: Figure,
    /// Which figures are good.
    pub better: Better,
    /// Which cells there are.
    pub design: Design,
    /// Where the order came from.
    pub seed: u64,
    /// Half the width of an interval that was asked for, in percent.
    pub precision_percent: f64,
    /// How sure all intervals together are, in percent.
    pub confidence_percent: f64,
    /// After how many blocks the results are looked at.
    pub looks: Vec<usize>,
    /// How sure each interval is, so that all together are, in percent.
    pub each_confidence_percent: f64,
    /// Why the run ended.
    pub stopped: Stopped,
    /// How many blocks are whole.
    pub blocks: usize,
    /// How long the cells took, in seconds.
    pub measured_s: f64,
    /// The effect of each level.
    pub effects: Vec<Effect>,
    /// Each cell; the baseline is the first.
    pub cells: Vec<CellResult>,
    /// Cells that could not be measured here, with the reason.
    pub left_out: Vec<String>,
    /// What the reader should know, one sentence each.
    pub notes: Vec<String>,
}

/// Why a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stopped {
    /// Every interval is narrow enough.
    Narrow,
    /// All blocks were measured.
    Blocks,
    /// The time was up.
    Time,
    /// Ctrl-C, or a signal.
    Interrupted,
    /// A cell could not be measured.
    Failed,
}

/// The figures of one cell.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CellResult {
    /// The cell for people.
    pub label: String,
    /// The level of each factor.
    pub levels: BTreeMap<String, String>,
    /// The median, the least and the largest figure; `null` without a whole block.
    pub figure: Option<Spread>,
    /// Whether its levels were read back.
    pub verified: Option<Verified>,
}

impl Report {
    /// The report of these lines. `earlier_ends` is how often the run ended before between two looks.
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

    /// For a terminal of so many columns; each sentence and each row is one line where nothing limits it.
    pub fn text(&self, columns: Option<usize>) -> String {
        text::text(self, columns)
    }

    /// As one HTML file with this style.
    pub fn html(&self, style: &str) -> String {
        html::html(self, style)
    }

    pub fn markdown(&self) -> String {
        markdown::markdown(self)
    }
}

impl Stopped {
    /// As the end of a sentence that begins with "it ended because".
    pub fn words(self, precision_percent: f64) -> String {
        match self {
            Self::Narrow => format!("every interval is at most ± {precision_percent:.1} %"),
            Self::Blocks => "all blocks were measured".to_owned(),
            Self::Time => "the time was up".to_owned(),
            Self::Interrupted => "somebody stopped it".to_owned(),
            Self::Failed => "a cell could not be measured".to_owned(),
        }
    }
}
