//! `polyrail bench` as a user runs it, over loopback, with small sizes.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_report::{BenchReport, BenchResult, exit};
use serde_json::json;

use crate::common::{self, PROGRAM, polyrail, wait_until};

/// Short runs: their results are checked for being complete and valid, not for their size.
const QUICK: [&str; 6] = ["--iters", "5", "--rounds", "2", "--warmup", "5ms"];

fn bench(options: &str) -> Output {
    polyrail(["bench"]).args(options.split_whitespace()).output().unwrap()
}

/// Standard error without progress lines, which appear when a busy machine is slow.
fn said(output: &Output) -> String {
    let errors = String::from_utf8(output.stderr.clone()).unwrap();
    let is_progress = |line: &str| line.contains(" so far");
    errors.split_inclusive('\n').filter(|line| !is_progress(line)).collect()
}

/// Runs a quick bench and reads its report from standard output.
fn report(options: &str) -> BenchReport {
    let output = polyrail(["bench"])
        .args(options.split_whitespace())
        .args(QUICK)
        .args(["--json", "-"])
        .output()
        .unwrap();
    serde_json::from_value(common::report("bench", 0, &output, options)).unwrap()
}

/// Checks that every result must pass on any machine.
fn check_sane(result: &BenchResult) {
    let size = result.size_bytes;
    assert_eq!(result.bytes, result.transfers * size);
    assert_eq!(result.samples.len(), 2);
    assert!(result.seconds > 0.0 && result.gb_per_s > 0.0 && result.gb_per_s < 1000.0);
    assert!(result.spread_gb_per_s.min <= result.gb_per_s);
    assert!(result.gb_per_s <= result.spread_gb_per_s.max);
    let latency = result.latency_us.unwrap();
    assert!(0.0 < latency.min && latency.min <= latency.p50 && latency.p50 <= latency.p99);
    assert!(latency.p99 <= latency.p999 && latency.p999 <= latency.max);
    assert!(result.verified && result.verify == "full" && result.verified_bytes > 0);
    assert!(result.cpu_seconds_per_gb.unwrap() > 0.0);
    let shares: f64 = result.rails.iter().map(|rail| rail.share).sum();
    assert!((shares - 1.0).abs() < 1e-6, "{shares}");
    let carried: u64 = result.rails.iter().map(|rail| rail.bytes).sum();
    // A progress thread counts after its system call, when the other end may be done already: each rail may lag by one
    // chunk.
    let behind = result.rails.len() as u64 * size.min(512 << 10);
    assert!(carried + behind >= result.bytes / 10 * 9, "{carried} of {}", result.bytes);
    assert!(carried > 0);
    assert!(!result.limit.because.is_empty());
    for sample in &result.samples {
        assert!(sample.peer.cpu_seconds > 0.0 && sample.peer.seconds > 0.0);
    }
}

#[test]
fn every_operation_arrives_whole_and_in_place() {
    for options in [
        "--op write --sizes 1,64KiB,3MiB",
        "--op read --sizes 1,64KiB,3MiB",
        "--op send --sizes 1,64KiB,3MiB",
        "--op write --sizes 1MiB --segments 256 --rails 2",
        "--op read --sizes 1MiB --segments 256 --rails 1",
        "--op send --sizes 64KiB --segments 8 --depth 3",
        "--op write --sizes 64KiB --depth 5 --posters 3",
        "--op send --sizes 64KiB --depth 5 --posters 3",
    ] {
        let report = report(options);
        assert!(report.head.error.is_none() && !report.interrupted);
        report.results.iter().for_each(check_sane);
        let first = &report.results[0];
        assert!(options.contains(&first.op) && options.contains("--op"));
        assert_eq!(first.transfers, 10, "{options}");
        let received: u64 = first.samples.iter().map(|sample| sample.peer.rx_bytes).sum();
        let other_side_receives = first.op != "read";
        assert_eq!(received >= first.bytes, other_side_receives, "{options}");
    }
}

#[test]
fn the_report_describes_both_sides_and_the_settings() {
    let report = report("--sizes 4KiB --set chunk_bytes=8KiB --rails 2");
    assert_eq!(report.head.schema_version, 1);
    let peer = report.peer.unwrap();
    assert!(peer.same_host);
    assert_eq!(peer.host.hostname, report.host.hostname);
    assert_eq!(report.config["chunk_bytes"].value, 8192);
    assert_eq!(report.config["chunk_bytes"].origin, "set");
    assert_eq!(report.config["window_chunks"].origin, "default");
    assert_eq!(peer.config["chunk_bytes"].value, 8192, "the other process has the same settings");
    assert_eq!(report.results[0].rails.len(), 2);
    assert_eq!(report.limit.unwrap(), report.results[0].limit);
}

#[test]
fn both_ways_at_once_counts_both_and_both_are_verified() {
    for op in ["write", "read", "send"] {
        let report = report(&format!("--bidir --op {op} --sizes 256KiB"));
        let result = &report.results[0];
        check_sane(result);
        assert_eq!((result.bidir, result.transfers), (true, 20));
        // Each end verifies its own 16 slots after each of the two samples.
        assert_eq!(result.verified_bytes, 2 * 2 * 16 * (256 << 10));
    }
}

#[test]
fn a_ping_pong_gives_half_of_each_round_trip() {
    for op in ["write", "send"] {
        let report = report(&format!("--latency --op {op} --sizes 8,4KiB --against raw"));
        for result in &report.results {
            check_sane(result);
            // Five round trips in each of two samples: ten messages each way.
            assert_eq!((result.ping_pong, result.transfers), (true, 20));
            let raw = result.against.as_ref().unwrap();
            assert!(raw.ratio > 0.0 && raw.raw_latency_us.unwrap().p50 > 0.0);
            let one_way_s = result.latency_us.unwrap().p50 / 1e6;
            assert!(one_way_s * 2.0 < result.seconds, "a round trip is longer than one way");
        }
    }
}

#[test]
fn plain_sockets_are_measured_with_the_engines_flows_and_congestion_control() {
    let report =
        report("--against raw --sizes 1MiB --rails 3 --set sockets=2 --set congestion=reno");
    let raw = report.results[0].against.as_ref().unwrap();
    assert_eq!((raw.flows, raw.chunk_bytes), (6, 512 << 10));
    assert_eq!(raw.congestion, "reno");
    assert_eq!(raw.samples.len(), 2);
    assert!(raw.raw_gb_per_s > 0.0 && raw.ratio > 0.0 && raw.cpu_ratio.unwrap() > 0.0);
    let spread = raw.spread_ratio.unwrap();
    assert!(spread.min <= raw.ratio && raw.ratio <= spread.max, "{spread:?}");
}

#[test]
fn each_rail_is_measured_alone() {
    let report = report("--against alone --sizes 1MiB --rails 2");
    let alone = report.results[0].alone.as_ref().unwrap();
    assert_eq!(alone.rails.len(), 2);
    let sum: f64 = alone.rails.iter().map(|rail| rail.gb_per_s).sum();
    assert!((alone.sum_gb_per_s - sum).abs() < 1e-9 && alone.ratio > 0.0);
}

#[test]
fn people_get_a_table_the_limit_and_the_place_of_the_json() {
    let folder = tempfile::tempdir().unwrap();
    let run = |options: &[&str]| {
        let mut command = polyrail(["bench"]);
        command.args(options).args(QUICK).env("XDG_STATE_HOME", folder.path());
        command.env("TMPDIR", folder.path().join("tmp")).output().unwrap()
    };
    let output = run(&["--sizes", "64KiB", "--against", "raw"]);
    let errors = said(&output);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["size", "per s", "GB/s", "p50", "p99", "CPU s/GB", "rails %", "rate ×", "CPU ×"]
    {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(text.contains("\nproof: invitation; payload: none\n"), "{text}");
    assert!(text.contains("limit at 64KiB: "), "{text}");
    let path = text.lines().find_map(|line| line.strip_prefix("JSON: ")).unwrap();
    assert_eq!(path, folder.path().join("polyrail/bench.json").to_str().unwrap());
    let report: BenchReport =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(report.results.len(), 1);
    assert_eq!(errors, "", "without a terminal there is no bar");

    let again = run(&["--sizes", "8", "--sample"]);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    let report: BenchReport =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(report.results[0].size_bytes, 8, "the new report takes the place of the old one");
    let before = std::fs::read_to_string(path).unwrap();
    let refused = run(&["--connect", "127.0.0.1:1"]);
    assert!(!refused.status.success(), "nobody listens there");
    assert_eq!(std::fs::read_to_string(path).unwrap(), before, "it has measured nothing");
    let mut left: Vec<_> = std::fs::read_dir(folder.path().join("polyrail"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    left.sort();
    // A busy machine stores no limits.
    left.retain(|name| name != "limits.json");
    assert_eq!(left, ["bench-samples.jsonl", "bench.json"], "no more after any number of runs");
    assert!(!folder.path().join("tmp").exists());
}

#[test]
fn a_bench_measures_whatever_lies_in_the_place_of_the_limits_of_earlier_runs() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("polyrail")).unwrap();
    let limits = folder.path().join("polyrail/limits.json");
    let pipe = || assert!(Command::new("mkfifo").arg(&limits).status().unwrap().success());
    let large = || std::fs::File::create(&limits).unwrap().set_len(3 << 30).unwrap();
    let makes: [&dyn Fn(); 3] = [&pipe, &|| std::fs::create_dir(&limits).unwrap(), &large];
    for make in makes {
        make();
        let mut command = polyrail(["bench", "--sizes", "64KiB", "--json", "none"]);
        command.args(QUICK).env("XDG_STATE_HOME", folder.path()).stdout(Stdio::null());
        let mut bench = common::Process(command.stderr(Stdio::null()).spawn().unwrap());
        let status = common::wait_for("the bench", || bench.0.try_wait().unwrap());
        assert_eq!(status.code(), Some(0));
        let is_folder = limits.is_dir();
        if is_folder { std::fs::remove_dir(&limits) } else { std::fs::remove_file(&limits) }
            .unwrap();
    }
}

#[test]
fn a_report_goes_nowhere_where_nobody_asked_for_it_or_there_is_no_home() {
    let folder = tempfile::tempdir().unwrap();
    let run = |options: &[&str], home: Option<&str>| {
        let mut command = polyrail(["bench"]);
        command.args(["--sizes", "8"]).args(options).args(QUICK).env("TMPDIR", folder.path());
        command.env_remove("XDG_STATE_HOME").env_remove("HOME");
        let output = command.envs(home.map(|home| ("HOME", home))).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let errors = said(&output);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(!text.contains("JSON: "), "{text}");
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 0, "{options:?} left something");
        errors
    };
    assert_eq!(run(&["--json", "none"], folder.path().to_str()), "");
    for home in [None, Some("/proc")] {
        let told = run(&[], home);
        assert!(told.starts_with("polyrail: no report is kept: can't write to "), "{told}");
        assert!(told.ends_with("\nhelp: --json FILE writes one\n"), "{told}");
        assert_eq!(told.matches("; allowed: ").count(), 1, "{told}");
    }
}

#[test]
fn figures_that_find_no_room_are_shown_and_the_run_fails() {
    let output = bench("--sizes 64KiB --iters 20 --rounds 1 --json /dev/full");
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(output.status.code(), Some(3), "{err}");
    assert!(out.contains("\n64KiB ") && !out.contains("JSON: "), "{out}");
    assert!(err.contains("/dev/full") && err.contains("help: free some space"), "{err}");
}

#[test]
fn what_settings_warn_of_is_said_once_and_in_a_log_that_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    for set in [None, Some(format!("--set=log_file={}", log.display()))] {
        let mut command = polyrail(["bench"]);
        command.args(["--sizes", "8"]).args(QUICK).args(set.iter());
        let output = command.env("NCCL_BUFFSIZE", "4194304").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let warning = "NCCL_BUFFSIZE=4194304 is read but has no counterpart";
        assert_eq!(said.matches(warning).count(), 1, "{said}");
        if set.is_some() {
            let logged = std::fs::read_to_string(&log).unwrap();
            assert!(logged.contains(warning), "{logged}");
        }
    }
}

#[test]
fn memory_that_can_not_be_had_is_told_with_what_helps() {
    let script = "ulimit -v 700000; exec \"$0\" bench --sizes 512MiB --iters 1 --rounds 1";
    let mut command = Command::new("sh");
    let output = command.args(["-c", script, PROGRAM]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(exit::ENVIRONMENT.into()), "{said}");
    assert!(
        said.contains("polyrail: ") && said.contains("\nhelp: choose smaller --sizes"),
        "{said}"
    );
}

#[test]
fn without_proc_the_message_says_what_helps() {
    // A separate mount namespace mounts something else there.
    let script = "mount -t tmpfs none /proc && exec \"$0\" bench --sizes 8";
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--mount", "sh", "-c", script]);
    let output = command.arg(PROGRAM).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    if !said.contains("polyrail: ") {
        let run = "sudo -E cargo test -p polyrail-cli --test plain without_proc";
        return polyrail_skip::skip(format!("no namespaces: {said}"), run);
    }
    assert_eq!(output.status.code(), Some(exit::ENVIRONMENT.into()), "{said}");
    assert!(said.contains("\nhelp: /proc is not mounted here"), "{said}");
}

/// Files that containers hide and that an engine reads, or may read, while it starts and connects.
const HIDDEN: [&str; 7] = [
    "/proc/sys/kernel/random/boot_id",
    "/proc/sys/net/ipv4/tcp_available_congestion_control",
    "/proc/sys/net/core/somaxconn",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/interrupts",
];

#[test]
fn an_engine_starts_whichever_file_of_the_kernel_is_hidden() {
    let can = Command::new("unshare").args(["--mount", "true"]).output();
    if !can.is_ok_and(|output| output.status.success()) {
        let run = "sudo -E cargo test -p polyrail-cli --test plain hidden";
        return polyrail_skip::skip("a mount namespace needs root", run);
    }
    let files = HIDDEN.iter().copied().filter(|file| std::path::Path::new(file).exists());
    let whole = ["/sys", "/proc/sys"].map(|folder| format!("mount -t tmpfs none {folder}"));
    let masks = files.map(|file| format!("mount --bind /dev/null {file}")).chain(whole);
    for mask in masks {
        let script =
            format!("{mask} && exec \"$0\" bench --sizes 64KiB --iters 2 --rounds 1 --json none");
        let mut command = Command::new("unshare");
        let output = command.args(["--mount", "sh", "-c", &script]);
        let output = output.arg(PROGRAM).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{mask}: {said}");
    }
}

#[test]
fn csv_has_a_line_for_each_size() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.csv");
    let output = polyrail(["bench"])
        .args(["--sizes", "8,64", "--json", "-", "--csv", path.to_str().unwrap()])
        .args(QUICK)
        .output()
        .unwrap();
    assert!(output.status.success());
    let csv = std::fs::read_to_string(&path).unwrap();
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let table = String::from_utf8(output.stderr).unwrap();
    assert!(table.contains("GB/s"), "the table gives way to the JSON: {table}");
}

#[test]
fn wrong_options_are_refused_with_field_value_and_range() {
    for (options, code, parts) in [
        ("--sizes 64Ki", exit::USAGE, vec!["--sizes", "64Ki", "64KiB (1024) or 64kB (1000)"]),
        ("--sizes -1", exit::USAGE, vec!["--sizes <LIST> `-1`", "1 to 1024GiB"]),
        ("--sizes 2048GiB", exit::USAGE, vec!["2048GiB", "too large", "1024GiB"]),
        ("--depth 0", exit::USAGE, vec!["--depth <N> `0`", "1 to 1048576"]),
        ("--segments 3", exit::USAGE, vec!["--sizes `65536`", "multiples of --segments (3)"]),
        (
            "--set chunk_bytes=1",
            exit::USAGE,
            vec!["--set <NAME=VALUE> `chunk_bytes=1`", "4KiB to 64MiB"],
        ),
        ("--set windows=3", exit::USAGE, vec!["unknown setting `windows`; allowed: "]),
        ("--latency --op read", exit::USAGE, vec!["--op `read`", "one-way"]),
        ("--fit 4x1000", exit::USAGE, vec!["--fit <RATES> `4x1000`", "1mbit to 400gbit"]),
        ("--fit unlimited", exit::USAGE, vec!["--fit <RATES> `unlimited`: has no number"]),
        ("--fit 1gbit", exit::USAGE, vec!["--fit <RATES>: cannot be used with --iters <N>"]),
        (
            "--set congestion=nope",
            exit::USAGE,
            vec!["congestion = `nope`", "allowed: auto, system, ", "reno"],
        ),
        ("--rails 99", exit::USAGE, vec!["--rails <N|LIST|near> `99`", "1 to 64"]),
        ("--rails nosuch7", exit::USAGE, vec!["nosuch7", "usable here", "lo"]),
        ("--sizes 512GiB", exit::ENVIRONMENT, vec!["needs ", " TiB of memory; allowed: "]),
        ("--json - --csv -", exit::USAGE, vec!["--csv `-`", "standard output, as --json does"]),
        ("--json /nonexistent/x.json", exit::USAGE, vec!["/nonexistent/x.json", "mkdir"]),
        (
            "--connect 127.0.0.1",
            exit::USAGE,
            vec!["--connect <ADDR:PORT> `127.0.0.1`", "has no port"],
        ),
        ("--connect tcp://127.0.0.1:7", exit::USAGE, vec!["begins with tcp://", "10.0.0.1:34567"]),
        ("--connect 127.0.0.1:0", exit::USAGE, vec!["`127.0.0.1:0`", "has port 0"]),
        ("--connect ::1:7000", exit::USAGE, vec!["without brackets", "[fd00::1]:34567"]),
        ("--connect 127.0.0.1:x", exit::USAGE, vec!["has the port `x`", "0 to 65535"]),
        (
            "--connect nosuch.invalid:9",
            exit::PEER,
            vec!["can't connect to nosuch.invalid:9: ", "help: "],
        ),
        ("--connect 127.0.0.1:9", exit::PEER, vec!["127.0.0.1:9", "refused"]),
        ("--listen 203.0.113.1:0 --rails 1", exit::ENVIRONMENT, vec!["203.0.113.1", "127.0.0.1"]),
        ("--listen 127.0.0.1:0 --sizes 8", exit::USAGE, vec!["cannot be used with --sizes"]),
    ] {
        // Clients tell a listener how much to measure.
        let quick = if options.starts_with("--listen") { "" } else { " --iters 1" };
        let output = bench(&format!("{options}{quick}"));
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code.into()), "{options}: {message}");
        for part in parts {
            assert!(message.contains(part), "{options}: {part}: {message}");
        }
    }
}

/// The other process gets all values as options.
#[test]
fn a_wrong_value_is_told_once_with_the_place_where_it_came_from() {
    for (setting, value) in [("congestion", "nope"), ("tx_bindings", "8000"), ("rails", "nosuch7")]
    {
        let variable = format!("POLYRAIL_{}", setting.to_uppercase());
        let output =
            polyrail(["bench"]).args(["--sizes", "8"]).env(&variable, value).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && message.contains(&variable), "{setting}: {message}");
        assert!(!message.contains("an option"), "{setting}: {message}");
        assert_eq!(message.matches("polyrail: ").count(), 1, "{setting}: {message}");
    }
}

#[test]
fn no_file_gets_two_outputs() {
    let folder = tempfile::tempdir().unwrap();
    let same = folder.path().join("same");
    let other = folder.path().join("./same");
    for (command, [one, two]) in [
        ("bench --iters 1", ["--json", "--csv"]),
        ("bench --iters 1", ["--json", "--sample"]),
        ("bench --iters 1", ["--csv", "--sample"]),
        ("mesh --lab 2:1gbit", ["--json", "--html"]),
    ] {
        let mut words: Vec<_> = command.split(' ').map(OsStr::new).collect();
        let (one, two) = (OsStr::new(one), OsStr::new(two));
        words.extend([one, same.as_os_str(), two, other.as_os_str()]);
        let output = polyrail(words).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(exit::USAGE.into()), "{command}: {message}");
        for part in [two.to_str().unwrap(), "is the file that", one.to_str().unwrap(), "allowed: "]
        {
            assert!(message.contains(part), "{command}: {part}: {message}");
        }
    }
}

#[test]
fn a_client_is_served_right_after_another_one_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("report.json");
    let server = Server::start("");
    let options = format!(
        "--connect {} --sizes 8,64MiB --iters 3 --rounds 40 --json {}",
        server.address,
        json.display()
    );
    let first = polyrail(["bench"]).args(options.split_whitespace()).stderr(Stdio::null()).spawn();
    let mut first = first.unwrap();
    wait_until("the first size", || std::fs::metadata(&json).is_ok_and(|found| found.len() > 0));
    first.kill().unwrap();
    first.wait().unwrap();
    let second = report(&format!("--connect {} --sizes 8", server.address));
    assert_eq!(second.results[0].size_bytes, 8);
    let (code, said) = server.stop();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(", which went away before it was done: "), "{said}");
}

#[test]
fn a_listener_that_is_killed_is_named_at_once_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("report.json");
    let mut listener = Server::start("");
    let options = format!(
        "--connect {} --sizes 8,64MiB --iters 3 --rounds 40 --json {}",
        listener.address,
        json.display()
    );
    let client =
        polyrail(["bench"]).args(options.split_whitespace()).stderr(Stdio::piped()).spawn();
    let mut client = client.unwrap();
    // The report has the first size as soon as the second one begins.
    wait_until("the first size", || std::fs::metadata(&json).is_ok_and(|found| found.len() > 0));
    let killed = Instant::now();
    listener.child.kill().unwrap();
    let mut message = String::new();
    client.stderr.take().unwrap().read_to_string(&mut message).unwrap();
    assert_eq!(client.wait().unwrap().code(), Some(exit::PEER.into()), "{message}");
    assert!(killed.elapsed() < Duration::from_secs(8), "{:?}", killed.elapsed());
    assert!(message.contains("the engine at the other end, ") && message.contains(" is gone: "));
    assert!(message.contains("help: look at the other end why it ended, start it again"));
    let report: BenchReport =
        serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    assert_eq!(report.results[0].size_bytes, 8, "what was measured before is kept");
}

#[test]
fn a_run_that_is_refused_says_nothing_but_why_and_what_helps() {
    // The socket is bound to the port but does not listen.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let free = socket.local_addr().unwrap().as_socket().unwrap();
    let output = bench(&format!("--connect {free} --sizes 8"));
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(exit::PEER.into()), "{message}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "", "{message}");
    assert!(message.starts_with("polyrail: can't connect to "), "{message}");
    assert!(message.contains("\nhelp: nobody listens there: start"), "{message}");
    // With `--json -`, the report is written even so.
    let output = bench(&format!("--connect {free} --sizes 8 --json -"));
    let report: BenchReport = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report.head.error.unwrap().contains("refused") && report.protection.is_none());
}

/// The resolver returns the IPv6 address first, and nothing listens there.
#[test]
fn of_a_name_with_several_addresses_the_one_that_answers_counts() {
    let hosts = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&hosts, "::1 both.test\n127.0.0.1 both.test\n").unwrap();
    let named = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-current-user", "--keep-caps", "--mount", "sh", "-c"]);
        let script = format!("mount --bind {} /etc/hosts && {script}", hosts.path().display());
        command.arg(script).output()
    };
    if !named("true").is_ok_and(|it| it.status.success()) {
        let why = "user namespaces are not allowed, or `unshare` is missing (util-linux)";
        return polyrail_skip::skip(why, "sudo -E cargo test -p polyrail-cli --test plain bench::");
    }
    let (server, program) = (Server::start(""), PROGRAM);
    let name = server.address.replace("127.0.0.1", "both.test");
    for rails in ["", "--rails 127.0.0.1"] {
        let run = format!("exec {program} bench --connect {name} {rails} --sizes 8 --iters 1");
        let output = named(&run).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{rails}: {said}");
    }
}

/// A `bench --listen`, killed on drop.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(options: &str) -> Self {
        let mut child = polyrail(["bench"])
            .args(["--listen", "127.0.0.1:0"])
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, address }
    }

    /// Stops the server with Ctrl-C. Returns its exit code and standard error.
    fn stop(mut self) -> (Option<i32>, String) {
        signal(&self.child, "INT");
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (status.code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(child: &Child, name: &str) {
    let pid = rustix::process::Pid::from_child(child);
    let signal = match name {
        "INT" => rustix::process::Signal::INT,
        _ => rustix::process::Signal::KILL,
    };
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Waits until the progress shows this round or a later one. Returns the rest of standard error.
fn wait_for_round(child: &mut Child, wanted: u32) -> BufReader<ChildStderr> {
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    let round = |line: &str| -> Option<u32> {
        let (_, rest) = line.split_once(": round ")?;
        rest.split(|one: char| !one.is_ascii_digit()).next()?.parse().ok()
    };
    while round(&line).is_none_or(|round| round < wanted) {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0, "it is over");
    }
    said
}

#[test]
fn a_server_serves_one_client_after_another_until_ctrl_c() {
    let server = Server::start("");
    for sizes in ["64KiB", "8"] {
        let report = report(&format!("--connect {} --sizes {sizes}", server.address));
        check_sane(&report.results[0]);
        assert!(report.peer.unwrap().same_host);
    }
    let (code, said) = server.stop();
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(said.matches("served ").count(), 2, "{said}");
}

#[test]
fn a_report_says_what_protected_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    let made = polyrail(["secret", "new"]).arg(&secret).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let secret = format!("--set secret_file={}", secret.display());
    let protection = |options: &str| {
        let found = report(&format!("{options} --sizes 8")).protection.unwrap();
        serde_json::to_value(found).unwrap()
    };
    let of = |proof, sent, received| json!({"proof": proof, "payload_sent": sent, "payload_received": received});
    // The two processes of a run on one machine pass a connect string.
    assert_eq!(protection("--set payload=crc32c"), of("invitation", "crc32c", "crc32c"));
    let server = Server::start(&format!("{secret} --set payload=crc32c --set auth=none"));
    let to = format!("--connect {}", server.address);
    assert_eq!(protection(&to), of("same_user", "none", "crc32c"));
    assert_eq!(protection(&format!("{to} {secret}")), of("secret", "none", "crc32c"));
    let open = format!("{to} --set auth=none --set payload=aead");
    assert_eq!(protection(&open), of("none", "aead", "aead"));
}

#[test]
fn a_client_that_is_killed_does_not_keep_the_server_from_the_next() {
    let server = Server::start("--set peer_timeout_ms=1000");
    let mut first = polyrail(["bench"])
        .args(["--connect", &server.address, "--sizes", "64KiB", "--time", "60s", "--json", "-"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let _said = wait_for_round(&mut first, 1);
    signal(&first, "KILL");
    first.wait().unwrap();
    // The server waits until its deadline before it gives the first client up.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let output = bench(&format!("--connect {} --sizes 8 --iters 2 --json -", server.address));
        if output.status.success() {
            break;
        }
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(Instant::now() < deadline, "the server is never free again: {why}");
        // Retries: the server does not announce that it is free.
        thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn ctrl_c_ends_a_run_in_order_with_what_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let mut child = polyrail(["bench"])
        .args(["--sizes", "4KiB,64KiB", "--time", "100s", "--rounds", "1000", "--warmup", "1ms"])
        .args(["--json", path.to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One round is over.
    let mut said = wait_for_round(&mut child, 2);
    signal(&child, "INT");
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(exit::INTERRUPTED.into()));
    let report: BenchReport =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert!(report.interrupted);
    assert_eq!(report.head.error.as_deref(), Some("interrupted"));
    let rounds = report.results[0].samples.len();
    assert!((1..1000).contains(&rounds), "{rounds} rounds were done");
    let note = format!(
        "interrupted in round {} of 1000 (4KiB): its results are of {rounds} round",
        rounds + 1
    );
    assert!(
        report.head.notes.iter().any(|told| told.starts_with(&note)),
        "{:?}",
        report.head.notes
    );
    let mut errors = String::new();
    said.read_to_string(&mut errors).unwrap();
    assert!(errors.contains("interrupted"), "{errors}");
}
