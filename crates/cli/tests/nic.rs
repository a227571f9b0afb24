//! `polyrail nic`: what it refuses. What it does to a driver is in the virtual machine test.

use std::process::Command;

use polyrail_host::fixtures;

/// Exit code, standard output, standard error.
fn outcome(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_polyrail")).args(args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_spread_that_can_not_be_read_is_refused_with_what_is_allowed() {
    for (spread, words) in [
        ("8", "is neither equal=NUMBER nor weights="),
        ("even=8", "is neither equal=NUMBER nor weights="),
        ("equal=x", "`x` is not such a number"),
        ("weights=1,,2", "`` is not such a number"),
    ] {
        let (code, stdout, stderr) = outcome(&["nic", "rss", "lo", spread]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{spread}");
        assert!(stderr.contains(words), "{stderr}");
    }
}

#[test]
fn an_interface_without_a_table_is_told_so() {
    let (code, _, stderr) = outcome(&["nic", "rss", "lo", "equal=2", "--dry-run"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("interface `lo`: its driver reports no RSS table"), "{stderr}");
    let (code, _, stderr) = outcome(&["nic", "rss", "lo"]);
    assert_eq!(code, 3);
    assert!(stderr.contains("RSS table of lo") && stderr.contains("not supported"), "{stderr}");
    let (code, _, stderr) = outcome(&["nic", "rss", "none0"]);
    assert_eq!(code, 2);
    let allowed = "does not exist in this network namespace; allowed: ";
    let names = stderr.split(allowed).nth(1).unwrap_or_else(|| panic!("{stderr}"));
    assert!(names.lines().next().unwrap().split(", ").any(|name| name == "lo"), "{stderr}");
    assert!(stderr.contains("help: "), "{stderr}");
}

#[test]
fn drivers_of_this_machine_do_not_answer_for_a_copy_of_another() {
    let fixture = fixtures::a3_high();
    let root = fixture.path().to_str().unwrap();
    for group in ["rss", "rings", "channels", "coalesce"] {
        let (code, stdout, stderr) = outcome(&["nic", group, "eth1", "--sysroot", root]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{group}");
        assert!(stderr.contains("only a running machine's drivers tell this"), "{stderr}");
    }
    let (code, _, stderr) = outcome(&["nic", "rss", "eth1", "equal=2", "--sysroot", root]);
    assert_eq!(code, 3);
    assert!(
        stderr.contains("a copy of /proc and /sys has neither drivers nor programs"),
        "{stderr}"
    );
}
