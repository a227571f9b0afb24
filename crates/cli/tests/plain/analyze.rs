//! `polyrail analyze` as users run it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use polyrail_browser::{Browser, MISSING};
use polyrail_profile::PathKind;
use polyrail_profile::synthetic::Machine;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::fit;
use crate::common::golden::assert_golden;
use crate::common::{polyrail, refusal, refusals, run, succeeded, text};

fn analyze(arguments: &[&str]) -> Output {
    polyrail(["analyze"]).args(arguments).output().unwrap()
}

/// Messages cut values after 60 characters, so this runs in `root` and takes relative paths.
fn analyze_in(root: &TempDir, arguments: &[&str]) -> Output {
    polyrail(["analyze"]).args(arguments).current_dir(root).output().unwrap()
}

fn machine() -> Machine {
    Machine { endpoints: 3, paths: vec![PathKind::Nccl], repetitions: 6, ..Machine::default() }
}

fn profile(machine: &Machine) -> (TempDir, String) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("profile");
    machine.profile(&dir).unwrap();
    let dir = dir.to_str().unwrap().to_owned();
    (root, dir)
}

#[test]
fn a_profile_becomes_tables_json_and_a_report() {
    let (root, dir) = profile(&machine());
    let output = analyze_in(&root, &["profile"]);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output.stderr));
    assert_golden("analyze/tables", text(&output.stdout));

    let report = root.path().join("report.html");
    let output = analyze(&[&dir, "--json", "--html", report.to_str().unwrap()]);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["schema_version"], 2);
    assert_eq!(json["metrics"][0]["metric"], "t_gpu");
    assert!(json["configurations"][0]["median_ns"].is_f64());
    assert!(json["comparison"].is_null());
    assert!(fs::read_to_string(&report).unwrap().starts_with("<!doctype html>"));
    assert_eq!(text(&output.stderr).trim_end(), report.to_str().unwrap());
}

#[test]
fn pages_of_json_have_no_faults_at_any_width_and_ask_nothing_of_a_network() {
    let command = "apt-get install chromium && cargo test -p polyrail-cli --test plain analyze";
    let Some(mut browser) = Browser::start() else { return polyrail_skip::skip(MISSING, command) };
    let root = tempfile::tempdir().unwrap();
    let experiment = root.path().join("kinds.yml");
    let kinds = "command: echo 1{kind}\nfigure: '([0-9]+)'\nbetter: lower\nfactors:\n  kind: [0, 1]\nblocks: 8\n";
    fs::write(&experiment, kinds).unwrap();
    let (experiment, out) = (experiment.display(), root.path().join("out"));
    let sweep =
        ["--sizes 64KiB --iters 4 --depth 1 --warmup 1ms --rounds 1 --verify off --rails 1"];
    let line = |words: &str, last: &[&str]| -> Vec<String> {
        words.split(' ').chain(last.iter().copied()).map(str::to_owned).collect()
    };
    for words in [
        line(
            "bench --sizes 64KiB,1MiB --time 100ms --warmup 20ms --rounds 2 --against raw --json -",
            &[],
        ),
        line("bench --fit 1gbit --sizes 64KiB,1MiB --time 50ms --rounds 2 --rails 1 --json -", &[]),
        line(
            "collective all_reduce --plugin sockets --compare 2x2 --sizes 64KiB,128KiB --rounds 2 --json -",
            &[],
        ),
        line(&format!("experiment run {experiment} --json --out"), &[out.to_str().unwrap()]),
        line(
            "experiment sweep --rounds 1 --over channels=1,2 --over chunk_bytes=256KiB --json --bench",
            &sweep,
        ),
    ] {
        let output = succeeded(polyrail(words.iter().map(String::as_str)).output().unwrap());
        let page = root.path().join("page.html");
        fs::write(&page, fit::page(text(&output.stdout))).unwrap();
        browser.open(&page);
        assert_eq!(browser.faults(), [""; 0], "{words:?}");
        let shown = browser.value("document.getElementById('report').textContent");
        for none in ["undefined", "NaN", "Infinity"] {
            assert!(!shown.as_str().unwrap().contains(none), "{words:?}: {shown}");
        }
        if words.contains(&"--fit".to_owned()) {
            assert!(shown.as_str().unwrap().contains("Does it fit?1gbit: 1"), "{shown}");
            // Each direction has a curve, and the curve goes to the right.
            let xs = "[...document.querySelectorAll('path.curve')].map(path => \
                      path.getAttribute('d').slice(1).split('L').map(point => Number(point.split(',')[0])))";
            let curves = browser.value(xs);
            let curves: Vec<Vec<f64>> = serde_json::from_value(curves).unwrap();
            assert!(curves.len() >= 6, "{curves:?}");
            assert!(curves.iter().all(|xs| xs.is_sorted_by(|a, b| a < b)), "{curves:?}");
        }
    }
    let (complaints, requests) = browser.complaints_and_requests();
    assert!(complaints.is_empty(), "{complaints:#?}");
    let own = format!("file://{}", root.path().join("page.html").display());
    assert!(requests.iter().all(|url| *url == own || url == "data:,"), "{requests:#?}");
}

#[test]
fn a_report_of_bench_becomes_a_page_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("bench.json");
    let bench = "bench --sizes 64KiB,1MiB --time 100ms --warmup 20ms --rounds 2 --json bench.json";
    let mut command = polyrail(bench.split(' '));
    succeeded(command.current_dir(&root).output().unwrap());
    let page = root.path().join("bench.html");
    let output = succeeded(analyze_in(&root, &["bench.json", "--html", "bench.html"]));
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    let page = fs::read_to_string(page).unwrap();
    let parts = [
        "<!doctype html>",
        "class=\"banner ",
        "CPU s/GB",
        "<dd>polyrail bench --sizes 64KiB,1MiB ",
    ];
    assert!(parts.iter().all(|part| page.contains(part)), "{page:.4000}");
    let said = refusal(2, &analyze_in(&root, &["bench.json"]));
    assert!(said.contains("--html <FILE> is missing") && said.contains("help: "), "{said}");
    let said = refusal(2, &analyze_in(&root, &["bench.json", "--json", "--html", "x.html"]));
    assert!(said.contains("--json goes with the folder of a profile"), "{said}");
    fs::write(&file, "{}").unwrap();
    let said = refusal(2, &analyze_in(&root, &["bench.json", "--html", "x.html"]));
    assert!(
        said.contains("no page can be made of `bench.json`: the command that wrote it is unknown"),
        "{said}"
    );
    assert!(said.contains("help: ") && said.contains("`collective`"), "{said}");
    fs::write(&file, "{\"results\": [{\"gb_per_s\": 1e308}]}").unwrap();
    let said = refusal(2, &analyze_in(&root, &["bench.json", "--html", "x.html"]));
    assert!(said.contains(": results[0].gb_per_s is 1e308; allowed: 0, and 1e-100 to "), "{said}");
    fs::File::create(root.path().join("large.json")).unwrap().set_len(3 << 30).unwrap();
    let said = refusal(2, &analyze_in(&root, &["large.json", "--html", "x.html"]));
    assert!(
        said.contains("`large.json` has 3.00 GiB; allowed: a report of at most 16.0 MiB"),
        "{said}"
    );
    let made = std::process::Command::new("mkfifo").arg(root.path().join("pipe")).status();
    assert!(made.unwrap().success());
    let said = refusal(2, &analyze_in(&root, &["pipe", "--html", "x.html"]));
    assert!(said.contains("`pipe`: is a pipe; allowed: "), "{said}");
    assert!(!root.path().join("x.html").exists());
    fs::write(&file, "{\"results\": []}").unwrap();
    let said = refusal(2, &analyze_in(&root, &["bench.json", "--html", "x.html"]));
    assert!(said.contains("no page can be made of `bench.json`: missing field"), "{said}");
}

#[test]
fn an_older_report_in_the_profile_is_replaced() {
    let (_root, dir) = profile(&machine());
    let report = format!("{dir}/report.html");
    for _ in 0..2 {
        assert!(analyze(&[&dir, "--html", &report]).status.success());
    }
}

#[test]
fn a_report_goes_to_standard_output_by_a_dash() {
    let (root, dir) = profile(&machine());
    let mut command = polyrail(["analyze", &dir, "--html", "-"]);
    let output = succeeded(command.current_dir(&root).output().unwrap());
    assert!(text(&output.stdout).starts_with("<!doctype html>") && output.stderr.is_empty());
    assert!(!root.path().join("-").exists());
}

#[test]
fn a_line_through_two_sizes_is_not_called_right() {
    let root = tempfile::tempdir().unwrap();
    for (sizes, untold) in [("8,1MiB", true), ("8,64KiB,1MiB", false)] {
        let dir = root.path().join(sizes);
        let mut command = polyrail(["profile", "--gpus", "none", "--paths", "host", "--reps", "6"]);
        succeeded(command.args(["--sizes", sizes, "--out"]).arg(&dir).output().unwrap());
        let dir = dir.to_str().unwrap();
        let tables = analyze(&[dir]);
        let tables = text(&tables.stdout);
        assert_eq!(tables.contains("2 links were measured at two sizes: "), untold, "{tables}");
        assert!(!untold || !tables.contains(" 0.0% "), "{tables}");
        let json: Value = serde_json::from_slice(&analyze(&[dir, "--json"]).stdout).unwrap();
        assert_eq!(json["links"][0]["alpha_beta"]["error"].is_null(), untold, "{json}");
    }
}

#[test]
fn a_path_has_the_name_of_profiles_options_and_that_of_tables() {
    let paths = vec![PathKind::CopyEngine];
    let (_root, dir) = profile(&Machine { paths, ..machine() });
    let both = ["peer", "copy_engine"].map(|name| analyze(&[&dir, "--path", name]));
    assert!(both.iter().all(|output| output.status.success()), "{}", text(&both[0].stderr));
    assert_eq!(both[0].stdout, both[1].stdout);
    let plan = |paths: &str| {
        run(&["profile", "--plan", "--gpus", "none", "--sizes", "8", "--paths", paths])
    };
    assert!(plan("host").status.success());
    let table = |output: Output| text(&output.stdout).lines().take(4).collect::<String>();
    assert_eq!(table(plan("host")), table(plan("host_memory")));
}

#[test]
fn a_stream_has_its_size() {
    let (_root, dir) = profile(&machine());
    let analysis: Value = serde_json::from_slice(&analyze(&[&dir, "--json"]).stdout).unwrap();
    let figures = &analysis["path_figures"][0];
    let stream = figures["stream_gb_per_s"].as_f64();
    assert_eq!(stream.is_some(), figures["stream_bytes"].is_u64(), "{figures}");
    assert!(stream.is_some(), "{figures}");
    let tables = analyze(&[&dir]);
    let row = text(&tables.stdout).lines().find(|line| line.starts_with("nccl ")).unwrap();
    let size = polyrail_report::show_size(figures["stream_bytes"].as_u64().unwrap());
    assert!(row.contains(&format!(" of {size} ")), "{row}");
}

#[test]
fn a_slower_run_ends_with_one() {
    let (_base_root, base) = profile(&machine());
    let (_root, dir) = profile(&Machine { seed: 2, slowness: 1.2, ..machine() });
    let output = analyze(&[&dir, "--compare", &base]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains(": slower: 0 same"), "{}", text(&output.stdout));
    let output = analyze(&[&base, "--compare", &dir]);
    assert_eq!(output.status.code(), Some(0), "faster is no failure");
}

#[test]
fn a_simulator_is_judged_and_may_fail() {
    let (root, dir) = profile(&machine());
    let file = root.path().join("predictions.csv");
    fs::write(&file, "src,dst,size_bytes,predicted_time_ns\n*,*,8,7000\n").unwrap();
    let file = file.to_str().unwrap();
    let output = analyze(&[&dir, "--predictions", file]);
    assert_eq!(output.status.code(), Some(0));
    let tables = text(&output.stdout);
    assert!(tables.contains("0 right, 0 too fast, 6 too slow"), "{tables}");
    assert!(tables.contains("latency-bound"), "{tables}");
    let output = analyze(&[&dir, "--predictions", file, "--max-error", "10"]);
    assert_eq!(output.status.code(), Some(1));
    let output = analyze(&[&dir, "--predictions", file, "--max-error", "50"]);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn exports_go_to_a_folder_for_each_simulator() {
    let (root, dir) = profile(&machine());
    let out = root.path().join("out");
    let simulators = ["astra-sim", "chakra", "simai", "vidur"];
    let mut arguments = vec![dir.as_str(), "--out", out.to_str().unwrap()];
    simulators.iter().for_each(|name| arguments.extend(["--export", name]));
    let output = succeeded(analyze(&arguments));
    let written: Vec<PathBuf> = text(&output.stderr).lines().map(PathBuf::from).collect();
    assert_eq!(written.len(), 3 + 3 + 3 + 1);
    assert!(written.iter().all(|path| path.starts_with(&out) && path.is_file()));
    let output = analyze(&[&dir, "--export", "vidur"]);
    assert!(output.status.success());
    assert!(Path::new(&dir).join("export/vidur/send_recv.csv").is_file());
}

#[test]
fn bad_input_is_named_with_its_place_and_what_helps() {
    let (root, dir) = profile(&machine());
    let samples = Path::new(&dir).join("samples.csv");
    let before = fs::read(&samples).unwrap();
    let write = |name: &str, text: &str| fs::write(root.path().join(name), text).unwrap();
    write("columns.csv", "src,dst,bytes\n");
    write("pairs.csv", "src,dst,size_bytes,predicted_time_ns\n0,7,8,1\n");
    fs::File::create(root.path().join("large.csv")).unwrap().set_len(3 << 30).unwrap();
    let said = refusals(
        2,
        |words| analyze_in(&root, words),
        &[
            &["."],
            &["profile", "--predictions", "columns.csv"],
            &["profile", "--predictions", "pairs.csv"],
            &["profile", "--predictions", "large.csv"],
            &["profile", "--metric", "bandwidth"],
            &["profile", "--path", "tcp"],
            &["profile", "--path", "peers"],
            &["profile", "--html", "-", "--json"],
            &["profile", "--html", "profile/samples.csv"],
        ],
    );
    assert_golden("analyze/bad_input", &said);
    assert!(fs::read(&samples).unwrap() == before);
}

#[test]
fn a_missing_table_is_told_and_nothing_is_computed_as_if_it_were_there() {
    let (root, dir) = profile(&machine());
    let one_way = [dir.as_str(), "--metric", "t_oneway", "--json"];
    let json = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let whole = json(&analyze(&one_way));
    assert!(whole["configurations"][0]["clock_uncertainty_ns"].as_f64() > Some(0.0));
    assert_eq!(whole["clocks"]["clocks"].as_array().unwrap().len(), 3);
    assert!(!whole["warnings"].to_string().contains("missing"), "{}", whole["warnings"]);

    for name in ["anchors.csv", "temperatures.csv", "metadata_rank_1.yml"] {
        fs::remove_file(Path::new(&dir).join(name)).unwrap();
    }
    let output = succeeded(analyze_in(&root, &["profile"]));
    let lines = text(&output.stdout).lines().filter(|line| line.starts_with("warning: "));
    let warnings: String = lines.map(|line| format!("{line}\n")).collect();
    assert_golden("analyze/missing_tables", &warnings);
    let without = json(&analyze(&[&dir, "--json"]));
    assert_eq!(without["clocks"]["clocks"].as_array().unwrap().len(), 0);
    let error = refusal(2, &analyze(&one_way));
    assert!(error.contains("no sample has t_oneway, and anchors.csv is missing"), "{error}");
}

#[test]
fn files_that_are_no_text_and_times_that_are_none_are_bad_input_with_their_place() {
    let (root, dir) = profile(&machine());
    let refused = |name: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let path = Path::new(&dir).join(name);
        let good = fs::read(&path).unwrap();
        fs::write(&path, change(good.clone())).unwrap();
        let said = refusal(2, &analyze_in(&root, &["profile"]));
        fs::write(&path, good).unwrap();
        said
    };
    let in_samples = |change: fn(&mut [&str])| {
        refused("samples.csv", &|bytes| {
            let text = String::from_utf8(bytes).unwrap();
            let (head, rest) = text.split_once('\n').unwrap();
            let (line, rest) = rest.split_once('\n').unwrap();
            let mut cells: Vec<&str> = line.split(',').collect();
            change(&mut cells);
            format!("{head}\n{}\n{rest}", cells.join(",")).into_bytes()
        })
    };
    let mut said = in_samples(|cells| (cells[5], cells[11], cells[16]) = ("0", "0", "0"));
    said += &in_samples(|cells| *cells.iter_mut().find(|cell| **cell == "ok").unwrap() = "perhaps");
    for name in ["run.yml", "plan.json", "samples.csv", "anchors.csv", "metadata_rank_0.yml"] {
        said += &refused(name, &|bytes| [&[0xff], &bytes[1..]].concat());
    }
    assert_golden("analyze/damaged_files", &said);
}

#[test]
fn the_name_of_a_folder_is_one_line() {
    let (root, dir) = profile(&machine());
    let odd = root.path().join("w\n\u{1b}[31mX");
    fs::rename(&dir, &odd).unwrap();
    let odd = odd.to_str().unwrap();
    let output = succeeded(analyze(&[odd]));
    assert!(text(&output.stdout).contains("/w\\u000a\\u001b[31mX: "), "{}", text(&output.stdout));
    fs::write(format!("{odd}/run.yml"), "x").unwrap();
    let error = analyze(&[odd]).stderr;
    assert!(text(&error).contains("/w\\u000a\\u001b[31mX/run.yml"), "{}", text(&error));
}

#[test]
fn names_in_a_folder_do_not_steer_the_terminal() {
    let (_root, dir) = profile(&machine());
    let path = Path::new(&dir).join("run.yml");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replacen("hostname: synthetic", "hostname: \"\\e[2Jgone\"", 1)).unwrap();
    let output = analyze(&[&dir]);
    assert!(text(&output.stdout).contains(": \\u001b[2Jgone, 3 endpoints"));
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn wrong_bytes_end_with_five() {
    let (_root, dir) = profile(&machine());
    let path = Path::new(&dir).join("samples.csv");
    let text_before = fs::read_to_string(&path).unwrap();
    fs::write(&path, text_before.replacen(",ok,", ",failed,", 1)).unwrap();
    let output = analyze(&[&dir]);
    assert_eq!(output.status.code(), Some(5));
    assert!(text(&output.stdout).contains("warning: 1 transfers brought wrong bytes"));
}
