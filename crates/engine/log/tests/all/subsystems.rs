//! The names in `log_subsystems` match the existing records.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use polyrail_config::SUBSYSTEMS;

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|end| end == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn every_record_has_a_subsystem_and_every_subsystem_has_records() {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).canonicalize().unwrap();
    let crates = own.ancestors().nth(2).unwrap();
    let mut files = Vec::new();
    sources(crates, &mut files);
    let inner = |file: &Path| file.strip_prefix(crates).unwrap().iter().any(|part| part == "src");
    files.retain(|file| inner(file) && !file.starts_with(&own));
    let mut used = BTreeSet::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        for level in ["error", "warn", "info", "debug", "trace"] {
            for call in text.split(&format!("tracing::{level}!(")).skip(1) {
                let target = call.trim_start().strip_prefix("target: \"polyrail::");
                let name = target.and_then(|rest| rest.split('"').next());
                let name =
                    name.unwrap_or_else(|| panic!("{}: a record without target", file.display()));
                used.insert(name.to_owned());
            }
        }
    }
    let known: BTreeSet<String> = SUBSYSTEMS.iter().map(ToString::to_string).collect();
    assert_eq!(used, known);
}
