//! Environment variables by which launchers describe a job to its ranks.

use std::fmt::Display;
use std::str::FromStr;

use polyrail_config::Launcher;

use super::nodelist;
use crate::error::RendezvousError;

/// Default port of rank 0 if the launcher suggests none.
const PORT: u16 = 29_600;
/// First port and number of ports for Slurm jobs. Jobs on one node get different ports, below the kernel's ephemeral
/// range.
const SLURM_PORTS: (u32, u32) = (20_000, 10_000);
/// Maximum number of ranks, more than any job has.
const MOST_RANKS: usize = 1 << 20;

/// A rank's place in its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Job {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// Host of rank 0.
    pub(super) host: String,
    /// Port of rank 0.
    pub(super) port: u16,
    /// True if all ranks are on one host.
    pub(super) is_local: bool,
}

/// The environment, read with errors that name the variable.
struct Environment<'a> {
    place: &'a str,
    launcher: Launcher,
    variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Job {
    /// Reads the launcher's variables. Host and port of the setting take precedence.
    pub(super) fn read(
        place: &str,
        (launcher, host, port): (Launcher, Option<&str>, Option<u16>),
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, RendezvousError> {
        let env = Environment { place, launcher, variable };
        let names: [&[&str]; 3] = match launcher {
            Launcher::Torchrun => [&["RANK"], &["WORLD_SIZE"], &["LOCAL_WORLD_SIZE"]],
            Launcher::Mpi => [
                &["OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"],
                &["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"],
                &["OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"],
            ],
            _ => [&["SLURM_PROCID"], &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"], &[]],
        };
        let size: usize = env.number(names[1])?;
        let rank: usize = env.number(names[0])?;
        if size == 0 || size > MOST_RANKS {
            return Err(env.wrong(names[1], format!("is {size}; allowed: 1 to {MOST_RANKS}")));
        }
        if rank >= size {
            return Err(env
                .wrong(names[0], format!("is {rank}; allowed: 0 to {}, the last rank", size - 1)));
        }
        let is_local = match launcher {
            Launcher::Slurm => {
                let names = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];
                env.first(&names).is_some_and(|(_, text)| text.trim() == "1")
            }
            _ => env.first(names[2]).is_some_and(|(_, text)| text.trim().parse() == Ok(size)),
        };
        let host = match (host, launcher) {
            (Some(host), _) => host.to_owned(),
            (None, Launcher::Slurm) if !is_local => env.first_node()?,
            (None, _) if is_local => "127.0.0.1".to_owned(),
            (None, _) => match env.first(&["MASTER_ADDR"]) {
                Some((_, host)) if !host.trim().is_empty() => host.trim().to_owned(),
                _ => return Err(env.lacks(&["MASTER_ADDR"])),
            },
        };
        let port = match (port, launcher) {
            (Some(port), _) => port,
            // torchrun uses MASTER_PORT itself. Take the next one.
            (None, Launcher::Torchrun) => {
                let port: u16 = env.number(&["MASTER_PORT"])?;
                port.checked_add(1).ok_or_else(|| {
                    env.wrong(
                        &["MASTER_PORT"],
                        "is 65535; allowed: 0 to 65534, as the next port is needed".to_owned(),
                    )
                })?
            }
            (None, Launcher::Slurm) => {
                let job: u32 = env.number(&["SLURM_JOB_ID"])?;
                let (least, count) = SLURM_PORTS;
                u16::try_from(least + job % count).unwrap_or(PORT)
            }
            (None, _) => PORT,
        };
        Ok(Self { rank, size, host, port, is_local })
    }
}

impl Environment<'_> {
    /// Returns the first of these variables that is set.
    fn first<'n>(&self, names: &[&'n str]) -> Option<(&'n str, String)> {
        names.iter().find_map(|name| Some((*name, (self.variable)(name)?)))
    }

    fn number<T: FromStr>(&self, names: &[&str]) -> Result<T, RendezvousError> {
        let (name, text) = self.first(names).ok_or_else(|| self.lacks(names))?;
        text.trim().parse().map_err(|_| {
            let text = polyrail_config::shortened(&text, 40);
            self.wrong(&[name], format!("is `{text}`; allowed: a number"))
        })
    }

    /// Returns the node of rank 0.
    fn first_node(&self) -> Result<String, RendezvousError> {
        let names = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        let (name, list) = self.first(&names).ok_or_else(|| self.lacks(&names))?;
        let wrong = |error: &dyn Display| self.wrong(&[name], error.to_string());
        let hosts = nodelist::expand(list.trim()).map_err(|error| wrong(&error))?;
        hosts.into_iter().next().ok_or_else(|| wrong(&"names no host"))
    }

    fn lacks(&self, names: &[&str]) -> RendezvousError {
        self.wrong(names, "is not set; allowed: what the launcher sets".to_owned())
    }

    fn wrong(&self, names: &[&str], fault: String) -> RendezvousError {
        let help = match (self.launcher, names) {
            (Launcher::Mpi, ["MASTER_ADDR"]) => {
                "say where rank 0 is: rendezvous=mpi://HOST, or mpirun -x MASTER_ADDR=HOST"
            }
            (Launcher::Mpi, _) => "start the program by mpirun or mpiexec",
            (Launcher::Slurm, _) => "start the program by srun, within a job or by itself",
            _ => "start the program by torchrun, or set what it sets",
        };
        RendezvousError::Environment {
            place: self.place.to_owned(),
            variable: names.join(" or "),
            fault,
            help: help.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(
        given: (Launcher, Option<&str>, Option<u16>),
        variables: &[(&str, &str)],
    ) -> Result<Job, RendezvousError> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(other, _)| *other == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        Job::read("test://", given, &variable)
    }

    fn job(rank: usize, size: usize, host: &str, port: u16, is_local: bool) -> Job {
        Job { rank, size, host: host.to_owned(), port, is_local }
    }

    #[test]
    fn each_launcher_is_understood() {
        let torch = [
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "29500"),
        ];
        let found = read((Launcher::Torchrun, None, None), &torch).unwrap();
        assert_eq!(found, job(3, 8, "node1", 29501, false));
        let found = read((Launcher::Torchrun, Some("node7"), Some(5)), &torch).unwrap();
        assert_eq!(found, job(3, 8, "node7", 5, false));

        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "0"),
            ("OMPI_COMM_WORLD_SIZE", "2"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ];
        let found = read((Launcher::Mpi, None, None), &mpi).unwrap();
        assert_eq!(found, job(0, 2, "127.0.0.1", PORT, true));
        let mpich = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MASTER_ADDR", "node1")];
        let found = read((Launcher::Mpi, None, None), &mpich).unwrap();
        assert_eq!(found, job(1, 2, "node1", PORT, false));

        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "6"),
            ("SLURM_NNODES", "3"),
            ("SLURM_JOB_ID", "1234567"),
            ("SLURM_JOB_NODELIST", "gpu[07-09]"),
        ];
        let found = read((Launcher::Slurm, None, None), &slurm).unwrap();
        assert_eq!(found, job(5, 6, "gpu07", 24567, false));
    }

    #[test]
    fn what_is_missing_or_wrong_is_named_with_a_remedy() {
        let torch = (Launcher::Torchrun, None, None);
        for (given, variables, told) in [
            (torch, &[][..], "test://`: WORLD_SIZE is not set"),
            (torch, &[("WORLD_SIZE", "x\n")], "WORLD_SIZE is `x\\u000a`; allowed: a number"),
            (torch, &[("WORLD_SIZE", "0"), ("RANK", "0")], "WORLD_SIZE is 0; allowed: 1 to"),
            (torch, &[("WORLD_SIZE", "2"), ("RANK", "2")], "RANK is 2; allowed: 0 to 1"),
            (torch, &[("WORLD_SIZE", "2"), ("RANK", "1")], "MASTER_ADDR is not set"),
            (
                (Launcher::Mpi, None, None),
                &[("PMI_SIZE", "2"), ("PMI_RANK", "1")],
                "MASTER_ADDR is not set",
            ),
            (
                (Launcher::Mpi, None, None),
                &[],
                "OMPI_COMM_WORLD_SIZE or PMI_SIZE or MV2_COMM_WORLD_SIZE is not set",
            ),
            (
                (Launcher::Slurm, None, None),
                &[("SLURM_NTASKS", "2"), ("SLURM_PROCID", "1"), ("SLURM_NODELIST", "a[1")],
                "SLURM_NODELIST has a bracket",
            ),
        ] {
            let error = read(given, variables).unwrap_err();
            assert!(error.to_string().contains(told), "{error}");
            assert!(error.help().is_some_and(|help| !help.is_empty()));
            assert_eq!(error.exit_code(), 2);
        }
    }
}
