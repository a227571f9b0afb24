//! Compares texts with the files of `tests/golden`, so that the wording is in one place and is read as a whole.

use std::path::Path;
use std::{env, fs};

/// Lines that a failing test prints of each text.
const SHOWN: usize = 10;
const ACCEPT: &str = "to accept the new text: POLYRAIL_GOLDEN=accept cargo test -p polyrail-cli, then read `git diff`";

/// Fails if `text` differs from `tests/golden/<name>.txt`. Callers mask the parts that differ between machines and
/// runs. `POLYRAIL_GOLDEN=accept` writes the file; `.cargo/runner` passes that on as `TEST_GOLDEN`, because the command
/// refuses variables of Polyrail that are not settings.
#[track_caller]
pub(crate) fn assert_golden(name: &str, text: &str) {
    let file = format!("tests/golden/{name}.txt");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(&file);
    if env::var_os("TEST_GOLDEN").is_some_and(|value| value == "accept") {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        return fs::write(&path, text).unwrap();
    }
    let wanted = match fs::read_to_string(&path) {
        Ok(wanted) => wanted,
        Err(error) => panic!("crates/cli/{file}: {error}; {ACCEPT}"),
    };
    if wanted == text {
        return;
    }
    let same = wanted.split('\n').zip(text.split('\n')).take_while(|(old, new)| old == new).count();
    let part = |text: &str, sign: &str| -> String {
        text.split('\n').skip(same).take(SHOWN).map(|line| format!("{sign} {line}\n")).collect()
    };
    panic!(
        "line {} of crates/cli/{file} differs:\n{}{}{ACCEPT}",
        same + 1,
        part(&wanted, "-"),
        part(text, "+"),
    );
}
