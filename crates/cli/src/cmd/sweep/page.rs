//! The page of a sweep or autotune, from its JSON.

use polyrail_analyze::{PageHead, PageVerdict, Tone, flaw};
use polyrail_experiment::{Verdict, show, unit_of};
use polyrail_report::counted;
use serde_json::{Value, json};

use super::output::SweepReport;

const PAGE: &str = include_str!("page.js");

/// Returns the page of a report, or an error if the text is not such a report.
pub(crate) fn page(json: &str) -> serde_json::Result<String> {
    let report: SweepReport = serde_json::from_str(json)?;
    let mut document: Value = serde_json::from_str(json)?;
    if let Value::Object(map) = &mut document {
        map.insert("unit".into(), json!(unit_of(&report.comparison.figure)));
    }
    Ok(polyrail_analyze::page(&head(&report), &document.to_string(), PAGE))
}

fn head(report: &SweepReport) -> PageHead {
    let comparison = &report.comparison;
    let mut head = PageHead {
        title: format!("{} on {}", report.command, comparison.host.hostname),
        started_unix_ms: None,
        verdict: verdict(report),
        tiles: tiles(report),
        facts: Vec::new(),
    };
    head.fact("each cell runs", Some(format!("polyrail bench {}", report.bench.join(" "))));
    head.fact("figure", Some(&*comparison.figure));
    head.machine(&comparison.host);
    head.fact("version", Some(format!("polyrail {}", comparison.version)));
    head.fact("took", Some(format!("{:.0} s", comparison.elapsed_s)));
    head
}

fn verdict(report: &SweepReport) -> PageVerdict {
    let proven = report.proof.as_ref().map(|proof| proof.verdict);
    let (tone, word) = match proven {
        Some(Verdict::Better) => (Tone::Good, "Better"),
        Some(Verdict::Worse | Verdict::NoEffect) => (Tone::Good, "Keep the default"),
        Some(Verdict::Undecided) => (Tone::Unclear, "Undecided"),
        None if report.comparison.interrupted => (Tone::Bad, "Interrupted"),
        None if !report.is_ranked() => (Tone::Unclear, "One round"),
        None => (Tone::Unclear, "Nothing proven"),
    };
    let answer = report.verdict();
    let flaw = flaw(&report.comparison.notes);
    let in_front = flaw.clone().filter(|(worse, ..)| *worse == Tone::Bad || tone == Tone::Unclear);
    let (tone, word, text) = in_front.unwrap_or((tone, word, answer.clone()));
    let measured = format!(
        "{}, {} in {:.0} s",
        counted(report.cells.len() as u64, "cell"),
        counted(report.comparison.blocks as u64, "block"),
        report.comparison.elapsed_s
    );
    let flaw = flaw.map(|(.., text)| text);
    let mut more: Vec<String> = [answer].into_iter().chain(flaw).chain([measured]).collect();
    more.retain(|one| *one != text);
    PageVerdict { tone, word: word.to_owned(), text, more }
}

fn tiles(report: &SweepReport) -> Vec<(String, String)> {
    let mut tiles = Vec::new();
    let settings = report.best.settings.iter().map(|(name, value)| format!("{name}={value}"));
    let settings: Vec<String> = settings.collect();
    if !settings.is_empty() && report.is_ranked() {
        let label = match report.comparison.keep_default {
            true => "the best of the search, not proven",
            false => "the best of the search",
        };
        tiles.push((settings.join(" "), label.to_owned()));
    }
    if let Some(proof) = &report.proof {
        tiles.push((show(proof), "against the default, in a fresh run of pairs".to_owned()));
    }
    if let Some(one) = report.sensitivity.iter().find(|one| one.exceeds_noise()) {
        let label = format!("from the lowest to the highest {}", one.factor);
        tiles.push((format!("{:.1} %", one.percent), label));
    }
    let measured = report.cells.iter().filter(|cell| cell.measured > 0).count();
    tiles.push((format!("{measured} of {}", report.cells.len()), "cells were measured".to_owned()));
    tiles
}

#[cfg(test)]
mod tests {
    use super::super::output::tests::report;
    use super::*;

    #[test]
    fn only_a_proof_is_good() {
        let shown = |report: &SweepReport| {
            let PageVerdict { tone, word, .. } = verdict(report);
            (tone, word)
        };
        let wins = report(&[(12.0, 10.0); 8]);
        assert_eq!(shown(&wins), (Tone::Good, "Better".to_owned()));
        assert!(tiles(&wins).iter().any(|(_, label)| label == "the best of the search"));
        let same = report(&[(10.0, 10.0); 8]);
        assert_eq!(shown(&same), (Tone::Good, "Keep the default".to_owned()));
        let mut unproven = SweepReport { proof: None, ..same };
        assert_eq!(shown(&unproven), (Tone::Unclear, "Nothing proven".to_owned()));
        unproven.cells[0].measured = 1;
        assert_eq!(shown(&unproven), (Tone::Unclear, "One round".to_owned()));
        assert!(tiles(&unproven).iter().all(|(_, label)| !label.contains("best")));
        unproven.comparison.interrupted = true;
        assert_eq!(shown(&unproven), (Tone::Bad, "Interrupted".to_owned()));
    }

    #[test]
    fn a_busy_machine_is_in_front_unless_something_is_proven() {
        let notes = vec!["other programs used 50 % of the CPUs".to_owned()];
        let mut busy = report(&[(12.0, 10.0); 8]);
        busy.comparison.notes = notes.clone();
        let proven = verdict(&busy);
        assert!(proven.word == "Better" && proven.more.contains(&notes[0]), "{proven:?}");
        busy.proof = None;
        let unproven = verdict(&busy);
        assert_eq!((unproven.word.as_str(), &unproven.text), ("Busy machine", &notes[0]));
        assert!(unproven.more.iter().any(|one| one.contains("was not confirmed")));
    }
}
