//! Damaged folders are analysed or refused; nothing panics.

use std::fs;
use std::path::Path;

use polyrail_analyze::export::{Target, export};
use polyrail_analyze::{Analysis, Judgement, Options, html, read_predictions};
use polyrail_profile::synthetic::Machine;
use polyrail_profile::{Folder, PathKind, SplitMix64};

const FILES: [&str; 7] = [
    "plan.json",
    "run.yml",
    "samples.csv",
    "temperatures.csv",
    "anchors.csv",
    "metadata_rank_0.yml",
    "predictions.csv",
];

/// Values that often break programs.
const PIECES: [&str; 14] = [
    "",
    "-1",
    "0",
    "NaN",
    "1e308",
    "-4611686018427387903",
    "4611686018427387903",
    "18446744073709551616",
    ",",
    "\n",
    "\"",
    "null",
    "\u{feff}é",
    ": [",
];

/// Replaces a word by a piece, removes lines, duplicates them, or cuts off the end.
fn damage(text: &str, rng: &mut SplitMix64) -> String {
    let at = |rng: &mut SplitMix64| {
        let mut at = rng.below(text.len() as u64) as usize;
        while !text.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    match rng.below(5) {
        0..=2 => {
            let start = at(rng);
            let is_word = |one: char| one.is_alphanumeric() || one == '.' || one == '-';
            let start = text[..start].rfind(|one| !is_word(one)).map_or(0, |before| before + 1);
            let length = text[start..].find(|one| !is_word(one)).unwrap_or(text.len() - start);
            let piece = PIECES[rng.below(PIECES.len() as u64) as usize];
            format!("{}{piece}{}", &text[..start], &text[start + length..])
        }
        3 => {
            let mut lines: Vec<&str> = text.lines().collect();
            let line = rng.below(lines.len() as u64) as usize;
            if rng.below(2) == 0 {
                lines.remove(line);
            } else {
                lines.insert(line, lines[line]);
            }
            lines.join("\n") + "\n"
        }
        _ => text[..at(rng)].to_owned(),
    }
}

/// Runs everything that reads a folder; `false` if something was refused.
fn use_folder(dir: &Path) -> bool {
    let Ok(folder) = Folder::open(dir) else { return false };
    let derived = folder.write_derived().is_ok();
    let Ok(mut analysis) = Analysis::of(&folder, Options::default()) else { return false };
    let file = dir.join("predictions.csv");
    let judged = read_predictions(&file)
        .and_then(|predictions| Judgement::of(&analysis, &file, &predictions));
    let is_judged = judged.is_ok();
    analysis.predictions = judged.ok();
    assert!(html(&analysis).len() > 10_000);
    for target in [Target::AstraSim, Target::Chakra, Target::SimAi, Target::Vidur] {
        let _ = export(&analysis, target);
    }
    derived && is_judged
}

#[test]
fn damage_is_refused_or_survived() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("profile");
    let paths = vec![PathKind::CopyEngine];
    Machine { endpoints: 2, paths, repetitions: 2, ..Machine::default() }.profile(&dir).unwrap();
    let predictions = "src,dst,size_bytes,predicted_time_ns\n*,*,8,2000\n0,1,1024,2500.5\n";
    fs::write(dir.join("predictions.csv"), predictions).unwrap();
    assert!(use_folder(&dir), "the folder is good before it is damaged");

    let (mut refused, mut survived) = (0, 0);
    for seed in 0..400 {
        let mut rng = SplitMix64::new(seed);
        let path = dir.join(FILES[rng.below(FILES.len() as u64) as usize]);
        let good = fs::read_to_string(&path).unwrap();
        let damaged = damage(&good, &mut rng);
        fs::write(&path, &damaged).unwrap();
        let result = std::panic::catch_unwind(|| use_folder(&dir));
        let good_again = fs::write(&path, good);
        match result {
            Ok(true) => survived += 1,
            Ok(false) => refused += 1,
            Err(_) => panic!("seed {seed}: {} broke the analysis", path.display()),
        }
        good_again.unwrap();
    }
    assert!(refused > 150 && survived > 50, "{refused} refused, {survived} survived");
}
