//! `polyrail topo`: CPUs, nodes, interfaces and GPUs, and how far they are apart.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use polyrail::LeftOut;
use polyrail_config::Config;
use polyrail_doctor::{Probes, examined};
use polyrail_host::nvml::{NvmlAbsent, NvmlReport};
use polyrail_host::snapshot::{self, Answers, SnapshotError};
use polyrail_host::{Distance, Gpu, NicDetails, Sysroot, Topology};
use polyrail_nic::Ethtool;
use polyrail_report::{Align, Table, exit};
use polyrail_sys::files::{Opening, open_to_write, remove_opened};
use serde_json::{Value, json};

use crate::files::OutFile;
use crate::machine_args::{MachineArgs, refuse_machine, refuse_read};
use crate::stdout::{complain, fitted, print, refuse_place, start_log, tell};
use crate::unwritten::{Unwritten, to_stdout};
use crate::values::new_file;

mod tree;

/// The version of the JSON; raised when a field changes its meaning or goes away.
const SCHEMA_VERSION: u32 = 1;

/// Arguments of the subcommand.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Subcommand)]
enum Command {
    /// Save what this machine tells about itself in an archive, to examine it elsewhere.
    ///
    /// It holds no hardware or IP addresses, host names, serial numbers or keys. It does hold the limits and
    /// rights of the user who takes it. `polyrail topo --sysroot FILE` shows it, `polyrail doctor --sysroot
    /// FILE` examines it; unpacked, `lstopo -i` of hwloc shows it, too.
    Snapshot {
        /// The archive, which must not be there yet; `-` is standard output.
        #[arg(value_parser = new_file(true))]
        file: OutFile,

        #[command(flatten)]
        nvml: NvmlArgs,

        #[command(flatten)]
        machine: MachineArgs,
    },
}

#[derive(clap::Args)]
struct ShowArgs {
    /// Print everything as JSON.
    #[arg(long, group = "form")]
    json: bool,

    /// Print only the tree of nodes, buses and devices.
    #[arg(long, group = "form")]
    tree: bool,

    /// Print only the distances between GPUs and interfaces, and the best interface of each GPU.
    #[arg(long, group = "form")]
    matrix: bool,

    /// Print a topology file for NCCL (NCCL_TOPO_FILE).
    #[arg(long, group = "form")]
    nccl_xml: bool,

    #[command(flatten)]
    nvml: NvmlArgs,

    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(clap::Args)]
struct NvmlArgs {
    /// Do not ask NVIDIA's library NVML about the GPUs, which wakes those that sleep.
    #[arg(long)]
    no_nvml: bool,
}

/// Runs the subcommand.
pub(crate) fn run(args: &Args) -> ExitCode {
    match &args.command {
        Some(Command::Snapshot { file, nvml, machine }) => take_snapshot(file, nvml, machine),
        None => show(&args.show),
    }
}

fn show(args: &ShowArgs) -> ExitCode {
    let root = match args.machine.open() {
        Ok(root) => root,
        Err(error) => return refuse_machine(&error),
    };
    let mut topology = match Topology::read(&root) {
        Ok(topology) => topology,
        Err(error) => return refuse_read(error),
    };
    if root.is_live() {
        add_details(&mut topology);
    }
    // The file for NCCL needs no answers of NVML: NCCL asks the library itself.
    if !args.nccl_xml {
        match ask_nvml(&root, &args.nvml, &topology) {
            Some(Ok(report)) => topology.add_nvml(&report),
            Some(Err(absent)) => topology.add_nvml_absent(&absent),
            None => {}
        }
    }
    let text = if args.json {
        format!("{:#}\n", json(&topology))
    } else if args.nccl_xml {
        topology.nccl_xml()
    } else if args.matrix {
        matrix(&topology)
    } else {
        let tree = tree::render(&topology);
        let matrix = if topology.gpus.is_empty() { String::new() } else { matrix(&topology) };
        let rails = if root.is_live() && !args.tree { rails() } else { String::new() };
        match args.tree || matrix.is_empty() {
            true => tree + &rails,
            false => format!("{tree}\n{matrix}{rails}"),
        }
    };
    print(&text, exit::OK)
}

/// The rails that an engine takes here without any settings, and the interfaces that it leaves out.
fn rails() -> String {
    let config = Config::default();
    let (rails, left_out) = match (polyrail::rails(&config), polyrail::left_out(&config)) {
        (Ok(rails), Ok(left_out)) => (rails, left_out),
        (Err(error), _) | (_, Err(error)) => return format!("\n{error}\n"),
    };
    let is_host_only = rails.iter().all(|rail| rail.address.ip().is_loopback());
    let rails = rails.iter().map(|rail| format!("{} {}", rail.interface, rail.address.ip()));
    let rails = rails.collect::<Vec<_>>().join(", ");
    let rails = if is_host_only { rails + ", which only this host can reach" } else { rails };
    format!("\nrails = auto takes {rails}\n{}", left_out_lines(&left_out))
}

/// A line for each reason.
fn left_out_lines(left_out: &[LeftOut]) -> String {
    let mut groups: Vec<Vec<LeftOut>> = Vec::new();
    for one in left_out {
        match groups.iter_mut().find(|group| group[0].reason == one.reason) {
            Some(group) => group.push(one.clone()),
            None => groups.push(vec![one.clone()]),
        }
    }
    let lines = groups.iter().filter_map(|group| LeftOut::line(group));
    lines.map(|line| format!("left out: {line}\n")).collect()
}

/// Asks NVML about the running machine, if it has a GPU that NVML would know.
fn ask_nvml(
    root: &Sysroot,
    args: &NvmlArgs,
    topology: &Topology,
) -> Option<Result<NvmlReport, NvmlAbsent>> {
    if args.no_nvml || !root.is_live() || !topology.gpus.iter().any(Gpu::is_nvidia) {
        return None;
    }
    // For the reasons of single refusals. Settings that are wrong are for those who need them.
    if let Ok(config) = Config::builder().env().build() {
        let _ = start_log(&config);
    }
    Some(NvmlReport::ask())
}

/// Rings, coalescing and RSS, as far as the driver of each interface tells. What it does not tell
/// stays unknown, without an error.
fn add_details(topology: &mut Topology) {
    let Ok(mut ethtool) = Ethtool::open() else { return };
    for nic in &mut topology.nics {
        let mut details = NicDetails::default();
        if let Ok(rings) = ethtool.rings(&nic.name) {
            (details.rx_ring, details.rx_ring_max) = (rings.rx.now, rings.rx.max);
            (details.tx_ring, details.tx_ring_max) = (rings.tx.now, rings.tx.max);
        }
        if let Ok(channels) = ethtool.channels(&nic.name) {
            let sum = |one: Option<u32>, both: Option<u32>| match (one, both) {
                (None, None) => None,
                (one, both) => Some(one.unwrap_or(0) + both.unwrap_or(0)),
            };
            details.rx_queues_max = sum(channels.rx.max, channels.combined.max);
            details.tx_queues_max = sum(channels.tx.max, channels.combined.max);
        }
        if let Ok(coalesce) = ethtool.coalesce(&nic.name) {
            details.rx_coalesce_us = coalesce.get("rx-usecs").copied();
            details.tx_coalesce_us = coalesce.get("tx-usecs").copied();
            details.adaptive_rx = coalesce.get("adaptive-rx").map(|on| *on != 0);
        }
        if let Ok(rss) = ethtool.rss(&nic.name) {
            let mut queues = rss.indirection;
            queues.sort_unstable();
            queues.dedup();
            // A table that is not there means no spreading, and not a spreading over nothing.
            details.rss_queues = u32::try_from(queues.len()).ok().filter(|count| *count > 0);
        }
        nic.details = Some(details);
    }
}

fn json(topology: &Topology) -> Value {
    let mut document = json!({ "schema_version": SCHEMA_VERSION });
    // Both are maps: the types are structs with named fields.
    if let (Value::Object(all), Ok(Value::Object(fields))) =
        (&mut document, serde_json::to_value(topology))
    {
        all.extend(fields);
    }
    document["matrix"] = json!(topology.matrix());
    document["gpu_matrix"] = json!(topology.gpu_matrix());
    document["best_nic"] = json!(topology.choices());
    document
}

fn matrix(topology: &Topology) -> String {
    if topology.gpus.is_empty() {
        return "no GPU on the PCI bus\n".to_owned();
    }
    let mut table = Table::default().column("", Align::Left);
    for nic in &topology.nics {
        table = table.column(&nic.name, Align::Left);
    }
    table = table.column("best", Align::Left).column("why", Align::Left);
    for ((gpu, row), choice) in topology.gpus.iter().zip(topology.matrix()).zip(topology.choices())
    {
        let distances = row.iter().map(|distance| distance.map_or("?", Distance::word).to_owned());
        let mut cells = vec![format!("GPU {}", gpu.index)];
        cells.extend(distances);
        cells.extend([choice.nic.unwrap_or_else(|| "none".to_owned()), choice.why]);
        table.row(cells);
    }
    let legend = [Distance::Pix, Distance::Pxb, Distance::Phb, Distance::Node, Distance::Sys]
        .map(|distance| format!("{:<4}  {}\n", distance.word(), distance.meaning()));
    let gpus = gpu_matrix(topology).map(|table| fitted(&table) + "\n").unwrap_or_default();
    let nvlink = if gpus.is_empty() { "" } else { "NV#   over # NVLinks\n" };
    format!(
        "{gpus}{}\n{}{nvlink}?     unknown: the machine does not tell\n",
        fitted(&table),
        legend.concat()
    )
}

/// How GPUs reach each other. Only where NVML was asked: without it NVLinks are unknown, and words
/// of the PCI bus alone would mislead.
fn gpu_matrix(topology: &Topology) -> Option<Table> {
    topology.nvml.as_ref().filter(|_| topology.gpus.len() > 1)?;
    let mut table = Table::default().column("", Align::Left);
    for gpu in &topology.gpus {
        table = table.column(format!("GPU {}", gpu.index), Align::Left);
    }
    for (gpu, row) in topology.gpus.iter().zip(topology.gpu_matrix()) {
        let mut cells = vec![format!("GPU {}", gpu.index)];
        cells.extend(row.into_iter().enumerate().map(|(other, path)| match path {
            _ if other == gpu.index => "X".to_owned(),
            Some(path) => path.word(),
            None => "?".to_owned(),
        }));
        table.row(cells);
    }
    Some(table)
}

fn take_snapshot(file: &Path, nvml: &NvmlArgs, machine: &MachineArgs) -> ExitCode {
    let root = match machine.open() {
        Ok(root) => root,
        Err(error) => return refuse_machine(&error),
    };
    let topology = match Topology::read(&root) {
        Ok(topology) => topology,
        Err(error) => return refuse_read(error),
    };
    let nvml = match ask_nvml(&root, nvml, &topology) {
        Some(Ok(report)) => Some(report),
        Some(Err(absent)) => {
            tell!("polyrail: {absent}");
            None
        }
        None => None,
    };
    let probes = match Probes::take(&root, &examined(&root, &topology)) {
        Ok(probes) => probes.redacted().to_json(),
        Err(error) => {
            complain(&error.to_string(), error.help().as_deref());
            return ExitCode::from(exit::USAGE);
        }
    };
    let answers = Answers { nvml: nvml.as_ref(), files: vec![(Probes::FILE, probes)] };
    let is_stdout = file == Path::new("-");
    let name = file.file_stem().and_then(|stem| stem.to_str()).filter(|_| !is_stdout);
    let name = name.unwrap_or("machine");
    let written = if is_stdout {
        snapshot::write(&root, name, &answers, io::stdout().lock())
    } else {
        match open_to_write(file, Opening::New, 0o666) {
            Ok(out) => snapshot::write(&root, name, &answers, io::BufWriter::new(&out))
                .inspect_err(|error| {
                    // Half an archive is worth nothing.
                    if matches!(error, SnapshotError::Write(_) | SnapshotError::Read(_)) {
                        let _ = remove_opened(file, &out);
                    }
                }),
            Err(error) => return refuse_place(&Unwritten::at(file)(error)),
        }
    };
    match written {
        Ok(summary) => {
            tell!(
                "polyrail: {} files and {} links of {}; no hardware or IP addresses, names, serial \
                 numbers or keys are in it",
                summary.files,
                summary.links,
                if root.is_live() {
                    "this machine".to_owned()
                } else {
                    root.root().display().to_string()
                },
            );
            ExitCode::SUCCESS
        }
        Err(SnapshotError::Write(error)) if is_stdout => {
            let _ = to_stdout(Err(error));
            ExitCode::SUCCESS
        }
        Err(SnapshotError::Write(error)) => refuse_place(&Unwritten::at(file)(error)),
        Err(other) => refuse_machine(&other),
    }
}
