//! An experiment, as its file defines it.

mod read;

use std::time::Duration;

use polyrail_config::Config;
use polyrail_report::without_invitation;
use serde::{Deserialize, Serialize, Serializer};

use crate::effect::Better;
use crate::error::ExperimentError;
use crate::figure::Figure;
use crate::plan::{CELLS_MAX, Design, Factor, Kind, Looks, Plan};
use crate::ranks::DIFFERENCES_MAX;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Experiment {
    /// File that it was read from, as named in messages.
    #[serde(skip)]
    pub file: String,
    pub name: String,
    /// Purpose of the experiment; may be empty.
    pub about: String,
    /// Measurement of a cell.
    pub measure: Measure,
    /// Place of the figure in the output of the measurement.
    pub figure: Figure,
    /// Direction of better figures: higher or lower.
    pub better: Better,
    pub factors: Vec<Factor>,
    /// Settings of every cell.
    pub settings: Vec<(String, String)>,
    /// Interfaces that the factors of the host affect; all if empty.
    pub nics: Vec<String>,
    /// Choice of cells.
    pub design: Design,
    pub blocks: usize,
    /// Maximum duration; a block that would end later does not start.
    #[serde(serialize_with = "seconds")]
    pub time: Duration,
    /// Half the width of an interval that is narrow enough, as a share.
    pub precision: f64,
    /// Seed of the order.
    pub seed: u64,
}

/// Measurement of a cell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// `polyrail bench` with these options.
    #[serde(serialize_with = "without_invitations")]
    Bench(Vec<String>),
    /// The user's own command.
    #[serde(serialize_with = "without_invitations")]
    Command(Vec<String>),
}

impl Measure {
    /// Returns the words, in which `{factor}` stands for the factor's level.
    pub fn words(&self) -> &[String] {
        match self {
            Self::Bench(words) | Self::Command(words) => words,
        }
    }

    /// Returns the words as shown in reports and journals.
    pub fn shown_words(&self) -> Vec<String> {
        self.words().iter().map(|word| without_invitation(word)).collect()
    }
}

fn without_invitations<S: Serializer>(words: &[String], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(words.iter().map(|word| without_invitation(word)))
}

impl Experiment {
    /// Parses a file; `file` is its name in messages.
    ///
    /// # Errors
    /// [`ExperimentError`] with the place and the fault.
    pub fn parse(text: &str, file: &str) -> Result<Self, ExperimentError> {
        read::experiment(text, file)
    }

    /// Returns the plan and its looks. `runs` returns whether a cell can be measured here.
    ///
    /// # Errors
    /// If cells conflict, are too many, or the blocks are too few to compare them.
    pub fn plan(&self, runs: impl Fn(&[usize]) -> bool) -> Result<(Plan, Looks), ExperimentError> {
        let file = || self.file.clone();
        let plan = Plan::new(self.factors.clone(), self.design, self.seed, runs)
            .map_err(|count| ExperimentError::TooMany { file: file(), count, most: CELLS_MAX })?;
        for cell in 0..plan.cells.len() {
            self.config(&plan.cells[cell]).map_err(|conflict| ExperimentError::Conflict {
                file: file(),
                cell: plan.label(cell),
                conflict: Box::new(conflict),
            })?;
        }
        let comparisons = plan.comparisons().len();
        let looks = Looks::new(comparisons, self.blocks).map_err(|fewest| {
            let (blocks, most) = (self.blocks, DIFFERENCES_MAX);
            ExperimentError::FewBlocks { file: file(), blocks, comparisons, fewest, most }
        })?;
        Ok((plan, looks))
    }

    /// Returns the plan of a sweep: every cell whose settings are compatible.
    ///
    /// # Errors
    /// If there are too many cells.
    pub fn sweep(&self) -> Result<Plan, ExperimentError> {
        let goes = |cell: &[usize]| self.config(cell).is_ok();
        let (file, most) = (self.file.clone(), CELLS_MAX);
        Plan::new(self.factors.clone(), self.design, self.seed, goes)
            .map_err(|count| ExperimentError::TooMany { file, count, most })
    }

    /// Returns the settings that a cell is measured with.
    pub fn settings_of(&self, plan: &Plan, cell: usize) -> Vec<(String, String)> {
        self.settings_at(&plan.cells[cell])
    }

    fn settings_at(&self, cell: &[usize]) -> Vec<(String, String)> {
        let levels = self.factors.iter().zip(cell);
        let of_factors = levels
            .filter(|(factor, _)| factor.kind == Kind::Setting)
            .map(|(factor, level)| (factor.name.clone(), factor.levels[*level].clone()));
        // A factor overrides what is given for every cell.
        self.settings.iter().cloned().chain(of_factors).collect()
    }

    /// Returns the command of a cell, with its levels filled in.
    pub fn words_of(&self, plan: &Plan, cell: usize) -> Vec<String> {
        let levels = plan.levels(cell);
        let filled = |word: &String| {
            levels.iter().fold(word.clone(), |word, (name, level)| {
                word.replace(&format!("{{{name}}}"), level)
            })
        };
        self.measure.words().iter().map(filled).collect()
    }

    /// Returns the settings of a cell, checked for conflicts.
    fn config(&self, cell: &[usize]) -> Result<Config, polyrail_config::ConfigError> {
        let mut settings = self.settings_at(cell).into_iter();
        settings.try_fold(Config::builder(), |all, (name, value)| all.set(&name, &value))?.build()
    }

    /// Returns the expected settings of a cell, by name, in the form of `bench`'s JSON.
    pub fn expected(&self, plan: &Plan, cell: usize) -> Vec<(String, serde_json::Value)> {
        let Ok(config) = self.config(&plan.cells[cell]) else { return Vec::new() };
        let mut given: Vec<String> =
            self.settings_of(plan, cell).into_iter().map(|(name, _)| name).collect();
        given.dedup();
        let rows =
            config.rows().into_iter().filter(|row| given.iter().any(|name| name == row.name));
        rows.map(|row| (row.name.to_owned(), serde_json::to_value(&row.raw).unwrap_or_default()))
            .collect()
    }
}

fn seconds<S: serde::Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}
