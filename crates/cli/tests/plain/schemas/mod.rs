//! Every JSON that the command writes fits its schema in `schemas/`, on this machine and on copies of every kind. A
//! field that the schema does not describe is a fault.

mod inspect;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Output, Stdio};

use polyrail::{Config, Engine, Memory, Request};
use polyrail_host::fixtures::{self, Fixture};
use polyrail_lab::availability;
use polyrail_profile::PathKind;
use polyrail_profile::synthetic::Machine;
use polyrail_rendezvous::{Membership, join};
use serde_json::{Value, json};

use crate::common::fit::{faults, fits, schema};
use crate::common::{PROGRAM, polyrail, repository, run};

/// Every schema, each tested by a command below.
const SCHEMAS: &[&str] = &[
    "analyze",
    "applied",
    "bench",
    "bindings-show",
    "bindings-suggest",
    "change-plan",
    "collective",
    "config",
    "doctor",
    "doctor-fleet",
    "doctor-list",
    "experiment",
    "irq-show",
    "irq-watch",
    "lab-ls",
    "log",
    "mesh",
    // `nccl_try` tests this one, because it has a plugin.
    "nccl-try",
    "nccl-tune",
    "nic-rss",
    "nic-settings",
    "nic-stats",
    "peers",
    "peers-watch",
    "profile-plan",
    "restored",
    "sample",
    "stats",
    "sweep",
    "top",
    "topo",
    "verified",
];

/// Standard output of a command, whose exit code may be a verdict.
fn printed(args: &[&str]) -> String {
    let output = run(args);
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn prints(name: &str, args: &[&str]) {
    let document = serde_json::from_str(&printed(args)).unwrap();
    fits(name, &document, &args.join(" "));
}

fn machines() -> Vec<Fixture> {
    vec![
        fixtures::a3_high(),
        fixtures::mlx5_four_nodes(),
        fixtures::laptop(),
        fixtures::container(),
        fixtures::cpu_holes(),
        fixtures::unknown_nodes(),
        fixtures::cpus_512(),
        fixtures::no_nics(),
    ]
}

#[test]
fn the_schemas_are_complete_and_named_on_the_page() {
    let found: BTreeSet<String> = fs::read_dir(repository().join("schemas"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    let known: BTreeSet<String> = SCHEMAS.iter().map(|name| format!("{name}.json")).collect();
    assert_eq!(found, known, "each schema needs a test here");
    let page = fs::read_to_string(repository().join("docs/json.md")).unwrap();
    for name in SCHEMAS {
        assert!(page.contains(&format!("(../schemas/{name}.json)")), "docs/json.md lacks {name}");
        let faults = inspect::faults(&schema(name));
        assert!(faults.is_empty(), "schemas/{name}.json:\n{}", faults.join("\n"));
    }
}

#[test]
fn who_is_in_a_group_fits() {
    let folder = tempfile::tempdir().unwrap();
    let place = format!("rendezvous=dir://{}", folder.path().display());
    let config = Config::builder().set("rails", "127.0.0.1").unwrap();
    let config = config.set_pair(&place).unwrap().build().unwrap();
    let engine = Engine::builder().config(config).name("a").build().unwrap();
    let group = join(&engine, &Membership::new("g").unwrap().name("a").unwrap()).unwrap();
    let args = ["peers", "--group", "g", "--json", "--set", &place];
    let text = printed(&args);
    fits("peers", &serde_json::from_str(&text).unwrap(), "peers");
    let lines = printed(&[&args[..], &["--watch", "1s"]].concat());
    assert_eq!(lines.lines().count(), 1, "{lines}");
    for line in lines.lines() {
        fits("peers-watch", &serde_json::from_str(line).unwrap(), "peers --watch");
    }
    let left = json!({
        "schema_version": 1, "time_unix_s": 0.5, "event": "left", "name": "a", "member": null,
    });
    fits("peers-watch", &left, "one that left");
    assert!(printed(&["peers", "--group", "h", "--set", &place]).contains("group h"));
    group.leave();
}

#[test]
fn what_an_experiment_found_out_fits() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let text =
        "command: echo 1{kind}\nfigure: '([0-9]+)'\nbetter: lower\nfactors:\n  kind: [0, 1]\n";
    for (name, more) in [("enough", "blocks: 8\n"), ("short", "time: 0s\n"), ("one", "time: 1ms\n")]
    {
        fs::write(at(name), format!("{text}{more}")).unwrap();
        prints(
            "experiment",
            &["experiment", "run", &at(name), "--json", "--out", &at(&format!("{name}-out"))],
        );
    }
}

#[test]
fn what_a_sweep_found_fits() {
    let bench = "--sizes 64KiB --iters 4 --depth 1 --warmup 1ms --rounds 1 --verify off --rails 1";
    let over = ["--over", "channels=1,2", "--over", "chunk_bytes=256KiB"];
    let words =
        [&["experiment", "sweep", "--rounds", "1", "--json", "--bench", bench][..], &over].concat();
    prints("sweep", &words);
}

#[test]
fn what_nccl_tune_found_fits() {
    let job = ["--figure", "ms ([0-9]+)", "--over", "NCCL_BUFFSIZE=1,2", "--"];
    // A verdict, no verdict for lack of time, and a value that is left out.
    for (budget, script) in [
        ("20s", r#"echo "ms $((1000 / ${NCCL_BUFFSIZE:-1} + $$ % 5))""#),
        ("1s", "sleep 0.4; echo ms 1"),
        ("1s", r#"[ "$NCCL_BUFFSIZE" = 2 ] && exit 1; sleep 0.4; echo ms 1"#),
    ] {
        let tune = ["nccl", "tune", "--json", "--budget", budget];
        prints("nccl-tune", &[&tune[..], &job, &["sh", "-c", script]].concat());
    }
}

#[test]
fn what_is_read_of_machines_fits() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let mut reports = Vec::new();
    for (place, machine) in machines().iter().enumerate() {
        let root = machine.path().to_str().unwrap();
        for (name, args) in [
            ("topo", &["host", "show", "--json"][..]),
            ("bindings-suggest", &["host", "plan", "bindings", "--json"]),
            (
                "bindings-show",
                &["host", "show", "bindings", "eth0:0;eth1:1", "eth0:0;eth9:999", "--json"],
            ),
            ("irq-show", &["host", "show", "irq", "--interval", "0s", "--json"]),
            ("change-plan", &["host", "plan", "irq", "--json"]),
            ("change-plan", &["host", "plan", "tune", "throughput", "--json"]),
            ("change-plan", &["host", "plan", "tune", "zerocopy", "--json"]),
            ("doctor", &["doctor", "--devmem", "--json"]),
        ] {
            prints(name, &[args, &["--sysroot", root]].concat());
        }
        let report = at(&format!("{place}.json"));
        let text = printed(&["doctor", "--json", "--sysroot", root]);
        let mut document: Value = serde_json::from_str(&text).unwrap();
        document["hostname"] = format!("node{place}").into();
        fs::write(&report, document.to_string()).unwrap();
        reports.push(report);
    }
    let mut fleet = vec!["doctor", "--json", "--fleet"];
    fleet.extend(reports.iter().map(String::as_str));
    prints("doctor-fleet", &fleet);
    prints("doctor-list", &["doctor", "--explain", "--json"]);
    // This machine, with the values that only drivers report.
    prints("topo", &["host", "show", "--json"]);
    prints("doctor", &["doctor", "--json"]);
    prints("irq-show", &["host", "show", "irq", "--interval", "10ms", "--json"]);
    prints("config", &["config", "show", "--preset", "latency", "--json"]);
}

#[test]
fn what_became_of_changes_fits() {
    let machine = fixtures::mlx5_four_nodes();
    let root = machine.path().to_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (plan, state) = (at("plan.json"), at("state"));
    let on = |args: &[&'static str], file: &[&str]| {
        let words: Vec<String> = args.iter().chain(file).map(ToString::to_string).collect();
        words
            .into_iter()
            .chain(["--sysroot", root, "--state-dir", &state].map(str::to_owned))
            .collect::<Vec<_>>()
    };
    let fits_now = |name: &str, args: &[&'static str], file: &[&str]| {
        let words = on(args, file);
        prints(name, &words.iter().map(String::as_str).collect::<Vec<_>>());
    };
    printed(&["host", "plan", "irq", "-o", &plan, "--sysroot", root]);
    let written: Value = serde_json::from_str(&fs::read_to_string(&plan).unwrap()).unwrap();
    fits("change-plan", &written, "host plan -o");
    fits_now("verified", &["host", "verify", "--json"], &[&plan]);
    fits_now("change-plan", &["host", "apply", "--dry-run", "--json"], &[&plan]);
    fits_now("applied", &["host", "apply", "--settle", "0s", "--json"], &[&plan]);
    fits_now("applied", &["host", "apply", "irq", "--settle", "0s", "--json"], &[]);
    fits_now("restored", &["host", "undo", "irq", "--json"], &[]);
    fits_now("restored", &["host", "undo", "irq", "--json"], &[]);
    fits_now("applied", &["host", "apply", "tune", "throughput", "--settle", "0s", "--json"], &[]);
    fits_now("verified", &["host", "verify", "tune", "--json"], &[]);
    fits_now("restored", &["host", "undo", "tune", "--json"], &[]);
    fits_now("restored", &["host", "undo", "nic", "--json"], &[]);
    fits_now("restored", &["host", "undo", "doctor", "--json"], &[]);
    watched(&machine, &plan);
}

/// Changes a planned value while `host watch` runs.
fn watched(machine: &Fixture, plan: &str) {
    let root = machine.path().to_str().unwrap();
    let mut command = polyrail(["host", "watch", plan, "--json", "--for", "1s", "--every", "50ms"]);
    command.args(["--sysroot", root]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut first = String::new();
    BufReader::new(child.stderr.as_mut().unwrap()).read_line(&mut first).unwrap();
    for irq in fs::read_dir(machine.path().join("proc/irq")).unwrap() {
        let file = irq.unwrap().path().join("smp_affinity_list");
        fs::write(file, "63\n").unwrap_or_default();
    }
    let output = child.wait_with_output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert!(!lines.is_empty(), "{first}");
    for line in lines.lines() {
        fits("irq-watch", &serde_json::from_str(line).unwrap(), "host watch");
    }
}

/// The tests of `bench` check all their reports against the schema.
#[test]
fn samples_of_a_bench_fit() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (bench, samples) = (at("bench.json"), at("samples.jsonl"));
    let short = ["--sizes", "8", "--time", "2s", "--rounds", "2", "--warmup", "5ms"];
    printed(&[&["bench", "--json", &bench, "--sample", &samples], &short[..]].concat());
    let read = |path: &str| fs::read_to_string(path).unwrap();
    fits("bench", &serde_json::from_str(&read(&bench)).unwrap(), "bench --sample");
    let text = read(&samples);
    assert!(text.contains("\"record\":\"sample\""), "{text}");
    for line in text.lines() {
        fits("sample", &serde_json::from_str(line).unwrap(), "bench --sample");
    }
}

#[test]
fn the_log_of_a_bench_fits() {
    let folder = tempfile::tempdir().unwrap();
    let mark = format!("log_file={}", folder.path().join("%h-%p.log").to_str().unwrap());
    let short = ["bench", "--sizes", "8", "--time", "50ms", "--rounds", "1", "--warmup", "5ms"];
    let log = ["--set", "log_format=json", "--set", "log_level=debug", "--set", &mark];
    printed(&[&short[..], &log].concat());
    let mut lines = 0;
    for file in fs::read_dir(folder.path()).unwrap() {
        for line in fs::read_to_string(file.unwrap().path()).unwrap().lines() {
            fits("log", &serde_json::from_str(line).unwrap(), "a log");
            lines += 1;
        }
    }
    assert!(lines > 0);
}

#[test]
fn what_is_said_of_a_profile_fits() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let paths = vec![PathKind::CopyEngine, PathKind::Tcp];
    let machine = Machine { endpoints: 3, paths, repetitions: 8, ..Machine::default() };
    let (one, two) = (at("one"), at("two"));
    machine.profile(&one).unwrap();
    machine.profile(&two).unwrap();
    let plan = fs::read_to_string(one.join("plan.json")).unwrap();
    fits("profile-plan", &serde_json::from_str(&plan).unwrap(), "plan.json");
    let predictions = at("sim.csv");
    fs::write(&predictions, "src,dst,size_bytes,predicted_time_ns\n*,*,1048576,9000\n").unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (one, two, predictions) = (text(&one), text(&two), text(&predictions));
    prints("analyze", &["analyze", &one, "--json", "--compare", &two]);
    prints("analyze", &["analyze", &one, "--json", "--path", "tcp", "--predictions", &predictions]);
}

#[test]
fn the_counters_of_an_engine_fit() {
    let rails = || Config::builder().set("rails", "127.0.0.1,127.0.0.2").unwrap();
    let config = || rails().set("path", "device").unwrap().build().unwrap();
    let [a, b] = [(), ()].map(|()| Engine::builder().config(config()).build().unwrap());
    let there = b.register(Memory::anonymous(1 << 20).unwrap()).unwrap();
    let peer = a.add_peer(&b.metadata()).unwrap();
    let remote = a.import(&there.describe()).unwrap();
    let here = a.register(vec![7; 1 << 20]).unwrap();
    a.post(Request::write(&peer).segment(here.all(), remote.all())).unwrap().join().unwrap();
    for engine in [&a, &b] {
        let stats = serde_json::to_value(engine.stats()).unwrap();
        assert!(!stats["peers"].as_array().unwrap().is_empty());
        fits("stats", &stats, "Engine::stats");
    }
}

#[test]
fn what_top_sees_of_an_engine_fits() {
    let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
    let _engine = Engine::builder().config(config).name("a").build().unwrap();
    let pid = std::process::id().to_string();
    let text = printed(&["top", &pid, "--interval", "200ms", "--count", "1", "--json"]);
    fits("top", &serde_json::from_str(&text).unwrap(), "top");
}

#[test]
fn labs_and_settings_of_their_interfaces_fit() {
    prints("lab-ls", &["lab", "ls", "--json"]);
    prints("nic-stats", &["host", "show", "counters", "lo", "--json"]);
    if let Err(missing) = availability() {
        let run = "sudo -E cargo test -p polyrail-cli --test plain schemas::";
        return polyrail_skip::skip(missing.to_string(), run);
    }
    let name = format!("schemas{}", std::process::id() % 100_000);
    printed(&["lab", "up", &name, "--rails", "1gbit,100mbit"]);
    let inside = [&["lab", "exec", &name, "a", "--", PROGRAM][..]].concat();
    let told: Vec<(&str, Output)> = [
        ("nic-settings", "channels"),
        ("nic-settings", "coalesce"),
        ("nic-settings", "rings"),
        ("nic-rss", "rss"),
        ("nic-stats", "counters"),
    ]
    .map(|(schema, what)| {
        let words = [&inside[..], &["host", "show", what, "rail0", "--json"]].concat();
        (schema, run(&words))
    })
    .into();
    let labs = printed(&["lab", "ls", "--json"]);
    printed(&["lab", "down", &name]);
    printed(&["lab", "up", &name, "--rails", "1gbit", "--nodes", "3"]);
    let switched = printed(&["lab", "ls", "--json"]);
    printed(&["lab", "down", &name]);
    fits("lab-ls", &serde_json::from_str(&switched).unwrap(), "lab ls with a switch");
    fits("lab-ls", &serde_json::from_str(&labs).unwrap(), "lab ls");
    let mut fit = 0;
    for (name, output) in told {
        // These interfaces have no rings, and some others have no channels.
        let Ok(document) = serde_json::from_slice(&output.stdout) else {
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains("not supported"), "{name}: {stderr}");
            continue;
        };
        fits(name, &document, "host show in a lab");
        fit += 1;
    }
    assert!(fit >= 2, "only {fit} of the five fit");
}

#[test]
fn each_kind_of_fault_is_found() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["a"],
        "properties": {
            "a": { "description": "A.", "type": ["integer", "null"], "minimum": 0 },
            "b": { "description": "B.", "type": "array", "items": { "$ref": "#/$defs/B" }, "maxItems": 2 },
            "c": { "description": "C.", "type": "array", "prefixItems": [{ "const": 1 }], "items": false },
        },
        "$defs": { "B": { "oneOf": [{ "const": "x" }, { "type": "boolean" }] } },
    });
    assert_eq!(inspect::faults(&schema), [""; 0]);
    let faults = |text: &str| faults(&schema, &serde_json::from_str(text).unwrap());
    for good in [r#"{"a":1}"#, r#"{"a":null,"b":["x",true],"c":[1]}"#] {
        assert!(faults(good).is_empty(), "{good}: {:?}", faults(good));
    }
    for (bad, says) in [
        ("[]", "is not of the type"),
        ("{}", "lacks a"),
        (r#"{"a":-1}"#, "/a: -1 is below 0"),
        (r#"{"a":1.5}"#, "/a: 1.5 is not of the type"),
        (r#"{"a":1,"z":1}"#, "/z is not in the schema"),
        (r#"{"a":1,"b":["y"]}"#, "/b/0: fits none of 2 variants"),
        (r#"{"a":1,"b":["x","x","x"]}"#, "/b: has 3 items"),
        (r#"{"a":1,"c":[2]}"#, "/c/0: 2 is not 1"),
        (r#"{"a":1,"c":[1,1]}"#, "/c/1 may not be there"),
    ] {
        assert!(faults(bad).iter().any(|fault| fault.contains(says)), "{bad}: {:?}", faults(bad));
    }
    for (bad, says) in [
        (r#"{"type":"object"}"#, "is open"),
        (r#"{"properties":{"a":{"type":"string"}}}"#, "a has no description"),
        (r##"{"$ref":"#/$defs/A"}"##, "does not exist"),
        (r#"{"items":{"pattern":"x"}}"#, "the unknown word pattern"),
    ] {
        let own = inspect::faults(&serde_json::from_str(bad).unwrap());
        assert!(own.iter().any(|fault| fault.contains(says)), "{bad}: {own:?}");
    }
}
