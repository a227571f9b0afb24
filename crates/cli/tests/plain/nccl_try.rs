//! `polyrail nccl try` with a plugin that is built here (`crates/nccl-abi/tests/plugin.c`) and does what
//! TEST_PLUGIN says.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::Value;

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
    compiler.arg("-I").arg(crates.join("nccl/harness")).arg(crates.join("nccl-abi/tests/plugin.c"));
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

/// What is found if the plugin is told this, with the exit code.
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
    for (call, text) in [
        // What has failed is tried again when the connection is closed.
        ("deregMr", "deregMr of the plugin gave 3 (an internal error), 8 times"),
        ("closeSend", "closeSend of the plugin gave 3 (an internal error), 3 times"),
        ("closeRecv", "closeRecv of the plugin gave 3 (an internal error), 3 times"),
        ("closeListen", "closeListen of the plugin gave 3 (an internal error), 3 times"),
        ("finalize", "finalize of the plugin gave 3 (an internal error)"),
    ] {
        let (code, found) = found(&format!("{call}=3"), &["--table", "11", "--device", "0"]);
        assert_eq!((code, &found["verdict"]), (1, &"fails".into()), "{call}: {found:#}");
        assert_eq!(
            (&found["fault"]["call"], &found["fault"]["text"]),
            (&call.into(), &text.into())
        );
        assert_eq!(found["close_faults"][0]["call"], call);
        assert!(
            !found["transfers"].as_array().unwrap().is_empty(),
            "the rest was tried: {found:#}"
        );
    }
    // Beside another fault they stand above it.
    let output = try_it(plugin(), "irecv=full,closeListen=3", &["--timeout", "200ms"]);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("\ncloseListen of the plugin gave 3 (an internal error).\n"), "{text}");
    assert!(text.contains("\nIt fails: irecv took no more than 0 of 1"), "{text}");
    let (_, both) = found("closeListen=3,finalize=2", &[]);
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
fn a_number_of_devices_that_no_engine_takes_is_refused() {
    let (code, absurd) = found("devices=absurd", &[]);
    let text = "devices of the plugin gave 2000000 devices; 0 to 640 are possible";
    assert_eq!((code, &absurd["fault"]["text"]), (1, &text.into()));
    let (code, crowd) = found("devices=crowd", &[]);
    let text = "the plugin has 65 devices; an engine takes 1 to 64: name some with --device";
    assert_eq!((code, &crowd["fault"]["text"]), (1, &text.into()));
    let (code, named) = found("devices=crowd", &["--device", "64"]);
    assert_eq!((code, &named["verdict"]), (0, &"works".into()), "{named:#}");
}

#[test]
fn what_ends_the_process_is_named_with_the_call() {
    let ways = [
        ("exit", "ended the process with exit code 7"),
        ("crash", "ended the process by signal 11 (segmentation fault)"),
        ("abort", "ended the process by signal 6 (abort)"),
    ];
    for (number, call) in
        ["init", "listen", "accept", "isend", "test", "closeRecv", "finalize"].iter().enumerate()
    {
        let (what, says) = ways[number % ways.len()];
        let (code, found) = found(&format!("{call}={what}"), &["--table", "12"]);
        assert_eq!(code, 1, "{found:#}");
        assert_eq!(found["fault"]["text"], format!("`{call}` {says}"), "{found:#}");
        assert_eq!(found["fault"]["call"], *call);
    }
}

#[test]
fn a_call_that_does_not_return_ends_by_the_deadline_and_leaves_no_process() {
    let begun = Instant::now();
    let (code, hung) = found("regMr=hang", &["--timeout", "200ms"]);
    assert_eq!(code, 1);
    assert_eq!(hung["fault"]["text"], "`regMr` did not return in 200ms");
    assert!(begun.elapsed() < Duration::from_secs(30));
    // Its own process can't tell this; whoever waits for it does, 2 s later.
    let (code, stopped) = found("regMr=stop", &["--timeout", "200ms"]);
    let text = "nothing came from its process any more in `regMr`";
    assert_eq!((code, &stopped["fault"]["text"]), (1, &text.into()));
    for (told, says) in [
        ("connect=never", "connect gave no connection of device 0 to itself in 200ms"),
        ("accept=never", "accept gave no connection of device 0 to itself in 200ms"),
        ("test=never", "test finished no more sends than 0 of 1 messages of 0 bytes in 200ms"),
        ("irecv=full", "irecv took no more than 0 of 1 messages of 0 bytes in 200ms"),
        ("isend=full", "isend took no more than 0 of 1 messages of 0 bytes in 200ms"),
    ] {
        let (code, found) = found(told, &["--timeout", "200ms"]);
        assert_eq!((code, &found["fault"]["text"]), (1, &says.into()), "{told}");
    }
}

#[test]
fn wrong_data_and_answers_are_named() {
    let (code, flipped) = found("test=flip", &[]);
    assert_eq!((code, &flipped["verdict"]), (5, &"wrong_data".into()));
    assert_eq!(flipped["fault"]["text"], "device 0: byte 0 of a message of 1 bytes is wrong");
    let (code, long) = found("test=long", &[]);
    assert_eq!(code, 5, "{long:#}");
    assert!(long["fault"]["text"].as_str().unwrap().contains("a length of 1048576"), "{long:#}");
    let (code, untold) = found("test=untold", &["--device", "1"]);
    assert_eq!((code, &untold["verdict"]), (0, &"works_oddly".into()));
    let faults = strings(&untold["devices"][1]["faults"]);
    assert_eq!(faults, ["does not tell the lengths of what it received"]);
    let (code, null) = found("listen=null", &[]);
    assert_eq!(
        (code, &null["fault"]["text"]),
        (1, &"listen of the plugin gave success, and no listener".into())
    );
    let (code, negative) = found("devices=negative", &[]);
    assert_eq!(code, 1);
    assert!(negative["fault"]["text"].as_str().unwrap().contains("-1 devices"), "{negative:#}");
    let (code, none) = found("devices=none", &[]);
    assert_eq!((code, &none["verdict"]), (1, &"no_device".into()));
}

#[test]
fn properties_that_cannot_be_are_told() {
    for (told, says) in [
        ("no-name", "has no name"),
        ("pci", "tells the PCI path 0000:zz; a folder of /sys is expected"),
        ("kinds", "has unknown kinds of memory (ptrSupport 0x41)"),
        ("no-speed", "tells a speed of 0 Mbit/s; NCCL takes 10000 instead"),
        ("latency", "tells a latency of NaN us"),
        ("no-comms", "allows 0 connections"),
        ("no-receives", "allows 0 messages in a receive"),
        ("no-kind", "takes no memory of the host (ptrSupport 0x0)"),
        ("type", "finishes receives in a way that NCCL does not know (netDeviceType 9, version 0)"),
        ("no-bytes", "tells a longest message of 0 bytes; 1 to 1099511627776 are possible"),
    ] {
        let (code, found) = found(&format!("getProperties={told}"), &["--device", "0"]);
        assert_eq!((code, &found["verdict"]), (0, &"works_oddly".into()), "{told}: {found:#}");
        let faults = strings(&found["devices"][0]["faults"]);
        assert_eq!(faults[0], says);
        // What NCCL makes do with, an engine may not.
        let refused = faults.iter().any(|fault| fault.contains("no engine of Polyrail takes"));
        assert_eq!(
            refused,
            ["no-name", "no-kind", "type", "no-bytes"].contains(&told),
            "{faults:?}"
        );
    }
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

/// Exit code, standard output and standard error of a bench over the plugin, if that is told this; and how long it went on
/// after it had begun to report.
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
