//! The examples that users copy, run as they are; and the README quotes what was run.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Cargo builds the examples beside the tests.
fn program(example: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let program = test.ancestors().nth(2).unwrap().join("examples").join(example);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("examples/{example}.rs"));
    let changed = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified()).ok();
    let is_new = changed(&program).is_some_and(|built| Some(built) >= changed(&source));
    assert!(is_new, "{example} is not built: `cargo build -p polyrail --examples` does it");
    program
}

fn run(example: &str, arguments: &[&str]) -> String {
    said_by(example, Command::new(program(example)).args(arguments).output().unwrap())
}

/// What it said, if it ended well.
fn said_by(example: &str, output: Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{example}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    said
}

#[test]
fn hello_writes_and_the_readme_quotes_it() {
    assert!(run("hello", &[]).contains("67108864 bytes are in place"));
    let readme = include_str!("../README.md");
    let source = include_str!("../examples/hello.rs");
    let (_, program) = source.split_once("\n\n").expect("the text before the program");
    assert!(readme.contains(&format!("```rust\n{program}```")), "README.md has another program");
}

#[test]
fn kv_blocks_moves_every_layer() {
    let said = run("kv_blocks", &[]);
    for layer in 0..4 {
        assert!(
            said.contains(&format!("layer {layer} from prefill: 100 blocks are right")),
            "{said}"
        );
    }
}

#[test]
fn params_reach_every_peer() {
    assert!(run("params", &[]).contains("step 2: 4 peers have 1048576 bytes"));
}

#[test]
fn gpu_moves_memory_of_devices_without_one() {
    let said = run("gpu", &["--fake"]);
    assert!(said.contains("peer copy") && said.contains("bytes are right"), "{said}");
}

/// Types what the one process prints.
#[test]
fn two_hosts_finds_the_other_by_the_line_that_it_prints() {
    let start = |arguments: &[&str]| {
        let mut command = Command::new(program("two_hosts"));
        command.args(arguments).env("POLYRAIL_RAILS", "127.0.0.1,127.0.0.2");
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut server = start(&[]);
    let mut said = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
    let line =
        said.find(|line| line.contains("--example two_hosts -- ")).expect("it prints a line");
    let (_, arguments) = line.split_once(" -- ").unwrap();
    let reader = start(&arguments.split(' ').collect::<Vec<_>>()).wait_with_output().unwrap();
    let reader = said_by("two_hosts, reading", reader);
    assert!(reader.contains("read 16777216 bytes from server") && reader.contains("is right"));
    let rest: Vec<String> = said.collect();
    let status = server.wait_with_output().unwrap();
    assert!(status.status.success(), "{rest:?} {}", String::from_utf8_lossy(&status.stderr));
    assert!(rest.iter().any(|line| line.starts_with("reader is gone: ")), "{rest:?}");
}
