//! Effects of other processes and of system limits on a program: a thread that can't be started does not end it, and an
//! endless line does not fill its memory.

use super::groups::{file, from_crate};
use super::writes::{is_production, without_tests};
use super::{assert_none, crates, read, rust_files};

/// End the program if `ulimit -u` or a control group allows no more threads.
const PANICS: &[&str] = &["thread::spawn(", "scope.spawn("];
/// Used by tests only.
const FAKE: &str = "gpu/src/fake.rs";
/// Reads lines of any length, unless the code limits them.
const READER: &str = "BufReader::new(";
/// Files that limit them.
const BOUNDED: &[&str] = &["cli/src/lines.rs"];

/// Places in the program's files that contain one of these texts, as `file:line`.
fn places(texts: &[&str], start: &str, allowed: &[&str]) -> Vec<String> {
    let mut places = Vec::new();
    for path in rust_files(&crates()).iter().filter(|path| is_production(path)) {
        let shown = from_crate(path);
        if !shown.starts_with(start) || allowed.contains(&shown) {
            continue;
        }
        let text = read(path);
        let lines = without_tests(&text);
        let found = lines.filter(|(_, line)| texts.iter().any(|text| line.contains(text)));
        places.extend(found.map(|(number, _)| format!("{shown}:{number}")));
    }
    places
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error_and_no_panic() {
    let places = places(PANICS, "", &[FAKE]);
    let advice = "use `thread::Builder`, whose `spawn` and `spawn_scoped` return the error";
    assert_none(places.into_iter().map(|place| format!("{place}: {advice}")).collect());
}

#[test]
fn lines_of_other_processes_are_read_with_a_bound() {
    let places = places(&[READER], "cli/", BOUNDED);
    let advice = "use `Lines` of crates/cli/src/lines.rs";
    assert_none(places.into_iter().map(|place| format!("{place}: {advice}")).collect());
    for name in BOUNDED {
        assert!(read(&file(name)).contains(READER), "{name} has none any more");
    }
}
