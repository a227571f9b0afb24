//! The results of a mesh as text: a heat map and tables.

use std::fmt::Write as _;
use std::path::Path;

use polyrail_report::{Align, Table, counted, show_gb_per_s, show_memory};

use super::page;
use super::report::{LayoutReport, MeshReport, PatternReport};
use crate::fault::Fault;
use crate::reports::{self, Form};
use crate::stdout::{fitted, wrapped_sentences};

/// Prints the text, and writes the page and the JSON. Without results, writes only the JSON, which contains the error.
pub(crate) fn show(
    report: &MeshReport,
    json: Option<&Path>,
    html: Option<&Path>,
) -> Result<(), Fault> {
    let (document, is_measured) = (reports::json(report)?, report.is_measured());
    let page = html.filter(|_| is_measured).map(|path| {
        let text = page::page_of(report, &document);
        Form { name: "page", path, text }
    });
    let json = json.map(|path| Form { name: "JSON", path, text: document });
    let text = if is_measured { text(report) } else { String::new() };
    reports::show(text, page.into_iter().chain(json))
}

fn text(report: &MeshReport) -> String {
    let mut text = String::new();
    let endpoints = report.nodes * report.endpoints_per_node;
    let about = format!(
        "{} nodes, {endpoints} endpoints in {} memory, transfers of {}, {} under way per pair, {} \
         of {} ms",
        report.nodes,
        report.memory,
        show_memory(report.size_bytes),
        report.depth,
        counted(report.rounds.into(), "round"),
        report.time_ms,
    );
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}", wrapped_sentences(&about));
    for layout in &report.layouts {
        for pattern in &layout.patterns {
            text.push_str(&one(layout, pattern));
        }
    }
    let _ = writeln!(text, "\n{}", fitted(&summary(report)));
    for conclusion in &report.conclusions {
        let _ = writeln!(text, "{}", wrapped_sentences(conclusion));
    }
    let bytes: u64 = patterns(report).map(|(_, pattern)| pattern.verified_bytes).sum();
    let _ = writeln!(
        text,
        "\nverified: {} compared byte by byte, none wrong; {:.0} s in all",
        show_memory(bytes),
        report.head.elapsed_s
    );
    for note in &report.head.notes {
        let _ = writeln!(text, "{}", wrapped_sentences(&format!("note: {note}")));
    }
    text
}

fn patterns(report: &MeshReport) -> impl Iterator<Item = (&LayoutReport, &PatternReport)> {
    report
        .layouts
        .iter()
        .flat_map(|layout| layout.patterns.iter().map(move |pattern| (layout, pattern)))
}

/// Table with a line per layout and pattern, which compares their rates on the same network.
fn summary(report: &MeshReport) -> Table {
    let mut table = Table::default().column("layout", Align::Left).column("pattern", Align::Left);
    for heading in
        ["processes", "total GB/s", "±%", "slowest pair", "median", "fastest", "CPU s/GB", "depth"]
    {
        table = table.column(heading, Align::Right);
    }
    for (layout, pattern) in patterns(report) {
        let rates: Vec<f64> = pattern.pairs.iter().map(|pair| pair.gb_per_s.median).collect();
        let spread = polyrail_report::Spread::of(rates);
        let spread = spread.map(|it| [it.min, it.median, it.max].map(show_gb_per_s));
        let [slowest, median, fastest] = spread.unwrap_or_default();
        let gb = pattern.transfers as f64 * report.size_bytes as f64 / 1e9;
        let depths = pattern.pairs.iter().map(|pair| pair.depth);
        table.row([
            layout.layout.name().into(),
            pattern.pattern.name().into(),
            layout.processes.to_string(),
            show_gb_per_s(pattern.total_gb_per_s.median),
            format!("{:.0}", pattern.total_gb_per_s.half_range_percent()),
            slowest,
            median,
            fastest,
            format!("{:.2}", pattern.cpu_seconds / gb),
            format!("{:.1}", polyrail_report::median(depths).unwrap_or(0.0)),
        ]);
    }
    table
}

fn one(layout: &LayoutReport, pattern: &PatternReport) -> String {
    let steps =
        if pattern.steps == 1 { "1 step".into() } else { format!("{} steps", pattern.steps) };
    let mut text = format!(
        "\n{}, layout {}: {steps}, total {} GB/s\n\n",
        pattern.pattern.name(),
        layout.layout.name(),
        show_gb_per_s(pattern.total_gb_per_s.median)
    );
    let _ = writeln!(text, "{}", fitted(&heat_map(pattern)));
    let mut nodes = Table::default().column("", Align::Left);
    nodes = nodes.column("sends GB/s", Align::Right).column("gets GB/s", Align::Right);
    let has_several = pattern.endpoints.len() > pattern.nodes.len();
    let endpoints = pattern.endpoints.iter().filter(|_| has_several);
    for flow in endpoints.chain(&pattern.nodes) {
        let rates = [flow.tx_gb_per_s, flow.rx_gb_per_s].map(show_gb_per_s);
        nodes.row([flow.name.clone()].into_iter().chain(rates));
    }
    text + &[nodes, nics(pattern), cpus(pattern)].map(|table| fitted(&table)).join("\n")
}

/// Heat map with senders on the left and receivers above. Darker is faster.
fn heat_map(pattern: &PatternReport) -> Table {
    let names: Vec<&str> = pattern.endpoints.iter().map(|end| end.name.as_str()).collect();
    let fastest = pattern.pairs.iter().map(|pair| pair.gb_per_s.median).fold(0.0, f64::max);
    let mut table = Table::default().column("GB/s", Align::Left);
    for name in &names {
        table = table.column(format!("to {name}"), Align::Right);
    }
    for from in &names {
        let cell = |to: &&str| {
            let pair = pattern.pairs.iter().find(|pair| pair.from == *from && pair.to == *to);
            let Some(rate) = pair.map(|pair| pair.gb_per_s.median) else { return "·".to_owned() };
            format!("{} {}", show_gb_per_s(rate), shade(rate, fastest))
        };
        table.row([format!("from {from}")].into_iter().chain(names.iter().map(cell)));
    }
    table
}

fn shade(rate: f64, fastest: f64) -> char {
    const SHADES: [char; 4] = ['░', '▒', '▓', '█'];
    let share = if fastest > 0.0 { rate / fastest } else { 0.0 };
    SHADES[((share * 4.0).ceil() as usize).clamp(1, 4) - 1]
}

fn nics(pattern: &PatternReport) -> Table {
    let mut table = Table::default().column("NIC", Align::Left);
    for heading in [
        "sends GB/s",
        "gets GB/s",
        "window full %",
        "socket full %",
        "retransmits",
        "chunks again",
        "dropped in",
        "out",
    ] {
        table = table.column(heading, Align::Right);
    }
    for nic in &pattern.nics {
        table.row([
            format!("node{} {}", nic.node, nic.name),
            show_gb_per_s(nic.tx_gb_per_s),
            show_gb_per_s(nic.rx_gb_per_s),
            format!("{:.0}", nic.window_full_share * 100.0),
            format!("{:.0}", nic.socket_full_share * 100.0),
            nic.retransmits.to_string(),
            nic.resent_chunks.to_string(),
            nic.rx_dropped.to_string(),
            nic.tx_dropped.to_string(),
        ]);
    }
    table
}

/// Table of the busiest CPUs of each machine, and of their interrupts.
fn cpus(pattern: &PatternReport) -> Table {
    let mut table = Table::default().column("CPU", Align::Left);
    for heading in
        ["busy %", "user", "system", "irq", "softirq", "NET_RX", "NET_TX", "dropped", "squeezed"]
    {
        table = table.column(heading, Align::Right);
    }
    for machine in &pattern.machines {
        let mut cpus: Vec<_> = machine.cpus.iter().collect();
        cpus.sort_by(|a, b| b.busy_percent.total_cmp(&a.busy_percent));
        for cpu in cpus.into_iter().take(CPUS_SHOWN) {
            let percents = [
                cpu.busy_percent,
                cpu.user_percent,
                cpu.system_percent,
                cpu.irq_percent,
                cpu.softirq_percent,
            ];
            let counts = [cpu.net_rx, cpu.net_tx, cpu.dropped, cpu.squeezed];
            let name = format!("{} cpu{}", machine.host, cpu.cpu);
            let percents = percents.map(|percent| format!("{percent:.0}"));
            table.row([name].into_iter().chain(percents).chain(counts.map(|it| it.to_string())));
        }
        if machine.interrupts > 0 {
            let interrupts = format!("{} NIC interrupts: {}", machine.host, machine.interrupts);
            table.row([interrupts]);
        }
    }
    table
}

/// Maximum number of CPUs of each machine. The JSON has all of them.
const CPUS_SHOWN: usize = 8;
