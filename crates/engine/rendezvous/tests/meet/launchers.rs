//! Ranks started by a real `mpirun`, a real `torchrun` and a real Slurm find each other.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use polyrail_skip::HeldPort;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{DEADLINE, Process};
use crate::slurm::Slurm;

const MEMBER: &str = env!("CARGO_BIN_EXE_rendezvous-member");
/// Arguments of a member that meets three others in the group `g`, under its rank's default name.
const MEETS: [&str; 4] = ["g", "-", "4", "meet"];

/// A launcher. SIGTERM makes it end its ranks. Killing it would leave them behind.
struct Launcher(Process);

impl Launcher {
    fn start(command: &mut Command, place: &str) -> Self {
        Self(Process::start(command.env("POLYRAIL_RENDEZVOUS", place)))
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        let begin = Instant::now();
        let child = &mut self.0.child;
        if let Ok(None) = child.try_wait() {
            let _ = kill_process(Pid::from_child(child), Signal::TERM);
        }
        while let Ok(None) = child.try_wait() {
            if begin.elapsed() > DEADLINE {
                eprintln!("the launcher {} does not end when told to", child.id());
                break;
            }
            // The end of a child is signalled only by SIGCHLD, so poll.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Checks that each of four ranks receives the messages of the other three. The launchers have started equal shares of
/// them.
fn four_meet(launchers: &mut [Launcher]) {
    let mut lines = Vec::new();
    for launcher in &*launchers {
        for _ in 0..4 / launchers.len() {
            lines.extend(launcher.0.until("over"));
        }
    }
    for number in 0..4 {
        let entered = format!("entered rank-{number}");
        assert!(lines.iter().any(|line| line.contains(&entered)), "{lines:?}");
    }
    assert_eq!(lines.iter().filter(|line| line.contains("heard 3")).count(), 4, "{lines:?}");
    for launcher in launchers {
        assert!(launcher.0.wait(DEADLINE).success(), "{lines:?}");
    }
}

/// True if the program is in `PATH`. Running `torchrun` itself takes seconds.
pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[test]
fn mpirun_starts_ranks_that_meet() {
    if !is_there("mpirun") {
        return polyrail_skip::skip(
            "the `mpirun` program is missing (Debian: openmpi-bin)",
            "sudo apt-get install openmpi-bin && cargo test -p polyrail-rendezvous",
        );
    }
    let mut command = Command::new("mpirun");
    command.args(["--oversubscribe", "-np", "4"]).arg(MEMBER).args(MEETS);
    // mpirun refuses root otherwise, and needs its own folder.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    let folder = tempfile::tempdir().unwrap();
    command.env("TMPDIR", folder.path()).env("HOME", folder.path());
    let port = HeldPort::new();
    four_meet(&mut [Launcher::start(&mut command, &format!("mpi://:{}", port.number()))]);
}

/// A `torchrun` as one of `agents` agents, each with an equal share of four ranks.
fn torchrun(folder: &Path, agents: usize) -> Command {
    let mut command = Command::new("torchrun");
    command.args(["--nnodes", &agents.to_string(), "--nproc_per_node", &(4 / agents).to_string()]);
    // Output of the ranks goes to files and here: PyTorch 1.13 fails with Python 3.11 if it goes to files only.
    command.args(["--redirects", "1", "--tee", "1", "--log_dir"]).arg(folder);
    // Without this, torchrun sets it and prints a warning.
    command.env("OMP_NUM_THREADS", "1");
    command
}

/// Returns `None` and reports the test as skipped if torchrun is not installed.
fn folder_for_torchrun() -> Option<tempfile::TempDir> {
    if is_there("torchrun") {
        return Some(tempfile::tempdir().unwrap());
    }
    polyrail_skip::skip(
        "the `torchrun` program is missing (PyTorch; Debian: python3-torch)",
        "sudo apt-get install python3-torch && cargo test -p polyrail-rendezvous",
    );
    None
}

#[test]
fn torchrun_starts_ranks_of_one_node_that_meet() {
    let Some(folder) = folder_for_torchrun() else { return };
    let [master, place] = [(); 2].map(|()| HeldPort::new());
    let mut command = torchrun(folder.path(), 1);
    command.args(["--master_port", &master.number().to_string()]);
    command.args(["--no_python", MEMBER]).args(MEETS);
    // The port that the launcher suggests, the one after its own, can't be reserved.
    four_meet(&mut [Launcher::start(&mut command, &format!("torchrun://:{}", place.number()))]);
}

#[test]
fn two_agents_of_torchrun_start_ranks_that_meet() {
    let Some(folder) = folder_for_torchrun() else { return };
    let [store, place] = [(); 2].map(|()| HeldPort::new());
    // The agents behave like two hosts, so rank 0 must be named by an address of its rail: the name of this host may
    // resolve to another one.
    let place = format!("torchrun://{}", place.address());
    let mut launchers = [(); 2].map(|()| {
        let mut command = torchrun(folder.path(), 2);
        // The first agent to come has the store.
        command.args(["--rdzv_backend", "c10d", "--rdzv_id", "job", "--rdzv_endpoint"]);
        command.arg(store.address().to_string()).args(["--no_python", MEMBER]).args(MEETS);
        Launcher::start(command.env("POLYRAIL_RAILS", "127.0.0.1"), &place)
    });
    four_meet(&mut launchers);
}

#[test]
fn slurm_starts_ranks_that_meet() {
    let Some(slurm) = Slurm::start() else { return };
    let port = HeldPort::new();
    let mut command = slurm.command("srun");
    command.args(["--ntasks", "4", "--overcommit", MEMBER]).args(MEETS);
    // Two clusters number their jobs alike, so their jobs would use the same port.
    four_meet(&mut [Launcher::start(&mut command, &format!("slurm://:{}", port.number()))]);
}
