//! A Slurm cluster of this host alone.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use polyrail_skip::HeldPort;
use tempfile::TempDir;

use crate::common::{DEADLINE, Process};
use crate::launchers::is_there;

/// `munged`, `slurmctld` and `slurmd`, which end when this is dropped.
pub(crate) struct Slurm {
    /// Daemons in the order in which they end: slurmd with its ranks, slurmctld, munged.
    daemons: Vec<Process>,
    folder: TempDir,
    _ports: [HeldPort; 2],
}

impl Slurm {
    /// Starts Slurm. Returns `None` and reports the test as skipped if Slurm can't run here.
    pub(crate) fn start() -> Option<Self> {
        if let Some(why) = obstacle() {
            polyrail_skip::skip(
                why,
                "sudo apt-get install slurmctld slurmd slurm-client munge && \
                 sudo -E cargo test -p polyrail-rendezvous --test meet",
            );
            return None;
        }
        let ports = [(); 2].map(|()| HeldPort::new());
        let folder = tempfile::tempdir().unwrap();
        let host = host();
        write_configuration(folder.path(), &host, &ports);
        let mut slurm = Self { daemons: Vec::new(), folder, _ports: ports };
        let file = |name: &str| format!("{}/{name}", slurm.folder.path().display());

        let mut munged = Command::new("munged");
        munged.args(["--foreground", "--force"]);
        for name in ["key-file", "socket", "pid-file", "log-file", "seed-file"] {
            munged.arg(format!("--{name}={}", file(&format!("munge.{name}"))));
        }
        let socket = file("munge.socket");
        slurm.run(munged);
        slurm.wait_for("munged", |_| UnixStream::connect(&socket).is_ok());

        let mut control = slurm.command("slurmctld");
        control.arg("-D");
        slurm.run(control);
        slurm.wait_for("slurmctld", |slurm| slurm.says(&["scontrol", "ping"]).is_some());

        // slurmstepd, which runs a rank, does not end with slurmd unless slurmd is the first process of a namespace.
        let mut node = slurm.command("unshare");
        node.args(["--pid", "--fork", "--kill-child", "--mount-proc", "slurmd", "-D", "-N", &host]);
        slurm.run(node);
        let state = ["sinfo", "--noheader", "--format=%t"];
        slurm.wait_for("slurmd", |slurm| slurm.says(&state).is_some_and(|said| said == "idle"));
        Some(slurm)
    }

    /// A Slurm command for this cluster, without the variables of a job that may run the test.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("SLURM_") {
                command.env_remove(name);
            }
        }
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    fn run(&mut self, mut daemon: Command) {
        // The daemons write the same to their logs.
        daemon.stderr(Stdio::null());
        self.daemons.insert(0, Process::start(&mut daemon));
    }

    /// Output of a program, if it succeeds.
    fn says(&self, words: &[&str]) -> Option<String> {
        let output = self.command(words[0]).args(&words[1..]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        output.status.success().then(|| said.trim().to_owned())
    }

    fn wait_for(&mut self, daemon: &str, is_ready: impl Fn(&Self) -> bool) {
        let begin = Instant::now();
        while !is_ready(self) {
            let ended = self.daemons[0].child.try_wait().unwrap();
            assert!(ended.is_none(), "{daemon} has ended: {ended:?}");
            assert!(begin.elapsed() < DEADLINE, "{daemon} is not ready");
            // The daemons don't signal that they are ready, so poll.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["munge.log-file", "slurmctld.log", "slurmd.log"] {
                let text = fs::read_to_string(self.folder.path().join(log));
                eprintln!("{log}: {}", text.unwrap_or_else(|error| error.to_string()));
            }
        }
    }
}

/// Reason why Slurm can't run here.
fn obstacle() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("only root can run slurmd".to_owned());
    }
    let programs = ["munged", "slurmctld", "slurmd", "scontrol", "sinfo", "srun", "unshare"];
    if let Some(program) = programs.iter().find(|program| !is_there(program)) {
        return Some(format!("the `{program}` program is missing"));
    }
    let mut namespace = Command::new("unshare");
    namespace.args(["--pid", "--fork", "--mount-proc", "true"]);
    let output = namespace.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    (!output.status.success()).then(|| format!("no namespaces: {}", said.trim()))
}

/// Name of this host as slurmctld uses it: without a domain.
fn host() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_str().unwrap();
    name.split('.').next().unwrap_or(name).to_owned()
}

/// Writes `slurm.conf`, and the key of munge, which only its owner may read.
fn write_configuration(folder: &Path, host: &str, [control, node]: &[HeldPort; 2]) {
    let mut key = [0; 1024];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut key).unwrap();
    let mut file = fs::OpenOptions::new();
    file.create_new(true).write(true).mode(0o600);
    file.open(folder.join("munge.key-file")).unwrap().write_all(&key).unwrap();
    fs::create_dir(folder.join("state")).unwrap();
    fs::create_dir(folder.join("spool")).unwrap();
    let [control, node] = [control, node].map(HeldPort::number);
    let folder = folder.display();
    let text = format!(
        "ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/linear
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP OverSubscribe=FORCE
"
    );
    fs::write(folder.to_string() + "/slurm.conf", text).unwrap();
}
