//! A rank: a process that loads a plugin and does what the one that started it says, in lines of JSON.

use std::io::{self, BufRead};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_collective::{Rank, RankError, Shape, Spec, baseline};
use polyrail_nccl_abi::{Handle, Library, Net};
use polyrail_report::exit;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::args::Contestant;
use super::error::CollectiveError;
use crate::cmd::bench::Interrupt;
use crate::stdout::{keep, tell_starter};

/// The first line: what the rank is.
#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    pub(crate) spec: Spec,
    pub(crate) over: Contestant,
    /// For each order.
    pub(crate) timeout_ms: u64,
}

/// Each line after that.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// The handles of the others' listeners.
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

/// A line for each of these.
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
    /// `is_late`: others did not do their part in time.
    Failed {
        message: String,
        code: u8,
        is_late: bool,
    },
}

/// The plugin that was loaded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) name: String,
    /// Of the interface.
    pub(crate) version: u32,
    pub(crate) devices: usize,
}

/// Works until standard input ends. What goes wrong is a reply.
pub(crate) fn work() -> Result<(), CollectiveError> {
    Interrupt::ignore_signals()?;
    // Standard input ends with that process, too, but a call into a plugin might not.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| {
        CollectiveError::System { step: "asking for a signal", source: error.into() }
    })?;
    keep().map_err(|source| CollectiveError::System { step: "keeping standard output", source })?;
    let lines =
        lines().map_err(|source| CollectiveError::System { step: "starting a thread", source })?;
    // It stays when it has failed: its end would be a failure of the others, and theirs is told as well.
    let mut rank = None;
    if let Err(error) = obey(&lines, &mut rank) {
        let is_late = matches!(error, CollectiveError::Rank(RankError::Late { .. }));
        reply(&Reply::Failed { message: error.to_string(), code: error.exit_code(), is_late })?;
    }
    // Whoever reads that ends this.
    while lines.recv().is_ok() {}
    Ok(())
}

fn obey(lines: &Receiver<String>, place: &mut Option<Rank>) -> Result<(), CollectiveError> {
    let Ok(first) = lines.recv() else { return Ok(()) };
    let task: Task = parse(&first)?;
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
    while let Ok(line) = lines.recv() {
        let until = Instant::now() + Duration::from_millis(task.timeout_ms);
        let done = match parse(&line)? {
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
    Ok(())
}

/// The process ends with its standard input, whatever it does then.
fn lines() -> io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    let listen = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
        std::process::exit(i32::from(exit::INTERRUPTED));
    };
    thread::Builder::new().spawn(listen)?;
    Ok(receiver)
}

fn parse<T: for<'t> Deserialize<'t>>(line: &str) -> Result<T, CollectiveError> {
    serde_json::from_str(line)
        .map_err(|error| CollectiveError::System { step: "reading an order", source: error.into() })
}

fn reply(reply: &Reply) -> Result<(), CollectiveError> {
    let text = serde_json::to_string(reply).map_err(io::Error::from);
    let written = text.and_then(|text| tell_starter(&text));
    written.map_err(|source| CollectiveError::System { step: "writing a reply", source })
}
