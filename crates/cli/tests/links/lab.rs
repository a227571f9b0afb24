//! `polyrail lab` as a user runs it. Tests that need a missing permission are skipped.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use polyrail_lab::{Privilege, availability};
use serde_json::Value;

use crate::common::golden::assert_golden;
use crate::common::{PROGRAM, polyrail, refusal, refusals, wait_until};

/// UID of a user with no rights at all.
const NOBODY: u32 = 65534;

fn lab_command(args: &[&str]) -> Command {
    LazyLock::force(&FOREIGN);
    let mut command = polyrail(["lab"]);
    command.args(args);
    command
}

fn run(args: &[&str]) -> Output {
    lab_command(args).output().unwrap()
}

/// Standard output of a run that succeeds.
fn ok(args: &[&str]) -> String {
    stdout(&run(args))
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn skipped(reason: &str) {
    polyrail_skip::skip(reason, "sudo -E cargo test -p polyrail-cli --test links lab");
}

/// Returns whether labs can be made with root's rights; skips the test otherwise.
fn is_root() -> bool {
    let reason = match availability() {
        Ok(Privilege::Root) => return true,
        Ok(Privilege::UserNamespace) => "not root".to_owned(),
        Err(error) => error.to_string(),
    };
    skipped(&reason);
    false
}

fn name(test: &str) -> String {
    format!("cli-{test}-{}", std::process::id())
}

/// Files, mounts and processes of this machine that have the lab's name.
fn traces(lab: &str) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["/run/netns", "/run/polyrail-labs/lab", "/tmp/polyrail-65534/lab"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            found.push(entry.path().display().to_string());
        }
    }
    found.extend(fs::read_to_string("/proc/self/mountinfo").unwrap().lines().map(str::to_owned));
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        found.push(format!("process {}: {command}", entry.file_name().display()));
    }
    found.retain(|line| line.contains(lab));
    found
}

struct Cleanup<'a>(&'a str);

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let _ = run(&["down", self.0]);
    }
}

#[test]
fn bad_arguments_name_the_field_the_value_and_what_is_allowed() {
    let cases = [
        "up x --rails 1000",
        "up x --rails 0gbit",
        "up x --rails 401gbit",
        "up x --rails 17x1gbit",
        "up x --rails=",
        "up x",
        "up a/b --rails 1gbit",
        "up xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx --rails 1gbit",
        "up x --rails 1gbit --mtu 68",
        "up x --rails 1gbit --queue-ms 0",
        "up x --rails 400gbit --queue-ms 1000",
        "exec x c -- true",
        "up x --rails 1gbit --network bgp",
        "up x --rails 2x1gbit --network pod",
        "up x --rails 1gbit --network management",
        "set x 0 --mtu 68",
        "set x 0 --firewall deny",
        "set x 0 --mtu 1400 --side a",
        "up x --rails 1gbit --nodes 0",
        "up x --rails 1gbit --nodes 1",
        "up x --rails 1gbit --nodes 33",
        "exec x a --",
        "set x rail0",
        "down",
    ];
    let words = cases.map(|words| words.split(' ').collect::<Vec<_>>());
    let said = words.iter().map(|words| refusals(2, run, &[words]));
    assert_golden("lab/refused", &said.collect::<String>());
}

#[test]
fn a_lab_that_does_not_exist_is_an_error_that_says_how_to_make_it() {
    for args in [
        &["exec", "no-such-lab", "a", "--", "true"][..],
        &["set", "no-such-lab", "rail0", "--link", "up"],
        &["down", "no-such-lab"],
    ] {
        let text = refusal(2, &run(args));
        assert!(
            text.contains("lab `no-such-lab` does not exist; allowed: a lab that is up: "),
            "{text}"
        );
        assert!(text.contains("help: `polyrail lab up no-such-lab --rails"), "{text}");
    }
    assert!(!ok(&["ls"]).contains("no-such-lab"));
}

#[test]
fn a_lab_comes_up_is_used_changed_listed_and_goes_without_a_trace() {
    if !is_root() {
        return;
    }
    let name = name("life");
    let _cleanup = Cleanup(&name);
    let up = run(&["up", &name, "--rails", "4gbit,unlimited", "--queue-ms", "5", "--mtu", "9000"]);
    let table = stdout(&up);
    let rail0 = table.lines().find(|line| line.starts_with("rail0")).unwrap();
    for cell in ["4gbit", "up", "10.77.0.1", "10.77.0.2", "fd10:77::1", "fd10:77::2"] {
        assert!(rail0.contains(cell), "{table}");
    }
    let hint = String::from_utf8(up.stderr).unwrap();
    assert!(hint.contains(&format!("polyrail lab exec {name} a -- ")), "{hint}");

    let again = refusal(2, &run(&["up", &name, "--rails", "1gbit"]));
    assert!(again.contains("already up") && again.contains("polyrail lab down"), "{again}");

    for side in ["a", "b"] {
        let seen = ok(&["exec", &name, side, "--", "cat", "/proc/net/dev"]);
        assert!(seen.contains("rail0:") && seen.contains("rail1:") && seen.contains("lo:"));
        assert_eq!(seen.lines().count(), 5, "{seen}");
    }
    let code = |args: &[&str]| run(&[&["exec", &name, "b", "--"], args].concat()).status;
    assert_eq!(code(&["sh", "-c", "exit 42"]).code(), Some(42));
    assert_eq!(code(&["sh", "-c", "kill -TERM $$"]).signal(), Some(15));
    for (program, exit, help) in
        [("/no/such/program", 127, "check its name"), ("/etc/passwd", 126, "chmod +x")]
    {
        let text = refusal(exit, &run(&["exec", &name, "b", "--", program]));
        let wanted = format!("CMD `{program}`: can't be started: ");
        assert!(text.contains(&wanted) && text.contains("; allowed: a program"), "{text}");
        assert!(text.contains("help: ") && text.contains(help), "{text}");
    }
    for args in [
        &["exec", &name, "c", "--", "true"][..],
        &["set", &name, "0", "--link", "down", "--side", "c"],
    ] {
        let text = refusal(2, &run(args));
        assert!(
            text.contains("node `c` is not in lab") && text.contains("a, b, or 0 to 1"),
            "{text}"
        );
    }

    let set = ok(&["set", &name, "1", "--rate", "2.5gbit", "--link", "down"]);
    assert!(set.contains("2.5gbit") && set.contains("off at b"), "{set}");
    let wrong = refusal(2, &run(&["set", &name, "rail2", "--link", "up"]));
    assert!(wrong.contains("rail `rail2`") && wrong.contains("rail0 to rail1"), "{wrong}");
    let json: Value = serde_json::from_str(&ok(&["ls", "--json"])).unwrap();
    assert_eq!(json["schema_version"], 1);
    let labs = json["labs"].as_array().unwrap();
    let lab = labs.iter().find(|lab| lab["name"] == name.as_str()).unwrap();
    assert_eq!(lab["state"], "ready");
    assert_eq!(lab["queue_ms"], 5);
    assert_eq!(lab["mtu_bytes"], 9000);
    assert_eq!(lab["rails"][0]["rate_bits_per_s"], 4_000_000_000_u64);
    assert_eq!(lab["rails"][0]["a"]["ipv6"], "fd10:77::1");
    assert_eq!(lab["rails"][1]["rate_bits_per_s"], 2_500_000_000_u64);
    assert_eq!(lab["rails"][1]["up"], false);
    assert_eq!(lab["rails"][1]["b"]["up"], false);
    assert_eq!(lab["rails"][1]["a"]["up"], true);
    let set = ok(&["set", &name, "rail1", "--link", "up"]);
    assert!(set.contains(" up "), "{set}");
    let one_way = ok(&["set", &name, "rail1", "--rate", "100mbit", "--side", "a"]);
    assert!(one_way.contains("100mbit a>b, 2.5gbit b>a"), "{one_way}");
    let off = ok(&["set", &name, "rail1", "--link", "down", "--side", "a"]);
    assert!(off.contains("off at a"), "{off}");

    let listed = ok(&["ls"]);
    assert!(listed.contains(&format!("{name}  ready  (root, 0 processes inside)")), "{listed}");
    let traces_before = traces(&name);
    assert!(traces_before.iter().any(|trace| trace.contains("/run/netns")), "{traces_before:?}");
    assert_eq!(ok(&["down", &name]), "");
    assert_eq!(traces(&name), [""; 0]);
}

#[test]
fn a_switched_lab_comes_up_is_used_changed_listed_and_goes_without_a_trace() {
    if !is_root() {
        return;
    }
    let name = name("star");
    let _cleanup = Cleanup(&name);
    let up = run(&["up", &name, "--rails", "1gbit,unlimited", "--nodes", "3"]);
    let table = stdout(&up);
    assert_eq!(table.lines().count(), 7, "{table}");
    let last = table.lines().last().unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(last[..6], ["rail1", "2", "unlimited", "unlimited", "up", "10.77.1.3"], "{table}");
    assert!(String::from_utf8(up.stderr).unwrap().contains("of the switch"));

    let code = |node: &str, program: &str| {
        run(&["exec", &name, node, "--", "sh", "-c", program]).status.code()
    };
    for node in ["0", "a", "b", "2", "node2"] {
        assert_eq!(code(node, "exit 42"), Some(42), "{node}");
    }
    let wrong = refusal(2, &run(&["exec", &name, "3", "--", "true"]));
    assert!(wrong.contains("node `3` is not in lab") && wrong.contains("0 to 2"), "{wrong}");

    let set = run(&["set", &name, "rail0", "--rate", "2gbit", "--link", "down", "--side", "2"]);
    let lines = stdout(&set);
    assert!(lines.contains("2gbit") && lines.lines().last().unwrap().contains("off"), "{lines}");
    assert!(String::from_utf8(set.stderr).unwrap().contains("on node 2; its port"));
    let json: Value = serde_json::from_str(&ok(&["ls", "--json"])).unwrap();
    let lab = json["labs"].as_array().unwrap().iter().find(|lab| lab["name"] == name.as_str());
    let lab = lab.unwrap();
    assert_eq!(
        (lab["is_switched"].clone(), lab["nodes"].as_array().unwrap().len()),
        (true.into(), 3)
    );
    assert!(lab["switch"].as_str().unwrap().ends_with("-switch"), "{lab}");
    let end = &lab["rails"][0]["ends"][2];
    // The rate applies to this node alone, and to what it sends.
    assert_eq!(
        (&end["up"], &end["rate_bits_per_s"], &end["port_rate_bits_per_s"]),
        (&false.into(), &2_000_000_000_u64.into(), &1_000_000_000_u64.into())
    );
    assert_eq!(lab["rails"][0]["ends"][1]["rate_bits_per_s"], 1_000_000_000_u64);
    assert!(run(&["set", &name, "rail0", "--rate", "3gbit"]).status.success());
    let json: Value = serde_json::from_str(&ok(&["ls", "--json"])).unwrap();
    let lab = json["labs"].as_array().unwrap().iter().find(|lab| lab["name"] == name.as_str());
    let end = &lab.unwrap()["rails"][0]["ends"][2];
    assert_eq!(end["port_rate_bits_per_s"], 3_000_000_000_u64);
    assert_eq!(ok(&["down", &name]), "");
    assert_eq!(traces(&name), [""; 0]);
}

#[test]
fn signals_reach_the_program_itself() {
    if !is_root() {
        return;
    }
    let name = name("signal");
    let _cleanup = Cleanup(&name);
    ok(&["up", &name, "--rails", "1gbit"]);
    let script = "trap 'exit 33' USR1; echo ready; while :; do sleep 0.05; done";
    let mut child = lab_command(&["exec", &name, "a", "--", "sh", "-c", script])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-USR1", &pid]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(33));
}

#[test]
fn whatever_moment_a_build_or_removal_is_killed_at_down_removes_the_rest() {
    if is_root() {
        kill_at_every_moment(&name("killed"), &["--rails", "8x1gbit"], lab_command);
    }
}

#[test]
fn the_same_holds_with_a_switch() {
    if is_root() {
        let wanted = &["--rails", "2x1gbit", "--nodes", "5"];
        kill_at_every_moment(&name("killed-star"), wanted, lab_command);
    }
}

#[test]
fn the_same_holds_without_root() {
    let (_folder, program) = public_copy();
    let probe = as_nobody(&program, &["up", &name("probe"), "--rails", "1gbit"]).output().unwrap();
    if probe.status.code() == Some(3) {
        let reason = String::from_utf8_lossy(&probe.stderr).replace('\n', " ");
        return skipped(&reason);
    }
    stdout(&as_nobody(&program, &["down", &name("probe")]).output().unwrap());
    kill_at_every_moment(&name("shot"), &["--rails", "8x1gbit"], |args| as_nobody(&program, args));
    let wanted = &["--rails", "2x1gbit", "--nodes", "5"];
    kill_at_every_moment(&name("shot-star"), wanted, |args| as_nobody(&program, args));
}

/// Set if another program made the directory of namespaces before any test did. `ip netns` never removes it.
static FOREIGN: LazyLock<bool> =
    LazyLock::new(|| Path::new("/run/netns").exists() && !Path::new("/run/polyrail-labs").exists());

fn kill_at_every_moment(name: &str, wanted: &[&str], lab: impl Fn(&[&str]) -> Command) {
    let run = |args: &[&str]| lab(args).output().unwrap();
    let links = || fs::read_to_string("/proc/net/dev").unwrap().lines().count();
    let links_before = links();
    // A busy machine builds slowly, and a time measured then would be too long later: take the shortest of three.
    let build = || {
        let begin = Instant::now();
        stdout(&run(&[&["up", name], wanted].concat()));
        let whole = begin.elapsed();
        stdout(&run(&["down", name]));
        whole
    };
    // While another test changes labs of this user, `ls` shows an unfinished one as changing.
    let list = || {
        let mut listed = String::new();
        wait_until("no other process changes labs", || {
            listed = stdout(&run(&["ls"]));
            !listed.contains(&format!("{name}  changing"))
        });
        listed
    };
    let mut whole = build().min(build()).min(build());
    let mut interrupted = 0;
    for step in 0..60 {
        let delay = whole * step / 60;
        let mut up = lab(&[&["up", name], wanted].concat());
        match step % 4 {
            1 => kill_once(&mut up, || !matches!(record(name), Stage::Nothing)),
            3 => kill_once(&mut up, || matches!(record(name), Stage::Namespaces)),
            _ => kill_after(&mut up, delay),
        }
        let listed = list();
        if listed.contains(&format!("{name}  broken")) {
            interrupted += 1;
        } else if step % 2 == 1 {
            // The kill followed the build's progress, so this says nothing about how long a build takes.
        } else if listed.contains(&format!("{name}  ")) {
            // The build was complete before the kill, so builds are faster now.
            whole = delay;
        } else if delay > whole / 2 {
            // The build had not begun, so builds are slower now.
            whole *= 2;
        }
        match step % 3 {
            0 => {
                let output = run(&["down", name]);
                // A build that was killed before its first trace leaves nothing to remove.
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success() || text.contains("does not exist"), "{text}");
            }
            1 => {
                kill_after(&mut lab(&["down", name]), delay);
                let _ = run(&["down", name]);
            }
            _ => {
                let _ = run(&["down", name]);
                stdout(&run(&["up", name, "--rails", "1gbit"]));
                stdout(&run(&["down", name]));
            }
        }
        // A holder whose maker was killed before it was recorded ends by itself, but on a busy machine not while `down`
        // runs.
        let gone = (0..250).any(|look| {
            // Polls: another process is ending.
            std::thread::sleep(Duration::from_millis(if look == 0 { 0 } else { 20 }));
            traces(name).is_empty()
        });
        assert!(gone, "after {delay:?}: {:?}", traces(name));
    }
    assert!(interrupted >= 3, "only {interrupted} builds were hit on the way");
    assert_eq!(links(), links_before, "links are left in the machine's own namespace");
    // Another test's lab may come or go meanwhile.
    let tidy = || !Path::new("/run/netns").exists() || Path::new("/run/polyrail-labs").exists();
    let foreign = *FOREIGN || crate::net::WAS_USED.load(Ordering::Relaxed);
    let settled = (0..100).any(|_| {
        // The next `ls` removes the directory that stayed because another test's lab had it open.
        stdout(&lab_command(&["ls"]).output().unwrap());
        // Polls: another process is tidying up.
        std::thread::sleep(Duration::from_millis(20));
        foreign || tidy()
    });
    assert!(settled, "the directory of namespaces is left, and no lab to use it");
}

/// Runs with its own file system at /run, where no other test looks.
#[test]
fn a_directory_that_somebody_looked_at_goes_with_the_next_list() {
    if !is_root() {
        return;
    }
    let name = name("looked-at");
    let _cleanup = Cleanup(&name);
    let script = "set -e
        mount -t tmpfs none /run
        \"$0\" lab up \"$1\" --rails 1gbit
        exec 3< /run/netns
        \"$0\" lab down \"$1\"
        ls -d /run/netns
        exec 3<&-
        \"$0\" lab ls
        ls -A /run";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, PROGRAM, &name]);
    let said = stdout(&command.output().unwrap());
    assert!(said.ends_with("\n/run/netns\nno labs\n"), "{said}");
}

#[test]
fn a_build_that_is_told_to_end_leaves_nothing_and_says_so() {
    if !is_root() {
        return;
    }
    for (number, signal) in ["-INT", "-TERM"].into_iter().enumerate() {
        let name = name(&format!("stop{number}"));
        let _cleanup = Cleanup(&name);
        // This many links take a while.
        let child = lab_command(&["up", &name, "--rails", "16x1gbit", "--nodes", "32"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while traces(&format!("{name}.json")).is_empty() {
            assert!(Instant::now() < until, "it never begins");
            // Polls: another process builds the lab.
            std::thread::sleep(Duration::from_millis(1));
        }
        let pid = child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
        let text = refusal(130, &child.wait_with_output().unwrap());
        let wanted =
            format!("building lab `{name}` was interrupted; what there was of it is removed");
        assert!(text.contains(&wanted) && text.contains("help: "), "{text}");
        assert_eq!(traces(&name), [""; 0]);
    }
}

/// Progress of a build, according to its record.
enum Stage {
    Nothing,
    Begun,
    /// The record has the namespaces, or the process that holds them; no rail is there yet.
    Namespaces,
}

fn record(lab: &str) -> Stage {
    let user = user_of_labs();
    let folders = [
        "/run/polyrail-labs/lab".to_owned(),
        format!("/run/user/{user}/polyrail/lab"),
        format!("/tmp/polyrail-{user}/lab"),
    ];
    let text = folders
        .iter()
        .find_map(|folder| fs::read_to_string(Path::new(folder).join(format!("{lab}.json"))).ok());
    let Some(text) = text else { return Stage::Nothing };
    // The record may be half written.
    let record: Value = serde_json::from_str(&text).unwrap_or_default();
    match record["namespaces"].is_null() && record["holder"].is_null() {
        true => Stage::Begun,
        false => Stage::Namespaces,
    }
}

/// Kills the command once `is_time` holds, however long a busy machine takes to get there.
fn kill_once(command: &mut Command, is_time: impl Fn() -> bool) {
    let silent = || std::process::Stdio::null();
    let mut child = command.stdout(silent()).stderr(silent()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !is_time() && child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < until, "process {} neither gets there nor ends", child.id());
        // Polls: the other process goes on.
        std::thread::sleep(Duration::from_micros(100));
    }
    let _ = child.kill();
    child.wait().unwrap();
}

fn kill_after(command: &mut Command, delay: Duration) {
    let silent = || std::process::Stdio::null();
    let mut child = command.stdout(silent()).stderr(silent()).spawn().unwrap();
    // Each delay kills the command at another step.
    std::thread::sleep(delay);
    let _ = child.kill();
    child.wait().unwrap();
}

#[test]
fn down_goes_on_after_a_lab_that_is_not_there() {
    if !is_root() {
        return;
    }
    let (one, two) = (name("one"), name("two"));
    let _cleanup = (Cleanup(&one), Cleanup(&two));
    ok(&["up", &one, "--rails", "1gbit"]);
    ok(&["up", &two, "--rails", "1gbit"]);
    let text = refusal(2, &run(&["down", &one, "no-such-lab", &two]));
    assert!(text.contains("no-such-lab"), "{text}");
    assert_eq!((traces(&one), traces(&two)), (vec![], vec![]), "{text}");
}

/// A folder with a copy of the program that every user can run, and the path of the copy.
pub(crate) fn public_copy() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let program = folder.path().join("polyrail");
    // Another process copies: a file that this one writes may still be open in a child that another test is just
    // starting, and then it can't be run.
    let copied = Command::new("cp").arg(PROGRAM).arg(&program).status();
    assert!(copied.unwrap().success());
    (folder, program)
}

/// UID that [`as_nobody`] runs commands as: only root can become another user.
fn user_of_labs() -> u32 {
    if running_as_root() { NOBODY } else { fs::metadata("/proc/self").unwrap().uid() }
}

fn as_nobody(program: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("lab").args(args).current_dir("/");
    if running_as_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

pub(crate) fn running_as_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

#[test]
fn a_user_without_root_gets_a_lab_where_user_namespaces_are_allowed() {
    let (_folder, program) = public_copy();
    let name = name("user");
    let lab = |args: &[&str]| as_nobody(&program, args).output().unwrap();
    let up = lab(&["up", &name, "--rails", "2x1gbit"]);
    if up.status.code() == Some(3) {
        let reason = String::from_utf8_lossy(&up.stderr).replace('\n', " ");
        return skipped(&reason);
    }
    assert!(stdout(&up).contains("10.77.1.2"));
    assert!(refusal(2, &lab(&["up", &name, "--rails", "1gbit"])).contains("already up"));
    let code = |args: &[&str]| lab(&[&["exec", &name, "b", "--"], args].concat()).status;
    assert_eq!(code(&["sh", "-c", "exit 42"]).code(), Some(42));
    assert_eq!(code(&["sh", "-c", "kill -TERM $$"]).signal(), Some(15));
    let seen = stdout(&lab(&["exec", &name, "a", "--", "cat", "/proc/net/dev"]));
    assert!(seen.contains("rail0:") && seen.contains("rail1:"), "{seen}");
    assert!(stdout(&lab(&["set", &name, "0", "--link", "down"])).contains("off at b"));
    assert!(stdout(&lab(&["set", &name, "0", "--link", "up"])).contains(" up "));
    // While another test builds a lab of this user, `ls` shows all of them as changing.
    let wait_listed = |state: &str| {
        let told = format!("{name}  {state}");
        let is_listed = (0..250).any(|_| {
            // Polls: the other test finishes at some time.
            std::thread::sleep(Duration::from_millis(20));
            stdout(&lab(&["ls"])).contains(&told)
        });
        assert!(is_listed, "{told}: {}", stdout(&lab(&["ls"])));
    };
    wait_listed("ready  (user-namespace");
    if running_as_root() {
        assert!(!ok(&["ls"]).contains(&name), "a user's lab is not root's");
        // The folder of records may vanish, as at logout; the lab stays within reach.
        let record = format!("{name}.json");
        let folders = [format!("/run/user/{NOBODY}/polyrail"), format!("/tmp/polyrail-{NOBODY}")];
        let removed = folders.iter().map(|folder| Path::new(folder).join("lab").join(&record));
        assert_eq!(removed.filter(|path| fs::remove_file(path).is_ok()).count(), 1);
        wait_listed("broken: its record is missing");
    }
    assert_eq!(stdout(&lab(&["down", &name])), "");
    assert_eq!(traces(&name), [""; 0]);
}

#[test]
fn without_any_permission_the_answer_names_what_is_missing_and_what_grants_it() {
    let (_folder, program) = public_copy();
    // A user namespace in which no further one is allowed stands for a locked-down machine.
    let script =
        "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" lab up x --rails 1gbit";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script]).arg(&program);
    let output = match command.output() {
        Ok(output) if output.status.code() != Some(1) => output,
        other => {
            let reason = format!("`unshare --user` of util-linux does not work here: {other:?}");
            return skipped(&reason);
        }
    };
    let text = refusal(3, &output);
    assert!(text.contains("no permission to make network namespaces"), "{text}");
    assert!(text.contains("mounting is refused"), "{text}");
    assert!(text.contains("user.max_user_namespaces is 0"), "{text}");
    assert!(text.contains("sysctl -w user.max_user_namespaces="), "{text}");
}
