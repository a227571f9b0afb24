//! `polyrail nixl`, from the outside. Agents in crates/faces/capi/tests/c/nixl.rs try the installed backend.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use crate::common::golden::assert_golden;
use crate::common::{polyrail, refusal, refusals, repository, succeeded, write_program};

const PLUGIN: &str = "libplugin_POLYRAIL.so";
/// Text that every built backend contains.
const MARK: &[u8] = b"\0Polyrail's backend for NIXL\0";

/// The parts of a library that the command looks at: a header that points to a table of one section at the end.
fn library() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
    bytes.extend(MARK);
    bytes.resize(4096, 0);
    bytes[40..48].copy_from_slice(&4096u64.to_le_bytes());
    bytes[58] = 64;
    bytes[60] = 1;
    bytes.resize(4096 + 64, 0);
    bytes
}

fn nixl(arguments: &[&str]) -> Output {
    let mut command = polyrail(["nixl"]);
    command.args(arguments).env_remove("VIRTUAL_ENV").env_remove("NIXL_PLUGIN_DIR");
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A Python environment with a package of NIXL, and a built backend.
struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let scene = Self { folder: tempfile::tempdir().unwrap() };
        let packages = scene.packages();
        fs::create_dir_all(scene.plugins()).unwrap();
        for folder in ["nixl_cu12.libs", "nixl_cu12-1.5.1.dist-info", "nixl_cu12"] {
            fs::create_dir(packages.join(folder)).unwrap();
        }
        fs::write(scene.plugins().join("libplugin_UCX.so"), "ucx").unwrap();
        fs::write(packages.join(".nixl_cu12.mesonpy.libs/libnixl.so"), "nixl").unwrap();
        fs::write(packages.join("nixl_cu12.libs/libucp.so"), "ucp").unwrap();
        fs::write(scene.path("built.so"), library()).unwrap();
        scene
    }

    /// A scene with the backend in its environment and a folder for an interpreter.
    fn installed() -> Self {
        let scene = Self::new();
        nixl(&["install", &scene.text("env"), "--from", &scene.text("built.so")]);
        fs::create_dir_all(scene.path("env/bin")).unwrap();
        scene
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    fn packages(&self) -> PathBuf {
        self.path("env/lib/python3.11/site-packages")
    }

    fn plugins(&self) -> PathBuf {
        self.packages().join(".nixl_cu12.mesonpy.libs/plugins")
    }
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn the_backend_is_put_beside_the_others_and_taken_away_again() {
    let scene = Scene::new();
    let (environment, built) = (scene.text("env"), scene.text("built.so"));
    let before = files(&scene.plugins());
    for environment in [environment.as_str(), scene.packages().to_str().unwrap()] {
        // A second install replaces the first.
        for _ in 0..2 {
            let output = succeeded(nixl(&["install", environment, "--from", &built]));
            assert!(text(&output.stdout).contains("NIXL 1.5.1 finds it there"));
            assert_eq!(fs::read(scene.plugins().join(PLUGIN)).unwrap(), library());
        }
        succeeded(nixl(&["install", environment, "--undo"]));
        assert_eq!(files(&scene.plugins()), before);
        let again = nixl(&["install", environment, "--undo"]);
        assert_eq!(again.status.code(), Some(0));
        assert!(text(&again.stdout).starts_with("nothing to do: "));
    }
}

#[test]
fn a_folder_of_its_own_has_links_as_the_package_has_files_and_goes_whole() {
    let scene = Scene::new();
    let (environment, built) = (scene.text("env"), scene.text("built.so"));
    let folder = scene.text("own");
    for _ in 0..2 {
        let output =
            succeeded(nixl(&["install", &environment, "--folder", &folder, "--from", &built]));
        let told = text(&output.stdout);
        assert!(
            told.contains("export NIXL_PLUGIN_DIR='") && told.contains("/own/nixl/plugins'"),
            "{told}"
        );
    }
    let plugins = scene.path("own/nixl/plugins");
    assert_eq!(files(&plugins), [PLUGIN, "libplugin_UCX.so"]);
    // Libraries that a backend finds by $ORIGIN/.. and $ORIGIN/../../nixl_cu12.libs.
    assert_eq!(fs::read_to_string(plugins.join("libplugin_UCX.so")).unwrap(), "ucx");
    assert_eq!(fs::read_to_string(plugins.join("../libnixl.so")).unwrap(), "nixl");
    assert_eq!(fs::read_to_string(scene.path("own/nixl_cu12.libs/libucp.so")).unwrap(), "ucp");
    assert_eq!(files(&scene.plugins()), ["libplugin_UCX.so"], "the environment stays as it is");

    fs::write(plugins.join("mine.so"), "mine").unwrap();
    let output = nixl(&["install", "--undo", "--folder", &folder]);
    assert!(text(&output.stdout).contains("which has other files"), "{}", text(&output.stdout));
    assert_eq!(files(&plugins), ["mine.so"], "what somebody else has put there stays");
    fs::remove_dir_all(scene.path("own")).unwrap();
    nixl(&["install", &environment, "--folder", &folder, "--from", &built]);
    succeeded(nixl(&["install", "--undo", "--folder", &folder]));
    assert!(!scene.path("own").exists());
    assert_eq!(
        fs::read_to_string(scene.packages().join("nixl_cu12.libs/libucp.so")).unwrap(),
        "ucp"
    );
}

#[test]
fn only_links_that_install_made_are_removed() {
    let scene = Scene::new();
    let (environment, built, folder) =
        (scene.text("env"), scene.text("built.so"), scene.text("own"));
    let install = ["install", &environment, "--folder", &folder, "--from", &built];
    assert_eq!(nixl(&install).status.code(), Some(0));
    let plugins = scene.path("own/nixl/plugins");
    symlink("/dev/null", plugins.join("mine.so")).unwrap();
    // A file with the name of a link stays, too.
    fs::remove_file(plugins.join("libplugin_UCX.so")).unwrap();
    fs::write(plugins.join("libplugin_UCX.so"), "mine").unwrap();
    let error = refusal(2, &nixl(&install));
    assert!(error.contains("it is there, and no link"), "{error}");
    succeeded(nixl(&["install", "--undo", "--folder", &folder]));
    assert_eq!(files(&plugins), ["libplugin_UCX.so", "mine.so"]);
    assert!(!scene.path("own/nixl/libnixl.so").is_symlink());
}

#[test]
fn root_removes_nothing_by_a_folder_that_another_user_laid() {
    if !rustix::process::geteuid().is_root() {
        return polyrail_skip::skip(
            "needs root",
            "sudo cargo test -p polyrail-cli --test plain nixl::",
        );
    }
    let scene = Scene::new();
    let (victim, laid) = (scene.path("victim"), scene.path("laid"));
    fs::create_dir_all(&victim).unwrap();
    fs::create_dir_all(laid.join("nixl")).unwrap();
    for name in ["localtime", "libplugin_UCX.so"] {
        symlink("/dev/null", victim.join(name)).unwrap();
    }
    let marker = laid.join(".made-by-polyrail-nixl");
    fs::write(&marker, "nixl/plugins/localtime\nnixl/plugins/libplugin_UCX.so\n").unwrap();
    symlink(&victim, laid.join("nixl/plugins")).unwrap();
    let uninstall = || nixl(&["install", "--undo", "--folder", laid.to_str().unwrap()]);
    // Links are not followed; this one was made by root.
    assert_ne!(uninstall().status.code(), Some(0));
    assert_eq!(files(&victim).len(), 2);
    fs::remove_file(laid.join("nixl/plugins")).unwrap();
    fs::rename(&victim, laid.join("nixl/plugins")).unwrap();
    for theirs in [&marker, &laid.join("nixl"), &laid] {
        let give = |user| std::os::unix::fs::chown(theirs, Some(user), Some(user)).unwrap();
        give(65534);
        let error = refusal(2, &uninstall());
        assert!(error.contains("belongs to user 65534"), "{error}");
        assert_eq!(files(&laid.join("nixl/plugins")).len(), 2);
        give(0);
    }
    assert_eq!(uninstall().status.code(), Some(0));
    assert!(!laid.exists());
}

#[test]
fn what_is_not_the_backend_is_neither_installed_nor_removed() {
    let scene = Scene::new();
    fs::write(scene.path("other.so"), "another backend").unwrap();
    fs::create_dir(scene.path("full")).unwrap();
    fs::write(scene.path("full/file"), "").unwrap();
    fs::create_dir(scene.path("empty")).unwrap();
    let here = |words: &[&str]| {
        let mut command = polyrail(["nixl", "install"]);
        command.args(words).env_remove("VIRTUAL_ENV").env_remove("NIXL_PLUGIN_DIR");
        command.current_dir(&scene.folder).output().unwrap()
    };
    let mut said = refusals(
        2,
        here,
        &[
            &["env", "--from", "other.so"],
            &["empty", "--from", "built.so"],
            &["--from", "built.so"],
            &["env", "--folder", "full", "--from", "built.so"],
            &["--undo", "--folder", "full"],
        ],
    );
    let installed = scene.plugins().join(PLUGIN);
    fs::write(&installed, "somebody else's").unwrap();
    said += &refusals(2, here, &[&["env", "--from", "built.so"], &["env", "--undo"]]);
    assert_eq!(fs::read_to_string(&installed).unwrap(), "somebody else's");
    assert_golden("nixl/refused", &said);
}

/// Runs the check `nixl-backend` of `polyrail doctor` with this environment active.
fn check(environment: &str) -> Value {
    let mut command = polyrail(["doctor", "--json"]);
    command.env("VIRTUAL_ENV", environment).env_remove("NIXL_PLUGIN_DIR");
    let report: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["id"] == "nixl-backend").unwrap().clone()
}

/// The finding of the check, with its evidence and commands, as text.
fn finding(environment: &str) -> String {
    let check = check(environment);
    assert_eq!(check["status"], "finding", "{check:#}");
    check["findings"][0].to_string()
}

/// Returns the reason why the backend can't be tried.
fn unknown(environment: &str) -> String {
    let check = check(environment);
    assert_eq!(check["status"], "unknown", "{check:#}");
    check["unknown"][0].as_str().unwrap().to_owned()
}

#[test]
fn a_check_tells_what_is_missing() {
    let scene = Scene::new();
    let environment = scene.text("env");
    let without = check(&environment);
    assert_eq!(without["status"], "not_applicable");
    assert!(without.to_string().contains("libplugin_POLYRAIL.so is not there"), "{without}");
    nixl(&["install", &environment, "--from", &scene.text("built.so")]);
    assert!(unknown(&environment).contains("no environment with bin/python"));
    // The check reports everything that goes wrong in the agent's process.
    fs::create_dir_all(scene.path("env/bin")).unwrap();
    symlink("/bin/false", scene.path("env/bin/python")).unwrap();
    let found = finding(&environment);
    assert!(found.contains("an agent with the backend POLYRAIL fails"), "{found}");
    assert!(found.contains("with exit code 1, and said nothing"), "{found}");
}

#[test]
fn the_agent_of_a_check_takes_no_module_of_the_current_folder() {
    let scene = Scene::installed();
    let environment = scene.text("env");
    let (python, seen) = (scene.path("env/bin/python"), scene.path("seen"));
    write_program(&python, &format!("#!/bin/sh\npwd > {}\n", seen.display()));
    finding(&environment);
    assert_eq!(fs::read_to_string(&seen).unwrap(), "/\n");
}

/// Root runs no code that others can change; other users run the environment's.
#[test]
fn an_agent_of_root_is_not_run_where_others_can_change_its_code() {
    let scene = Scene::installed();
    let environment = scene.text("env");
    let (python, arguments) = (scene.path("env/bin/python"), scene.path("arguments"));
    let said =
        format!("#!/bin/sh\necho $1 > {}\necho polyrail-nixl-check: done\n", arguments.display());
    write_program(&python, &said);
    let is_root = polyrail_sys::files::is_privileged();
    let places = [python, scene.packages(), scene.packages().join("nixl_cu12"), scene.plugins()];
    for place in places {
        let mode = fs::metadata(&place).unwrap().permissions();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o777)).unwrap();
        match is_root {
            true => {
                let why = unknown(&environment);
                assert!(why.contains("bin/python is not run: "), "{why}");
                assert!(why.contains("lets others change it"), "{why}");
                assert!(!arguments.exists(), "{} was run", place.display());
            }
            false => assert_eq!(check(&environment)["status"], "clean", "{}", place.display()),
        }
        fs::set_permissions(&place, mode).unwrap();
    }
    assert_eq!(check(&environment)["status"], "clean");
    let first = fs::read_to_string(&arguments).unwrap();
    assert_eq!(first, if is_root { "-I\n" } else { "-c\n" });
}

#[test]
fn a_check_tells_that_an_agent_has_moved_memory() {
    let scene = Scene::installed();
    let environment = scene.text("env");
    let said = "#!/bin/sh\necho polyrail-nixl-check: done\n";
    write_program(&scene.path("env/bin/python"), said);
    let check = check(&environment);
    assert_eq!(check["status"], "clean", "{check:#}");
    assert!(check["evidence"].to_string().contains("1.5.1"), "{check:#}");
}

/// Standard error of a refused command, which has a fix.
fn refused(words: &[&str], code: i32) -> String {
    let error = refusal(code, &nixl(words));
    assert!(error.contains("\nhelp: "), "{words:?}: {error}");
    error
}

#[test]
fn a_damaged_backend_is_told_as_such_with_the_way_to_a_good_one() {
    let scene = Scene::new();
    let (environment, good, bad) =
        (scene.text("env"), scene.text("built.so"), scene.text("bad.so"));
    let installed = scene.plugins().join(PLUGIN);
    let removal = format!("rm '{}'", installed.display());
    let remedy = format!("remove it (rm '{}'), and then install a good one", installed.display());
    let cut = &library()[..4000];
    let before_the_mark = &library()[..64];
    let damages: [(&[u8], &str, bool); 4] = [
        (cut, "is damaged: it is cut off: it has 4000 of at least 4160 bytes", true),
        (
            before_the_mark,
            "or it is damaged: it is cut off: it has 64 of at least 4160 bytes",
            false,
        ),
        (
            b"garbage",
            "or it is damaged: it does not begin as a library (ELF of 64 bits) does",
            false,
        ),
        (b"", "or it is damaged: it is empty", false),
    ];
    for (bytes, said, is_ours) in damages {
        fs::write(&bad, bytes).unwrap();
        let source = refused(&["install", &environment, "--from", &bad], 2);
        assert!(source.contains(said) && source.contains("make -C integrations/nixl"), "{source}");
        assert!(!installed.exists(), "what is damaged is not installed");

        fs::write(&installed, bytes).unwrap();
        let check = finding(&environment);
        assert!(check.contains(said) && check.contains(&removal), "{check}");
        if !is_ours {
            let install = refused(&["install", &environment, "--from", &good], 2);
            assert!(install.contains(said) && install.contains(&remedy), "{install}");
            fs::remove_file(&installed).unwrap();
        }
        // The advice leads to a working backend.
        succeeded(nixl(&["install", &environment, "--from", &good]));
        fs::remove_file(&installed).unwrap();
    }
}

#[test]
fn a_check_names_the_signal_that_ended_the_agent_and_says_what_that_means() {
    let scene = Scene::installed();
    let environment = scene.text("env");
    let python = scene.path("env/bin/python");
    let check = |script: &str| {
        write_program(&python, script);
        finding(&environment)
    };
    let damaged = check("#!/bin/sh\nkill -BUS $$\n");
    assert!(damaged.contains("by signal 7 (bus error), and said nothing"), "{damaged}");
    assert!(damaged.contains("rm '"), "{damaged}");
    let killed = check("#!/bin/sh\necho why >&2\nkill -KILL $$\n");
    assert!(killed.contains("by signal 9 (killed)") && killed.contains("why"), "{killed}");
    assert!(!killed.contains("rm '"), "{killed}");
}

#[test]
fn an_interpreter_that_this_user_cannot_execute_is_told_as_that() {
    let scene = Scene::installed();
    let environment = scene.text("env");
    let python = scene.path("env/bin/python");
    fs::write(&python, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&python, fs::Permissions::from_mode(0o644)).unwrap();
    let denied = unknown(&environment);
    assert!(denied.contains("Permission denied"), "{denied}");
    assert!(denied.contains("give this user the right to execute it"), "{denied}");
    // As in a virtual environment whose interpreter was removed, or is where this user can't see it.
    fs::remove_file(&python).unwrap();
    symlink(scene.path("gone"), &python).unwrap();
    let gone = unknown(&environment);
    assert!(gone.contains("bin/python: No such file"), "{gone}");
    assert!(gone.contains("make the environment again"), "{gone}");
}

#[test]
fn the_text_that_tells_a_backend_is_in_its_source() {
    let source = repository().join("integrations/nixl/src/plugin.cpp");
    let mark = str::from_utf8(MARK).unwrap().trim_matches('\0');
    assert!(fs::read_to_string(source).unwrap().contains(mark));
}
