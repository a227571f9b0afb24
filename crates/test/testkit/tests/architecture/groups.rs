//! Folders of crates: the crates of each, and the allowed dependencies between them.

use std::fs;
use std::path::{Path, PathBuf};

use super::{RULES, Rule, assert_none, crates};

/// A folder of crates. The command is in none.
struct Group {
    name: &'static str,
    /// Other groups whose crates its own may use.
    below: &'static [&'static str],
    crates: &'static [&'static str],
}

const GROUPS: &[Group] = &[
    Group {
        name: "engine",
        below: &[],
        crates: &[
            "carrier",
            "config",
            "gpu",
            "log",
            "metrics",
            "nccl-abi",
            "netlink",
            "polyrail",
            "proto",
            "rendezvous",
            "secure",
            "sys",
            "text",
            "yaml",
        ],
    },
    Group {
        name: "faces",
        below: &["engine", "host"],
        crates: &["capi", "nccl", "otel", "python"],
    },
    Group {
        name: "host",
        below: &["engine"],
        crates: &["doctor", "host", "lab", "nic", "nvml", "sample", "tune"],
    },
    Group {
        name: "measure",
        below: &["engine", "host"],
        crates: &[
            "analyze",
            "collective",
            "experiment",
            "nccl-ref",
            "pattern",
            "profile",
            "profiler",
            "report",
        ],
    },
    Group {
        name: "test",
        below: &["engine"],
        crates: &["browser", "skip", "testkit", "testkit-plugin"],
    },
];

/// Group of a crate, by name.
pub(super) fn group_of(name: &str) -> Option<&'static str> {
    GROUPS.iter().find(|group| group.crates.contains(&name)).map(|group| group.name)
}

/// Path without the part above its crate, such as `sys/src/badge.rs`.
pub(super) fn from_crate(path: &Path) -> &str {
    let inner = path.strip_prefix(crates()).unwrap();
    let in_group = GROUPS.iter().find_map(|group| inner.strip_prefix(group.name).ok());
    in_group.unwrap_or(inner).to_str().unwrap()
}

/// File of such a path.
pub(super) fn file(from_crate: &str) -> PathBuf {
    let (name, inner) = from_crate.split_once('/').expect("a crate, and a file in it");
    Rule::of(name).folder().join(inner)
}

#[test]
fn every_crate_has_a_place_in_the_picture() {
    let inside = |folder: PathBuf| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_crate = |path: &PathBuf| path.join("Cargo.toml").exists();
    let (mut folders, groups): (Vec<PathBuf>, Vec<PathBuf>) =
        inside(crates()).filter(|path| path.is_dir()).partition(is_crate);
    folders.extend(groups.into_iter().flat_map(inside).filter(is_crate));
    let mut known: Vec<PathBuf> = RULES.iter().map(Rule::folder).collect();
    folders.sort();
    known.sort();
    assert_eq!(folders, known, "give a new crate a rule, a group and a place in ARCHITECTURE.md");
    for rule in RULES {
        let groups = GROUPS.iter().filter(|group| group.crates.contains(&rule.name)).count();
        assert_eq!(groups, usize::from(rule.name != "cli"), "groups of {}", rule.name);
    }
}

#[test]
fn the_engine_knows_of_no_other_group_and_each_group_only_of_those_below_it() {
    let engine = GROUPS.iter().find(|group| group.name == "engine").unwrap();
    assert!(engine.below.is_empty(), "the engine may use no other group");
    let mut faults = Vec::new();
    for group in GROUPS {
        for name in group.crates {
            for used in Rule::of(name).below {
                let other = group_of(used).unwrap_or("crates");
                if other != group.name && !group.below.contains(&other) {
                    faults.push(format!(
                        "{name} of {} uses {used} of {other}; allowed: {:?}. Move the code to where it may be \
                         used, or the crate to another group",
                        group.name, group.below
                    ));
                }
            }
        }
    }
    assert_none(faults);
}
