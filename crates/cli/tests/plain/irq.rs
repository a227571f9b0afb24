//! `polyrail host` on the machine that runs the tests. The tests leave it unchanged. `tests/vm` tests changes in a
//! virtual machine.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use polyrail_host::fixtures::{self, Fixture};
use polyrail_host::snapshot;
use serde_json::Value;

use crate::common::golden::assert_golden;
use crate::common::{polyrail, refusal, refusals, succeeded};

fn on_this_machine(args: &[&str]) -> Output {
    let state = std::env::temp_dir().join(format!("polyrail-irq-{}", std::process::id()));
    polyrail(args).env("POLYRAIL_STATE_DIR", state).output().unwrap()
}

fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(&succeeded(on_this_machine(args)))).unwrap()
}

/// A command on a copy of a machine. Its journals are in the copy.
fn command_on(copy: &Fixture, words: &[&str]) -> Command {
    let mut command = polyrail(words);
    command.arg("--sysroot").arg(copy.path()).env_remove("POLYRAIL_STATE_DIR");
    command
}

fn on(copy: &Fixture, words: &[&str]) -> Output {
    command_on(copy, words).output().unwrap()
}

fn affinities(copy: &Fixture) -> Vec<(Option<String>, PathBuf)> {
    let files = std::fs::read_dir(copy.path().join("proc/irq")).unwrap();
    let files = files.map(|irq| irq.unwrap().path().join("smp_affinity_list"));
    let mut all: Vec<_> = files.map(|file| (std::fs::read_to_string(&file).ok(), file)).collect();
    all.sort();
    all
}

fn vectors() -> Vec<Value> {
    let document = json(&["host", "show", "irq", "--interval", "0s", "--json"]);
    assert_eq!(document["schema_version"], 1);
    document["vectors"].as_array().unwrap().clone()
}

#[test]
fn show_agrees_with_the_files_of_this_machine() {
    for vector in vectors() {
        let irq = vector["irq"].as_u64().unwrap();
        let nic = vector["nic"].as_str().unwrap();
        assert!(Path::new("/sys/class/net").join(nic).exists());
        // A container may hide the files of interrupts; then `wanted` is null.
        let file = format!("/proc/irq/{irq}/smp_affinity_list");
        let wanted = std::fs::read_to_string(file).ok();
        assert_eq!(vector["wanted"].as_str(), wanted.as_deref().map(str::trim), "{vector}");
    }
}

#[test]
fn a_plan_of_this_machine_reads_back_and_a_dry_run_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("plan.json");
    let file = file.to_str().unwrap();
    let plan = json(&["host", "plan", "irq", "--json", "-o", file]);
    assert_eq!(plan["schema_version"], 1);
    let before = vectors();
    let output = succeeded(on_this_machine(&["host", "apply", file, "--dry-run"]));
    assert!(stderr(&output).contains("nothing was changed"));
    for change in plan["changes"].as_array().unwrap() {
        assert!(stdout(&output).contains(change["what"].as_str().unwrap()));
    }
    for (before, after) in before.iter().zip(vectors()) {
        assert_eq!(before["wanted"], after["wanted"]);
    }
}

#[test]
fn root_writes_and_obeys_no_plan_that_another_user_can_change() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !rustix::process::geteuid().is_root() {
        return polyrail_skip::skip(
            "needs root",
            "sudo cargo test -p polyrail-cli --test plain irq::",
        );
    }
    let folder = tempfile::tempdir().unwrap();
    let shared = folder.path().join("pub");
    std::fs::create_dir(&shared).unwrap();
    let mode = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&shared, 0o1777);
    let path = shared.join("plan.json");
    let file = path.to_str().unwrap();
    std::fs::write(&path, "").unwrap();
    mode(&path, 0o666);
    chown(&path, Some(65534), Some(65534)).unwrap();
    let refused = |output: Output, words: &str| {
        assert_eq!(code(&output), 2, "{}", stderr(&output));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
    };
    let (plan, apply) =
        (["host", "plan", "tune", "throughput", "-o", file], ["host", "apply", file]);
    let apply = || on_this_machine(&[&apply[..], &["--dry-run"]].concat());
    refused(on_this_machine(&plan), "belongs to user 65534");
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(code(&on_this_machine(&plan)), 0);
    succeeded(apply());
    mode(&path, 0o666);
    refused(apply(), "has mode 0666");
    refused(
        apply(),
        "; allowed: a file that only root and this user can change\nhelp: read it, then ",
    );
    refused(apply(), &format!("`sudo install -m 600 {file} /root/plan.json`"));
    assert_eq!(stderr(&apply()).matches("allowed").count(), 1, "{}", stderr(&apply()));
    // An older file of root with that mode lets others write nothing to the new plan.
    assert_eq!(code(&on_this_machine(&plan)), 0);
    assert_eq!(code(&apply()), 0);
    // A descriptor is judged by the file that was opened.
    let open = || Stdio::from(std::fs::File::open(&path).unwrap());
    let by_descriptor = || {
        let words = ["host", "apply", "/dev/stdin", "--dry-run"];
        polyrail(words).stdin(open()).output().unwrap()
    };
    succeeded(by_descriptor());
    chown(&path, Some(65534), Some(65534)).unwrap();
    refused(apply(), "belongs to user 65534");
    refused(by_descriptor(), "belongs to user 65534");
}

#[test]
fn what_cannot_be_used_is_refused_with_exit_code_2_and_a_remedy() {
    let fixture = fixtures::a3_high();
    fixture.write("/bad.json", "{\"schema_version\": 1,\n \"name\": 3}");
    let here = |words: &[&str]| {
        let mut command = polyrail(words);
        command.env("POLYRAIL_STATE_DIR", fixture.path().join("state"));
        command.current_dir(fixture.path()).output().unwrap()
    };
    let commands = [
        "host apply /none/plan.json",
        "host apply bad.json",
        "host apply throughput",
        "host verify tune2",
        "host apply irq --policy numa",
        "host apply bindings",
        "host plan irq --sysroot . --nic none0",
        "host show irq none0 --sysroot .",
        "host plan irq --sysroot . --cpus 8000",
        "host plan irq --cpus 9-4",
        "host plan irq --map /none/map.yaml",
        "host undo nonsense",
        "host verify",
        "host verify tune",
        "host confirm",
        "host plan tune fast",
        "host undo rings",
        "host plan rings rx=128",
        "host help plan irq",
        "--json host show",
        "host plan tune",
        "host undo tune fast",
        "host undo tune through",
        "host apply rings lo rx",
        "host apply rings lo rx=1 --nic lo",
        "host apply irq --profile-file /dev/null",
    ];
    let words = commands.map(|words| words.split(' ').collect::<Vec<_>>());
    let said = words.iter().map(|words| refusals(2, here, &[words]));
    assert_golden("host/refused", &said.collect::<String>());
    for words in [
        &["show", "channels", "none0"][..],
        &["plan", "channels", "none0", "combined=2"],
        &["apply", "rss", "none0", "equal=2"],
        &["show", "counters", "none0"],
    ] {
        let error = refusal(2, &here(&[&["host"], words].concat()));
        let absent = "interface `none0`: does not exist in this network namespace; allowed: ";
        assert!(error.contains(absent), "{words:?}: {error}");
    }
}

/// A map places all queues, so a policy next to it would choose nothing. Some policies ignore bindings.
#[test]
fn an_option_that_would_choose_nothing_is_refused_beside_the_one_that_does() {
    for (option, value, name) in [
        ("--policy", "numa", "POLICY"),
        ("--nic", "lo", "NICS"),
        ("--cpus", "0", "CPUS"),
        ("--avoid", "0", "CPUS"),
        ("--tx-bindings", "lo:0", "BINDINGS"),
        ("--rx-bindings", "lo:0", "BINDINGS"),
    ] {
        let words = ["host", "plan", "irq", option, value, "--map", "/dev/null"];
        let error = refusal(2, &on_this_machine(&words));
        let (one, other) = (format!("{option} <{name}>"), "--map <FILE>");
        let told = [(one.as_str(), other), (other, one.as_str())]
            .map(|(one, other)| format!("polyrail: {one}: cannot be used with {other}; "));
        assert!(told.iter().any(|told| error.contains(told)), "{error}");
    }
    for policy in ["numa", "spread", "single"] {
        for option in ["--tx-bindings", "--rx-bindings"] {
            let words = ["host", "plan", "irq", "--policy", policy, option, "lo:0"];
            let error = refusal(2, &on_this_machine(&words));
            let told = format!("{option}: cannot be used with `--policy {policy}`; allowed: ");
            assert!(error.contains(&told), "{error}");
        }
    }
}

#[test]
fn a_snapshot_without_name_and_boot_is_shown_planned_and_examined_but_never_changed() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (archive, state, file) = (at("a3.tar"), at("state"), at("plan.json"));
    let output = std::fs::File::create(&archive).unwrap();
    snapshot::write(&fixtures::a3_high().root(), "a3", &snapshot::Answers::default(), output)
        .unwrap();
    let on = |args: &[&str]| {
        let mut command = polyrail([args, &["--sysroot", &archive]].concat());
        command.env("POLYRAIL_STATE_DIR", &state).output().unwrap()
    };

    let shown = on(&["host", "show", "irq", "eth1", "--interval", "0s"]);
    assert_eq!(stdout(&shown).lines().count(), 34, "{}", stderr(&shown));
    let planned = on(&["host", "plan", "irq", "--nic", "eth3", "-o", &file]);
    assert!(stderr(&planned).contains("32 to change"), "{}", stderr(&planned));
    let dry = on(&["host", "apply", &file, "--dry-run"]);
    assert!(stdout(&dry).contains("eth3 tx 0"), "{}", stderr(&dry));
    assert_eq!(code(&on(&["host", "plan", "tune", "throughput"])), 0);
    assert_eq!(code(&on(&["doctor"])), 1);
    for args in
        [["host", "apply", &file].as_slice(), &["host", "undo", "irq"], &["host", "undo", "doctor"]]
    {
        let refused = on(args);
        assert_eq!(code(&refused), 2, "{args:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("is an archive"), "{args:?}: {}", stderr(&refused));
    }

    let tune = at("tune.json");
    assert_eq!(code(&on(&["host", "plan", "tune", "throughput", "-o", &tune])), 0);
    for word in ["stop", "leave"] {
        let refused = on(&["host", "apply", &tune, "--dry-run", "--irqbalance", word]);
        assert_eq!(code(&refused), 2, "{}", stderr(&refused));
        let told = "cannot be used with a plan of tune throughput; allowed: a plan of irq\nhelp: ";
        assert!(stderr(&refused).contains(told), "{}", stderr(&refused));
    }
    succeeded(on(&["host", "apply", &file, "--dry-run", "--irqbalance", "leave"]));

    // The same plan can't be used on this machine, and a dry run says so like apply.
    let here = on_this_machine(&["host", "apply", &file, "--dry-run"]);
    assert_eq!(code(&here), 2);
    assert!(stderr(&here).contains("was made for the machine unknown"), "{}", stderr(&here));
    let told = stderr(&on_this_machine(&["host", "verify", &file]));
    assert!(told.contains("for the machine unknown, and this is "), "{told}");
    assert!(told.contains("; its values are compared with those here\n"), "{told}");
    let forced = on_this_machine(&["host", "apply", &file, "--dry-run", "--force"]);
    assert_eq!(stdout(&forced).matches("missing").count(), 32, "{}", stdout(&forced));
}

#[test]
fn watch_says_at_once_what_is_not_as_planned_already() {
    let fixture = fixtures::mlx5_four_nodes();
    let root = fixture.path().to_str().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json").to_str().unwrap().to_owned();
    let planned = on_this_machine(&["host", "plan", "irq", "--sysroot", &root, "-o", &plan]);
    assert!(stderr(&planned).contains("8 to change"), "{}", stderr(&planned));
    // Messages cut values after 60 characters, and the path of a temporary folder may be longer.
    let watch = ["host", "watch", "plan.json", "--sysroot", &root, "--for", "200ms"];
    let mut watch = polyrail(watch);
    let watched = watch.args(["--every", "50ms"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(code(&watched), 1);
    let told =
        "8 of them differ from the plan already; `polyrail host verify plan.json` names them";
    assert!(stderr(&watched).contains(told), "{watched:?}");

    // Each change while it watches is a line.
    let mut watching =
        polyrail(["host", "watch", &plan, "--json", "--for", "2s", "--every", "50ms"]);
    watching.args(["--sysroot", &root]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watching = watching.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(watching.stderr.as_mut().unwrap()).read_line(&mut first).unwrap();
    assert!(first.contains("watching"), "{first}");
    for irq in std::fs::read_dir(fixture.path().join("proc/irq")).unwrap() {
        let file = irq.unwrap().path().join("smp_affinity_list");
        std::fs::write(file, "63\n").unwrap_or_default();
    }
    let seen = stdout(&watching.wait_with_output().unwrap());
    let seen: Vec<Value> = seen.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!seen.is_empty());
    assert!(seen.iter().all(|line| line["schema_version"] == 1 && line["found"] == "63"));
}

/// `--enforce` would reset the link at each deviation, and no guard would undo that.
#[test]
fn watch_does_not_enforce_what_may_cut_the_link_of_the_default_route() {
    let fixture = fixtures::mlx5_four_nodes();
    let root = fixture.path().to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json");
    let file = plan.to_str().unwrap();
    succeeded(on_this_machine(&["host", "plan", "irq", "--sysroot", root, "-o", file]));
    let mut document: Value = serde_json::from_slice(&std::fs::read(&plan).unwrap()).unwrap();
    document["changes"].as_array_mut().unwrap().push(serde_json::json!({
        "target": {"kind": "ethtool", "nic": "eth77", "setting": "channels.combined"},
        "what": "eth77", "old": "8", "new": "4", "reason": "the test wants it",
    }));
    let made: polyrail_tune::Plan = serde_json::from_value(document).unwrap();
    std::fs::write(&plan, made.seal().to_json()).unwrap();
    let route = |nic: &str| {
        let text = format!(
            "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
             {nic}\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\n"
        );
        let file = fixture.path().join("proc/net/route");
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    let refused = |more: &[&str]| {
        let state = folder.path().join("state");
        let state = state.to_str().unwrap();
        let words =
            ["host", "watch", file, "--for", "10ms", "--sysroot", root, "--state-dir", state];
        stderr(&on_this_machine(&[&words, more].concat())).contains(
            "eth77 carries the default route\nhelp: watch without --enforce, or name `irq`\n",
        )
    };
    route("eth77");
    assert!(refused(&["--enforce"]));
    assert!(!refused(&[]));
    route("eth78");
    assert!(!refused(&["--enforce"]));
}

/// The journals of a copy are in the copy, where each command finds them.
#[test]
fn enforcing_names_itself_and_undo_restores_the_first_values_of_a_copy() {
    let copy = fixtures::mlx5_four_nodes();
    let on = |words: &[&str]| on(&copy, words);
    let affinities = || affinities(&copy);
    let before = affinities();
    succeeded(on(&["host", "apply", "irq", "--settle", "0s"]));
    let planned = affinities();
    assert!(copy.path().join("var/lib/polyrail/host/lock").exists());
    let changed = planned.iter().find(|one| !before.contains(one)).unwrap();
    std::fs::write(&changed.1, "63\n").unwrap();
    let watched = on(&["host", "watch", "irq", "--enforce", "--for", "3s", "--every", "50ms"]);
    assert_eq!(code(&watched), 1, "{}", stderr(&watched));
    assert!(
        stdout(&watched).contains(" again, as planned, by this `host watch --enforce`\n"),
        "{watched:?}"
    );
    assert_eq!(affinities(), planned);
    assert_eq!(code(&on(&["host", "verify", "irq", "--allow-pending"])), 0);
    for words in ["stays", "was confirmed before"] {
        let told = stderr(&on(&["host", "confirm"]));
        assert!(told.ends_with(&format!(" {words}\n")), "{told}");
    }
    let undone = succeeded(on(&["host", "undo", "irq"]));
    assert!(!stderr(&undone).contains("still holds"), "{}", stderr(&undone));
    assert_eq!(affinities(), before);
}

#[test]
fn undo_names_the_session_that_remains_and_shows_no_value_as_restored_that_is_not() {
    let copy = fixtures::mlx5_four_nodes();
    let on = |words: &[&str]| succeeded(on(&copy, words));
    let applied = stderr(&on(&["host", "apply", "irq", "--settle", "0s"]));
    let id = applied.split("polyrail: session ").nth(1).unwrap().split(';').next().unwrap();
    let file = copy.path().join("plan.json");
    let file = file.to_str().unwrap();
    on(&["host", "plan", "irq", "--policy", "single", "-o", file]);
    on(&["host", "apply", file, "--settle", "0s"]);
    for (_, file) in affinities(&copy).into_iter().filter(|(value, _)| value.is_some()) {
        std::fs::write(file, "63\n").unwrap();
    }
    let undone = on(&["host", "undo", "irq"]);
    let told =
        format!("polyrail: session {id} of irq still holds; `polyrail host undo {id}` undoes it");
    assert!(stderr(&undone).contains(&told), "{}", stderr(&undone));
    let rows = stdout(&undone);
    let row = rows.lines().nth(1).unwrap_or_else(|| panic!("{rows}"));
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..3], ["63", "-"], "{rows}");
}

#[test]
fn a_plan_of_interrupts_uses_the_bindings_of_the_settings_unless_options_say_more() {
    let fixture = fixtures::a3_high();
    let root = fixture.path().to_str().unwrap();
    let plan = |more: &[&str]| {
        let words = ["host", "plan", "irq", "--nic", "eth1", "--json", "--sysroot", root];
        let mut command = polyrail([&words[..], more].concat());
        let output = succeeded(command.env("POLYRAIL_TX_BINDINGS", "eth1:8-35").output().unwrap());
        (stdout(&output), stderr(&output))
    };
    let (of_setting, told) = plan(&[]);
    let words = "polyrail: the setting tx_bindings tells the CPUs of workers: eth1:8-35\n";
    assert!(told.contains(words), "{told}");
    let (of_option, told) = plan(&["--tx-bindings", "eth1:8-35"]);
    assert!(!told.contains("the setting"), "{told}");
    assert_eq!(of_setting, of_option);
    assert_ne!(of_setting, plan(&["--tx-bindings", "eth1:40-43"]).0);
    assert!(!plan(&["--policy", "numa"]).1.contains("the setting"));
}

#[test]
fn the_guard_waits_for_the_lock_and_then_restores() {
    let copy = fixtures::mlx5_four_nodes();
    let applied = on(&copy, &["host", "apply", "irq", "--settle", "0s"]);
    let told = stderr(&applied);
    let id = told.split("polyrail: session ").nth(1).unwrap().split(';').next().unwrap();
    let state = polyrail_tune::StateDir::of(&copy.root());
    let lock = polyrail_tune::HostLock::take(false, &state).unwrap();
    let mut guard = command_on(&copy, &["host", "revert", id, "--after", "0s"]).spawn().unwrap();
    // The guard needs a moment to find the lock taken. Releasing the lock earlier would only test less.
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert_eq!(guard.try_wait().unwrap(), None, "it gave up");
    drop(lock);
    assert!(guard.wait().unwrap().success());
    assert!(state.sessions().unwrap().iter().all(|session| !session.is_open()));
}

#[test]
fn a_plan_goes_to_standard_output_and_names_what_it_skips() {
    let copy = fixtures::mlx5_four_nodes();
    let folder = tempfile::tempdir().unwrap();
    let on = |words: &[&str]| command_on(&copy, words).current_dir(&folder).output().unwrap();
    let planned = on(&["host", "plan", "tune", "throughput", "-o", "-"]);
    let plan: Value = serde_json::from_slice(&planned.stdout).unwrap();
    assert!(!folder.path().join("-").exists());
    let skipped = plan["skipped"].as_array().unwrap();
    assert!(!skipped.is_empty(), "{plan}");
    let saved = on(&["host", "plan", "tune", "throughput", "-o", "p.json"]);
    assert!(stderr(&saved).contains("polyrail: the plan is in p.json\n"), "{}", stderr(&saved));
    let dry = on(&["host", "apply", "p.json", "--dry-run"]);
    assert_eq!(stdout(&dry).matches(" skipped ").count(), skipped.len(), "{}", stdout(&dry));
    let applied = on(&["host", "apply", "p.json", "--json"]);
    let applied: Value = serde_json::from_slice(&applied.stdout).unwrap();
    assert_eq!(&applied["skipped"], &plan["skipped"]);
}

#[test]
fn bindings_without_a_cpu_that_may_be_used_are_refused_with_the_option() {
    let copy = fixtures::mlx5_four_nodes();
    let error = refusal(2, &on(&copy, &["host", "plan", "bindings", "--avoid", "0-4095"]));
    let told = "--avoid `0-4095`: leaves no CPU near an interface; allowed: some of ";
    assert!(error.contains(told), "{error}");
}

#[test]
fn settings_of_a_copy_are_not_asked_of_this_machines_drivers() {
    let error = refusal(2, &on(&fixtures::laptop(), &["host", "show", "rings", "lo"]));
    assert!(error.contains("only a running machine's drivers tell this"), "{error}");
}

/// This version undoes changes of older ones.
#[test]
fn sessions_have_the_names_of_earlier_versions_and_undo_finds_them() {
    let fixture = fixtures::mlx5_four_nodes();
    let folder = tempfile::tempdir().unwrap();
    let (root, state) = (fixture.path().to_str().unwrap(), folder.path().to_str().unwrap());
    let on = |words: &[&str]| {
        let mut command = polyrail([words, &["--sysroot", root]].concat());
        let output = command.env("POLYRAIL_STATE_DIR", state).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", stderr(&output));
        let told = stderr(&output);
        if let Some((_, rest)) = told.split_once("polyrail: session ") {
            let (id, rest) = rest.split_once("; ").unwrap();
            let undo = format!("`polyrail host undo {id}` restores the old values");
            assert!(rest.starts_with(&undo), "{told}");
        }
        stdout(&output)
    };
    let affinities = || affinities(&fixture);
    let before = affinities();
    on(&["host", "apply", "irq", "--settle", "0s"]);
    assert_ne!(affinities(), before);
    on(&["host", "apply", "tune", "throughput"]);
    let journals = std::fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<String> = journals
        .filter_map(|entry| {
            std::fs::read_to_string(entry.unwrap().path().join("journal.jsonl")).ok()
        })
        .map(|text| {
            let begin: Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
            begin["name"].as_str().unwrap().to_owned()
        })
        .collect();
    names.sort();
    assert_eq!(names, ["irq", "tune throughput"]);
    on(&["host", "undo", "irq"]);
    assert_eq!(affinities(), before);
    // A check of an older version may have another name now, or be gone.
    let plans = tempfile::tempdir().unwrap();
    let plan = plans.path().join("plan.json");
    on(&["host", "plan", "irq", "-o", plan.to_str().unwrap()]);
    let text = std::fs::read_to_string(&plan).unwrap();
    let named = text.replace("\"name\": \"irq\"", "\"name\": \"doctor old-check\"");
    assert_ne!(named, text);
    std::fs::write(&plan, named).unwrap();
    on(&["host", "apply", plan.to_str().unwrap(), "--settle", "0s"]);
    assert_ne!(affinities(), before);
    on(&["host", "undo", "doctor", "old-check"]);
    assert_eq!(affinities(), before);
    assert_ne!(on(&["host", "undo", "tune", "throughput"]), "there is nothing to undo\n");
    assert_eq!(on(&["host", "undo"]), "there is nothing to undo\n");
}

#[test]
fn with_nothing_to_take_back_undo_says_so_and_is_content() {
    for of in ["", " irq", " nic", " tune", " tune latency", " doctor", " doctor irq-off-node"] {
        let words: Vec<&str> = ["host", "undo"].into_iter().chain(of.split_whitespace()).collect();
        let output = succeeded(on_this_machine(&words));
        assert_eq!(stdout(&output), "there is nothing to undo\n");
        let of = if of.is_empty() { String::new() } else { format!(" of{of}") };
        let told = format!("no change{of} since boot still holds");
        assert!(stderr(&output).contains(&told), "{}", stderr(&output));
    }
}

#[test]
fn only_commands_with_sessions_look_at_the_folder_that_the_environment_names() {
    let with =
        |words: &[&str]| polyrail(words).env("POLYRAIL_STATE_DIR", "/etc/passwd").output().unwrap();
    for words in [&["host", "show", "profiles"][..], &["host", "plan", "tune", "throughput"]] {
        succeeded(with(words));
    }
    for words in [&["host", "undo"][..], &["host", "verify"], &["host", "confirm"]] {
        let error = refusal(2, &with(words));
        let told = "POLYRAIL_STATE_DIR `/etc/passwd`: is a file; allowed: a folder, or a new name";
        assert!(error.contains(told) && error.contains("\nhelp: "), "{error}");
    }
}

#[test]
fn profiles_are_listed_with_reasons_and_planned_without_root() {
    let text = stdout(&on_this_machine(&["host", "show", "profiles", "throughput"]));
    assert!(text.contains("tcp_rmem [3]") && text.contains("at least 33554432"), "{text}");
    let list = stdout(&on_this_machine(&["host", "show", "profiles"]));
    let help = stdout(&on_this_machine(&["host", "plan", "-h"]));
    let names: Vec<&str> =
        list.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.contains(&"zerocopy"), "{list}");
    assert!(names.iter().all(|name| help.contains(name)), "{help}");
    let plan = json(&["host", "plan", "tune", "throughput", "--json"]);
    assert_eq!(plan["name"], "tune throughput");
    for change in plan["changes"].as_array().unwrap() {
        assert!(change["reason"].as_str().unwrap().contains('['), "a source: {change}");
    }
}

#[test]
fn where_there_is_nothing_to_show_a_sentence_says_so() {
    let copy = fixtures::no_nics();
    for (arguments, sentence) in [
        (
            &["host", "show", "irq", "--interval", "0s"][..],
            "no network card here has interrupts of its own\n",
        ),
        (&["host", "plan", "irq"], "every value is as planned already\n"),
        (&["host", "apply", "irq", "--dry-run"], "every value is as planned already\n"),
    ] {
        let output = on(&copy, arguments);
        assert_eq!((code(&output), stdout(&output).as_str()), (0, sentence), "{arguments:?}");
    }
}
