//! Predictions whose errors are known.

use std::fs;
use std::path::PathBuf;

use crate::common::{analyse, machine};
use polyrail_analyze::{Analysis, AnalyzeError, Judgement, PointVerdict, read_predictions};
use polyrail_profile::PathKind;
use polyrail_profile::synthetic::{Machine, true_time_ns};
use tempfile::TempDir;

fn judge(text: &str, analysis: &Analysis) -> Result<Judgement, AnalyzeError> {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("predictions.csv");
    fs::write(&path, text).unwrap();
    let predictions = read_predictions(&path)?;
    Judgement::of(analysis, &PathBuf::from("predictions.csv"), &predictions)
}

fn profile() -> (TempDir, Analysis, String) {
    let (root, folder, analysis) = analyse(&machine(PathKind::CopyEngine));
    let mut text = String::from("src,dst,size_bytes,predicted_time_ns,simulator,comment\n");
    for one in &folder.plan().configurations {
        // Correct for small sizes, a fifth too slow from 1 MiB on, and wrong for one link.
        let factor = match one {
            one if (one.src, one.dst) == (3, 2) => 0.5,
            one if one.size_bytes >= 1 << 20 => 1.2,
            _ => 1.0,
        };
        let time = true_time_ns(one) * factor;
        text += &format!("{},{},{},{time},astra,\"a, b\"\n", one.src, one.dst, one.size_bytes);
    }
    (root, analysis, text)
}

#[test]
fn each_point_is_judged_with_its_sign() {
    let (_root, analysis, text) = profile();
    let judged = judge(&text, &analysis).unwrap();
    assert_eq!((judged.points.len(), judged.not_measured, judged.not_predicted), (12 * 31, 0, 0));
    assert_eq!(judged.simulators, ["astra"]);
    for point in &judged.points {
        let expected = match point {
            point if (point.src, point.dst) == (3, 2) => PointVerdict::TooFast,
            point if point.size_bytes >= 1 << 20 => PointVerdict::TooSlow,
            _ => PointVerdict::Right,
        };
        assert_eq!(point.verdict, expected, "{point:?}");
    }
    let worst = &judged.by_link[0];
    assert_eq!((worst.src, worst.dst), (3, 2));
    assert!((worst.errors.bias_percent + 50.0).abs() < 1.0, "{worst:?}");
    assert!((worst.errors.geometric_mean_ratio - 0.5).abs() < 0.01);
    let (predicted, measured) =
        (worst.predicted.as_ref().unwrap(), worst.measured.as_ref().unwrap());
    let ratio = predicted.gb_per_s.unwrap() / measured.gb_per_s.unwrap();
    assert!((ratio - 2.0).abs() < 0.05);
    let large = judged.by_size.iter().find(|(size, _)| *size == 1 << 30).unwrap();
    assert!((large.1.median_abs_percent - 20.0).abs() < 1.5, "{large:?}");
    assert_eq!(judged.by_regime.len(), 3);
}

#[test]
fn what_is_too_noisy_to_judge_is_not_called_right() {
    let (_root, mut analysis, text) = profile();
    assert_eq!(judge(&text, &analysis).unwrap().too_noisy(), None);
    let one = analysis.configurations.iter_mut().find(|one| one.size_bytes == 1024).unwrap();
    one.interval_ns = Some((0.5 * one.median_ns, 3.0 * one.median_ns));
    let (src, dst, median_ns) = (one.src, one.dst, one.median_ns);
    let verdict = |factor: f64| {
        let heading = "src,dst,size_bytes,predicted_time_ns";
        let text = format!("{heading}\n{src},{dst},1024,{}\n", median_ns * factor);
        let judged = judge(&text, &analysis).unwrap();
        (judged.points[0].verdict, judged.too_noisy())
    };
    let (wide, told) = verdict(2.36);
    assert_eq!(wide, PointVerdict::Unclear);
    let told = told.unwrap();
    assert!(told.starts_with("too noisy to judge 1 of 1 predictions: "), "{told}");
    assert_eq!(verdict(1.01), (PointVerdict::Right, None));
    assert_eq!(verdict(4.0), (PointVerdict::TooSlow, None));
}

#[test]
fn stars_stand_for_all_and_later_lines_for_exceptions() {
    let (_root, analysis, _) = profile();
    let text = "src,dst,size_bytes,predicted_time_ns\n*,*,1024,1000\n0,*,1024,5000\n*,*,777,5\n";
    let judged = judge(text, &analysis).unwrap();
    assert_eq!((judged.points.len(), judged.not_measured), (12, 1));
    let predicted = |src| judged.points.iter().find(|one| one.src == src).unwrap().predicted_ns;
    assert_eq!((predicted(0), predicted(1)), (5_000.0, 1_000.0));
    assert_eq!(judged.not_predicted, 12 * 31 - 12);
}

#[test]
fn faults_of_the_table_are_named() {
    let (_root, analysis, _) = profile();
    let fault = |text: &str| judge(text, &analysis).unwrap_err().to_string();
    let missing = fault("src,dst,size\n");
    assert!(missing.contains("missing column size_bytes, predicted_time_ns"), "{missing}");
    let cell = fault("src,dst,size_bytes,predicted_time_ns\n0,1,1KiB,5\n");
    assert!(
        cell.contains(":2, column size_bytes: `1KiB`; allowed: a whole number, 1 to"),
        "{cell}"
    );
    let negative = fault("src,dst,size_bytes,predicted_time_ns\n0,1,1024,-5\n");
    assert!(negative.contains(":2, column predicted_time_ns: `-5`"), "{negative}");
    let rank = fault("src,dst,size_bytes,predicted_time_ns\n0,1,8,5\n0,9,8,5\n");
    assert_eq!(
        rank,
        "predictions.csv:3, column dst: `9`; allowed: 0 to 3, the ranks of the profile, or *"
    );
    let none = fault("src,dst,size_bytes,predicted_time_ns\n0,1,1000,5\n");
    assert!(none.contains("none of 1 predictions is of a transfer that was measured"), "{none}");
    assert!(none.contains("31 sizes from 1 to 1073741824 B"), "{none}");
    let path = fault("src,dst,size_bytes,predicted_time_ns,path\n0,1,8,5,ib\n");
    assert!(path.contains("column path: `ib`; allowed: copy_engine, kernel,"), "{path}");
    assert!(fault("").contains("there are no headings"));
}

#[test]
fn predictions_of_several_paths_must_say_which() {
    let (_root, _, analysis) = analyse(&Machine { repetitions: 6, ..Machine::default() });
    let text = "src,dst,size_bytes,predicted_time_ns\n0,1,1024,1000\n";
    let error = judge(text, &analysis).unwrap_err();
    assert!(matches!(error, AnalyzeError::ManyPaths { .. }), "{error}");
    assert!(error.help().unwrap().contains("--path"));
    let text = "src,dst,size_bytes,predicted_time_ns,path\n0,1,1024,1000,nccl\n";
    assert_eq!(judge(text, &analysis).unwrap().points[0].path, PathKind::Nccl);
}
