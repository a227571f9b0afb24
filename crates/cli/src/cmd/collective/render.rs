//! The results as text: a table like that of nccl-tests for each plugin, and the ratios.

use std::fmt::Write as _;
use std::path::Path;

use polyrail_report::{
    Align, Spread, Table, counted, show_gb_per_s, show_ratio_range, show_spread,
};

use super::report::{CollectiveReport, PluginReport};
use crate::fault::Fault;
use crate::reports::{self, Form};
use crate::stdout::{fitted, tell, wrapped_sentences};

/// Prints the text and writes the JSON. If nothing was measured, prints only the notes; the JSON contains the error.
pub(crate) fn show(report: &CollectiveReport, json: Option<&Path>) -> Result<(), Fault> {
    let is_measured = report.plugins.iter().any(|plugin| !plugin.sizes.is_empty());
    if !is_measured {
        report.head.notes.iter().for_each(|note| tell!("polyrail: {note}"));
    }
    let document = reports::json(report)?;
    let json = json.map(|path| Form { name: "JSON", path, text: document });
    let text = if is_measured { text(report) } else { String::new() };
    reports::show(text, json)
}

fn text(report: &CollectiveReport) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{} ({}), {} ranks {}, {} channels; {} operations after {}, {}",
        report.operation.name(),
        report.algorithm,
        report.ranks,
        if report.lab.is_some() { "on the nodes of a lab" } else { "on this host" },
        report.channels,
        report.iterations,
        report.warmup,
        counted(report.rounds.into(), "round"),
    );
    for plugin in &report.plugins {
        let _ = writeln!(
            text,
            "\n{}: {}, version {} of the interface, {} {}\n\n{}",
            plugin.plugin,
            plugin.name,
            plugin.interface_version,
            plugin.devices,
            if plugin.devices == 1 { "device" } else { "devices" },
            fitted(&sizes(report, plugin))
        );
        let mean = show_gb_per_s(plugin.mean_busbw_gb_per_s);
        let _ = writeln!(text, "mean bus bandwidth: {mean} GB/s");
    }
    if let [ours, theirs] = &report.plugins[..] {
        let _ = writeln!(
            text,
            "\n{} beside {}:\n\n{}",
            ours.plugin,
            theirs.plugin,
            fitted(&ratios(report))
        );
    }
    for note in &report.head.notes {
        let _ = writeln!(text, "{}", wrapped_sentences(&format!("note: {note}")));
    }
    text
}

fn sizes(report: &CollectiveReport, plugin: &PluginReport) -> Table {
    let mut table = Table::default().column("size B", Align::Right).column("count", Align::Right);
    table = table.column("type", Align::Left).column("redop", Align::Left);
    for heading in ["time us", "±%", "algbw GB/s", "busbw GB/s", "wrong"] {
        table = table.column(heading, Align::Right);
    }
    for size in &plugin.sizes {
        table.row([
            size.size_bytes.to_string(),
            size.count.to_string(),
            report.element.name().into(),
            report.redop.clone().unwrap_or_else(|| "none".to_owned()),
            format!("{:.1}", size.time_us.median),
            show_spread(&size.time_us, report.rounds as usize),
            show_gb_per_s(size.algbw_gb_per_s),
            show_gb_per_s(size.busbw_gb_per_s),
            size.wrong.map_or("-".into(), |wrong| wrong.to_string()),
        ]);
    }
    table
}

fn ratios(report: &CollectiveReport) -> Table {
    let table = Table::default().column("size B", Align::Right);
    let mut table = table.column("busbw ×", Align::Left);
    for ratio in &report.ratios {
        let spread = Spread { median: ratio.ratio, min: ratio.min, max: ratio.max };
        let shown = show_ratio_range(&spread, report.rounds as usize);
        table.row([ratio.size_bytes.to_string(), shown]);
    }
    table
}
