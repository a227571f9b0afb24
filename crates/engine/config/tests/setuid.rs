//! A program with the set-user-ID bit does not obey its caller's environment.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::Command;

use polyrail_config::ConfigBuilder;

/// Variable set in the programs that this test starts.
const IS_CHILD: &str = "TEST_IS_CHILD";
const NAME: &str = "a_setuid_program_obeys_no_variable_and_no_file_below_home";
/// User ID of an unprivileged user.
const CALLER: u32 = 65534;

#[test]
fn a_setuid_program_obeys_no_variable_and_no_file_below_home() {
    if std::env::var_os(IS_CHILD).is_some() {
        let config = ConfigBuilder::default().env().build().unwrap();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let users = status.lines().find(|line| line.starts_with("Uid:")).unwrap();
        let warnings = config.warnings().join("\n");
        println!("{users}\n{} {}\n{warnings}", config.log_file, config.rails);
        return;
    }
    let run = "sudo -E cargo test -p polyrail-config --test setuid";
    let folder = tempfile::tempdir().unwrap();
    if fs::metadata(folder.path()).unwrap().uid() != 0 {
        return polyrail_skip::skip("needs root, who may set the bit", run);
    }
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let of_home = folder.path().join(".config/polyrail");
    fs::create_dir_all(&of_home).unwrap();
    fs::write(of_home.join("config.yml"), "rails: by-home\n").unwrap();
    let program = folder.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let said_with = |mode: u32| {
        fs::set_permissions(&program, Permissions::from_mode(mode)).unwrap();
        let mut command = Command::new(&program);
        command.args(["--exact", NAME, "--nocapture"]).current_dir("/");
        command.env_remove("XDG_CONFIG_HOME").env_remove("POLYRAIL_CONFIG");
        command.env("HOME", folder.path()).env("POLYRAIL_LOG_FILE", "/by/variable");
        let ran = command.env(IS_CHILD, "1").uid(CALLER).gid(CALLER).output().unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let said = said_with(0o755);
    assert!(said.contains("/by/variable by-home"), "a program without the bit: {said}");
    assert!(!said.contains("AT_SECURE"), "{said}");
    let said = said_with(0o4755);
    if !said.contains(&format!("Uid:\t{CALLER}\t0\t")) {
        return polyrail_skip::skip("the folder of temporary files is mounted nosuid", run);
    }
    assert!(!said.contains("/by/variable") && !said.contains("by-home"), "{said}");
    assert_eq!(said.matches("AT_SECURE").count(), 1, "{said}");
}
