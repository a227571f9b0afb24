//! Every option and argument of every command refuses every kind of wrong value in one form. The cases come from clap's
//! own definition, so new options are included automatically.

#[path = "../common/mod.rs"]
mod common;
mod sinks;
mod terminal;
mod wrong;

use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::polyrail;
use wrong::{Case, Kind, cases, is_valid};

/// Far more than parsing a command line takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(20);
const LEAST_TRIED: usize = 1500;
const THROUGH_THE_BINARY: usize = 100;

/// The fault of the answer to a case, if it has one.
fn fault(case: &Case) -> Option<String> {
    let begin = Instant::now();
    let answer = polyrail_cli::check(&case.words);
    if begin.elapsed() > DEADLINE {
        return Some(format!("took {:?}", begin.elapsed()));
    }
    match answer {
        Ok(()) if is_valid(case) => None,
        Ok(()) => Some("was accepted".to_owned()),
        // Other faults of this command line don't matter here.
        Err(message) if is_valid(case) => {
            let is_named = message.starts_with(&case.field) && message.contains("` ");
            is_named.then(|| format!("is listed as valid, but was refused: {message}"))
        }
        Err(message) => form_fault(&message, case),
    }
}

/// Checks for field, value, allowed values and a fix; the fix has its own line.
fn form_fault(message: &str, case: &Case) -> Option<String> {
    let lacks = |what: &str| Some(format!("lacks {what}: {message}"));
    let Some((first, help)) = message.split_once("\nhelp: ") else { return lacks("a remedy") };
    let Some((fault, allowed)) = first.split_once("; allowed: ") else {
        return lacks("what is allowed");
    };
    if first.contains('\n') || help.contains('\n') {
        return lacks("the form of two lines");
    }
    if help.trim().is_empty() || allowed.trim().is_empty() {
        return lacks("a remedy, or what is allowed");
    }
    if !fault.contains(&case.field) {
        return lacks(&format!("the field {}", case.field));
    }
    let shown = case.shown();
    match fault.contains(&format!("`{shown}")) {
        true => None,
        false => lacks(&format!("the value {shown}")),
    }
}

/// The option must accept both ends of a range that a message names. Returns those that it refuses.
fn refused_ends(case: &Case) -> Vec<String> {
    let last = case.words.last().and_then(|word| word.to_str()).unwrap_or_default();
    let (Kind::Garbage, Some((option, _))) = (case.kind, last.split_once('=')) else {
        return Vec::new();
    };
    let Err(message) = polyrail_cli::check(&case.words) else { return Vec::new() };
    let first = message.lines().next().unwrap_or_default();
    let words: Vec<&str> =
        first.split("; allowed: ").nth(1).unwrap_or_default().split(' ').collect();
    // Skips messages whose range is not of numbers.
    let ([least, "to", most] | [least, "to", most, "in", ..]) = words[..] else {
        return Vec::new();
    };
    let refuses = |end: &&str| {
        let mut words = case.words.clone();
        words.pop();
        words.push(format!("{option}={end}").into());
        polyrail_cli::check(&words).is_err_and(|said| said.contains(&format!("`{end}`")))
    };
    let numbers =
        [least, most].into_iter().filter(|end| end.starts_with(|one: char| one.is_ascii_digit()));
    numbers
        .filter(refuses)
        .map(|end| format!("{}: {end} is refused, and {message}", case.line()))
        .collect()
}

#[test]
fn every_wrong_value_of_every_option_is_refused_with_field_value_range_and_remedy() {
    let scratch = tempfile::tempdir().unwrap();
    let before = everything_below(scratch.path());
    let cases = cases(&polyrail_cli::command(), scratch.path());
    let workers = thread::available_parallelism().map_or(2, usize::from).min(8);
    let faults: Vec<String> = thread::scope(|scope| {
        let share = |worker: usize| {
            let mine = cases.iter().skip(worker).step_by(workers);
            let told = |case: &Case| Some(format!("{}: {}", case.line(), fault(case)?));
            move || mine.filter_map(told).collect::<Vec<_>>()
        };
        let started: Vec<_> = (0..workers).map(|worker| scope.spawn(share(worker))).collect();
        started.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert_eq!(everything_below(scratch.path()), before, "reading an option changed the disk");
    let refused = cases.iter().filter(|case| !is_valid(case)).count();
    println!("{refused} wrong command lines, {} in all", cases.len());
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let ends: Vec<String> = cases.iter().flat_map(refused_ends).collect();
    assert!(ends.is_empty(), "{}", ends.join("\n"));
    assert!(refused >= LEAST_TRIED, "only {refused}");
}

#[test]
fn the_command_ends_with_that_message_and_changes_nothing() {
    let scratch = tempfile::tempdir().unwrap();
    let all = cases(&polyrail_cli::command(), scratch.path());
    let wrong: Vec<&Case> = all.iter().filter(|case| !is_valid(case)).collect();
    let before = everything_below(scratch.path());
    // A step that shares no factor with the number of kinds meets all of them.
    let step = (wrong.len() / THROUGH_THE_BINARY).max(1) | 1;
    let sample: Vec<&Case> = wrong.into_iter().step_by(step).collect();
    assert!(sample.len() * 3 >= THROUGH_THE_BINARY * 2, "{}", sample.len());
    for case in &sample {
        // No process can get this byte in an argument.
        if case.words.iter().any(|word| word.as_encoded_bytes().contains(&0)) {
            continue;
        }
        let (code, stdout, stderr) = outcome(&case.words, scratch.path());
        assert_eq!(code, Some(2), "{}: {stderr}", case.line());
        assert_eq!(stdout, result_of_refused(&case.words), "{}", case.line());
        assert!(stderr.starts_with("polyrail: "), "{}: {stderr}", case.line());
        let steers = |one: char| one.is_control() && one != '\n' || one == '\u{202e}';
        assert!(!stderr.contains(steers), "{}: {stderr:?}", case.line());
        assert_eq!(stderr.lines().count(), 2, "{}: {stderr}", case.line());
    }
    println!("{} through the binary", sample.len());
    assert_eq!(everything_below(scratch.path()), before);
}

/// Values that look right: only the machine or a file shows that they are wrong.
#[test]
fn what_only_the_machine_knows_is_refused_in_the_same_form() {
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("file"), "x").unwrap();
    fs::create_dir(scratch.path().join("folder")).unwrap();
    for (name, mode) in [("open", 0o777), ("sticky", 0o1777)] {
        let folder = scratch.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
    }
    // A secret as a power loss leaves it.
    let blank = scratch.path().join("blank");
    fs::write(&blank, [0; 64]).unwrap();
    fs::set_permissions(&blank, Permissions::from_mode(0o600)).unwrap();
    // The report of the last run.
    let state = scratch.path().join(".local/state/polyrail");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("bench.json"), "{}").unwrap();
    // No process is at the other end, and a signal does not end the wait for one.
    let pipe = scratch.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let before = everything_below(scratch.path());
    let lines = "doctor --nic eth99
        doctor --fleet pipe file
        doctor --sysroot pipe
        host show --sysroot pipe
        analyze folder --predictions pipe
        analyze folder --predictions /dev/zero
        analyze folder --html pipe
        bench --json pipe
        bench --json none --csv pipe
        bench --json none --sample pipe
        sample --time 1s --out file/below
        doctor --workers 8000
        doctor --fleet file file
        sample --time 1s --pid 4294967295
        sample --time 1s --nic eth99
        sample --out file --time 1s
        host show rings none0
        host plan rings none0 rx=5
        host apply rings none0 rx=5
        host apply rings lo foo=5
        host apply rss lo equal=2
        host show counters none0
        host plan tune fast
        host show profiles fast
        host undo tune fast --state-dir state
        host undo tune --profile-file file --state-dir state
        host undo zz --state-dir state
        host plan tune --profile-file file
        host plan tune
        host undo doctor zz --state-dir state
        host verify tune --state-dir state
        host confirm --state-dir state
        host show irq eth99
        host plan irq --nic eth99
        host plan irq --map file
        host apply file
        host undo irq zz --state-dir state
        host verify --state-dir state
        host watch irq --state-dir state
        lab down no-such-lab
        lab set no-such-lab rail0 --link up
        lab exec no-such-lab a ls
        lab up x --rails 400gbit --queue-ms 1000
        host snapshot file
        host show --sysroot file
        secret new file
        nccl env --folder folder
        exporter --dir missing
        exporter --dir file
        exporter --dir open
        exporter --dir sticky
        experiment sweep --journal pipe
        experiment sweep --journal /dev/null
        experiment autotune --journal pipe
        experiment autotune --journal /dev/null
        analyze folder
        profile --resume folder
        profile --plan --gpus none --host 1
        profile --plan --gpus none --host 2 --paths peer
        bench --depth 2 --posters 5
        bench --segments 3
        bench --time 0s
        bench --config file
        bench --config .local/state/polyrail/bench.json
        bench --csv .local/state/polyrail/bench.json
        bench --set log_file=log --csv log
        experiment sweep --bench --config=file --journal file
        bench --set tx_bindings=0-3 --preset latency
        mesh
        mesh --lab no-such-lab
        mesh --lab 8
        mesh --hosts a
        mesh --hosts a,-oProxyCommand=x
        mesh --rendezvous dir:///tmp
        mesh --rendezvous dir:///tmp --nodes 2
        mesh --rendezvous dir:///tmp --nodes 2 --node 5
        mesh --rendezvous slurm:// --nodes 2 --layout per-gpu
        peers
        peers --set rendezvous=slurm://
        peers --set rendezvous=mpi://
        peers --set rendezvous=torchrun://
        bench --set secret_file=none
        bench --set secret_file=file
        bench --set secret_file=folder
        bench --set trust_file=none --set certificate_file=none --set certificate_key_file=none
        experiment file
        experiment run file
        experiment undo folder
        nixl install
        nixl install --undo
        nixl install folder
        doctor --sysroot folder
        host plan tune throughput --sysroot folder
        host show --sysroot folder
        host plan bindings --sysroot folder
        host show bindings
        host plan bindings nope
        host plan bindings --nic eth99 --json
        host plan rss none0 equal=2
        host plan rss lo equal=0
        host watch --every 0s
        sample --time 0s
        analyze folder --metric bandwidth
        profile --plan --gpus none --host 2 --pairs 0-5
        profile --plan --gpus none --host 2 --load same-sink --paths tcp
        bench --sizes 1MiB --blocks 4x4096
        bench --against raw --nccl-modes p2p
        bench --against raw --nccl-lib file
        bench --path tcp --set path=shared
        bench --chunk 1MiB
        bench --json none --json file
        bench --set chunk_bytes=1MiB --set chunk_bytes=2MiB
        bench --lab 2x1gbit --rails lo
        bench --lab 2x1gbit --rails 2
        bench --lab 2x1gbit --rails rail0,rail2
        bench --lab 2x1gbit --set rails=10.77.0.1
        bench --set secret_file=blank
        mesh --rendezvous dir:///tmp --set rendezvous=slurm:// --nodes 2
        mesh --lab 33:1gbit
        mesh --lab 2:none
        mesh --lab x --lab-rails 1gbit
        mesh --hosts a,b --lab 2:1gbit
        collective all_reduce --lab x
        nccl tune --collective reduce
        nccl tune --collective all_reduce,--json
        doctor --explain bbr-without-fq --json
        doctor --explain --nic lo
        doctor --explain --fleet file
        doctor --fix bbr-without-fq
        doctor --undo
        host apply fix
        host apply fix none
        host apply fix bbr-without-fq lo
        host plan fix bbr-without-fq --cpus 0
        host show --state-dir a
        host plan irq --state-dir a
        host snapshot x --state-dir a
        nixl install folder --undo --from file
        doctor --fleet file --rtt 1ms
        doctor --fleet file --workers 0
        doctor --fleet file --devmem
        doctor --rtt 0
        experiment run file --dry-run --json
        host apply tune latency --dry-run --allow-disruptive=5
        host apply tune latency --dry-run --allow-disruptive 5s
        host apply tune latency --dry-run --allow-disruptive=0s
        host apply tune latency --dry-run --allow-disruptive=999ms
        host apply tune latency --dry-run --allow-disruptive=25h
        host apply channels lo rx=1 rx=2
        host plan rings lo rx=128 rx=64
        host plan rings rx=128
        host undo rings
        help nosuch
        host help nosuch
        host help plan irq
        --json host show
        profile --plan --gpus none --lock-clocks 1000
        profile --plan --gpus none --host 2 --thermal-warmup off --rewarm 5
        lab set x rail0 --link up --side a
        lab set x rail0 --link off
        lab set x rail0 --rate 1gbit --side a
        host --json snapshot x
        host confirm --json
        host show tree --json
        host show profiles --json
        host show topology eth0
        host show rings
        host show rings lo rx=1
        host show --interval 1s
        host show irq --all
        host show bindings eth1:1 eth1:1 eth1:1
        host show bindings eth1:x
        host plan
        host plan rings
        host plan rings lo
        host plan rings lo rx
        host plan rss lo
        host plan tune latency --profile-file file
        host plan tune latency --cpus 1
        host plan irq lo
        host plan irq --shared
        host plan bindings --output x
        host plan irq --policy numa --map file
        host plan irq --map file --nic lo
        host plan irq --map file --cpus 0
        host plan irq --map file --avoid 0
        host plan irq --map file --tx-bindings lo:0
        host plan irq --map file --rx-bindings lo:0
        host plan irq --policy numa --tx-bindings lo:0
        host plan irq --policy spread --rx-bindings lo:0
        host plan irq --policy single --tx-bindings lo:0
        host apply
        host apply bindings
        host apply file --nic lo
        host apply file lo
        host apply rss lo equal=1 --nic lo
        host undo zz --pristine
        host undo --profile-file file
        host undo tune latency --profile-file file
        host undo nic lo
        host --sysroot folder snapshot x
        host --state-dir a show profiles
        host confirm --state-dir a --state-dir=b
        host --json show --json
        nccl install goal --from file";
    for line in lines.lines().map(str::trim) {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let (code, stdout, stderr) = outcome(&words, scratch.path());
        assert_eq!(code, Some(2), "{line}: {stderr}");
        assert_eq!(stdout, result_of_refused(&words), "{line}");
        let told: Vec<&str> = stderr.lines().collect();
        assert_eq!(told.len(), 2, "{line}: {stderr}");
        let is_formed = told[0].starts_with("polyrail: ")
            && told[0].matches("; allowed: ").count() == 1
            && told[1].starts_with("help: ");
        assert!(is_formed && told[1].len() > 10, "{line}: {stderr}");
    }
    assert_eq!(everything_below(scratch.path()), before);
}

/// Standard output of a refused command: empty, unless a shell runs the output, which then must fail.
fn result_of_refused(words: &[OsString]) -> &'static str {
    let is_run = words.starts_with(&["nccl".into(), "env".into()])
        && !words.iter().any(|word| word == "--conf");
    if is_run { "false\n" } else { "" }
}

/// Runs the command, which must end before the deadline.
fn outcome(words: &[OsString], home: &Path) -> (Option<i32>, String, String) {
    let mut command = polyrail(words);
    command.current_dir(home).env("HOME", home);
    // With a GPU, its driver would cache compiled code in a folder of the user.
    command.env("CUDA_CACHE_DISABLE", "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let (done, ended) = mpsc::channel();
    let reader = thread::spawn(move || {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        out.read_to_end(&mut stdout).unwrap();
        err.read_to_end(&mut stderr).unwrap();
        done.send(()).unwrap();
        (stdout, stderr)
    });
    let is_late = ended.recv_timeout(DEADLINE).is_err();
    if is_late {
        child.kill().unwrap();
    }
    let code = child.wait().unwrap().code();
    let (stdout, stderr) = reader.join().unwrap();
    assert!(!is_late, "{words:?} went on for more than {DEADLINE:?}");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (code, text(stdout), text(stderr))
}

/// Names of all files and folders, with their sizes.
fn everything_below(folder: &Path) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let about = entry.metadata().unwrap();
            if about.is_dir() {
                folders.push(entry.path());
            }
            let size = if about.is_file() { about.len() } else { 0 };
            found.push((entry.path().display().to_string(), size));
        }
    }
    found.sort();
    found
}
