//! `polyrail mesh --hosts` over a real `ssh` and a real `sshd`, which the test runs with its own keys. `ssh` talks to
//! `sshd -i` through a pipe, so neither a port nor a privilege is needed.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::common::{DEADLINE, PROGRAM, polyrail, refusal, report, wait_until, write_program};

const SSHD: &str = "/usr/sbin/sshd";

/// Hosts `one` and `two`, which are this machine; `gone`, which can't be reached; and `mute`, which accepts a
/// connection and sends nothing.
struct Hosts {
    folder: TempDir,
}

impl Hosts {
    /// `None` where OpenSSH is missing; the test is skipped then.
    fn new() -> Option<Self> {
        let answers = |program: &str, option: &str| {
            let mut command = Command::new(program);
            command.arg(option).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            command.status().is_ok()
        };
        if !(answers("ssh", "-V") && answers(SSHD, "-?") && answers("ssh-keygen", "-?")) {
            let what = "OpenSSH is missing (openssh-client, openssh-server)";
            polyrail_skip::skip(what, "cargo test -p polyrail-cli --test links mesh_hosts::");
            return None;
        }
        // sshd insists on this folder when it runs as root.
        let _ = fs::create_dir("/run/sshd");
        let hosts = Self { folder: tempfile::tempdir().unwrap() };
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(hosts.at(key))
                .status()
                .unwrap();
            assert!(made.success());
        }
        fs::copy(hosts.at("user.pub"), hosts.at("authorized")).unwrap();
        let folder = hosts.folder.path().display();
        let server = format!(
            "HostKey {folder}/host\nAuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\n\
             PidFile none\nPermitRootLogin prohibit-password\nPasswordAuthentication no\nLogLevel ERROR\n\
             SetEnv POLYRAIL_CONFIG=\n"
        );
        fs::write(hosts.at("sshd_config"), server).unwrap();
        let client = format!(
            "Host gone\n  ProxyCommand false\nHost mute\n  ProxyCommand sleep 600\nHost one two\n  ProxyCommand {SSHD} -i -f {folder}/sshd_config\n  \
             IdentityFile {folder}/user\n  IdentitiesOnly yes\nHost *\n  StrictHostKeyChecking no\n  \
             UserKnownHostsFile {folder}/known\n  LogLevel ERROR\n"
        );
        fs::write(hosts.at("ssh_config"), client).unwrap();
        Some(hosts)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn mesh(&self, hosts: &str, program: impl AsRef<OsStr>) -> Command {
        let mut command = polyrail([
            "mesh",
            "--hosts",
            hosts,
            "--set",
            "rails=127.0.0.1",
            "--size",
            "64KiB",
            "--depth",
            "2",
        ]);
        command.arg("--remote-program").arg(program).arg("--ssh-config").arg(self.at("ssh_config"));
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Command lines with `word` in them, of all processes.
fn running(word: &str) -> Vec<String> {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(word)).collect()
}

#[test]
fn hosts_are_measured_in_both_layouts_and_get_every_option_as_it_was_given() {
    let Some(hosts) = Hosts::new() else { return };
    // A shell would split this path into several words.
    let log = hosts.at("it's a $(log) of two");
    let output = hosts
        .mesh("one,two,localhost", PROGRAM)
        .args([
            "--endpoints-per-node",
            "2",
            "--layout",
            "one,per-gpu",
            "--pattern",
            "all",
            "--rounds",
            "1",
        ])
        .args(["--time", "50ms", "--warmup", "10ms", "--json", "-", "--set", "log_level=debug"])
        .args(["--set".into(), format!("log_file={}", log.display())])
        .output()
        .unwrap();
    let report = report("mesh", 0, &output, "--hosts");
    let layouts = report["layouts"].as_array().unwrap();
    let processes: Vec<_> = layouts.iter().map(|it| (&it["layout"], &it["processes"])).collect();
    assert_eq!(processes, [(&"one".into(), &3.into()), (&"per-gpu".into(), &6.into())]);
    for layout in layouts {
        let pattern = &layout["patterns"][0];
        assert_eq!(pattern["pairs"].as_array().unwrap().len(), 24);
        assert_eq!(pattern["verified_bytes"], 24 * 2 * 65536);
    }
    assert!(fs::metadata(&log).unwrap().len() > 0, "the workers there log where they were told to");
}

#[test]
fn a_host_that_cant_be_reached_or_has_no_or_another_polyrail_is_named_and_nothing_starts() {
    let Some(hosts) = Hosts::new() else { return };
    let said = refusal(4, &hosts.mesh("one,gone", PROGRAM).output().unwrap());
    assert!(
        said.contains("host `gone` can't be reached") && said.contains("help: see that"),
        "{said}"
    );
    let said = refusal(4, &hosts.mesh("one,two", "/no/such").output().unwrap());
    assert!(
        said.contains("host `one` has no polyrail") && said.contains("--remote-program"),
        "{said}"
    );
    let other = hosts.at("other");
    let script = "#!/bin/sh\n[ $1 = --version ] || touch \"$0-started\"\necho polyrail 99.0.0\n";
    write_program(&other, script);
    let said = refusal(4, &hosts.mesh("localhost,two", &other).output().unwrap());
    assert!(
        said.contains("host `two` has another polyrail: its polyrail is 99.0.0, and this one is"),
        "{said}"
    );
    assert!(!hosts.at("other-started").exists());
}

#[test]
fn a_host_that_says_nothing_is_named_while_it_is_asked_and_ctrl_c_blames_no_host() {
    let Some(hosts) = Hosts::new() else { return };
    let mut child = hosts.mesh("mute,two", PROGRAM).process_group(0).spawn().unwrap();
    let group = Pid::from_child(&child);
    let mut said = String::new();
    let mut words = BufReader::new(child.stderr.take().unwrap());
    words.read_line(&mut said).unwrap();
    assert!(said.starts_with("polyrail: asking mute which polyrail it has; "), "{said}");
    // Ctrl-C in a terminal signals the whole group, so `ssh` gets the signal, too.
    kill_process_group(group, Signal::INT).unwrap();
    words.read_to_string(&mut said).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.ends_with("interrupted\n") && !said.contains("has no polyrail"), "{said}");
}

#[test]
fn a_host_that_says_nothing_is_given_up() {
    let Some(hosts) = Hosts::new() else { return };
    let begin = Instant::now();
    let said =
        refusal(4, &hosts.mesh("mute,two", PROGRAM).args(["--timeout", "1s"]).output().unwrap());
    assert!(said.contains("host `mute` can't be reached"), "{said}");
    assert!(begin.elapsed() < DEADLINE, "{said}");
}

#[test]
fn when_the_starting_process_is_killed_nothing_goes_on_anywhere() {
    let Some(hosts) = Hosts::new() else { return };
    let group = format!("mesh-hosts-{}", std::process::id());
    let mut mesh = hosts.mesh("one,two", PROGRAM);
    let mut child = mesh.args(["--time", "10min", "--group", &group]).spawn().unwrap();
    // The group's name is in two workers that `ssh` started, two `ssh`, and the mesh itself.
    let workers = |line: &String| line.contains("--worker") && !line.contains("BatchMode");
    wait_until("workers start", || {
        running(&group).iter().filter(|line| workers(line)).count() == 2
    });
    child.kill().unwrap();
    child.wait().unwrap();
    wait_until(&format!("all end: {:?}", running(&group)), || running(&group).is_empty());
}
