//! `polyrail mesh` as a user runs it: by hand over loopback, which needs no privilege, and in labs.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use polyrail::{Config, Engine};
use polyrail_browser::{Browser, MISSING};
use polyrail_lab::{Lab, LabSpec, availability};
use polyrail_rendezvous::{Membership, join};
use polyrail_skip::HeldPort;
use serde_json::Value;

use crate::common::{self, DEADLINE, fit, polyrail, refusal, wait_until};

fn mesh(options: &str) -> Command {
    let mut command = polyrail(["mesh"]);
    command.args(options.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn report(output: &Output, options: &str) -> Value {
    common::report("mesh", 0, output, options)
}

/// Standard error of a run that ended without results. The JSON on standard output has the error, too.
fn failure(code: i32, output: &Output) -> String {
    let report = common::report("mesh", code, output, "a failure");
    let said = common::text(&output.stderr);
    assert!(said.contains(report["error"].as_str().unwrap()), "{report}: {said}");
    said.to_owned()
}

/// Returns whether a lab can be built here; skips the test otherwise.
fn is_possible() -> bool {
    let Err(error) = availability() else { return true };
    let help = error.help().unwrap_or_default();
    let command = "sudo -E cargo test -p polyrail-cli --test links mesh";
    polyrail_skip::skip(format!("{error}; {help}"), command);
    false
}

/// Checks that a run has left no lab.
fn assert_tidy(process: u32) {
    let labs = Lab::list().unwrap();
    assert!(labs.iter().all(|lab| lab.name != format!("mesh-{process}")), "the lab is left");
}

#[test]
fn every_pair_of_a_lab_is_measured_and_verified_in_every_pattern_and_both_layouts() {
    if !is_possible() {
        return;
    }
    let options = "--lab 3:2x200mbit --endpoints-per-node 2 --layout one,per-gpu \
                   --size 64KiB --depth 2 --time 50ms --warmup 10ms --rounds 2 --json -";
    let child = mesh(options).spawn().unwrap();
    let process = child.id();
    let output = child.wait_with_output().unwrap();
    let report = report(&output, options);
    assert_tidy(process);
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("none wrong") && text.contains("from node2:1"), "{text}");
    assert_eq!(report["hosts"].as_array().unwrap().len(), 3);
    let layouts = report["layouts"].as_array().unwrap();
    let processes: Vec<_> = layouts.iter().map(|it| (&it["layout"], &it["processes"])).collect();
    assert_eq!(processes, [(&"one".into(), &3.into()), (&"per-gpu".into(), &6.into())]);
    for layout in layouts {
        let steps: Vec<_> = layout["patterns"].as_array().unwrap().iter().collect();
        let names: Vec<_> = steps.iter().map(|it| (&it["pattern"], &it["steps"])).collect();
        let wanted = [("pairwise", 24), ("rotation", 4), ("all", 1)];
        assert_eq!(names.len(), 3);
        for ((name, steps), (pattern, count)) in names.into_iter().zip(wanted) {
            assert_eq!((name, steps), (&pattern.into(), &count.into()));
        }
        for pattern in steps {
            let pairs = pattern["pairs"].as_array().unwrap();
            assert_eq!(pairs.len(), 24, "each of 6 to each of the 4 on other nodes");
            for pair in pairs {
                let rate = pair["gb_per_s"]["median"].as_f64().unwrap();
                assert!(rate > 0.0 && pair["transfers"].as_u64() >= Some(4), "{pair}");
                let sides = ["sender_gb_per_s", "receiver_gb_per_s"];
                let sides = sides.map(|side| pair[side].as_f64().unwrap());
                assert!(sides.iter().all(|side| *side > 0.0), "{pair}");
                let depth = pair["depth"].as_f64().unwrap();
                assert!(depth > 0.1 && depth < 2.2, "{pair}");
            }
            // All slots of each pair in each round, and all were verified.
            assert_eq!(pattern["verified_bytes"], 24 * 2 * 2 * 65536);
            assert_eq!(pattern["nics"].as_array().unwrap().len(), 6, "two of each node");
            assert_eq!(
                pattern["machines"].as_array().unwrap().len(),
                1,
                "the lab is on one machine"
            );
            assert!(pattern["cpu_seconds"].as_f64().unwrap() > 0.0);
        }
    }
}

#[test]
fn what_a_node_gets_from_all_at_once_is_limited_by_its_ports() {
    if !is_possible() {
        return;
    }
    // Long enough that the bursts of token buckets hardly count.
    let options = "--lab 4:2x100mbit --pattern all --size 256KiB --time 1s \
                   --rounds 1 --json -";
    let report = report(&mesh(options).output().unwrap(), options);
    let pattern = &report["layouts"][0]["patterns"][0];
    let line = 2.0 * 0.0125;
    for node in pattern["nodes"].as_array().unwrap() {
        let [tx, rx] = ["tx_gb_per_s", "rx_gb_per_s"].map(|name| node[name].as_f64().unwrap());
        assert!(tx < line * 1.1 && rx < line * 1.1, "{node}: more than {line} GB/s");
        assert!(rx > line * 0.2, "{node}: hardly anything of {line} GB/s");
    }
    let total = pattern["total_gb_per_s"]["median"].as_f64().unwrap();
    assert!(total < line * 4.0 * 1.1, "{total}");
    for nic in pattern["nics"].as_array().unwrap() {
        assert!(nic["tx_gb_per_s"].as_f64().unwrap() > 0.0, "{nic}: both rails carry");
    }
}

fn by_hand(folder: &Path, nodes: usize, node: usize, more: &str) -> Command {
    mesh(&format!(
        "--rendezvous dir://{} --nodes {nodes} --node {node} --set rails=127.0.0.1,127.0.0.2 \
         --pattern rotation --size 64KiB --time 20ms --rounds 1 --json - {more}",
        folder.display()
    ))
}

#[test]
fn nodes_that_are_started_by_hand_find_each_other_and_the_first_one_has_the_figures() {
    let folder = tempfile::tempdir().unwrap();
    let others: Vec<Child> =
        (1..3).map(|node| by_hand(folder.path(), 3, node, "").spawn().unwrap()).collect();
    let report = report(&by_hand(folder.path(), 3, 0, "").output().unwrap(), "by hand");
    let pattern = &report["layouts"][0]["patterns"][0];
    assert_eq!((&pattern["steps"], pattern["pairs"].as_array().unwrap().len()), (&2.into(), 6));
    assert_eq!(pattern["verified_bytes"], 6 * 4 * 65536);
    assert_eq!(report["lab"], Value::Null);
    for other in others {
        let output = other.wait_with_output().unwrap();
        let said = refusal(0, &output);
        assert!(said.contains("node 0 prints the figures"), "{said}");
    }
}

#[test]
fn figures_that_find_no_room_are_shown_and_what_can_be_written_is() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("mesh.json");
    let node = |node: u32, more: &str| {
        let place = folder.path().display();
        mesh(&format!(
            "--rendezvous dir://{place}/place --nodes 2 --node {node} --set rails=127.0.0.1 --pattern all --size \
             64KiB --time 20ms --rounds 1 {more}"
        ))
    };
    let other = node(1, "").spawn().unwrap();
    let files = format!("--html /dev/full --json {}", json.display());
    let output = node(0, &files).output().unwrap();
    other.wait_with_output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(out.contains("GB/s in all;") && out.contains("\nJSON: "), "{out}");
    assert!(err.contains("/dev/full") && err.contains("help: free some space"), "{err}");
    serde_json::from_slice::<Value>(&fs::read(json).unwrap()).unwrap();
}

#[test]
fn a_page_shows_all_figures_in_a_browser_and_asks_nothing_of_a_network() {
    let run = "apt-get install chromium && cargo test -p polyrail-cli --test links mesh";
    let Some(mut browser) = Browser::start() else { return polyrail_skip::skip(MISSING, run) };
    let folder = tempfile::tempdir().unwrap();
    let (place, page) = (folder.path().join("place"), folder.path().join("mesh.html"));
    fs::create_dir(&place).unwrap();
    let node = |node: u32, more: &str| {
        let (place, html) = (place.display(), page.display());
        let options = format!(
            "--rendezvous dir://{place} --nodes 2 --node {node} --endpoints-per-node 2 --pattern \
             pairwise,all --set rails=127.0.0.1 --size 64KiB --time 20ms --rounds 2 --html {html} {more}"
        );
        mesh(&options)
    };
    let other = node(1, "").spawn().unwrap();
    let report = report(&node(0, "--json -").output().unwrap(), "a page");
    other.wait_with_output().unwrap();
    browser.open(&page);

    let banner = browser.value("document.querySelector('.banner').textContent");
    let first = report["conclusions"][0].as_str().unwrap();
    assert!(first.starts_with("pairwise, layout one: "), "{first}");
    assert!(banner.as_str().unwrap().contains(first), "{banner}");
    // The diagonal and the other endpoint of the same node have no cell.
    let cells = "[...document.querySelectorAll('svg')].map(one => one.querySelectorAll('rect.cell').length)";
    assert_eq!(browser.value(cells), serde_json::json!([8, 8]), "one map of each pattern");
    let cell = "(() => { const cell = document.querySelector('svg rect.cell'); \
                cell.dispatchEvent(new PointerEvent('pointermove', { clientX: 5, clientY: 5 })); \
                return document.getElementById('hover').textContent; })()";
    let says = browser.value(cell);
    let pair = &report["layouts"][0]["patterns"][0]["pairs"][0];
    let [from, to] = ["from", "to"].map(|end| pair[end].as_str().unwrap());
    assert!(says.as_str().unwrap().starts_with(&format!("{from} → {to}: ")), "{says}");
    let captions =
        "[...document.querySelectorAll('figcaption')].map(one => one.textContent.split(':')[0])";
    assert_eq!(browser.value(captions), serde_json::json!(["pairwise", "all"]));
    let broken = "/NaN|undefined|Infinity/.test(document.getElementById('report').outerHTML)";
    assert_eq!(browser.value(broken), false);
    assert_eq!(browser.faults(), [""; 0]);
    let head = fs::read_to_string(&page).unwrap();
    let head = head.split("<div id=\"report\">").next().unwrap();
    let parts = ["<dt>command line</dt><dd>polyrail mesh ", "<dt>CPU</dt>", "<dt>kernel</dt>"];
    assert!(parts.iter().all(|part| head.contains(part)), "without a script: {head}");
    if let Some(path) = std::env::var_os("MESH_SCREENSHOT") {
        fs::write(path, browser.screenshot(1_500)).unwrap();
    }
    let (complaints, requests) = browser.complaints_and_requests();
    assert!(complaints.is_empty(), "{complaints:#?}");
    let own = format!("file://{}", page.display());
    assert!(requests.iter().all(|url| *url == own || url == "data:,"), "{requests:#?}");
}

#[test]
fn ranks_of_a_job_have_a_number_already() {
    // Rank 0 listens on the port after MASTER_PORT.
    let next = HeldPort::new();
    let port = (next.number() - 1).to_string();
    let options = "--rendezvous torchrun:// --nodes 2 --set rails=127.0.0.1 --pattern all \
                   --size 64KiB --time 20ms --rounds 1 --json -";
    let start = |rank: &str| {
        let mut command = mesh(options);
        command.env("RANK", rank).env("LOCAL_RANK", rank).env("WORLD_SIZE", "2");
        command.env("LOCAL_WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1");
        command.env("MASTER_PORT", &port).spawn().unwrap()
    };
    let other = start("1");
    let report = report(&start("0").wait_with_output().unwrap(), options);
    assert_eq!(report["layouts"][0]["patterns"][0]["pairs"].as_array().unwrap().len(), 2);
    refusal(0, &other.wait_with_output().unwrap());
}

/// Returns whether the group of layout `one` has `count` members. Its lock, a hidden file, does not count.
fn has_members(folder: &Path, count: usize) -> bool {
    let Ok(all) = fs::read_dir(folder.join("mesh-one")) else { return false };
    let is_member = |name: std::ffi::OsString| !name.as_encoded_bytes().starts_with(b".");
    all.flatten().filter(|entry| is_member(entry.file_name())).count() >= count
}

#[test]
fn a_node_that_never_comes_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let first = by_hand(folder.path(), 3, 0, "--timeout 6s").spawn().unwrap();
    // Node 2 starts once node 0 is there, and gives up while node 0 still waits.
    wait_until("the first node", || has_members(folder.path(), 1));
    let said = refusal(4, &by_hand(folder.path(), 3, 2, "--timeout 2s").output().unwrap());
    assert!(said.contains("2 of 3 processes of this mesh are there"), "{said}");
    let options = format!(
        "--rendezvous dir://{} --nodes 3 --layout one --group mesh",
        folder.path().display()
    );
    assert!(said.contains(&options), "what can be compared with the other nodes: {said}");
    assert!(said.contains("missing: node1") && said.contains("\nhelp: "), "{said}");
    let said = failure(4, &first.wait_with_output().unwrap());
    assert!(said.contains("layout one: waiting for node1"), "it says so while it waits: {said}");
    assert!(said.contains("missing: node1"), "{said}");
}

/// The hello of a worker of another build.
const OTHER_BUILD: &str = r#"{"mesh":1,"from":1,"said":{"Answer":{"Hello":{"pid":1,"rails":[],
    "build":"0.1.0 (commit 0123456789ab, release)","host":{"hostname":"x","boot_id":null,"kernel":"6.1",
    "cpu_model":null,"cpus":1,"cpus_allowed":1,"memory_bytes":null,"congestion_control":null,
    "transparent_hugepage":null}}}}}"#;

#[test]
fn a_node_with_other_options_or_of_another_version_or_without_a_word_is_named() {
    let cases = [
        (Some(r#"{"mesh":7,"from":1,"said":{}}"#), "node1 speaks version 7 of the mesh, and node0"),
        (Some(r#"{"said":"hello"}"#), "node1 speaks version unknown of the mesh"),
        (Some(r#"{"mesh":1,"from":1,"said":{"Nonsense":1}}"#), "node1 answered `a word`"),
        (
            Some(OTHER_BUILD),
            "node1 runs polyrail 0.1.0 (commit 0123456789ab, release), and node0 0.1",
        ),
        (None, "node1 did not answer `hello` for 3 s"),
    ];
    for (word, wanted) in cases {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::builder().set("rails", "127.0.0.1").unwrap();
        let place = format!("rendezvous=dir://{}", folder.path().display());
        let config = config.set_pair(&place).unwrap().build().unwrap();
        let engine = Engine::builder().config(config).name("node1").build().unwrap();
        let membership = Membership::new("mesh-one").unwrap().name("node1").unwrap();
        let group = join(&engine, &membership).unwrap();
        let patience = if word.is_some() { "--timeout 30s" } else { "--timeout 3s" };
        let first = by_hand(folder.path(), 2, 0, patience).spawn().unwrap();
        let members = group.wait_for(2, DEADLINE).expect("node 0 comes");
        let peer = group.peer(&members[0]).unwrap();
        if let Some(word) = word {
            engine.notify(&peer, word.as_bytes()).unwrap().join().unwrap();
        }
        let said = failure(4, &first.wait_with_output().unwrap());
        assert!(said.contains(wanted), "{word:?}: {said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let other = by_hand(folder.path(), 2, 1, "--endpoints-per-node 2").spawn().unwrap();
    let said = failure(2, &by_hand(folder.path(), 2, 0, "").output().unwrap());
    assert!(said.contains("node1: options `--nodes 2 --endpoints-per-node 2"), "{said}");
    assert!(said.contains("differ from those of node0; allowed: --nodes 2 --endpoints"), "{said}");
    other.wait_with_output().unwrap();
}

/// PID of the worker with this seat in a run, found by its parent and command line.
fn process_of(run: u32, seat: &str) -> Option<u32> {
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let status = fs::read_to_string(entry.path().join("status")).ok()?;
        let is_of_run = status.lines().any(|line| line == format!("PPid:\t{run}"));
        let is_it = is_of_run && line.contains(&format!("--worker {seat}"));
        is_it.then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    })
}

/// Returns whether the process sees established TCP connections, as only nodes do that know each other.
fn is_connected(process: u32) -> bool {
    const ESTABLISHED: &str = "01";
    let table = fs::read_to_string(format!("/proc/{process}/net/tcp")).unwrap_or_default();
    table.lines().any(|line| line.split_whitespace().nth(3) == Some(ESTABLISHED))
}

#[test]
fn a_node_that_dies_while_it_is_measured_is_named_and_nothing_is_left() {
    if !is_possible() {
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let json = scratch.path().join("mesh.json");
    let options = "--lab 3:100mbit --pattern all --time 1s --rounds 100";
    let child = mesh(&format!("{options} --json {}", json.display())).spawn().unwrap();
    let process = child.id();
    let is_there = || process_of(process, "one,2,").is_some_and(is_connected);
    wait_until("node 2 is connected", is_there);
    let victim = process_of(process, "one,2,").expect("node 2 runs");
    let victim = rustix::process::Pid::from_raw(victim as i32).unwrap();
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).unwrap();
    let said = refusal(4, &child.wait_with_output().unwrap());
    assert!(said.contains("node2") && said.contains("\nhelp: "), "{said}");
    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    fit::fits("mesh", &report, options);
    assert!(said.contains(report["error"].as_str().unwrap()), "{report}");
    assert_tidy(process);
}

#[test]
fn a_lab_that_goes_while_it_is_measured_is_named() {
    if !is_possible() {
        return;
    }
    let mut spec = LabSpec::new(format!("meshgone-{}", std::process::id()), Vec::new());
    (spec.rails, spec.nodes) = (LabSpec::parse_rails("100mbit").unwrap(), Some(3));
    let lab = Lab::up(&spec).unwrap().guard();
    let options = format!("--lab {} --pattern all --time 1s --rounds 100", spec.name);
    let child = mesh(&options).spawn().unwrap();
    let process = child.id();
    wait_until("node 2 runs", || process_of(process, "one,2,").is_some());
    lab.down().unwrap();
    let said = refusal(3, &child.wait_with_output().unwrap());
    assert!(said.contains(&format!("lab `{}` is gone: ", spec.name)), "{said}");
    assert_tidy(process);
}

#[test]
fn a_rail_that_goes_down_and_comes_back_under_traffic_is_in_the_report() {
    if !is_possible() {
        return;
    }
    let mut spec = LabSpec::new(format!("meshcut-{}", std::process::id()), Vec::new());
    (spec.rails, spec.nodes) = (LabSpec::parse_rails("2x100mbit").unwrap(), Some(2));
    let lab = Lab::up(&spec).unwrap().guard();
    let options = format!(
        "--lab {} --pattern rotation --size 256KiB --time 500ms --rounds 20 --json -",
        spec.name
    );
    let child = mesh(&options).spawn().unwrap();
    let process = child.id();
    wait_until("node 1 is connected", || process_of(process, "one,1,").is_some_and(is_connected));
    // Some rounds with both rails, some with one, and the rest with both. Rounds are not visible from outside.
    thread::sleep(Duration::from_secs(2));
    lab.set_link(1, false).unwrap();
    // As above.
    thread::sleep(Duration::from_secs(2));
    lab.set_link(1, true).unwrap();
    let report = report(&child.wait_with_output().unwrap(), &options);
    lab.down().unwrap();
    let events = report["layouts"][0]["patterns"][0]["events"].as_array().unwrap();
    let at = |what: &str| {
        let is_it = |event: &&Value| event["what"] == what && event["rail"] == "rail1";
        events.iter().find(is_it).and_then(|event| event["round"].as_u64())
    };
    let (down, back) = (at("down"), at("back"));
    assert!(down.is_some() && back > down, "{events:?}");
    let told = report["conclusions"].as_array().unwrap();
    let is_told = |told: &Value| told.as_str().unwrap().contains(" rail1 was down in round ");
    assert!(told.iter().any(is_told), "{told:?}");
}

#[test]
fn a_second_mesh_on_a_lab_is_refused_and_told_who_has_it() {
    if !is_possible() {
        return;
    }
    let mut spec = LabSpec::new(format!("meshtwice-{}", std::process::id()), Vec::new());
    (spec.rails, spec.nodes) = (LabSpec::parse_rails("100mbit").unwrap(), Some(2));
    let lab = Lab::up(&spec).unwrap().guard();
    let options = format!("--lab {} --pattern all --time 1s --rounds 100", spec.name);
    let mut first = mesh(&options).spawn().unwrap();
    let process = first.id();
    wait_until("a node runs", || process_of(process, "one,0,").is_some());
    let said = refusal(3, &mesh(&options).output().unwrap());
    let wanted = format!("lab `{}` is in use by process {process}\nhelp: ", spec.name);
    assert!(said.contains(&wanted), "{said}");
    first.kill().unwrap();
    first.wait().unwrap();
    let again = format!("--lab {} --pattern all --time 50ms --rounds 1 --json -", spec.name);
    report(&mesh(&again).output().unwrap(), &again);
    lab.down().unwrap();
}

#[test]
fn bad_options_name_the_field_the_value_and_what_is_allowed() {
    let cases = [
        ("", &["which nodes", "--lab, --hosts and --rendezvous", "help: on one machine"][..]),
        ("--layout per-gpu", &["nothing says which nodes to measure"]),
        ("--lab no-such-lab", &["lab `no-such-lab` does not exist", "polyrail lab up"]),
        ("--lab 1:1gbit", &["--lab <NAME|NODES:RATES> `1:1gbit`", "2 to 32"]),
        ("--lab 3:1gbyte", &["--lab <NAME|NODES:RATES> `3:1gbyte`", "allowed"]),
        ("--lab x --rendezvous dir:///tmp", &["--rendezvous"]),
        ("--rendezvous dns://a:1 --nodes 2", &["--rendezvous <PLACE> `dns://a:1`", "dir://"]),
        ("--rendezvous dir:///tmp", &["--nodes: is missing", "2 to 256"]),
        ("--rendezvous dir:///tmp --nodes 2", &["--node: is missing", "0 to 1"]),
        ("--rendezvous dir:///tmp --nodes 2 --node 2", &["--node `2`", "0 to 1"]),
        ("--rendezvous slurm:// --nodes 2 --layout per-gpu", &["--layout `per-gpu`", "one with"]),
        ("--lab x --size 0", &["--size <SIZE> `0`"]),
        ("--lab x --size 2GiB", &["--size <SIZE> `2GiB`", "1 to 1GiB"]),
        ("--lab x --depth 0", &["--depth <N> `0`", "1 to 256"]),
        ("--lab x --time 1ms", &["--time <TIME> `1ms`", "10ms to 10min"]),
        ("--lab x --rounds 0", &["--rounds <N> `0`", "1 to 1000"]),
        ("--lab x --pattern ring", &["`ring`", "pairwise"]),
        (
            "--rendezvous dir:///tmp --nodes 9 --node 0 --endpoints-per-node 64",
            &["--endpoints-per-node `64`", "1 to 7 with 9 nodes in layout one"],
        ),
        (
            "--rendezvous dir:///tmp --nodes 2 --node 0 --depth 64 --set ops_pool=64",
            &["--depth `64`", "1 to 63, as ops_pool is 64"],
        ),
    ];
    for (options, needles) in cases {
        let said = refusal(2, &mesh(options).output().unwrap());
        for needle in needles {
            assert!(said.contains(needle), "{options}: no {needle:?} in\n{said}");
        }
    }
}
