//! The options of `polyrail collective`.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use polyrail_collective::{Element, Operation};
use polyrail_report::exit;
use serde::{Deserialize, Serialize};

use crate::config_args::ConfigArgs;
use crate::fault::Fault;
use crate::files::OutFile;
use crate::usage;
use crate::values::{
    self, Refusal, RunLab, file_or_stdout, library_name, number_within, run_lab, time_within,
};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What the ranks do.
    #[arg(value_parser = operations())]
    pub(crate) operation: Operation,

    /// How many ranks run on this host [default: 2].
    #[arg(long, value_name = "N", value_parser = number_within(2, RANKS_MAX),
        conflicts_with = "lab", help_heading = WHERE)]
    ranks: Option<u64>,

    /// Run in a lab made for this, with a rank on each node.
    ///
    /// `8:2x1gbit` makes one of 8 nodes on a switch with two rails; 4gbit,1gbit are rails of two speeds.
    #[arg(long, value_name = "NODES:RATES", value_parser = run_lab, help_heading = WHERE)]
    pub(crate) lab: Option<RunLab>,

    /// The plugin: a library, as in NCCL_NET_PLUGIN, or `sockets` [default: polyrail, or `sockets` if
    /// that is not installed].
    ///
    /// `sockets` is the baseline that is built in, which works like NCCL's own transport, and `4x4` the
    /// same with 4 threads of 4 sockets.
    #[arg(long, value_name = "PLUGIN", value_parser = contestant, help_heading = OVER)]
    pub(crate) plugin: Option<Contestant>,

    /// Run the same over another plugin in turn, and print the ratio.
    ///
    /// Without a name that is `sockets`.
    #[arg(long, value_name = "PLUGIN", num_args = 0..=1, default_missing_value = "sockets",
        value_parser = contestant, help_heading = OVER)]
    pub(crate) compare: Option<Contestant>,

    /// Connections between two ranks [default: 4, or one for each rail of the lab if that is more].
    #[arg(long, value_name = "N", value_parser = number_within(1, CHANNELS_MAX),
        help_heading = OVER)]
    channels: Option<u64>,

    /// Sizes: a list, with ranges like 8..64MiB. Each size of such a range is twice the one before.
    ///
    /// Each rank needs twice the memory of the largest, and as much again with --compare.
    #[arg(long, value_name = "LIST", default_value = "8..64MiB", value_parser = sizes,
        help_heading = WHAT)]
    sizes: Sizes,

    /// The elements.
    #[arg(long = "type", value_name = "TYPE", default_value = "float", value_parser = elements(),
        help_heading = WHAT)]
    pub(crate) element: Element,

    /// Operations in a row that are timed together.
    #[arg(long, value_name = "N", default_value_t = 20,
        value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = HOW)]
    pub(crate) iterations: u32,

    /// Operations before that, without a clock.
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(0..=100_000), help_heading = HOW)]
    pub(crate) warmup: u32,

    /// How often each size is timed; the figure is the median.
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = HOW)]
    pub(crate) rounds: u32,

    /// Whether to compare every element of one more operation.
    #[arg(long, value_enum, default_value = "on", help_heading = HOW)]
    check: Switch,

    /// How long the ranks may take to meet, and for each round.
    #[arg(long, value_name = "TIME", default_value = "60s",
        value_parser = time_within(Duration::from_secs(1), Duration::from_secs(3600), "1s to 1h"),
        help_heading = HOW)]
    pub(crate) timeout: Duration,

    /// Write all figures as JSON to this file; `-` is standard output.
    #[arg(long, value_name = "FILE", value_parser = file_or_stdout(), help_heading = HOW)]
    pub(crate) json: Option<OutFile>,

    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// A rank that another process of this command started.
    #[arg(long, hide = true)]
    pub(crate) worker: bool,
}

/// Transport between the ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Contestant {
    /// A plugin, by its file or its value of NCCL_NET_PLUGIN.
    Plugin(String),
    /// The baseline. With 0 threads, the rank's own thread moves the data.
    Sockets { threads: u32, sockets: u32 },
}

/// The list of sizes as one value.
#[derive(Clone, Debug)]
struct Sizes(Vec<u64>);

/// A command line with nothing but these options.
#[derive(clap::Parser)]
#[command(name = "polyrail collective")]
struct Line {
    #[command(flatten)]
    args: Args,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

const EXAMPLES: &str = "\
Examples:
  polyrail collective all_reduce --ranks 4 --sizes 8..16MiB
  polyrail collective alltoall --ranks 4 --compare --json alltoall.json
  polyrail collective all_gather --lab 4:4x1gbit --compare 4x4
  polyrail collective sendrecv --plugin ./libnccl-net-other.so

docs/collective.md (in packages: /usr/share/doc/polyrail/docs) describes the figures.";

const WHERE: &str = "Where";
const OVER: &str = "Over what";
const WHAT: &str = "What";
const HOW: &str = "How";
const RANKS_MAX: u64 = 64;
const CHANNELS_MAX: u64 = 32;
/// The baseline takes messages up to this length; old plugins count in 32 bits.
const BYTES_MAX: u64 = 1 << 30;

impl Args {
    pub(crate) fn ranks(&self) -> usize {
        let ranks = self.ranks.map(|ranks| ranks as usize);
        self.lab.as_ref().map(|lab| lab.nodes).or(ranks).unwrap_or(2)
    }

    pub(crate) fn channels(&self) -> usize {
        let rails = self.lab.as_ref().map_or(0, |lab| lab.rates.len());
        self.channels.map_or(rails.max(4), |channels| channels as usize)
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.check == Switch::On
    }

    /// Sizes to measure, in the order given.
    pub(crate) fn sizes(&self) -> Result<Vec<usize>, Fault> {
        let (element, name) = (self.element.bytes() as u64, self.element.name());
        if let Some(size) = self.sizes.0.iter().find(|size| *size % element != 0) {
            let reason = format!("is no whole number of elements of type {name}");
            let allowed = format!("multiples of {element}");
            return Err(wrong("--sizes", *size, reason, allowed)
                .with_help("choose another size, or --type uint8"));
        }
        Ok(self.sizes.0.iter().map(|size| *size as usize).collect())
    }
}

fn wrong(option: &str, value: u64, reason: String, allowed: String) -> Fault {
    Fault::new(exit::USAGE, format!("{option} `{value}` {reason}; allowed: {allowed}"))
}

impl Contestant {
    /// The built-in baseline, without extra threads.
    pub(crate) const SOCKETS: Self = Self::Sockets { threads: 0, sockets: 0 };

    pub(crate) fn name(&self) -> String {
        match self {
            Self::Plugin(name) => name.clone(),
            Self::Sockets { threads: 0, sockets: 0 } => "sockets".into(),
            Self::Sockets { threads, sockets } => format!("sockets {threads}x{sockets}"),
        }
    }
}

/// Checks these arguments of `polyrail collective` without running it. Returns the number of sizes to measure.
///
/// # Errors
/// The error message of the command, and its fix on a separate line.
pub(crate) fn check_options(words: &[String]) -> Result<usize, String> {
    let words: Vec<OsString> = words.iter().map(OsString::from).collect();
    match usage::read::<Line>(&words) {
        Ok(Line { args }) => {
            args.sizes().map(|sizes| sizes.len()).map_err(|error| error.to_string())
        }
        Err(refused) => Err(refused.message),
    }
}

fn sizes(text: &str) -> Result<Sizes, Refusal> {
    let allowed = "1 to 1GiB";
    let sizes = values::sizes(text).map_err(|error| match error {
        // The range of one size is smaller here. Other errors are about the list.
        refusal if refusal.to_string().contains("allowed: 1 to 1024GiB") => refusal.within(allowed),
        refusal => refusal,
    })?;
    match sizes.iter().all(|size| *size <= BYTES_MAX) {
        true => Ok(Sizes(sizes)),
        false => Err(Refusal::new("out of range", allowed)),
    }
}

fn operations() -> impl TypedValueParser<Value = Operation> {
    let parser = PossibleValuesParser::new(Operation::ALL.map(Operation::name));
    parser.map(|name| {
        let known = Operation::ALL.into_iter().find(|operation| operation.name() == name);
        known.expect("only these names pass")
    })
}

fn elements() -> impl TypedValueParser<Value = Element> {
    let parser = PossibleValuesParser::new(Element::ALL.map(Element::name));
    parser.map(|name| {
        let known = Element::ALL.into_iter().find(|element| element.name() == name);
        known.expect("only these names pass")
    })
}

fn contestant(text: &str) -> Result<Contestant, Refusal> {
    if text == "sockets" {
        return Ok(Contestant::SOCKETS);
    }
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|one| one.is_ascii_digit());
    match text.split_once('x') {
        Some((threads, sockets)) if is_number(threads) && is_number(sockets) => {
            let (threads, sockets) = (threads.parse().unwrap_or(0), sockets.parse().unwrap_or(0));
            // NCCL's own limits.
            match (1..=16).contains(&threads) && (1..=64 / threads).contains(&sockets) {
                true => Ok(Contestant::Sockets { threads, sockets }),
                false => {
                    let allowed = "1 to 16 threads, and 64 sockets in all, like 4x4";
                    Err(Refusal::new("is out of the range of threads x sockets", allowed))
                }
            }
        }
        _ => library_name(text).map(Contestant::Plugin),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn args(text: &str) -> Args {
        Line::try_parse_from(["collective"].into_iter().chain(text.split_whitespace()))
            .unwrap()
            .args
    }

    #[test]
    fn sizes_are_a_list_with_ranges() {
        let sizes = |text: &str| args(text).sizes();
        let found = sizes("all_reduce --sizes 24,8..40").unwrap();
        assert_eq!(found, [24, 8, 16, 32]);
        let all = sizes("all_reduce").unwrap();
        assert_eq!((all.len(), all[0], all[23]), (24, 8, 64 << 20));
    }

    #[test]
    fn a_wrong_size_is_told_with_its_range_and_a_wrong_list_with_its_form() {
        let fault = |text: &str| super::sizes(text).unwrap_err().to_string();
        for wrong in ["x", "8..", "0", "2GiB", "8,2048GiB"] {
            assert!(fault(wrong).ends_with("; allowed: 1 to 1GiB"), "{wrong}: {}", fault(wrong));
        }
        for wrong in ["8..4".to_owned(), vec!["8"; 300].join(",")] {
            let own = values::sizes(&wrong).unwrap_err().to_string();
            assert_eq!(fault(&wrong), own, "{wrong}");
        }
    }

    #[test]
    fn a_plugin_is_a_library_or_threads_and_sockets() {
        let of = |text: &str| contestant(text);
        assert_eq!(of("sockets").unwrap().name(), "sockets");
        assert_eq!(of("4x4"), Ok(Contestant::Sockets { threads: 4, sockets: 4 }));
        assert_eq!(of("4x4").unwrap().name(), "sockets 4x4");
        assert_eq!(of("polyrail"), Ok(Contestant::Plugin("polyrail".into())));
        for wrong in ["0x0", "17x1", "16x5", "4x0", "99999999999x1", "/not/there.so", ""] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        let args = args("all_reduce --compare");
        assert_eq!(args.compare, Some(Contestant::SOCKETS));
        assert_eq!((args.ranks(), args.channels()), (2, 4));
    }
}
