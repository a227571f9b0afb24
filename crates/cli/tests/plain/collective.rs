//! `polyrail collective` as a user runs it. Most runs use the built-in baseline, which needs no plugin and can be made
//! to flip bytes.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use polyrail_lab::{Lab, availability};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::common::{fit, polyrail, refusal, report, wait_for, wait_until};

fn collective(options: &str) -> Command {
    let mut command = polyrail(["collective"]);
    command.args(options.split_whitespace()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// PIDs of the ranks that a run has started, the oldest first.
fn ranks_of(run: &Child) -> Vec<i32> {
    let path = format!("/proc/{0}/task/{0}/children", run.id());
    let children = fs::read_to_string(path).unwrap_or_default();
    let is_rank = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("--worker")
    };
    children.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(is_rank).collect()
}

/// Starts a run that does not end by itself, and waits until its ranks are at work.
fn long_run(options: &str) -> (Child, Vec<i32>) {
    // Many orders, each far shorter than any timeout.
    let options = format!("--ranks 3 --sizes 1MiB --rounds 1000 {options}");
    let child = collective(&format!("all_reduce {options}")).spawn().unwrap();
    // Starting and connecting take less CPU time.
    let ranks = wait_for("all ranks have used the CPU for a while", || {
        let ranks = ranks_of(&child);
        (ranks.len() == 3 && ranks.iter().all(|pid| cpu_ticks(*pid) > 30)).then_some(ranks)
    });
    (child, ranks)
}

/// CPU time that a process has used, in ticks; 0 once it has ended.
fn cpu_ticks(pid: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    if ["Z", "X"].contains(&fields.clone().next().unwrap_or_default()) {
        return 0;
    }
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

fn assert_gone(ranks: &[i32]) {
    wait_until("no rank is left", || !ranks.iter().any(|pid| cpu_ticks(*pid) > 0));
}

/// Output of a run that must end within 20 s of what happened to it.
fn ended(child: Child) -> Output {
    let begun = Instant::now();
    let output = child.wait_with_output().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
    output
}

#[test]
fn each_operation_is_measured_and_right_with_2_to_4_ranks() {
    let operations =
        ["all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv"];
    for (number, operation) in operations.into_iter().enumerate() {
        let ranks = 2 + number % 3;
        let options = format!(
            "{operation} --ranks {ranks} --plugin sockets --type uint8 --sizes 7,287,11767,482447 \
             --iterations 2 --warmup 1 --rounds 2 --json -"
        );
        let report = report("collective", 0, &collective(&options).output().unwrap(), &options);
        assert_eq!((&report["operation"], &report["ranks"]), (&operation.into(), &ranks.into()));
        let plugin = &report["plugins"][0];
        assert_eq!((&plugin["plugin"], &plugin["name"]), (&"sockets".into(), &"SocketLike".into()));
        let sizes = plugin["sizes"].as_array().unwrap();
        assert_eq!(sizes.len(), 4, "7, 287, 11767 and 482447, about");
        for size in sizes {
            assert_eq!(size["wrong"], 0, "{operation}: {size}");
            assert_eq!(size["samples_us"].as_array().unwrap().len(), 2);
            let [time, algbw, busbw] =
                [&size["time_us"]["median"], &size["algbw_gb_per_s"], &size["busbw_gb_per_s"]]
                    .map(|it| it.as_f64().unwrap());
            let bytes = size["size_bytes"].as_f64().unwrap();
            assert!((bytes / time / 1e3 / algbw - 1.0).abs() < 1e-9, "{size}");
            let n = ranks as f64;
            let factor = match operation {
                "all_reduce" => 2.0 * (n - 1.0) / n,
                "broadcast" | "sendrecv" => 1.0,
                _ => (n - 1.0) / n,
            };
            assert!((busbw / algbw / factor - 1.0).abs() < 1e-9, "{size}");
        }
    }
}

#[test]
fn a_byte_that_changes_on_its_way_is_counted_as_a_wrong_element() {
    for operation in ["all_reduce", "alltoall", "broadcast"] {
        let options = format!(
            "{operation} --ranks 3 --plugin sockets --type int32 --sizes 4800000 \
             --iterations 1 --warmup 0 --rounds 1 --json -"
        );
        let mut command = collective(&options);
        let output = command.env("SOCKET_LIKE_FAULT", "flips-a-byte").output().unwrap();
        let report = report("collective", 5, &output, &options);
        let wrong = report["plugins"][0]["sizes"][0]["wrong"].as_u64().unwrap();
        // At most one of eight messages is changed, from which some ranks make several wrong elements.
        assert!(wrong > 0 && wrong < 100, "{operation}: {wrong}");
        let said = String::from_utf8(output.stderr).unwrap();
        let line = format!("{wrong} elements of {operation} are wrong\nhelp: ");
        assert!(said.contains(&line) && report["error"] == line.split('\n').next().unwrap());
        let unchecked = format!("{options} --check off");
        let mut command = collective(&unchecked);
        let output = command.env("SOCKET_LIKE_FAULT", "flips-a-byte").output().unwrap();
        let report = crate::common::report("collective", 0, &output, &unchecked);
        assert_eq!(report["plugins"][0]["sizes"][0]["wrong"], Value::Null);
    }
}

#[test]
fn two_plugins_take_turns_and_are_compared_size_by_size() {
    let options = "all_gather --ranks 2 --plugin 2x2 --compare sockets --sizes 8,64,512,4KiB \
                   --iterations 2 --rounds 3 --json -";
    let output = collective(options).output().unwrap();
    let report = report("collective", 0, &output, options);
    let [ours, theirs] = [0, 1].map(|number| &report["plugins"][number]);
    assert_eq!([&ours["plugin"], &theirs["plugin"]], ["sockets 2x2", "sockets"]);
    let ratios = report["ratios"].as_array().unwrap();
    assert_eq!(ratios.len(), 4, "8, 64, 512 and 4096");
    for (number, ratio) in ratios.iter().enumerate() {
        let of = |plugin: &Value, round: usize| {
            plugin["sizes"][number]["samples_us"][round].as_f64().unwrap()
        };
        let mut rounds = [0, 1, 2].map(|round| of(theirs, round) / of(ours, round));
        rounds.sort_by(f64::total_cmp);
        let shown = ["min", "ratio", "max"].map(|field| ratio[field].as_f64().unwrap());
        let is_same = |(one, other): (&f64, &f64)| (one / other - 1.0).abs() < 1e-9;
        assert!(rounds.iter().zip(&shown).all(is_same), "{ratio}: {rounds:?}");
    }
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("sockets 2x2 beside sockets:"), "{text}");
    let is_ratio = |line: &str| line.trim_start().starts_with("4096 ") && line.contains(" to ");
    assert!(text.contains("size B  busbw ×") && text.lines().any(is_ratio), "{text}");
}

/// The plugin, if cargo has built it for other tests.
fn plugin() -> Option<PathBuf> {
    let beside = std::env::current_exe().unwrap().with_file_name("libnccl_net_polyrail.so");
    if beside.exists() {
        return Some(beside);
    }
    let command = "cargo test -p polyrail-nccl --no-run && cargo test -p polyrail-cli --test plain collective::";
    polyrail_skip::skip(format!("{} is not there", beside.display()), command);
    None
}

#[test]
fn polyrails_own_plugin_is_measured_beside_the_baseline() {
    let Some(plugin) = plugin() else { return };
    for operation in ["all_reduce", "alltoall"] {
        let options = format!(
            "{operation} --ranks 3 --plugin {} --compare --type int32 --sizes 12,3600,1080000 \
             --iterations 2 --rounds 1 --set proxies=1 --json -",
            plugin.display()
        );
        let report = report("collective", 0, &collective(&options).output().unwrap(), &options);
        assert_eq!(report["plugins"][0]["name"], "Polyrail");
        assert_eq!(report["plugins"][1]["name"], "SocketLike");
        for size in [0, 1].map(|number| report["plugins"][number]["sizes"].as_array().unwrap()) {
            assert!(size.len() >= 2 && size.iter().all(|size| size["wrong"] == 0), "{size:?}");
        }
    }
    let options = format!("all_reduce --plugin {} --set rails=192.0.2.1", plugin.display());
    let said = refusal(4, &collective(&options).output().unwrap());
    assert!(said.contains("init of the plugin gave 2") && said.contains("192.0.2.1"), "{said}");
}

#[test]
fn each_rank_has_a_node_of_a_lab_and_every_rail() {
    if let Err(error) = availability() {
        let help = error.help().unwrap_or_default();
        let command = "sudo -E cargo test -p polyrail-cli --test plain collective::";
        return polyrail_skip::skip(format!("{error}; {help}"), command);
    }
    let options = "all_reduce --lab 3:2x50mbit --plugin sockets --sizes 1MiB \
                   --iterations 3 --warmup 1 --rounds 5 --json -";
    let child = collective(options).spawn().unwrap();
    let name = format!("collective-{}", child.id());
    let report = report("collective", 0, &child.wait_with_output().unwrap(), options);
    assert!(Lab::list().unwrap().iter().all(|lab| lab.name != name), "the lab is left");
    let plugin = &report["plugins"][0];
    assert_eq!((&plugin["devices"], &report["lab"]), (&2.into(), &name.into()));
    let size = &plugin["sizes"][0];
    assert_eq!(size["wrong"], 0);
    // A node sends 4/3 of the size over two rails of 0.00625 GB/s each. Other tests may use the CPUs in some rounds, so
    // the fastest counts.
    let [bytes, fastest] =
        [&size["size_bytes"], &size["time_us"]["min"]].map(|it| it.as_f64().unwrap());
    let sent = bytes / fastest / 1e3 * 4.0 / 3.0;
    assert!(sent > 0.0066 && sent < 0.0145, "more than one rail, at most two: {sent}");
}

#[test]
fn a_rank_that_is_killed_is_named_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("collective.json");
    let (child, ranks) = long_run(&format!("--plugin sockets --json {}", json.display()));
    signal(ranks[1], Signal::KILL);
    let said = refusal(4, &ended(child));
    assert!(said.contains("the process of rank 1 over sockets ended (signal: 9"), "{said}");
    assert!(said.contains("\nhelp: "), "{said}");
    let report: Value = serde_json::from_str(&fs::read_to_string(json).unwrap()).unwrap();
    fit::fits("collective", &report, "a killed rank");
    assert!(said.contains(report["error"].as_str().unwrap()), "{report}");
    assert_gone(&ranks);
}

#[test]
fn a_program_learns_from_standard_output_why_there_are_no_figures() {
    // The run has too many rounds to finish even its one size.
    let (child, ranks) = long_run("--plugin sockets --json -");
    signal(ranks[1], Signal::KILL);
    let output = ended(child);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    fit::fits("collective", &report, "a killed rank");
    assert!(report["error"].as_str().unwrap().contains("the process of rank 1"), "{report}");
    assert_eq!(output.status.code(), Some(4), "{output:?}");
}

#[test]
fn a_rank_that_stops_is_named_after_the_timeout() {
    let (child, ranks) = long_run("--plugin sockets --timeout 5s");
    signal(ranks[2], Signal::STOP);
    let said = refusal(4, &ended(child));
    // Another rank reports it if it waits for rank 2 just then; otherwise the run reports it.
    let is_named =
        said.contains("; no word from rank 2\n") || said.contains("rank 2 over sockets did");
    assert!(said.contains(" did not ") && is_named, "{said}");
    assert_gone(&ranks);
}

#[test]
fn an_interrupted_or_killed_run_leaves_no_rank() {
    let (child, ranks) = long_run("--plugin sockets");
    signal(child.id() as i32, Signal::INT);
    assert!(refusal(130, &ended(child)).contains("interrupted"));
    assert_gone(&ranks);
    let (mut child, ranks) = long_run("--plugin sockets");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_gone(&ranks);
}

#[test]
fn without_a_plugin_it_measures_the_sockets_and_says_so() {
    let empty = tempfile::tempdir().unwrap();
    let run = |options: &str, named: &str| {
        let mut command = collective(&format!(
            "all_reduce --sizes 1KiB --iterations 2 --warmup 0 --rounds 1 --json - {options}"
        ));
        command.env_remove("LD_LIBRARY_PATH").env("HOME", empty.path());
        command.env("CARGO_TARGET_DIR", empty.path());
        match named {
            "" => command.env_remove("NCCL_NET_PLUGIN"),
            _ => command.env("NCCL_NET_PLUGIN", named),
        };
        command.output().unwrap()
    };
    let output = run("", "");
    let report = report("collective", 0, &output, "without a plugin");
    assert_eq!(report["plugins"][0]["plugin"], "sockets");
    let notes = report["notes"].to_string();
    for said in [notes, String::from_utf8(output.stderr).unwrap()] {
        assert!(said.contains("no plugin is installed"), "{said}");
        assert!(said.contains("polyrail nccl install "), "{said}");
    }
    // A named plugin is not replaced, and a comparison is always with the plugin.
    for options in ["--plugin polyrail", "--compare"] {
        let said = refusal(3, &run(options, ""));
        assert!(said.contains("--plugin `polyrail`"), "{options}: {said}");
    }
    // NCCL's variable names a plugin, too.
    for options in ["", "--compare"] {
        let said = refusal(3, &run(options, "nosuch,other"));
        assert!(said.contains("NCCL_NET_PLUGIN `nosuch`"), "{options}: {said}");
    }
    let output = run("", "none");
    let said = String::from_utf8_lossy(&output.stderr);
    let line = "polyrail: NCCL_NET_PLUGIN is none, so this measures the built-in sockets\n";
    assert!(output.status.success() && said.contains(line), "{said}");
}

#[test]
fn figures_that_find_no_room_are_shown_and_the_run_fails() {
    let options = "sendrecv --plugin sockets --sizes 1KiB --iterations 2 --rounds 1";
    let output = collective(&format!("{options} --json /dev/full")).output().unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(out.contains("busbw GB/s") && out.contains("\n  1024 "), "{out}");
    assert!(err.contains("/dev/full") && err.contains("help: free some space"), "{err}");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = collective(options).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{output:?}");
}

#[test]
fn bad_options_name_the_field_the_value_and_what_is_allowed() {
    let cases = [
        ("", 2, &["OPERATION", "is missing"][..]),
        ("gather", 2, &["OPERATION", "`gather`", "all_reduce, all_gather", "sendrecv"]),
        ("all_reduce --ranks 1", 2, &["--ranks <N> `1`", "2 to 64"]),
        ("all_reduce --lab 1:1gbit", 2, &["--lab <NODES:RATES> `1:1gbit`", "2 to 32"]),
        ("all_reduce --lab 4", 2, &["--lab <NODES:RATES> `4`", "8:2x1gbit"]),
        ("all_reduce --ranks 2 --lab 2:1gbit", 2, &["--ranks", "one of them"]),
        ("all_reduce --sizes 6", 2, &["--sizes `6`", "multiples of 4", "--type uint8"]),
        ("all_reduce --sizes 8,10", 2, &["--sizes `10`", "multiples of 4"]),
        ("all_reduce --sizes 8KiB..4KiB", 2, &["--sizes <LIST>", "runs backwards"]),
        ("all_reduce --sizes 0", 2, &["--sizes <LIST> `0`"]),
        ("all_reduce --sizes 8..2GiB", 2, &["--sizes <LIST> `8..2GiB`", "1 to 1GiB"]),
        ("all_reduce --type double", 2, &["--type <TYPE> `double`", "float, int32, uint8"]),
        ("all_reduce --channels 33", 2, &["--channels <N> `33`", "1 to 32"]),
        ("all_reduce --iterations 0", 2, &["--iterations <N> `0`", "1 to 100000"]),
        ("all_reduce --timeout 1ms", 2, &["--timeout <TIME> `1ms`", "1s to 1h"]),
        ("all_reduce --plugin 17x1", 2, &["--plugin <PLUGIN> `17x1`", "1 to 16 threads"]),
        ("all_reduce --plugin /no/such.so", 2, &["--plugin <PLUGIN> `/no/such.so`", "a file"]),
        ("all_reduce --plugin nosuch", 3, &["--plugin `nosuch`", "libnccl-net-nosuch.so"]),
        (
            "all_reduce --plugin sockets --compare nosuch",
            3,
            &["--compare `nosuch`", "polyrail nccl install"],
        ),
    ];
    for (options, code, needles) in cases {
        let said = refusal(code, &collective(options).output().unwrap());
        for needle in needles.iter().chain(&["; allowed: ", "\nhelp: "]) {
            assert!(said.contains(needle), "{options}: no {needle:?} in\n{said}");
        }
    }
}
