//! The page of a collective operation, from its JSON.

use polyrail_analyze::{NOISY_PERCENT, PageHead, PageVerdict, Tone, flaw};
use polyrail_report::{
    Spread, counted, is_undecided, show_gb_per_s, show_micros, show_ratio_range, show_size,
};

use super::report::{CollectiveReport, Ratio};

const PAGE: &str = include_str!("page.js");

/// Returns the page of a report, or an error if the text is not such a report.
pub(crate) fn page(json: &str) -> serde_json::Result<String> {
    Ok(polyrail_analyze::page(&head(&serde_json::from_str(json)?), json, PAGE))
}

fn head(report: &CollectiveReport) -> PageHead {
    let name = report.operation.name();
    let mut head = PageHead {
        title: format!("{name} of {}", counted(report.ranks as u64, "rank")),
        started_unix_ms: Some(report.head.started_unix_ms),
        verdict: verdict(report),
        tiles: tiles(report),
        facts: Vec::new(),
    };
    head.command(&report.head.arguments);
    for (name, plugin) in ["plugin", "compared with"].into_iter().zip(&report.plugins) {
        let devices = counted(plugin.devices as u64, "device");
        head.fact(name, Some(format!("{} ({}, {devices})", plugin.plugin, plugin.name)));
    }
    let rounds = counted(report.rounds.into(), "round");
    let operations = format!(
        "{} of {}, algorithm {}, {} of {} operations",
        counted(report.channels as u64, "channel"),
        report.element.name(),
        report.algorithm,
        rounds,
        report.iterations
    );
    head.fact("operations", Some(operations));
    head.fact("lab", report.lab.as_deref());
    head.machine(&report.host);
    head.fact("version", Some(format!("polyrail {}", report.head.tool.version)));
    head.fact("took", Some(format!("{:.1} s", report.head.elapsed_s)));
    head
}

fn verdict(report: &CollectiveReport) -> PageVerdict {
    let largest = report.plugins.first().and_then(|plugin| plugin.sizes.last());
    let result = largest.map(|one| {
        let size = show_size(one.size_bytes);
        format!("{} GB/s of bus bandwidth at {size}", show_gb_per_s(one.busbw_gb_per_s))
    });
    let noise = largest.map_or(0.0, |one| one.time_us.half_range_percent());
    let rounds = report.rounds as usize;
    let ratio = report.ratios.last();
    let compared = ratio.map(|ratio| {
        let shown = show_ratio_range(&spread_of(ratio), rounds);
        let size = show_size(ratio.size_bytes);
        format!("at {size}, bus bandwidth is {shown} times that of {}", other(report))
    });
    let (tone, word, text) = if let Some(error) = &report.head.error {
        (Tone::Bad, "Ended early", error.clone())
    } else if report.wrong() > 0 {
        let text = format!("{} came out wrong", counted(report.wrong(), "element"));
        (Tone::Bad, "Wrong results", text)
    } else if noise > NOISY_PERCENT {
        let text = format!(
            "the rounds vary by \u{b1} {noise:.0} %: end other programs, and repeat it with more --rounds"
        );
        (Tone::Bad, "Too noisy", text)
    } else if let Some(flaw) = flaw(&report.head.notes) {
        flaw
    } else if let Some((ratio, text)) = ratio.zip(compared.clone()) {
        match is_undecided(&spread_of(ratio), rounds) {
            true => (Tone::Unclear, "Undecided", text),
            false if ratio.ratio > 1.0 => (Tone::Good, "Faster", text),
            false => (Tone::Bad, "Slower", text),
        }
    } else if report.rounds == 1 {
        let text = "one round says nothing of how much the figures vary: give --rounds 3 or more";
        (Tone::Unclear, "Undecided", text.to_owned())
    } else {
        (Tone::Good, "Good", result.clone().unwrap_or_else(|| "nothing was measured".to_owned()))
    };
    let more = result.into_iter().chain(compared).filter(|one| *one != text).collect();
    PageVerdict { tone, word: word.to_owned(), text, more }
}

/// The plugin that the first one is compared with: its file name, or the sockets.
fn other(report: &CollectiveReport) -> &str {
    let other = report.plugins.get(1).map_or("the other plugin", |plugin| &plugin.plugin);
    other.rsplit('/').next().unwrap_or(other)
}

fn spread_of(ratio: &Ratio) -> Spread {
    Spread { median: ratio.ratio, min: ratio.min, max: ratio.max }
}

fn tiles(report: &CollectiveReport) -> Vec<(String, String)> {
    let mut tiles = Vec::new();
    let Some(plugin) = report.plugins.first() else { return tiles };
    if let Some(one) = plugin.sizes.last() {
        let label = format!("bus bandwidth of {}", show_size(one.size_bytes));
        tiles.push((format!("{} GB/s", show_gb_per_s(one.busbw_gb_per_s)), label));
    }
    if let Some(one) = plugin.sizes.first() {
        let label = format!("time of {}", show_size(one.size_bytes));
        tiles.push((show_micros(one.time_us.median), label));
    }
    let mean = format!("{} GB/s", show_gb_per_s(plugin.mean_busbw_gb_per_s));
    tiles.push((mean, "mean bus bandwidth of all sizes".to_owned()));
    if let Some(ratio) = report.ratios.last() {
        let shown = show_ratio_range(&spread_of(ratio), report.rounds as usize);
        tiles.push((shown, format!("times the bus bandwidth of {}", other(report))));
    }
    let is_checked = plugin.sizes.iter().any(|size| size.wrong.is_some());
    let checked = (report.wrong().to_string(), "wrong elements".to_owned());
    tiles.extend(is_checked.then_some(checked));
    tiles
}
