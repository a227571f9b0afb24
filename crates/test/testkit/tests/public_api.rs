//! The public API that programs build on, as text in `docs/api`, so that a change of it shows in a diff.
//!
//! `rustdoc` writes its data as JSON, and the crate `public-api` makes a line of each item. The JSON is unstable, so
//! this needs a compiler that writes the format which that crate reads.

use std::collections::BTreeSet;
use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use polyrail_skip::skip;
use serde_json::Value;

/// Part of a crate that counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    All,
    /// Items that `polyrail` re-exports.
    HandedOn,
}

/// `polyrail`, and the crates in its signatures.
const CRATES: &[(&str, Part)] = &[
    ("polyrail", Part::All),
    ("polyrail-config", Part::All),
    ("polyrail-gpu", Part::All),
    ("polyrail-proto", Part::HandedOn),
    ("polyrail-secure", Part::HandedOn),
    ("polyrail-sys", Part::HandedOn),
];

/// Version of the JSON that `public-api` reads.
const FORMAT: u64 = 57;

/// Environment variable that makes the test write the files instead of comparing them.
const WRITE: &str = "WRITE_PUBLIC_API";

const RUN: &str = "cargo test -p polyrail-testkit --test public_api";

/// Traits that the compiler implements automatically, and that rarely matter to programs. Lines of `Send` and `Sync`
/// stay.
const UNTOLD: &[&str] = &[
    "core::marker::Freeze",
    "core::marker::StructuralPartialEq",
    "core::marker::Unpin",
    "core::marker::UnsafeUnpin",
    "core::panic::unwind_safe::RefUnwindSafe",
    "core::panic::unwind_safe::UnwindSafe",
];

/// Makes `rustdoc` write the JSON of all crates, and returns its folder.
fn document() -> PathBuf {
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let target = temporary.parent().expect("it is in the target folder");
    // The variable allows unstable features. It is set for rustdoc only: a build script that sees it would build its
    // crate in another way, and all dependent crates again.
    let rustdoc = temporary.join("unstable-rustdoc");
    let script = "#!/bin/sh\nRUSTC_BOOTSTRAP=1 exec rustdoc \"$@\"\n";
    fs::write(&rustdoc, script).unwrap();
    fs::set_permissions(&rustdoc, Permissions::from_mode(0o755)).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["doc", "--locked", "--no-deps", "--lib", "--quiet", "--target-dir"]).arg(target);
    cargo.args(CRATES.iter().flat_map(|(name, _)| ["--package", name]));
    polyrail_skip::forget_package(&mut cargo);
    cargo.env("RUSTDOC", &rustdoc);
    cargo.env("RUSTDOCFLAGS", "-Zunstable-options --output-format json");
    cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = cargo.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    target.join("doc")
}

/// Lines of a crate's public API.
fn lines(json: &Path) -> Vec<String> {
    let api = public_api::Builder::from_rustdoc_json(json).omit_blanket_impls(true).build();
    let api = api.unwrap_or_else(|error| panic!("{}: {error}", json.display()));
    let lines = api.items().map(ToString::to_string);
    lines.filter(|line| !UNTOLD.iter().any(|name| line.contains(&format!("{name} for ")))).collect()
}

/// Names in the root of `polyrail` that belong to other crates.
fn handed_on(polyrail: &[String]) -> BTreeSet<&str> {
    polyrail.iter().filter_map(|line| line.strip_prefix("pub use polyrail::")).collect()
}

/// True if a line of a crate belongs to one of these items.
fn is_of(line: &str, krate: &str, names: &BTreeSet<&str>) -> bool {
    let root = format!("{krate}::");
    // An implementation belongs to the type that stands last, other lines to the item that stands first.
    let at = if line.starts_with("impl") { line.rfind(&root) } else { line.find(&root) };
    let path = at.map_or("", |at| &line[at..]);
    let end = path.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c)).unwrap_or(path.len());
    path[..end].split("::").any(|name| names.contains(name))
}

#[test]
fn the_public_api_is_the_one_in_docs_api() {
    let json = document();
    let json = |name: &str| json.join(format!("{}.json", name.replace('-', "_")));
    let text = fs::read_to_string(json("polyrail")).unwrap();
    let format = serde_json::from_str::<Value>(&text).unwrap()["format_version"].as_u64();
    if format != Some(FORMAT) {
        let reason = format!("rustdoc writes format {format:?}, and public-api reads {FORMAT}");
        return skip(reason, &format!("{RUN}, with the compiler of rust-version in Cargo.toml"));
    }
    let polyrail = lines(&json("polyrail"));
    let handed_on = handed_on(&polyrail);
    assert!(handed_on.contains("Memory") && handed_on.contains("RefusalCode"), "{handed_on:?}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/api");
    let mut changes = Vec::new();
    for (name, part) in CRATES {
        let mut now = lines(&json(name));
        if *part == Part::HandedOn {
            now.retain(|line| is_of(line, &name.replace('-', "_"), &handed_on));
        }
        assert!(now.len() > 20, "{name} has no more than {} lines", now.len());
        let file = folder.join(format!("{name}.txt"));
        if env::var_os(WRITE).is_some() {
            fs::write(&file, now.join("\n") + "\n").unwrap();
            continue;
        }
        let before = fs::read_to_string(&file).unwrap_or_default();
        let before: Vec<&str> = before.lines().collect();
        let is_new = |line: &&String| !before.contains(&line.as_str());
        let is_gone = |line: &&&str| !now.iter().any(|other| other == **line);
        changes.extend(before.iter().filter(is_gone).map(|line| format!("- {line}")));
        changes.extend(now.iter().filter(is_new).map(|line| format!("+ {line}")));
    }
    assert!(
        changes.is_empty(),
        "the public API is another than docs/api says. If that is wanted, run `{WRITE}=1 {RUN}`, and \
         say in CHANGELOG.md what it means for programs:\n{}",
        changes.join("\n")
    );
}

#[test]
fn a_line_is_of_what_it_defines_and_not_of_what_it_mentions() {
    let names = BTreeSet::from(["Memory"]);
    for of_memory in [
        "pub struct x::Memory",
        "pub fn x::memory::Memory::len(&self) -> u64",
        "impl core::fmt::Debug for x::Memory",
        "impl core::convert::From<x::Other> for x::Memory",
    ] {
        assert!(is_of(of_memory, "x", &names), "{of_memory}");
    }
    for other in [
        "pub fn x::map() -> x::Memory",
        "pub struct x::MemoryMap",
        "impl core::convert::From<x::Memory> for x::Other",
        "pub mod x",
    ] {
        assert!(!is_of(other, "x", &names), "{other}");
    }
}
