//! `polyrail nccl`, from the outside.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use polyrail_host::{Sysroot, Topology};
use serde_json::Value;

use crate::common::golden::assert_golden;
use crate::common::{PROGRAM, polyrail, refusals, succeeded};
use crate::nccl_try;

fn nccl(arguments: &[&str]) -> Output {
    polyrail(["nccl"]).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Bytes that look like a plugin from the outside, with `text` to tell files apart.
fn plugin(text: &str) -> String {
    format!("{:\0<64}ncclNetPlugin_v8 {text}", "\x7fELF\x02\x01")
}

#[test]
fn a_file_that_is_no_plugin_is_not_installed() {
    let folder = tempfile::tempdir().unwrap();
    let here = |words: &[&str]| {
        let mut command = polyrail(["nccl", "install"]);
        command.args(words).current_dir(&folder).output().unwrap()
    };
    let mut said = String::new();
    for content in ["root:x:0:0::/root:/bin/sh", "", &plugin("")[..64]] {
        fs::write(folder.path().join("from.so"), content).unwrap();
        said += &refusals(2, here, &[&["goal", "--from", "from.so"]]);
        assert!(!folder.path().join("goal").exists());
    }
    said += &refusals(2, here, &[&["from.so", "--from", "from.so"]]);
    assert_golden("nccl/no_plugin", &said);
}

/// Runs `eval` on the output of `nccl env` with these options, and prints a setting if that succeeds.
fn eval(options: &str, folder: &Path) -> Output {
    let script =
        format!("eval \"$('{PROGRAM}' nccl env {options})\" && echo set $NCCL_MIN_NCHANNELS");
    Command::new("sh").args(["-c", &script]).current_dir(folder).output().unwrap()
}

#[test]
fn a_shell_that_evaluates_the_settings_fails_where_they_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("empty")).unwrap();
    for options in ["--folder nonexistent", "--folder empty", "--gpus none", "--foldr ."] {
        let output = eval(options, folder);
        assert_eq!(output.status.code(), Some(1), "{options}: {output:?}");
        assert!(output.stdout.is_empty(), "{options}: {output:?}");
        let told = text(&output.stderr);
        assert!(told.starts_with("polyrail: ") && told.contains("\nhelp: "), "{options}: {told}");
    }
    let conf = nccl(&["env", "--conf", "--folder", "nonexistent"]);
    assert!(conf.stdout.is_empty(), "NCCL's file has no commands: {conf:?}");
    fs::write(folder.join("libnccl-net-polyrail.so"), plugin("")).unwrap();
    let output = eval("--folder . --gpus 8", folder);
    assert_eq!((output.status.code(), &*text(&output.stdout)), (Some(0), "set 8\n"));
}

/// Runs the check `nccl-plugin` of `polyrail doctor` with these variables.
fn check(variables: &[(&str, &str)]) -> Value {
    let mut command = polyrail(["doctor", "--json"]);
    command
        .env_remove("NCCL_NET_PLUGIN")
        .env_remove("LD_LIBRARY_PATH")
        .envs(variables.iter().copied());
    let report: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    checks.iter().find(|check| check["id"] == "nccl-plugin").unwrap().clone()
}

#[test]
fn the_doctor_finds_a_plugin_that_is_named_and_not_there() {
    let missing = check(&[("NCCL_NET_PLUGIN", "not-installed")]);
    assert_eq!(missing["status"], "finding", "{missing:#}");
    let found = missing["findings"][0].to_string();
    assert!(found.contains("not-installed") && found.contains("polyrail nccl install"), "{found}");
    let none = check(&[("NCCL_NET_PLUGIN", "none")]);
    assert_eq!(none["status"], "not_applicable", "{none:#}");
}

#[test]
fn the_doctor_loads_the_plugin_and_tells_its_devices() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().to_str().unwrap();
    let works = check(&[("NCCL_NET_PLUGIN", nccl_try::plugin())]);
    assert_eq!(works["status"], "clean", "{works:#}");
    let evidence = works["evidence"].to_string();
    assert!(evidence.contains("tables v5, v6") && evidence.contains("device test1"), "{evidence}");
    // The plugin's process may end in any way.
    let plugin = ("NCCL_NET_PLUGIN", nccl_try::plugin());
    for (told, what) in [("init=3", "init"), ("devices=none", "NCCL finds no device")] {
        let fails = check(&[plugin, ("TEST_PLUGIN", told)]);
        assert_eq!(fails["status"], "finding", "{fails:#}");
        assert!(fails["findings"][0]["what"].as_str().unwrap().contains(what), "{fails:#}");
    }
    // The loader does not search the folder of an installation.
    let lib = folder.path().join(".local/lib");
    fs::create_dir_all(&lib).unwrap();
    fs::copy(nccl_try::plugin(), lib.join("libnccl-net-polyrail.so")).unwrap();
    let hidden = check(&[("HOME", home)]);
    assert_eq!(hidden["status"], "finding", "{hidden:#}");
    let found = hidden["findings"][0].to_string();
    assert!(found.contains("LD_LIBRARY_PATH lacks its folder"), "{found}");
    assert!(found.contains("polyrail nccl env --folder"), "{found}");
    let seen = check(&[("HOME", home), ("LD_LIBRARY_PATH", lib.to_str().unwrap())]);
    assert_eq!(seen["status"], "clean", "{seen:#}");
}

/// Root loads nothing that others can change; other users load the plugin that NCCL loads.
#[test]
fn the_doctor_of_root_loads_no_plugin_of_a_folder_that_others_can_change() {
    let folder = tempfile::tempdir().unwrap();
    let library = folder.path().join("libnccl-net-polyrail.so");
    fs::copy(nccl_try::plugin(), &library).unwrap();
    let path = [("LD_LIBRARY_PATH", folder.path().to_str().unwrap())];
    assert_eq!(check(&path)["status"], "clean");
    let is_root = polyrail_sys::files::is_privileged();
    for place in [&library, folder.path()] {
        let mode = fs::metadata(place).unwrap().permissions();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(place, open).unwrap();
        let check = check(&path);
        fs::set_permissions(place, mode).unwrap();
        if is_root {
            assert_eq!(check["status"], "unknown", "{check:#}");
            let why = check["unknown"][0].as_str().unwrap();
            assert!(
                why.contains(place.to_str().unwrap()) && why.contains("others change it"),
                "{why}"
            );
        } else {
            assert_eq!(check["status"], "clean", "{check:#}");
        }
    }
}

#[test]
fn what_is_installed_has_both_names_and_replaces_what_was_there() {
    let folder = tempfile::tempdir().unwrap();
    let built = folder.path().join("built.so");
    let installed = folder.path().join("opt/new");
    let path = installed.to_str().unwrap();
    for content in ["first", "second"] {
        let content = plugin(content);
        fs::write(&built, &content).unwrap();
        succeeded(nccl(&["install", path, "--from", built.to_str().unwrap()]));
        for name in ["libnccl-net-polyrail.so", "librccl-net-polyrail.so"] {
            assert_eq!(fs::read_to_string(installed.join(name)).unwrap(), content);
        }
    }
    let env = nccl(&["env", "--folder", path]);
    assert!(text(&env.stdout).contains("export NCCL_NET_PLUGIN=polyrail\n"));
    let conf = nccl(&["env", "--conf", "--folder", path]);
    let folder = fs::canonicalize(path).unwrap();
    let library = folder.join("libnccl-net-polyrail.so").display().to_string();
    let line = format!("\nNCCL_NET_PLUGIN={library}\n");
    assert!(text(&conf.stdout).contains(&line), "{}", text(&conf.stdout));
    let none = nccl(&["env", "--folder", "/"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("`/`: holds no libnccl-net-polyrail.so; allowed: "));
}

#[test]
fn root_leaves_no_library_that_another_user_can_change() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !rustix::process::geteuid().is_root() {
        return polyrail_skip::skip(
            "needs root",
            "sudo cargo test -p polyrail-cli --test plain nccl::",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let (built, goal) = (folder.path().join("built.so"), folder.path().join("goal"));
    fs::write(&built, plugin("")).unwrap();
    fs::create_dir(&goal).unwrap();
    fs::set_permissions(&goal, fs::Permissions::from_mode(0o1777)).unwrap();
    let library = goal.join("libnccl-net-polyrail.so");
    fs::write(&library, "theirs").unwrap();
    fs::set_permissions(&library, fs::Permissions::from_mode(0o777)).unwrap();
    chown(&library, Some(65534), Some(65534)).unwrap();
    let install = || nccl(&["install", goal.to_str().unwrap(), "--from", built.to_str().unwrap()]);
    let output = install();
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("belongs to user 65534"), "{}", text(&output.stderr));
    chown(&library, Some(0), Some(0)).unwrap();
    assert_eq!(install().status.code(), Some(0));
    assert_eq!(fs::metadata(&library).unwrap().permissions().mode() & 0o777, 0o755);
    // The second name is a link, which replaces only a link.
    let second = goal.join("librccl-net-polyrail.so");
    fs::remove_file(&second).unwrap();
    fs::write(&second, "a file").unwrap();
    let output = install();
    assert!(text(&output.stderr).contains("it is there, and no link"), "{}", text(&output.stderr));
    assert_eq!(fs::read_to_string(&second).unwrap(), "a file");
}

/// As after `cargo install`: the program is in one folder, the library in another.
#[test]
fn a_library_apart_from_the_program_is_found_or_the_places_are_told() {
    let root = tempfile::tempdir().unwrap();
    let [bin, home, work, other] =
        ["bin", "home", "work", "other"].map(|name| root.path().join(name));
    let [lib, target] = [home.join(".local/lib"), work.join("target/release")];
    for folder in [&bin, &lib, &target, &other] {
        fs::create_dir_all(folder).unwrap();
    }
    let program = bin.join("polyrail");
    // Another process copies: children that other tests start meanwhile would inherit a file that is open here, and a
    // program that a process has open for writing can't be run.
    let copied = Command::new("cp").arg(PROGRAM).arg(&program).status();
    assert!(copied.unwrap().success());
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command.arg("nccl").args(arguments).current_dir(&work).env("HOME", &home);
        command.env_remove("CARGO_TARGET_DIR");
        command.env("LD_LIBRARY_PATH", &other).output().unwrap()
    };
    let goal = root.path().join("goal");
    let goal = goal.to_str().unwrap();

    let refused = run(&["install", goal]);
    assert_eq!(refused.status.code(), Some(2));
    let error = text(&refused.stderr);
    assert!(error.starts_with("polyrail: there is no libnccl_net_polyrail.so in "), "{error}");
    let lib_beside = root.path().join("lib");
    for sought in [&bin, &lib_beside, &lib, &other] {
        assert!(error.contains(sought.to_str().unwrap()), "{sought:?}: {error}");
    }
    let mut doctor = Command::new(&program);
    doctor.args(["doctor", "--json"]).env("HOME", &home).env_remove("NCCL_NET_PLUGIN");
    let mut doctor = || text(&doctor.output().unwrap().stdout);
    let absent = doctor();
    for sought in [&bin, &lib_beside, &lib] {
        assert!(absent.contains(sought.to_str().unwrap()), "{sought:?}: {absent}");
    }
    // `cargo install` leaves the library where it was built.
    fs::write(target.join("libnccl_net_polyrail.so"), plugin("repository")).unwrap();
    fs::write(work.join("Cargo.lock"), "").unwrap();
    let deep = work.join("crates/cli");
    fs::create_dir_all(&deep).unwrap();
    let elsewhere = root.path().join("elsewhere");
    for (folder, target_dir) in [(&deep, None), (&other, Some(work.join("target")))] {
        let mut command = Command::new(&program);
        command.args(["nccl", "install", elsewhere.to_str().unwrap()]).current_dir(folder);
        command.env("HOME", &home).env_remove("LD_LIBRARY_PATH").env_remove("CARGO_TARGET_DIR");
        let output = command.envs(target_dir.map(|dir| ("CARGO_TARGET_DIR", dir))).output();
        succeeded(output.unwrap());
        let installed = elsewhere.join("libnccl-net-polyrail.so");
        assert_eq!(fs::read_to_string(&installed).unwrap(), plugin("repository"));
        fs::remove_dir_all(&elsewhere).unwrap();
    }
    for (folder, content) in [(&target, "repository"), (&other, "path"), (&lib, "home")] {
        let content = plugin(content);
        fs::write(folder.join("libnccl_net_polyrail.so"), &content).unwrap();
        succeeded(run(&["install", goal]));
        let installed = fs::read_to_string(format!("{goal}/libnccl-net-polyrail.so"));
        assert_eq!(installed.unwrap(), content);
    }

    for words in [&["env"][..], &["env", "--conf"]] {
        let output = run(words);
        let (printed, error) = (text(&output.stdout), text(&output.stderr));
        assert!(printed.contains("NCCL_NET=Polyrail") && !printed.contains("LD_LIBRARY_PATH="));
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(error.contains("no plugin is installed here: ") && error.contains("\nhelp: "));
        assert!(error.contains("polyrail nccl install"), "{error}");
    }
    assert_eq!(run(&["install", lib.to_str().unwrap()]).status.code(), Some(0));
    let exported =
        format!("export LD_LIBRARY_PATH='{}'", fs::canonicalize(&lib).unwrap().display());
    let output = run(&["env"]);
    assert!(text(&output.stdout).starts_with(&exported) && output.status.success());
    // A library that others can change is not handed to NCCL.
    let mode = |mode| {
        let library = lib.join("libnccl-net-polyrail.so");
        fs::set_permissions(library, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    };
    mode(0o666);
    for words in [&["env"][..], &["env", "--conf"]] {
        let output = run(words);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains("is not used: "), "{error}");
        let for_shell = if words == ["env"] { "false\n" } else { "" };
        assert_eq!(text(&output.stdout), for_shell);
    }
    let refused = doctor();
    assert!(refused.contains(".local/lib/libnccl-net-polyrail.so is not used: "), "{refused}");
    mode(0o644);
    // The file isn't a library. The check has found it and says so.
    let found = doctor();
    assert!(found.contains(".local/lib/libnccl-net-polyrail.so: "), "{found}");
}

#[test]
fn what_env_prints_is_for_a_shell() {
    let env = text(&nccl(&["env"]).stdout);
    let script = format!("{env}\necho \"$NCCL_NET $NCCL_MIN_NCHANNELS\"");
    let shell = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(text(&shell.stdout), "Polyrail 8\n");
}

#[test]
fn messages_are_smaller_where_more_gpus_share_the_cache() {
    let chunk = |gpus: &str| {
        let env = text(&nccl(&["env", "--gpus", gpus]).stdout);
        let line = env.lines().find_map(|line| line.strip_prefix("export NCCL_P2P_NET_CHUNKSIZE="));
        line.and_then(|line| line.split(' ').next()).unwrap().to_owned()
    };
    assert_eq!(["1", "2", "3", "8"].map(chunk), ["524288", "524288", "262144", "262144"]);
    let wrong = nccl(&["env", "--gpus", "0"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("--gpus"), "{}", text(&wrong.stderr));
}

#[test]
fn the_file_for_nccl_says_the_same_as_the_shell() {
    let conf = text(&nccl(&["env", "--conf"]).stdout);
    let lines = conf.lines().filter(|line| !line.starts_with('#'));
    // Everything after the `=` is the value.
    let quoted = lines.map(|line| line.replace('=', "='") + "'").collect::<Vec<_>>().join("\n");
    let set = |script: &str| {
        let script = format!("{script}\nset | grep ^NCCL | sort");
        let mut shell = Command::new("sh");
        text(
            &shell
                .args(["-c", &script])
                .env_clear()
                .env("PATH", "/usr/bin:/bin")
                .output()
                .unwrap()
                .stdout,
        )
    };
    assert!(set(&quoted).contains("NCCL_NET="), "{conf}");
    assert_eq!(set(&quoted), set(&text(&nccl(&["env"]).stdout)));
}

#[test]
fn settings_for_a_machine_without_a_gpu_say_what_they_assume() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("libnccl-net-polyrail.so"), plugin("")).unwrap();
    let env = |gpus: &[&str]| {
        let installed = ["env", "--folder", folder.path().to_str().unwrap()];
        succeeded(nccl(&[&installed[..], gpus].concat()))
    };
    let (few, many) = (env(&["--gpus", "2"]), env(&["--gpus", "3"]));
    assert!(few.stderr.is_empty() && many.stderr.is_empty());
    let here = env(&[]);
    let topology = Topology::read(&Sysroot::live()).unwrap();
    let told =
        "this machine shows no GPU, so this is for one with more than 2; --gpus N says how many";
    let is_told = text(&here.stderr).contains(told);
    assert_eq!(is_told, topology.gpus.is_empty(), "{}", text(&here.stderr));
    assert!(!is_told || here.stdout == many.stdout);
}
