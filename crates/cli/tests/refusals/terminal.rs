//! Text from outside reaches a terminal through one function, and one function computes medians.

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
}

/// Lines of a crate's sources without comments, each with its file.
fn lines(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files = Vec::new();
    sources(&root, &mut files);
    let read = |file: PathBuf| {
        let place = file.strip_prefix(&root).unwrap().display().to_string();
        let text = fs::read_to_string(&file).unwrap();
        let kept = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        kept.map(|line| (place.clone(), line.to_owned())).collect::<Vec<_>>()
    };
    files.into_iter().flat_map(read).collect()
}

/// Files that write for a program at the other end, or write bytes that are not text.
const FOR_PROGRAMS: &[&str] = &[
    "cmd/bench/ends/spawn.rs",
    "cmd/bench/rivals/nccl_rank.rs",
    "cmd/collective/worker.rs",
    "cmd/mesh/direct.rs",
    "cmd/mesh/meet.rs",
    "cmd/host/snapshot.rs",
];

#[test]
fn nothing_writes_to_a_terminal_past_the_escaping() {
    let writers = ["println!", "print!(", "io::stdout()", "io::stderr()"];
    let lines = lines("src");
    assert!(lines.len() > 10_000, "{}", lines.len());
    for (place, line) in lines {
        let writes =
            writers.iter().any(|writer| line.contains(writer)) && !line.contains("writeln!(");
        let is_escaped = line.contains("Harmless::new(") || line.contains("is_terminal()");
        let may = place == "stdout.rs" || FOR_PROGRAMS.contains(&place.as_str());
        // These take the lock and escape in the next line, which this test can't see.
        let near = ["cmd/bench/output/save.rs", "cmd/host/watch.rs"].contains(&place.as_str());
        assert!(!writes || is_escaped || may || near, "{place} writes past stdout.rs: {line}");
    }
}

#[test]
fn there_is_one_median() {
    let ours = [
        "../measure/report/src",
        "../measure/analyze/src",
        "../measure/profile/src",
        "../measure/profiler/src",
        "src",
        "examples",
    ];
    for folder in ours {
        for (place, line) in lines(folder) {
            // A slice of a list isn't a median.
            let halves = line.contains(".len() / 2]") && !line.contains("..");
            let may = folder == "../measure/report/src" && place == "spread.rs";
            assert!(!halves || may, "{folder}/{place} takes a middle of its own: {line}");
        }
    }
}
