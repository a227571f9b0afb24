//! The report's tables of what was measured in turn with the engine.

use polyrail_report::{
    Align, BenchReport, RatioInterval, Spread, Table, Tried, show_gb_per_s, show_micros,
    show_ratio, show_size,
};

use super::words::{SHARES_MAX, micros, plural};

pub(crate) fn against_raw(report: &BenchReport, is_latency: bool) -> Option<Table> {
    let pairs = report.results.iter().filter_map(|result| Some((result, result.against.as_ref()?)));
    let pairs: Vec<_> = pairs.collect();
    let (_, first) = pairs.first()?;
    let sockets = plural(first.flows, "socket");
    let sockets = format!("{} plain {sockets}, {}", first.flows, first.congestion);
    let mut table = Table::default().column("size", Align::Right);
    table = if is_latency {
        table
            .column("p50", Align::Right)
            .column(format!("p50 of {sockets}"), Align::Right)
            .column("ratio", Align::Right)
    } else {
        table
            .column("GB/s", Align::Right)
            .column(format!("GB/s of {sockets}"), Align::Right)
            .column("ratio", Align::Right)
            .column("CPU s/GB", Align::Right)
            .column("theirs", Align::Right)
            .column("ratio", Align::Right)
    };
    for (result, raw) in pairs {
        if is_latency {
            table.row([
                show_size(result.size_bytes),
                micros(result.latency_us, |latency| latency.p50),
                micros(raw.raw_latency_us, |latency| latency.p50),
                show_ratio(raw.ratio),
            ]);
        } else {
            table.row([
                show_size(result.size_bytes),
                show_gb_per_s(result.gb_per_s),
                show_gb_per_s(raw.raw_gb_per_s),
                show_ratio(raw.ratio),
                result.cpu_seconds_per_gb.map_or(String::new(), show_gb_per_s),
                raw.raw_cpu_seconds_per_gb.map_or(String::new(), show_gb_per_s),
                raw.cpu_ratio.map_or(String::new(), show_ratio),
            ]);
        }
    }
    Some(table)
}

pub(crate) fn against_alone(report: &BenchReport) -> Option<Table> {
    let mut table = Table::default()
        .column("size", Align::Right)
        .column("GB/s", Align::Right)
        .column("sum of each rail alone", Align::Right)
        .column("ratio", Align::Right)
        .column("each alone", Align::Left);
    let mut is_empty = true;
    for result in &report.results {
        let Some(alone) = &result.alone else { continue };
        let rails: Vec<f64> = alone.rails.iter().map(|rail| rail.gb_per_s).collect();
        let each = if rails.len() > SHARES_MAX {
            let edges = Spread::of(rails);
            edges.map_or(String::new(), |edges| {
                format!("{} to {}", show_gb_per_s(edges.min), show_gb_per_s(edges.max))
            })
        } else {
            rails.into_iter().map(show_gb_per_s).collect::<Vec<_>>().join(" ")
        };
        table.row([
            show_size(result.size_bytes),
            show_gb_per_s(result.gb_per_s),
            show_gb_per_s(alone.sum_gb_per_s),
            show_ratio(alone.ratio),
            each,
        ]);
        is_empty = false;
    }
    (!is_empty).then_some(table)
}

pub(crate) fn baselines(report: &BenchReport) -> Option<Table> {
    let mut table = Table::default()
        .column("size", Align::Right)
        .column("GB/s", Align::Right)
        .column("p50", Align::Right)
        .column("against", Align::Left)
        .column("GB/s", Align::Right)
        .column("±%", Align::Right)
        .column("p50", Align::Right)
        .column("CPU s/GB", Align::Right)
        .column("ratio", Align::Right);
    let mut is_empty = true;
    for result in &report.results {
        for baseline in &result.baselines {
            let is_timed = baseline.p50_us.is_some();
            table.row([
                show_size(result.size_bytes),
                show_gb_per_s(result.gb_per_s),
                micros(result.latency_us.filter(|_| is_timed), |latency| latency.p50),
                baseline.name.clone(),
                show_gb_per_s(baseline.gb_per_s),
                format!("{:.1}", baseline.spread_gb_per_s.half_range_percent()),
                baseline.p50_us.map_or(String::new(), show_micros),
                baseline.cpu_seconds_per_gb.map_or(String::new(), show_gb_per_s),
                show_ratio(baseline.ratio),
            ]);
            is_empty = false;
        }
    }
    (!is_empty).then_some(table)
}

/// With `--why`.
pub(crate) fn tried(report: &BenchReport) -> Option<Table> {
    let mut table = Table::default()
        .column("size", Align::Right)
        .column("tried in turn", Align::Left)
        .column("GB/s", Align::Right)
        .column("ratio", Align::Right)
        .column("from", Align::Right)
        .column("to", Align::Right)
        .column("", Align::Left);
    let rows = || report.results.iter().flat_map(|of| of.tried.iter().map(move |one| (of, one)));
    for (result, tried) in rows() {
        table.row([
            show_size(result.size_bytes),
            tried.change.clone(),
            show_gb_per_s(tried.gb_per_s),
            show_ratio(tried.ratio.median),
            end(tried, |interval| interval.low),
            end(tried, |interval| interval.high),
            verdict(tried).to_owned(),
        ]);
    }
    rows().next().map(|_| table)
}

/// An end of the interval; empty for what was not measured again.
fn end(tried: &Tried, end: impl Fn(RatioInterval) -> f64) -> String {
    tried.interval.map_or(String::new(), |interval| show_ratio(end(interval)))
}

/// Nothing for what was not measured again.
fn verdict(tried: &Tried) -> &'static str {
    match tried.interval {
        None => "",
        Some(_) if tried.helps => "faster",
        Some(interval) if interval.high < 1.0 => "slower",
        Some(_) => "undecided",
    }
}

pub(crate) fn sweep(report: &BenchReport) -> Option<Table> {
    let mut table = Table::default()
        .column("size", Align::Right)
        .column("channels", Align::Right)
        .column("flows", Align::Right)
        .column("GB/s", Align::Right)
        .column("±%", Align::Right)
        .column("CPU s/GB", Align::Right);
    let rows = || report.results.iter().flat_map(|of| of.sweep.iter().map(move |row| (of, row)));
    for (result, row) in rows() {
        table.row([
            show_size(result.size_bytes),
            row.channels.to_string(),
            row.flows.to_string(),
            show_gb_per_s(row.gb_per_s),
            format!("{:.1}", row.spread_gb_per_s.half_range_percent()),
            row.cpu_seconds_per_gb.map_or(String::new(), show_gb_per_s),
        ]);
    }
    rows().next().map(|_| table)
}
