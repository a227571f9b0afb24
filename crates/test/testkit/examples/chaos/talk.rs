//! Messages between supervisor and workers: one line of JSON each, over pipes that lose nothing.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Message from the supervisor to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// This worker runs now. If it ran before, it was restarted.
    Peer {
        index: usize,
        generation: u32,
        metadata: Vec<u8>,
    },
    /// A message from another worker.
    Letter {
        from: usize,
        letter: Letter,
    },
    Go,
    /// Post no more, and send [`Word::Quiet`] when no operations are in flight and all flows are up.
    Pause,
    /// End the registration of all windows that peers write to.
    Withdraw,
    /// Take memory until there is no more, and keep it until ordered to give it back.
    Hoard,
    GiveBack,
    /// A worker, or every one, was stopped or cut off, or is back again.
    Outage {
        of: Option<usize>,
    },
    /// Close the engine and end.
    Finish,
}

/// Message from a worker to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    Ready {
        metadata: Vec<u8>,
        addresses: Vec<SocketAddr>,
    },
    /// For the worker with this index, if it still has this generation.
    Letter {
        to: usize,
        generation: u32,
        letter: Letter,
    },
    Quiet,
    Tally(Tally),
    Violation {
        oracle: Oracle,
        what: String,
    },
    /// The engine has closed.
    Finished,
}

/// Conditions that must never occur.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Oracle {
    /// Bytes differ from the expected ones.
    Wrong,
    /// Data was reported as transferred and is missing.
    Lost,
    /// An operation, or a process, takes too long.
    Hung,
    /// An unexplained error, or a panic.
    Unexplained,
    /// A process uses more resources at the end than at the beginning.
    Grown,
}

/// Message from a worker to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Letter {
    /// Requests a fresh window to write to.
    WantWindow,
    /// Write to this window, and read this region, which holds the text of a seed.
    Window { epoch: u64, window: Vec<u8>, exposed: Vec<u8>, exposed_seed: u64 },
    /// A write was reported done.
    Written(Mark),
    /// A write has failed, and the window's owner has confirmed that it has no further effect there.
    GivenUp(Mark),
    /// A slot of your window is reset.
    Free { epoch: u64, slot: u32 },
    /// The message of this mark will come, or has come.
    Expect { mark: Mark, deadline_ms: u64 },
    /// There is room for it now.
    Expecting { id: u64 },
    /// The send has ended, successfully or not.
    Sent { mark: Mark, well: bool },
    /// The receive has ended, too.
    Received { id: u64 },
}

/// Identity of an operation at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// Number given by the worker that posted it.
    pub(crate) id: u64,
    /// Epoch of the window.
    pub(crate) epoch: u64,
    pub(crate) slot: u32,
    pub(crate) seed: u64,
    pub(crate) notify: bool,
    pub(crate) is_empty: bool,
}

/// Statistics of a worker since its start.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) kinds: BTreeMap<String, Count>,
    /// Operations whose end was verified at the other end.
    pub(crate) verified: u64,
    /// Slots that were checked again a while after their operation had failed.
    pub(crate) watched: u64,
    /// Notifications of writes that failed afterwards: they may arrive.
    pub(crate) early_notifications: u64,
    pub(crate) rejoins: u64,
    pub(crate) rescues: u64,
    pub(crate) callback_panics: u64,
    pub(crate) refused_connections: u64,
    pub(crate) refused_registrations: u64,
    pub(crate) longest_ms: u64,
    pub(crate) longest: String,
}

/// Operations of a kind.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Count {
    pub(crate) posted: u64,
    pub(crate) done: u64,
    pub(crate) bytes: u64,
    /// Failures by the name of the error.
    pub(crate) failed: BTreeMap<String, u64>,
}

impl Tally {
    pub(crate) fn add(&mut self, other: &Self) {
        for (kind, count) in &other.kinds {
            let sum = self.kinds.entry(kind.clone()).or_default();
            sum.posted += count.posted;
            sum.done += count.done;
            sum.bytes += count.bytes;
            for (name, times) in &count.failed {
                *sum.failed.entry(name.clone()).or_default() += times;
            }
        }
        self.verified += other.verified;
        self.watched += other.watched;
        self.early_notifications += other.early_notifications;
        self.rejoins += other.rejoins;
        self.rescues += other.rescues;
        self.callback_panics += other.callback_panics;
        self.refused_connections += other.refused_connections;
        self.refused_registrations += other.refused_registrations;
        if other.longest_ms > self.longest_ms {
            (self.longest_ms, self.longest) = (other.longest_ms, other.longest.clone());
        }
    }
}

pub(crate) fn say(out: &mut impl Write, what: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(what)?;
    line.push(b'\n');
    out.write_all(&line)?;
    out.flush()
}

/// Reads messages until the other side ends, or sends something invalid.
pub(crate) fn hear<T: DeserializeOwned>(from: impl BufRead) -> impl Iterator<Item = T> {
    from.lines().map_while(|line| serde_json::from_str(&line.ok()?).ok())
}

/// First line of a violation, which may contain the dump of an engine's state.
pub(crate) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
