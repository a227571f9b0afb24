//! Output of a skip under the test harness: this program runs itself again to see it.

use std::process::{Command, Output};
use std::{env, fs};

use polyrail_skip::{FILE_VARIABLE, skip};

const ROLE: &str = "SKIP_TEST_ROLE";

/// Runs a test of this file, in the role of one that has to be skipped.
fn run_again(test: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test]).env_remove(FILE_VARIABLE).env_remove("CI");
    command.env(ROLE, "skip").envs(variables.iter().copied()).output().unwrap()
}

fn skip_to_be_seen() {
    println!("the harness keeps this");
    eprintln!("the harness keeps this, too");
    skip("it is to be seen", "nothing");
}

#[test]
fn the_harness_which_keeps_what_a_passing_test_prints_lets_a_skip_through() {
    if env::var_os(ROLE).is_some() {
        return skip_to_be_seen();
    }
    let test = "the_harness_which_keeps_what_a_passing_test_prints_lets_a_skip_through";
    let output = run_again(test, &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    assert!(!text.contains("keeps this"), "the harness hides nothing, so nothing is shown: {text}");
    let wanted = format!("SKIPPED seen {test}: it is to be seen; run: nothing\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), wanted);
}

#[test]
fn every_skip_adds_a_line_to_the_file_that_is_named() {
    if env::var_os(ROLE).is_some() {
        return skip_to_be_seen();
    }
    let test = "every_skip_adds_a_line_to_the_file_that_is_named";
    let path = env::temp_dir().join(format!("polyrail-skips-{}", std::process::id()));
    let variables = [(FILE_VARIABLE, path.to_str().unwrap())];
    for _ in 0..2 {
        assert!(run_again(test, &variables).status.success());
    }
    let text = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    assert_eq!(text, format!("SKIPPED seen {test}: it is to be seen; run: nothing\n").repeat(2));
    let nowhere = [(FILE_VARIABLE, "/proc/nowhere")];
    assert!(!run_again(test, &nowhere).status.success(), "a skip that can't be told is a failure");
}

#[test]
fn in_ci_a_skip_is_a_failure_that_says_why() {
    if env::var_os(ROLE).is_some() {
        return skip_to_be_seen();
    }
    let test = "in_ci_a_skip_is_a_failure_that_says_why";
    let output = run_again(test, &[("CI", "true")]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && text.contains("1 failed"), "{output:?}");
    assert!(text.contains("CI=true, where no test may be skipped: SKIPPED seen in_ci"), "{text}");
    assert!(run_again(test, &[("CI", "false")]).status.success());
}
