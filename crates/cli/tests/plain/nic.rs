//! Refusals of `polyrail host` with settings of interfaces. The virtual machine test covers changes of a driver.

use polyrail_host::fixtures;

use crate::common::outcome;

#[test]
fn a_spread_that_can_not_be_read_is_refused_with_what_is_allowed() {
    for (spread, words) in [
        ("8", "is neither equal=NUMBER nor weights="),
        ("even=8", "is neither equal=NUMBER nor weights="),
        ("equal=x", "`x` is not such a number"),
        ("weights=1,,2", "`` is not such a number"),
    ] {
        let (code, stdout, stderr) = outcome(&["host", "plan", "rss", "lo", spread]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{spread}");
        assert!(stderr.contains(words), "{stderr}");
    }
}

/// Control characters in a value must not reach the terminal.
#[test]
fn a_profile_beside_a_file_is_shown_without_its_control_characters() {
    let name = "x\u{1b}]0;y\u{7}";
    let (code, _, stderr) = outcome(&["host", "plan", "tune", name, "--profile-file", "/dev/null"]);
    assert_eq!(code, 2);
    let told = "--profile-file: cannot be used with `x\\u001b]0;y\\u0007`; allowed: ";
    assert!(stderr.contains(told), "{stderr}");
}

#[test]
fn an_interface_without_a_table_is_told_so() {
    let (code, _, stderr) = outcome(&["host", "apply", "rss", "lo", "equal=2", "--dry-run"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("interface `lo`: its driver reports no RSS table"), "{stderr}");
    let (code, _, stderr) = outcome(&["host", "show", "rss", "lo"]);
    assert_eq!(code, 3);
    assert!(stderr.contains("RSS table of lo") && stderr.contains("not supported"), "{stderr}");
    assert!(stderr.contains("\nhelp: "), "{stderr}");
    let (code, _, stderr) = outcome(&["host", "show", "rss", "none0"]);
    assert_eq!(code, 2);
    let allowed = "does not exist in this network namespace; allowed: ";
    let names = stderr.split(allowed).nth(1).unwrap_or_else(|| panic!("{stderr}"));
    assert!(names.lines().next().unwrap().split(", ").any(|name| name == "lo"), "{stderr}");
    assert!(stderr.contains("help: "), "{stderr}");
}

/// In a lab, /sys shows the interfaces of the host, whose drivers do not answer there.
#[test]
fn interfaces_of_another_network_namespace_are_not_allowed() {
    if !rustix::process::geteuid().is_root() {
        return polyrail_skip::skip(
            "needs root",
            "sudo cargo test -p polyrail-cli --test plain nic::",
        );
    }
    let inside = |nic: &str| {
        let mut command = std::process::Command::new("unshare");
        command.args(["--net", env!("CARGO_BIN_EXE_polyrail")]);
        let output = command.args(["host", "plan", "rings", nic, "rx=64"]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let told = inside("none0");
    let allowed = "interface `none0`: does not exist in this network namespace; allowed: ";
    let names = told.split(allowed).nth(1).unwrap_or_else(|| panic!("{told}"));
    for name in names.lines().next().unwrap().split(", ") {
        assert!(inside(name).contains(&format!("{name} has no such setting")), "{name}");
    }
}

#[test]
fn drivers_of_this_machine_do_not_answer_for_a_copy_of_another() {
    let fixture = fixtures::a3_high();
    let root = fixture.path().to_str().unwrap();
    for group in ["rss", "rings", "channels", "coalesce", "counters"] {
        let (code, stdout, stderr) = outcome(&["host", "show", group, "eth1", "--sysroot", root]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{group}");
        assert!(stderr.contains("only a running machine's drivers tell this"), "{stderr}");
    }
    let (code, _, stderr) = outcome(&["host", "plan", "rss", "eth1", "equal=2", "--sysroot", root]);
    assert_eq!(code, 3);
    assert!(
        stderr.contains("a copy of /proc and /sys has neither drivers nor programs"),
        "{stderr}"
    );
    assert!(stderr.contains("\nhelp: run it on that machine, without --sysroot\n"), "{stderr}");
}
