//! What a reader should know first: whether the figures can be used, and what they come to.

use polyrail_profile::Word;
use polyrail_report::{show_gb_per_s, show_micros, show_size};

use crate::analysis::Analysis;
use crate::paths::PathFigures;
use crate::stats::median_of;

/// Below this share of steady configurations a path is too noisy.
const STEADY_SHARE: f64 = 0.5;
/// Above this median variation, in percent, a path without large sizes is too noisy.
const NOISY_PERCENT: f64 = 20.0;

/// Sentences, the most important one first.
pub(crate) fn conclusions(analysis: &Analysis) -> Vec<String> {
    let mut told = Vec::new();
    if analysis.counts.verify_failed > 0 {
        let wrong = analysis.counts.verify_failed;
        told.push(format!("not to be used: {wrong} transfers brought wrong bytes"));
    }
    told.extend(analysis.path_figures.iter().filter_map(|one| too_noisy(analysis, one)));
    told.extend(analysis.path_figures.iter().filter_map(|one| figures(analysis, one)));
    if let Some(worst) =
        analysis.slow_links.iter().max_by(|a, b| a.slower_percent.total_cmp(&b.slower_percent))
    {
        told.push(format!(
            "{} of {} links are slower than the median link of their path, by {:.0} % at most",
            analysis.slow_links.len(),
            analysis.links.len(),
            worst.slower_percent
        ));
    }
    told
}

/// Why the figures of a path say little, if so.
fn too_noisy(analysis: &Analysis, one: &PathFigures) -> Option<String> {
    let remedy =
        "repeat it on an idle machine with more --reps; `polyrail doctor` names what disturbs";
    let path = one.path.word();
    if one.large > 0 {
        let is_noisy = (one.steady as f64) < STEADY_SHARE * one.large as f64;
        return is_noisy.then(|| {
            format!(
                "too noisy to use: over {path} only {} of {} configurations from 1MiB on have a CV \
                 below 5 %; {remedy}",
                one.steady, one.large
            )
        });
    }
    let own = analysis.configurations.iter().filter(|each| each.path == one.path);
    let variation = median_of(own.filter_map(|each| each.cv_percent))?;
    (variation > NOISY_PERCENT).then(|| {
        format!("too noisy to use: over {path} the median CV is {variation:.0} %; {remedy}")
    })
}

/// What a path reaches.
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
    use polyrail_profile::PathKind;
    use polyrail_profile::synthetic::Machine;

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
        let told = conclusions(&analysis);
        assert!(told[0].starts_with("too noisy to use: over nccl only 9 of 20 "), "{told:?}");
        assert!(told[0].contains("more --reps") && told[1].starts_with("nccl: "), "{told:?}");
        analysis.path_figures[0].large = 0;
        for one in &mut analysis.configurations {
            one.cv_percent = Some(30.0);
        }
        assert!(conclusions(&analysis)[0].contains("the median CV is 30 %"));
        analysis.counts.verify_failed = 1;
        assert!(conclusions(&analysis)[0].contains("1 transfers brought wrong bytes"));
    }
}
