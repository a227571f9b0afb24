//! `polyrail doctor` and `polyrail sample` as users run them, on this machine and on copies.

use std::fs;
use std::path::Path;
use std::process::Output;

use polyrail_host::fixtures;
use serde_json::Value;

use crate::common::{polyrail, refusal, succeeded};

fn outside_ssh(arguments: &[&str]) -> Output {
    polyrail(arguments).env_remove("SSH_CONNECTION").output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn text_of(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn doctor_examines_this_machine_and_its_exit_code_says_whether_something_was_found() {
    let output = outside_ssh(&["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema_version"], 1);
    let found = report["summary"]["findings"].as_u64().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(found > 0)), "{}", stderr(&output));
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() >= 40);
    for check in checks {
        let status = check["status"].as_str().unwrap();
        let has = |field: &str| !check[field].as_array().unwrap().is_empty();
        match status {
            "finding" => assert!(has("findings"), "{check}"),
            "unknown" => assert!(has("unknown"), "{check}"),
            "not_applicable" => assert!(check["not_applicable"].is_string(), "{check}"),
            "clean" => assert!(has("evidence") && !has("findings") && !has("unknown"), "{check}"),
            other => panic!("status {other}"),
        }
    }
}

#[test]
fn a_snapshot_is_examined_like_the_machine_itself_and_holds_none_of_its_addresses() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("here.tar");
    succeeded(outside_ssh(&["host", "snapshot", text_of(&file), "--no-nvml"]));
    let said = |args: &[&str]| -> Vec<(String, String)> {
        let report: Value = serde_json::from_slice(&outside_ssh(args).stdout).unwrap();
        let checks = report["checks"].as_array().unwrap();
        let text = |check: &Value, field: &str| check[field].as_str().unwrap().to_owned();
        let all = checks.iter().map(|check| (text(check, "id"), text(check, "status")));
        // Counters move meanwhile, so findings may come and go. The set of checks that can be answered stays.
        let mut known: Vec<_> = all
            .map(|(id, status)| match status.as_str() {
                "finding" | "clean" => (id, "known".to_owned()),
                _ => (id, status),
            })
            .collect();
        known.sort();
        known
    };
    let here = said(&["doctor", "--json", "--devmem"]);
    assert_eq!(said(&["doctor", "--json", "--devmem", "--sysroot", text_of(&file)]), here);

    let content = fs::read(&file).unwrap();
    let routes = fs::read_to_string("/proc/net/route").unwrap();
    let addresses = routes.lines().skip(1).flat_map(|line| line.split_whitespace().skip(1).take(2));
    for address in addresses.filter(|address| *address != "00000000") {
        let is_there = content.windows(8).any(|window| window == address.as_bytes());
        assert!(!is_there, "{address} is in the archive");
    }
}

#[test]
fn checks_are_listed_and_explained_and_an_unknown_one_is_refused() {
    let list = stdout(&outside_ssh(&["doctor", "--explain"]));
    assert!(list.lines().count() > 40 && list.contains("bbr-without-fq"), "{list}");
    let text = stdout(&outside_ssh(&["doctor", "--explain", "bbr-without-fq"]));
    assert!(text.contains("fires when") && text.contains("default_qdisc"), "{text}");
    let message = refusal(2, &outside_ssh(&["doctor", "--explain", "bbr"]));
    assert!(
        message.contains("--explain [<ID>] `bbr`: is no check") && message.contains("help: "),
        "{message}"
    );
}

#[test]
fn wrong_values_name_option_value_and_range() {
    for (arguments, parts) in [
        (["--nic", "eth99"], ["interface `eth99`: is no network card", "allowed: "]),
        (["--rtt", "1h"], ["--rtt", "1h"]),
        (["--workers", "8-"], ["--workers", "8-"]),
        (["--workers", "8190"], ["workers `8190`: names CPUs that don't exist", "allowed: 0"]),
        (["--sysroot", "/none"], ["--sysroot", "`/none`: does not exist"]),
        (["--explain", "--devmem"], ["--explain", "cannot be used with"]),
    ] {
        let message = refusal(2, &outside_ssh(&["doctor", arguments[0], arguments[1]]));
        assert!(parts.iter().all(|part| message.contains(part)), "{arguments:?}: {message}");
    }
}

#[test]
fn a_check_whose_fix_is_no_setting_is_refused_with_its_remedy() {
    for (id, remedy) in [
        ("nccl-plugin", "polyrail nccl install"),
        ("nixl-backend", "polyrail nixl install"),
        ("bindings", "polyrail host plan bindings"),
    ] {
        for verb in ["plan", "apply"] {
            let message = refusal(1, &outside_ssh(&["host", verb, "fix", id]));
            let wanted = format!("check `{id}` can't be fixed by a setting: ");
            assert!(message.contains(&wanted) && message.contains(remedy), "{message}");
        }
    }
}

#[test]
fn wrong_settings_are_told_and_leave_the_bindings_unknown() {
    let mut command = polyrail(["doctor", "--json"]);
    let output = command.env("POLYRAIL_CHANNELS", "many").output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["id"] == "bindings").unwrap();
    assert_eq!(check["status"], "unknown", "{check:#}");
    assert!(check["unknown"][0].as_str().unwrap().contains("`many`"), "{check:#}");
}

#[test]
fn a_fix_is_shown_then_done_then_taken_back() {
    let host = fixtures::no_nics();
    let path = "/proc/sys/net/ipv4/tcp_congestion_control";
    let value = || fs::read_to_string(host.root().path(path)).unwrap();
    host.write(path, "bbr\n");
    host.write("/proc/sys/net/core/default_qdisc", "pfifo_fast\n");
    host.write("/proc/sys/kernel/hostname", "node7\n");
    host.write("/proc/sys/kernel/osrelease", "6.12.0\n");
    host.write("/proc/sys/kernel/random/boot_id", "0e3f\n");
    let state = host.path().join("state");
    let on = |arguments: &[&str]| {
        let mut command = polyrail([arguments, &["--sysroot", text_of(host.path())]].concat());
        command.env_remove("SSH_CONNECTION").env("POLYRAIL_STATE_DIR", &state).output().unwrap()
    };

    let output = on(&["doctor"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("bbr-without-fq"), "{}", stdout(&output));
    let fix = ["host", "apply", "fix", "bbr-without-fq"];
    let output = on(&[&fix[..], &["--dry-run"]].concat());
    let shown = stdout(&output);
    assert!(shown.contains(path) && shown.contains("cubic"), "{shown}{}", stderr(&output));
    assert_eq!((value().as_str(), state.exists()), ("bbr\n", false), "nothing is changed");

    succeeded(on(&fix));
    assert_eq!(value(), "cubic\n");
    let error = refusal(1, &on(&fix));
    assert!(error.contains("found nothing to fix: all is well"), "{error}");

    succeeded(on(&["host", "undo", "doctor"]));
    assert_eq!(value(), "bbr\n");
    // Undo accepts the name of one check.
    assert_eq!(on(&fix).status.code(), Some(0));
    succeeded(on(&["host", "undo", "doctor", "bbr-without-fq"]));
    assert_eq!(value(), "bbr\n");
    let plan = text_of(&host.path().join("plan.json")).to_owned();
    succeeded(on(&["host", "plan", "fix", "bbr-without-fq", "-o", &plan]));
    assert_eq!(on(&["host", "apply", &plan]).status.code(), Some(0));
    assert_eq!(value(), "cubic\n");
}

#[test]
fn of_three_hosts_the_odd_one_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = Vec::new();
    for (name, mtu) in [("node1", "8896"), ("node2", "8896"), ("node3", "1500")] {
        let host = fixtures::a3_high();
        host.write("/proc/sys/kernel/hostname", name);
        host.write("/sys/class/net/eth2/mtu", mtu);
        let output = outside_ssh(&["doctor", "--json", "--sysroot", text_of(host.path())]);
        let file = folder.path().join(format!("{name}.json"));
        fs::write(&file, &output.stdout).unwrap();
        files.push(file);
    }
    let files: Vec<&str> = files.iter().map(|path| text_of(path)).collect();
    let output = outside_ssh(&[&["doctor", "--fleet"], files.as_slice()].concat());
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(text.starts_with("node3 differs most from the other hosts"), "{text}");
    assert!(text.contains("eth2: MTU\n  8896  (2 of 3)\n> 1500  (node3)\n"), "{text}");
    let output = outside_ssh(&["doctor", "--fleet", files[0], files[0]]);
    assert_eq!(output.status.code(), Some(0));
    let output = outside_ssh(&["doctor", "--fleet", files[0]]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("1 report to compare; allowed: 2 or more"));
}

fn records(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn sample_writes_a_start_samples_and_an_end() {
    let pid = std::process::id().to_string();
    let arguments = ["sample", "--interval", "100ms", "--time", "300ms", "--pid", pid.as_str()];
    let output = succeeded(outside_ssh(&arguments));
    let records = records(&stdout(&output));
    let kinds: Vec<&str> =
        records.iter().map(|record| record["record"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["start", "sample", "sample", "sample", "end"]);
    assert_eq!(records[0]["pids"][0], std::process::id());
    assert!(records[4]["cpu_percent"].is_f64() && records[4]["peak_rss_bytes"].is_u64());
    assert!(stderr(&output).contains("of a CPU"), "{}", stderr(&output));
}

#[test]
fn sample_writes_over_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.jsonl");
    let sample = |more: &[&str]| {
        let arguments = ["sample", "--interval", "100ms", "--time", "100ms", "--out"];
        outside_ssh(&[arguments.as_slice(), more].concat())
    };
    assert_eq!(sample(&[text_of(&file)]).status.code(), Some(0));
    let first = fs::read_to_string(&file).unwrap();
    let message = refusal(2, &sample(&[text_of(&file)]));
    assert!(message.contains("run.jsonl`: is there already"), "{message}");
    assert!(message.contains("help: name another file"), "{message}");
    assert_eq!(fs::read_to_string(&file).unwrap(), first);
    // A device exists already, too, but writing loses nothing.
    assert_eq!(sample(&["/dev/null"]).status.code(), Some(0));
}

#[test]
fn sample_refuses_what_is_not_there() {
    for (option, value, code, part) in [
        (
            "--pid",
            "4294967295",
            2,
            "process `4294967295`: does not exist; allowed: a process of this machine",
        ),
        ("--nic", "eth99", 2, "interface `eth99`: does not exist; allowed: "),
        ("--interval", "1ms", 2, "`1ms`: out of range; allowed: 100ms to 1h"),
        ("--out", "/none/x.jsonl", 2, "`/none/x.jsonl`: can't be written: /none: "),
        ("--sysroot", "/none", 2, "`/none`: does not exist; allowed: a folder"),
    ] {
        let error = refusal(code, &outside_ssh(&["sample", "--time", "1s", option, value]));
        assert!(error.contains(part), "{option}: {error}");
    }
}

#[test]
fn bench_with_samples_names_their_file_and_follows_both_processes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.jsonl");
    let output = succeeded(outside_ssh(&[
        "bench",
        "--sizes",
        "1MiB",
        "--time",
        "1s",
        "--rounds",
        "2",
        "--json",
        "-",
        "--sample",
        text_of(&file),
    ]));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["samples_file"], text_of(&file));
    let notes = report["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().starts_with("sampling took")));
    let records = records(&fs::read_to_string(&file).unwrap());
    assert_eq!(records[0]["pids"].as_array().unwrap().len(), 2, "{}", records[0]);
    assert_eq!(records.last().unwrap()["record"], "end");
    let proxies = records.iter().filter_map(|record| record["threads"].as_array()).flatten();
    let names: Vec<&str> = proxies.filter_map(|thread| thread["name"].as_str()).collect();
    assert!(names.iter().any(|name| name.starts_with("pr-")), "{names:?}");
    let flows = records.iter().filter_map(|record| record["flows"].as_array()).flatten();
    assert!(flows.filter(|flow| flow["tx_bytes"].as_u64().unwrap() > 0).count() > 0);
}
