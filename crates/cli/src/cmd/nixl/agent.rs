//! An agent of NIXL that tries the backend of the active environment, for `polyrail doctor`.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use polyrail_doctor::{Answer, Evidence, Finding};
use polyrail_sys::files::require_trusted_code;

use super::environment::Nixl;
use super::{PLUGIN, backend};
use crate::crew::how;
use crate::libraries::quoted;

/// The agent.
const CHECK: &str = include_str!("check.py");
/// Most lines of an agent that a finding shows.
const LINES_MAX: usize = 20;

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
    match run(python, &nixl.name, chosen.as_deref()) {
        Ok(output) => judge(&output, file, &nixl, &installed),
        Err(error) => Answer::Unknown(unrun(python, &error)),
    }
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Runs the agent with the environment's Python. It runs in `/`: Python takes modules from the current folder first,
/// where others may have laid some.
fn run(python: &Path, nixl: &str, plugins: Option<&OsStr>) -> io::Result<Output> {
    match require_trusted_code(python) {
        Err(error) if error.kind() == ErrorKind::InvalidData => return Err(error),
        // Other faults show when it runs.
        _ => {}
    }
    let mut command = Command::new(std::path::absolute(python)?);
    command.args(["-c", CHECK, nixl]).current_dir("/");
    if let Some(plugins) = plugins {
        command.env("NIXL_PLUGIN_DIR", std::path::absolute(plugins)?);
    }
    command.output()
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

/// Adds commands that replace a file that can't be the backend by a good one.
fn with_replacement(finding: Finding, installed: &Path) -> Finding {
    finding.command(format!("rm {}", quoted(installed))).command("polyrail nixl install")
}

fn judge(output: &Output, file: Evidence, nixl: &Nixl, installed: &Path) -> Answer {
    let said = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && said.contains("polyrail-nixl-check: done") {
        let version = Evidence::new(&nixl.name, &nixl.version);
        let moved = Evidence::new("an agent", "has moved 1 MiB to itself by the backend POLYRAIL");
        return Answer::Works(vec![file, version, moved]);
    }
    let why = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = why.lines().filter(|line| !line.trim().is_empty()).collect();
    let first = lines.len().saturating_sub(LINES_MAX);
    let mut evidence = vec![file];
    evidence.extend(lines[first..].iter().map(|line| Evidence::new("the agent said", line)));
    let silent = if lines.is_empty() { ", and said nothing" } else { "" };
    let what =
        format!("an agent with the backend POLYRAIL fails: it {}{silent}", how(output.status));
    let finding = Finding { evidence, ..Finding::new(what) };
    // These signals mean code or data that the compiler did not write.
    let is_damage = [4, 7, 8, 11].map(Some).contains(&output.status.signal());
    let finding = match is_damage {
        true => with_replacement(finding, installed),
        false => finding,
    };
    Answer::Fails(finding.command("NIXL_LOG_LEVEL=DEBUG polyrail doctor --json"))
}
