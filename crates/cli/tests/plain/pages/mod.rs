//! Every command on every page of the documentation. The program must be able to parse each of them. Each runs here, or
//! the page says what it needs, in a comment such as `# needs root`.

mod deploy;
mod page;
mod shell;
mod two_machines;

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use page::{Line, Page, pages};

use crate::common::{PROGRAM, repository};

/// Commands that run without a marker: they change only files in the folder where they start.
const RUNS: &[&str] = &[
    "analyze",
    "bench",
    "config",
    "doctor",
    "host plan",
    "host show",
    "host snapshot",
    "nccl env",
    "peers",
    "profile",
    "sample",
    "secret",
    "shell",
    "--version",
    "--help",
];

/// A command with one of these options always needs a marker.
const NEVER_RUN: &[&str] =
    &["--undo", "--lab", "--listen", "--connect", "--lock-clocks", "--mem", "--config"];

/// Commands for which exit code 1 is a verdict, not a failure.
const VERDICTS: &[&[&str]] =
    &[&["doctor"], &["host", "show", "bindings"], &["host", "plan", "bindings"]];

/// Far more than any command without a marker takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);

const LINES_LEAST: usize = 100;

/// The words after `polyrail` of each call in a line, also after `cargo run --` and after the `--` of `polyrail lab
/// exec`.
fn calls(commands: &[Vec<String>]) -> Vec<&[String]> {
    let mut found = Vec::new();
    for words in commands {
        let own = match words[0].rsplit('/').next() {
            Some("polyrail") => Some(1),
            Some("cargo") if words.get(1).is_some_and(|word| word == "run") => {
                let of_another = words.iter().any(|word| word == "-p" || word == "--example");
                words.iter().position(|word| word == "--" && !of_another).map(|at| at + 1)
            }
            _ => None,
        };
        found.extend(own.map(|own| &words[own..]));
        let inner = words.windows(2).position(|pair| pair == ["--", "polyrail"]);
        found.extend(inner.map(|at| &words[at + 2..]));
    }
    found
}

/// The reason why the program would not parse a call. Files and folders of other machines need not exist here.
fn refusal(words: &[String]) -> Option<String> {
    if words.iter().any(|word| word == "--help" || word == "--version") {
        return span_fault(words);
    }
    // Pages have a placeholder for the key of a connect string.
    let key = format!("pr2-{}", "0".repeat(64));
    let words: Vec<OsString> =
        words.iter().map(|word| word.replace("pr2-KEY", &key)).map(OsString::from).collect();
    let refused = polyrail_cli::check(&words).err()?;
    let allowed = refused.split_once("`: does not exist; allowed: ").map_or("", |(_, rest)| rest);
    let is_elsewhere = allowed.starts_with("a f") || allowed.contains(", or a file that exists");
    (!is_elsewhere).then_some(refused)
}

/// Returns the fault of a call within a sentence, which may leave out arguments.
fn span_fault(words: &[String]) -> Option<String> {
    let mut program = polyrail_cli::command();
    // Copies global options to all subcommands.
    program.build();
    let mut command = &program;
    for word in words {
        let name = word.split('=').next().unwrap_or_default();
        if let Some(long) = name.strip_prefix("--").filter(|long| !long.is_empty()) {
            let is_known = |option: &clap::Arg| option.get_long() == Some(long);
            if !["help", "version"].contains(&long) && !command.get_arguments().any(is_known) {
                return Some(format!("`{}` has no option {name}", command.get_name()));
            }
        } else if let Some(below) = command.find_subcommand(word) {
            command = below;
        } else if command.has_subcommands() && word.bytes().all(|one| one.is_ascii_lowercase()) {
            return Some(format!("`{}` has no command {word}", command.get_name()));
        }
    }
    None
}

/// The fault of a command that names missing files, crates or tests.
fn missing(words: &[String], folder: &Path) -> Option<String> {
    let root = repository();
    let is_path = |word: &&String| word.contains('/') && !word.starts_with(['/', '~', '-', '.']);
    let is_made = |word: &str| {
        let first = word.split('/').next().unwrap_or_default();
        word.contains("build/") || ["target", "bundle", "PEERS"].contains(&first)
    };
    let program = Some(&words[0]).filter(|word| is_path(word) && !is_made(word));
    if let Some(program) = program.filter(|program| !folder.join(program.as_str()).exists()) {
        return Some(format!("there is no file {program}"));
    }
    if words[0] != "cargo" {
        return None;
    }
    // Plain `cargo install` would use newer dependencies than the tests.
    let has = |wanted: &str| words.iter().any(|word| word == wanted);
    if has("install") && has("--path") && !has("--locked") {
        return Some("installs without --locked".to_owned());
    }
    let value = |option: &str| {
        let at = words.iter().position(|word| word == option)?;
        words.get(at + 1).map(String::as_str)
    };
    let name = value("-p").unwrap_or("polyrail-cli");
    let own = name.strip_prefix("polyrail-").unwrap_or(name);
    let groups = fs::read_dir(root.join("crates")).unwrap().map(|entry| entry.unwrap().path());
    // The command's crate is in no group.
    let mut places = groups.map(|group| group.join(own)).chain([root.join("crates").join(own)]);
    let Some(own) = places.find(|place| place.join("Cargo.toml").exists()) else {
        return Some(format!("there is no crate {name}"));
    };
    for (option, below) in [("--test", "tests"), ("--example", "examples")] {
        let Some(name) = value(option) else { continue };
        let place = own.join(below).join(name);
        if !place.with_extension("rs").exists() && !place.join("main.rs").exists() {
            return Some(format!("{} has no {name}", own.join(below).display()));
        }
    }
    None
}

fn parse_faults(page: &Page, line: &Line) -> Vec<String> {
    let commands = match shell::commands(&line.text) {
        Ok(commands) => commands,
        Err(fault) => return vec![fault],
    };
    let refused = calls(&commands).into_iter().filter_map(refusal);
    let folder = page.folder();
    refused.chain(commands.iter().filter_map(|words| missing(words, &folder))).collect()
}

#[test]
fn every_command_of_every_page_is_one_that_the_program_reads() {
    let mut faults = Vec::new();
    let mut count = 0;
    for page in pages() {
        faults.extend(page.faults.iter().cloned());
        let at = |number: usize, fault: &str| format!("{}:{number}: {fault}", page.path.display());
        for line in &page.lines {
            count += 1;
            faults.extend(parse_faults(&page, line).iter().map(|fault| at(line.number, fault)));
        }
        for (number, span) in &page.spans {
            let commands = shell::commands(span).unwrap_or_default();
            let faulty = calls(&commands).into_iter().filter_map(span_fault);
            faults.extend(faulty.map(|fault| at(*number, &format!("`{span}`: {fault}"))));
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(count >= LINES_LEAST, "only {count} lines");
}

/// Calls `see` on a command and on all commands below it.
fn each_command(command: &clap::Command, see: &mut dyn FnMut(&clap::Command)) {
    see(command);
    command.get_subcommands().for_each(|below| each_command(below, see));
}

#[test]
fn every_example_of_a_help_text_is_one_that_the_program_reads() {
    let mut faults = Vec::new();
    let mut count = 0;
    each_command(&polyrail_cli::command(), &mut |command| {
        let help = command.get_after_long_help().or_else(|| command.get_after_help());
        let help = help.map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter_map(|line| line.strip_prefix("  ")) {
            // A description follows the command.
            let typed = line.split("  ").next().unwrap_or_default();
            let commands = shell::commands(typed).unwrap();
            let found = calls(&commands);
            count += found.len();
            faults.extend(
                found.into_iter().filter_map(refusal).map(|fault| format!("{typed}: {fault}")),
            );
        }
    });
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(count > 30, "only {count} examples");
}

/// The reason why a line without a marker may not run here.
fn must_be_marked(line: &Line) -> Option<String> {
    let commands = shell::commands(&line.text).unwrap();
    let own = calls(&commands);
    let others = commands.iter().filter(|words| words[0] == "cat").count();
    if own.len() + others != commands.len() {
        return Some("has a program that the test does not run".to_owned());
    }
    own.into_iter().find_map(|words| {
        let line = words.join(" ");
        if !RUNS.iter().any(|runs| line == *runs || line.starts_with(&format!("{runs} "))) {
            return Some(format!("may change this machine: `{line}`"));
        }
        let is_only = words.windows(2).any(|pair| pair == ["--explain-path", "only"]);
        let is_dry = is_only || words.iter().any(|word| word == "--dry-run");
        let never = words.iter().find(|word| NEVER_RUN.contains(&word.as_str()))?;
        (!is_dry).then(|| format!("has {never}"))
    })
}

/// Runs a line in a shell. Returns how it failed, if it did.
fn failure(line: &Line, scratch: &Path) -> Option<String> {
    let program = Path::new(PROGRAM);
    let path =
        format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let log = scratch.join(".output");
    let output = fs::File::create(&log).unwrap();
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &line.text]).current_dir(scratch);
    shell.env("HOME", scratch).env("PATH", path).env("POLYRAIL_STATE_DIR", scratch.join(".state"));
    shell.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let mut child = shell.process_group(0).spawn().unwrap();
    let since = Instant::now();
    let code = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if since.elapsed() > DEADLINE {
            let group = rustix::process::Pid::from_child(&child);
            rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap();
            child.wait().unwrap();
            return Some(format!("took more than {DEADLINE:?}; say `# needs N s`"));
        }
        // Polls: waiting for a child has no time limit.
        thread::sleep(Duration::from_millis(10));
    };
    let commands = shell::commands(&line.text).unwrap();
    let begins = |words: &[String], begin: &[&str]| {
        words.len() >= begin.len() && words.iter().zip(begin).all(|(word, begin)| word == begin)
    };
    let may_find =
        calls(&commands).iter().any(|words| VERDICTS.iter().any(|begin| begins(words, begin)));
    if code == Some(0) || code == Some(1) && may_find {
        return None;
    }
    let mut told = String::new();
    fs::File::open(log).unwrap().read_to_string(&mut told).unwrap();
    let end = told.lines().rev().take(6).collect::<Vec<_>>();
    let end: Vec<_> = end.into_iter().rev().collect();
    Some(format!("ends with {code:?}:\n    {}", end.join("\n    ")))
}

/// Runs the lines of a page one after another, as a reader does. Returns their number and the faults.
fn run_page(page: &Page) -> (usize, Vec<String>) {
    let scratch = tempfile::tempdir().unwrap();
    let mut faults = Vec::new();
    let mut count = 0;
    for line in page.lines.iter().filter(|line| !line.is_marked) {
        count += 1;
        let begin = Instant::now();
        let fault = must_be_marked(line)
            .map(|why| format!("{why}; say what it needs: `# needs …`"))
            .or_else(|| failure(line, scratch.path()));
        let at = format!("{}:{}: {}", page.path.display(), line.number, line.text);
        println!("{:5} ms  {at}", begin.elapsed().as_millis());
        faults.extend(fault.map(|fault| format!("{at}: {fault}")));
    }
    (count, faults)
}

#[test]
fn every_command_without_a_marker_runs() {
    let pages = pages();
    let next = AtomicUsize::new(0);
    // Pages run in parallel, because their commands mostly wait.
    let run = || {
        let more = || pages.get(next.fetch_add(1, Ordering::Relaxed));
        std::iter::from_fn(more).map(run_page).collect::<Vec<_>>()
    };
    let all: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    let faults: Vec<&str> = all.iter().flat_map(|(_, faults)| faults).map(String::as_str).collect();
    let count: usize = all.iter().map(|(count, _)| count).sum();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(count > 20, "only {count} commands ran");
}
