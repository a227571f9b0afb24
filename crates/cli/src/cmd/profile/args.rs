//! The options of `polyrail profile`.

use std::path::PathBuf;

use clap::ValueEnum;
use polyrail_profile::{Load, PathKind};

use super::nccl::Mode;
use crate::config_args::ConfigArgs;
use crate::fault::Fault;
use crate::values::{self, Refusal, folder_to_read, folder_to_write, library, word};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder to fill: new or empty.
    #[arg(long, value_name = "DIR", value_parser = folder_to_write(), required_unless_present_any = ["resume", "plan", "restore_clocks"])]
    pub(super) out: Option<PathBuf>,

    /// Go on with a profile that ended early.
    #[arg(long, value_name = "DIR", value_parser = folder_to_read(), conflicts_with_all = ["out", "sizes", "reps", "warmups", "seed", "paths", "pairs", "load", "plan", "nccl_mode"])]
    pub(super) resume: Option<PathBuf>,

    /// Print the plan and about how long it takes, and end.
    #[arg(long)]
    pub(super) plan: bool,

    /// GPUs by their numbers, such as 0,1, or `none` [default: all].
    #[arg(long, value_name = "LIST", value_parser = gpus)]
    pub(super) gpus: Option<Gpus>,

    /// Endpoints in the machine's memory, 0 to 64 [default: as many as make 2 endpoints with the GPUs].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(super) host: Option<u32>,

    /// Only these paths [default: all that the endpoints have; nccl if its library is found].
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(super) paths: Vec<Way>,

    /// Only these directed pairs of ranks, such as 0-1,1-0 [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = pair)]
    pub(super) pairs: Vec<(u32, u32)>,

    /// Sizes, such as 8,64KiB,1MiB..1GiB [default: the 31 powers of two from 1 to 1GiB].
    #[arg(long, value_name = "LIST", value_parser = sizes)]
    pub(super) sizes: Option<Sizes>,

    /// Samples of each configuration [default: 10].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(super) reps: Option<u32>,

    /// Transfers before the first sample of each configuration, at most half a second of them
    /// [default: 5].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    pub(super) warmups: Option<u32>,

    /// The seed of the order and of the data [default: 42].
    #[arg(long, value_name = "N")]
    pub(super) seed: Option<u64>,

    /// Measure each configuration also with other transfers in the background.
    #[arg(long, value_name = "LIST", value_enum, value_delimiter = ',')]
    pub(super) load: Vec<Background>,

    /// Measure more sizes around each break that the analysis finds.
    #[arg(long)]
    pub(super) refine: bool,

    /// Compare every byte that arrived.
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub(super) verify: Switch,

    /// Measure even if another process uses a GPU; every sample then has a flag.
    #[arg(long)]
    pub(super) allow_busy: bool,

    /// How NCCL moves bytes on the path nccl [default: p2p].
    #[arg(long, value_name = "MODE", value_enum)]
    pub(super) nccl_mode: Option<Mode>,

    /// NCCL's library [default: libnccl.so.2 where the loader finds it].
    #[arg(long, value_name = "FILE", value_parser = library())]
    pub(super) nccl_lib: Option<PathBuf>,

    /// How to warm GPUs before the first sample.
    #[arg(long, value_name = "HOW", default_value = "slope")]
    pub(super) thermal_warmup: Warmup,

    /// Warm GPUs again when one is this many degrees colder than after the first warming, 1 to 50.
    #[arg(long, value_name = "DEGREES", value_parser = clap::value_parser!(u32).range(1..=50))]
    pub(super) rewarm: Option<u32>,

    /// Lock the clocks of the GPUs' processors during the run, in MHz; needs root.
    ///
    /// Without this option the run changes no setting of a GPU.
    #[arg(long, value_name = "MHZ", value_parser = clap::value_parser!(u32).range(100..=10_000))]
    pub(super) lock_clocks: Option<u32>,

    /// Set by --lock-clocks for the process that restores the clocks.
    #[arg(long, hide = true, value_delimiter = ',', exclusive = true, value_parser = word)]
    pub(super) restore_clocks: Vec<String>,

    #[command(flatten)]
    pub(super) config: ConfigArgs,
}

impl Args {
    /// Refuses options that would have no effect.
    pub(super) fn refuse_unused(&self) -> Result<(), Fault> {
        if let Some(mhz) = self.lock_clocks.filter(|_| self.gpus == Some(Gpus::None)) {
            let (fault, allowed) = ("there is no GPU whose clocks to lock", "without --gpus none");
            return Err(Fault::usage("--lock-clocks", mhz.to_string(), fault, allowed));
        }
        if let Some(degrees) = self.rewarm.filter(|_| self.thermal_warmup == Warmup::Off) {
            let (fault, allowed) = ("nothing is warmed first", "without --thermal-warmup off");
            return Err(Fault::usage("--rewarm", degrees.to_string(), fault, allowed));
        }
        Ok(())
    }
}

const EXAMPLES: &str = "\
Examples:
  polyrail profile --plan
  polyrail profile --out run1
  polyrail profile --out run2 --gpus 0,1 --paths peer,peer-kernel --sizes 1KiB..1GiB
  polyrail profile --out run3 --gpus none --host 2 --reps 3
  polyrail profile --resume run1
  polyrail analyze run1 --html report.html

docs/profile.md (in packages: /usr/share/doc/polyrail/docs) says what is timed.";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Gpus {
    None,
    These(Vec<u32>),
}

/// A list of sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sizes(pub(super) Vec<u64>);

/// A path, as the command line spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Way {
    /// GPU to GPU by copy engines.
    #[value(alias = "copy_engine")]
    Peer,
    /// GPU to GPU by a kernel.
    #[value(alias = "kernel")]
    PeerKernel,
    /// GPU to GPU by NCCL's send and receive.
    Nccl,
    /// The engine over its rails.
    Tcp,
    /// A copy in the machine's memory.
    #[value(alias = "host_memory")]
    Host,
}

/// The transfers in the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Background {
    /// From the same source.
    SameSource,
    /// To the same sink.
    SameSink,
    /// Between others.
    Disjoint,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Switch {
    On,
    Off,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Warmup {
    /// Not at all.
    Off,
    /// Until the temperature stays within half a degree in ten seconds, a minute at most.
    Slope,
    /// A minute, and until 50 degrees, three minutes at most.
    #[value(name = "60s-50C")]
    Fixed,
}

impl Way {
    /// Word of a path on the command line.
    pub(crate) fn word(kind: PathKind) -> String {
        let way = Self::value_variants().iter().find(|way| way.kind() == kind);
        let value = way.and_then(ValueEnum::to_possible_value);
        value.map_or_else(|| kind.to_string(), |value| value.get_name().to_owned())
    }

    pub(crate) fn kind(self) -> PathKind {
        match self {
            Self::Peer => PathKind::CopyEngine,
            Self::PeerKernel => PathKind::Kernel,
            Self::Nccl => PathKind::Nccl,
            Self::Tcp => PathKind::Tcp,
            Self::Host => PathKind::HostMemory,
        }
    }
}

impl Background {
    pub(super) fn load(self) -> Load {
        match self {
            Self::SameSource => Load::SameSource,
            Self::SameSink => Load::SameSink,
            Self::Disjoint => Load::Disjoint,
        }
    }
}

fn gpus(text: &str) -> Result<Gpus, Refusal> {
    let allowed = "numbers such as 0,1, each once, or none";
    if text == "none" {
        return Ok(Gpus::None);
    }
    let numbers: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
    let numbers = numbers.map_err(|_| Refusal::new("is not a list of GPUs", allowed))?;
    let mut distinct = numbers.clone();
    distinct.sort_unstable();
    distinct.dedup();
    if distinct.len() < numbers.len() {
        return Err(Refusal::new("names a GPU twice", allowed));
    }
    Ok(Gpus::These(numbers))
}

fn pair(text: &str) -> Result<(u32, u32), Refusal> {
    let ranks =
        text.split_once('-').and_then(|(src, dst)| Some((src.parse().ok()?, dst.parse().ok()?)));
    match ranks {
        Some((src, dst)) if src != dst => Ok((src, dst)),
        _ => Err(Refusal::new("is not a pair", "two different ranks such as 0-1")),
    }
}

fn sizes(text: &str) -> Result<Sizes, Refusal> {
    let mut sizes = values::sizes(text)?;
    sizes.sort_unstable();
    sizes.dedup();
    Ok(Sizes(sizes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_nonsense_is_refused_with_what_is_allowed() {
        assert_eq!(gpus("none"), Ok(Gpus::None));
        assert_eq!(gpus("2,0"), Ok(Gpus::These(vec![2, 0])));
        assert!(gpus("0,0").unwrap_err().to_string().contains("each once"));
        assert!(gpus("a").unwrap_err().to_string().contains("allowed"));
        assert_eq!(pair("0-3"), Ok((0, 3)));
        for wrong in ["0", "1-1", "0-x", "-1"] {
            assert!(pair(wrong).unwrap_err().to_string().contains("0-1"), "{wrong}");
        }
        assert_eq!(sizes("4,1KiB,4"), Ok(Sizes(vec![4, 1024])));
        assert_eq!(sizes("1K"), Ok(Sizes(vec![1024])));
        assert!(sizes("1Ki").is_err());
    }
}
