//! Parts of an installation: the version, completions and manual pages.

use std::fs;
use std::process::Command;

use crate::common::{polyrail, repository, run, succeeded, text};

/// Names of all commands that are not hidden, each with the names above it.
fn commands(command: &clap::Command, above: &str, found: &mut Vec<String>) {
    let name = format!("{above}{}", command.get_name());
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        commands(below, &format!("{name}-"), found);
    }
    found.push(name);
}

#[test]
fn the_version_tells_the_commit_the_build_and_the_features() {
    let output = run(&["--version"]);
    assert!(output.status.success() && output.stderr.is_empty());
    let line = text(&output.stdout).trim_end();
    let begin = format!("polyrail {} (commit ", env!("CARGO_PKG_VERSION"));
    let rest = line.strip_prefix(&begin).unwrap_or_else(|| panic!("{line}"));
    let commit = rest.split(',').next().unwrap();
    let is_hex = commit.len() == 12 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_hex || commit == "unknown", "{line}");
    let build = if cfg!(debug_assertions) { ", debug, " } else { ", release, " };
    assert!(rest.contains(build) && rest.contains(std::env::consts::ARCH), "{line}");
    assert!(rest.ends_with(", features: all-commands)"), "{line}");
}

#[test]
fn completions_know_every_command_and_a_shell_reads_them() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = succeeded(run(&["shell", "completions", shell]));
        let script = text(&output.stdout);
        for command in polyrail_cli::command().get_subcommands() {
            assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
        }
        assert!(script.contains("channels-list"), "{shell}: options");
    }
    let script = text(&run(&["shell", "completions", "bash"]).stdout).to_owned();
    // Words as bash splits them: it breaks words at each `=`.
    let asked = [
        ("polyrail be", "bench"),
        ("polyrail bench --preset la", "latency"),
        ("polyrail bench --preset = la", "latency"),
        ("polyrail bench --set auth = no", "none"),
        ("polyrail bench --set channels = 1 --set auth =", "on none"),
        ("polyrail bench --set = auth = no", "none"),
        ("polyrail bench --set cong", "congestion="),
        ("polyrail bench --set congestion =", ""),
    ];
    let ask = "compopt() { :; }; \
               ask() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); \
               _polyrail_whole_words polyrail; echo \"${COMPREPLY[@]}\"; }\n"
        .to_owned()
        + &asked.map(|(words, _)| format!("ask {words}\n")).concat();
    // In a file: the kernel refuses arguments of 128 KiB or more.
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, format!("{script}\n{ask}")).unwrap();
    let bash = Command::new("bash").arg(file.path()).output();
    match bash {
        Ok(answer) => assert_eq!(
            text(&answer.stdout).lines().collect::<Vec<_>>(),
            asked.map(|(_, answer)| answer),
            "{}",
            text(&answer.stderr)
        ),
        Err(error) => polyrail_skip::skip(
            format!("no bash: {error}"),
            "apt-get install bash; cargo test -p polyrail-cli --test plain install::",
        ),
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("share/man/man1");
    let output = succeeded(run(&["shell", "man", folder.to_str().unwrap()]));
    let page = folder.join("polyrail-bench.1");
    let mut names = Vec::new();
    commands(&polyrail_cli::command(), "", &mut names);
    let (count, folder_name) = (names.len(), folder.display());
    let told =
        format!("wrote {count} pages to {folder_name}; to read one: man -l {}\n", page.display());
    assert_eq!((text(&output.stdout), text(&output.stderr)), (told.as_str(), ""));
    for name in names {
        let page = fs::read_to_string(folder.join(format!("{name}.1"))).expect(&name);
        assert!(page.contains(".SH NAME") && page.contains(".SH SYNOPSIS"), "{name}: {page}");
    }
    let bench = fs::read_to_string(folder.join("polyrail-bench.1")).unwrap();
    assert!(bench.contains("nccl\\-modes") && !bench.contains("inside\\-lab"), "{bench}");
    // The page also explains an option that `-h` hides.
    assert!(bench.contains("Threads that post, each its part of"), "{bench}");
}

/// The most lines of a short help text.
const SCREEN: usize = 40;

#[test]
fn short_help_of_every_command_fits_on_a_screen_and_long_help_has_all() {
    let help = |words: &[&str]| {
        let output = polyrail(words).env("COLUMNS", "100").output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{words:?}: {output:?}");
        text(&output.stdout).to_owned()
    };
    let mut names = Vec::new();
    commands(&polyrail_cli::command(), "", &mut names);
    let mut long = Vec::new();
    for name in &names {
        let words: Vec<&str> = name.split('-').skip(1).chain(["-h"]).collect();
        let lines = help(&words).lines().count();
        long.extend((lines > SCREEN).then(|| format!("{name}: {lines} lines")));
    }
    assert!(long.is_empty(), "{}", long.join("\n"));
    let last = "--connect 10.0.0.1:34567/pr2-KEY --sizes 8..1GiB";
    for part in ["--blocks <NxSIZE>", "--preset <NAME>", last] {
        assert!(help(&["bench", "--help"]).contains(part), "{part}");
        assert!(!help(&["bench", "-h"]).contains(part), "{part}");
    }
}

#[test]
fn the_page_of_all_commands_is_current() {
    let output = succeeded(run(&["shell", "man", "--markdown"]));
    let page = text(&output.stdout);
    let path = repository().join("docs/commands.md");
    let is_current = fs::read_to_string(path).unwrap() == page;
    assert!(is_current, "run: cargo run -- shell man --markdown > docs/commands.md");
    let mut names = Vec::new();
    commands(&polyrail_cli::command(), "", &mut names);
    for name in names.iter().filter(|name| *name != "polyrail") {
        assert!(page.contains(&format!("# {}\n", name.replace('-', " "))), "{name}");
    }
}
