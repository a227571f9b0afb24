//! Finds files that production code opens for writing, creates, renames, removes or links without
//! `polyrail_sys::files`. Root may run that code in a folder where another user has planted a link.

use std::path::Path;

use super::groups::from_crate;
use super::{assert_none, crates, read, rust_files};

/// Calls of the standard library that follow a link planted by another user, on the way or at the end.
const CALLS: &[&str] = &[
    "DirBuilder::new",
    "File::create",
    "File::options",
    "OpenOptions::new",
    // Modes of opening: some sources may open files for reading only.
    ".append(true",
    ".create(true",
    ".create_new(true",
    ".write(true",
    "create_dir(",
    "create_dir_all(",
    "fs::copy(",
    "fs::rename(",
    "fs::set_permissions(",
    "fs::write(",
    "hard_link(",
    "remove_dir(",
    "remove_dir_all(",
    "remove_file(",
    " symlink(",
    "(symlink(",
    ":symlink(",
];

/// Files that may use some of them directly, with the reason.
const ALLOWED: &[(&str, &[&str], &str)] = &[
    (
        "host/src/sysroot/tree.rs",
        &["create_dir(", "fs::write(", " symlink("],
        "unpacks an archive into a temporary folder of this process alone",
    ),
    (
        "lab/src/holder.rs",
        &["fs::write("],
        "writes files of /proc, where only the kernel makes any",
    ),
    (
        "lab/src/named.rs",
        &["create_dir(", "File::create", "fs::write(", "remove_dir(", "remove_file("],
        "writes to /run/netns and to the registry, which only root may",
    ),
    (
        "lab/src/registry.rs",
        &[
            "DirBuilder::new",
            "File::options",
            "fs::set_permissions(",
            ".create(true",
            ".create_new(true",
            ".write(true",
            "remove_dir(",
            "remove_file(",
        ],
        "refuses a registry that others own or may write, and makes files that must be new",
    ),
    (
        "polyrail/src/control/secrets/host.rs",
        &[
            "DirBuilder::new",
            "OpenOptions::new",
            ".create_new(true",
            ".write(true",
            "hard_link(",
            "remove_file(",
        ],
        "refuses a folder that others own or may look into, and makes and removes files that must be new",
    ),
    (
        "tune/src/machine.rs",
        &["OpenOptions::new", ".write(true"],
        "writes files of /proc and /sys, where only the kernel makes any",
    ),
];

/// The module itself, and code for tests.
const LEFT_OUT: &[&str] =
    &["browser/", "host/src/fixtures", "skip/", "sys/src/files", "testkit-plugin/", "testkit/"];

#[test]
fn what_root_may_write_is_opened_by_one_module() {
    let mut faults = Vec::new();
    let mut used = Vec::new();
    for path in rust_files(&crates()).iter().filter(|path| is_production(path)) {
        let shown = from_crate(path).to_owned();
        let allowed = ALLOWED.iter().find(|(file, ..)| *file == shown);
        let text = read(path);
        for (number, line) in without_tests(&text) {
            for call in CALLS.iter().filter(|call| line.contains(**call)) {
                match allowed {
                    Some((_, calls, _)) if calls.contains(call) => used.push((shown.clone(), *call)),
                    _ => faults.push(format!(
                        "{shown}:{number}: `{call}` follows links that another user may have laid: use \
                         `polyrail_sys::files`, or say in {} why it can't happen",
                        file!()
                    )),
                }
            }
        }
    }
    for (file, calls, _) in ALLOWED {
        for call in calls.iter().filter(|call| !used.contains(&((*file).to_owned(), **call))) {
            faults.push(format!("{file} has no `{call}` any more: take it off the list"));
        }
    }
    assert_none(faults);
}

#[test]
fn tests_and_comments_are_left_out_of_the_search() {
    let text = "fn a() {\n    fs::write(x)\n}\n// fs::write(y)\n#[cfg(test)]\nmod tests {\n    fs::write(z)\n}\n";
    let lines: Vec<_> =
        without_tests(text).filter(|(_, line)| line.contains("fs::write(")).collect();
    assert_eq!(lines, [(2, "    fs::write(x)")]);
}

pub(super) fn is_production(path: &Path) -> bool {
    let shown = from_crate(path);
    let inner = Path::new(shown);
    let file = path.file_stem().unwrap().to_str().unwrap();
    let is_source = inner.iter().nth(1).is_some_and(|part| part == "src");
    let is_of_tests = file.ends_with("tests") || inner.iter().any(|part| part == "tests");
    is_source && !is_of_tests && !LEFT_OUT.iter().any(|start| shown.starts_with(start))
}

/// Numbered lines of a source without comments, up to the tests at its end.
pub(super) fn without_tests(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let ends = ["\nmod tests {", "\npub(crate) mod tests {"];
    let end = ends.iter().filter_map(|end| text.find(end)).min().unwrap_or(text.len());
    let lines = text[..end].lines().enumerate().map(|(at, line)| (at + 1, line));
    lines.filter(|(_, line)| !line.trim_start().starts_with("//"))
}
