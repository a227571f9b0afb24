//! The options of `nccl tune`, and their experiment.

use std::time::Duration;

use polyrail_experiment::{Better, Experiment, Factor, Figure, Kind, Measure};
use polyrail_report::exit;
use serde::Serialize;

use crate::cmd::collective::check_options;
use crate::cmd::nccl::variables;
use crate::cmd::study::{factors, fault_of_over, template, this_program};
use crate::fault::Fault;
use crate::files::OutFile;
use crate::values::{Over, Refusal, fault_of, file_to_write, has_option, over, time_within};

/// The level that leaves a variable as it is.
const UNCHANGED: &str = "unchanged";
/// Maximum number of blocks of one variable at a time.
const BLOCKS_MAX: usize = 64;
/// Limit on the time of one run of the command.
const COMMAND_TIME: Duration = Duration::from_secs(3600);

/// Arguments of the subcommand.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TuneArgs {
    /// Goal of the search.
    #[arg(long, value_enum, default_value = "throughput")]
    pub(super) goal: Goal,

    /// Try values of a variable, like NCCL_BUFFSIZE=2097152,8388608 or POLYRAIL_CHUNK_BYTES=1MiB; may be
    /// repeated [default: some that suit the goal].
    #[arg(long, value_name = "NAME=A,B", value_parser = over(ALLOWED, VARIABLES, variables::check))]
    over: Vec<Over>,

    /// Approximate time for the whole run.
    #[arg(long, value_name = "TIME", default_value = "10min",
        value_parser = time_within(Duration::from_secs(1), Duration::from_secs(24 * 3600), "1s to 24h"))]
    pub(super) budget: Duration,

    /// Write the variables that won as nccl.conf, if any did.
    #[arg(long, value_name = "FILE", value_parser = file_to_write())]
    pub(super) output: Option<OutFile>,

    /// Print JSON.
    #[arg(long)]
    pub(super) json: bool,

    /// Your own job, behind `--`; without it, `polyrail collective` over the plugin.
    #[arg(value_name = "CMD", last = true, requires = "figure")]
    command: Vec<String>,

    /// Pattern that finds the time of a step in the job's output, with one group around the number; the last match
    /// counts. A JSON pointer works, too.
    #[arg(long, value_name = "PATTERN", value_parser = figure, requires = "command",
        help_heading = JOB, allow_hyphen_values = true)]
    figure: Option<Figure>,

    /// Numbers that are better: lower ones, as of a time, or higher ones, as of a rate.
    #[arg(long, value_enum, default_value = "lower", requires = "command", help_heading = JOB)]
    better: BetterWord,

    /// Without a job: words of `polyrail collective`, as one text.
    ///
    /// For example `alltoall --ranks 4 --sizes 1MiB`, with one size. Without --sizes the size is 8 for the goal latency, and 16MiB
    /// otherwise.
    #[arg(long, value_name = "OPTIONS", default_value = "all_reduce", value_parser = collective,
        conflicts_with = "command", allow_hyphen_values = true)]
    collective: Words,
}

/// Arguments of a command as one value.
#[derive(Clone, Debug)]
struct Words(Vec<String>);

/// The figure that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Goal {
    /// The time of a small operation, or of a step of the job.
    Latency,
    /// The bus bandwidth of a large operation, or the time of a step.
    Throughput,
    /// CPU time, of the command and all that it waited for.
    Cpu,
    /// The geometric mean of time and CPU time.
    Balance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum BetterWord {
    Lower,
    Higher,
}

const EXAMPLES: &str = "\
Examples:
  polyrail nccl tune --goal latency --budget 3min
  polyrail nccl tune --over NCCL_BUFFSIZE=2097152,8388608 --figure 'step ([0-9.]+) ms' -- torchrun train.py

`polyrail nccl variables` lists the variables. docs/nccl.md (in packages: /usr/share/doc/polyrail/docs) explains the answer.";

const ALLOWED: &str =
    "NAME=A,B: a variable and values to try, such as NCCL_BUFFSIZE=2097152,8388608";
const VARIABLES: &str = "`polyrail nccl variables` lists the variables";

const JOB: &str = "Your own job";

/// Values to try without --over. `polyrail collective` runs no NCCL, so there only the plugin's own are tried.
const OURS: &[(Goal, &str, &[&str])] = &[
    (Goal::Latency, "POLYRAIL_NCCL_EXPRESS_BYTES", &["0", "32KiB"]),
    (Goal::Latency, "POLYRAIL_SPIN", &["auto", "200us"]),
    (Goal::Throughput, "POLYRAIL_CHUNK_BYTES", &["512KiB", "2MiB"]),
    (Goal::Throughput, "POLYRAIL_CHANNELS", &["2", "8"]),
    (Goal::Throughput, "POLYRAIL_WINDOW_CHUNKS", &["8", "32"]),
    (Goal::Cpu, "POLYRAIL_SPIN", &["off"]),
    (Goal::Cpu, "POLYRAIL_CHUNK_BYTES", &["2MiB"]),
    (Goal::Balance, "POLYRAIL_SPIN", &["auto", "200us"]),
    (Goal::Balance, "POLYRAIL_CHUNK_BYTES", &["512KiB", "2MiB"]),
];
/// More values to try with a job.
const NCCLS: &[(Goal, &str, &[&str])] = &[
    (Goal::Latency, "NCCL_PROTO", &["Simple", "LL"]),
    (Goal::Latency, "NCCL_MAX_NCHANNELS", &["2", "4"]),
    (Goal::Throughput, "NCCL_BUFFSIZE", &["2097152", "8388608"]),
    (Goal::Throughput, "NCCL_MIN_NCHANNELS", &["4", "8"]),
    (Goal::Throughput, "NCCL_NCHANNELS_PER_NET_PEER", &["4", "8"]),
    (Goal::Throughput, "NCCL_P2P_NET_CHUNKSIZE", &["262144", "524288"]),
    (Goal::Cpu, "NCCL_MAX_NCHANNELS", &["2", "4"]),
    (Goal::Balance, "NCCL_BUFFSIZE", &["8388608"]),
    (Goal::Balance, "NCCL_MIN_NCHANNELS", &["8"]),
    (Goal::Balance, "NCCL_P2P_NET_CHUNKSIZE", &["524288"]),
];

impl TuneArgs {
    /// The experiment that changes one variable at a time.
    pub(super) fn experiment(&self) -> Result<Experiment, Fault> {
        let factors = factors(&self.over(), "variable", |Over { name, values }| {
            if self.command.is_empty() && !variables::is_read_by_plugin(name) {
                let fault = format!(
                    "`{name}` has no effect on `polyrail collective`, which runs no NCCL; allowed without a job: variables that the plugin reads"
                );
                return Err(fault_of_over(&fault, "give your own job: --figure PATTERN -- CMD"));
            }
            let levels = [UNCHANGED].into_iter().chain(values.iter().map(String::as_str));
            let levels = levels.map(str::to_owned).collect();
            Ok(Factor { name: name.clone(), kind: Kind::Variable, levels, baseline: 0 })
        })?;
        let (words, figure) = self.measure()?;
        let experiment = template("nccl tune", Measure::Command(words), figure, factors);
        Ok(Experiment { blocks: BLOCKS_MAX, time: COMMAND_TIME, ..experiment })
    }

    fn over(&self) -> Vec<Over> {
        if !self.over.is_empty() {
            return self.over.clone();
        }
        let of_nccl = if self.command.is_empty() { &[] } else { NCCLS };
        let suits = of_nccl.iter().chain(OURS).filter(|(goal, ..)| *goal == self.goal);
        suits.map(|(_, name, values)| Over::new(name, values)).collect()
    }

    /// The command, the place of its result, and the direction that is better.
    fn measure(&self) -> Result<(Vec<String>, (Figure, Better)), Fault> {
        if let Some(figure) = &self.figure {
            let better = match self.better {
                BetterWord::Lower => Better::Lower,
                BetterWord::Higher => Better::Higher,
            };
            return Ok((self.command.clone(), (figure.clone(), better)));
        }
        let program = this_program()?;
        let is_small = self.goal == Goal::Latency;
        let (size, iterations) = if is_small { ("8", "2000") } else { ("16MiB", "20") };
        let defaults = [("--sizes", size), ("--iterations", iterations), ("--type", "uint8")];
        let is_absent = |(option, _): &(&str, &str)| {
            let is_it = |word: &String| word.split('=').next() == Some(option);
            !self.collective.0.iter().any(is_it)
        };
        let forced = [("--rounds", "1"), ("--check", "off"), ("--json", "-")];
        let added = defaults.into_iter().filter(is_absent).chain(forced);
        let mut words = vec![program.display().to_string(), "collective".to_owned()];
        words.extend(self.collective.0.iter().cloned());
        words.extend(added.flat_map(|(option, value)| [option.to_owned(), value.to_owned()]));
        let (place, better) = match is_small {
            true => ("/plugins/0/sizes/0/time_us/median", Better::Lower),
            false => ("/plugins/0/sizes/0/busbw_gb_per_s", Better::Higher),
        };
        let figure = Figure::parse(place)
            .map_err(|fault| Fault::new(exit::USAGE, format!("nccl tune: {fault}")))?;
        Ok((words, (figure, better)))
    }
}

/// Parses arguments of `collective`, and refuses those that it would refuse.
fn collective(text: &str) -> Result<Words, Refusal> {
    let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
    let refused = |fault: &str| {
        let allowed = "words of `polyrail collective`, but --json, --rounds, --check and --compare";
        Refusal::new(fault, allowed).with_help("`polyrail collective --help` lists them")
    };
    if has_option(&words, &["--json", "--rounds", "--check", "--compare"]) {
        return Err(refused("has an option that this command gives itself"));
    }
    if has_option(&words, &["--worker"]) {
        return Err(refused("has --worker, which collective gives to processes that it starts"));
    }
    match check_options(&words) {
        // Without --sizes, this command adds one size.
        Ok(count) if has_option(&words, &["--sizes"]) && count != 1 => {
            let fault = format!("measures {count} sizes, of which only the first would count");
            Err(Refusal::new(fault, "one size, such as --sizes 1MiB")
                .with_help("tune for each size in a run of its own"))
        }
        Ok(_) => Ok(Words(words)),
        Err(message) => Err(refused(&format!("is refused by collective ({})", fault_of(&message)))),
    }
}

fn figure(text: &str) -> Result<Figure, Refusal> {
    Figure::parse(text).map_err(|fault| {
        let (fault, allowed) = fault.split_once("; allowed: ").unwrap_or((&fault, ""));
        Refusal::new(fault, allowed)
            .with_help("put the number in brackets: --figure 'step time: ([0-9.]+)'")
    })
}
