//! Standard output that can't be written, and files that can't be read or written: every command prints the same error
//! and exits with the same code.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use clap::Command as Clap;
use polyrail_host::fixtures;

use crate::common::{PROGRAM, polyrail};

/// Every command that has a result, ordered so that each has what it needs. COPY is a copy of a machine's files.
const WITH_RESULT: &str = "\
    shell completions bash
    shell man --markdown
    shell man pages
    config show
    config help rails
    config docs
    host show --sysroot COPY
    host snapshot - --sysroot COPY
    host plan bindings --sysroot COPY
    host show bindings eth1:1 eth1:1 --sysroot COPY
    doctor --sysroot COPY
    doctor --explain
    doctor --explain bbr-without-fq
    host show irq --interval 0s --sysroot COPY
    host plan irq --sysroot COPY
    host plan irq --json --sysroot COPY
    host apply irq --settle 0s --sysroot COPY --state-dir state
    host verify --sysroot COPY --state-dir state
    host undo irq --sysroot COPY --state-dir state
    host show profiles
    host show profiles latency
    host plan tune throughput --sysroot COPY
    host apply tune throughput --sysroot COPY --state-dir state
    host verify tune --sysroot COPY --state-dir state
    host undo --sysroot COPY --state-dir state
    host show counters lo
    lab ls
    nccl env --gpus 8 --folder installed
    nccl env --conf --gpus 8 --folder installed
    nccl variables
    nccl variables --markdown
    nccl install plugin --from library
    secret new
    peers --set rendezvous=dir:///RENDEZVOUS --group nobody
    sample --time 100ms --interval 100ms --sysroot COPY
    experiment run experiment.yml --dry-run
    profile --plan --gpus none --host 2 --sizes 8 --reps 1 --paths host
    profile --out profile --gpus none --host 2 --sizes 8 --reps 1 --paths host
    analyze profile
    analyze profile --json
    bench --sizes 8 --iters 1 --rounds 1 --json none
    bench --sizes 8 --iters 1 --rounds 1 --json -
    collective broadcast --plugin sockets --sizes 8 --rounds 1 --iterations 1";

/// Commands without a result on standard output, or with needs that not every machine meets.
const OTHERS: &[(&str, &str)] = &[
    ("experiment autotune", "takes a minute; prints as `sweep` does"),
    ("experiment sweep", "takes long; prints as `run` does"),
    ("experiment undo", "has no result"),
    ("exporter", "has no result"),
    ("host confirm", "has no result"),
    ("host watch", "prints when a value changes"),
    ("lab up", "needs root"),
    ("lab exec", "its output is that of a program"),
    ("lab set", "needs a lab"),
    ("lab down", "has no result"),
    ("mesh", "needs nodes; prints as `collective` does"),
    ("nccl try", "needs a plugin"),
    ("nccl tune", "takes long; prints as `experiment sweep` does"),
    ("nixl install", "needs NIXL"),
    ("top", "needs an engine"),
];

/// A folder with everything that the commands need.
struct Place {
    folder: tempfile::TempDir,
    copy: fixtures::Fixture,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "x").unwrap();
        let library = format!("{:\0<64}ncclNetPlugin_v8", "\x7fELF\x02\x01");
        fs::write(folder.path().join("library"), &library).unwrap();
        fs::create_dir(folder.path().join("installed")).unwrap();
        fs::write(folder.path().join("installed/libnccl-net-polyrail.so"), library).unwrap();
        fs::write(folder.path().join("binary"), b"a: \xff\n").unwrap();
        fs::create_dir(folder.path().join("group")).unwrap();
        let experiment = "bench: --sizes 8\nfactors:\n  channels: [1, 2]\n";
        fs::write(folder.path().join("experiment.yml"), experiment).unwrap();
        let experiment = "bench: --sizes 8\nfactors:\n  irq: [default, \"map:/proc/self/mem\"]\n";
        fs::write(folder.path().join("unreadable.yml"), experiment).unwrap();
        Self { folder, copy: fixtures::mlx5_four_nodes() }
    }

    fn start(&self, line: &str, stdout: Stdio) -> Child {
        let group = self.folder.path().join("group");
        let line = line.replace("/RENDEZVOUS", group.to_str().unwrap());
        let line = line.replace("COPY", self.copy.path().to_str().unwrap());
        let mut command = polyrail(line.split(' '));
        command.current_dir(self.folder.path());
        command.env("HOME", self.folder.path()).env("CUDA_CACHE_DISABLE", "1");
        command.stdout(stdout).stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    fn end(&self, mut child: Child) -> (ExitStatus, String) {
        let mut told = String::new();
        child.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        (child.wait().unwrap(), told)
    }

    fn run(&self, line: &str, stdout: Stdio) -> (Option<i32>, String) {
        let (status, told) = self.end(self.start(line, stdout));
        (status.code(), told)
    }
}

fn lines(all: &str) -> impl Iterator<Item = &str> {
    all.lines().map(str::trim)
}

/// Names of all commands without subcommands, and of those that also do something themselves.
fn leaves(command: &Clap, path: &str, found: &mut BTreeSet<String>) {
    let below =
        command.get_subcommands().filter(|one| one.get_name() != "help" || path == "config");
    for one in below.filter(|one| !one.is_hide_set()) {
        let path = format!("{path} {}", one.get_name()).trim().to_owned();
        leaves(one, &path, found);
        // A command that also does something by itself.
        if !one.has_subcommands() || one.get_arguments().count() > 0 {
            found.insert(path);
        }
    }
}

#[test]
fn every_command_is_in_the_tables() {
    let mut all = BTreeSet::new();
    leaves(&polyrail_cli::command(), "", &mut all);
    let is_tried = |name: &str| {
        lines(WITH_RESULT).any(|line| format!("{line} ").starts_with(&format!("{name} ")))
    };
    let is_other = |name: &str| OTHERS.iter().any(|(other, _)| *other == name);
    let missing: Vec<_> = all.iter().filter(|name| !is_tried(name) && !is_other(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(OTHERS.iter().all(|(name, _)| all.contains(*name)));
}

#[test]
fn a_full_standard_output_is_told_alike_by_every_command() {
    let place = Place::new();
    for line in lines(WITH_RESULT).chain(["--help", "--version", "bench --help"]) {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, told) = place.run(line, full.into());
        let last: Vec<&str> = told.lines().rev().take(2).collect();
        let error = "polyrail: can't write to standard output: No space left on device (os error 28); allowed: ";
        let is_told =
            last.len() == 2 && last[1].starts_with(error) && last[0].starts_with("help: ");
        assert!(is_told && code == Some(3), "{line}: {code:?}: {told}");
        assert_eq!(told.matches("standard output").count(), 1, "{line}: {told}");
    }
}

#[test]
fn a_reader_that_ends_early_is_no_fault_of_any_command() {
    let place = Place::new();
    for line in lines(WITH_RESULT) {
        let mut child = place.start(line, Stdio::piped());
        drop(child.stdout.take());
        let (status, told) = place.end(child);
        // Exit codes of verdicts stay.
        let is_good = matches!(status.code(), Some(0 | 1));
        assert!(is_good && !told.contains("standard output"), "{line}: {status}: {told}");
    }
}

/// For files, the reason decides the exit code, not the command.
#[test]
fn what_can_not_be_read_or_written_has_one_code_in_all_commands() {
    let place = Place::new();
    let profile = "profile --out profile --gpus none --host 2 --sizes 8 --reps 1 --paths host";
    assert_eq!(place.run(profile, Stdio::null()).0, Some(0));
    for (code, all) in [
        // Not UTF-8 text.
        (
            2,
            "experiment run binary
            bench --config binary
            config show --config binary
            host plan tune --profile-file binary
            host plan irq --map binary
            host apply binary
            analyze profile --predictions binary
            doctor --fleet binary binary",
        ),
        // The folder is a file.
        (
            2,
            "secret new file/x
            host snapshot file/x
            shell man file/x
            nccl install file/x --from library
            profile --out file/x --gpus none --host 2
            experiment run experiment.yml --out file/x
            bench --set log_file=file/x
            peers --set log_file=file/x --set rendezvous=dir:///RENDEZVOUS
            analyze profile --html file/x
            host plan irq -o file/x
            host plan tune throughput -o file/x
            bench --json file/x
            bench --csv file/x
            sample --time 100ms --out file/x",
        ),
        // Existing files stay.
        (
            2,
            "secret new file
            host snapshot file
            sample --time 100ms --out file
            profile --out profile --gpus none --host 2",
        ),
        // No user may make a file there.
        (
            3,
            "secret new /sys/x
            host snapshot /sys/x --sysroot COPY
            shell man /sys/x
            nccl install /sys/x --from library
            profile --out /sys/x --gpus none --host 2 --sizes 8 --reps 1
            experiment run experiment.yml --out /sys/x
            analyze profile --html /sys/x
            host plan irq -o /sys/x --sysroot COPY
            host plan tune throughput -o /sys/x --sysroot COPY
            bench --json /sys/x
            bench --csv /sys/x
            sample --time 100ms --out /sys/x",
        ),
        // The kernel lets no process read the beginning of its memory.
        (
            3,
            "bench --config /proc/self/mem
            bench --set secret_file=/proc/self/mem
            config show --config /proc/self/mem
            peers --config /proc/self/mem
            profile --plan --config /proc/self/mem
            experiment run /proc/self/mem
            experiment run unreadable.yml --dry-run --partial
            host plan tune --profile-file /proc/self/mem
            host plan irq --map /proc/self/mem
            host apply /proc/self/mem
            host plan irq --sysroot /proc/self/mem
            host plan tune throughput --sysroot /proc/self/mem
            doctor --sysroot /proc/self/mem
            doctor --fleet /proc/self/mem /proc/self/mem
            sample --time 100ms --sysroot /proc/self/mem
            host show --sysroot /proc/self/mem
            host plan bindings --sysroot /proc/self/mem",
        ),
        // The machine has less memory.
        (
            3,
            "profile --plan --gpus none --host 2 --sizes 900GiB
            bench --sizes 900GiB",
        ),
    ] {
        for line in lines(all) {
            let (found, told) = place.run(line, Stdio::null());
            assert_eq!(found, Some(code), "{line}: {told}");
            let last: Vec<&str> = told.lines().rev().take(2).collect();
            assert!(last.len() == 2 && last[0].starts_with("help: "), "{line}: {told}");
            assert!(last[1].starts_with("polyrail: "), "{line}: {told}");
            assert_eq!(last[1].matches("; allowed: ").count(), 1, "{line}: {told}");
            if line.ends_with("900GiB") {
                let needs = last[1].contains("needs ") && last[1].contains(" TiB of memory; ");
                assert!(needs && last[1].contains("iB, which "), "{line}: {told}");
                assert!(last[0].contains("smaller"), "{line}: {told}");
            }
        }
    }
    assert_eq!(fs::read_to_string(place.folder.path().join("file")).unwrap(), "x");
    assert!(!Path::new("/sys/x").exists());
}

#[test]
fn a_limit_on_files_is_told_and_leaves_nothing_in_the_way() {
    let place = Place::new();
    let copy = place.copy.path().to_str().unwrap();
    let written = place.folder.path().join("written");
    for line in [
        "secret new written".to_owned(),
        "sample --time 100ms --interval 100ms --out written".to_owned(),
        format!("host snapshot written --sysroot {copy}"),
        format!("host plan tune throughput --sysroot {copy} --output written"),
    ] {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -f 0; exec \"$0\" \"$@\"", PROGRAM]);
        limited.args(line.split(' ')).current_dir(place.folder.path());
        let output = limited.output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{line}: {:?}: {told}", output.status);
        assert!(
            told.contains("written: File too large (os error 27); allowed: a place with room"),
            "{line}: {told}"
        );
        assert!(told.contains("\nhelp: "), "{line}: {told}");
        assert!(!written.exists(), "{line}");
    }
}
