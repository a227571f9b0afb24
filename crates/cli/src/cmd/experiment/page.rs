//! The report of an experiment as a page.

use polyrail_analyze::{PageHead, PageVerdict, Tone, flaw};
use polyrail_experiment::{Effect, Measure, Report, Stopped, Verdict, show, unit_of};
use serde_json::{Value, json};

const PAGE: &str = include_str!("page.js");

/// Returns the page of a report, or an error if the text is not such a report.
pub(crate) fn page(json: &str) -> serde_json::Result<String> {
    Ok(page_of(&serde_json::from_str(json)?))
}

/// The report as one HTML file that needs no network.
pub(super) fn page_of(report: &Report) -> String {
    let mut document = json!(report);
    if let Value::Object(map) = &mut document {
        map.insert("notes".into(), json!(report.all_notes()));
        map.insert("unit".into(), json!(unit_of(report.figure.text())));
    }
    polyrail_analyze::page(&head(report), &document.to_string(), PAGE)
}

fn head(report: &Report) -> PageHead {
    let mut head = PageHead {
        title: report.name.clone(),
        started_unix_ms: None,
        verdict: verdict(report),
        tiles: tiles(report),
        facts: Vec::new(),
    };
    head.fact("about", Some(&*report.about));
    let what = match &report.measure {
        Measure::Bench(_) => "polyrail bench ",
        Measure::Command(_) => "",
    };
    let words = report.measure.shown_words().join(" ");
    head.fact("each cell runs", Some(format!("{what}{words}")));
    head.fact("figure", Some(report.figure.text()));
    head.machine(&report.host);
    head.fact("version", Some(format!("polyrail {}", report.version)));
    head.fact("seed", Some(report.seed.to_string()));
    head
}

fn level(effect: &Effect) -> String {
    format!("{}={}", effect.factor, effect.level)
}

fn baseline(effect: &Effect) -> String {
    format!("{}={}", effect.factor, effect.baseline)
}

fn sentence(effect: &Effect) -> String {
    format!("{} against {}: {}", level(effect), baseline(effect), effect.words)
}

/// The effect with the largest improvement over its baseline.
fn best(report: &Report) -> Option<&Effect> {
    let better = report.effects.iter().filter(|effect| effect.verdict == Verdict::Better);
    let size = |effect: &Effect| effect.percent.map_or(0.0, f64::abs);
    better.max_by(|a, b| size(a).total_cmp(&size(b)))
}

fn verdict(report: &Report) -> PageVerdict {
    let undecided = report.effects.iter().filter(|one| one.verdict == Verdict::Undecided).count();
    let is_proven = undecided == 0 || best(report).is_some();
    let flaw = flaw(&report.notes);
    let in_front = flaw.clone().filter(|(tone, ..)| !is_proven || *tone == Tone::Bad);
    let (tone, word, text) = if report.stopped == Stopped::Failed {
        (Tone::Bad, "Ended early", report.summary())
    } else if report.stopped == Stopped::Interrupted {
        (Tone::Bad, "Interrupted", report.summary())
    } else if let Some(flaw) = in_front {
        flaw
    } else if let Some(best) = best(report) {
        (Tone::Good, "Good", sentence(best))
    } else if undecided > 0 {
        let all = report.effects.len();
        let text = format!(
            "{undecided} of {all} effects have an interval that holds zero, or too few blocks for one: give the experiment more \
             time, or end other programs"
        );
        (Tone::Unclear, "Undecided", text)
    } else {
        (Tone::Good, "Decided", "no level is better than its baseline".to_owned())
    };
    let found = report.effects.iter().filter(|effect| effect.verdict.is_effect()).map(sentence);
    let flaw = flaw.map(|(.., text)| text);
    let mut more: Vec<String> = found.chain(flaw).chain([report.summary()]).collect();
    more.retain(|one| *one != text);
    PageVerdict { tone, word: word.to_owned(), text, more }
}

fn tiles(report: &Report) -> Vec<(String, String)> {
    let mut tiles = Vec::new();
    if let Some(best) = best(report) {
        tiles.push((level(best), "the best setting".to_owned()));
        tiles.push((show(best), format!("its effect, against {}", baseline(best))));
    }
    let worst = report.effects.iter().find(|effect| effect.verdict == Verdict::Worse);
    if let Some(worst) = worst {
        tiles.push((show(worst), format!("{} against {}", level(worst), baseline(worst))));
    }
    if let Some(figure) = report.cells.first().and_then(|cell| cell.figure) {
        let unit = unit_of(report.figure.text()).map_or(String::new(), |unit| format!(" {unit}"));
        tiles.push((format!("{:.3}{unit}", figure.median), "median of the baseline".to_owned()));
    }
    let size = format!("{} \u{d7} {}", report.cells.len(), report.blocks);
    tiles.push((size, format!("cells \u{d7} blocks, in {:.0} s", report.measured_s)));
    tiles
}

#[cfg(test)]
mod tests {
    use polyrail_experiment::{Experiment, Measured, Verified};

    use super::*;

    /// The report of this many blocks, in which one level is better than the other.
    fn report(blocks: usize, stopped: Stopped) -> Report {
        let text =
            "command: echo 1{kind}\nfigure: '([0-9]+)'\nbetter: higher\nfactors:\n  kind: [a, b]\n";
        let experiment = Experiment::parse(text, "x.yml").unwrap();
        let (plan, looks) = experiment.plan(|_| true).unwrap();
        let measured = |at: usize| Measured {
            block: at as u64 / 2,
            position: at % 2,
            cell: at % 2,
            levels: plan.level_map(at % 2),
            figure: [10.0, 20.0][at % 2],
            verified: Verified::ReadBack,
            started_unix_ms: 0,
            seconds: 1.0,
        };
        let measured: Vec<Measured> = (0..2 * blocks).map(measured).collect();
        let machine = (crate::host::describe(), "1".to_owned());
        Report::new(&experiment, &plan, &looks, &measured, stopped, 0, machine)
    }

    #[test]
    fn only_a_proof_is_good_and_an_interrupted_run_is_not() {
        let shown = |report: &Report| {
            let PageVerdict { tone, word, more, .. } = verdict(report);
            (tone, word, more.iter().any(|one| one.starts_with("kind=b against kind=a: +100.0 %")))
        };
        assert_eq!(shown(&report(16, Stopped::Narrow)), (Tone::Good, "Good".to_owned(), false));
        let stopped = report(16, Stopped::Interrupted);
        assert_eq!(shown(&stopped), (Tone::Bad, "Interrupted".to_owned(), true));
        let few = report(2, Stopped::Time);
        assert_eq!(shown(&few), (Tone::Unclear, "Undecided".to_owned(), false));
    }

    #[test]
    fn a_busy_machine_is_in_front_unless_something_is_proven() {
        let notes = || vec!["other programs used 50 % of the CPUs".to_owned()];
        let few = Report { notes: notes(), ..report(2, Stopped::Time) };
        assert_eq!(verdict(&few).word, "Busy machine");
        let proven = verdict(&Report { notes: notes(), ..report(16, Stopped::Narrow) });
        assert_eq!(proven.word, "Good");
        assert!(proven.more.contains(&notes()[0]), "{:?}", proven.more);
    }
}
