//! The figures as people see them: a table like that of nccl-tests for each plugin, and the ratios.

use std::fmt::Write as _;
use std::path::Path;

use polyrail_report::{Align, Table, counted, show_gb_per_s, show_ratio};

use super::report::{CollectiveReport, PluginReport};
use crate::fault::Fault;
use crate::reports::{self, Form};
use crate::stdout::{fitted, tell, wrapped_sentences};

/// Prints the text and writes the JSON. Where nothing was measured, a program that reads the file learns why.
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
            report.redop.unwrap_or("none").into(),
            format!("{:.1}", size.time_us.median),
            format!("{:.0}", size.time_us.half_range_percent()),
            show_gb_per_s(size.algbw_gb_per_s),
            show_gb_per_s(size.busbw_gb_per_s),
            size.wrong.map_or("-".into(), |wrong| wrong.to_string()),
        ]);
    }
    table
}

fn ratios(report: &CollectiveReport) -> Table {
    let mut table = Table::default().column("size B", Align::Right);
    for heading in ["busbw ratio", "lowest", "highest"] {
        table = table.column(heading, Align::Right);
    }
    for ratio in &report.ratios {
        let figures = [ratio.ratio, ratio.min, ratio.max].map(show_ratio);
        table.row([ratio.size_bytes.to_string()].into_iter().chain(figures));
    }
    table
}
