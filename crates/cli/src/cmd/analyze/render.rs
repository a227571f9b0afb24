//! An analysis as text for a terminal: what matters, and where the rest is.

use std::fmt::Write as _;

use polyrail_analyze::{
    Analysis, Comparison, ErrorSummary, Judgement, Link, PointVerdict, RegimeKind, SizeClass,
    Verdict,
};
use polyrail_profile::PathKind;
use polyrail_report::{Align, Table, show_gb_per_s, show_micros, show_size};

/// The analysis without its single configurations, which `--json` and `--html` have.
pub(super) fn text(analysis: &Analysis) -> String {
    let mut text = format!(
        "{}: {}, {} endpoints, {} configurations, {} of {} samples\n",
        analysis.about.dir,
        analysis.about.hostname,
        analysis.endpoints.len(),
        analysis.configurations.len(),
        analysis.counts.taken,
        analysis.counts.planned
    );
    for warning in &analysis.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    let _ = write!(text, "\n{}", paths(analysis));
    let _ = write!(text, "\n{}", links(analysis));
    oddities(analysis, &mut text);
    if let Some(comparison) = &analysis.comparison {
        compared(comparison, analysis, &mut text);
    }
    if let Some(judgement) = &analysis.predictions {
        judged(judgement, analysis, &mut text);
    }
    harmless(&text)
}

/// Names of a profile that somebody else made must not steer the terminal.
fn harmless(text: &str) -> String {
    let show = |one: char| match one {
        '\n' => one.to_string(),
        _ if one.is_control() => one.escape_default().to_string(),
        _ => one.to_string(),
    };
    text.chars().map(show).collect()
}

fn paths(analysis: &Analysis) -> Table {
    let mut table = columns(&[
        "path",
        "metric",
        "links",
        "smallest",
        "GB/s median",
        "GB/s worst",
        "CV<5% >=1MiB",
        "outliers",
    ]);
    for one in &analysis.metrics {
        let own: Vec<&Link> = analysis.links.iter().filter(|link| link.path == one.path).collect();
        let mut rates: Vec<f64> = own.iter().map(|link| link.best_gb_per_s).collect();
        let mut smallest: Vec<f64> = own.iter().map(|link| link.smallest_ns).collect();
        rates.sort_by(f64::total_cmp);
        smallest.sort_by(f64::total_cmp);
        let configurations = || analysis.configurations.iter().filter(|each| each.path == one.path);
        let large: Vec<f64> = configurations()
            .filter(|each| each.size_bytes >= 1 << 20)
            .filter_map(|each| each.cv_percent)
            .collect();
        let steady = large.iter().filter(|cv| **cv < 5.0).count();
        table.row([
            one.path.to_string(),
            one.metric.to_owned(),
            own.len().to_string(),
            middle(&smallest).map_or("-".into(), show_ns),
            middle(&rates).map_or("-".into(), show_gb_per_s),
            rates.first().map_or("-".into(), |rate| show_gb_per_s(*rate)),
            if large.is_empty() { "-".into() } else { format!("{steady} of {}", large.len()) },
            configurations().map(|each| each.outliers).sum::<usize>().to_string(),
        ]);
    }
    table
}

fn links(analysis: &Analysis) -> Table {
    let mut table = columns(&[
        "link",
        "path",
        "latency",
        "GB/s",
        "latency-bound to",
        "bandwidth-bound from",
        "breaks",
        "fit off by",
    ]);
    let edge = |link: &Link, kind: RegimeKind, from: bool| {
        let regimes = &link.model.as_ref()?.regimes;
        let one = regimes.iter().rev().find(|regime| regime.kind == kind)?;
        Some(show_size(if from { one.from_bytes } else { one.to_bytes }))
    };
    for link in &analysis.links {
        let model = link.model.as_ref();
        let breaks = model.map(|model| {
            let sizes = model.breaks.iter().map(|one| show_size(one.before_bytes));
            sizes.collect::<Vec<String>>().join(" ")
        });
        let worst = model.map(|model| {
            model.segments.iter().map(|one| one.max_error_percent).fold(0.0, f64::max)
        });
        let latency = model.and_then(|model| model.segments.first()).map(|one| one.latency_ns);
        table.row([
            name(analysis, link.src, link.dst),
            link.path.to_string(),
            latency.map_or("-".into(), show_ns),
            model.and_then(|model| model.peak_gb_per_s()).map_or("-".into(), show_gb_per_s),
            edge(link, RegimeKind::LatencyBound, false).unwrap_or("-".into()),
            edge(link, RegimeKind::BandwidthBound, true).unwrap_or("-".into()),
            breaks.unwrap_or_default(),
            worst.map_or("-".into(), |worst| format!("{worst:.1}%")),
        ]);
    }
    table
}

fn oddities(analysis: &Analysis, text: &mut String) {
    let class = |sizes| if sizes == SizeClass::Small { "up to 4KiB" } else { "from 1MiB on" };
    for one in &analysis.asymmetries {
        let _ = writeln!(
            text,
            "\nasymmetric: {} over {}, {}: {:.1}% slower than back ({} of {} sizes apart)",
            name(analysis, one.src, one.dst),
            one.path,
            class(one.sizes),
            one.slower_percent,
            one.sizes_apart,
            one.sizes_compared
        );
    }
    for one in &analysis.slow_links {
        let _ = writeln!(
            text,
            "slow link: {} over {}, {}: {:.1}% slower than the middle one",
            name(analysis, one.src, one.dst),
            one.path,
            class(one.sizes),
            one.slower_percent
        );
    }
    for clock in &analysis.clocks.clocks {
        let _ = writeln!(
            text,
            "clock {}: {} ppm, aligned within {:.0} ns",
            clock.name,
            clock.rate_ppm.map_or("unknown".into(), |rate| format!("{rate:+.2}")),
            clock.bound_ns
        );
    }
}

fn compared(comparison: &Comparison, analysis: &Analysis, text: &mut String) {
    let count = |verdict| comparison.counts.get(&verdict).copied().unwrap_or(0);
    let _ = writeln!(
        text,
        "\nagainst {}: {}: {} same, {} faster, {} slower, {} unclear, {} only in one",
        comparison.base,
        word(comparison.verdict),
        count(Verdict::Same),
        count(Verdict::Faster),
        count(Verdict::Slower),
        count(Verdict::Unclear),
        comparison.unmatched
    );
    for (path, ratio) in &comparison.ratios {
        let _ = writeln!(text, "{path}: {ratio:.3} times the base's time");
    }
    for warning in &comparison.warnings {
        let _ = writeln!(text, "warning: {warning}");
    }
    let mut slower: Vec<_> =
        comparison.points.iter().filter(|point| point.verdict == Verdict::Slower).collect();
    slower.sort_by(|a, b| b.change_percent.total_cmp(&a.change_percent));
    let mut table = columns(&["slower most", "path", "size", "base", "now", "change"]);
    for point in slower.iter().take(ROWS) {
        table.row([
            name(analysis, point.src, point.dst),
            point.path.to_string(),
            show_size(point.size_bytes),
            show_ns(point.base_ns),
            show_ns(point.now_ns),
            format!("{:+.1}%", point.change_percent),
        ]);
    }
    if !slower.is_empty() {
        let _ = write!(text, "{table}");
    }
}

fn judged(judgement: &Judgement, analysis: &Analysis, text: &mut String) {
    let count = |verdict| judgement.points.iter().filter(|point| point.verdict == verdict).count();
    let _ = writeln!(
        text,
        "\n{}: {} right, {} too fast, {} too slow, {} unclear; {} were not measured, {} measured \
         were not predicted",
        judgement.file,
        count(PointVerdict::Right),
        count(PointVerdict::TooFast),
        count(PointVerdict::TooSlow),
        count(PointVerdict::Unclear),
        judgement.not_measured,
        judgement.not_predicted
    );
    let mut table = columns(&["over", "path", "points", "bias", "mean error", "worst", "right"]);
    let mut row = |over: String, path: Option<PathKind>, errors: &ErrorSummary| {
        table.row([
            over,
            path.map_or(String::new(), |path| path.to_string()),
            errors.points.to_string(),
            format!("{:+.1}%", errors.bias_percent),
            format!("{:.1}%", errors.mape_percent),
            format!("{:+.1}%", errors.worst_percent),
            format!("{:.0}%", errors.right_percent),
        ]);
    };
    row("all".into(), None, &judgement.total);
    for (kind, errors) in &judgement.by_regime {
        let kind = match kind {
            RegimeKind::LatencyBound => "latency-bound",
            RegimeKind::Transition => "transition",
            RegimeKind::BandwidthBound => "bandwidth-bound",
        };
        row(kind.into(), None, errors);
    }
    for link in judgement.by_link.iter().take(ROWS) {
        row(name(analysis, link.src, link.dst), Some(link.path), &link.errors);
    }
    let _ = write!(text, "{table}");
}

/// Rows of lists of which the worst is of interest.
const ROWS: usize = 10;

/// A table whose first column is names, and the rest numbers.
fn columns(headings: &[&str]) -> Table {
    headings.iter().enumerate().fold(Table::default(), |table, (place, heading)| {
        let is_name = place == 0 || *heading == "path" || *heading == "metric";
        table.column(*heading, if is_name { Align::Left } else { Align::Right })
    })
}

fn name(analysis: &Analysis, src: u32, dst: u32) -> String {
    let of = |rank: u32| analysis.endpoints.get(rank as usize).map_or("?", |one| one.name.as_str());
    format!("{} > {}", of(src), of(dst))
}

fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Same => "same",
        Verdict::Faster => "faster",
        Verdict::Slower => "slower",
        Verdict::Unclear => "unclear",
    }
}

fn show_ns(ns: f64) -> String {
    show_micros(ns / 1e3)
}

fn middle(sorted: &[f64]) -> Option<f64> {
    sorted.get(sorted.len() / 2).copied()
}
