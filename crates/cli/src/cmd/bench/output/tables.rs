//! Report tables of the rivals that took turns with the engine.

use polyrail_report::{
    Align, BenchReport, RatioInterval, Spread, Table, Tried, show_gb_per_s, show_micros,
    show_ratio, show_ratio_range, show_size, show_spread,
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
            .column("time ×", Align::Left)
    } else {
        table
            .column("GB/s", Align::Right)
            .column(format!("GB/s of {sockets}"), Align::Right)
            .column("rate ×", Align::Left)
            .column("CPU ×", Align::Left)
            .column("their CPU s/GB", Align::Right)
    };
    for (result, raw) in pairs {
        let rounds = raw.samples.len();
        let shown = ratio(raw.ratio, raw.spread_ratio, rounds);
        if is_latency {
            table.row([
                show_size(result.size_bytes),
                micros(result.latency_us, |latency| latency.p50),
                micros(raw.raw_latency_us, |latency| latency.p50),
                shown,
            ]);
        } else {
            table.row([
                show_size(result.size_bytes),
                show_gb_per_s(result.gb_per_s),
                show_gb_per_s(raw.raw_gb_per_s),
                shown,
                raw.cpu_ratio.map_or(String::new(), |cpu| ratio(cpu, raw.spread_cpu_ratio, rounds)),
                raw.raw_cpu_seconds_per_gb.map_or(String::new(), show_gb_per_s),
            ]);
        }
    }
    Some(table)
}

/// Formats the median of the rounds' ratios, with their range if the report has it.
fn ratio(median: f64, spread: Option<Spread>, rounds: usize) -> String {
    spread.map_or_else(|| show_ratio(median), |spread| show_ratio_range(&spread, rounds))
}

pub(crate) fn against_alone(report: &BenchReport) -> Option<Table> {
    let mut table = Table::default()
        .column("size", Align::Right)
        .column("GB/s", Align::Right)
        .column("sum of each rail alone", Align::Right)
        .column("rate ×", Align::Left)
        .column("each alone", Align::Left);
    let mut is_empty = true;
    for result in &report.results {
        let Some(alone) = &result.alone else { continue };
        let rounds = alone.rails.iter().map(|rail| rail.samples_gb_per_s.len()).min();
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
            ratio(alone.ratio, alone.spread_ratio, rounds.unwrap_or(0)),
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
        .column("rate ×", Align::Left);
    let mut is_empty = true;
    for result in &report.results {
        for baseline in &result.baselines {
            let rounds = baseline.samples_gb_per_s.len();
            let is_timed = baseline.p50_us.is_some();
            table.row([
                show_size(result.size_bytes),
                show_gb_per_s(result.gb_per_s),
                micros(result.latency_us.filter(|_| is_timed), |latency| latency.p50),
                baseline.name.clone(),
                show_gb_per_s(baseline.gb_per_s),
                show_spread(&baseline.spread_gb_per_s, rounds),
                baseline.p50_us.map_or(String::new(), show_micros),
                baseline.cpu_seconds_per_gb.map_or(String::new(), show_gb_per_s),
                show_ratio_range(&baseline.spread_ratio, rounds),
            ]);
            is_empty = false;
        }
    }
    (!is_empty).then_some(table)
}

/// Returns the table of `--why`.
pub(crate) fn tried(report: &BenchReport) -> Option<Table> {
    let mut table = Table::default()
        .column("size", Align::Right)
        .column("tried in turn", Align::Left)
        .column("GB/s", Align::Right)
        .column("rate ×", Align::Right)
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

/// Formats an end of the interval. Empty for changes that were not measured again.
fn end(tried: &Tried, end: impl Fn(RatioInterval) -> f64) -> String {
    tried.interval.map_or(String::new(), |interval| show_ratio(end(interval)))
}

/// Names the verdict. Empty for changes that were not measured again.
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
            show_spread(&row.spread_gb_per_s, row.samples_gb_per_s.len()),
            row.cpu_seconds_per_gb.map_or(String::new(), show_gb_per_s),
        ]);
    }
    rows().next().map(|_| table)
}
