//! Folders that the tests share.

use polyrail_analyze::{Analysis, Options};
use polyrail_profile::synthetic::Machine;
use polyrail_profile::{Folder, PathKind};
use tempfile::TempDir;

/// A profile of four GPUs over one path.
pub(crate) fn machine(path: PathKind) -> Machine {
    Machine { paths: vec![path], ..Machine::default() }
}

/// Returns a folder, which lives as long as the first value, and its analysis.
pub(crate) fn analyse(machine: &Machine) -> (TempDir, Folder, Analysis) {
    let root = tempfile::tempdir().unwrap();
    let folder = machine.profile(root.path().join("profile")).unwrap();
    let analysis = Analysis::of(&folder, Options::default()).unwrap();
    (root, folder, analysis)
}
