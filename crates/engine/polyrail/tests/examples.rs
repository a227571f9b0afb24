//! Runs the examples that users copy, and checks that the README quotes them.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use polyrail::{Config, Engine, Invitation, Memory, Peer};

/// Cargo builds the examples next to the tests.
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

/// Standard output of an example that exited with 0.
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
fn hello_writes_and_the_guide_quotes_it() {
    assert!(run("hello", &[]).contains("67108864 bytes are in place"));
    let guide = include_str!("../../../../docs/rust.md");
    let source = include_str!("../examples/hello.rs");
    let (_, program) = source.split_once("\n\n").expect("the text before the program");
    assert!(guide.contains(&format!("```rust\n{program}```")), "docs/rust.md has another program");
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

#[test]
fn an_example_that_fails_prints_text_and_help_and_exits_with_the_code_of_its_error() {
    let invitation = Invitation::from_bytes(&[7; Invitation::BYTES]).to_string();
    let connect = ["127.0.0.1:1", &invitation];
    let (rails, here) = ("POLYRAIL_RAILS", "127.0.0.1");
    let cases: [(_, _, &[&str], _, _); 5] = [
        (rails, "nosuch0", &[], 2, "rails = `nosuch0` (env POLYRAIL_RAILS): "),
        ("POLYRAIL_OPS_POOL", "none", &[], 2, "ops_pool = `none`"),
        (rails, here, &["127.0.0.1:1", "xx"], 2, "an invitation has 2 characters"),
        (rails, here, &connect, 4, "can't connect to 127.0.0.1:1: "),
        (rails, here, &["one"], 1, "give no arguments"),
    ];
    for (variable, value, arguments, code, text) in cases {
        let mut command = Command::new(program("two_hosts"));
        let output = command.args(arguments).env(variable, value).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let (error, help) = said.trim_end().split_once('\n').unwrap_or((said.trim_end(), ""));
        assert!(error.starts_with(&format!("error: {text}")) && !said.contains(" { "), "{said}");
        assert_eq!(help.starts_with("help: "), code != 1, "{said}");
        assert_eq!((help.lines().count() > 1, output.status.code()), (false, Some(code)), "{said}");
    }
}

/// A process that is killed at the end of the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Bytes of a block of the example `file`.
const BLOCK: usize = 16 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// The example `file`, and its output.
fn file(arguments: &[&str]) -> Command {
    let mut command = Command::new(program("file"));
    command.args(arguments).env("POLYRAIL_RAILS", "127.0.0.1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A process that serves a file, and the address and invitation that it prints.
fn serve(source: &Path) -> (Killed, Vec<String>) {
    let mut server = Killed(file(&["serve", source.to_str().unwrap()]).spawn().unwrap());
    let mut said = BufReader::new(server.0.stdout.as_mut().unwrap()).lines().map_while(Result::ok);
    let line = said.find(|line| line.contains("--example file -- get ")).expect("it prints a line");
    let (_, arguments) = line.split_once(" -- get ").unwrap();
    (server, arguments.split(' ').take(2).map(str::to_owned).collect())
}

fn get(arguments: &[String], copy: &Path) -> Output {
    file(&["get", &arguments[0], &arguments[1], copy.to_str().unwrap()]).output().unwrap()
}

/// The exit code, and the text of its error.
fn failed(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// An engine of this test, that a reader connects to or that connects to a server.
fn own_engine() -> Engine {
    let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
    Engine::builder().config(config).build().unwrap()
}

fn tell(engine: &Engine, peer: &Peer, bytes: &[u8]) {
    engine.notify(peer, bytes).unwrap().join().unwrap();
}

fn hear(engine: &Engine) -> Vec<u8> {
    engine.wait_notification(PATIENCE).expect("an answer comes").data
}

/// A reader of a file of `size` bytes, which this test serves. The reader has asked for block 0.
fn reader_of(engine: &Engine, size: u64, copy: &Path) -> (Child, Option<Peer>) {
    let (address, invitation) =
        (engine.addresses()[0].to_string(), engine.invitation().to_string());
    let arguments = ["get", &address, &invitation, copy.to_str().unwrap()];
    let reader = file(&arguments).spawn().unwrap();
    let peer = engine.accept_peer(PATIENCE).expect("the reader comes");
    tell(engine, &peer, &[&size.to_le_bytes()[..], b"version"].concat());
    let asked = loop {
        match engine.wait_notification(Duration::from_millis(100)) {
            Some(asked) => break Some(asked.data),
            None if peer.lost().is_some() => break None,
            None => {}
        }
    };
    assert!(asked.as_ref().is_none_or(|block| *block == 0_u64.to_le_bytes()));
    (reader, asked.map(|_| peer))
}

/// A file of three blocks, and a copy of it with its first two blocks, the second of which is wrong.
fn begun_copy(folder: &Path) -> (PathBuf, PathBuf, Vec<u8>) {
    let (source, copy) = (folder.join("source"), folder.join("copy"));
    let bytes: Vec<u8> = (0..2 * BLOCK + 70_001).map(|at| (at / 3 + at / 1000) as u8).collect();
    std::fs::write(&source, &bytes).unwrap();
    let checksum = |block: &[u8]| Memory::from(block.to_vec()).crc32c(0, 0, BLOCK as u64).unwrap();
    let found = std::fs::metadata(&source).unwrap();
    let version =
        format!("{} {}.{:09} {}", found.len(), found.ctime(), found.ctime_nsec(), found.ino());
    let sums = [checksum(&bytes[..BLOCK]), checksum(&bytes[BLOCK..][..BLOCK])];
    // A list may have damage in it.
    let mut list = format!("{version}\n0 {}\n1 {}\n9 7\n", sums[0], sums[1]).into_bytes();
    list.extend(b"\xff\n1");
    std::fs::write(folder.join("copy.part"), &bytes[..BLOCK]).unwrap();
    std::fs::write(folder.join("copy.part.blocks"), list).unwrap();
    (source, copy, bytes)
}

#[test]
fn file_goes_on_with_the_blocks_that_are_missing_or_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let (source, copy, bytes) = begun_copy(folder.path());
    let (server, line) = serve(&source);
    for before in [1, 0] {
        let told = said_by("file, reading", get(&line, &copy));
        assert!(told.contains(&format!("{before} of 3 blocks are there")), "{told}");
        assert!(told.contains("every block is right"), "{told}");
        assert!(std::fs::read(&copy).unwrap() == bytes);
        let beside = |end: &str| folder.path().join(format!("copy{end}"));
        assert!(!beside(".part").exists() && !beside(".part.blocks").exists());
    }
    drop(server);
    let (code, error) = failed(&get(&line, &copy));
    assert_eq!(code, Some(4), "{error}");
    assert!(error.starts_with("error: can't connect to ") && error.contains("\nhelp: "), "{error}");
}

/// The file has as many bytes as before, and its time of modification is set back.
#[test]
fn file_begins_again_where_the_source_was_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (source, copy, mut bytes) = begun_copy(folder.path());
    let modified = std::fs::metadata(&source).unwrap().modified().unwrap();
    bytes[2 * BLOCK] ^= 1;
    let changed = File::options().write(true).open(&source).unwrap();
    changed.write_all_at(&bytes[2 * BLOCK..], 2 * BLOCK as u64).unwrap();
    changed.set_modified(modified).unwrap();
    let (_server, line) = serve(&source);
    let told = said_by("file, reading", get(&line, &copy));
    assert!(told.contains("0 of 3 blocks are there"), "{told}");
    assert!(std::fs::read(&copy).unwrap() == bytes);
}

#[test]
fn file_offers_no_block_of_a_source_that_changes_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let (source, copy, bytes) = begun_copy(folder.path());
    let (_server, line) = serve(&source);
    let engine = own_engine();
    let connected = engine.connect_by(line[0].parse().unwrap(), &line[1].parse().unwrap());
    let peer = connected.join().unwrap();
    hear(&engine);
    tell(&engine, &peer, &0_u64.to_le_bytes());
    assert_eq!(hear(&engine)[..8], 0_u64.to_le_bytes());
    std::fs::write(&source, &bytes).unwrap();
    tell(&engine, &peer, &1_u64.to_le_bytes());
    let refused = hear(&engine);
    assert!(refused.starts_with(&[0xff; 8]), "{refused:?}");
    let why = String::from_utf8_lossy(&refused[8..]);
    assert!(why.contains("the file was changed"), "{why}");
    // The next reader of the same server gets the file as it is now.
    let told = said_by("file, reading", get(&line, &copy));
    assert!(told.contains("0 of 3 blocks are there"), "{told}");
    std::fs::remove_file(&source).unwrap();
    let (code, error) = failed(&get(&line, &copy));
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("source: No such file"), "{error}");
}

/// A server that can't read its file any more says so, and the reader ends. The size is the server's word.
#[test]
fn file_ends_where_the_server_can_not_offer_a_block() {
    let engine = own_engine();
    // A tmpfs has files of any size.
    let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    for (size, name) in [(1 << 24, "small"), (1 << 62, "large")] {
        let (reader, peer) = reader_of(&engine, size, &folder.path().join(name));
        // Some file systems have no room for a file of 4 EiB.
        assert!(peer.is_some() || size == 1 << 62);
        if let Some(peer) = &peer {
            tell(&engine, peer, &[&[0xff; 8][..], b"it was cut\x1b off"].concat());
        }
        let (code, error) = failed(&reader.wait_with_output().unwrap());
        assert_eq!(code, Some(1), "{error}");
        let expected = match peer {
            Some(_) => "the server can't offer a block: it was cut\\u{1b} off",
            None => "large.part: ",
        };
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn file_gives_no_name_to_a_copy_that_another_file_has_replaced() {
    let engine = own_engine();
    let folder = tempfile::tempdir().unwrap();
    let [copy, part, away] = ["copy", "copy.part", "away"].map(|name| folder.path().join(name));
    let bytes = vec![7; 1000];
    let (reader, peer) = reader_of(&engine, 1000, &copy);
    std::fs::rename(&part, away).unwrap();
    std::fs::write(&part, "others' bytes").unwrap();
    let checksum = Memory::from(bytes.clone()).crc32c(0, 0, 1000).unwrap();
    let region = engine.register(bytes).unwrap();
    let answer = [&0_u64.to_le_bytes()[..], &checksum.to_le_bytes(), &region.describe()].concat();
    tell(&engine, &peer.unwrap(), &answer);
    let (code, error) = failed(&reader.wait_with_output().unwrap());
    assert_eq!(code, Some(1), "{error}");
    assert!(error.contains("copy.part was replaced"), "{error}");
    assert!(!copy.exists() && std::fs::read(&part).unwrap() == b"others' bytes");
}

#[test]
fn file_refuses_other_kinds_of_files_and_names_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let make_pipe = |path: &Path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    make_pipe(&path("pipe"));
    let pipe = path("pipe");
    for source in [folder.path(), Path::new("/dev/zero"), Path::new("/proc/self/maps"), &pipe] {
        let source = source.to_str().unwrap();
        let (code, error) = failed(&file(&["serve", source]).output().unwrap());
        assert_eq!(code, Some(1), "{error}");
        assert!(error.starts_with(&format!("error: {source} ")), "{error}");
    }
    std::fs::write(path("source"), [7; 1000]).unwrap();
    let (_server, line) = serve(&path("source"));
    for name in ["copy.part", "copy.part.blocks"] {
        let refused = |kind: &str| {
            let (code, error) = failed(&get(&line, &path("copy")));
            assert_eq!(code, Some(1), "{kind}: {error}");
            assert!(error.contains(&format!("{name} is not a")), "{kind}: {error}");
            std::fs::remove_file(path(name)).unwrap();
        };
        make_pipe(&path(name));
        refused("a pipe");
        std::os::unix::fs::symlink("/dev/zero", path(name)).unwrap();
        refused("a link");
        if name.ends_with("blocks") {
            File::create(path(name)).unwrap().set_len(6 << 30).unwrap();
            refused("a large file");
        }
    }
    said_by("file, reading", get(&line, &path("copy")));
    assert!(run("file", &["--help"]).starts_with("usage: file serve PATH"));
    let wrong = Command::new(program("file")).arg(OsStr::from_bytes(b"\xff")).output().unwrap();
    assert_eq!(failed(&wrong), (Some(1), "error: an argument is not UTF-8\n".to_owned()));
}
