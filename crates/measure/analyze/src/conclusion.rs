//! Conclusions to read first: whether the results can be used, and a summary of them.

use std::collections::BTreeSet;

use polyrail_profile::{PathKind, State, Word};
use polyrail_report::{show_gb_per_s, show_micros, show_size};

use crate::analysis::Analysis;
use crate::links::SizeClass;
use crate::paths::PathFigures;
use crate::stats::median_of;
use crate::summary::Summary;

/// Minimum share of steady configurations; below it, a path is too noisy.
const STEADY_SHARE: f64 = 0.5;
/// Maximum median variation, in percent; above it, a path without large sizes is too noisy.
const NOISY_PERCENT: f64 = 20.0;

/// Minimum share of a path's configurations with enough samples; below it, its noise is unknown.
const TELLING_SHARE: f64 = 0.5;

/// Returns the sentences, the most important one first. `taken` counts the samples of all paths.
pub(crate) fn conclusions(analysis: &Analysis, taken: usize) -> Vec<String> {
    let mut told = Vec::new();
    if analysis.counts.verify_failed > 0 {
        let wrong = analysis.counts.verify_failed;
        told.push(format!("not to be used: {wrong} transfers brought wrong bytes"));
    }
    told.extend(incomplete(analysis, taken));
    told.extend(analysis.path_figures.iter().filter_map(|one| too_noisy(analysis, one)));
    told.extend(analysis.path_figures.iter().filter_map(|one| figures(analysis, one)));
    if let Some(worst) =
        analysis.slow_links.iter().max_by(|a, b| a.slower_percent.total_cmp(&b.slower_percent))
    {
        // A link may be slow for both small transfers and large ones.
        let slow: BTreeSet<_> =
            analysis.slow_links.iter().map(|one| (one.path, one.src, one.dst)).collect();
        let noisy = noisy_paths(analysis);
        let compared = analysis.links.iter().filter(|link| !noisy.contains(&link.path));
        told.push(format!(
            "{} of {} links are slower than the median link of their path, by {:.0} % at most",
            slow.len(),
            compared.count(),
            worst.slower_percent
        ));
    }
    told
}

/// Reports the progress of a profile that lacks samples, and how to continue it.
fn incomplete(analysis: &Analysis, taken: usize) -> Option<String> {
    let state = match analysis.about.state {
        State::Complete => return None,
        State::Interrupted => "interrupted",
        State::Failed => "failed",
        State::Running => "not complete",
    };
    let (planned, dir) = (analysis.counts.planned, &analysis.about.dir);
    Some(format!(
        "{state}: {taken} of {planned} samples are there; `polyrail profile --resume {dir}` measures the \
         rest"
    ))
}

/// Returns the paths whose links can't be compared.
pub(crate) fn noisy_paths(analysis: &Analysis) -> Vec<PathKind> {
    let is_noisy = |one: &&PathFigures| too_noisy(analysis, one).is_some();
    analysis.path_figures.iter().filter(is_noisy).map(|one| one.path).collect()
}

/// Returns why the results of a path are too noisy, if they are.
fn too_noisy(analysis: &Analysis, one: &PathFigures) -> Option<String> {
    let mut remedy =
        "end other programs (the system's `top` names them, `polyrail sample` shows what they take) and repeat it \
         with more --reps"
            .to_owned();
    if one.links > 2 {
        remedy.insert_str(0, "which of its links are slow can't be told; ");
    }
    let path = one.path.word();
    let own = || analysis.configurations.iter().filter(|each| each.path == one.path);
    let are_telling = |count: usize, all: usize| count as f64 >= TELLING_SHARE * all as f64;
    let large = own().filter(|each| SizeClass::Large.contains(each.size_bytes)).count();
    if one.large > 0 {
        if !are_telling(one.large, large) {
            return None;
        }
        let is_noisy = (one.steady as f64) < STEADY_SHARE * one.large as f64;
        return is_noisy.then(|| {
            format!(
                "too noisy to use: over {path} only {} of {} configurations from 1MiB on have a CV \
                 below 5 %; {remedy}",
                one.steady, one.large
            )
        });
    }
    let variations: Vec<f64> = own().filter_map(Summary::telling_cv_percent).collect();
    let is_told = are_telling(variations.len(), own().count());
    let variation = median_of(variations)?;
    (is_told && variation > NOISY_PERCENT).then(|| {
        format!("too noisy to use: over {path} the median CV is {variation:.0} %; {remedy}")
    })
}

/// Summarizes the results of a path.
fn figures(analysis: &Analysis, one: &PathFigures) -> Option<String> {
    let (smallest, rate) = (one.smallest_ns?, one.median_gb_per_s?);
    let own = || analysis.configurations.iter().filter(|each| each.path == one.path);
    let least = own().map(|each| each.size_bytes).min()?;
    let mut text = format!(
        "{}: {} for {}, up to {} GB/s",
        one.path.word(),
        show_micros(smallest / 1e3),
        show_size(least),
        show_gb_per_s(rate)
    );
    if let Some((worst, best)) = one.worst_gb_per_s.zip(one.best_gb_per_s).filter(|_| one.links > 1)
    {
        text += &format!(
            " (the median of {} links; {} to {})",
            one.links,
            show_gb_per_s(worst),
            show_gb_per_s(best)
        );
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use polyrail_profile::synthetic::Machine;
    use polyrail_profile::{Folder, PathKind};

    use super::*;
    use crate::analysis::Options;

    #[test]
    fn a_run_that_is_too_noisy_is_told_first_with_what_to_do() {
        let root = tempfile::tempdir().unwrap();
        let paths = vec![PathKind::Nccl];
        let machine = Machine { endpoints: 2, paths, ..Machine::default() };
        let folder = machine.profile(root.path().join("profile")).unwrap();
        let mut analysis = Analysis::of(&folder, Options::default()).unwrap();
        assert!(analysis.conclusions[0].starts_with("nccl: "), "{:?}", analysis.conclusions);
        (analysis.path_figures[0].steady, analysis.path_figures[0].large) = (9, 20);
        let told = conclusions(&analysis, 0);
        assert!(told[0].starts_with("too noisy to use: over nccl only 9 of 20 "), "{told:?}");
        assert!(told[0].contains("more --reps") && told[1].starts_with("nccl: "), "{told:?}");
        assert!(!told[0].contains("slow"), "two links are not compared: {told:?}");
        analysis.path_figures[0].links = 6;
        let told = conclusions(&analysis, 0);
        assert!(told[0].contains("; which of its links are slow can't be told; end "), "{told:?}");
        assert_eq!(noisy_paths(&analysis), [PathKind::Nccl]);
        analysis.path_figures[0].large = 0;
        for one in &mut analysis.configurations {
            one.cv_percent = Some(30.0);
        }
        assert!(conclusions(&analysis, 0)[0].contains("the median CV is 30 %"));
        analysis.counts.verify_failed = 1;
        assert!(conclusions(&analysis, 0)[0].contains("1 transfers brought wrong bytes"));
    }

    /// Two samples of most configurations, far apart, as in an interrupted run.
    #[test]
    fn an_interrupted_run_is_told_first_and_its_few_samples_are_not_called_noise() {
        let root = tempfile::tempdir().unwrap();
        let paths = vec![PathKind::Nccl];
        let machine = Machine { endpoints: 2, repetitions: 3, paths, ..Machine::default() };
        let folder = machine.profile(root.path().join("profile")).unwrap();
        let samples = folder.dir().join("samples.csv");
        let spread = |text: &str, repetitions: u32| -> String {
            let line = |(place, line): (usize, &str)| {
                let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
                let repetition: u32 = cells[3].parse().unwrap_or(0);
                if let Some(time_ns) = cells[7].parse::<f64>().ok().filter(|_| repetition == 0) {
                    cells[7] = (time_ns * 3.0).to_string();
                }
                (place == 0 || repetition < repetitions).then(|| cells.join(",") + "\n")
            };
            text.lines().enumerate().filter_map(line).collect()
        };
        let whole = fs::read_to_string(&samples).unwrap();
        fs::write(&samples, spread(&whole, 3)).unwrap();
        let told = |folder: &Folder| Analysis::of(folder, Options::default()).unwrap().conclusions;
        assert!(told(&folder)[0].starts_with("too noisy to use: "), "{:?}", told(&folder));
        fs::write(&samples, spread(&whole, 2)).unwrap();
        let run = folder.dir().join("run.yml");
        let state = fs::read_to_string(&run).unwrap();
        fs::write(&run, state.replace("state: complete", "state: interrupted")).unwrap();
        let folder = Folder::open(folder.dir()).unwrap();
        let (told, taken) = (told(&folder), folder.samples().unwrap().len());
        let words = format!("interrupted: {taken} of {} samples", folder.plan().steps().len());
        assert!(told[0].starts_with(&words) && told[0].contains("profile --resume "), "{told:?}");
        assert!(!told.iter().any(|one| one.contains("too noisy")), "{told:?}");
    }
}
