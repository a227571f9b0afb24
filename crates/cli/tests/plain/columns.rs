//! What people see on a terminal of 80 columns, and that a pipe has each sentence and each row in a line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::common::polyrail;

const COLUMNS: u16 = 80;

fn in_folder(folder: &Path, words: &[&str]) -> Command {
    let mut command = polyrail(words);
    command.current_dir(folder).env("TERM", "xterm");
    command
}

/// All that a command writes to a terminal, which ends its lines by `\r\n`.
fn on_a_terminal(mut command: Command) -> String {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap().into_string().unwrap();
    let theirs = OpenOptions::new().read(true).write(true).open(name).unwrap();
    tcsetwinsize(&theirs, Winsize { ws_row: 24, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 })
        .unwrap();
    let mut child = command.stdout(theirs.try_clone().unwrap()).stderr(theirs).spawn().unwrap();
    // It has copies, and the end comes when nobody has one.
    drop(command);
    let mut shown = Vec::new();
    // A terminal that nobody has open any more answers so.
    let end = File::from(ours).read_to_end(&mut shown).map_err(|error| error.raw_os_error());
    assert!(matches!(end, Ok(_) | Err(Some(5))), "{end:?}");
    child.wait().unwrap();
    String::from_utf8(shown).unwrap()
}

fn in_a_pipe(mut command: Command) -> io::Result<String> {
    let output = command.output()?;
    Ok([output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap()).concat())
}

/// Lines that the terminal breaks by itself, within a word.
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
        // Nothing is lost.
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
    // And what would do.
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
    // Behind the bar.
    let report = &shown[shown.rfind("x: 7 blocks").unwrap_or_else(|| panic!("{shown:?}"))..];
    assert!(report.contains("level") && too_wide(report).is_empty(), "{report}");
    let whole = in_a_pipe(experiment(folders[1].path())).unwrap();
    assert!(!too_wide(&whole).is_empty(), "{whole}");
}
