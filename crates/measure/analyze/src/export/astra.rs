//! ASTRA-sim's analytical network.
//!
//! A GB of ASTRA-sim is 2³⁰ bytes. Its two backends compute different times from one file: without congestion a message
//! takes `hops * latency + size / bandwidth`; with congestion each link stores and forwards, so a message through a
//! switch pays `size / bandwidth` twice. Between fully connected endpoints there is one hop and both agree. For a
//! switch there is a file for each backend, with a latency (and a bandwidth, with congestion) such that one message
//! takes the measured time.

use super::{Common, File, common};
use crate::analysis::Analysis;
use crate::error::AnalyzeError;

const NAME: &str = "ASTRA-sim";
const GIB: f64 = (1_u64 << 30) as f64;

/// Hops through a switch.
const SWITCH_HOPS: f64 = 2.0;

pub(super) fn export(analysis: &Analysis) -> Result<Vec<File>, AnalyzeError> {
    let common = common(analysis, NAME)?;
    let npus = analysis.endpoints.len();
    if npus < 2 {
        let why = format!("it needs more than one endpoint, and the profile has {npus}");
        return Err(AnalyzeError::Export { target: NAME, why });
    }
    let gib_per_s = common.gb_per_s * 1e9 / GIB;
    // If the sizes don't determine a latency, the best line has none.
    let latency_ns = common.line.latency_ns.unwrap_or(0.0);
    let file = |name: &str, topology: &str, note: &str, gib_per_s: f64, latency_ns: f64| {
        let head = head(analysis, &common, note);
        let text = format!(
            "{head}topology: [ {topology} ]\nnpus_count: [ {npus} ]\nbandwidth: [ {gib_per_s:.6} ]\n\
             latency: [ {latency_ns:.3} ]\n"
        );
        File::text(name, text)
    };
    Ok(vec![
        file(
            "astra_fully_connected.yml",
            "FullyConnected",
            "for both backends: one hop, so that they agree",
            gib_per_s,
            latency_ns,
        ),
        file(
            "astra_switch_unaware.yml",
            "Switch",
            "only for the congestion-unaware backend, which counts two hops of latency",
            gib_per_s,
            latency_ns / SWITCH_HOPS,
        ),
        file(
            "astra_switch_aware.yml",
            "Switch",
            "only for the congestion-aware backend, which forwards whole messages: a link has twice \
             the rate, so that one message takes the measured time; contention is modelled at that \
             rate, too",
            gib_per_s * SWITCH_HOPS,
            latency_ns / SWITCH_HOPS,
        ),
    ])
}

fn head(analysis: &Analysis, common: &Common<'_>, note: &str) -> String {
    let Common { path, links, line, gb_per_s } = common;
    let refused = line.refused.as_ref().map_or(String::new(), |why| {
        format!(
            "# don't trust it; it is here only because this simulator takes nothing else: \
             {why}\n"
        )
    });
    let off = line.error.map_or_else(
        || "how far sizes are off is not known from two".to_owned(),
        |error| format!("the farthest size is {:.1} % off", error.max_percent),
    );
    let metric = analysis.metrics.iter().find(|one| one.path == *path).map_or("", |one| one.metric);
    format!(
        "# measured: {path}, {metric}, {} links of {}\n# one line for all sizes: {:.1} ns + size / \
         {gb_per_s:.3} GB/s (10^9); {off}\n{refused}# bandwidth is in units of 2^30 \
         bytes/s, as ASTRA-sim reads it; latency in ns per hop\n# {note}\n",
        links.len(),
        // A line break would end the comment.
        analysis.about.hostname.replace(['\n', '\r'], " "),
        line.latency_ns.unwrap_or(0.0),
    )
}
