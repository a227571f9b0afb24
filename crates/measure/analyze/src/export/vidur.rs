//! Vidur's `data/profiling/network/<device>/send_recv.csv`: times in ms, one line per size and pair.

use polyrail_report::csv_line;

use super::File;
use crate::analysis::Analysis;
use crate::error::AnalyzeError;

/// Headings; the first column has none, because it is the index of a data frame.
const HEADINGS: [&str; 12] = [
    "",
    "time_stats.send_recv.min",
    "time_stats.send_recv.max",
    "time_stats.send_recv.mean",
    "time_stats.send_recv.median",
    "time_stats.send_recv.std",
    "rank",
    "num_workers",
    "size",
    "collective",
    "devices_per_node",
    "max_devices_per_node",
];

pub(super) fn export(analysis: &Analysis) -> Result<Vec<File>, AnalyzeError> {
    let path = analysis.one_path("this export")?;
    let host = |rank: u32| analysis.endpoints.get(rank as usize).map(|one| one.host.as_str());
    let most = analysis.endpoints.iter().map(|endpoint| {
        analysis.endpoints.iter().filter(|other| other.host == endpoint.host).count()
    });
    let most = most.max().unwrap_or(1);
    let mut text = csv_line(HEADINGS);
    let own = analysis
        .configurations
        .iter()
        .filter(|one| one.path == path && one.load == polyrail_profile::Load::None);
    for (index, one) in own.enumerate() {
        let ms = |ns: f64| format!("{}", ns / 1e6);
        let deviation = one.cv_percent.map_or(0.0, |cv| cv / 100.0 * one.mean_ns);
        // Two devices of one node, or one of each of two nodes.
        let devices = if host(one.src) == host(one.dst) { 2 } else { 1 };
        text += &csv_line([
            index.to_string(),
            ms(one.min_ns),
            ms(one.max_ns),
            ms(one.mean_ns),
            ms(one.median_ns),
            ms(deviation),
            one.src.to_string(),
            "2".into(),
            one.size_bytes.to_string(),
            "send_recv".into(),
            devices.to_string(),
            most.to_string(),
        ]);
    }
    Ok(vec![File::text("send_recv.csv", text)])
}
