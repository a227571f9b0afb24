//! The header, the list of versions and the library have the same functions, and the header is the one that cbindgen
//! generates from the crate.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use crate::build::{compilers, done, folder, installed, skipped};

/// Another version might write another header.
const CBINDGEN: &str = "0.29.2";

fn read(file: &str) -> String {
    let path = folder().join(file);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Functions that the header declares.
fn declared() -> BTreeSet<String> {
    let header = read("include/polyrail.h");
    let body = header.split("extern \"C\" {").nth(1).unwrap();
    let body = body.split("extern \"C\"").next().unwrap();
    let lines = body.lines().filter(|line| line.starts_with(|first: char| first.is_alphabetic()));
    let names = lines.filter_map(|line| line.split('(').next()?.rsplit([' ', '*']).next());
    names.map(str::to_owned).collect()
}

/// Functions with their versions according to the list, and the versions.
fn versioned() -> BTreeSet<String> {
    let map = read("polyrail.map");
    let (mut all, mut version) = (BTreeSet::new(), "");
    for line in map.lines().map(str::trim) {
        if let Some(begun) = line.strip_suffix(" {") {
            version = begun;
            all.insert(version.to_owned());
        }
        let function = line.strip_suffix(';').filter(|name| name.starts_with("polyrail_"));
        all.extend(function.map(|name| format!("{name}@@{version}")));
    }
    all
}

#[test]
fn the_header_is_what_cbindgen_makes_of_the_crate() {
    let program = std::env::var("CBINDGEN").unwrap_or_else(|_| "cbindgen".to_owned());
    let run = format!(
        "cargo install cbindgen --version {CBINDGEN} --locked && cargo test -p polyrail-capi"
    );
    let version = match Command::new(&program).arg("--version").output() {
        Ok(output) => String::from_utf8(output.stdout).unwrap(),
        Err(error) => return polyrail_skip::skip(format!("no cbindgen: {error}"), &run),
    };
    if version.trim() != format!("cbindgen {CBINDGEN}") {
        return polyrail_skip::skip(
            format!("{} is not the version {CBINDGEN}", version.trim()),
            &run,
        );
    }
    let mut cbindgen = Command::new(program);
    cbindgen.args(["--quiet", "--crate", "polyrail-capi", "--config"]);
    let made = done(cbindgen.arg(folder().join("cbindgen.toml")).arg(folder()));
    let is_same = made == read("include/polyrail.h");
    assert!(is_same, "include/polyrail.h is old: `make -C crates/faces/capi header` writes it");
}

#[test]
fn what_is_installed_for_that_is_the_same_version() {
    let script = fs::read_to_string(folder().join("../../../.ci/run")).unwrap();
    assert!(script.contains(&format!("cbindgen --version {CBINDGEN} ")), ".ci/run has another one");
}

#[test]
fn the_sources_the_header_and_the_versions_have_the_same_functions() {
    let declared = declared();
    assert!(declared.len() > 50, "{declared:?}");
    let map = read("polyrail.map");
    let listed = map.lines().filter_map(|line| line.trim().strip_suffix(';'));
    let listed: BTreeSet<String> =
        listed.filter(|name| name.starts_with("polyrail_")).map(str::to_owned).collect();
    assert_eq!(listed, declared, "polyrail.map has a line for each function");

    let mut defined = BTreeSet::new();
    for entry in fs::read_dir(folder().join("src")).unwrap() {
        let source = fs::read_to_string(entry.unwrap().path()).unwrap();
        let functions = source.split("#[unsafe(no_mangle)]\n").skip(1);
        let names = functions.filter_map(|rest| rest.split("fn ").nth(1)?.split('(').next());
        defined.extend(names.map(str::to_owned));
    }
    assert_eq!(defined, declared, "`make -C crates/faces/capi header` writes the header");
}

/// No Rust symbols are visible, so two such libraries can be in one process.
#[test]
fn the_library_exports_these_functions_with_their_version_and_nothing_else() {
    if let Err(reason) = compilers() {
        return skipped(&reason);
    }
    let library = installed().join("lib/libpolyrail.so.0");
    let said = done(Command::new("nm").args(["--dynamic", "--defined-only"]).arg(&library));
    let exported: BTreeSet<String> =
        said.lines().filter_map(|line| line.split(' ').nth(2)).map(str::to_owned).collect();
    assert_eq!(exported, versioned());
    let said = done(Command::new("readelf").arg("--dynamic").arg(&library));
    assert!(said.contains("Library soname: [libpolyrail.so.0]"), "{said}");
}

#[test]
fn the_page_quotes_the_example_that_runs() {
    let page = read("../../../docs/c.md");
    let hello = read("examples/hello.c");
    let (_, program) = hello.split_once("#include \"example.h\"\n\n").unwrap();
    assert!(page.contains(&format!("```c\n{program}```")), "docs/c.md has another program");
    for entry in fs::read_dir(folder().join("examples")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            page.contains(&format!("crates/faces/capi/examples/{name}")),
            "docs/c.md has no {name}"
        );
    }
    // Each call that the page names exists.
    let words = page.split(|one: char| !one.is_alphanumeric() && one != '_');
    let header = read("include/polyrail.h");
    // A macro defines the functions that set sizes.
    let is_known = |word: &&str| header.contains(word.trim_end_matches("_init"));
    let unknown: Vec<_> =
        words.filter(|word| word.starts_with("polyrail_")).filter(|word| !is_known(word)).collect();
    assert!(unknown.is_empty(), "not in the header: {unknown:?}");
}
