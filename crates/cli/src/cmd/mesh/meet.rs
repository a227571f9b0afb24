//! Connects workers that one process started, in a lab or on hosts: it carries each engine's metadata to all others.
//! This needs no port and no folder, and no other process sees the metadata.

use std::io::{self, BufRead};

use polyrail::{Engine, Peer};
use polyrail_report::exit;
use serde::{Deserialize, Serialize};

use super::faults;
use super::talk::VERSION;
use crate::fault::Fault;
use crate::stdout::tell_starter;

/// Rendezvous in the slot of such a worker.
pub(crate) const BY_STARTER: &str = "starter";

/// First line of a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Introduction {
    mesh: u32,
    metadata: Vec<u8>,
}

/// The answer: the metadata of all workers in their order.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Everybody {
    metadata: Vec<Vec<u8>>,
}

/// Connects worker `me` to all others. Returns the peers by worker, with `None` for itself.
pub(crate) fn meet(engine: &Engine, me: usize, workers: usize) -> Result<Vec<Option<Peer>>, Fault> {
    let own = Introduction { mesh: VERSION, metadata: engine.metadata() };
    let failed = |source| Fault::system("telling this engine's metadata", source);
    let line = serde_json::to_string(&own).map_err(|error| failed(error.into()))?;
    tell_starter(&line).map_err(failed)?;
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    let step = "hearing of the others";
    if read.map_err(|source| Fault::system(step, source))? == 0 {
        // The starter has ended this worker, or is gone. It reports the reason, if any process does.
        return Err(Fault::told(exit::INTERRUPTED));
    }
    let all: Everybody =
        serde_json::from_str(&line).map_err(|error| Fault::system(step, error.into()))?;
    if all.metadata.len() != workers {
        let text = format!("{} workers, not {workers}", all.metadata.len());
        return Err(Fault::system(step, io::Error::other(text)));
    }
    let others = all.metadata.iter().enumerate();
    others
        .map(|(worker, metadata)| {
            (worker != me).then(|| engine.add_peer(metadata).map_err(Fault::from)).transpose()
        })
        .collect()
}

impl Introduction {
    /// Refuses a worker of another version, whose later messages differ.
    pub(crate) fn check(&self, who: &str) -> Result<(), Fault> {
        match self.mesh == VERSION {
            true => Ok(()),
            false => Err(faults::version(who, &self.mesh.to_string(), "this node", VERSION)),
        }
    }

    /// Returns `None` for any other line.
    pub(crate) fn read(line: &str) -> Option<Self> {
        serde_json::from_str(line).ok()
    }
}

/// The line for all workers.
pub(crate) fn everybody(introductions: Vec<Introduction>) -> Result<String, Fault> {
    let metadata = introductions.into_iter().map(|one| one.metadata).collect();
    let line = serde_json::to_string(&Everybody { metadata });
    line.map(|line| line + "\n").map_err(|error| Fault::system("writing metadata", error.into()))
}
