//! The options of `polyrail bench`.

use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use polyrail_lab::{LabSpec, Rate};
use polyrail_report::{BadUnit, parse_duration, parse_size, parse_sizes};

use super::buffers::Verify;
use super::error::BenchError;
use super::memory::MemoryKind;
use super::nccl::Mode;
use super::place::Place;
use super::plan::{Against, Op, Plan};
use crate::config_args::ConfigArgs;

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Serve clients, one after another, until Ctrl-C. Without a port the kernel picks one.
    #[arg(long, value_name = "ADDR:PORT", num_args = 0..=1, default_missing_value = "",
        conflicts_with_all = ["connect", "lab"], help_heading = WHERE)]
    pub(super) listen: Option<String>,

    /// Measure against a `bench --listen` elsewhere.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "lab", help_heading = WHERE)]
    connect: Option<String>,

    /// Measure over shaped links made for the run, like 4x1gbit or 4gbit,1gbit.
    #[arg(long, value_name = "RATES", value_parser = rates, help_heading = WHERE)]
    pub(super) lab: Option<Rates>,

    /// Memory at this end: host, or a CUDA device by its number, as in cuda:0.
    #[arg(long, value_name = "PLACE", default_value = "host", help_heading = WHERE)]
    pub(super) mem: MemoryKind,

    /// Memory at the other end, if this bench starts it; `bench --listen` has a --mem of its own.
    #[arg(long, value_name = "PLACE", default_value = "host",
        conflicts_with_all = ["listen", "connect"], help_heading = WHERE)]
    pub(super) peer_mem: MemoryKind,

    /// Both ends in this process, in place of two processes.
    #[arg(long, conflicts_with_all = ["listen", "connect", "lab"], help_heading = WHERE)]
    pub(super) one_process: bool,

    /// Sizes of a transfer: a list, with doubling ranges like 8..1GiB.
    #[arg(long, value_name = "LIST", default_value = "64KiB,1MiB,16MiB,256MiB",
        value_parser = sizes, help_heading = WHAT)]
    sizes: Sizes,

    /// The operation.
    #[arg(long, value_enum, default_value = "write", help_heading = WHAT)]
    op: Op,

    /// Equal pieces of memory per transfer, scattered so that nothing merges.
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = WHAT)]
    segments: u64,

    /// So many blocks of --block-bytes in each transfer, scattered at both ends like a paged cache,
    /// in turn with as many bytes in one piece.
    #[arg(long, value_name = "N", requires = "block_bytes",
        value_parser = clap::value_parser!(u64).range(1..=1 << 20),
        conflicts_with_all = ["sizes", "segments"], help_heading = WHAT)]
    blocks: Option<u64>,

    /// Size of each of the --blocks.
    #[arg(long, value_name = "SIZE", requires = "blocks", value_parser = size, help_heading = WHAT)]
    block_bytes: Option<u64>,

    /// Transfers outstanding at once [default: 16, fewer where they exceed 256 MiB].
    #[arg(long, value_name = "N", help_heading = WHAT)]
    depth: Option<u64>,

    /// Both sides post at once.
    #[arg(long, visible_alias = "both-directions", help_heading = WHAT)]
    bidir: bool,

    /// One message to and fro; prints the time one way, half of each round trip.
    #[arg(long, help_heading = WHAT)]
    latency: bool,

    /// Time of the samples of one size together.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = duration, help_heading = HOW)]
    time: Duration,

    /// Transfers of each sample, in place of --time.
    #[arg(long, value_name = "N", conflicts_with = "time", help_heading = HOW)]
    iters: Option<u64>,

    /// Time that is run before the samples of a size and not counted.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = duration, help_heading = HOW)]
    warmup: Duration,

    /// Samples of each size; the median is printed.
    #[arg(long, value_name = "N", default_value_t = 5, help_heading = HOW)]
    rounds: u32,

    /// How much of what arrived is compared with what was sent, after each sample.
    #[arg(long, value_enum, default_value = "full", help_heading = HOW)]
    verify: Verify,

    /// Measure a baseline in turn with the engine, and print the ratio.
    #[arg(long, value_enum, value_delimiter = ',', help_heading = HOW)]
    against: Vec<Against>,

    /// How NCCL is to move the bytes for --against nccl: p2p, or sockets as threads x sockets of
    /// each, where 0x0 is its default.
    #[arg(long, value_name = "LIST", default_value = "0x0,4x4,8x8,p2p", value_delimiter = ',',
        help_heading = HOW)]
    nccl_modes: Vec<Mode>,

    /// The library NCCL [default: libnccl.so.2 where the loader finds it].
    #[arg(long, value_name = "FILE", help_heading = HOW)]
    nccl_lib: Option<PathBuf>,

    /// Numbers of channels to measure in turn, like 1,2,4,8,16.
    #[arg(long, value_name = "LIST", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=256), help_heading = HOW)]
    channels_list: Vec<u32>,

    /// Write the report as JSON; - is standard output [default: a file in the temporary folder].
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(super) json: Option<PathBuf>,

    /// Write one line per size as CSV; - is standard output.
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub(super) csv: Option<PathBuf>,

    /// Write a sample of CPUs, interrupts, flows and threads each second, and let the verdict use
    /// what they show [default: a file in the temporary folder].
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "",
        conflicts_with = "listen", help_heading = OUTPUT)]
    pub(super) sample: Option<OsString>,

    /// Print which ways the bytes could take, which one they take, and why.
    #[arg(long, conflicts_with = "listen", help_heading = OUTPUT)]
    pub(super) explain_path: bool,

    /// With --explain-path: set up the transfers, and move nothing.
    #[arg(long, requires = "explain_path", help_heading = OUTPUT)]
    pub(super) dry_run: bool,

    /// Rails: a number of loopback addresses, interfaces and addresses as in the setting `rails`, or
    /// `near` for those nearest to the GPU of --mem.
    #[arg(long, value_name = "N|LIST|near", help_heading = SETTINGS)]
    pub(super) rails: Option<String>,

    /// The way between two memories (setting `path`): auto takes copies by the devices where
    /// there are any, else shared; shared takes memory that both processes have open, where that
    /// is possible; tcp the rails in any case.
    #[arg(long, value_name = "WAY", help_heading = SETTINGS)]
    pub(super) path: Option<String>,

    /// Channels to the peer (setting `channels`).
    #[arg(long, value_name = "N", help_heading = SETTINGS)]
    pub(super) channels: Option<String>,

    /// Connections of each channel (setting `sockets`).
    #[arg(long, value_name = "N", help_heading = SETTINGS)]
    pub(super) sockets: Option<String>,

    /// Outstanding chunks of each channel (setting `window_chunks`).
    #[arg(long, value_name = "CHUNKS", help_heading = SETTINGS)]
    pub(super) window: Option<String>,

    /// Size of a chunk (setting `chunk_bytes`).
    #[arg(long, value_name = "SIZE", help_heading = SETTINGS)]
    pub(super) chunk: Option<String>,

    /// Progress threads: one number for each direction, or TX,RX (settings `tx_proxies`,
    /// `rx_proxies`).
    #[arg(long, value_name = "N|TX,RX", help_heading = SETTINGS)]
    pub(super) proxies: Option<String>,

    /// Congestion control of the flows (setting `congestion`).
    #[arg(long, value_name = "NAME", help_heading = SETTINGS)]
    pub(super) congestion: Option<String>,

    /// CPUs of the sending threads of each interface, like `eth1:8-21;eth2:22-35` (setting
    /// `tx_bindings`); `polyrail bindings` suggests and checks them.
    #[arg(long, value_name = "BINDINGS", help_heading = SETTINGS)]
    pub(super) tx_bindings: Option<String>,

    /// CPUs of the receiving threads of each interface (setting `rx_bindings`).
    #[arg(long, value_name = "BINDINGS", help_heading = SETTINGS)]
    pub(super) rx_bindings: Option<String>,

    /// Whether to choose the CPUs of progress threads by the topology, where no setting does.
    #[arg(long, value_enum, default_value = "auto", help_heading = SETTINGS)]
    pub(super) place: Place,

    /// Print the CPUs that each progress thread should run on and those that it does (setting
    /// `verbose_bindings`).
    #[arg(long, help_heading = SETTINGS)]
    pub(super) verbose_bindings: bool,

    #[command(flatten)]
    pub(super) config: ConfigArgs,

    /// Set by a bench for the other process that it starts.
    #[arg(long, hide = true)]
    pub(super) serve_parent: bool,

    /// Set by a bench for each process of NCCL that it starts.
    #[arg(long, hide = true)]
    pub(super) nccl_rank: bool,

    /// Set by a bench for the client that it starts inside a lab.
    #[arg(long, hide = true, value_name = "ADDR:PORT")]
    pub(super) inside_lab: Option<SocketAddr>,
}

/// A list of sizes as one value.
#[derive(Clone, Debug)]
struct Sizes(Vec<u64>);

/// The rates of a lab as one value.
#[derive(Clone, Debug)]
pub(super) struct Rates(pub(super) Vec<Rate>);

/// What the command is to be.
pub(super) enum Role {
    /// Serves clients until Ctrl-C.
    Listen { address: Option<SocketAddr> },
    /// Serves the process that started this one.
    ServeParent,
    /// Is one of NCCL's two processes.
    NcclRank,
    /// Measures against a server elsewhere.
    Connect { address: SocketAddr },
    /// Starts the server itself.
    Both,
    /// Starts server and client inside a lab.
    Lab { rates: Vec<Rate> },
}

impl Args {
    pub(super) fn role(&self) -> Result<Role, BenchError> {
        if self.serve_parent {
            return Ok(Role::ServeParent);
        }
        if self.nccl_rank {
            return Ok(Role::NcclRank);
        }
        if let Some(address) = self.inside_lab {
            return Ok(Role::Connect { address });
        }
        if let Some(listen) = &self.listen {
            let address = (!listen.is_empty()).then(|| resolve("--listen", listen)).transpose()?;
            return Ok(Role::Listen { address });
        }
        if let Some(connect) = &self.connect {
            return Ok(Role::Connect { address: resolve("--connect", connect)? });
        }
        Ok(match &self.lab {
            Some(Rates(rates)) => Role::Lab { rates: rates.clone() },
            None => Role::Both,
        })
    }

    pub(super) fn plan(&self) -> Plan {
        let mut against = self.against.clone();
        let (mut sizes, mut segments) = (self.sizes.0.clone(), self.segments);
        if let (Some(blocks), Some(bytes)) = (self.blocks, self.block_bytes) {
            (sizes, segments) = (vec![blocks.saturating_mul(bytes)], blocks);
            if !against.contains(&Against::Contiguous) {
                against.push(Against::Contiguous);
            }
        }
        Plan {
            op: self.op,
            sizes,
            segments,
            depth: self.depth,
            time: self.time,
            iters: self.iters,
            warmup: self.warmup,
            rounds: self.rounds,
            bidir: self.bidir,
            latency: self.latency,
            verify: self.verify,
            against,
            channels: self.channels_list.clone(),
            nccl_modes: self.nccl_modes.clone(),
            nccl_library: self.nccl_lib.clone(),
            dry_run: self.dry_run,
        }
    }
}

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
  polyrail bench --mem cuda:0 --peer-mem cuda:1       from one GPU to another
  polyrail bench --listen                             on one machine, then on another:
  polyrail bench --connect 10.0.0.1:34567 --sizes 8..1GiB";

fn resolve(option: &'static str, text: &str) -> Result<SocketAddr, BenchError> {
    let allowed = "an address and a port, like 10.0.0.1:34567 or [fd00::1]:34567";
    let bad = |reason: String| BenchError::usage(option, text, reason, allowed);
    let mut addresses = text.to_socket_addrs().map_err(|error| {
        // Only a name that is well formed reaches the resolver.
        let reason = if text.contains(':') { error.to_string() } else { "has no port".into() };
        bad(reason)
    })?;
    addresses.next().ok_or_else(|| bad("has no address".into()))
}

fn sizes(text: &str) -> Result<Sizes, String> {
    parse_sizes(text).map(Sizes).map_err(with_help)
}

fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(with_help)
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map_err(with_help)
}

fn rates(text: &str) -> Result<Rates, String> {
    LabSpec::parse_rails(text).map(Rates).map_err(|error| match error.help() {
        Some(help) => format!("{error} ({help})"),
        None => error.to_string(),
    })
}

fn with_help(error: BadUnit) -> String {
    match error.help() {
        Some(help) => format!("{error} ({help})"),
        None => error.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    pub(in super::super) fn args(text: &str) -> Args {
        let words = ["bench"].into_iter().chain(text.split_whitespace());
        Command::try_parse_from(words).map(|command| command.args).unwrap()
    }

    fn refused(text: &str) -> String {
        let words = ["bench"].into_iter().chain(text.split_whitespace());
        Command::try_parse_from(words).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn wrong_values_name_option_value_and_range() {
        for (text, parts) in [
            ("--sizes 64K", ["--sizes", "64K", "64KiB (1024) or 64kB (1000)"]),
            ("--sizes 9..8", ["--sizes", "9..8", "runs backwards"]),
            ("--time 3", ["--time", "3", "write 3s or 3ms"]),
            ("--lab 4x1000", ["--lab", "4x1000", "1mbit to 400gbit"]),
            ("--op put", ["--op", "put", "write, read, send"]),
        ] {
            let message = refused(text);
            assert!(parts.iter().all(|part| message.contains(part)), "{text}: {message}");
        }
        let error = args("--connect 10.0.0.1").role().err().unwrap().to_string();
        assert!(
            error.starts_with("--connect `10.0.0.1` has no port; allowed: an address"),
            "{error}"
        );
    }

    #[test]
    fn roles_that_exclude_each_other_are_refused() {
        assert!(refused("--listen --connect 1.2.3.4:5").contains("cannot be used with"));
        assert!(refused("--lab 1gbit --connect 1.2.3.4:5").contains("cannot be used with"));
    }
}
