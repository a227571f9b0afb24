//! The commands with which a user makes and replaces a secret, taken from the page on security.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::common::PROGRAM;

/// Commands of the page in order, without those that need a second host.
fn documented() -> Vec<&'static str> {
    let page = include_str!("../../../../docs/security.md");
    let (_, section) = page.split_once("### To replace a secret\n").unwrap();
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```\n").unwrap();
    let lines = block.lines().filter(|line| !line.starts_with('#') && !line.starts_with("scp "));
    lines.collect()
}

/// Runs a line in a folder, in a shell whose umask lets others read new files.
fn run(folder: &Path, line: &str) {
    let program = Path::new(PROGRAM).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let script = format!("umask 022; {line}");
    let output = Command::new("bash")
        .args(["-euc", &script])
        .current_dir(folder)
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn the_documented_commands_replace_a_secret_and_show_it_to_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    let lines = || -> Vec<String> {
        let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "a copy is left");
        fs::read_to_string(&file).unwrap().lines().map(str::to_owned).collect()
    };
    run(folder.path(), "polyrail secret new secret");
    let old = lines();
    let [add, swap, remove] = documented().try_into().unwrap();
    run(folder.path(), add);
    let both = lines();
    assert_eq!((both.len(), &both[0]), (2, &old[0]));
    run(folder.path(), swap);
    assert_eq!(lines(), [both[1].clone(), both[0].clone()]);
    run(folder.path(), remove);
    assert_eq!(lines(), [both[1].clone()]);
}

#[test]
fn a_file_in_the_place_of_the_command_is_told_the_command() {
    let output = Command::new(PROGRAM).args(["secret", "my.secret"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("help: write `polyrail secret new my.secret` to make"), "{said}");
}
