//! `polyrail irq`, `tune` and `nic` on the machine that the test runs on, which they leave as it is.
//! What they change is tried in a virtual machine: `tests/vm`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use polyrail_host::{fixtures, snapshot};
use serde_json::Value;

fn polyrail(args: &[&str]) -> Output {
    let state = std::env::temp_dir().join(format!("polyrail-irq-{}", std::process::id()));
    let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail"));
    command.args(args).env("POLYRAIL_STATE_DIR", state).output().unwrap()
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
    let output = polyrail(args);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

fn vectors() -> Vec<Value> {
    let document = json(&["irq", "show", "--interval", "0s", "--json"]);
    assert_eq!(document["schema_version"], 1);
    document["vectors"].as_array().unwrap().clone()
}

#[test]
fn show_agrees_with_the_files_of_this_machine() {
    for vector in vectors() {
        let irq = vector["irq"].as_u64().unwrap();
        let nic = vector["nic"].as_str().unwrap();
        assert!(Path::new("/sys/class/net").join(nic).exists());
        // A container may hide the files of interrupts, and then nothing is told.
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
    let plan = json(&["irq", "plan", "--json", "-o", file]);
    assert_eq!(plan["schema_version"], 1);
    let before = vectors();
    let output = polyrail(&["irq", "apply", file, "--dry-run"]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
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
        return polyrail_skip::skip("needs root", "sudo cargo test -p polyrail-cli --test irq");
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
        (["tune", "plan", "throughput", "-o", file], ["tune", "apply", "--plan", file]);
    let apply = || polyrail(&[&apply[..], &["--dry-run"]].concat());
    refused(polyrail(&plan), "belongs to user 65534");
    assert_eq!(std::fs::read(&path).unwrap(), b"");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(code(&polyrail(&plan)), 0);
    let output = apply();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    mode(&path, 0o666);
    refused(apply(), "has mode 0666");
    refused(polyrail(&["irq", "apply", file, "--dry-run"]), "has mode 0666");
    // The mode of an older file of root lets others write nothing new there.
    assert_eq!(code(&polyrail(&plan)), 0);
    assert_eq!(code(&apply()), 0);
    // By a descriptor, what was opened is judged.
    let open = || Stdio::from(std::fs::File::open(&path).unwrap());
    let by_descriptor = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_polyrail"));
        command.args(["tune", "apply", "--plan", "/dev/stdin", "--dry-run"]).stdin(open());
        command.output().unwrap()
    };
    let output = by_descriptor();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    chown(&path, Some(65534), Some(65534)).unwrap();
    refused(apply(), "belongs to user 65534");
    refused(by_descriptor(), "belongs to user 65534");
}

#[test]
fn what_cannot_be_used_is_refused_with_exit_code_2_and_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.json");
    std::fs::write(&bad, "{\"schema_version\": 1,\n \"name\": 3}").unwrap();
    let bad = bad.to_str().unwrap();
    let absent = "interface `none0`: does not exist in this network namespace; allowed: ";
    for (args, words) in [
        (vec!["irq", "apply", "/none/plan.json"], "/none/plan.json"),
        (vec!["irq", "apply", bad], "line 2"),
        (vec!["irq", "plan", "none0"], "interface `none0`"),
        (vec!["irq", "show", "none0"], "interface `none0`"),
        (vec!["irq", "plan", "--cpus", "8000"], "not online"),
        (vec!["irq", "plan", "--cpus", "9-4"], "ends before it starts"),
        (vec!["irq", "plan", "--map", "/none/map.yaml"], "/none/map.yaml"),
        (vec!["irq", "reset", "nonsense"], "session `nonsense`: does not exist; allowed: "),
        (
            vec!["irq", "verify"],
            "no plan was carried out since boot; allowed: a plan file\nhelp: name a plan file",
        ),
        (vec!["tune", "verify"], "no profile was carried out since boot; allowed: what "),
        (vec!["tune", "confirm"], "nothing was carried out since boot; allowed: what "),
        (vec!["tune", "plan", "fast"], "throughput, latency, zerocopy"),
        (vec!["tune", "plan"], "tune list"),
        (vec!["tune", "reset", "fast"], "never applied; allowed: latency, throughput, zerocopy"),
        (vec!["tune", "reset", "through"], "never applied"),
        (vec!["nic", "channels", "none0"], absent),
        (vec!["nic", "channels", "none0", "combined=2"], absent),
        (vec!["nic", "rss", "none0", "equal=2"], absent),
        (vec!["nic", "stats", "none0"], absent),
        (vec!["nic", "rings", "lo", "rx"], "NAME=NUMBER"),
    ] {
        let output = polyrail(&args);
        let text = stderr(&output);
        assert_eq!(code(&output), 2, "{args:?}: {text}");
        assert!(text.contains(words), "{args:?}: {text}");
        assert!(stdout(&output).is_empty(), "{args:?}");
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
        let all = [args, &["--sysroot", &archive, "--state-dir", &state]].concat();
        polyrail(&all)
    };

    let shown = on(&["irq", "show", "eth1", "--interval", "0s"]);
    assert_eq!(stdout(&shown).lines().count(), 34, "{}", stderr(&shown));
    let planned = on(&["irq", "plan", "eth3", "-o", &file]);
    assert!(stderr(&planned).contains("32 to change"), "{}", stderr(&planned));
    let dry = on(&["irq", "apply", &file, "--dry-run"]);
    assert!(stdout(&dry).contains("eth3 tx 0"), "{}", stderr(&dry));
    assert_eq!(code(&on(&["tune", "plan", "throughput"])), 0);
    assert_eq!(code(&on(&["doctor"])), 1);
    for args in [["irq", "apply", &file].as_slice(), &["irq", "reset"], &["doctor", "--undo"]] {
        let refused = on(args);
        assert_eq!(code(&refused), 2, "{args:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("is an archive"), "{args:?}: {}", stderr(&refused));
    }

    // The same plan is of no use here, which a dry run says as apply would.
    let here = polyrail(&["irq", "apply", &file, "--dry-run"]);
    assert_eq!(code(&here), 2);
    assert!(stderr(&here).contains("was made for the machine unknown"), "{}", stderr(&here));
    let forced = polyrail(&["irq", "apply", &file, "--dry-run", "--force"]);
    assert_eq!(stdout(&forced).matches("missing").count(), 32, "{}", stdout(&forced));
}

#[test]
fn watch_says_at_once_what_is_not_as_planned_already() {
    let fixture = fixtures::mlx5_four_nodes();
    let root = fixture.path().to_str().unwrap().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.json").to_str().unwrap().to_owned();
    let planned = polyrail(&["irq", "plan", "--sysroot", &root, "-o", &plan]);
    assert!(stderr(&planned).contains("8 to change"), "{}", stderr(&planned));
    let watched =
        polyrail(&["irq", "watch", &plan, "--sysroot", &root, "--for", "200ms", "--every", "50ms"]);
    assert_eq!(code(&watched), 1);
    assert!(stderr(&watched).contains("8 of them differ from the plan already"), "{watched:?}");

    // What changes while it looks is a line of its own.
    let mut watching = Command::new(env!("CARGO_BIN_EXE_polyrail"));
    watching.args(["irq", "watch", &plan, "--json", "--for", "2s", "--every", "50ms"]);
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

#[test]
fn settings_of_a_copy_are_not_asked_of_this_machines_drivers() {
    let fixture = fixtures::laptop();
    let root = fixture.path().to_str().unwrap();
    let output = polyrail(&["nic", "rings", "lo", "--sysroot", root]);
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("only a running machine's drivers tell this"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn with_nothing_to_take_back_reset_says_so_and_is_content() {
    for args in [["irq", "reset"].as_slice(), &["tune", "reset"], &["tune", "reset", "latency"]] {
        let output = polyrail(args);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        assert_eq!(stdout(&output), "there is nothing to undo\n");
        let told =
            format!("no change of {} since boot still holds", args.join(" ").replace(" reset", ""));
        assert!(stderr(&output).contains(&told), "{}", stderr(&output));
    }
}

#[test]
fn profiles_are_listed_with_reasons_and_planned_without_root() {
    let text = stdout(&polyrail(&["tune", "list", "throughput"]));
    assert!(text.contains("tcp_rmem [3]") && text.contains("at least 33554432"), "{text}");
    let plan = json(&["tune", "plan", "throughput", "--json"]);
    assert_eq!(plan["name"], "tune throughput");
    for change in plan["changes"].as_array().unwrap() {
        assert!(change["reason"].as_str().unwrap().contains('['), "a source: {change}");
    }
}

#[test]
fn where_there_is_nothing_to_show_a_sentence_says_so() {
    let fixture = fixtures::no_nics();
    let root = fixture.path().to_str().unwrap();
    for (arguments, sentence) in [
        (
            &["irq", "show", "--interval", "0s"][..],
            "no network card here has interrupts of its own\n",
        ),
        (&["irq", "plan"], "every value is as planned already\n"),
        (&["irq", "apply", "--dry-run"], "every value is as planned already\n"),
    ] {
        let output = polyrail(&[arguments, &["--sysroot", root]].concat());
        assert_eq!((code(&output), stdout(&output).as_str()), (0, sentence), "{arguments:?}");
    }
}
