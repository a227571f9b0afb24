//! A rank: a process that loads a plugin and obeys lines of JSON from the process that started it.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use polyrail_collective::{Rank, RankError, Shape, Spec, baseline};
use polyrail_nccl_abi::{Handle, Library, Net};
use serde::{Deserialize, Serialize};

use super::args::Contestant;
use crate::fault::{Cause, Fault};
use crate::orders::{Orders, reply};

/// First line to a rank: its part of the run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) spec: Spec,
    pub(crate) over: Contestant,
    /// Time limit of each order.
    pub(crate) timeout_ms: u64,
}

/// Every later line to a rank.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Handles of the other ranks' listeners.
    Connect {
        handles: Vec<Vec<u8>>,
    },
    Run {
        shape: Shape,
        warmup: u32,
        iterations: u32,
        seed: u64,
    },
    Check {
        shape: Shape,
        seed: u64,
    },
}

/// Answer to a line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    Listening {
        about: About,
        handles: Vec<Vec<u8>>,
    },
    Connected,
    Ran {
        seconds: f64,
    },
    Checked {
        wrong: u64,
    },
    /// `is_late`: other ranks did not do their part in time.
    Failed {
        fault: Fault,
        is_late: bool,
    },
}

/// The plugin that a rank has loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) name: String,
    /// Version of the interface.
    pub(crate) version: u32,
    pub(crate) devices: usize,
}

/// Obeys orders until standard input ends. Replies with errors.
pub(crate) fn work() -> Result<(), Fault> {
    let orders = Orders::follow()?;
    // Keep the rank after a failure: without it the other ranks fail too, and their errors are reported as well.
    let mut rank = None;
    let Err(error) = obey(&orders, &mut rank);
    let is_late = error.cause == Cause::Late;
    reply(&Reply::Failed { fault: error, is_late })?;
    // The process that reads the reply ends this one.
    orders.stay();
    Ok(())
}

fn obey(orders: &Orders, place: &mut Option<Rank>) -> Result<Infallible, Fault> {
    let task: Task = orders.next()?;
    let net = match &task.over {
        Contestant::Sockets { .. } => baseline(),
        Contestant::Plugin(name) => Net::open(&Library::open(name)?, None, None),
    };
    let net = net.map_err(RankError::from)?;
    let devices = net.devices().map_err(RankError::from)?;
    let about = About { name: net.name(), version: net.version(), devices };
    let (rank, handles) = Rank::listen(net, task.spec)?;
    let rank = place.insert(rank);
    let handles = handles.iter().map(|handle| handle.to_vec()).collect();
    reply(&Reply::Listening { about, handles })?;
    loop {
        let order: Order = orders.next()?;
        let until = Instant::now() + Duration::from_millis(task.timeout_ms);
        let done = match order {
            Order::Connect { handles } => {
                let handles: Vec<Handle> =
                    handles.iter().filter_map(|one| one[..].try_into().ok()).collect();
                rank.connect(&handles, until)?;
                Reply::Connected
            }
            Order::Run { shape, warmup, iterations, seed } => {
                let took = rank.run(shape, [warmup, iterations], seed, until)?;
                Reply::Ran { seconds: took.as_secs_f64() }
            }
            Order::Check { shape, seed } => {
                Reply::Checked { wrong: rank.check(shape, seed, until)? }
            }
        };
        reply(&done)?;
    }
}

#[cfg(test)]
mod tests {
    use polyrail_report::exit;

    use super::*;

    #[test]
    fn a_fault_reaches_the_starter_with_its_help() {
        let fault = Fault::new(exit::DATA, "no").with_help("look");
        let line = serde_json::to_string(&Reply::Failed { fault: fault.clone(), is_late: true });
        let reply: Reply = serde_json::from_str(&line.unwrap()).unwrap();
        let Reply::Failed { fault: got, is_late: true } = reply else { panic!("{reply:?}") };
        assert_eq!(got, fault);
    }
}
