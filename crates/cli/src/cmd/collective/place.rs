//! Places where the ranks run, and the environment of their processes.

use std::path::Path;
use std::process::Command;

use polyrail_config::{Config, Origin};
use polyrail_lab::{LabGuard, Node};

use super::args::{Args, Contestant};
use crate::fault::Fault;
use crate::own_labs;

/// Place where the ranks run.
pub(crate) enum Place {
    Here,
    /// A lab with a rank on each node. Dropping this ends the lab.
    Lab(Box<LabGuard>),
}

/// Prefix that selects every rail of a lab.
const LAB_RAILS: &str = "rail";
const LOOPBACK: &str = "127.0.0.1";

impl Place {
    pub(crate) fn find(args: &Args) -> Result<Self, Fault> {
        let Some(wanted) = &args.lab else { return Ok(Self::Here) };
        Ok(Self::Lab(Box::new(own_labs::up(
            "collective",
            Some(wanted.nodes),
            wanted.rates.clone(),
        )?)))
    }

    pub(crate) fn lab_name(&self) -> Option<String> {
        match self {
            Self::Here => None,
            Self::Lab(lab) => Some(lab.name().to_owned()),
        }
    }

    pub(crate) fn end(self) -> Result<(), Fault> {
        match self {
            Self::Here => Ok(()),
            Self::Lab(lab) => Ok(own_labs::down(*lab)?),
        }
    }

    /// Command that starts the process of a rank.
    pub(crate) fn command(
        &self,
        program: &Path,
        rank: usize,
        ranks: usize,
        over: &Contestant,
        settings: &Config,
    ) -> Result<Command, Fault> {
        let (mut command, addresses) = match self {
            Self::Here => (Command::new(program), LOOPBACK.to_owned()),
            Self::Lab(lab) => {
                let node = lab.node(Node::new(rank)?)?;
                let rails = lab.rails().iter().map(|rail| rail.end(node).ipv4.to_string());
                (lab.command(node, program), rails.collect::<Vec<_>>().join(","))
            }
        };
        // Plugins read these to share the CPUs with the other ranks, as under a job launcher.
        command.env("LOCAL_WORLD_SIZE", ranks.to_string()).env("RANK", rank.to_string());
        match over {
            Contestant::Sockets { threads, sockets } => {
                command.env("SOCKET_LIKE_THREADS", threads.to_string());
                command.env("SOCKET_LIKE_SOCKETS", sockets.to_string());
                command.env("SOCKET_LIKE_ADDRESSES", addresses);
            }
            Contestant::Plugin(_) => {
                command.envs(self.settings(settings));
            }
        }
        Ok(command)
    }

    /// Variables for Polyrail's plugin: the options that were given, and the rails of this place. `path` is tcp by
    /// default: ranks of one host would otherwise share memory, and no rail would be measured.
    fn settings(&self, settings: &Config) -> Vec<(String, String)> {
        let variable = |name: &str, value: &str| {
            (format!("POLYRAIL_{}", name.to_uppercase()), value.to_owned())
        };
        let is_given = |name| settings.origin(name).is_some_and(Origin::is_explicit);
        let mut variables = Vec::new();
        match self {
            Self::Here if is_given("rails") => {}
            Self::Here => variables.push(variable("rails", LOOPBACK)),
            // Rails that a file or the environment names are on the machine, not in the lab.
            Self::Lab(_) => variables.push(variable("rails", LAB_RAILS)),
        }
        if !is_given("path") {
            variables.push(variable("path", "tcp"));
        }
        let rows = settings.rows();
        let files = rows.iter().filter_map(|row| match &row.origin {
            Origin::File { path, .. } => Some(("POLYRAIL_CONFIG".to_owned(), path.clone())),
            _ => None,
        });
        variables.extend(files.take(1));
        let set = rows.iter().filter(|row| row.origin == Origin::Set);
        variables.extend(set.map(|row| variable(row.name, &row.value)));
        variables
    }
}
