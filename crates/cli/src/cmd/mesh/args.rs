//! The options of `polyrail mesh`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use polyrail_config::Rendezvous;
use polyrail_rendezvous::Name;

use super::hosts::{self, Hosts};
use super::meet::BY_STARTER;
use super::plan::{Grid, Layout, Pattern};
use crate::config_args::ConfigArgs;
use crate::fault::Fault;
use crate::files::OutFile;
use crate::values::{
    Refusal, RunLab, file_or_stdout, file_to_read, file_to_write, lab_name, number_within, run_lab,
    setting, size_up_to, time, time_within,
};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Measure between all nodes of this lab, or of one made for the run.
    ///
    /// `8:2x1gbit` makes one of 8 nodes on a switch with two rails; 4gbit,1gbit are rails of two speeds.
    #[arg(long, value_name = "NAME|NODES:RATES", value_parser = lab,
        conflicts_with_all = ["rendezvous", "nodes", "node"], help_heading = WHERE)]
    pub(crate) lab: Option<AnyLab>,

    /// Measure between these hosts: start the others by `ssh`.
    ///
    /// It must need no password. `localhost` is this host.
    #[arg(long, value_name = "A,B", value_parser = hosts::hosts,
        conflicts_with_all = ["lab", "rendezvous", "nodes", "node"],
        help_heading = WHERE)]
    pub(crate) hosts: Option<Hosts>,

    /// The command `polyrail` on these hosts.
    #[arg(long, value_name = "PROGRAM", default_value = "polyrail", value_parser = hosts::program,
        help_heading = WHERE)]
    pub(crate) remote_program: String,

    /// A configuration of `ssh` for these hosts, instead of the user's.
    #[arg(long, value_name = "FILE", value_parser = file_to_read(), help_heading = WHERE)]
    pub(crate) ssh_config: Option<PathBuf>,

    /// The place where the nodes find each other, as in the setting of this name.
    ///
    /// Start this command on each node.
    #[arg(long, value_name = "PLACE", value_parser = place, help_heading = WHERE)]
    pub(crate) rendezvous: Option<String>,

    /// How many nodes there are.
    #[arg(long, value_name = "N", value_parser = number_within(2, NODES_MAX), help_heading = WHERE)]
    pub(crate) nodes: Option<u64>,

    /// Which of them this is, from 0; ranks of a job have a number already.
    #[arg(long, value_name = "I", value_parser = number_within(0, NODES_MAX - 1),
        help_heading = WHERE)]
    pub(crate) node: Option<u64>,

    /// The group that the nodes join there. Another mesh at the same place needs another group.
    #[arg(long, value_name = "GROUP", default_value = "mesh", value_parser = group,
        help_heading = WHERE)]
    pub(crate) group: Name,

    /// One process for all endpoints of a node, or one for each.
    ///
    /// Both are measured one after the other.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "one", help_heading = WHAT)]
    layout: Vec<Layout>,

    /// Which pairs send at once.
    #[arg(long, value_enum, value_delimiter = ',', default_value = "pairwise,rotation,all",
        help_heading = WHAT)]
    pattern: Vec<Pattern>,

    /// Where the endpoints have their memory: on the host, or each on a GPU of its own.
    #[arg(long, value_enum, default_value = "host", help_heading = WHAT)]
    memory: MemoryPlace,

    /// Endpoints of each node.
    ///
    /// Every one sends to every one of the other nodes.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number_within(1, 64),
        help_heading = WHAT)]
    endpoints_per_node: u64,

    /// Size of a transfer.
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = size_up_to(SIZE_MAX, "1 to 1GiB"),
        help_heading = WHAT)]
    pub(crate) size: u64,

    /// Transfers of each pair that are under way at once.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = number_within(1, 256),
        help_heading = WHAT)]
    pub(crate) depth: u64,

    /// How long the pairs of a step send in each round.
    #[arg(long, value_name = "TIME", default_value = "200ms",
        value_parser = time_within(SHORTEST, LONGEST, "10ms to 10min"), help_heading = HOW)]
    pub(crate) time: Duration,

    /// How long they send before that, without counting.
    #[arg(long, value_name = "TIME", default_value = "50ms",
        value_parser = time_within(Duration::ZERO, LONGEST, "0s to 10min"), help_heading = HOW)]
    pub(crate) warmup: Duration,

    /// Rounds of each step; after each, what has come to lie in memory is compared.
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u32).range(1..=1000), help_heading = HOW)]
    pub(crate) rounds: u32,

    /// How long to wait for nodes to come, and for each answer of one.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time, help_heading = HOW)]
    pub(crate) timeout: Duration,

    /// Write all figures as JSON to this file; `-` is standard output.
    #[arg(long, value_name = "FILE", value_parser = file_or_stdout(), help_heading = HOW)]
    pub(crate) json: Option<OutFile>,

    /// Write a page with all figures to this file, for a browser.
    #[arg(long, value_name = "FILE", value_parser = file_to_write(), help_heading = HOW)]
    pub(crate) html: Option<OutFile>,

    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// The place of a process that another mesh started.
    #[arg(long, hide = true, value_name = "SEAT", value_parser = seat)]
    pub(crate) worker: Option<Seat>,
}

/// A lab that is up, or one to make.
#[derive(Clone, Debug)]
pub(crate) enum AnyLab {
    Up(String),
    ForRun(RunLab),
}

/// Where the endpoints have their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum MemoryPlace {
    Host,
    Gpu,
}

/// Slot of a worker: `LAYOUT,NODE,INDEX,NODES,WHERE,PLACE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seat {
    pub(crate) layout: Layout,
    /// `None` for a rank, whose launcher gives it a number.
    pub(crate) node: Option<usize>,
    /// Number among the workers of its node.
    pub(crate) index: usize,
    pub(crate) nodes: usize,
    pub(crate) in_lab: bool,
    pub(crate) place: String,
}

const EXAMPLES: &str = "\
Examples:
  polyrail mesh --lab 8:2x1gbit
  polyrail mesh --lab star --endpoints-per-node 2 --layout one,per-gpu --json mesh.json
  polyrail mesh --hosts node1,node2,node3
  polyrail mesh --rendezvous dir:///shared/mesh --nodes 4 --node 0     # on each node, with its number
  srun -N 4 polyrail mesh --rendezvous slurm:// --nodes 4

docs/mesh.md (in packages: /usr/share/doc/polyrail/docs) describes the figures.";

const WHERE: &str = "Where";
const WHAT: &str = "What";
const HOW: &str = "How";
const NODES_MAX: u64 = 256;
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(600);
/// Maximum number of pairs of a worker: one notification reports all of them.
const PAIRS_MAX: usize = 900;

impl Args {
    pub(crate) fn grid(&self, nodes: usize, layout: Layout) -> Grid {
        Grid { nodes, endpoints: self.endpoints_per_node as usize, layout }
    }

    /// Each layout once, in the order given.
    pub(crate) fn layouts(&self) -> Vec<Layout> {
        once_each(&self.layout)
    }

    pub(crate) fn patterns(&self) -> Vec<Pattern> {
        once_each(&self.pattern)
    }

    /// Time for which a mesh in this layout sends, without any overhead.
    pub(crate) fn planned(&self, nodes: usize, layout: Layout) -> Duration {
        let grid = self.grid(nodes, layout);
        let steps: usize = self.patterns().iter().map(|pattern| grid.steps(*pattern).len()).sum();
        (self.warmup + self.time * self.rounds) * steps as u32
    }

    pub(crate) fn on_gpus(&self) -> bool {
        self.memory == MemoryPlace::Gpu
    }

    pub(crate) fn memory_name(&self) -> &'static str {
        if self.on_gpus() { "gpu" } else { "host" }
    }

    /// Arguments for a worker of this mesh: the options that concern it, without those for output.
    pub(crate) fn words(&self, seat: &Seat) -> Vec<String> {
        let names = |names: Vec<&str>| names.join(",");
        let time = |time: Duration| format!("{}us", time.as_micros());
        let mut words: Vec<String> = [
            ("--layout", names(self.layouts().into_iter().map(Layout::name).collect())),
            ("--pattern", names(self.patterns().into_iter().map(Pattern::name).collect())),
            ("--memory", self.memory_name().to_owned()),
            ("--endpoints-per-node", self.endpoints_per_node.to_string()),
            ("--size", format!("{}B", self.size)),
            ("--depth", self.depth.to_string()),
            ("--time", time(self.time)),
            ("--warmup", time(self.warmup)),
            ("--rounds", self.rounds.to_string()),
            ("--timeout", time(self.timeout)),
            ("--group", self.group.to_string()),
            ("--worker", seat.to_string()),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect();
        words.insert(0, "mesh".to_owned());
        words.extend(self.config.words());
        words
    }

    /// Checks that this many nodes can be measured with these options.
    pub(crate) fn check(&self, nodes: usize, ops_pool: u64) -> Result<(), Fault> {
        for layout in self.layouts() {
            let grid = self.grid(nodes, layout);
            let mine = grid.endpoints_of(0).len();
            // A process sends to each endpoint of the other nodes, and receives from each.
            let sends = mine * (grid.total() - grid.endpoints);
            if sends * 2 > PAIRS_MAX {
                let most = (1..=64).rev().find(|most| {
                    let mine = if layout == Layout::One { *most } else { 1 };
                    mine * most * (nodes - 1) * 2 <= PAIRS_MAX
                });
                return Err(Fault::usage(
                    "--endpoints-per-node",
                    self.endpoints_per_node,
                    format!("makes {} pairs of one process", sends * 2),
                    format!(
                        "1 to {} with {nodes} nodes in layout {}",
                        most.unwrap_or(1),
                        layout.name()
                    ),
                )
                .with_help("choose fewer endpoints, fewer nodes, or --layout per-gpu"));
            }
            if sends as u64 * self.depth >= ops_pool {
                let most = (ops_pool.saturating_sub(1) / sends as u64).max(1);
                return Err(Fault::usage(
                    "--depth",
                    self.depth,
                    format!("makes {} transfers at once of one process", sends as u64 * self.depth),
                    format!("1 to {most}, as ops_pool is {ops_pool}"),
                )
                .with_help("choose a smaller --depth, or give --set ops_pool a larger value"));
            }
        }
        Ok(())
    }
}

fn once_each<T: Copy + PartialEq>(given: &[T]) -> Vec<T> {
    let mut once = Vec::new();
    for one in given {
        if !once.contains(one) {
            once.push(*one);
        }
    }
    once
}

impl Seat {
    /// Whether the process that started this worker carries the metadata.
    pub(crate) fn by_starter(&self) -> bool {
        self.place == BY_STARTER
    }
}

impl FromStr for Seat {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut parts = text.splitn(6, ',');
        let mut next = || parts.next().ok_or(());
        let layout = match next()? {
            "one" => Layout::One,
            "per-gpu" => Layout::PerGpu,
            _ => return Err(()),
        };
        let node = match next()? {
            "-" => None,
            number => Some(number.parse().map_err(drop)?),
        };
        let index = next()?.parse().map_err(drop)?;
        let nodes = next()?.parse().map_err(drop)?;
        let in_lab = match next()? {
            "lab" => true,
            "here" => false,
            _ => return Err(()),
        };
        let is_known = |node: usize| node < nodes && (2..=NODES_MAX as usize).contains(&nodes);
        if !node.is_none_or(is_known) {
            return Err(());
        }
        Ok(Self { layout, node, index, nodes, in_lab, place: next()?.to_owned() })
    }
}

impl std::fmt::Display for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let node = self.node.map_or("-".to_owned(), |node| node.to_string());
        let place = if self.in_lab { "lab" } else { "here" };
        let layout = self.layout.name();
        write!(f, "{layout},{node},{},{},{place},{}", self.index, self.nodes, self.place)
    }
}

fn seat(text: &str) -> Result<Seat, Refusal> {
    let help = "only `polyrail mesh` itself gives this option";
    text.parse().map_err(|()| {
        Refusal::new("is no seat", "LAYOUT,NODE,INDEX,NODES,lab|here,PLACE").with_help(help)
    })
}

fn lab(text: &str) -> Result<AnyLab, Refusal> {
    match text.contains(':') {
        true => run_lab(text).map(AnyLab::ForRun),
        false => lab_name(text).map(AnyLab::Up),
    }
}

/// Parses a rendezvous place. DNS is refused: its members have no names that distinguish the nodes.
fn place(text: &str) -> Result<String, Refusal> {
    let text = setting("rendezvous")(text)?;
    match Rendezvous::parse(&text) {
        Ok(Some(Rendezvous::Dns { .. }) | None) => {
            Err(Refusal::new("is no place where nodes of a mesh find each other", PLACES))
        }
        _ => Ok(text),
    }
}

/// Rendezvous places for a mesh.
pub(crate) const PLACES: &str = "dir://, etcd://, slurm://, mpi:// or torchrun:// places";

const SIZE_MAX: u64 = 1 << 30;

fn group(text: &str) -> Result<Name, Refusal> {
    let name: Result<Name, _> = text.parse();
    let name = name.map_err(|error| Refusal::new(error.fault(), Name::ALLOWED))?;
    // The layout is appended to the name.
    match format!("{name}-{}", Layout::PerGpu.name()).parse::<Name>() {
        Ok(_) => Ok(name),
        Err(error) => Err(Refusal::new(error.fault(), "1 to 55 letters, digits, `.`, `_` and `-`")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(text: &str) -> Args {
        Line::try_parse_from(["mesh"].into_iter().chain(text.split_whitespace())).unwrap().args
    }

    #[test]
    fn a_seat_is_read_as_it_was_written() {
        for node in [None, Some(3)] {
            let place = "etcd://a:1,b:2/x".to_owned();
            let seat =
                Seat { layout: Layout::PerGpu, node, index: 1, nodes: 4, in_lab: true, place };
            assert_eq!(seat.to_string().parse(), Ok(seat));
        }
        for wrong in ["", "one,0,0,2,lab", "two,0,0,2,lab,x", "one,2,0,2,lab,x", "one,0,0,2,x,y"] {
            assert_eq!(wrong.parse::<Seat>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn without_options_all_patterns_of_one_layout_are_measured() {
        let args = args("--lab x");
        assert_eq!(args.layouts(), [Layout::One]);
        assert_eq!(args.patterns(), [Pattern::Pairwise, Pattern::Rotation, Pattern::All]);
        let both = super::tests::args("--lab x --layout per-gpu,one,per-gpu").layouts();
        assert_eq!(both, [Layout::PerGpu, Layout::One]);
    }

    #[test]
    fn what_no_process_can_hold_is_refused_with_what_it_can() {
        let error = args("--lab x --endpoints-per-node 64").check(8, 4096).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("--endpoints-per-node `64`"), "{text}");
        assert!(text.ends_with("1 to 8 with 8 nodes in layout one"), "{text}");
        args("--lab x --endpoints-per-node 8").check(8, 4096).unwrap();
        let error = args("--lab x --depth 256").check(32, 4096).unwrap_err().to_string();
        assert!(error.starts_with("--depth `256`") && error.contains("1 to 132"), "{error}");
    }
}
