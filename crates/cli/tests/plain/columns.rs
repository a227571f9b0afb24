//! Output on a terminal of 80 columns; in a pipe, each sentence and each row is one line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::Command;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};

use crate::common::{PROGRAM, Process, polyrail, wait_until};

const COLUMNS: u16 = 80;

fn in_folder(folder: &Path, words: &[&str]) -> Command {
    let mut command = polyrail(words);
    command.current_dir(folder).env("TERM", "xterm");
    command
}

/// Both ends of a terminal: the test's and that of the programs.
fn terminal() -> (File, File) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = OpenOptions::new().read(true).write(true).open(name).unwrap();
    tcsetwinsize(&theirs, Winsize { ws_row: 24, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 })
        .unwrap();
    (File::from(ours), theirs)
}

/// All output of a command on a terminal, which ends lines with `\r\n`.
fn on_a_terminal(mut command: Command) -> String {
    let (mut ours, theirs) = terminal();
    let mut child = command.stdout(theirs.try_clone().unwrap()).stderr(theirs).spawn().unwrap();
    // The command holds copies of the terminal. Reading ends once all copies are closed.
    drop(command);
    let mut shown = Vec::new();
    // EIO means that no process has the terminal open any more.
    let end = ours.read_to_end(&mut shown).map_err(|error| error.raw_os_error());
    assert!(matches!(end, Ok(_) | Err(Some(5))), "{end:?}");
    child.wait().unwrap();
    String::from_utf8(shown).unwrap()
}

fn in_a_pipe(mut command: Command) -> io::Result<String> {
    let output = command.output()?;
    Ok([output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat())
}

/// Lines that the terminal would wrap within a word.
fn too_wide(shown: &str) -> Vec<&str> {
    let is_wide = |line: &&str| line.chars().count() > usize::from(COLUMNS);
    shown.lines().map(|line| line.trim_end_matches('\r')).filter(is_wide).collect()
}

#[test]
fn tables_and_sentences_fit_into_80_columns_and_are_whole_in_a_pipe() {
    let folder = tempfile::tempdir().unwrap();
    for words in [
        &["host", "show", "profiles"][..],
        &["host", "show", "profiles", "throughput"],
        &["config", "show"],
        &["nccl", "variables"],
        &["doctor", "--explain"],
        &["doctor", "--explain", "tcp-receive-buffer"],
        &["bench", "--against", "everything"],
        &["host", "show", "channels", "there-is-no-such-interface"],
    ] {
        let shown = on_a_terminal(in_folder(folder.path(), words));
        assert!(!shown.is_empty() && too_wide(&shown).is_empty(), "{words:?}:\n{shown}");
        let whole = in_a_pipe(in_folder(folder.path(), words)).unwrap();
        assert!(!too_wide(&whole).is_empty(), "{words:?}:\n{whole}");
        // No letter is lost.
        let letters = |text: &str| text.chars().filter(|one| one.is_alphanumeric()).count();
        assert_eq!(letters(&shown), letters(&whole), "{words:?}:\n{shown}");
    }
}

#[test]
fn what_is_told_while_a_bar_is_up_has_a_line_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let text = "name: x\ncommand: [sh, -c, 'echo {kind} rate 10; sleep 0.3']\nfigure: 'rate ([0-9]+)'\n\
                better: higher\nfactors:\n  kind: [a, b]\nblocks: 10\ntime: 1s\nseed: 1\n";
    fs::write(folder.path().join("x.yml"), text).unwrap();
    let shown = on_a_terminal(in_folder(folder.path(), &["experiment", "run", "x.yml"]));
    let place = shown.find("a block takes").unwrap_or_else(|| panic!("{shown:?}"));
    let before = shown[..place].trim_end_matches("polyrail: ");
    // The message also says how to get by with less.
    assert!(shown.contains("help: Ctrl-C ends it now") && shown.contains("`time: "), "{shown:?}");
    assert!(before.ends_with('\n') || before.ends_with("\u{1b}[2K"), "{shown:?}");
}

#[test]
fn the_report_of_an_experiment_fits_too() {
    let text = format!(
        "name: x\ncommand: [sh, -c, 'echo {{kind}} rate 10']\nfigure: 'rate ([0-9]+)'\nbetter: higher\n\
         factors:\n  kind: [{}, {}]\nblocks: 7\nseed: 1\n",
        "a".repeat(50),
        "b".repeat(50)
    );
    let experiment = |folder: &Path| {
        fs::write(folder.join("x.yml"), &text).unwrap();
        in_folder(folder, &["experiment", "run", "x.yml"])
    };
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let shown = on_a_terminal(experiment(folders[0].path()));
    // The part after the bar.
    let report = &shown[shown.rfind("x: 7 blocks").unwrap_or_else(|| panic!("{shown:?}"))..];
    assert!(report.contains("level") && too_wide(report).is_empty(), "{report}");
    let whole = in_a_pipe(experiment(folders[1].path())).unwrap();
    assert!(!too_wide(&whole).is_empty(), "{whole}");
}

/// Starts a program in its own session on the terminal, so that keys go to it.
fn in_a_session(theirs: &File, program: &[&str]) -> Process {
    let mut command = Command::new("setsid");
    command.arg("--ctty").args(program).stdin(theirs.try_clone().unwrap());
    command.stdout(theirs.try_clone().unwrap()).stderr(theirs.try_clone().unwrap());
    Process(command.spawn().unwrap())
}

/// Reads what the terminal shows until this text is there.
fn wait_for_text(ours: &mut File, text: &str) {
    let mut shown = Vec::new();
    while !String::from_utf8_lossy(&shown).contains(text) {
        let mut part = [0; 4096];
        let count = ours.read(&mut part).unwrap();
        shown.extend_from_slice(&part[..count]);
    }
}

#[test]
fn top_waits_on_a_terminal_and_q_ends_it() {
    let (mut ours, theirs) = terminal();
    let before = tcgetattr(&theirs).unwrap();
    let modes = || tcgetattr(&theirs).unwrap().local_modes;
    let mut top = in_a_session(&theirs, &[PROGRAM, "top"]);
    wait_until("top takes keys", || !modes().contains(LocalModes::ICANON));
    wait_for_text(&mut ours, "q or Ctrl-C ends");
    // As a shell does when it hands the terminal to a job again.
    tcsetattr(&theirs, OptionalActions::Now, &before).unwrap();
    wait_until("top takes keys again", || !modes().contains(LocalModes::ICANON));
    ours.write_all(b"q").unwrap();
    assert_eq!(top.0.wait().unwrap().code(), Some(0));
    assert_eq!(modes(), before.local_modes);
}

#[test]
fn top_gives_the_terminal_back_while_it_is_stopped_and_at_ctrl_backslash() {
    let (mut ours, theirs) = terminal();
    let before = tcgetattr(&theirs).unwrap().local_modes;
    let modes = || tcgetattr(&theirs).unwrap().local_modes;
    let takes_keys = || !modes().intersects(LocalModes::ICANON | LocalModes::ECHO);
    // Not every shell restores its own modes when it takes the terminal.
    let script = format!("'{PROGRAM}' top; echo sto''pped; read line; fg; exit");
    let mut shell = in_a_session(&theirs, &["sh", "-mc", &script]);
    wait_until("top takes keys", takes_keys);
    ours.write_all(b"\x1a").unwrap();
    wait_for_text(&mut ours, "stopped");
    assert_eq!(modes(), before);
    ours.write_all(b"\n").unwrap();
    wait_until("top takes keys again", takes_keys);
    ours.write_all(b"\x1c").unwrap();
    assert_eq!(shell.0.wait().unwrap().code(), Some(0));
    assert_eq!(modes(), before);
}
