//! The options of `sweep` and `autotune`.

use std::path::PathBuf;
use std::time::Duration;

use polyrail_config::{Config, steers};
use polyrail_experiment::Design;
use polyrail_report::without_invitation;

use crate::cmd::bench::check_options;
use crate::cmd::study::cell::OURS;
use crate::files::OutFile;
use crate::values::{
    Over, Refusal, fault_of, file_to_keep, file_to_write, has_option, number_within, over,
    time_within,
};

/// Short workload, because each cell is measured many times.
const BENCH: &str = "--sizes 16MiB --time 200ms --warmup 50ms --rounds 1";

/// Settings and values without --over.
const OVER: &[(&str, &[&str])] = &[
    ("chunk_bytes", &["256KiB", "512KiB", "1MiB", "2MiB"]),
    ("window_chunks", &["8", "16", "32"]),
    ("channels", &["1", "2", "4"]),
    ("sockets", &["1", "2"]),
];

const ALLOWED: &str = "NAME=A,B: a setting and its values, such as chunk_bytes=512KiB,1MiB";
const SETTINGS: &str = "`polyrail config show` lists all settings";

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Arguments of `sweep`.
#[derive(clap::Args)]
pub(crate) struct SweepArgs {
    /// Number of measurements of each cell; not with --budget.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = number_within(1, 100), conflicts_with = "budget")]
    rounds: u64,

    /// Find the best cell in about this time: the slower half of the cells leaves again and again. Without
    /// it every cell is measured --rounds times.
    // In less time no cell is measured.
    #[arg(long, value_name = "TIME", value_parser = time_within(Duration::from_secs(1), DAY, "1s to 24h"))]
    budget: Option<Duration>,

    /// Cells to measure.
    #[arg(long, value_enum, default_value = "grid")]
    design: DesignWord,

    #[command(flatten)]
    common: Common,
}

/// Arguments of `autotune`.
#[derive(clap::Args)]
pub(crate) struct AutotuneArgs {
    /// Approximate time for the search and the confirmation.
    #[arg(long, value_name = "TIME", default_value = "5min", value_parser = time_within(Duration::from_secs(1), DAY, "1s to 24h"))]
    budget: Duration,

    #[command(flatten)]
    common: Common,
}

#[derive(clap::Args)]
struct Common {
    /// Vary a setting, like chunk_bytes=512KiB,1MiB; may be repeated [default: chunk_bytes, window_chunks, channels
    /// and sockets]. Its default is always among the values.
    #[arg(long, value_name = "NAME=A,B", value_parser = over(ALLOWED, SETTINGS, check))]
    over: Vec<Over>,

    /// The workload: options of `polyrail bench`, as one text. With --latency among them lower is better.
    #[arg(long, value_name = "OPTIONS", default_value = BENCH, value_parser = bench, allow_hyphen_values = true)]
    bench: Bench,

    /// Write the best configuration as YAML, if it is better than the default.
    #[arg(long, value_name = "FILE", value_parser = file_to_write())]
    output: Option<OutFile>,

    /// Keep figures in this file, and go on where it ends. Everything but the time must be as it was.
    #[arg(long, value_name = "FILE", value_parser = file_to_keep())]
    journal: Option<OutFile>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum DesignWord {
    /// Each value with each of the others.
    Grid,
    /// Each value alone, with the defaults of the others.
    OneAtATime,
}

#[derive(Clone, Debug)]
struct Bench(Vec<String>);

/// Options of a search, from either command.
pub(super) struct Wanted {
    pub(super) name: &'static str,
    pub(super) over: Vec<Over>,
    pub(super) bench: Vec<String>,
    pub(super) output: Option<PathBuf>,
    pub(super) journal: Option<PathBuf>,
    pub(super) json: bool,
    pub(super) design: Design,
    pub(super) rounds: usize,
    pub(super) budget: Option<Duration>,
}

impl Wanted {
    /// Options of `bench` for reports and journals, without the keys of connect strings.
    pub(super) fn shown_bench(&self) -> Vec<String> {
        self.bench.iter().map(|word| without_invitation(word)).collect()
    }

    /// Options that make the search shorter.
    pub(super) fn less(&self) -> &'static str {
        match self.budget {
            // One round would rank nothing.
            None if self.rounds > 2 => {
                "--over chunk_bytes=512KiB,1MiB, --rounds 2 or --budget 2min"
            }
            _ => "--over chunk_bytes=512KiB,1MiB or --budget 2min",
        }
    }
}

impl SweepArgs {
    pub(super) fn wanted(&self) -> Wanted {
        let design = match self.design {
            DesignWord::Grid => Design::Grid,
            DesignWord::OneAtATime => Design::OneAtATime,
        };
        Wanted { design, rounds: self.rounds as usize, ..self.common.wanted("sweep", self.budget) }
    }
}

impl AutotuneArgs {
    pub(super) fn wanted(&self) -> Wanted {
        self.common.wanted("autotune", Some(self.budget))
    }
}

impl Common {
    fn wanted(&self, name: &'static str, budget: Option<Duration>) -> Wanted {
        let built_in = OVER.iter().map(|(name, values)| Over::new(name, values));
        Wanted {
            name,
            over: if self.over.is_empty() { built_in.collect() } else { self.over.clone() },
            bench: self.bench.0.clone(),
            output: self.output.clone().map(PathBuf::from),
            journal: self.journal.clone().map(PathBuf::from),
            json: self.json,
            design: Design::Grid,
            rounds: 1,
            budget,
        }
    }
}

fn check(name: &str, value: &str) -> Result<(), Refusal> {
    Config::builder().set(name, value)?;
    Ok(())
}

/// Parses options of `bench`, and refuses those that it would refuse.
fn bench(text: &str) -> Result<Bench, Refusal> {
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let refused = |fault: &str| {
        Refusal::new(fault, "options of `polyrail bench`, but --json, --csv, --listen and --why")
            .with_help("`polyrail bench --help` lists them")
    };
    if words.is_empty() {
        return Err(refused("is empty"));
    }
    if text.contains(steers) {
        return Err(refused("has a control character"));
    }
    if has_option(&words, OURS) {
        return Err(refused("has an option that this command gives itself"));
    }
    match check_options(words.iter().map(String::as_str)) {
        Ok(_) => Ok(Bench(words)),
        Err(message) => Err(refused(&format!("is refused by bench ({})", fault_of(&message)))),
    }
}
