//! `polyrail analyze` as people call it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use polyrail_profile::PathKind;
use polyrail_profile::synthetic::Machine;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::{polyrail, run, text};

fn analyze(arguments: &[&str]) -> Output {
    polyrail(["analyze"]).args(arguments).output().unwrap()
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
    let output = analyze(&[&dir]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    assert!(tables.contains("3 endpoints, 186 configurations"), "{tables}");
    assert!(tables.contains("gpu0 > gpu1  nccl") && tables.contains("256KiB"), "{tables}");
    assert!(tables.contains("asymmetric: gpu1 > gpu0 over nccl, from 1MiB on"), "{tables}");
    assert!(output.stderr.is_empty());
    let second = tables.lines().nth(1).unwrap();
    assert!(
        second.starts_with("conclusion: nccl: ") && second.contains(" for 1B, up to "),
        "{second}"
    );
    assert!(!tables.contains("too noisy"), "{tables}");
    assert!(tables.contains("no one line for 6 of 6 links, in pieces below"), "{tables}");
    let row = |start: &str| tables.lines().find(|line| line.starts_with(start)).unwrap();
    assert!(row("gpu0 > gpu1  nccl").contains(" 2 pieces "), "{tables}");
    assert!(tables.lines().all(|line| !line.contains("0.000us")), "{tables}");

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
fn a_report_takes_the_place_of_no_file_of_the_profile() {
    let (_root, dir) = profile(&machine());
    let samples = Path::new(&dir).join("samples.csv");
    let before = fs::read(&samples).unwrap();
    let output = analyze(&[&dir, "--html", samples.to_str().unwrap()]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    for part in ["--html <FILE> `", "samples.csv`: is a file of the profile; allowed: ", "help: "] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(fs::read(&samples).unwrap() == before);
    // An older report there is replaced.
    let report = format!("{dir}/report.html");
    for _ in 0..2 {
        assert!(analyze(&[&dir, "--html", &report]).status.success());
    }
}

#[test]
fn a_report_goes_to_standard_output_by_a_dash() {
    let (root, dir) = profile(&machine());
    let mut command = polyrail(["analyze", &dir, "--html", "-"]);
    let output = command.current_dir(&root).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("<!doctype html>") && output.stderr.is_empty());
    assert!(!root.path().join("-").exists());
    let output = analyze(&[&dir, "--html", "-", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--html <FILE> `-`: is standard output, where --json"));
}

#[test]
fn a_line_through_two_sizes_is_not_called_right() {
    let root = tempfile::tempdir().unwrap();
    for (sizes, untold) in [("8,1MiB", true), ("8,64KiB,1MiB", false)] {
        let dir = root.path().join(sizes);
        let mut command = polyrail(["profile", "--gpus", "none", "--paths", "host", "--reps", "6"]);
        let output = command.args(["--sizes", sizes, "--out"]).arg(&dir).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
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
    let refused = analyze(&[&dir, "--path", "peers"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("allowed: peer (copy_engine), peer-kernel"));
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
    let output = analyze(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let written: Vec<PathBuf> = text(&output.stderr).lines().map(PathBuf::from).collect();
    assert_eq!(written.len(), 3 + 3 + 3 + 1);
    assert!(written.iter().all(|path| path.starts_with(&out) && path.is_file()));
    let output = analyze(&[&dir, "--export", "vidur"]);
    assert!(output.status.success());
    assert!(Path::new(&dir).join("export/vidur/send_recv.csv").is_file());
}

#[test]
fn bad_input_is_named_with_its_place_and_what_helps() {
    let refused = |arguments: &[&str]| {
        let output = analyze(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(output.stdout.is_empty());
        text(&output.stderr).to_owned()
    };
    let root = tempfile::tempdir().unwrap();
    let foreign = refused(&[root.path().to_str().unwrap()]);
    assert!(
        foreign.contains("is not a profile folder: it has no plan.json; allowed: "),
        "{foreign}"
    );

    let (_root, dir) = profile(&machine());
    let path = Path::new(&dir).join("samples.csv");
    let good = fs::read_to_string(&path).unwrap();
    fs::write(&path, good.replacen(",ok,", ",perhaps,", 1)).unwrap();
    let cell = refused(&[&dir]);
    assert!(
        cell.contains("samples.csv:2, column verify: `perhaps`; allowed: off, ok, failed"),
        "{cell}"
    );
    fs::write(&path, &good).unwrap();

    let file = root.path().join("p.csv");
    fs::write(&file, "src,dst,bytes\n").unwrap();
    let columns = refused(&[&dir, "--predictions", file.to_str().unwrap()]);
    assert!(columns.contains("missing column size_bytes, predicted_time_ns"), "{columns}");
    fs::write(&file, "src,dst,size_bytes,predicted_time_ns\n0,7,8,1\n").unwrap();
    let pairs = refused(&[&dir, "--predictions", file.to_str().unwrap()]);
    assert!(pairs.contains("p.csv:2, column dst: `7`; allowed: 0 to 2"), "{pairs}");
    let metric = refused(&[&dir, "--metric", "bandwidth"]);
    assert!(metric.contains("is not a time; allowed: t_gpu"), "{metric}");
    let absent = refused(&[&dir, "--path", "tcp"]);
    assert!(absent.contains("no sample has a time over tcp"), "{absent}");
}

#[test]
fn a_missing_table_is_told_and_nothing_is_computed_as_if_it_were_there() {
    let (_root, dir) = profile(&machine());
    let one_way = [dir.as_str(), "--metric", "t_oneway", "--json"];
    let json = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap();
    let whole = json(&analyze(&one_way));
    assert!(whole["configurations"][0]["clock_uncertainty_ns"].as_f64() > Some(0.0));
    assert_eq!(whole["clocks"]["clocks"].as_array().unwrap().len(), 3);
    assert!(!whole["warnings"].to_string().contains("missing"), "{}", whole["warnings"]);

    for name in ["anchors.csv", "temperatures.csv", "metadata_rank_1.yml"] {
        fs::remove_file(Path::new(&dir).join(name)).unwrap();
    }
    let output = analyze(&[&dir]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let tables = text(&output.stdout);
    for warning in [
        "warning: anchors.csv is missing: clocks can't be compared\n",
        "warning: clocks without anchors: gpu0, gpu1, gpu2; there are no one-way times between them",
        "warning: temperatures.csv is missing: only the samples tell about devices\n",
        "warning: metadata_rank_1.yml is missing: the model of rank 1 is not known\n",
    ] {
        assert!(tables.contains(warning), "{warning}: {tables}");
    }
    let without = json(&analyze(&[&dir, "--json"]));
    assert_eq!(without["clocks"]["clocks"].as_array().unwrap().len(), 0);
    let output = analyze(&one_way);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("no sample has t_oneway, and anchors.csv is missing"), "{error}");
}

#[test]
fn files_that_are_no_text_and_times_that_are_none_are_bad_input_with_their_place() {
    let (_root, dir) = profile(&machine());
    let refused = |name: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let path = Path::new(&dir).join(name);
        let good = fs::read(&path).unwrap();
        fs::write(&path, change(good.clone())).unwrap();
        let output = analyze(&[&dir]);
        fs::write(&path, good).unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        text(&output.stderr).to_owned()
    };
    for name in ["run.yml", "plan.json", "samples.csv", "anchors.csv", "metadata_rank_0.yml"] {
        let error = refused(name, &|mut bytes| {
            bytes[0] = 0xff;
            bytes
        });
        let place = format!("{name}:1: is not UTF-8 text: 0xff at byte 0 of the file");
        assert!(error.contains(&place), "{error}");
    }
    let error = refused("samples.csv", &|bytes| {
        let text = String::from_utf8(bytes).unwrap();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let mut cells: Vec<&str> = lines[1].split(',').collect();
        (cells[5], cells[11], cells[16]) = ("0", "0", "0");
        lines[1] = cells.join(",");
        (lines.join("\n") + "\n").into_bytes()
    });
    let cell = "samples.csv:2, column t_oneway_ns: `0`; allowed: a number, 0.001 to 2.6e15";
    assert!(error.contains(cell), "{error}");
}

#[test]
fn a_large_table_of_predictions_is_not_read() {
    let (root, dir) = profile(&machine());
    let large = root.path().join("large.csv");
    fs::File::create(&large).unwrap().set_len(3 << 30).unwrap();
    let output = analyze(&[&dir, "--predictions", large.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(
        error.contains("large.csv: it is larger than 256 MiB, the most that is read"),
        "{error}"
    );
}

#[test]
fn the_name_of_a_folder_is_one_line() {
    let (root, dir) = profile(&machine());
    let odd = root.path().join("w\n\u{1b}[31mX");
    fs::rename(&dir, &odd).unwrap();
    let odd = odd.to_str().unwrap();
    let output = analyze(&[odd]);
    assert!(output.status.success(), "{}", text(&output.stderr));
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
