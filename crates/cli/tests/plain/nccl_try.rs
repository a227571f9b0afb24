//! `polyrail nccl try` with a plugin that is built here (`crates/engine/nccl-abi/tests/plugin.c`) and obeys
//! TEST_PLUGIN.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::golden::assert_golden;
use crate::common::{fit, polyrail};

fn build(definition: &str) -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let library =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("libnccl-net-try{definition}.so"));
    let mut compiler = Command::new("cc");
    compiler.args([
        "-std=c11",
        "-D_GNU_SOURCE",
        "-w",
        "-O1",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
    ]);
    compiler.args((!definition.is_empty()).then(|| format!("-D{definition}")));
    compiler
        .arg("-I")
        .arg(crates.join("faces/nccl/harness"))
        .arg(crates.join("engine/nccl-abi/tests/plugin.c"));
    let status = compiler.args(["-pthread", "-o"]).arg(&library).status();
    assert!(status.expect("a C compiler").success());
    library
}

pub(crate) fn plugin() -> &'static str {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build("")).to_str().unwrap()
}

fn try_it(library: &str, told: &str, more: &[&str]) -> Output {
    let mut command = polyrail(["nccl", "try", library]);
    command.args(more).env("TEST_PLUGIN", told);
    command.env("TEST_PLUGIN_KEEP", "old").env("TEST_PLUGIN_GONE", "old").output().unwrap()
}

/// Exit code and JSON of a trial in which the plugin gets this order.
fn found(told: &str, more: &[&str]) -> (i32, Value) {
    let output = try_it(plugin(), told, &[&["--json"], more].concat());
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let document = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{told}: {text}{errors}"));
    fit::fits("nccl-try", &document, told);
    (output.status.code().unwrap(), document)
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect()
}

/// Cases are exit code, verdict, order to the plugin, and options. A line of the golden file has the call that the
/// order makes fail, if the fault names it; the fault; `transfers` if any was tried; the call that failed to end
/// something; and faults of devices.
#[track_caller]
fn check(golden: &str, cases: &[(i32, &str, &str, &str)]) {
    let line = |(code, verdict, told, options): &(i32, &str, &str, &str)| {
        let (ended, found) = found(told, &options.split_whitespace().collect::<Vec<_>>());
        assert_eq!((ended, &found["verdict"]), (*code, &(*verdict).into()), "{told}: {found:#}");
        let (fault, end) = (&found["fault"], &found["close_faults"][0]["call"]);
        let call = fault["call"].as_str().filter(|call| told.starts_with(call));
        let devices = found["devices"].as_array().into_iter().flatten().zip(0..);
        let faults = devices.flat_map(|(device, index): (_, u32)| {
            strings(&device["faults"])
                .into_iter()
                .map(move |fault| format!("device {index}: {fault}"))
        });
        let tried = found["transfers"].as_array().is_some_and(|all| !all.is_empty());
        let words = [call, fault["text"].as_str(), tried.then_some("transfers"), end.as_str()];
        let words = words.into_iter().flatten().map(str::to_owned);
        let case = format!("{told} {options}").trim_end().to_owned();
        [case].into_iter().chain(words).chain(faults).collect::<Vec<_>>().join(" | ") + "\n"
    };
    assert_golden(golden, &cases.iter().map(line).collect::<String>());
}

#[test]
fn every_version_of_a_good_plugin_works() {
    for version in 5..=12 {
        let (code, found) = found("", &["--table", &version.to_string(), "--device", "0"]);
        assert_eq!((code, &found["verdict"]), (0, &"works".into()), "{found:#}");
        assert_eq!(found["version"], version);
        let transfers = found["transfers"].as_array().unwrap();
        let of = |memory: &str| -> Vec<u64> {
            let of_it = transfers.iter().filter(|one| one["memory"] == memory);
            of_it.map(|one| one["bytes"].as_u64().unwrap()).collect()
        };
        let as_nccl = [0, 1, 13, 4096, 65_537, 524_288, 1_048_577, 4_194_304, 10_007];
        assert_eq!(of("host"), as_nccl);
        assert_eq!(of("host, by an engine"), [1, 13, 4096, 65_537, 1_048_577, 4_194_304]);
        assert_eq!(found["devices"][1]["name"], "test1");
    }
    let (_, found) = found("", &["--device", "1"]);
    let transfers = found["transfers"].as_array().unwrap();
    assert!(!transfers.is_empty() && transfers.iter().all(|one| one["device"] == 1));
    let text = try_it(plugin(), "", &[]);
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.ends_with("It works.\n") && text.contains("Every byte was right."), "{text}");
}

#[test]
fn an_error_of_each_call_is_named() {
    let calls = [
        "init",
        "devices",
        "getProperties",
        "listen",
        "connect",
        "accept",
        "regMr",
        "isend",
        "irecv",
        "test",
        "irecvConsumed",
        "iflush",
    ];
    for call in calls {
        let (code, found) = found(&format!("{call}=3,getProperties=flush"), &["--table", "12"]);
        assert_eq!((code, &found["verdict"]), (1, &"fails".into()), "{call}: {found:#}");
        let fault = &found["fault"];
        assert_eq!(fault["text"], format!("{call} of the plugin gave 3 (an internal error)"));
        let warned = format!("{call} is told to fail with 3");
        assert!(strings(&found["said"]).contains(&warned.as_str()), "{found:#}");
    }
}

#[test]
fn what_fails_to_end_something_makes_the_trial_fail_in_the_end() {
    let calls = ["deregMr", "closeSend", "closeRecv", "closeListen", "finalize"];
    // A call that failed is tried again when the connection is closed.
    let told = calls.map(|call| format!("{call}=3"));
    let cases = told.each_ref().map(|told| (1, "fails", told.as_str(), "--table 11 --device 0"));
    check("nccl_try/ends", &cases);
    let (_, found) = found("closeSend=3", &["--table", "11", "--device", "0"]);
    assert!(!found["transfers"].as_array().unwrap().is_empty(), "the rest was tried: {found:#}");
    // These errors are printed above another fault.
    let output = try_it(plugin(), "irecv=full,closeListen=3", &["--timeout", "200ms"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\ncloseListen of the plugin gave 3 (an internal error).\n"), "{text}");
    assert!(text.contains("\nIt fails: irecv took no more than 0 of 1"), "{text}");
    let (_, both) = self::found("closeListen=3,finalize=2", &[]);
    let text = both["fault"]["text"].as_str().unwrap();
    assert!(text.ends_with("6 times; finalize of the plugin gave 2 (a system error)"), "{text}");
}

#[test]
fn only_what_passed_whole_ends_with_every_byte_being_right() {
    for (told, bytes, end) in [
        (
            "finalize=3",
            "Every byte that came was right.",
            "It fails: finalize of the plugin gave 3 (an internal error).",
        ),
        (
            "irecv=full",
            "",
            "It fails: irecv took no more than 0 of 1 messages of 0 bytes in 200ms.",
        ),
        (
            "test=flip",
            "",
            "It brings wrong data: device 0: byte 0 of a message of 1 bytes is wrong.",
        ),
    ] {
        let limit: &[&str] = if told == "irecv=full" { &["--timeout", "200ms"] } else { &[] };
        let output = try_it(plugin(), told, limit);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let right: Vec<&str> = text.lines().filter(|line| line.starts_with("Every byte")).collect();
        assert_eq!(right.join(""), bytes, "{told}: {text}");
        assert!(text.ends_with(&format!("\n{end}\n")), "{told}: {text}");
    }
}

#[test]
fn what_ends_the_process_is_named_with_the_call() {
    let cases = [
        "init=exit",
        "listen=crash",
        "accept=abort",
        "isend=exit",
        "test=crash",
        "closeRecv=abort",
        "finalize=exit",
    ];
    check("nccl_try/process_ends", &cases.map(|told| (1, "fails", told, "--table 12")));
}

#[test]
fn a_call_that_does_not_return_ends_by_the_deadline_and_leaves_no_process() {
    let begun = Instant::now();
    let cases = [
        "regMr=hang",
        // The plugin's process can't report this. The process that waits for it does, 2 s later.
        "regMr=stop",
        "connect=never",
        "accept=never",
        "test=never",
        "irecv=full",
        "isend=full",
    ];
    check("nccl_try/deadline", &cases.map(|told| (1, "fails", told, "--timeout 200ms")));
    assert!(begun.elapsed() < Duration::from_secs(60));
}

#[test]
fn wrong_data_answers_and_properties_are_named() {
    check(
        "nccl_try/wrong",
        &[
            (5, "wrong_data", "test=flip", ""),
            (5, "wrong_data", "test=long", ""),
            (0, "works_oddly", "test=untold", "--device 1"),
            (1, "fails", "listen=null", ""),
            (1, "fails", "devices=absurd", ""),
            (1, "fails", "devices=crowd", ""),
            (0, "works", "devices=crowd", "--device 64"),
            (1, "fails", "devices=negative", ""),
            (1, "no_device", "devices=none", ""),
            (0, "works_oddly", "getProperties=no-name", "--device 0"),
            (0, "works_oddly", "getProperties=pci", "--device 0"),
            (0, "works_oddly", "getProperties=kinds", "--device 0"),
            (0, "works_oddly", "getProperties=no-speed", "--device 0"),
            (0, "works_oddly", "getProperties=latency", "--device 0"),
            (0, "works_oddly", "getProperties=no-comms", "--device 0"),
            (0, "works_oddly", "getProperties=no-receives", "--device 0"),
            (0, "works_oddly", "getProperties=no-kind", "--device 0"),
            (0, "works_oddly", "getProperties=type", "--device 0"),
            (0, "works_oddly", "getProperties=no-bytes", "--device 0"),
        ],
    );
}

#[test]
fn what_a_plugin_leaves_in_its_process_is_told() {
    let told = "init=thread,init=handler,init=env,init=file";
    let (code, found) = found(told, &["--table", "12"]);
    assert_eq!((code, &found["verdict"]), (0, &"works_oddly".into()), "{found:#}");
    let left = &found["left"];
    assert_eq!(left["threads"][0]["name"], "test-plugin-rx");
    let cpus = left["threads"][0]["cpus"].as_str().unwrap();
    assert!(cpus.parse::<u32>().is_ok(), "one CPU: {cpus}");
    assert_eq!(strings(&left["descriptors"]), ["/dev/null"]);
    let changes = [
        "TEST_PLUGIN_KEEP has another value",
        "TEST_PLUGIN_WAS is set",
        "TEST_PLUGIN_GONE is gone",
    ];
    assert_eq!(strings(&left["environment"]), changes);
    let handlers = ["signal 11: a function is called", "signal 17: it is ignored"];
    assert_eq!(strings(&left["signal_handlers"]), handlers);
}

#[test]
fn memory_of_a_gpu_that_cannot_be_tried_is_told() {
    for (kind, says) in [
        ("cuda", "memory of a GPU on device 0: there is none ("),
        ("dma-buf", "memory of a GPU on device 0, which takes it by DMA-BUF alone"),
    ] {
        let mut command = polyrail(["nccl", "try", plugin(), "--device", "0", "--json"]);
        command.env("TEST_PLUGIN", format!("getProperties={kind}")).env("CUDA_VISIBLE_DEVICES", "");
        let output = command.output().unwrap();
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        fit::fits("nccl-try", &found, kind);
        assert_eq!(output.status.code(), Some(0), "{found:#}");
        let told = strings(&found["not_tried"]);
        assert!(told.len() == 1 && told[0].starts_with(says), "{told:?}");
    }
}

#[test]
fn what_is_no_plugin_is_told() {
    for definition in ["NO_TABLE", "UNKNOWN_TABLE"] {
        let library = build(definition);
        let output = try_it(library.to_str().unwrap(), "", &["--json"]);
        assert_eq!(output.status.code(), Some(3));
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        fit::fits("nccl-try", &found, definition);
        assert_eq!(found["verdict"], "no_plugin");
        let text = found["fault"]["text"].as_str().unwrap();
        assert!(text.ends_with("exports no ncclNetPlugin_v5 to _v12"), "{text}");
    }
    let output = try_it("not-installed", "", &[]);
    assert_eq!(output.status.code(), Some(3));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("tried: not-installed, libnccl-net-not-installed.so"), "{error}");
    assert!(error.contains("name it as NCCL_NET_PLUGIN does"), "{error}");
    let output = try_it("libc.so.6", "", &[]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("libc.so.6 exports no ncclNetPlugin_v5"), "{error}");
    assert!(error.contains("name a net plugin of NCCL"), "{error}");
    let (code, found) = found("", &["--device", "7"]);
    assert_eq!(
        (code, &found["fault"]["text"]),
        (1, &"there is no device 7; the plugin has 2".into())
    );
}

/// Exit code, standard output and standard error of a bench over the plugin with this order, and the time from the
/// first byte of the report to the end.
fn bench(told: &str) -> (Option<i32>, String, String, Duration) {
    let folder = tempfile::tempdir().unwrap();
    let mut command =
        polyrail(["bench", "--sizes", "64KiB", "--rounds", "1", "--time", "100ms", "--json", "-"]);
    command.args(["--set", &format!("rails=plugin:{}", plugin())]);
    command.env("TEST_PLUGIN", told).env("XDG_STATE_HOME", folder.path());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let (mut out, mut errors) = (String::new(), String::new());
    stdout.by_ref().take(1).read_to_string(&mut out).unwrap();
    let reports = Instant::now();
    stdout.read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    let status = child.wait().unwrap();
    (status.code(), out, errors, reports.elapsed())
}

#[test]
fn a_plugin_that_exits_within_an_engine_is_named() {
    for function in ["init", "listen"] {
        let (code, _, text, _) = bench(&format!("{function}=exit"));
        assert_ne!(code, Some(0), "{text}");
        let named =
            format!("error: a plugin that this process hosts has ended it, from `{function}`");
        assert!(text.contains(&named), "{text}");
    }
}

#[test]
fn what_a_plugin_prints_is_no_part_of_what_programs_read() {
    let (code, out, errors, _) = bench("init=print");
    assert_eq!(code, Some(0), "{errors}");
    let document: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}"));
    fit::fits("bench", &document, "init=print");
    assert!(errors.contains("hello from init"), "{errors}");
}

#[test]
fn a_plugin_that_keeps_the_process_from_ending_is_told() {
    let (code, out, errors, end) = bench("end=hang");
    assert!(end < Duration::from_secs(60), "{end:?}");
    assert!(serde_json::from_str::<Value>(&out).is_ok(), "what was measured is there: {out}");
    assert_eq!(code, Some(1), "{errors}");
    assert!(errors.contains("has kept it from ending for 10 s"), "{errors}");
}
