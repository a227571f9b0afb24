//! The report of a sweep, as text, JSON and YAML.

use std::collections::BTreeMap;

use polyrail_experiment::{Effect, HeatMap, Sensitivity, unit_of};
use polyrail_report::{Align, Spread, Table, counted};
use serde::{Deserialize, Serialize};

use crate::cmd::study::report::{Comparison, ComparisonReport};
use crate::stdout::{fitted, wrapped_sentences};

/// Version of the JSON, raised when a field changes its meaning or goes away.
pub(super) const SCHEMA_VERSION: u32 = 1;

/// The report of a sweep or autotune.
#[derive(Serialize, Deserialize)]
pub(super) struct SweepReport {
    #[serde(flatten)]
    pub(super) comparison: Comparison,
    pub(super) command: String,
    pub(super) bench: Vec<String>,
    pub(super) sensitivity: Vec<Sensitivity>,
    pub(super) heat_maps: Vec<HeatMap>,
    pub(super) best: Best,
    pub(super) proof: Option<Effect>,
    pub(super) cells: Vec<SweptCell>,
}

/// The best cell of the search.
#[derive(Serialize, Deserialize)]
pub(super) struct Best {
    pub(super) is_default: bool,
    pub(super) levels: BTreeMap<String, String>,
    /// Settings that differ from the default.
    pub(super) settings: BTreeMap<String, String>,
}

/// A cell and its results.
#[derive(Serialize, Deserialize)]
pub(super) struct SweptCell {
    pub(super) levels: BTreeMap<String, String>,
    pub(super) measured: usize,
    pub(super) figure: Option<Spread>,
}

impl ComparisonReport for SweepReport {
    fn comparison(&self) -> &Comparison {
        &self.comparison
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{}: {}, {} in {:.0} s\n\n",
            self.command,
            counted(self.cells.len() as u64, "cell"),
            counted(self.comparison.blocks as u64, "block"),
            self.comparison.elapsed_s
        );
        if self.cells.iter().all(|cell| cell.measured == 0) {
            text.push_str("stopped in the first block: nothing is kept of it\n");
            return text + &self.comparison.notes();
        }
        text.push_str(&fitted(&self.settings()));
        if let Some(map) = self.map_of_the_two_that_matter() {
            let figure = &self.comparison.figure;
            text.push_str(&format!(
                "\n{} (down) by {} (across), {}\n{}",
                map.row_factor,
                map.column_factor,
                unit_of(figure).unwrap_or(figure),
                heat(map)
            ));
        }
        text.push_str(&format!("\n{}\n", wrapped_sentences(&self.verdict())));
        text + &self.comparison.notes()
    }

    fn file(&self) -> Option<String> {
        let proof = self.proof.as_ref().filter(|_| !self.comparison.keep_default)?;
        let workload = format!("Workload: polyrail bench {}", self.bench.join(" "));
        let against = "default, in a fresh run of pairs";
        let mut text = self.comparison.comments(&self.command, &workload, against, proof);
        for (name, value) in &self.best.settings {
            // JSON's quotes mean the same in YAML.
            text.push_str(&format!("{name}: {}\n", serde_json::Value::from(value.as_str())));
        }
        Some(text)
    }
}

impl SweepReport {
    /// Whether a cell was measured again. Otherwise its noise is not known, and no cell is better than another.
    pub(super) fn is_ranked(&self) -> bool {
        self.cells.iter().any(|cell| cell.measured > 1)
    }

    /// Table of how much each setting matters. Differences within the noise have no best value.
    fn settings(&self) -> Table {
        let mut table = Table::default()
            .column("setting", Align::Left)
            .column("matters", Align::Right)
            .column("highest at", Align::Left)
            .column("lowest at", Align::Left);
        for one in &self.sensitivity {
            let cells = match one.noise_percent {
                Some(noise) if one.percent > noise => {
                    [format!("{:.1} %", one.percent), one.highest.clone(), one.lowest.clone()]
                }
                Some(_) => ["within noise", "–", "–"].map(str::to_owned),
                None => ["not ranked (one round)", "–", "–"].map(str::to_owned),
            };
            table.row([one.factor.clone()].into_iter().chain(cells));
        }
        table
    }

    pub(super) fn verdict(&self) -> String {
        let settings: Vec<String> =
            self.best.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
        match (&self.proof, self.best.is_default) {
            // The best of some cells may not be the best of all.
            (None, _) if self.comparison.interrupted => {
                "no answer: interrupted before all was measured and confirmed".to_owned()
            }
            (_, true) if !self.is_ranked() => {
                "keep the default: one round decides nothing about the others".to_owned()
            }
            (_, true) => "keep the default: the median of no cell was better".to_owned(),
            (None, false) => format!("keep the default: {} was not confirmed", settings.join(" ")),
            (Some(proof), false) if self.comparison.keep_default => {
                let settings = settings.join(" ");
                format!("keep the default: no proof that {settings} is better: {}", proof.words)
            }
            (Some(proof), false) => {
                let best = if self.is_ranked() { "best: " } else { "" };
                format!("{best}{}; against the default: {}", settings.join(" "), proof.words)
            }
        }
    }

    fn map_of_the_two_that_matter(&self) -> Option<&HeatMap> {
        let two = [self.sensitivity.first()?, self.sensitivity.get(1)?];
        let names = two.map(|one| &one.factor);
        if !two.iter().all(|one| one.exceeds_noise()) {
            return None;
        }
        self.heat_maps
            .iter()
            .find(|map| names.contains(&&map.row_factor) && names.contains(&&map.column_factor))
    }
}

/// Table of results with bars. All users can tell bars apart, unlike colours.
fn heat(map: &HeatMap) -> String {
    let all = || map.figures.iter().flatten().flatten().copied();
    let most = all().fold(f64::MIN, f64::max);
    let least = all().fold(f64::MAX, f64::min);
    let mut table = Table::default().column("", Align::Left);
    for column in &map.columns {
        table = table.column(column.clone(), Align::Right);
    }
    for (row, figures) in map.rows.iter().zip(&map.figures) {
        let cell = |figure: &Option<f64>| match figure {
            Some(figure) => {
                let share = if most > least { (figure - least) / (most - least) } else { 1.0 };
                format!("{figure:.3} {}", BARS[(share * (BARS.len() - 1) as f64).round() as usize])
            }
            None => "-".to_owned(),
        };
        table.row([row.clone()].into_iter().chain(figures.iter().map(cell)));
    }
    fitted(&table)
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[cfg(test)]
pub(super) mod tests {
    use polyrail_config::Config;
    use polyrail_experiment::{Better, Figure, Measure, Rule, Verdict};
    use polyrail_report::Host;

    use super::*;
    use crate::cmd::study::template;

    pub(crate) fn report(pairs: &[(f64, f64)]) -> SweepReport {
        let rule = Rule { better: Better::Higher, precision: 0.01, miss: 0.05 };
        let proof = rule.against("best", "default", pairs);
        let settings = [("chunk_bytes", "1MiB"), ("congestion", "cubic")];
        let settings: BTreeMap<String, String> =
            settings.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let figure = (Figure::of_bench(), Better::Higher);
        let experiment = template("sweep", Measure::Bench(Vec::new()), figure, Vec::new());
        SweepReport {
            comparison: Comparison {
                host: Host { hostname: "node\nchannels: 9".to_owned(), ..crate::host::describe() },
                keep_default: proof.verdict != Verdict::Better,
                ..Comparison::of(SCHEMA_VERSION, &experiment, Better::Higher)
            },
            command: "sweep".to_owned(),
            bench: vec!["--sizes".to_owned(), "8".to_owned()],
            sensitivity: Vec::new(),
            heat_maps: Vec::new(),
            best: Best { is_default: false, levels: settings.clone(), settings },
            proof: Some(proof),
            cells: vec![SweptCell { levels: BTreeMap::new(), measured: 3, figure: None }],
        }
    }

    #[test]
    fn a_difference_within_noise_has_no_best_value_and_one_round_no_noise() {
        let one = |factor: &str, percent, noise_percent| Sensitivity {
            factor: factor.to_owned(),
            percent,
            highest: "high".to_owned(),
            lowest: "low".to_owned(),
            noise_percent,
        };
        let mut report = report(&[]);
        report.sensitivity = vec![one("channels", 12.8, Some(4.0)), one("sockets", 3.0, Some(4.0))];
        let text = report.settings().fitted(None);
        let row = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row(&text, "channels"), "channels 12.8 % high low");
        assert_eq!(row(&text, "sockets"), "sockets within noise – –");
        report.sensitivity = vec![one("channels", 12.8, None)];
        let text = report.settings().fitted(None);
        assert_eq!(row(&text, "channels"), "channels not ranked (one round) – –");
    }

    #[test]
    fn one_round_ranks_nothing_and_names_no_best_cell() {
        let mut wins = report(&[(12.0, 10.0); 8]);
        wins.cells[0].measured = 1;
        assert!(
            wins.verdict()
                .starts_with("chunk_bytes=1MiB congestion=cubic; against the default: +20.0 %")
        );
        let mut default = SweepReport { proof: None, ..wins };
        default.best.is_default = true;
        assert_eq!(
            default.verdict(),
            "keep the default: one round decides nothing about the others"
        );
    }

    #[test]
    fn a_sweep_that_was_stopped_before_its_first_figure_has_no_table() {
        let mut stopped = report(&[]);
        stopped.cells[0].measured = 0;
        let text = stopped.text();
        assert!(text.contains("nothing is kept of it\n") && !text.contains("setting"), "{text}");
    }

    #[test]
    fn what_wins_is_a_file_that_settings_are_read_from_and_what_does_not_win_is_none() {
        let wins = report(&[(12.0, 10.0); 8]);
        let text = wins.file().unwrap();
        let config = Config::builder().yaml(&text, "best.yml").unwrap().build().unwrap();
        assert_eq!((config.chunk_bytes, config.channels), (1 << 20, Config::default().channels));
        assert!(text.contains("pairs: +20.0 % ± 0.0 %, better.\n"), "{text}");
        assert!(text.starts_with("# Found by polyrail sweep "), "{text}");
        assert!(
            wins.text()
                .contains("best: chunk_bytes=1MiB congestion=cubic; against the default: +20.0 %")
        );
        let none = report(&[(10.0, 10.0); 8]);
        assert_eq!(none.file(), None);
        assert!(none.text().contains(
            "keep the default: no proof that chunk_bytes=1MiB congestion=cubic is better: 0.0 %"
        ));
        let few = report(&[(12.0, 10.0); 3]);
        assert_eq!(few.file(), None, "three pairs prove nothing");
    }

    #[test]
    fn a_search_that_was_stopped_does_not_say_that_the_default_is_the_best() {
        let mut stopped = SweepReport { proof: None, ..report(&[]) };
        stopped.best.is_default = true;
        assert!(stopped.text().contains("keep the default: the median of no cell was better"));
        stopped.comparison.interrupted = true;
        let text = stopped.text();
        assert!(text.contains("no answer: interrupted") && !text.contains("keep"), "{text}");
        stopped.best.is_default = false;
        let text = stopped.text();
        assert!(text.contains("no answer: interrupted") && !text.contains("keep"), "{text}");
        assert!(!text.contains("channels") && !text.contains("chunk_bytes"), "{text}");
    }

    #[test]
    fn a_map_shows_its_figures_with_bars_and_a_gap_where_nothing_was_measured() {
        let map = HeatMap {
            row_factor: "a".to_owned(),
            column_factor: "b".to_owned(),
            rows: vec!["1".to_owned(), "2".to_owned()],
            columns: vec!["x".to_owned(), "y".to_owned()],
            figures: vec![vec![Some(1.0), Some(2.0)], vec![None, Some(1.5)]],
        };
        let text = heat(&map);
        assert!(text.contains("1.000 ▁  2.000 █") && text.contains("-  1.500 ▅"), "{text}");
    }
}
