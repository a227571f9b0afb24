//! Results for machines whose true times are known.

use std::fs;

use crate::common::{analyse, machine};
use polyrail_analyze::{
    Analysis, AnalyzeError, Comparison, DriftOf, Options, RegimeKind, SizeClass, Verdict,
};
use polyrail_profile::synthetic::{ASYMMETRIC_PAIR, ASYMMETRY, Machine, true_time_ns};
use polyrail_profile::{Folder, Metric, PathKind};

#[test]
fn medians_are_near_the_truth_and_intervals_hold_it() {
    let (_root, folder, analysis) = analyse(&machine(PathKind::CopyEngine));
    assert_eq!(analysis.metrics[0].metric, "t_gpu");
    assert_eq!(analysis.configurations.len(), 12 * 31);
    let mut held = 0;
    for one in &analysis.configurations {
        let truth = true_time_ns(&folder.plan().configurations[one.configuration as usize]);
        assert!((one.median_ns / truth - 1.0).abs() < 0.01, "{one:?} {truth}");
        let (low, high) = one.interval_ns.unwrap();
        assert!(low <= one.median_ns && one.median_ns <= high);
        held += usize::from(low <= truth && truth <= high);
        assert_eq!(one.samples, 10, "the sentinel's samples are its own");
        assert!(one.robust_cv_percent < 2.0);
    }
    // 95 % of the intervals contain the true median, as long as nothing else moves it.
    assert!(held > 12 * 31 * 85 / 100, "{held}");
}

#[test]
fn outliers_are_told_and_kept() {
    let (_root, folder, analysis) = analyse(&machine(PathKind::CopyEngine));
    let samples = folder.samples().unwrap().len();
    assert!(!analysis.outliers.is_empty());
    assert!(analysis.outliers.len() < samples / 100, "{}", analysis.outliers.len());
    let large = analysis.outliers.iter().filter(|one| (one.factor - 3.0).abs() < 0.2).count();
    assert!(large * 10 > analysis.outliers.len() * 7, "{large} of {}", analysis.outliers.len());
    let one = &analysis.outliers[0];
    let summary = &analysis.configurations[one.configuration as usize];
    assert!(summary.outliers >= 1 && summary.max_ns >= one.time_ns);
}

#[test]
fn one_way_times_say_how_sure_their_clocks_are() {
    let (_root, folder, by_gpu) = analyse(&machine(PathKind::CopyEngine));
    assert!(by_gpu.configurations.iter().all(|one| one.clock_uncertainty_ns.is_none()));
    let options = Options { metric: Some(Metric::Oneway), ..Options::default() };
    let analysis = Analysis::of(&folder, options).unwrap();
    let unsure = analysis
        .configurations
        .iter()
        .filter(|one| one.clock_uncertainty_ns.unwrap() > 0.2 * one.median_ns)
        .count();
    assert!(unsure > 0 && unsure < analysis.configurations.len());
    let warning = format!("{unsure} configurations have one-way times that the alignment");
    assert!(analysis.warnings.iter().any(|text| text.starts_with(&warning)), "{warning}");
}

#[test]
fn one_way_times_by_the_hosts_clock_hold_the_overhead() {
    let machine = Machine { has_gpus: false, ..machine(PathKind::Tcp) };
    let (_root, folder, _) = analyse(&machine);
    let path = folder.dir().join("samples.csv");
    let text = fs::read_to_string(&path).unwrap();
    let with_one_way = |line: &str| {
        let mut cells: Vec<&str> = line.split(',').collect();
        if cells[5].is_empty() {
            cells[5] = cells[6];
        }
        cells.join(",") + "\n"
    };
    fs::write(&path, text.lines().map(with_one_way).collect::<String>()).unwrap();
    let analysis = Analysis::of(&folder, Options::default()).unwrap();
    assert_eq!(analysis.metrics[0].metric, "t_oneway");
    for one in analysis.links.iter().flat_map(|link| &link.loggp) {
        assert!(one.latency_includes_overhead && one.overhead_ns.is_none(), "{one:?}");
    }
}

#[test]
fn two_states_are_told_with_their_shares_and_one_is_not_taken_for_two() {
    let (_root, folder, analysis) = analyse(&machine(PathKind::CopyEngine));
    assert!(analysis.configurations.iter().all(|one| one.states.is_none()));
    let path = folder.dir().join("samples.csv");
    let text = fs::read_to_string(&path).unwrap();
    // Four of ten transfers of configuration 5 take another way, which takes a tenth longer.
    let slower = |line: &str| {
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        if cells[2] == "5" && ["0", "3", "4", "8"].contains(&cells[3].as_str()) {
            cells[7] = (cells[7].parse::<f64>().unwrap() * 1.1).to_string();
        }
        cells.join(",") + "\n"
    };
    fs::write(&path, text.lines().map(slower).collect::<String>()).unwrap();
    let analysis = Analysis::of(&folder, Options::default()).unwrap();
    let found: Vec<_> = analysis.configurations.iter().filter(|one| one.states.is_some()).collect();
    let [one] = found.as_slice() else { panic!("{found:?}") };
    let [low, high] = one.states.unwrap();
    assert_eq!(one.configuration, 5);
    assert!((high.median_ns / low.median_ns / 1.1 - 1.0).abs() < 0.01, "{one:?}");
    assert_eq!((low.samples, high.samples, high.share_percent), (6, 4, 40.0));
    assert!(one.median_ns < high.median_ns, "{one:?}");
    assert!(
        analysis.warnings.iter().any(|text| text.starts_with("1 configurations have two states"))
    );
    assert!(analysis.states.is_empty(), "that is no state of a source: {:?}", analysis.states);
}

/// As observed on an H200: for part of the time, each copy of one engine took 5.3 us longer.
#[test]
fn a_source_whose_transfers_are_in_two_states_is_named_with_both() {
    let (_root, folder, analysis) = analyse(&machine(PathKind::CopyEngine));
    assert!(analysis.states.is_empty(), "{:?}", analysis.states);
    let from_three = |id: u32| folder.plan().configurations[id as usize].src == 3;
    let path = folder.dir().join("samples.csv");
    let text = fs::read_to_string(&path).unwrap();
    let slower = |line: &str| {
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        let is_slow = ["1", "5", "6", "9"].contains(&cells[3].as_str());
        if is_slow && cells[2].parse().is_ok_and(from_three) {
            cells[7] = (cells[7].parse::<f64>().unwrap() + 5_300.0).to_string();
        }
        cells.join(",") + "\n"
    };
    fs::write(&path, text.lines().map(slower).collect::<String>()).unwrap();
    let analysis = Analysis::of(&folder, Options::default()).unwrap();
    let [one] = analysis.states.as_slice() else { panic!("{:?}", analysis.states) };
    assert_eq!((one.path, one.src), (PathKind::CopyEngine, 3));
    let [low, high] = one.states;
    assert!((low.share_percent - 60.0).abs() < 3.0 && (high.share_percent - 40.0).abs() < 3.0);
    assert!((high.median_ns - low.median_ns - 5_300.0).abs() < 300.0, "{one:?}");
}

#[test]
fn one_line_that_is_off_by_more_than_a_quarter_is_refused_and_the_pieces_stand() {
    let (_root, _, analysis) = analyse(&machine(PathKind::Nccl));
    for link in &analysis.links {
        let line = link.alpha_beta.as_ref().unwrap();
        assert_eq!(line.refused.is_some(), line.error.unwrap().p90_percent > 25.0, "{line:?}");
        assert!(line.refused.is_some() && link.usable_line().is_none(), "{line:?}");
        let model = link.usable_model().unwrap();
        assert!(model.segments.len() > 1 && model.error.p90_percent < 5.0, "{model:?}");
    }
    assert!(!analysis.warnings.iter().any(|text| text.contains("have no model")));
}

#[test]
fn links_that_no_model_fits_are_refused_and_warned_of() {
    let (_root, folder, _) = analyse(&machine(PathKind::Nccl));
    let path = folder.dir().join("samples.csv");
    let text = fs::read_to_string(&path).unwrap();
    // Two of three sizes wait for a timer, always the same ones.
    let waits = |line: &str| {
        let mut cells: Vec<String> = line.split(',').map(str::to_owned).collect();
        if cells[2].parse::<u32>().is_ok_and(|configuration| configuration % 3 > 0) {
            cells[7] = (cells[7].parse::<f64>().unwrap() + 50e6).to_string();
        }
        cells.join(",") + "\n"
    };
    fs::write(&path, text.lines().map(waits).collect::<String>()).unwrap();
    let analysis = Analysis::of(&folder, Options::default()).unwrap();
    let none = analysis.links.iter().filter(|link| link.usable_model().is_none()).count();
    assert!(none > 6, "{none}");
    let warning = format!("{none} of 12 links have no model");
    assert!(analysis.warnings.iter().any(|text| text.starts_with(&warning)), "{warning}");
    for segment in
        analysis.links.iter().flat_map(|link| link.model.iter()).flat_map(|m| &m.segments)
    {
        assert!(segment.latency_ns.is_none_or(|latency| latency > 1.0), "{segment:?}");
    }
}

#[test]
fn regimes_breaks_and_rates_of_links_are_found() {
    let (_root, _, analysis) = analyse(&machine(PathKind::Nccl));
    let link = analysis.links.iter().find(|link| (link.src, link.dst) == (2, 3)).unwrap();
    let model = link.model.as_ref().unwrap();
    let kinds: Vec<RegimeKind> = model.regimes.iter().map(|regime| regime.kind).collect();
    assert_eq!(kinds.first(), Some(&RegimeKind::LatencyBound));
    assert_eq!(kinds.last(), Some(&RegimeKind::BandwidthBound));
    assert!(
        model.breaks.iter().any(|one| (one.after_bytes, one.before_bytes) == (1 << 17, 1 << 18)),
        "the protocol changes at 256 KiB: {:?}",
        model.breaks
    );
    assert!((model.peak_gb_per_s().unwrap() / 350.0 - 1.0).abs() < 0.02, "{model:?}");
    assert!((model.at(1) / 5_350.0 - 1.0).abs() < 0.03, "{}", model.at(1));
    assert!(model.held_out_error_percent.unwrap() < 2.0);
    let small = &link.loggp[0];
    assert!(!small.latency_includes_overhead);
    let overhead = small.overhead_ns.unwrap();
    assert!((4_000.0..4_500.0).contains(&overhead), "{overhead}");
    let large = link.loggp.last().unwrap();
    assert!((large.gap_per_byte_ns * 350.0 - 1.0).abs() < 0.02);
    assert!(large.gap_ns.is_some());
}

#[test]
fn models_are_compared_of_the_endpoints_that_both_have() {
    let (_root, _, base) = analyse(&machine(PathKind::Nccl));
    let mut now = base.clone();
    let warnings = |now: &Analysis| Comparison::of(now, &base).unwrap().warnings;
    now.about.models.pop();
    now.about.models[1] = None;
    assert!(warnings(&now).is_empty(), "{:?}", warnings(&now));
    now.about.models[0] = Some("another".into());
    assert_eq!(warnings(&now), ["the devices are of different models"]);
}

#[test]
fn sizes_around_breaks_refine_the_plan() {
    let (_root, folder, analysis) = analyse(&machine(PathKind::Nccl));
    let sizes = analysis.sizes_around_breaks(4);
    let of_link: Vec<u64> =
        sizes.iter().filter(|one| (one.0, one.1) == (2, 3)).map(|one| one.3).collect();
    assert_eq!(of_link, [150_562, 172_951, 198_668, 228_210], "between 128 and 256 KiB");
    let mut plan = folder.plan().clone();
    assert_eq!(plan.refine(sizes.clone()).unwrap(), sizes.len());
    assert_eq!(plan.refine(sizes).unwrap(), 0);
}

#[test]
fn the_slower_direction_is_named_and_no_other() {
    let (_root, _, analysis) = analyse(&machine(PathKind::CopyEngine));
    let found: Vec<_> =
        analysis.asymmetries.iter().map(|one| (one.src, one.dst, one.sizes)).collect();
    let (src, dst) = ASYMMETRIC_PAIR;
    assert_eq!(found, [(src, dst, SizeClass::Large)]);
    let slower = analysis.asymmetries[0].slower_percent;
    assert!((slower - (ASYMMETRY - 1.0) * 100.0).abs() < 3.0, "{slower}");
    assert_eq!(analysis.slow_links.len(), 1, "{:?}", analysis.slow_links);
    assert_eq!((analysis.slow_links[0].src, analysis.slow_links[0].dst), ASYMMETRIC_PAIR);
}

#[test]
fn clocks_and_devices_are_reported() {
    let (_root, _, analysis) = analyse(&machine(PathKind::CopyEngine));
    assert_eq!(analysis.clocks.clocks.len(), 4);
    for clock in &analysis.clocks.clocks {
        let expected = -6.0 * (f64::from(clock.clock) - 2.5);
        assert!((clock.rate_ppm.unwrap() - expected).abs() < 0.2, "{clock:?}");
        assert!(clock.bound_ns < 1_000.0, "{clock:?}");
    }
    assert_eq!(analysis.clocks.triangles.len(), 4);
    assert!(analysis.clocks.triangles.iter().all(|one| one.closes));
    assert_eq!(analysis.thermals.len(), 4);
    let [low, middle, high] = analysis.thermals[1].temperature_c.unwrap();
    assert!(low < middle && middle < high && high < 60.0);
    let sentinel = analysis.drift.iter().find(|one| one.of == DriftOf::Sentinel).unwrap();
    assert!(sentinel.samples > 30);
    assert!(sentinel.temperature_correlation.is_some());
}

#[test]
fn a_slower_run_is_slower_and_the_same_run_the_same() {
    let (_a, _, base) = analyse(&machine(PathKind::CopyEngine));
    let (_b, _, again) = analyse(&Machine { seed: 7, ..machine(PathKind::CopyEngine) });
    let (_c, _, slower) =
        analyse(&Machine { seed: 8, slowness: 1.1, ..machine(PathKind::CopyEngine) });
    let same = Comparison::of(&again, &base).unwrap();
    assert_eq!(same.verdict, Verdict::Same, "{:?}", same.counts);
    let count =
        |comparison: &Comparison, verdict| comparison.counts.get(&verdict).copied().unwrap_or(0);
    assert!(count(&same, Verdict::Slower) + count(&same, Verdict::Faster) < 4, "{:?}", same.counts);
    let worse = Comparison::of(&slower, &base).unwrap();
    assert_eq!(worse.verdict, Verdict::Slower);
    assert!(count(&worse, Verdict::Slower) > 350, "{:?}", worse.counts);
    assert!((worse.ratios[0].1 - 1.1).abs() < 0.01);
    let better = Comparison::of(&base, &slower).unwrap();
    assert_eq!(better.verdict, Verdict::Faster);
}

#[test]
fn profiles_with_nothing_in_common_are_refused_with_what_they_have() {
    let (_a, _, gpu) = analyse(&machine(PathKind::CopyEngine));
    let (_b, _, tcp) = analyse(&Machine { has_gpus: false, ..machine(PathKind::Tcp) });
    let error = Comparison::of(&gpu, &tcp).unwrap_err().to_string();
    assert!(error.contains("copy_engine (t_gpu)") && error.contains("tcp (t_rtt2)"), "{error}");
}

#[test]
fn each_path_has_the_metric_that_it_can_measure() {
    let (_root, folder, analysis) = analyse(&Machine { has_gpus: false, ..machine(PathKind::Tcp) });
    assert_eq!(analysis.metrics[0].metric, "t_rtt2");
    assert!(analysis.links[0].loggp[0].latency_includes_overhead);
    let chosen = Options { metric: Some(Metric::Host), ..Options::default() };
    assert_eq!(Analysis::of(&folder, chosen).unwrap().metrics[0].metric, "t_host");
    let absent = Options { metric: Some(Metric::Gpu), ..Options::default() };
    let error = Analysis::of(&folder, absent).unwrap_err().to_string();
    assert!(error.ends_with("no sample has t_gpu"), "{error}");
    let other = Options { path: Some(PathKind::Nccl), ..Options::default() };
    let error = Analysis::of(&folder, other).unwrap_err().to_string();
    assert!(error.ends_with("no sample has a time over nccl"), "{error}");
}

#[test]
fn a_profile_that_was_cut_short_is_analysed_as_far_as_it_goes() {
    let (_root, folder, _) = analyse(&machine(PathKind::CopyEngine));
    let path = folder.dir().join("samples.csv");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() / 3]).unwrap();
    let run = folder.dir().join("run.yml");
    let state = fs::read_to_string(&run).unwrap().replace("complete", "running");
    fs::write(&run, state).unwrap();
    let folder = Folder::open(folder.dir()).unwrap();
    let analysis = Analysis::of(&folder, Options::default()).unwrap();
    assert!(analysis.warnings[0].contains("did not come to its end"), "{:?}", analysis.warnings);
    assert!(analysis.warnings.iter().any(|one| one.contains("fewer than 6 samples")));
    let state = fs::read_to_string(&run).unwrap().replace("state: running", "state: interrupted");
    fs::write(&run, state.replace("reason: null", "reason: interrupted")).unwrap();
    let again = Analysis::of(&Folder::open(folder.dir()).unwrap(), Options::default()).unwrap();
    let words = "the profile was interrupted; it has ";
    assert!(again.warnings[0].starts_with(words), "{:?}", again.warnings);
    let summaries: usize = analysis.configurations.iter().map(|one| one.samples).sum();
    assert_eq!(summaries + analysis.counts.of_sentinel, analysis.counts.taken);
}

#[test]
fn an_empty_profile_says_so() {
    let (_root, folder, _) = analyse(&machine(PathKind::CopyEngine));
    let path = folder.dir().join("samples.csv");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.lines().next().unwrap().to_owned() + "\n").unwrap();
    let error = Analysis::of(&folder, Options::default()).unwrap_err();
    assert!(matches!(error, AnalyzeError::Empty { .. }), "{error}");
}
