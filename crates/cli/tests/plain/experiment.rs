//! `polyrail experiment run` and `undo` on the command line, with commands whose results are known.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use polyrail_host::fixtures;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::golden::assert_golden;
use crate::common::{PROGRAM, polyrail, repository, wait_for};

/// A folder with an experiment.
struct Case {
    folder: TempDir,
}

impl Case {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("x.yml"), text).unwrap();
        Self { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `experiment run`, or `experiment undo` if the first word is `undo`.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = polyrail(["experiment"]);
        command.args((words.first() != Some(&"undo")).then_some("run"));
        command.args(words).current_dir(self.folder.path());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Standard output of a run that exits with 0.
    fn good(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "{words:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn refused(&self, words: &[&str], code: i32) -> String {
        let output = self.run(words);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {stderr}");
        stderr
    }

    fn lines(&self, folder: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.at(folder).join("cells.jsonl")).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A command with known results: 10 with a, 12 with b. There is no noise, so the verdicts are certain.
const KNOWN: &str = "name: known\ncommand: [sh, -c, 'if [ {kind} = b ]; then echo rate 12; else echo rate 10; fi; \
                     echo {colour} >/dev/null']\nfigure: 'rate ([0-9]+)'\nbetter: higher\nfactors:\n  kind: [a, b]\n  \
                     colour: [red, green]\nblocks: 10\nseed: 1\n";

/// A report without the note on other programs, which may or may not appear.
fn without_load(report: &str) -> String {
    let lines = report.split_inclusive('\n');
    lines.filter(|line| !line.contains("other programs used ")).collect()
}

#[test]
fn the_first_line_comes_before_the_first_cell_and_says_how_to_have_less() {
    let text = "name: x\ncommand: [sh, -c, 'exit 7', '{kind}']\nfigure: 'rate ([0-9]+)'\nbetter: higher\n\
                factors:\n  kind: [a, b, c]\ntime: 90s\n";
    let stderr = Case::new(text).refused(&["x.yml"], 3);
    let first = stderr.lines().next().unwrap_or_default();
    let line = "polyrail: x: 3 cells, about 1 min 30 s at most; less: fewer levels, `blocks: ` or `time: ` in x.yml";
    assert_eq!(first, line, "{stderr}");
}

#[test]
fn a_planted_effect_and_none_are_told_apart_in_text_json_and_markdown() {
    let case = Case::new(KNOWN);
    let text = case.good(&["x.yml"]);
    let (_time, rest) = text.split_once("; ").unwrap();
    assert_golden("experiment/report", &without_load(rest));
    let json: Value =
        serde_json::from_slice(&fs::read(case.at("known-results/report.json")).unwrap()).unwrap();
    assert_eq!(json["effects"][0]["verdict"], "better");
    assert_eq!(json["effects"][1]["verdict"], "no_effect");
    assert_eq!(json["stopped"], "narrow");
    assert_eq!(json["cells"].as_array().unwrap().len(), 4);
    let page = fs::read_to_string(case.at("known-results/report.md")).unwrap();
    let (_time, rest) = page.split_once("; ").unwrap();
    let (rest, _machine) = rest.split_once("- machine: ").unwrap();
    assert_golden("experiment/report_md", &without_load(rest));
    let html = fs::read_to_string(case.at("known-results/report.html")).unwrap();
    let banner = "<div class=\"banner good\"><p><b>Good:</b> kind=b against kind=a: +20.0 % ± 0.0 %, better</p>";
    assert!(html.starts_with("<!doctype html>") && html.contains(banner), "{html}");
    assert!(html.contains("<b>kind=b</b>the best setting</div>"), "{html}");
    let lines = case.lines("known-results");
    assert_eq!(lines.len(), 1 + 4 * json["blocks"].as_u64().unwrap() as usize);
    assert_eq!(lines[1]["block"], 0);
    assert!(lines[1]["levels"]["kind"].is_string());
}

#[test]
fn the_order_is_that_of_the_plan_and_nothing_runs_in_a_dry_run() {
    let case = Case::new(KNOWN);
    let text = case.good(&["x.yml", "--dry-run"]);
    assert!(text.contains("known: 4 cells, 2 comparisons, at most 10 blocks"), "{text}");
    assert!(text.contains("kind=a colour=red  (baseline)"), "{text}");
    assert!(!case.at("known-results").exists());
    let order =
        text.lines().find_map(|line| line.strip_prefix("order of the first block: ")).unwrap();
    let planned: Vec<u64> = order.split(' ').map(|cell| cell.parse().unwrap()).collect();
    case.good(&["x.yml"]);
    let ran: Vec<u64> = case.lines("known-results")[1..5]
        .iter()
        .map(|line| line["cell"].as_u64().unwrap() + 1)
        .collect();
    assert_eq!(ran, planned);
}

/// Each run of the command appends a byte to `count`. The 14th, in the middle of the fourth block, fails.
const FAILS_ONCE: &str = "name: once\ncommand: [sh, -c, 'printf x >>count; if [ $(wc -c <count) = 14 ]; then echo no \
                          luck >&2; exit 7; fi; echo 1{kind}']\nfigure: '([0-9]+)'\nbetter: higher\nfactors:\n  \
                          kind: [0, 1, 2, 3]\nblocks: 10\n";

#[test]
fn a_cell_that_fails_ends_the_run_by_name_and_resume_measures_its_block_anew() {
    let case = Case::new(FAILS_ONCE);
    let stderr = case.refused(&["x.yml"], 3);
    assert!(
        stderr.contains("block 4: its command ended with exit code 7; it said: no luck"),
        "{stderr}"
    );
    let kept = case.lines("once-results").len();
    assert_eq!(kept, 1 + 13 + 1, "the cells, and that somebody saw the results");
    let stderr = case.refused(&["x.yml"], 2);
    assert!(stderr.contains("has results") && stderr.contains("--resume"), "{stderr}");
    let text = case.good(&["x.yml", "--resume"]);
    assert!(text.contains("once: 10 blocks of 4 cells"), "{text}");
    // Three whole blocks, two cells of the fourth (one failed), and seven blocks.
    assert_eq!(fs::read(case.at("count")).unwrap().len(), 14 + 7 * 4);
    let again = case.good(&["x.yml", "--resume", "--json"]);
    let json: Value = serde_json::from_str(&again).unwrap();
    assert_eq!(json["blocks"], 10);
    assert_eq!(
        fs::read(case.at("count")).unwrap().len(),
        14 + 7 * 4,
        "nothing was left to measure"
    );
}

/// The limit forbids writing even one byte to a file.
#[test]
fn an_experiment_that_can_not_begin_leaves_nothing_behind_and_begins_later() {
    let case = Case::new(KNOWN);
    let mut command = Command::new("bash");
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$@\"";
    command.args(["-c", script, "bash", PROGRAM, "experiment", "run", "x.yml"]);
    let output = command.current_dir(case.folder.path()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("cells.jsonl"), "{stderr}");
    assert!(!case.at("known-results").exists());
    case.good(&["x.yml"]);
}

/// The limit of 1024 bytes ends within a cell's line.
#[test]
fn a_full_disk_is_named_and_resume_goes_on_behind_the_last_whole_line() {
    let case = Case::new(&KNOWN.replace("name: known", "name: full"));
    let mut command = Command::new("bash");
    let script = "trap '' XFSZ; ulimit -f 1; exec \"$@\"";
    command.args(["-c", script, "bash", PROGRAM, "experiment", "run", "x.yml"]);
    let output = command.current_dir(case.folder.path()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("can't write to full-results/cells.jsonl: "), "{stderr}");
    let text = fs::read_to_string(case.at("full-results/cells.jsonl")).unwrap();
    assert!(text.lines().count() > 1 && text.ends_with('\n'), "{text}");
    case.good(&["x.yml", "--resume"]);
}

#[test]
fn a_file_of_another_program_in_the_results_folder_stays_as_it_is() {
    let case = Case::new(KNOWN);
    let file = case.at("known-results/cells.jsonl");
    fs::create_dir(file.parent().unwrap()).unwrap();
    fs::write(&file, "{\"cells\":{}}\n").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let stderr = case.refused(&["x.yml", "--resume"], 2);
    assert!(stderr.contains("is of another experiment"), "{stderr}");
    case.run(&["undo", "known-results"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"cells\":{}}\n");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o644);
}

#[test]
fn results_of_another_experiment_are_not_continued_and_a_torn_line_is() {
    let case = Case::new(FAILS_ONCE);
    case.refused(&["x.yml"], 3);
    let file = case.at("once-results/cells.jsonl");
    let mut torn = fs::read_to_string(&file).unwrap();
    torn.push_str("{\"block\": 3, \"posi");
    fs::write(&file, torn).unwrap();
    case.good(&["x.yml", "--resume"]);
    fs::write(case.at("x.yml"), FAILS_ONCE.replace("blocks: 10", "blocks: 12")).unwrap();
    let stderr = case.refused(&["x.yml", "--resume"], 2);
    assert!(stderr.contains("is of another experiment"), "{stderr}");
    let stderr = case.refused(&["x.yml", "--resume", "--out", "new"], 2);
    assert!(stderr.contains("no results to go on with"), "{stderr}");
    assert!(!case.at("new").exists());
}

#[test]
fn what_is_wrong_is_named_before_anything_runs() {
    let mut said = String::new();
    for text in [
        "factors:\n  chanels: [1, 2]\n",
        "factors:\n  irq: [default, best]\n",
        "factors:\n  channels: [1, many]\n",
        "bench: --size 8\nfactors:\n  channels: [1, 2]\n",
        "bench: --json x\nfactors:\n  channels: [1, 2]\n",
        "factors:\n  host_profile: [none, fast]\n",
        "bench: --set channels=2\nfactors:\n  channels: [1, 2]\n",
        "bench: --set rx_bindings=lo:0\nfactors:\n  bindings: [none, 'lo:0']\n",
        "bench: --set chunk_bytes=1MiB\nsettings:\n  chunk_bytes: 2MiB\nfactors:\n  channels: [1, 2]\n",
    ] {
        let case = Case::new(text);
        said += &format!("{text}{}\n", case.refused(&["x.yml"], 2));
        assert!(!case.at("x-results").exists(), "{text}");
    }
    assert_golden("experiment/refused", &said);
}

#[test]
fn a_figure_that_is_missing_is_named_with_its_cell() {
    let case = Case::new(&KNOWN.replace("rate ([0-9]+)", "speed ([0-9]+)"));
    let stderr = case.refused(&["x.yml"], 3);
    assert!(
        stderr.contains("block 1: nothing that it prints matches `speed ([0-9]+)`"),
        "{stderr}"
    );
    let case = Case::new(&KNOWN.replace("[sh, -c,", "[/no/such/program,"));
    let stderr = case.refused(&["x.yml"], 3);
    assert!(stderr.contains("`/no/such/program` can't be started"), "{stderr}");
}

#[test]
fn a_command_that_reports_other_settings_than_its_own_is_refused() {
    let lies = "name: lies\ncommand: [echo, '{\"rate\": 1, \"config\": {\"channels\": {\"value\": 4}}}']\nfigure: \
                /rate\nbetter: higher\nfactors:\n  channels: [4, 2]\nblocks: 8\nseed: 3\n";
    let case = Case::new(lies);
    let stderr = case.refused(&["x.yml"], 3);
    assert!(
        stderr
            .contains("the cell channels=2, block 1: its command ran with channels = `4`, not `2`"),
        "{stderr}"
    );
    let script = "echo \"{\\\"rate\\\": 1, \\\"config\\\": {\\\"channels\\\": {\\\"value\\\": $POLYRAIL_CHANNELS}}}\"\n";
    let case = Case::new(
        "command: [sh, honest]\nfigure: /rate\nbetter: higher\nfactors:\n  channels: [4, 2]\nblocks: 8\n",
    );
    fs::write(case.at("honest"), script).unwrap();
    let json: Value = serde_json::from_str(&case.good(&["x.yml", "--json"])).unwrap();
    assert!(
        json["cells"].as_array().unwrap().iter().all(|cell| cell["verified"] == "read_back"),
        "{json}"
    );
}

/// A level that does nothing has a verdict like any other, so the report must say that it does nothing.
#[test]
fn bindings_that_bind_no_thread_are_told() {
    let print = |on: &str| {
        let case = Case::new(
            "command: [sh, print]\nfigure: /rate\nbetter: higher\nfactors:\n  bindings: [none, 'eth9:0']\nblocks: 8\n",
        );
        let report =
            serde_json::json!({ "rate": 5, "placement": { "threads": [{ "expected": on }] } });
        fs::write(case.at("print"), format!("echo '{report}'\n")).unwrap();
        case.good(&["x.yml"])
    };
    let note = "note: the bindings eth9:0 bind no thread: they name no rail of this bench";
    assert!(print("").contains(note));
    assert!(!print("0").contains("bind no thread"));
}

/// All files below a folder, with their contents, except the lock file.
fn everything_below(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match fs::symlink_metadata(&path).unwrap() {
            found if found.is_dir() => all.extend(everything_below(&path)),
            found if found.is_file() && !path.ends_with("run/polyrail-experiment.lock") => {
                all.push((path.clone(), fs::read(&path).unwrap()))
            }
            _ => {}
        }
    }
    all.sort();
    all
}

/// An experiment whose command prints 5 while interrupts are in their first place. While they are moved, it runs
/// `moved`, which prints 6.
fn irq_case(root: &Path, moved: &str) -> Case {
    let case = Case::new(
        "name: irq\ncommand: [sh, measure]\nfigure: '([0-9])'\nbetter: higher\nfactors:\n  irq: [default, matched]\n\
         blocks: 8\nseed: 5\n",
    );
    let state = format!("cat {}/proc/irq/*/smp_affinity_list | cksum", root.display());
    let first = Command::new("sh").args(["-c", &state]).output().unwrap();
    let script = format!(
        "if [ \"$({state})\" = '{}' ]; then echo 5; else {moved}; fi\n",
        String::from_utf8(first.stdout).unwrap().trim()
    );
    fs::write(case.at("measure"), script).unwrap();
    case
}

/// Script of a cell with moved interrupts: it waits until the test has seen it.
const WAITS: &str = "echo $$ >pid; mv pid running; exec sleep 100";

fn start(case: &Case, root: &str) -> Child {
    // If the tests run under nohup, this signal is ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", PROGRAM, "experiment", "run", "x.yml"]);
    command.args(["--sysroot", root]).current_dir(case.folder.path()).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until interrupts are moved. Returns the PID of the process that then waits.
fn moved(case: &Case) -> String {
    let read = || fs::read_to_string(case.at("running")).ok();
    wait_for("a cell moves interrupts", read).trim().to_owned()
}

/// Ends a process that may have exited already, as children of an experiment do with it.
fn end(pid: &str) {
    Command::new("kill").args(["-9", pid]).stderr(Stdio::null()).status().unwrap();
}

fn kill(signal: &str, pid: &str) {
    assert!(
        Command::new("kill").args([signal, pid]).status().unwrap().success(),
        "kill {signal} {pid}"
    );
}

#[test]
fn interrupts_are_moved_for_their_cells_alone_and_are_as_before_at_the_end() {
    let machine = fixtures::mlx5_four_nodes();
    let before = everything_below(machine.path());
    let case = irq_case(machine.path(), "echo 6");
    let text = case.good(&["x.yml", "--sysroot", machine.path().to_str().unwrap()]);
    let row = text.lines().find(|line| line.starts_with("irq=matched"));
    assert!(row.is_some_and(|row| row.contains("+20.0 % ± 0.0 %  better")), "{text}");
    assert!(
        everything_below(machine.path()) == before,
        "something stayed as the experiment had it"
    );
    assert!(case.good(&["undo", "irq-results"]).is_empty(), "nothing is left to undo");
    // For any other folder, it is unknown whether anything is left to undo.
    fs::create_dir(case.at("empty")).unwrap();
    for (folder, why) in [("irq-result", "does not exist"), ("empty", "has no results of an")] {
        let stderr = case.refused(&["undo", folder], 2);
        assert!(stderr.contains(why), "{stderr}");
    }
}

/// A second experiment would take the first one's changes for its baseline.
#[test]
fn one_experiment_at_a_time_changes_a_host_and_what_a_killed_one_left_is_known_to_all() {
    let machine = fixtures::mlx5_four_nodes();
    let root = machine.path().to_str().unwrap();
    let before = everything_below(machine.path());
    let case = irq_case(machine.path(), WAITS);
    let mut child = start(&case, root);
    let sleeper = moved(&case);
    let other = &["x.yml", "--out", "other", "--sysroot", root];
    let results = case.at("irq-results");
    let stderr = case.refused(other, 3);
    let words = format!("another experiment changes this host: that of {}", results.display());
    assert!(stderr.contains(&words), "{stderr}");
    child.kill().unwrap();
    child.wait().unwrap();
    end(&sleeper);
    let stderr = case.refused(other, 3);
    let remedy = format!("help: polyrail experiment undo {}", results.display());
    assert!(stderr.contains("still holds") && stderr.contains(&remedy), "{stderr}");
    assert!(!case.at("other").exists(), "a refused experiment left a folder");
    assert!(everything_below(machine.path()) != before, "somebody undid it");
    // Settings don't change the host.
    let settings = KNOWN.replace("name: known", "name: settings");
    fs::write(case.at("settings.yml"), settings).unwrap();
    case.good(&["settings.yml", "--sysroot", root]);
    case.good(&["undo", "irq-results", "--sysroot", root]);
    let script = fs::read_to_string(case.at("measure")).unwrap().replace(WAITS, "echo 6");
    fs::write(case.at("measure"), script).unwrap();
    case.good(other);
    assert!(everything_below(machine.path()) == before, "something stayed");
}

#[test]
fn after_a_kill_undo_puts_the_host_back_and_so_does_the_next_start() {
    for undo_by_start in [false, true] {
        let machine = fixtures::mlx5_four_nodes();
        let root = machine.path().to_str().unwrap();
        let before = everything_below(machine.path());
        let case = irq_case(machine.path(), WAITS);
        let mut child = start(&case, root);
        let sleeper = moved(&case);
        child.kill().unwrap();
        child.wait().unwrap();
        end(&sleeper);
        assert!(everything_below(machine.path()) != before, "the kill undid it");
        if undo_by_start {
            let stderr = case.refused(&["x.yml", "--sysroot", root], 2);
            assert!(stderr.contains("undid what an experiment that was killed left"), "{stderr}");
        } else {
            case.good(&["undo", "irq-results", "--sysroot", root]);
        }
        assert!(everything_below(machine.path()) == before, "undo left something");
    }
}

#[test]
fn ctrl_c_undoes_keeps_what_was_measured_and_the_run_can_go_on() {
    let machine = fixtures::mlx5_four_nodes();
    let root = machine.path().to_str().unwrap();
    let before = everything_below(machine.path());
    for signal in ["-INT", "-TERM", "-HUP"] {
        let case = irq_case(machine.path(), WAITS);
        let mut child = start(&case, root);
        moved(&case);
        let now = everything_below(machine.path());
        for words in [
            &["undo", "irq-results", "--sysroot", root][..],
            &["x.yml", "--resume", "--sysroot", root],
        ] {
            let stderr = case.refused(words, 2);
            assert!(stderr.contains("is in use by another experiment"), "{stderr}");
        }
        assert!(
            everything_below(machine.path()) == now,
            "another process undid what is being measured"
        );
        kill(signal, &child.id().to_string());
        assert_eq!(child.wait().unwrap().code(), Some(130));
        assert!(everything_below(machine.path()) == before, "{signal} left something");
        let json: Value =
            serde_json::from_slice(&fs::read(case.at("irq-results/report.json")).unwrap()).unwrap();
        assert_eq!(json["stopped"], "interrupted");
        let script = fs::read_to_string(case.at("measure")).unwrap().replace(WAITS, "echo 6");
        fs::write(case.at("measure"), script).unwrap();
        let text = case.good(&["x.yml", "--resume", "--sysroot", root]);
        assert!(text.contains("irq: 8 blocks of 2 cells"), "{text}");
    }
    assert!(everything_below(machine.path()) == before);
}

/// The mode denies writing to the owner's class, so root without capabilities is refused like an ordinary owner. (Files
/// that no class may write are those of interrupts that the kernel places itself.)
#[test]
fn cells_that_need_a_missing_right_are_named_and_the_others_run_if_asked() {
    let machine = fixtures::mlx5_four_nodes();
    let root = machine.path().to_str().unwrap();
    let closed = format!("chmod 0464 {root}/proc/irq/*/smp_affinity_list");
    assert!(Command::new("sh").args(["-c", &closed]).status().unwrap().success());
    let before = everything_below(machine.path());
    let case = irq_case(machine.path(), "echo 6");
    let text = fs::read_to_string(case.at("x.yml")).unwrap();
    fs::write(case.at("x.yml"), text.replace("blocks:", "  channels: [1, 2]\nblocks:")).unwrap();
    let without_rights = |words: &[&str], code: i32| {
        let program = PROGRAM;
        let mut command = Command::new(program);
        if rustix::process::geteuid().is_root() {
            command = Command::new("setpriv");
            command.args(["--bounding-set=-all", "--inh-caps=-all", program]);
        }
        command.args(["experiment", "run", "x.yml", "--sysroot", root]).args(words);
        let output = command.current_dir(case.folder.path()).output().unwrap();
        let [out, err] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(output.status.code(), Some(code), "{words:?}: {err}");
        (out, err)
    };
    let why = ["smp_affinity_list can't be opened for writing: Permission denied"];
    let names = |text: &str, cells: &[&str]| {
        for part in cells.iter().chain(&why) {
            assert!(text.contains(part), "{part} in {text}");
        }
    };
    let (_, refusal) = without_rights(&[], 3);
    names(&refusal, &["2 of the cells", "irq=matched: ", "irq=matched channels=2: ", "--partial"]);
    assert!(!case.at("irq-results").exists(), "a refused experiment left a folder");

    let (dry, _) = without_rights(&["--dry-run"], 0);
    names(&dry, &["2 cells, 1 comparison,", "left out: irq=matched: "]);
    names(
        &dry,
        &[
            "left out: irq=matched channels=2: the same\n",
            "refused without --partial: run it as root",
        ],
    );

    let (report, _) = without_rights(&["--partial"], 0);
    names(
        &report,
        &["channels=2", "left out: irq=matched: ", "left out: irq=matched channels=2: "],
    );
    assert!(!report.lines().any(|line| line.starts_with("irq=matched")), "{report}");
    assert!(case.lines("irq-results")[1..].iter().all(|cell| cell["levels"]["irq"] == "default"));

    let both = fs::read_to_string(case.at("x.yml")).unwrap();
    fs::write(case.at("x.yml"), both.replace("  channels: [1, 2]\n", "")).unwrap();
    let (_, refusal) = without_rights(&["--partial", "--out", "other"], 3);
    names(&refusal, &["1 of the cells", "nothing is left to compare"]);

    // No other cell can be compared with a baseline that can't run.
    let text = both.replace("blocks:", "baseline:\n  irq: matched\nblocks:");
    fs::write(case.at("x.yml"), text).unwrap();
    let (_, refusal) = without_rights(&["--partial", "--out", "other"], 3);
    names(&refusal, &["the baseline can't be measured here", "choose a `baseline`"]);
    assert!(everything_below(machine.path()) == before);
}

#[test]
fn somebody_who_changes_the_host_meanwhile_is_noticed() {
    let machine = fixtures::mlx5_four_nodes();
    let file =
        format!("$(ls {}/proc/irq/*/smp_affinity_list | tail -n 1)", machine.path().display());
    let case = irq_case(
        machine.path(),
        &format!(
            "for one in {}/proc/irq/*/smp_affinity_list; do echo 0 >$one; done; echo 6; : {file}",
            machine.path().display()
        ),
    );
    let stderr = case.refused(&["x.yml", "--sysroot", machine.path().to_str().unwrap()], 3);
    assert!(stderr.contains("another program changed it"), "{stderr}");
}

/// A real experiment: two settings over loopback, read back from the report of `bench`.
#[test]
fn bench_is_measured_with_the_settings_of_each_cell() {
    let case = Case::new(
        "name: real\nbench: --sizes 64KiB --iters 4 --depth 1 --warmup 1ms --rounds 1 --verify off --rails 1\nfactors:\n  channels: [1, 2]\n  \
         chunk_bytes: [256KiB, 1MiB]\ndesign: one-at-a-time\nblocks: 8\nprecision: 50 %\n",
    );
    let json: Value = serde_json::from_str(&case.good(&["x.yml", "--json"])).unwrap();
    assert_eq!(json["blocks"], 8);
    let cells = json["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3);
    for cell in cells {
        assert_eq!(cell["verified"], "read_back", "{cell}");
        assert!(cell["figure"]["median"].as_f64().unwrap() > 0.0);
    }
}

#[test]
fn a_peer_that_is_not_there_is_named_by_the_first_cell() {
    let case = Case::new("bench: --connect 127.0.0.1:1/pr2-x\nfactors:\n  channels: [1, 2]\n");
    let output = case.run(&["x.yml"]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(2..=4)), "{stderr}");
    assert!(stderr.contains("the cell ") || stderr.contains("bench of the cell"), "{stderr}");
    assert!(stderr.contains("--connect") || stderr.contains("127.0.0.1:1"), "{stderr}");
}

#[test]
fn the_experiment_that_ships_has_the_cells_that_it_promises() {
    let file = repository().join("experiments/irq-bindings.yml");
    let text = fs::read_to_string(file).unwrap();
    let experiment = polyrail_experiment::Experiment::parse(&text, "irq-bindings.yml").unwrap();
    let (plan, looks) = experiment.plan(|_| true).unwrap();
    assert_eq!(plan.cells.len(), 12);
    assert_eq!(plan.comparisons().len(), 4);
    assert_eq!(looks.most(), 40);
    let baseline = [("irq", "default"), ("bindings", "none"), ("channels", "1")];
    assert_eq!(plan.levels(0), baseline);
}

#[test]
fn no_journal_is_undone_in_a_folder_that_another_user_has_prepared() {
    let case = Case::new(KNOWN);
    let session = case.at("known-results/host/20261128-000000-000000-1");
    fs::create_dir_all(&session).unwrap();
    let target = case.at("target");
    fs::write(&target, "new\n").unwrap();
    let host = serde_json::json!({"boot_id": "b", "hostname": "h", "kernel": "k", "machine": "m"});
    let plan = serde_json::json!({"schema_version": 1, "name": "tune x", "host": host, "online_cpus": "0",
        "state_hash": "0", "changes": [], "unchanged": [], "skipped": [], "warnings": []});
    let lines = [
        serde_json::json!({"step": "begin", "journal_version": 1, "name": "tune x", "host": host, "state_hash": "0", "plan": plan}),
        serde_json::json!({"step": "write", "number": 0, "target": {"kind": "file", "path": target}, "old": "old", "new": "new"}),
        serde_json::json!({"step": "written", "number": 0}),
        serde_json::json!({"step": "committed"}),
    ];
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(session.join("journal.jsonl"), text).unwrap();
    let message = case.refused(&["x.yml"], 2);
    assert!(message.contains("has a folder `host` for journals, but no results"), "{message}");
    // The same is refused with results in the folder.
    fs::write(case.at("known-results/cells.jsonl"), "").unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(case.at("known-results"), Some(65534), None).unwrap();
        for words in [&["x.yml"][..], &["undo", "known-results"]] {
            let message = case.refused(words, 3);
            assert!(message.contains("belongs to user 65534"), "{message}");
        }
    }
    assert_eq!(fs::read_to_string(&target).unwrap(), "new\n");
}

#[test]
fn text_of_a_plan_is_text_in_its_reports() {
    let case = Case::new(
        "name: '# <b>known</b>'\nabout: '- https://example.org'\ncommand: [echo, rate 10, '{kind}']\nfigure: 'rate ([0-9]+)'\n\
         better: higher\nfactors:\n  kind: [a, '<img src=x>|[b](javascript:c)']\nblocks: 10\nseed: 1\n",
    );
    case.good(&["x.yml", "--out", "results"]);
    let read = |name: &str| fs::read_to_string(case.at("results").join(name)).unwrap();
    let page = read("report.md");
    assert!(
        page.starts_with("# \\# &lt;b&gt;known&lt;/b&gt;\n\n\\- https\\://example.org\n"),
        "{page}"
    );
    assert!(page.contains("| kind=&lt;img src=x&gt;\\|\\[b\\](javascript:c) | a |"), "{page}");
    assert!(!page.contains('<') && !read("report.html").contains("<img"), "{page}");
}

#[test]
fn root_measures_in_a_folder_of_another_user_and_follows_no_link_of_theirs() {
    if !rustix::process::geteuid().is_root() {
        return polyrail_skip::skip(
            "needs root",
            "sudo cargo test -p polyrail-cli --test plain experiment::",
        );
    }
    let case = Case::new(KNOWN);
    let of_other =
        |name: &str| std::os::unix::fs::lchown(case.at(name), Some(65534), None).unwrap();
    fs::create_dir(case.at("known-results")).unwrap();
    of_other("known-results");
    case.good(&["x.yml"]);
    of_other("known-results/cells.jsonl");
    let before = fs::read(case.at("known-results/cells.jsonl")).unwrap();
    let message = case.refused(&["x.yml", "--resume"], 2);
    assert!(message.contains("cells.jsonl belongs to user 65534"), "{message}");
    assert_eq!(fs::read(case.at("known-results/cells.jsonl")).unwrap(), before);
    std::os::unix::fs::chown(case.at("known-results/cells.jsonl"), Some(0), None).unwrap();
    fs::remove_file(case.at("known-results/report.md")).unwrap();
    fs::write(case.at("target"), "mine").unwrap();
    std::os::unix::fs::symlink("../target", case.at("known-results/report.md")).unwrap();
    of_other("known-results/report.md");
    let output = case.run(&["x.yml", "--resume"]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(
        message.contains("the link ") && message.contains("belongs to user 65534"),
        "{message}"
    );
    assert_eq!(fs::read_to_string(case.at("target")).unwrap(), "mine");
}
