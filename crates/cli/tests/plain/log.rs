//! Log settings that can't be followed: the command ends before it does anything.

use crate::common::polyrail;

fn refused(settings: &[&str]) -> (Option<i32>, String) {
    let mut command = polyrail(["bench", "--sizes", "8", "--time", "20ms"]);
    for setting in settings {
        command.args(["--set", setting]);
    }
    let output = command.output().unwrap();
    assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn settings_of_the_log_that_cannot_be_followed_are_named_with_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    let cases: [(&[&str], i32, &str); 6] = [
        (&[&format!("log_file={folder}")], 2, "is a folder; allowed: a file"),
        (&[&format!("log_file={folder}/none/log")], 2, "can't be opened for writing: No such file"),
        (&["log_file=/proc/sys/kernel/osrelease"], 3, "can't be opened for writing: Permission"),
        (&["log_file=/tmp/%x"], 2, "has the unknown mark `%x`"),
        (&["log_subsystems=peer,pear"], 2, "has the unknown subsystem `pear`"),
        (&["log_format=xml"], 2, "xml"),
    ];
    for (settings, code, says) in cases {
        let (status, told) = refused(settings);
        let (name, value) = settings[0].split_once('=').unwrap();
        assert_eq!(status, Some(code), "{told}");
        let is_named = told.contains(&format!("{name} = `{value}`")) || told.contains(settings[0]);
        assert!(is_named && told.contains(says), "{told}");
        assert!(told.contains("allowed") || told.contains("\nhelp: "), "{told}");
    }
}
