//! SimAI: a topology for its packet simulator, and a table of measured send latencies that replaces its default values.
//!
//! The topology's first line has nodes, GPUs per server, NVSwitches, other switches, links and the type of GPU; the
//! second line has the switches; then follows one line per link with rate, delay and error rate. Packets stream through
//! a switch, so a link has the whole rate. SimAI adds its send latency to the delays of the links. So links get the
//! delay of SimAI's own topologies, and the send latency gets the rest.

use std::fmt::Write as _;

use polyrail_profile::EndpointKind;
use polyrail_report::csv_line;

use super::{File, common};
use crate::analysis::Analysis;
use crate::error::AnalyzeError;

const NAME: &str = "SimAI";
/// Delay of one link in SimAI's own topologies; a message passes two links.
const LINK_DELAY_NS: f64 = 25.0;
/// GPU types that SimAI distinguishes: a part of the model's name, and SimAI's word for it. An H200 is an H100 with
/// other memory.
const TYPES: [(&str, &str); 5] =
    [("A100", "A100"), ("A800", "A800"), ("H100", "H100"), ("H200", "H100"), ("H800", "H800")];

pub(super) fn export(analysis: &Analysis) -> Result<Vec<File>, AnalyzeError> {
    let common = common(analysis, NAME)?;
    let endpoints = &analysis.endpoints;
    let mut hosts: Vec<&str> = endpoints.iter().map(|endpoint| endpoint.host.as_str()).collect();
    hosts.sort_unstable();
    hosts.dedup();
    if !endpoints.len().is_multiple_of(hosts.len()) {
        let why = format!(
            "{} endpoints on {} hosts; allowed: the same number on each",
            endpoints.len(),
            hosts.len()
        );
        return Err(AnalyzeError::Export { target: NAME, why });
    }
    // Within one host the switch represents NVLink, between hosts the network.
    let (nvswitches, switches) = if hosts.len() == 1 { (1, 0) } else { (0, 1) };
    let gpu = match endpoints[0].kind {
        EndpointKind::Gpu => analysis.about.models[0].as_deref().unwrap_or("GPU"),
        EndpointKind::Host => "CPU",
    };
    let count = endpoints.len();
    // The first line may hold only words.
    let known = TYPES.iter().find(|(name, _)| gpu.contains(name)).map(|(_, word)| *word);
    let words = known.unwrap_or(gpu);
    let gpu: String = words.chars().filter(char::is_ascii_alphanumeric).collect();
    let gpu = if gpu.is_empty() { "GPU" } else { &gpu };
    let gpus = count / hosts.len();
    let mut topology =
        format!("{} {gpus} {nvswitches} {switches} {count} {gpu}\n{count}\n", count + 1);
    let delay_ms = LINK_DELAY_NS / 1e6;
    for endpoint in endpoints {
        let rate = common.gb_per_s * 8.0;
        let _ = writeln!(topology, "{} {count} {rate:.3}Gbps {delay_ms:.9}ms 0", endpoint.rank);
    }
    let mut table = csv_line(["src", "dst", "path", "size_bytes", "send_lat_ns", "share_of_peak"]);
    let peak = common.links.iter().map(|link| link.best_gb_per_s).fold(0.0, f64::max);
    for one in analysis.configurations.iter().filter(|one| one.path == common.path) {
        table += &csv_line([
            one.src.to_string(),
            one.dst.to_string(),
            one.path.to_string(),
            one.size_bytes.to_string(),
            format!("{:.0}", one.median_ns),
            format!("{:.4}", one.gb_per_s / peak),
        ]);
    }
    // SimAI's own table has one number for each protocol: the time of a transfer that is all latency.
    let smallest = common.links.iter().map(|link| link.smallest_ns);
    let smallest_ns = crate::stats::median_of(smallest).unwrap_or(0.0);
    let latency_ns = (smallest_ns - 2.0 * LINK_DELAY_NS).max(0.0);
    let variable = format!(
        "# the median time of the smallest size over {}, less the delay of two links, in ns\nexport \
         AS_SEND_LAT={:.0}\n",
        common.path, latency_ns
    );
    Ok(vec![
        File::text("simai_topology.txt", topology),
        File::text("simai_send_lat.csv", table),
        File::text("simai_env.sh", variable),
    ])
}
