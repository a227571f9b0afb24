//! What supervisor and workers tell each other: a line of JSON each, over pipes that lose nothing.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::SocketAddr;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// From the supervisor to a worker.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Order {
    /// This worker runs now; if it ran before, it does so anew.
    Peer {
        index: usize,
        generation: u32,
        metadata: Vec<u8>,
    },
    /// Another worker has something to say.
    Letter {
        from: usize,
        letter: Letter,
    },
    Go,
    /// Post no more, and say [`Word::Quiet`] when nothing is under way and all flows are up.
    Pause,
    /// End the registration of all windows that peers write to.
    Withdraw,
    /// Take memory until there is no more, and keep it until told to give it back.
    Hoard,
    GiveBack,
    /// A worker, or every one, was stopped or cut off, or is back again.
    Outage {
        of: Option<usize>,
    },
    /// Close the engine and end.
    Finish,
}

/// From a worker to the supervisor.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Word {
    Ready {
        metadata: Vec<u8>,
        addresses: Vec<SocketAddr>,
    },
    /// For the worker of this index, if it still is of this generation.
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

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Oracle {
    /// Bytes are not what they must be.
    Wrong,
    /// Something was reported done and is not there.
    Lost,
    /// An operation, or a process, takes longer than it may.
    Hung,
    /// An error that nothing explains, or a panic.
    Unexplained,
    /// A process needs more at the end than at the beginning.
    Grown,
}

/// From a worker to another.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Letter {
    /// Give me a fresh window to write to.
    WantWindow,
    /// Write to this window and read that region, which holds the text of a seed.
    Window { epoch: u64, window: Vec<u8>, exposed: Vec<u8>, exposed_seed: u64 },
    /// A write was reported done.
    Written(Mark),
    /// A write has failed, and the window's owner has confirmed that nothing of it happens there any more.
    GivenUp(Mark),
    /// A slot of your window is as good as new.
    Free { epoch: u64, slot: u32 },
    /// A message of this mark will come, or has.
    Expect { mark: Mark, deadline_ms: u64 },
    /// I have room for it now.
    Expecting { id: u64 },
    /// The send has ended, well or not.
    Sent { mark: Mark, well: bool },
    /// The receive has ended, too.
    Received { id: u64 },
}

/// What identifies an operation at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mark {
    /// The worker that posted it counts.
    pub(crate) id: u64,
    /// Of the window.
    pub(crate) epoch: u64,
    pub(crate) slot: u32,
    pub(crate) seed: u64,
    pub(crate) notify: bool,
    pub(crate) is_empty: bool,
}

/// What a worker has done since it started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) kinds: BTreeMap<String, Count>,
    /// Operations whose end somebody verified at the other end.
    pub(crate) verified: u64,
    /// Slots that were looked at again a while after their operation had failed.
    pub(crate) watched: u64,
    /// Notifications of writes that failed afterwards: they may come.
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
    /// By the name of the error.
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

/// Hears lines until the other side ends, or says what this program does not understand.
pub(crate) fn hear<T: DeserializeOwned>(from: impl BufRead) -> impl Iterator<Item = T> {
    from.lines().map_while(|line| serde_json::from_str(&line.ok()?).ok())
}

/// A violation may hold the dump of an engine's state; this is its first line.
pub(crate) fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
