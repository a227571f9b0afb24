//! The report: one self-contained HTML file.

use polyrail_profile::Word;
use polyrail_report::{show_gb_per_s, show_micros};

use crate::analysis::Analysis;
use crate::compare::{Comparison, Verdict};
use crate::page::{PageHead, PageVerdict, Tone, page};
use crate::stats::median_of;
use crate::summary::Summary;

/// Returns the report of an analysis. It contains its data, style and script, needs no network, and follows the
/// reader's choice of light or dark.
pub fn html(analysis: &Analysis) -> String {
    // Numbers and text of an analysis always have a JSON form.
    let json = serde_json::to_string(analysis).unwrap_or_default();
    page(&head(analysis), &json, PAGE)
}

/// Name of the setting with the duration of the whole run, in seconds.
const ELAPSED: &str = "elapsed_s";
const PAGE: &str = include_str!("report/page.js");

fn head(analysis: &Analysis) -> PageHead {
    let about = &analysis.about;
    let machine = if about.hostname.is_empty() { "a machine" } else { &about.hostname };
    let mut head = PageHead {
        title: format!("Profile of {machine}"),
        started_unix_ms: u64::try_from(about.started_unix_ns / 1_000_000).ok(),
        verdict: verdict(analysis),
        tiles: tiles(analysis),
        facts: Vec::new(),
    };
    head.command(&about.arguments);
    head.fact("host", Some(&*about.hostname));
    head.fact("kernel", about.kernel.as_ref().map(|kernel| format!("Linux {kernel}")));
    let cpus = about.cpus.map_or(String::new(), |cpus| format!(" \u{d7} {cpus}"));
    head.fact("CPU", about.cpu_model.as_ref().map(|model| format!("{model}{cpus}")));
    let mut gpus: Vec<&str> = about.models.iter().flatten().map(String::as_str).collect();
    gpus.dedup();
    head.fact("GPUs", Some(gpus.join(", ")));
    let settings = about.settings.iter().filter(|(name, _)| *name != ELAPSED);
    let settings = settings.map(|(name, value)| match value.as_str() {
        Some(text) => format!("{name} = {text}"),
        None => format!("{name} = {value}"),
    });
    head.fact("settings", Some(settings.collect::<Vec<_>>().join(", ")));
    head.fact("folder", Some(&*about.dir));
    let counts = &analysis.counts;
    let samples =
        format!("{} of {} taken, {} verified", counts.taken, counts.planned, counts.verified);
    head.fact("samples", Some(samples));
    head.fact("version", Some(format!("polyrail {}", about.polyrail_version)));
    let elapsed = about.settings.get(ELAPSED).and_then(serde_json::Value::as_f64);
    head.fact("took", elapsed.map(|seconds| format!("{seconds:.1} s")));
    head
}

/// Beginnings of conclusions that come first because the results are not to be used, and the words of their banners.
const FLAWS: [(&str, &str); 5] = [
    ("not to be used: ", "Not to be used"),
    ("interrupted: ", "Interrupted"),
    ("failed: ", "Failed"),
    ("not complete: ", "Not complete"),
    ("too noisy to use: ", "Too noisy"),
];

fn verdict(analysis: &Analysis) -> PageVerdict {
    let mut told = merged(analysis);
    let against = analysis.comparison.as_ref();
    let against = against.map(|one| (one.verdict, compared(one)));
    let first = told.first().cloned().unwrap_or_default();
    let flaw = FLAWS.iter().find_map(|(begin, word)| Some((*word, first.strip_prefix(begin)?)));
    let loose = analysis.configurations.iter().filter(|one| one.interval_ns.is_none()).count();
    let (tone, word, text) = if let Some((word, text)) = flaw {
        told.remove(0);
        told.splice(0..0, against.map(|(_, text)| text));
        (Tone::Bad, word, text.to_owned())
    } else if let Some((verdict, text)) = against {
        let (tone, word) = match verdict {
            Verdict::Slower => (Tone::Bad, "Slower"),
            Verdict::Unclear => (Tone::Unclear, "Undecided"),
            Verdict::Same | Verdict::Faster => (Tone::Good, "Good"),
        };
        (tone, word, text)
    } else if 2 * loose > analysis.configurations.len() {
        let all = analysis.configurations.len();
        let text = format!(
            "{loose} of {all} configurations have fewer than 6 samples, too few for an interval: repeat it with more \
             --reps"
        );
        (Tone::Unclear, "Few samples", text)
    } else {
        if !told.is_empty() {
            told.remove(0);
        }
        (Tone::Good, "Good", first)
    };
    told.extend(analysis.warnings.iter().cloned());
    PageVerdict { tone, word: word.to_owned(), text, more: told }
}

fn compared(one: &Comparison) -> String {
    let count = |verdict| one.counts.get(&verdict).copied().unwrap_or(0);
    let ratios = one.ratios.iter().map(|(path, ratio)| format!("{ratio:.2} over {path}"));
    format!(
        "against {}, {} configurations are slower, {} faster, {} the same and {} unclear; time by that of the base: {}",
        one.base,
        count(Verdict::Slower),
        count(Verdict::Faster),
        count(Verdict::Same),
        count(Verdict::Unclear),
        ratios.collect::<Vec<_>>().join(", ")
    )
}

/// Returns the conclusions; merges those that differ only in the path.
fn merged(analysis: &Analysis) -> Vec<String> {
    let mut found: Vec<(String, Vec<&str>)> = Vec::new();
    for conclusion in &analysis.conclusions {
        let over = |path: &str| format!(" over {path} ");
        let mut paths = analysis.path_figures.iter().map(|one| one.path.word());
        let path = paths.find(|path| conclusion.contains(&over(path)));
        let form =
            path.map_or(conclusion.clone(), |path| conclusion.replacen(&over(path), PLACE, 1));
        match found.iter_mut().find(|(known, _)| path.is_some() && *known == form) {
            Some((_, paths)) => paths.extend(path),
            None => found.push((form, path.into_iter().collect())),
        }
    }
    let named = |(form, paths): (String, Vec<&str>)| match paths.is_empty() {
        true => form,
        false => form.replacen(PLACE, &format!(" over {} ", paths.join(" and ")), 1),
    };
    found.into_iter().map(named).collect()
}

/// Placeholder of a path; occurs in no conclusion.
const PLACE: &str = "\0";

fn tiles(analysis: &Analysis) -> Vec<(String, String)> {
    let mut tiles = Vec::new();
    let paths = &analysis.path_figures;
    let smallest = paths.iter().filter_map(|one| Some((one.smallest_ns?, one.path)));
    if let Some((ns, path)) = smallest.min_by(|a, b| a.0.total_cmp(&b.0)) {
        tiles.push((show_micros(ns / 1e3), format!("smallest transfer, {path}")));
    }
    let rates = paths.iter().filter_map(|one| Some((one.median_gb_per_s?, one.path)));
    if let Some((rate, path)) = rates.max_by(|a, b| a.0.total_cmp(&b.0)) {
        tiles.push((format!("{} GB/s", show_gb_per_s(rate)), format!("best rate, {path}")));
    }
    let worst = paths
        .iter()
        .filter(|one| one.links > 1)
        .filter_map(|one| Some((100.0 * one.worst_gb_per_s? / one.median_gb_per_s?, one.path)));
    if let Some((percent, path)) = worst.min_by(|a, b| a.0.total_cmp(&b.0)) {
        tiles.push((
            format!("{percent:.0} %"),
            format!("of the median link: the slowest one, {path}"),
        ));
    }
    let variations = analysis.configurations.iter().filter_map(Summary::telling_cv_percent);
    if let Some(variation) = median_of(variations) {
        let label = "median variation (CV: standard deviation by mean)";
        tiles.push((format!("{variation:.1} %"), label.to_owned()));
    }
    let counts = &analysis.counts;
    if counts.verify_failed > 0 {
        tiles.push((counts.verify_failed.to_string(), "transfers with wrong bytes".to_owned()));
    }
    tiles
}

#[cfg(test)]
mod tests {
    use polyrail_profile::PathKind;
    use polyrail_profile::synthetic::Machine;

    use super::*;
    use crate::analysis::Options;

    #[test]
    fn a_banner_names_each_noisy_path_once_and_its_tone_follows_the_figures() {
        let root = tempfile::tempdir().unwrap();
        let paths = vec![PathKind::Nccl, PathKind::Tcp];
        let machine = Machine { endpoints: 2, paths, ..Machine::default() };
        let folder = machine.profile(root.path().join("profile")).unwrap();
        let mut analysis = Analysis::of(&folder, Options::default()).unwrap();
        analysis.warnings.clear();
        let good = head(&analysis).verdict;
        assert_eq!((good.tone, &*good.word), (Tone::Good, "Good"), "{good:?}");
        let noise = |path| format!("too noisy to use: over {path} only 1 of 2; repeat it");
        analysis.conclusions = vec![noise("nccl"), noise("tcp"), "nccl: 1us".to_owned()];
        let noisy = head(&analysis).verdict;
        assert_eq!((noisy.tone, &*noisy.word), (Tone::Bad, "Too noisy"));
        assert_eq!(noisy.text, "over nccl and tcp only 1 of 2; repeat it");
        assert_eq!(noisy.more, ["nccl: 1us"]);
        analysis.conclusions = vec!["nccl: 1us".to_owned()];
        analysis.configurations.iter_mut().for_each(|one| one.interval_ns = None);
        let few = head(&analysis).verdict;
        assert_eq!((few.tone, &*few.word), (Tone::Unclear, "Few samples"));
    }
}
