//! `polyrail host show`, `snapshot` and `plan bindings`, on fixtures and on this machine.

use std::path::Path;
use std::process::Command;

use polyrail_host::fixtures;
use serde_json::Value;

use crate::common::golden::assert_golden;
use crate::common::{PROGRAM, outcome, polyrail, refusals, run};

/// Standard output of a run that exits with 0 and prints nothing on standard error.
fn quietly(args: &[&str]) -> String {
    let output = run(args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.is_empty(), "{args:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&quietly(args)).unwrap()
}

fn at(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn show_gives_each_gpu_of_the_a3_high_its_interface() {
    let fixture = fixtures::a3_high();
    let root = at(fixture.path());
    let document = json(&["host", "show", "--json", "--sysroot", root]);
    assert_eq!(document["schema_version"], 1);
    assert_eq!(document["cpus"]["online"], "0-207");
    assert_eq!(document["matrix"][0][1], "PIX");
    assert_eq!(document["nics"][1]["pci"]["address"], "0000:06:00.0");
    assert_eq!(document["nics"][1]["details"], Value::Null, "only the running machine has them");
    let best = document["best_nic"].as_array().unwrap();
    let best: Vec<&str> = best.iter().map(|choice| choice["nic"].as_str().unwrap()).collect();
    assert_eq!(best, ["eth1", "eth1", "eth2", "eth2", "eth3", "eth3", "eth4", "eth4"]);

    let part = |view: &[&str]| quietly(&[&["host", "show", "--sysroot", root], view].concat());
    assert_eq!(part(&[]), part(&["tree"]) + "\n" + &part(&["matrix"]));
    assert_golden("topo/a3_high", &part(&[]));
    assert!(part(&["nccl-xml"]).starts_with("<system version"));
}

#[test]
fn show_has_what_nvml_told_when_the_snapshot_was_taken() {
    let fixture = fixtures::a3_high();
    // Two of eight GPUs; the others, and fields left out here, are unknown.
    let links = vec!["{\"is_active\":true}"; 18].join(",");
    let gpu = |address: &str| {
        format!(
            "{{\"address\":\"{address}\",\"uuid\":\"GPU-1\",\"memory_bytes\":150754820096,\
             \"pcie_generation\":5,\"nvlinks\":[{links}]}}"
        )
    };
    let report = format!(
        "{{\"schema_version\":1,\"driver_version\":\"570.86.15\",\"cuda_version\":\"12.8\",\
         \"gpus\":[{},{}]}}",
        gpu("0000:04:00.0"),
        gpu("0000:0a:00.0")
    );
    fixture.write("/polyrail/nvml.json", &report);
    let root = at(fixture.path());
    let document = json(&["host", "show", "--json", "--sysroot", root]);
    assert_eq!(document["nvml"]["driver_version"], "570.86.15");
    let details = &document["gpus"][0]["details"];
    assert_eq!(details["memory_bytes"], 150_754_820_096_u64);
    assert_eq!(details["pcie_width_lanes"], Value::Null);
    assert_eq!(details["nvlink_peers"][0]["links"], 18);
    assert_eq!(document["gpus"][1]["details"], Value::Null);
    assert_eq!(document["gpu_matrix"][0][2], "NV18");
    assert_eq!(document["gpu_matrix"][0][1], "PIX");

    // Without a report, show prints nothing about NVLinks.
    let plain = quietly(&["host", "show", "--sysroot", at(fixtures::a3_high().path())]);
    let text = quietly(&["host", "show", "--sysroot", root]);
    let is_new = |line: &&str| !plain.lines().any(|known| known == *line);
    let new: Vec<&str> = text.lines().filter(is_new).collect();
    assert_golden("topo/nvml", &(new.join("\n") + "\n"));
}

#[test]
fn show_says_what_it_does_not_know() {
    let fixture = fixtures::unknown_nodes();
    let root = at(fixture.path());
    let text = quietly(&["host", "show", "--sysroot", root]);
    assert_golden("topo/unknown_nodes", &text);
    let document = json(&["host", "show", "--json", "--sysroot", root]);
    assert_eq!(document["nics"][0]["node"], Value::Null);
    assert_eq!(document["matrix"][1][0], Value::Null);
}

#[test]
fn show_knows_this_machine() {
    let document = json(&["host", "show", "--json"]);
    assert!(!document["cpus"]["list"].as_array().unwrap().is_empty());
    assert!(document["allowed_cpus"].is_string());
    assert!(!quietly(&["host", "show"]).is_empty());
    for nic in document["nics"].as_array().unwrap() {
        assert!(nic["details"].is_object(), "{nic}");
    }
}

#[test]
fn a_snapshot_is_shown_like_the_machine_itself_and_never_overwrites() {
    let fixture = fixtures::mlx5_four_nodes();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("four.tar");
    let take = ["host", "snapshot", at(&file), "--sysroot", at(fixture.path())];
    let (code, stdout, stderr) = outcome(&take);
    assert_eq!((code, stdout.as_str()), (0, ""));
    assert!(stderr.contains("files and"), "{stderr}");
    let shown = |root: &Path| quietly(&["host", "show", "--json", "--sysroot", at(root)]);
    assert_eq!(shown(&file), shown(fixture.path()));

    let (code, _, stderr) = outcome(&take);
    assert_eq!(code, 2);
    assert!(stderr.contains("four.tar`: is there already"), "{stderr}");
    let output = run(&["host", "snapshot", "-", "--sysroot", at(fixture.path())]);
    assert!(output.status.success() && output.stdout.len() > 100_000);
}

#[test]
fn a_sysroot_that_is_none_is_refused_with_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let here = |words: &[&str]| polyrail(words).current_dir(&folder).output().unwrap();
    let commands: [&[&str]; 3] = [
        &["host", "show", "--sysroot", "."],
        &["host", "show", "--sysroot", "/no/such/place"],
        &["host", "show", "tree", "--json"],
    ];
    assert_golden("topo/no_sysroot", &refusals(2, here, &commands));
}

#[test]
fn suggested_bindings_are_lines_for_the_environment_that_show_finds_right() {
    let fixture = fixtures::a3_high();
    let root = at(fixture.path());
    let text = quietly(&["host", "plan", "bindings", "--sysroot", root]);
    assert_golden("topo/bindings", &text);
    let tx = "eth1:8-14,112-118;eth2:15-21,119-125;eth3:60-66,164-170;eth4:67-73,171-177";
    let rx = "eth1:22-28,126-132;eth2:29-35,133-139;eth3:74-80,178-184;eth4:81-87,185-191";
    assert!(text.contains(&format!("export POLYRAIL_TX_BINDINGS='{tx}'\n")), "{text}");
    assert!(text.ends_with(&format!("export POLYRAIL_RX_BINDINGS='{rx}'\n")), "{text}");
    let document =
        json(&["host", "plan", "bindings", "--json", "--sysroot", root, "--nic", "eth3"]);
    assert_eq!(document["tx"], "eth3:60-73,164-177");

    // One warning: the first interface's CPUs include those of the driver's interrupts. Nothing else is wrong.
    let shown = quietly(&["host", "show", "bindings", tx, rx, "--sysroot", root]);
    let findings: Vec<&str> = shown.lines().skip_while(|line| !line.is_empty()).skip(1).collect();
    assert_eq!(findings.len(), 2, "{shown}");
    assert!(findings.iter().all(|line| line.ends_with("[irq-inside tx]")), "{shown}");
    let avoid = ["host", "show", "bindings", "eth1:16-21", "eth1:22-27", "--sysroot", root];
    assert_eq!(quietly(&avoid).lines().count(), 2, "a heading and a row");
    let wrong = outcome(&["host", "show", "bindings", "eth1:999", "--sysroot", root]);
    assert!(wrong.0 == 1 && wrong.1.contains("\nerror: "), "{wrong:?}");
}

#[test]
fn a_wrong_binding_is_pointed_at() {
    let (code, stdout, stderr) = outcome(&["host", "show", "bindings", "eth1:8-21;eth2:9-x"]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    let lines: Vec<&str> = stderr.lines().collect();
    assert!(
        lines[0].contains("[VALUE]... `eth1:8-21;eth2:9-x`: has a list for eth2")
            && lines[0].contains("column 16"),
        "{stderr}"
    );
    assert!(lines[1].starts_with("help: "), "{stderr}");
    let page = include_str!("../../../../docs/topology.md");
    assert!(
        page.contains(&format!("```text\n{stderr}```")),
        "docs/topology.md shows another error than\n{stderr}"
    );
    assert_eq!(outcome(&["host", "show", "bindings"]).0, 2);
    assert_eq!(outcome(&["host", "plan", "bindings", "--avoid", "x"]).0, 2);
}

#[test]
fn bindings_of_the_settings_are_shown_by_interface() {
    let fixture = fixtures::a3_high();
    let root = at(fixture.path());
    let show = |extra: &[&str]| {
        let mut command = polyrail(["host", "show", "bindings", "--sysroot", root]);
        command.env("NCCL_GPUDIRECTTCPX_TX_BINDINGS", "eth1:60;eth3:61");
        command.env("POLYRAIL_RX_BINDINGS", "eth1:20");
        command.args(extra).output().unwrap()
    };
    let output = show(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert_golden("topo/bindings_of_settings", &text);
    let document: Value = serde_json::from_slice(&show(&["--json"]).stdout).unwrap();
    assert_eq!(document["nics"][0]["rx"], "20");
    assert_eq!(document["findings"][0]["id"], "off-node");
}

#[test]
fn no_interface_to_bind_is_a_negative_answer() {
    let fixture = fixtures::no_nics();
    let (code, stdout, stderr) =
        outcome(&["host", "plan", "bindings", "--sysroot", at(fixture.path())]);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("no network card of this machine is up"), "{stderr}");
}

#[test]
fn text_of_a_foreign_machine_does_not_steer_the_terminal() {
    let steers = |text: &str| text.chars().any(|one| one.is_control() && one != '\n');
    let evil = "\u{1b}]0;owned\u{7}\u{9b}2J";
    let fixture = fixtures::a3_high();
    fixture.write("/proc/cpuinfo", &format!("processor : 0\nmodel name : {evil}\n"));
    fixture.write("/sys/class/net/eth1/operstate", evil);
    let root = at(fixture.path());
    for arguments in
        [&["host", "show"][..], &["host", "show", "--json"], &["doctor"], &["host", "show", "irq"]]
    {
        let (_, stdout, stderr) = outcome(&[arguments, &["--sysroot", root]].concat());
        assert!(!steers(&stdout) && !steers(&stderr), "{arguments:?}: {stdout}{stderr}");
    }
    assert!(
        quietly(&["host", "show", "--sysroot", root]).contains("\\u001b]0;owned\\u0007\\u009b2J")
    );

    // A damaged value is unknown, and the tools go on.
    fixture.write("/sys/devices/system/cpu/online", evil);
    for arguments in [&["host", "show"][..], &["doctor"]] {
        let (_, stdout, stderr) = outcome(&[arguments, &["--sysroot", root]].concat());
        assert!(!stdout.is_empty() && !steers(&stdout) && !steers(&stderr), "{stdout}{stderr}");
    }
    let file = format!("{root}/{evil}");
    let (code, stdout, stderr) = outcome(&["host", "show", "--sysroot", &file]);
    assert!(code != 0 && stdout.is_empty() && stderr.contains("]0;owned"), "{stderr}");
    assert!(!steers(&stderr), "{stderr}");
    // clap prints the error of this option's parser.
    let (code, _, stderr) = outcome(&["sample", "--sysroot", &file]);
    assert_eq!(code, 2);
    assert!(stderr.starts_with("polyrail: --sysroot") && !steers(&stderr), "{stderr}");
}

#[test]
fn interrupts_that_a_container_hides_are_named_and_end_no_topology() {
    let script = "mount --bind /dev/null /proc/interrupts && exec \"$@\"";
    let hidden = |args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh", PROGRAM]);
        command.args(args).output().unwrap()
    };
    if !hidden(&["--version"]).status.success() {
        let run = "sudo -E cargo test -p polyrail-cli --test plain hide";
        return polyrail_skip::skip("a mount namespace needs root", run);
    }
    assert!(hidden(&["host", "show", "tree"]).status.success());
    for args in [&["host", "show", "irq", "--interval", "0s"][..], &["host", "plan", "irq"]] {
        let output = hidden(args);
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{args:?}: {text}");
        assert!(
            text.contains("/proc/interrupts is empty: this container hides"),
            "{args:?}: {text}"
        );
    }
}
