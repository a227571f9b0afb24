//! Places of nodes, and the commands that start their workers.

use std::env;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use polyrail_config::Rendezvous;
use polyrail_lab::{Lab, LabError, LabGuard, Node};
use polyrail_report::exit;

use super::args::{AnyLab, Args, PLACES, Seat};
use super::hosts::{Hosts, Remote};
use super::meet::BY_STARTER;
use super::plan::Layout;
use crate::fault::{Cause, Fault};
use crate::own_labs;

/// The place of the nodes.
pub(crate) enum Place {
    Lab(Box<Lab>),
    /// A lab made for the run, and removed at the end.
    OwnLab(Box<LabGuard>),
    Hosts(Remote),
    Here {
        /// `None` for a rank of a launcher.
        node: Option<usize>,
        nodes: usize,
        rendezvous: String,
    },
}

impl Place {
    pub(crate) fn find(args: &Args) -> Result<Self, Fault> {
        match &args.lab {
            Some(AnyLab::Up(name)) => {
                let lab = Box::new(Lab::open(name).map_err(not_open)?);
                // Two meshes at once would measure each other.
                lab.use_alone()?;
                return Ok(Self::Lab(lab));
            }
            Some(AnyLab::ForRun(wanted)) => {
                let lab = own_labs::up("mesh", Some(wanted.nodes), wanted.rates.clone())?;
                lab.use_alone()?;
                return Ok(Self::OwnLab(Box::new(lab)));
            }
            None => {}
        }
        let Some(Hosts(hosts)) = &args.hosts else { return Self::here(args) };
        let own = env::current_exe();
        let remote = Remote {
            hosts: hosts.clone(),
            program: args.remote_program.clone(),
            ssh_config: args.ssh_config.clone(),
            own: own.map_err(|source| Fault::system("finding this program", source))?,
            timeout: args.timeout,
        };
        Ok(Self::Hosts(remote))
    }

    fn here(args: &Args) -> Result<Self, Fault> {
        let set = args.config.builder()?.build()?.rendezvous.clone();
        let rendezvous = args.rendezvous.clone().unwrap_or(set);
        if rendezvous.is_empty() {
            let text = "nothing says which nodes to measure; allowed: one of --lab, --hosts and --rendezvous";
            let help = "on one machine `polyrail mesh --lab 3:1gbit`, over ssh `polyrail mesh --hosts A,B`; \
                        `polyrail mesh --help` has more examples";
            return Err(Fault::new(exit::USAGE, text).with_help(help));
        }
        let parsed = Rendezvous::parse(&rendezvous).ok().flatten();
        let is_ranks = match parsed {
            Some(Rendezvous::Ranks { .. }) => true,
            Some(Rendezvous::Dir { .. } | Rendezvous::Etcd { .. }) => false,
            _ => {
                let help = "give another --rendezvous, or --lab, or --hosts";
                let reason = "is no place where nodes of a mesh find each other";
                return Err(
                    Fault::usage("--rendezvous", rendezvous, reason, PLACES).with_help(help)
                );
            }
        };
        let help = "each node needs to know how many there are, and which of them it is";
        let Some(nodes) = args.nodes.map(|nodes| nodes as usize) else {
            return Err(Fault::usage("--nodes", "", "is missing", "2 to 256").with_help(help));
        };
        if is_ranks && args.layouts() != [Layout::One] {
            let reason = "needs processes that the launcher of the ranks does not know";
            let allowed = "one with ranks, or a dir:// or etcd:// rendezvous";
            let help = "give --layout one, or another --rendezvous";
            return Err(Fault::usage("--layout", "per-gpu", reason, allowed).with_help(help));
        }
        let node = match (args.node.map(|node| node as usize), is_ranks) {
            (_, true) => None,
            (Some(node), false) if node < nodes => Some(node),
            (node, false) => {
                let value = node.map_or(String::new(), |node| node.to_string());
                let reason = if node.is_some() { "is not one of the nodes" } else { "is missing" };
                let allowed = format!("0 to {}", nodes - 1);
                return Err(Fault::usage("--node", value, reason, allowed).with_help(help));
            }
        };
        Ok(Self::Here { node, nodes, rendezvous })
    }

    pub(crate) fn nodes(&self) -> usize {
        match self {
            Self::Lab(lab) => lab.nodes(),
            Self::OwnLab(lab) => lab.nodes(),
            Self::Hosts(remote) => remote.hosts.len(),
            Self::Here { nodes, .. } => *nodes,
        }
    }

    fn lab(&self) -> Option<&Lab> {
        match self {
            Self::Lab(lab) => Some(lab),
            Self::OwnLab(lab) => Some(lab),
            Self::Hosts(_) | Self::Here { .. } => None,
        }
    }

    /// Slot of the first worker of a node that this process starts.
    pub(crate) fn seat(&self, layout: Layout, node: usize) -> Seat {
        let (node, place) = match self {
            Self::Lab(_) | Self::OwnLab(_) | Self::Hosts(_) => (Some(node), BY_STARTER.to_owned()),
            Self::Here { node, rendezvous, .. } => (*node, rendezvous.clone()),
        };
        let in_lab = self.lab().is_some();
        Seat { layout, node, index: 0, nodes: self.nodes(), in_lab, place }
    }

    /// Whether this process starts the first worker, as far as it knows.
    pub(crate) fn has_first(&self) -> bool {
        match self {
            Self::Lab(_) | Self::OwnLab(_) | Self::Hosts(_) => true,
            Self::Here { node, .. } => *node == Some(0),
        }
    }

    /// Whether this process introduces the workers to each other.
    pub(crate) fn introduces(&self) -> bool {
        !matches!(self, Self::Here { .. })
    }

    /// Number of nodes whose workers this process starts.
    pub(crate) fn own_nodes(&self) -> usize {
        match self {
            Self::Lab(_) | Self::OwnLab(_) | Self::Hosts(_) => self.nodes(),
            Self::Here { .. } => 1,
        }
    }

    pub(crate) fn command(
        &self,
        node: usize,
        program: &Path,
        words: &[String],
    ) -> Result<Command, Fault> {
        let mut command = match (self, self.lab()) {
            (Self::Hosts(remote), _) => return Ok(remote.command(node, words)),
            (_, Some(lab)) => lab.command(lab.node(Node::new(node)?)?, program),
            (_, None) => Command::new(program),
        };
        command.args(words);
        Ok(command)
    }

    pub(crate) fn lab_name(&self) -> Option<String> {
        self.lab().map(|lab| lab.name().to_owned())
    }

    /// The rates of the lab's rails, such as `2x1gbit` or `1gbit,10gbit`.
    pub(crate) fn lab_rates(&self) -> Option<String> {
        let rates: Vec<String> = self.lab()?.rails().iter().map(|it| it.rate.to_string()).collect();
        let one = rates.first()?;
        let is_one = rates.iter().all(|rate| rate == one);
        Some(match rates.len() {
            1 => one.clone(),
            many if is_one => format!("{many}x{one}"),
            _ => rates.join(","),
        })
    }

    /// Rate at which a node of the lab can send and receive, in GB/s; `None` if a rail has no limit.
    pub(crate) fn node_gb_per_s(&self) -> Option<f64> {
        let rails = self.lab()?.rails().iter();
        let bytes: Option<u64> = rails.map(|rail| rail.rate.bytes_per_second()).sum();
        bytes.map(|bytes| bytes as f64 / 1e9)
    }

    /// Returns an error that the lab is gone, if it is gone, and else this one.
    pub(crate) fn explain(&self, error: Fault) -> Fault {
        let Some(lab) = self.lab() else { return error };
        let until = Instant::now() + if may_be_gone(&error) { GOING } else { Duration::ZERO };
        loop {
            let why = match Lab::open(lab.name()) {
                Ok(_) if Instant::now() < until => {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
                Ok(_) => return error,
                Err(LabError::Broken { because, .. }) => because,
                Err(_) => "somebody has removed it".into(),
            };
            let text = format!("lab `{}` is gone: {why}", lab.name());
            let help = "make it again with `polyrail lab up`, and leave it until the mesh is over";
            return Fault::environment(text).with_help(help);
        }
    }

    pub(crate) fn end(self) -> Result<(), Fault> {
        match self {
            Self::OwnLab(lab) => Ok(own_labs::down(*lab)?),
            _ => Ok(()),
        }
    }
}

/// Returns whether a removed lab may have caused the error: `lab down` ends the processes in it first.
fn may_be_gone(error: &Fault) -> bool {
    error.code == exit::PEER && matches!(error.cause, Cause::Ended | Cause::Told)
}

/// Adds help for the name of a lab that is a number, and may be meant as a number of nodes.
fn not_open(error: LabError) -> Fault {
    let number = match &error {
        LabError::UnknownLab { name, .. } if name.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(name.clone())
        }
        _ => None,
    };
    let fault = Fault::from(error);
    match number {
        Some(name) => fault.with_help(format!(
            "for a lab of {name} nodes that ends with the mesh give NODES:RATES, such as {name}:2x1gbit"
        )),
        None => fault,
    }
}

/// Time for a lab to disappear after its processes have ended.
const GOING: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::super::faults;
    use super::*;

    #[test]
    fn only_a_process_that_ended_has_the_lab_looked_at_for_a_while() {
        assert!(may_be_gone(&faults::ended("node1", "signal: 9")));
        assert!(may_be_gone(&Fault::told(exit::PEER)));
        assert!(!may_be_gone(&faults::silent("node1", "go", GOING)));
        assert!(!may_be_gone(&faults::version("node1", "2", "node0", 1)));
    }

    #[test]
    fn a_number_that_is_no_lab_is_told_to_be_one_without_rates() {
        let help = |name: &str| {
            let lab = LabError::UnknownLab { name: name.to_owned(), known: "none".to_owned() };
            not_open(lab).help.unwrap()
        };
        assert!(help("8").ends_with("give NODES:RATES, such as 8:2x1gbit"), "{}", help("8"));
        assert!(help("a8").contains("polyrail lab up a8"), "{}", help("a8"));
    }
}
