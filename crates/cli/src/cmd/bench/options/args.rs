//! Command-line options of `polyrail bench`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::ArgPredicate;
use polyrail_config::steers;

use super::choices::{Against, OnlyPath, Op, PlaceThreads, Verify};
use super::configure::LOOPBACK_MAX;
use super::fit_rates::FitRates;
use super::memory_kind::MemoryKind;
use super::nccl_mode::NcclMode;
use super::role::Server;
use super::schedule::{DEPTH_MAX, ITERS_MAX, POSTERS_MAX, ROUNDS_MAX, SEGMENTS_MAX, Schedule};
use crate::config_args::ConfigArgs;
use crate::files::{NO_FILE, OutFile};
use crate::stdout::excerpt;
use crate::values::{
    self, Rates, Refusal, address, file_or_none, file_or_stdout, file_to_write, library,
    number_within, rates, setting, size, socket_address, time,
};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Serve clients, one after another, until Ctrl-C.
    ///
    /// Without a value it takes a free port of 29200 to 29999.
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, value_parser = address,
        conflicts_with_all = OF_THE_CLIENT, help_heading = WHERE)]
    pub(crate) listen: Option<Option<String>>,

    /// Measure against a `bench --listen` elsewhere.
    ///
    /// Of several addresses, of one name or with commas between them, the first that answers counts.
    #[arg(long, value_name = "ADDR:PORT", value_parser = Server::check, conflicts_with = "lab",
        help_heading = WHERE)]
    pub(crate) connect: Option<String>,

    /// Measure over shaped links made for the run: 4x1gbit, or 4gbit,1gbit.
    #[arg(long, value_name = "RATES", value_parser = rates, help_heading = WHERE)]
    pub(crate) lab: Option<Rates>,

    /// Memory at this end: host, or a GPU such as cuda:0.
    ///
    /// The number is that of the CUDA device.
    #[arg(long, value_name = "PLACE", default_value = "host", help_heading = WHERE)]
    pub(crate) mem: MemoryKind,

    /// Memory at the other end, if this bench starts it.
    ///
    /// `bench --listen` has a --mem of its own.
    #[arg(long, value_name = "PLACE", default_value = "host",
        conflicts_with = "connect", help_heading = WHERE)]
    pub(crate) peer_mem: MemoryKind,

    /// Both ends in this process, in place of two processes.
    #[arg(long, conflicts_with_all = ["connect", "lab"], help_heading = WHERE)]
    pub(crate) one_process: bool,

    /// Sizes: a list, with ranges like 8..1GiB.
    ///
    /// Each size of such a range is twice the one before.
    #[arg(long, value_name = "LIST", default_value = "64KiB,1MiB,16MiB,256MiB",
        default_value_if("fit", ArgPredicate::IsPresent, FIT_SIZES), value_parser = sizes, help_heading = WHAT)]
    sizes: Sizes,

    /// The operation.
    #[arg(long, value_enum, default_value = "write", help_heading = WHAT)]
    op: Op,

    /// Equal pieces of memory per transfer, scattered so that nothing merges.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = number_within(1, SEGMENTS_MAX), help_heading = WHAT)]
    segments: u64,

    /// Blocks of each transfer, like 16384x16KiB, scattered at both ends like a paged cache; measured in turn
    /// with as many bytes in one piece.
    #[arg(long, value_name = "NxSIZE", value_parser = blocks,
        conflicts_with_all = ["sizes", "segments"], help_heading = WHAT)]
    blocks: Option<Blocks>,

    /// Transfers outstanding at once [default: 16, fewer where they exceed 256 MiB].
    #[arg(long, value_name = "N", value_parser = number_within(1, DEPTH_MAX), help_heading = WHAT)]
    depth: Option<u64>,

    /// Threads that post, each its part of --depth.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = number_within(1, POSTERS_MAX), help_heading = WHAT)]
    posters: u64,

    /// Both sides post at once.
    #[arg(long, visible_alias = "both-directions", help_heading = WHAT)]
    bidir: bool,

    /// One message to and fro; prints the time one way, half of each round trip.
    #[arg(long, help_heading = WHAT)]
    latency: bool,

    /// Time of the samples of one size together.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time,
        default_value_if("fit", ArgPredicate::IsPresent, "1s"), help_heading = HOW)]
    time: Duration,

    /// Transfers of each sample, in place of --time.
    #[arg(long, value_name = "N", value_parser = number_within(1, ITERS_MAX), conflicts_with = "time",
        help_heading = HOW)]
    iters: Option<u64>,

    /// How long to transfer before the first sample of a size, without counting [default: a fifth of --time,
    /// 200ms at most].
    #[arg(long, value_name = "TIME", value_parser = time, help_heading = HOW)]
    warmup: Option<Duration>,

    /// Samples of each size; the median is printed.
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX), help_heading = HOW)]
    rounds: u32,

    /// How much of what arrived is compared with what was sent, after each sample.
    #[arg(long, value_enum, default_value = "full",
        default_value_if("fit", ArgPredicate::IsPresent, "sample"), help_heading = HOW)]
    verify: Verify,

    /// Measure a baseline in turn with the engine, and print the ratio.
    #[arg(long, value_enum, value_delimiter = ',', help_heading = HOW)]
    against: Vec<Against>,

    /// Change one setting after another, and print what makes the size faster.
    ///
    /// Each change is measured in turn with the settings in effect: congestion control, chunks, channels, window, depth,
    /// threads, protection of payload, each rail.
    #[arg(long, help_heading = HOW)]
    why: bool,

    /// Say whether this machine keeps up with NICs, like 4x100gbit.
    ///
    /// 25gbit,100gbit are two NICs. Measures the CPU time that each end takes to send and to receive over rails, by default
    /// with --sizes 16KiB,64KiB,256KiB,1MiB,16MiB --time 1s --verify sample, and computes the CPUs for the sum of the rates.
    #[arg(long, value_name = "RATES", value_parser = FitRates::parse,
        conflicts_with_all = ["op", "bidir", "latency", "blocks", "iters", "against", "why",
            "channels_list", "explain_path", "one_process", "path"], help_heading = HOW)]
    fit: Option<FitRates>,

    /// How NCCL moves the bytes for --against nccl: p2p, or over sockets as THREADSxSOCKETS, where 0x0 is
    /// its default [default: 0x0,4x4,8x8,p2p].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = HOW)]
    pub(super) nccl_modes: Vec<NcclMode>,

    /// The library NCCL [default: libnccl.so.2 where the loader finds it].
    #[arg(long, value_name = "FILE", value_parser = library(), help_heading = HOW)]
    pub(super) nccl_lib: Option<PathBuf>,

    /// Numbers of channels to measure in turn, like 1,2,4,8,16.
    #[arg(long, value_name = "LIST", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=256), help_heading = HOW)]
    channels_list: Vec<u32>,

    /// Write the report as JSON; - is standard output, `none` is no file.
    ///
    /// Without this option it goes to bench.json in ~/.local/state/polyrail, which the next bench replaces.
    #[arg(long, value_name = "FILE|none", value_parser = file_or_none(), help_heading = OUTPUT)]
    pub(super) json: Option<OutFile>,

    /// Write one line per size as CSV; - is standard output.
    #[arg(long, value_name = "FILE", value_parser = file_or_stdout(), help_heading = OUTPUT)]
    pub(crate) csv: Option<OutFile>,

    /// Write what CPUs, interrupts, flows and threads do each second.
    ///
    /// The verdict then uses what they show. Without a name the file is bench-samples.jsonl in
    /// ~/.local/state/polyrail.
    #[arg(long, value_name = "FILE", num_args = 0..=1, value_parser = file_to_write(),
        help_heading = OUTPUT)]
    pub(crate) sample: Option<Option<OutFile>>,

    /// Print which paths the bytes could take, which one they take, and why.
    ///
    /// With `only`, set up the transfers, and move nothing.
    #[arg(long, value_enum, value_name = "only", num_args = 0..=1, help_heading = OUTPUT)]
    pub(crate) explain_path: Option<Option<OnlyPath>>,

    /// Rails: a number of loopback addresses, a list of interfaces, or `near`.
    ///
    /// The list is as in the setting `rails`, also of addresses. `near` takes those nearest to the GPU of --mem.
    #[arg(long, value_name = "N|LIST|near", value_parser = rails, help_heading = SETTINGS)]
    pub(crate) rails: Option<String>,

    /// The way between memories (setting `path`): auto, device, shared or tcp.
    ///
    /// auto takes copies by the devices where there are any, a single copy of what is short between a GPU
    /// here and another process's host memory, else shared; device is auto without copies by CPUs; shared takes
    /// memory that both processes have open, where that is possible; tcp the rails in any case. Between host
    /// memories of one host auto is a single copy, and messages of callers share memory; without this option bench measures the rails there
    /// (path=device, and path=tcp with progress=caller).
    #[arg(long, value_name = "WAY", value_parser = setting("path"), help_heading = SETTINGS)]
    pub(crate) path: Option<String>,

    /// Whether to choose the CPUs of progress threads by the topology, where no setting does.
    #[arg(long, value_enum, default_value = "auto", help_heading = SETTINGS)]
    pub(crate) place: PlaceThreads,

    /// Print the CPUs that each progress thread should run on and those that it runs on (setting
    /// `verbose_bindings`).
    #[arg(long, help_heading = SETTINGS)]
    pub(crate) verbose_bindings: bool,

    #[command(flatten)]
    pub(crate) config: ConfigArgs,

    /// Set by a study for each cell: only the result counts, not what limits it.
    #[arg(long, hide = true)]
    no_limits: bool,

    /// Set by a bench for the other process that it starts.
    #[arg(long, hide = true)]
    pub(crate) serve_parent: bool,

    /// Set by a bench for each process of NCCL that it starts.
    #[arg(long, hide = true)]
    pub(crate) nccl_rank: bool,

    /// Set by a bench for the client that it starts inside a lab.
    #[arg(long, hide = true, value_name = "ADDR:PORT", value_parser = socket_address)]
    pub(crate) inside_lab: Option<SocketAddr>,
}

/// Destination of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report<'a> {
    To(&'a Path),
    /// The place of the last report.
    Last,
    Nowhere,
}

/// Maximum warm-up by default, which suffices for any path.
const WARMUP_MOST: Duration = Duration::from_millis(200);

/// Returns the usual warm-up for a size that is measured for `time`.
pub(crate) fn usual_warmup(time: Duration) -> Duration {
    (time / 5).min(WARMUP_MOST)
}
/// Default sizes of --fit, from small transfers to large ones.
const FIT_SIZES: &str = "16KiB,64KiB,256KiB,1MiB,16MiB";

/// List of sizes as one value.
#[derive(Clone, Debug)]
struct Sizes(Vec<u64>);

/// Scattered blocks of the same size.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    count: u64,
    bytes: u64,
}

impl Args {
    pub(crate) fn report(&self) -> Report<'_> {
        match &self.json {
            Some(path) if path.as_os_str() == NO_FILE => Report::Nowhere,
            Some(path) => Report::To(path),
            None => Report::Last,
        }
    }

    /// Whether only the rails are measured, because a NIC will carry all bytes.
    pub(super) fn is_of_rails(&self) -> bool {
        self.fit.is_some()
    }

    pub(crate) fn schedule(&self) -> Schedule {
        let mut against = self.against.clone();
        let (mut sizes, mut segments) = (self.sizes.0.clone(), self.segments);
        if let Some(Blocks { count, bytes }) = self.blocks {
            (sizes, segments) = (vec![count.saturating_mul(bytes)], count);
            if !against.contains(&Against::Contiguous) {
                against.push(Against::Contiguous);
            }
        }
        Schedule {
            op: self.op,
            sizes,
            segments,
            depth: self.depth,
            posters: self.posters,
            time: self.time,
            iters: self.iters,
            warmup: self.warmup.unwrap_or_else(|| usual_warmup(self.time)),
            rounds: self.rounds,
            bidir: self.bidir,
            latency: self.latency,
            verify: self.verify,
            against,
            channels: self.channels_list.clone(),
            nccl_modes: match self.nccl_modes.is_empty() {
                true => NcclMode::DEFAULT.to_vec(),
                false => self.nccl_modes.clone(),
            },
            nccl_library: self.nccl_lib.clone(),
            why: self.why,
            fit: self.fit.clone(),
            no_limits: self.no_limits,
            dry_run: self.explain_path == Some(Some(OnlyPath::Only)),
        }
    }
}

/// Options that only the measuring end reads, so that `--listen` refuses them.
const OF_THE_CLIENT: &[&str] = &[
    "connect",
    "lab",
    "peer_mem",
    "one_process",
    "sizes",
    "op",
    "segments",
    "blocks",
    "depth",
    "posters",
    "bidir",
    "latency",
    "time",
    "iters",
    "warmup",
    "rounds",
    "verify",
    "against",
    "why",
    "fit",
    "nccl_modes",
    "nccl_lib",
    "channels_list",
    "json",
    "csv",
    "sample",
    "explain_path",
];

const BLOCKS_MAX: u64 = 1 << 20;
const WHERE: &str = "Where";
const WHAT: &str = "What";
const HOW: &str = "How";
const OUTPUT: &str = "Output";
const SETTINGS: &str = "Settings";

const EXAMPLES: &str = "\
Examples:
  polyrail bench                                      two processes here, four loopback rails
  polyrail bench --sizes 8 --latency                  one-way time of 8 bytes
  polyrail bench --sizes 256MiB --against raw         the price of the engine over plain sockets
  polyrail bench --lab 4x1gbit --against alone        four shaped rails against each one alone
  polyrail bench --sizes 16MiB --why                  what would make it faster, by trying it
  polyrail bench --fit 4x100gbit                      does this machine keep up with such NICs?
  polyrail bench --mem cuda:0 --peer-mem cuda:1       from one GPU to another
  polyrail bench --listen                             on one machine; on another, what it prints:
  polyrail bench --connect 10.0.0.1:34567/pr2-KEY --sizes 8..1GiB";

fn sizes(text: &str) -> Result<Sizes, Refusal> {
    let mut sizes: Vec<u64> = Vec::new();
    for size in values::sizes(text)? {
        if !sizes.contains(&size) {
            sizes.push(size);
        }
    }
    Ok(Sizes(sizes))
}

/// Reads a number of loopback addresses, [`NEAR`](super::near::NEAR), or a value of the setting.
fn rails(text: &str) -> Result<String, Refusal> {
    if text.parse::<u32>().is_err() {
        return rail_list(text);
    }
    text.parse().ok().filter(|count| (1..=LOOPBACK_MAX).contains(count)).map_or_else(
        || {
            let allowed = format!("1 to {LOOPBACK_MAX} loopback addresses, or interfaces");
            Err(Refusal::new("is out of range", allowed))
        },
        |_| Ok(text.to_owned()),
    )
}

fn rail_list(text: &str) -> Result<String, Refusal> {
    let is_bad = |one: char| steers(one) || one.is_whitespace() || one == '/';
    if text.is_empty() || text.starts_with('-') || text.contains(is_bad) {
        let allowed = "a number of loopback addresses, near, or a value of the setting `rails`: auto, eth1,eth2, =eth1, \
                       ^eth0, ?eth1,eth2, 10.0.1.2, plugin:LIBRARY";
        return Err(Refusal::new("is no list of rails", allowed).with_help(
            "`polyrail host show` lists the interfaces; `polyrail config help rails` explains each form",
        ));
    }
    setting("rails")(text)
}

fn blocks(text: &str) -> Result<Blocks, Refusal> {
    let allowed = "NxSIZE, such as 16384x16KiB";
    let (count, bytes) = text.split_once('x').ok_or_else(|| Refusal::new("has no `x`", allowed))?;
    let is_good = |count: &u64| (1..=BLOCKS_MAX).contains(count);
    let count = count.parse().ok().filter(is_good).ok_or_else(|| {
        let fault = format!("has `{}` as the number of blocks", excerpt(count));
        Refusal::new(fault, format!("1 to {BLOCKS_MAX} blocks"))
    })?;
    Ok(Blocks { count, bytes: size(bytes)? })
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::{CommandFactory as _, Parser};

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    pub(crate) fn args(text: &str) -> Args {
        let words = ["bench"].into_iter().chain(text.split_whitespace());
        Command::try_parse_from(words).map(|command| command.args).unwrap()
    }

    fn refused(text: &str) -> String {
        let words = ["bench"].into_iter().chain(text.split_whitespace());
        let error = Command::try_parse_from(words).map(|_| ()).unwrap_err();
        let help = std::error::Error::source(&error)
            .and_then(|source| source.downcast_ref::<Refusal>())
            .and_then(Refusal::help);
        format!("{error}{}", help.unwrap_or_default())
    }

    #[test]
    fn wrong_values_name_option_value_and_range() {
        for (text, parts) in [
            ("--sizes 64Ki", ["--sizes", "64Ki", "64KiB (1024) or 64kB (1000)"]),
            ("--sizes 9..8", ["--sizes", "9..8", "runs backwards"]),
            ("--time 3", ["--time", "3", "write 3s or 3ms"]),
            ("--lab 4x1000", ["--lab", "4x1000", "1mbit to 400gbit"]),
            ("--op put", ["--op", "put", "write, read, send"]),
        ] {
            let message = refused(text);
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
        }
    }

    #[test]
    fn roles_that_exclude_each_other_are_refused() {
        assert!(refused("--listen --connect 1.2.3.4:5").contains("cannot be used with"));
        assert!(refused("--lab 1gbit --connect 1.2.3.4:5").contains("cannot be used with"));
    }

    #[test]
    fn what_asks_another_question_is_refused_beside_the_fit_of_nics() {
        for given in [
            "--latency",
            "--against raw",
            "--why",
            "--iters 3",
            "--op read",
            "--bidir",
            "--one-process",
            "--path shared",
            "--listen",
        ] {
            let message = refused(&format!("--fit 4x100gbit {given}"));
            assert!(message.contains("cannot be used with"), "{given}: {message}");
        }
        let schedule = args("--fit 4x100gbit").schedule();
        assert_eq!((schedule.sizes.len(), schedule.time), (5, Duration::from_secs(1)));
        assert_eq!(schedule.verify, Verify::Sample);
        let passes = args("--fit 1gbit --sizes 8 --verify off").schedule().passes();
        let ops: Vec<_> = passes.iter().map(|pass| (pass.op, pass.sizes.len())).collect();
        assert_eq!(ops, [(Op::Write, 1), (Op::Read, 1)]);
        assert_eq!(args("").schedule().passes().len(), 1);
    }

    #[test]
    fn a_listener_refuses_what_only_the_measuring_end_reads() {
        for given in
            ["--sizes 8", "--json none", "--json f", "--csv f", "--iters 3", "--why", "--latency"]
        {
            let message = refused(&format!("--listen 127.0.0.1:0 {given}"));
            assert!(message.contains("cannot be used with"), "{given}: {message}");
        }
        let headings = [WHAT, HOW, OUTPUT];
        for argument in Command::command().get_arguments() {
            let is_of_both = argument.get_help_heading().is_none_or(|it| !headings.contains(&it));
            let name = argument.get_id().as_str();
            assert!(is_of_both || OF_THE_CLIENT.contains(&name), "{name}: add it to OF_THE_CLIENT");
        }
        args("--listen 127.0.0.1:0 --mem host --rails 1 --set window_chunks=4");
    }
}
