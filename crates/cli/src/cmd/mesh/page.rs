//! The page of a mesh: first the verdict, main results, machine and run.

use polyrail_analyze::{NOISY_PERCENT, PageHead, PageVerdict, Tone, flaw};
use polyrail_report::{RailEvent, RailEventKind, counted, show_gb_per_s, show_memory};

use super::conclude::{all_oddities, middle, rail_events, share_of_nodes};
use super::report::{LayoutReport, MeshReport, PatternReport};

const PAGE: &str = include_str!("page.js");

/// Returns the page of a report, or an error if the text is not such a report.
pub(crate) fn page(json: &str) -> serde_json::Result<String> {
    Ok(page_of(&serde_json::from_str(json)?, json))
}

/// The page of a report and its JSON.
pub(super) fn page_of(report: &MeshReport, json: &str) -> String {
    polyrail_analyze::page(&head(report), json, PAGE)
}

fn head(report: &MeshReport) -> PageHead {
    let mut head = PageHead {
        title: format!("Mesh of {} nodes", report.nodes),
        started_unix_ms: Some(report.head.started_unix_ms),
        verdict: verdict(report),
        tiles: tiles(report),
        facts: Vec::new(),
    };
    head.command(&report.head.arguments);
    let transfers = format!(
        "{} in {} memory, {} under way per pair, {} of {} ms",
        show_memory(report.size_bytes),
        report.memory,
        report.depth,
        counted(report.rounds.into(), "round"),
        report.time_ms
    );
    head.fact("transfers", Some(transfers));
    let rates = report.lab_rates.as_deref().map_or(String::new(), |rates| format!(", {rates}"));
    head.fact("lab", report.lab.as_ref().map(|lab| format!("{lab}{rates}")));
    // Nodes of a lab are on one machine.
    let mut seen = Vec::new();
    for host in &report.hosts {
        let key = (&host.boot_id, &host.hostname);
        if !seen.contains(&key) {
            seen.push(key);
            head.machine(host);
        }
    }
    head.fact("version", Some(format!("polyrail {}", report.head.tool.version)));
    head.fact("took", Some(format!("{:.1} s", report.head.elapsed_s)));
    head
}

fn patterns(report: &MeshReport) -> impl Iterator<Item = (&LayoutReport, &PatternReport)> {
    let layouts = report.layouts.iter();
    layouts.flat_map(|layout| layout.patterns.iter().map(move |pattern| (layout, pattern)))
}

fn verdict(report: &MeshReport) -> PageVerdict {
    let mut told = report.conclusions.clone();
    let (tone, word, text) = worst(report);
    // The banner contains this sentence already.
    told.retain(|conclusion| *conclusion != text);
    PageVerdict { tone, word: word.to_owned(), text, more: told }
}

fn worst(report: &MeshReport) -> (Tone, &'static str, String) {
    if let Some(error) = &report.head.error {
        return (Tone::Bad, "Ended early", error.clone());
    }
    let oddities = all_oddities(&report.layouts);
    let noisiest = patterns(report).map(|(_, pattern)| pattern);
    let noisiest = noisiest.max_by(|a, b| {
        let [a, b] = [a, b].map(|it| it.total_gb_per_s.half_range_percent());
        a.total_cmp(&b)
    });
    let is_down = |it: &RailEvent| it.what == RailEventKind::Down;
    if let Some((layout, pattern)) = patterns(report).find(|it| it.1.events.iter().any(is_down)) {
        let name = format!("{}, layout {}", pattern.pattern.name(), layout.layout.name());
        let told = rail_events(&name, pattern);
        let down = told.iter().find(|text| text.contains(" was down ")).or(told.first());
        return (Tone::Bad, "A rail was down", down.cloned().unwrap_or_default());
    }
    if let Some(fewer) = oddities.iter().find(|text| text.starts_with("fewer NICs")) {
        return (Tone::Bad, "Rails missing", fewer.clone());
    }
    if let Some(noisy) =
        noisiest.filter(|it| it.total_gb_per_s.half_range_percent() > NOISY_PERCENT)
    {
        let text = format!(
            "the rounds of {} vary by \u{b1} {:.0} %: end other programs, and repeat it with more --rounds",
            noisy.pattern.name(),
            noisy.total_gb_per_s.half_range_percent()
        );
        return (Tone::Bad, "Too noisy", text);
    }
    if let Some(flaw) = flaw(&report.head.notes) {
        return flaw;
    }
    if let Some(first) = oddities.into_iter().next() {
        return (Tone::Unclear, "Stands out", first);
    }
    if report.rounds == 1 {
        let text = "one round says nothing of how much the figures vary: give --rounds 3 or more";
        return (Tone::Unclear, "Undecided", text.to_owned());
    }
    (Tone::Good, "Good", report.conclusions.last().cloned().unwrap_or_default())
}

fn tiles(report: &MeshReport) -> Vec<(String, String)> {
    let mut tiles = Vec::new();
    let best = patterns(report)
        .max_by(|a, b| a.1.total_gb_per_s.median.total_cmp(&b.1.total_gb_per_s.median));
    if let Some((layout, pattern)) = best {
        let total = pattern.total_gb_per_s;
        let varies = match report.rounds {
            1 => String::new(),
            _ => format!(" \u{b1} {:.0} %", total.half_range_percent()),
        };
        let label = format!(
            "all pairs together, pattern {}, layout {}",
            pattern.pattern.name(),
            layout.layout.name()
        );
        tiles.push((format!("{} GB/s{varies}", show_gb_per_s(total.median)), label));
    }
    if let Some((share, rates)) = share_of_nodes(report).zip(report.lab_rates.as_ref()) {
        tiles.push((
            format!("{:.0} %", share * 100.0),
            format!("of {rates} in and out of each node"),
        ));
    }
    let slowest = patterns(report).filter_map(|(_, pattern)| {
        let median = middle(&pattern.pairs).filter(|_| pattern.pairs.len() > 1)?.median;
        let share = |rate: f64| 100.0 * rate / median;
        let pairs = pattern.pairs.iter().map(|pair| (share(pair.gb_per_s.median), pair, pattern));
        pairs.min_by(|a, b| a.0.total_cmp(&b.0))
    });
    if let Some((percent, pair, pattern)) = slowest.min_by(|a, b| a.0.total_cmp(&b.0)) {
        let label = format!(
            "of the median pair: the slowest, {} to {}, pattern {}",
            pair.from,
            pair.to,
            pattern.pattern.name()
        );
        tiles.push((format!("{percent:.0} %"), label));
    }
    let verified: u64 = patterns(report).map(|(_, pattern)| pattern.verified_bytes).sum();
    tiles.push((show_memory(verified), "compared byte by byte, none wrong".to_owned()));
    tiles
}
