//! `polyrail peers` ends at a signal, and when no process reads its output.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::common::{DEADLINE, polyrail, wait_until};

const LOOK_EVERY: Duration = Duration::from_millis(10);

fn peers(folder: &Path, query: &str, arguments: &[&str]) -> Child {
    let place = format!("rendezvous=dir://{}{query}", folder.display());
    let mut command = polyrail(["peers", "--set", &place, "--set", "rails=127.0.0.1"]);
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn ends(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if begin.elapsed() > DEADLINE {
            child.kill().unwrap();
            panic!("it does not end");
        }
        // Polls: only a signal would report that the child has ended.
        std::thread::sleep(LOOK_EVERY);
    }
}

#[test]
fn a_signal_ends_who_waits_for_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = joins_under_a_taken_name(folder.path(), &["--name", "a"]);
    let group = folder.path().join("default");
    wait_until("it begins to join", || group.join(".lock").exists());
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(ends(&mut child).code(), Some(130));
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mistyped = folder.path().join("engins");
    for (place, names) in [(folder.path(), false), (&*mistyped, true)] {
        let output = peers(place, "?lease=5s", &[]).wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && text.starts_with("nobody is in the group"), "{text}");
        assert_eq!(text.contains("there is no folder"), names, "{text}");
    }
}

#[test]
fn who_watches_ends_when_nobody_reads_any_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut watching = peers(folder.path(), "", &["--watch"]);
    drop(watching.stdout.take());
    let mut told = BufReader::new(watching.stderr.take().unwrap()).lines();
    assert!(told.any(|line| line.unwrap().contains("watching the group default")));
    let mut member = peers(folder.path(), "", &["--name", "a", "--watch"]);
    assert!(ends(&mut watching).success());
    kill_process(Pid::from_child(&member), Signal::TERM).unwrap();
    assert!(ends(&mut member).success());
}

/// Joins under a name whose file can't be parsed, so that the name may belong to a live engine.
fn joins_under_a_taken_name(folder: &Path, arguments: &[&str]) -> Child {
    let group = folder.join("default");
    fs::create_dir(&group).unwrap();
    fs::write(group.join("a.polyrail"), "an engine of another version, for all that is known")
        .unwrap();
    peers(folder, "?lease=60min", arguments)
}

#[test]
fn a_timeout_ends_who_waits_for_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let child = joins_under_a_taken_name(folder.path(), &["--name", "a", "--timeout", "300ms"]);
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{told}");
    assert!(told.contains("has died less than its lease ago; waited"), "{told}");
}

#[test]
fn one_who_waits_for_others_in_vain_is_one_member() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--name", "a", "--wait", "2", "--timeout", "300ms"];
    let output = peers(folder.path(), "", &arguments).wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{told}");
    assert!(told.contains("the group `default` had 1 member; wanted: 2"), "{told}");
}
