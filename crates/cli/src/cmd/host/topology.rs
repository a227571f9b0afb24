//! CPUs, nodes, interfaces and GPUs, and their distances.

use std::process::ExitCode;

use polyrail::LeftOut;
use polyrail_config::Config;
use polyrail_host::nvml::{NvmlAbsent, NvmlReport};
use polyrail_host::{Distance, Gpu, NicDetails, Sysroot, Topology};
use polyrail_nic::Ethtool;
use polyrail_report::{Align, Table};
use polyrail_tune::TuneError;
use serde_json::{Value, json};

use super::output::{SCHEMA_VERSION, print};
use super::place::Where;
use super::tree;
use crate::stdout::{fitted, start_log};

/// Parts of the topology to show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    All,
    Tree,
    Matrix,
    NcclXml,
}

pub(super) fn show(part: Part, no_nvml: bool, place: &Where) -> Result<ExitCode, TuneError> {
    let root = place.root();
    let mut topology = place.topology()?;
    if root.is_live() {
        add_details(&mut topology);
    }
    // The file for NCCL needs no answers of NVML: NCCL asks the library itself.
    if part != Part::NcclXml {
        match ask_nvml(&root, no_nvml, &topology) {
            Some(Ok(report)) => topology.add_nvml(&report),
            Some(Err(absent)) => topology.add_nvml_absent(&absent),
            None => {}
        }
    }
    let text = match part {
        _ if place.json => format!("{:#}\n", json(&topology)),
        Part::NcclXml => topology.nccl_xml(),
        Part::Matrix => matrix(&topology),
        Part::Tree => tree::render(&topology),
        Part::All => {
            let mut text = tree::render(&topology);
            if !topology.gpus.is_empty() {
                text += &format!("\n{}", matrix(&topology));
            }
            if root.is_live() {
                text += &rails();
            }
            text
        }
    };
    Ok(print(&text))
}

/// The rails that an engine takes here by default, and the interfaces that it leaves out.
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
pub(super) fn ask_nvml(
    root: &Sysroot,
    no_nvml: bool,
    topology: &Topology,
) -> Option<Result<NvmlReport, NvmlAbsent>> {
    if no_nvml || !root.is_live() || !topology.gpus.iter().any(Gpu::is_nvidia) {
        return None;
    }
    // The log has the reasons of single refusals. Ignore wrong settings here.
    if let Ok(config) = Config::builder().env().build() {
        let _ = start_log(&config);
    }
    Some(NvmlReport::ask())
}

/// Adds rings, coalescing and RSS, as far as the driver of each interface reports them. The rest
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
            // A missing table means no spreading.
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

/// Table of the paths between GPUs, only with answers of NVML: NVLinks are unknown without it, and words of the PCI bus
/// alone would mislead.
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
