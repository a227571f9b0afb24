//! An agent of NIXL that tries the backend of the active environment, for `polyrail doctor`.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use polyrail_doctor::{Answer, Evidence, Finding};
use polyrail_sys::files::{is_privileged, require_trusted, require_trusted_code};

use super::environment::Nixl;
use super::{PLUGIN, backend};
use crate::crew::{Kept, Output, Worker, how};
use crate::libraries::quoted;
use crate::lines::LINE_MAX;

/// Python program of the agent.
const CHECK: &str = include_str!("check.py");
/// Maximum number of lines of an agent that a finding shows.
const LINES_MAX: usize = 20;
/// Time limit of an agent. Its transfer may take 20 s of it.
const PATIENCE: Duration = Duration::from_secs(30);

/// The end of an agent and its output.
struct Ended {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

/// Makes an agent with the backend that is installed in the active environment, and moves memory from it to itself.
pub(crate) fn installed() -> Answer {
    let Some(environment) = variable("VIRTUAL_ENV") else {
        return Answer::Absent("no Python environment is active".to_owned());
    };
    let environment = Path::new(&environment);
    let Some(nixl) = Nixl::find(environment) else {
        return Answer::Absent(format!("{} has no NIXL", environment.display()));
    };
    let chosen = variable("NIXL_PLUGIN_DIR");
    let plugins = chosen.as_ref().map_or_else(|| nixl.plugins(), PathBuf::from);
    let installed = plugins.join(PLUGIN);
    let file = Evidence::new(installed.display().to_string(), "is there");
    match backend(&installed) {
        Err(fault) => return Answer::Unknown(fault.message),
        Ok(None) => return Answer::Absent(format!("{} is not there", installed.display())),
        Ok(Some(found)) => {
            if let Some(fault) = found.fault() {
                let finding = Finding::new(format!("the file of the backend {fault}"));
                let finding = Finding { evidence: vec![file], ..finding };
                return Answer::Fails(with_replacement(finding, &installed));
            }
        }
    }
    let Some(python) = &nixl.python else {
        let packages = nixl.packages.display();
        return Answer::Unknown(format!(
            "{packages} is no environment with bin/python, so no agent was made"
        ));
    };
    if let Err(error) = require_trusted_agent(python, &nixl, &installed) {
        return Answer::Unknown(format!("{} is not run: {error}", python.display()));
    }
    match run(python, &nixl.name, chosen.as_deref()) {
        Ok(Some(ended)) => judge(&ended, file, &nixl, &installed),
        Ok(None) => Answer::Unknown(format!(
            "the agent of {} gave no answer within {} s",
            python.display(),
            PATIENCE.as_secs()
        )),
        Err(error) => Answer::Unknown(unrun(python, &error)),
    }
}

/// Refuses an agent whose code users other than root and this one can change, if this process has privileges. An
/// ordinary user may run such code.
fn require_trusted_agent(python: &Path, nixl: &Nixl, installed: &Path) -> io::Result<()> {
    if !is_privileged() {
        return Ok(());
    }
    // A missing interpreter shows when it runs.
    match require_trusted_code(python) {
        Err(error) if error.kind() == ErrorKind::InvalidData => return Err(error),
        _ => {}
    }
    require_trusted_code(installed)?;
    let package = nixl.packages.join(&nixl.name);
    let folders = [&nixl.packages, &package, &nixl.libraries, &nixl.needed()];
    folders.into_iter().try_for_each(|folder| require_trusted(folder))
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Runs the agent with the environment's Python, in the folder `/`: Python takes modules from the current folder first,
/// and other users may have put some there.
///
/// With privileges it also leaves out the modules of PYTHONPATH and of the user's own folder, which were not checked.
/// Returns `None` if the agent does not end in time.
fn run(python: &Path, nixl: &str, plugins: Option<&OsStr>) -> io::Result<Option<Ended>> {
    let mut command = Command::new(std::path::absolute(python)?);
    command.args(is_privileged().then_some("-I")).args(["-c", CHECK, nixl]).current_dir("/");
    if let Some(plugins) = plugins {
        command.env("NIXL_PLUGIN_DIR", std::path::absolute(plugins)?);
    }
    answer(command, PATIENCE)
}

fn answer(command: Command, patience: Duration) -> io::Result<Option<Ended>> {
    let (stdout, stderr) = (Kept::bytes(LINE_MAX), Kept::bytes(LINE_MAX));
    let output = [Output::Kept(&stdout), Output::Kept(&stderr)];
    let mut agent = Worker::start_group(command, Stdio::null(), output)?;
    let status = agent.ended(patience)?;
    // This reads the rest of its output first.
    drop(agent);
    Ok(status.map(|status| Ended { status, stdout: stdout.text(), stderr: stderr.text() }))
}

fn unrun(python: &Path, error: &io::Error) -> String {
    let help = match error.kind() {
        ErrorKind::PermissionDenied => {
            "; give this user the right to execute it, and what it links to, and to enter the folders on the way"
        }
        ErrorKind::NotFound => {
            "; what it links to, or the interpreter in its first line, is not there: make the environment again"
        }
        _ => "",
    };
    format!("can't run {}: {error}{help}", python.display())
}

/// Adds commands that replace a file that can't be the backend.
fn with_replacement(finding: Finding, installed: &Path) -> Finding {
    finding.command(format!("rm {}", quoted(installed))).command("polyrail nixl install")
}

fn judge(ended: &Ended, file: Evidence, nixl: &Nixl, installed: &Path) -> Answer {
    if ended.status.success() && ended.stdout.contains("polyrail-nixl-check: done") {
        let version = Evidence::new(&nixl.name, &nixl.version);
        let moved = Evidence::new("an agent", "has moved 1 MiB to itself by the backend POLYRAIL");
        return Answer::Works(vec![file, version, moved]);
    }
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(LINES_MAX);
    let mut evidence = vec![file];
    evidence.extend(lines[first..].iter().map(|line| Evidence::new("the agent said", line)));
    let silent = if lines.is_empty() { ", and said nothing" } else { "" };
    let what =
        format!("an agent with the backend POLYRAIL fails: it {}{silent}", how(ended.status));
    let finding = Finding { evidence, ..Finding::new(what) };
    // These signals mean code or data that the compiler did not write.
    let is_damage = [4, 7, 8, 11].map(Some).contains(&ended.status.signal());
    Answer::Fails(match is_damage {
        true => with_replacement(finding, installed),
        false => finding,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn shell(script: &str, patience: Duration) -> Option<Ended> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        answer(command, patience).unwrap()
    }

    #[test]
    fn an_agent_is_ended_when_its_time_is_over_and_its_output_has_a_bound() {
        let begin = Instant::now();
        assert!(shell("echo; sleep 600", Duration::from_millis(20)).is_none());
        let ended = shell("yes | head -c 3000000; echo why >&2; exit 3", PATIENCE).unwrap();
        assert_eq!((ended.status.code(), ended.stderr.as_str()), (Some(3), "why\n"));
        // The limit falls after a line, so the last line break is cut off.
        assert_eq!(ended.stdout.len(), LINE_MAX - 1);
        assert!(begin.elapsed() < 2 * PATIENCE, "{:?}", begin.elapsed());
    }
}
