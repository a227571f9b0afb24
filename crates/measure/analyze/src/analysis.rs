//! The analysis of a single profile.

use std::collections::BTreeMap;

use polyrail_profile::{
    Endpoint, Folder, Metric, Part, PathKind, Plan, Run, Sample, State, Word, shown_path,
};
use polyrail_report::without_invitation;
use serde::Serialize;

use crate::compare::Comparison;
use crate::conclusion::{conclusions, noisy_paths};
use crate::devices::{Clocks, Thermal, clocks, thermals};
use crate::drift::{Drift, drifts};
use crate::error::AnalyzeError;
use crate::links::{Asymmetry, Link, SlowLink, asymmetries, links, slow_links};
use crate::paths::{PathFigures, path_figures};
use crate::predictions::Judgement;
use crate::states::{SourceStates, source_states};
use crate::summary::{Counts, Metrics, Outlier, Summary, count, summarise};

/// Version of the JSON; raised when a field changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 2;

/// An analysis; as JSON it is the output of `polyrail analyze --json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Analysis {
    pub schema_version: u32,
    /// Origin of the results.
    pub about: About,
    /// Metric of each path's times.
    pub metrics: Vec<PathMetric>,
    /// Every endpoint of the plan.
    pub endpoints: Vec<Endpoint>,
    /// Content of the folder.
    pub counts: Counts,
    /// Conclusions to read first: whether the results can be used, and a summary of them.
    pub conclusions: Vec<String>,
    /// Warnings to read before trusting a result, one sentence each.
    pub warnings: Vec<String>,
    /// Each configuration with samples.
    pub configurations: Vec<Summary>,
    /// Results over all links of each path.
    pub path_figures: Vec<PathFigures>,
    pub links: Vec<Link>,
    /// Pairs whose two directions differ.
    pub asymmetries: Vec<Asymmetry>,
    /// Links that are slower than others of their path, unless the path is too noisy.
    pub slow_links: Vec<SlowLink>,
    /// Sources whose transfers are in one of two states.
    pub states: Vec<SourceStates>,
    /// Samples far from the median of their configuration, included in every result.
    pub outliers: Vec<Outlier>,
    pub drift: Vec<Drift>,
    /// Quality of the clock alignment.
    pub clocks: Clocks,
    /// Readings of the devices during the profile.
    pub thermals: Vec<Thermal>,
    /// Comparison with another profile, if requested.
    pub comparison: Option<Comparison>,
    /// Comparison of a simulator with the measurements, if requested.
    pub predictions: Option<Judgement>,
}

/// Origin of the results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct About {
    pub dir: String,
    pub hostname: String,
    pub kernel: Option<String>,
    /// Model of the first CPU; `null` in older profiles.
    pub cpu_model: Option<String>,
    /// Number of CPUs' worth of time that the program could use; `null` in older profiles.
    pub cpus: Option<u64>,
    /// Command line, without the program's name.
    pub arguments: Vec<String>,
    /// Other settings that the program recorded, by name.
    pub settings: BTreeMap<String, serde_json::Value>,
    /// Version of the program that measured.
    pub polyrail_version: String,
    /// Progress of the run.
    pub state: State,
    /// Start of the run, in ns since 1970 UTC.
    pub started_unix_ns: i64,
    /// Models of the devices, by rank.
    pub models: Vec<Option<String>>,
    /// Notes of the run itself.
    pub notes: Vec<String>,
    /// Minimum that the timer of each metric can show, in ns, if measured.
    pub timer_floor_ns: BTreeMap<String, f64>,
}

/// Metric of a path's times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PathMetric {
    pub path: PathKind,
    pub metric: &'static str,
    pub definition: &'static str,
}

/// Options of an analysis.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Metric of all times. Default for each path: the first of `t_gpu`, `t_oneway`, `t_rtt2` and `t_host` that most
    /// samples have.
    pub metric: Option<Metric>,
    /// Restricts the analysis to this path.
    pub path: Option<PathKind>,
}

/// Names of the machine's settings in `run.yml`.
const CPU_MODEL: &str = "cpu_model";
const CPUS: &str = "cpus_allowed";

/// Returns the settings to show: not those of the machine, and no `null` or empty ones.
fn settings(run: &Run) -> BTreeMap<String, serde_json::Value> {
    let is_empty = |value: &serde_json::Value| match value {
        serde_json::Value::Null => true,
        serde_json::Value::Array(list) => list.is_empty(),
        serde_json::Value::Object(map) => map.is_empty(),
        _ => false,
    };
    let is_shown = |(name, value): &(&String, &serde_json::Value)| {
        ![CPU_MODEL, CPUS].contains(&name.as_str()) && !is_empty(value)
    };
    let shown = run.settings.iter().filter(is_shown);
    shown.map(|(name, value)| (name.clone(), value.clone())).collect()
}

impl Analysis {
    /// Analyses a folder, even while it is being filled.
    ///
    /// # Errors
    /// If the folder can't be read, or no sample has the metric.
    pub fn of(folder: &Folder, options: Options) -> Result<Self, AnalyzeError> {
        let plan = folder.plan();
        let missing = folder.missing()?;
        let mut samples = folder.samples()?;
        let taken = samples.len();
        if let Some(path) = options.path {
            samples.retain(|one| plan.configurations[one.configuration as usize].path == path);
        }
        let run = folder.run();
        let metrics = metrics(plan, &samples, options.metric);
        let (configurations, outliers) = summarise(plan, &samples, &metrics, &run.timer_floor_ns);
        if configurations.is_empty() {
            let what = options.metric.map_or("a time", Word::word);
            let over = options.path.map_or(String::new(), |path| format!(" over {path}"));
            let needs_anchors = options.metric.is_none_or(|metric| metric == Metric::Oneway);
            let why = match needs_anchors && missing.contains(&Part::Anchors) {
                true => format!(", and {} is missing", Part::Anchors),
                false => String::new(),
            };
            return Err(AnalyzeError::Empty {
                dir: folder.dir().into(),
                what: format!("{what}{over}{why}"),
            });
        }
        let models = plan.endpoints.iter().map(|endpoint| {
            Ok(folder.metadata(endpoint.rank)?.and_then(|metadata| metadata.model))
        });
        let about = About {
            dir: shown_path(folder.dir()),
            hostname: run.hostname.clone(),
            kernel: run.kernel.clone(),
            cpu_model: run.settings.get(CPU_MODEL).and_then(|it| Some(it.as_str()?.to_owned())),
            cpus: run.settings.get(CPUS).and_then(serde_json::Value::as_u64),
            arguments: run.arguments.iter().map(|word| without_invitation(word)).collect(),
            settings: settings(run),
            polyrail_version: run.polyrail_version.clone(),
            state: run.state,
            started_unix_ns: run.unix_ns,
            models: models.collect::<Result<_, polyrail_profile::ProfileError>>()?,
            notes: run.notes.clone(),
            timer_floor_ns: run.timer_floor_ns.clone(),
        };
        let links = links(&configurations, &metrics);
        let mut analysis = Self {
            schema_version: SCHEMA_VERSION,
            about,
            metrics: metrics
                .iter()
                .map(|(&path, &metric)| PathMetric {
                    path,
                    metric: metric.word(),
                    definition: metric.definition(),
                })
                .collect(),
            endpoints: plan.endpoints.clone(),
            counts: count(plan, &samples, &metrics),
            conclusions: Vec::new(),
            warnings: Vec::new(),
            path_figures: path_figures(&links, &configurations, &metrics),
            states: source_states(plan, &samples, &configurations, &metrics),
            links,
            asymmetries: asymmetries(&configurations),
            slow_links: slow_links(&configurations),
            outliers,
            drift: drifts(plan, &samples, &configurations, &metrics),
            clocks: clocks(folder)?,
            thermals: thermals(&folder.temperatures()?),
            comparison: None,
            predictions: None,
            configurations,
        };
        // In a noisy path, some links look slower than others by chance.
        let noisy = noisy_paths(&analysis);
        analysis.slow_links.retain(|one| !noisy.contains(&one.path));
        analysis.warnings = missing.iter().map(|part| analysis.lacks(*part, run)).collect();
        analysis.warnings.extend(analysis.warn(run.reason.as_deref(), taken));
        analysis.conclusions = conclusions(&analysis, taken);
        Ok(analysis)
    }

    /// Returns the configuration with these properties, measured without load.
    pub fn find(&self, src: u32, dst: u32, path: PathKind, size_bytes: u64) -> Option<&Summary> {
        self.configurations.iter().find(|one| {
            (one.src, one.dst, one.path, one.size_bytes) == (src, dst, path, size_bytes)
                && one.load == polyrail_profile::Load::None
        })
    }

    /// Returns the paths that were measured.
    pub fn paths(&self) -> Vec<PathKind> {
        let mut paths: Vec<PathKind> = self.links.iter().map(|link| link.path).collect();
        paths.dedup();
        paths
    }

    /// Returns sizes to measure in addition, for [`Recorder::refine`](polyrail_profile::Recorder::refine): `per_break`
    /// for each break of each link, evenly spread on a logarithmic scale between the sizes around it. Omits sizes that
    /// are already measured.
    pub fn sizes_around_breaks(&self, per_break: u32) -> Vec<(u32, u32, PathKind, u64)> {
        let mut sizes = Vec::new();
        for link in &self.links {
            for one in link.usable_model().iter().flat_map(|model| &model.breaks) {
                let ratio = one.before_bytes as f64 / one.after_bytes as f64;
                for step in 1..=per_break {
                    let share = f64::from(step) / f64::from(per_break + 1);
                    let size = (one.after_bytes as f64 * ratio.powf(share)).round() as u64;
                    let is_new = (one.after_bytes + 1..one.before_bytes).contains(&size);
                    let next = (link.src, link.dst, link.path, size);
                    if is_new && sizes.last() != Some(&next) {
                        sizes.push(next);
                    }
                }
            }
        }
        sizes
    }

    /// Returns the single path, for a result that covers only one.
    pub(crate) fn one_path(&self, what: &'static str) -> Result<PathKind, AnalyzeError> {
        match self.paths()[..] {
            [path] => Ok(path),
            ref paths => {
                let names: Vec<&str> = paths.iter().map(|path| path.word()).collect();
                Err(AnalyzeError::ManyPaths { what, paths: names.join(", ") })
            }
        }
    }

    /// Describes what is unavailable without a missing file.
    fn lacks(&self, part: Part, run: &Run) -> String {
        let without = match part {
            Part::Temperatures => "only the samples tell about devices".to_owned(),
            Part::Anchors if run.clocks.len() > 1 => "clocks can't be compared".to_owned(),
            Part::Anchors => "nothing here needs it, for there is one clock".to_owned(),
            Part::Metadata { rank } => format!("the model of rank {rank} is not known"),
        };
        format!("{part} is missing: {without}")
    }

    /// Returns the warnings. `taken` counts the samples of all paths.
    fn warn(&self, reason: Option<&str>, taken: usize) -> Vec<String> {
        let mut warnings = Vec::new();
        let counts = &self.counts;
        if counts.verify_failed > 0 {
            warnings.push(format!("{} transfers brought wrong bytes", counts.verify_failed));
        }
        if self.about.state != State::Complete {
            let state = match self.about.state {
                State::Interrupted => "was interrupted",
                State::Failed => "failed",
                _ => "did not come to its end",
            };
            // An interrupted run has no other reason.
            let reason = reason.filter(|reason| !state.ends_with(*reason));
            let reason = reason.map_or(String::new(), |reason| format!(": {reason}"));
            warnings.push(format!(
                "the profile {state}{reason}; it has {taken} of {} samples",
                counts.planned
            ));
        } else if taken < counts.planned {
            warnings.push(format!(
                "{} of {} samples are missing",
                counts.planned - taken,
                counts.planned
            ));
        }
        if counts.throttled > 0 {
            warnings
                .push(format!("{} samples are of devices that were held back", counts.throttled));
        }
        let loose = self.configurations.iter().filter(|one| one.interval_ns.is_none()).count();
        if loose > 0 {
            warnings.push(format!(
                "{loose} configurations have fewer than 6 samples, too few for a confidence interval"
            ));
        }
        if counts.oneway_impossible > 0 {
            warnings.push(format!(
                "{} samples have one-way times below zero by more than the bound of their clocks: don't \
                 trust the others either",
                counts.oneway_impossible
            ));
        }
        let is_unsure = |one: &&Summary| {
            one.clock_uncertainty_ns.is_some_and(|bound| bound > UNSURE * one.median_ns)
        };
        let unsure = self.configurations.iter().filter(is_unsure).count();
        if unsure > 0 {
            warnings.push(format!(
                "{unsure} configurations have one-way times that the alignment of clocks may move by \
                 more than a fifth"
            ));
        }
        let two = self.configurations.iter().filter(|one| one.states.is_some()).count();
        if two > 0 {
            warnings.push(format!(
                "{two} configurations have two states: their median is that of the one with more samples"
            ));
        }
        let is_untold =
            |link: &&Link| link.alpha_beta.as_ref().is_some_and(|line| line.error.is_none());
        let untold = self.links.iter().filter(is_untold).count();
        if untold > 0 {
            warnings.push(format!(
                "{untold} links were measured at two sizes: any two lie on a line, so nothing tells how far \
                 others are off; measure 3 sizes or more"
            ));
        }
        let refused: Vec<_> = self.links.iter().filter_map(|link| link.model.as_ref()).collect();
        let count = refused.iter().filter(|model| model.refused.is_some()).count();
        if count > 0 {
            warnings.push(format!(
                "{count} of {} links have no model, since every candidate is too far off: use the \
                medians of their sizes",
                refused.len()
            ));
        }
        let near = self.configurations.iter().filter(|one| one.is_near_floor).count();
        if near > 0 {
            warnings
                .push(format!("{near} configurations are within three times the timer's floor"));
        }
        for drift in self.drift.iter().filter(|drift| drift.has_trend) {
            if drift.from_start_to_end_percent.abs() > 1.0 {
                warnings.push(drift.told());
            }
        }
        if !self.clocks.without_anchors.is_empty() {
            warnings.push(format!(
                "clocks without anchors: {}; there are no one-way times between them and others",
                self.clocks.without_anchors.join(", ")
            ));
        }
        for one in self.clocks.triangles.iter().filter(|one| !one.closes) {
            warnings.push(format!(
                "clocks {} and {} differ by up to {:.0} ns where {:.0} ns are possible: don't trust \
                 one-way times between them",
                one.clock, one.peer, one.max_ns, one.bound_ns
            ));
        }
        warnings
    }
}

/// Minimum uncertainty of one-way times to warn about, as a share of them.
const UNSURE: f64 = 0.2;

/// Chooses for each path the metric that most samples have; in a tie, the first in the order of preference.
fn metrics(plan: &Plan, samples: &[Sample], chosen: Option<Metric>) -> Metrics {
    let times = || Metric::ALL.into_iter().filter(|metric| *metric != Metric::Bandwidth);
    let mut counts: BTreeMap<PathKind, BTreeMap<Metric, usize>> = BTreeMap::new();
    for sample in samples {
        let path = plan.configurations[sample.configuration as usize].path;
        let counts = counts.entry(path).or_default();
        for metric in times().filter(|metric| sample.metric(*metric).is_some()) {
            *counts.entry(metric).or_default() += 1;
        }
    }
    let best = |(path, counts): (PathKind, BTreeMap<Metric, usize>)| {
        let count = |metric: &Metric| counts.get(metric).copied().unwrap_or(0);
        let usual = times().rev().filter(|metric| count(metric) > 0).max_by_key(count);
        Some((path, chosen.or(usual)?))
    };
    counts.into_iter().filter_map(best).collect()
}
