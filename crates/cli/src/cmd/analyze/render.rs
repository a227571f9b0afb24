//! An analysis as text for a terminal: the main findings, and where to find the rest.

use std::fmt::Write as _;

use polyrail_analyze::{
    Analysis, Comparison, ErrorSummary, Judgement, Link, Model, PointVerdict, RegimeKind,
    SizeClass, State, Verdict,
};
use polyrail_profile::PathKind;
use polyrail_report::{Align, Table, show_gb_per_s, show_micros, show_size};

use crate::stdout::{fitted, wrapped_sentences};

/// Text of the analysis, without the single configurations, which only `--json` and `--html` have.
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
    for conclusion in &analysis.conclusions {
        let _ = writeln!(text, "{}", wrapped_sentences(&format!("conclusion: {conclusion}")));
    }
    for warning in &analysis.warnings {
        let _ = writeln!(text, "{}", wrapped_sentences(&format!("warning: {warning}")));
    }
    let _ = write!(text, "\n{}", fitted(&paths(analysis)));
    let _ = write!(text, "\n{}", fitted(&links(analysis)));
    refused(analysis, &mut text);
    states(analysis, &mut text);
    oddities(analysis, &mut text);
    if let Some(comparison) = &analysis.comparison {
        compared(comparison, analysis, &mut text);
    }
    if let Some(judgement) = &analysis.predictions {
        judged(judgement, analysis, &mut text);
    }
    text
}

fn paths(analysis: &Analysis) -> Table {
    let mut table = columns(&[
        "path",
        "metric",
        "links",
        "smallest",
        "GB/s",
        "worst",
        "stream",
        "CV<5% >=1MiB",
        "two states",
        "outliers",
    ]);
    for one in &analysis.path_figures {
        let metric = analysis.metrics.iter().find(|metric| metric.path == one.path);
        table.row([
            one.path.to_string(),
            metric.map_or("-", |metric| metric.metric).to_owned(),
            one.links.to_string(),
            one.smallest_ns.map_or("-".into(), show_ns),
            one.median_gb_per_s.map_or("-".into(), show_gb_per_s),
            one.worst_gb_per_s.map_or("-".into(), show_gb_per_s),
            one.stream_gb_per_s.map_or("-".into(), |rate| {
                let of = one
                    .stream_bytes
                    .map_or(String::new(), |size| format!(" of {}", show_size(size)));
                show_gb_per_s(rate) + &of
            }),
            if one.large == 0 { "-".into() } else { format!("{} of {}", one.steady, one.large) },
            one.two_states.to_string(),
            one.outliers.to_string(),
        ]);
    }
    table
}

fn links(analysis: &Analysis) -> Table {
    let mut table = columns(&[
        "link",
        "path",
        "model",
        "latency",
        "GB/s",
        "off by",
        "latency-bound to",
        "bandwidth-bound from",
        "breaks",
    ]);
    for link in &analysis.links {
        let model = link.usable_model();
        let (kind, latency, rate, error) = match (link.usable_line(), model) {
            (Some(line), _) => ("line".to_owned(), line.latency_ns, line.gb_per_s, line.error),
            (None, Some(model)) => (
                format!("{} pieces", model.segments.len()),
                model.segments.first().and_then(|first| first.latency_ns),
                model.peak_gb_per_s(),
                Some(model.error),
            ),
            (None, None) => ("none".to_owned(), None, None, None),
        };
        let breaks = model.map_or(String::new(), |model| {
            let sizes = model.breaks.iter().map(|one| show_size(one.before_bytes));
            sizes.collect::<Vec<String>>().join(" ")
        });
        let edge = |size: Option<u64>| size.map_or("-".into(), show_size);
        table.row([
            name(analysis, link.src, link.dst),
            link.path.to_string(),
            kind,
            latency.map_or("-".into(), show_ns),
            rate.map_or("-".into(), show_gb_per_s),
            error.map_or("-".into(), |error| format!("{:.1}%", error.p90_percent)),
            edge(model.and_then(Model::latency_bound_to)),
            edge(model.and_then(Model::bandwidth_bound_from)),
            breaks,
        ]);
    }
    table
}

/// Adds why some links have no model or no model of one line, and the pieces of models that have several.
fn refused(analysis: &Analysis, text: &mut String) {
    let link_name =
        |link: &Link| format!("{} over {}", name(analysis, link.src, link.dst), link.path);
    let refused = |link: &&Link| link.model.as_ref().is_some_and(|model| model.refused.is_some());
    let none: Vec<&Link> = analysis.links.iter().filter(refused).collect();
    for link in none.iter().take(ROWS) {
        let why =
            link.model.as_ref().and_then(|model| model.refused.as_deref()).unwrap_or_default();
        let _ = writeln!(text, "\nno model: {}: {why}", link_name(link));
    }
    more(none.len(), text);
    let in_pieces = |link: &&Link| {
        link.usable_model().is_some()
            && link.alpha_beta.as_ref().is_some_and(|line| line.refused.is_some())
    };
    let pieces: Vec<&Link> = analysis.links.iter().filter(in_pieces).collect();
    let Some(first) = pieces.first() else { return };
    let why = first.alpha_beta.as_ref().and_then(|line| line.refused.as_deref());
    let _ = writeln!(
        text,
        "\nno one line for {} of {} links, in pieces below (latency and GB/s above are of the first and \
         the last piece); of {}: {}",
        pieces.len(),
        analysis.links.len(),
        link_name(first),
        why.unwrap_or_default()
    );
    let mut table = columns(&["pieces of", "path", "sizes", "latency", "GB/s", "worst off by"]);
    for link in pieces.iter().take(ROWS) {
        for one in link.usable_model().iter().flat_map(|model| &model.segments) {
            let rate = (one.ns_per_byte > 0.0).then(|| 1.0 / one.ns_per_byte);
            table.row([
                name(analysis, link.src, link.dst),
                link.path.to_string(),
                format!("{} to {}", show_size(one.from_bytes), show_size(one.to_bytes)),
                one.latency_ns.map_or("-".into(), show_ns),
                rate.map_or("-".into(), show_gb_per_s),
                format!("{:.1}%", one.max_error_percent),
            ]);
        }
    }
    let _ = write!(text, "{}", fitted(&table));
    more(pieces.len(), text);
}

/// Adds the number of rows left out.
fn more(count: usize, text: &mut String) {
    if count > ROWS {
        let _ = writeln!(text, "and {} more, which --json and --html have", count - ROWS);
    }
}

/// Adds how much longer some transfers take than others, and how often.
fn states(analysis: &Analysis, text: &mut String) {
    let share = |state: &State| format!("{:.0}%", state.share_percent);
    for one in &analysis.states {
        let [low, high] = &one.states;
        let source = analysis.endpoints.get(one.src as usize).map_or("?", |end| end.name.as_str());
        let _ = writeln!(
            text,
            "\ntwo states: {} from {source}, up to {}: {} of {} samples take {} more than the least of \
             their size, and {} take {} more",
            one.path,
            show_size(one.to_bytes),
            share(low),
            low.samples + high.samples,
            show_ns(low.median_ns),
            share(high),
            show_ns(high.median_ns)
        );
    }
    let mut table =
        columns(&["two states of", "path", "size", "CV", "faster", "of", "slower", "of"]);
    let found: Vec<_> =
        analysis.configurations.iter().filter_map(|one| Some((one, one.states?))).collect();
    for (one, [low, high]) in found.iter().take(ROWS) {
        table.row([
            name(analysis, one.src, one.dst),
            one.path.to_string(),
            show_size(one.size_bytes),
            one.cv_percent.map_or("-".into(), |cv| format!("{cv:.1}%")),
            show_ns(low.median_ns),
            share(low),
            show_ns(high.median_ns),
            share(high),
        ]);
    }
    if !found.is_empty() {
        let _ = write!(text, "\n{}", fitted(&table));
        more(found.len(), text);
    }
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
        let _ = writeln!(text, "{}", wrapped_sentences(&format!("warning: {warning}")));
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
        let _ = write!(text, "{}", fitted(&table));
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
    let _ = write!(text, "{}", fitted(&table));
}

/// Maximum rows of a list, which begins with the worst.
const ROWS: usize = 10;

/// A table whose columns of names (the first, "path" and "metric") align left, and all others right.
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
