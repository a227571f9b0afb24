//! Messages between the two ends: questions and answers.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use polyrail_report::{Host, MemoryPlace, PeerSample, PlacedThread, Setting, Tool};
use serde::{Deserialize, Serialize};

use super::load::{DownRail, Load, RailDelta};
use super::raw_spec::RawSpec;
use crate::cmd::bench::options::{Change, Layout, Op, Verify};
use crate::fault::{Fault, Mismatch};

/// Version of the messages, raised with every change. Ends with different versions refuse each other.
pub(crate) const CONTROL_VERSION: u32 = 10;

/// Questions of the measuring end to the serving end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub(crate) enum Ask {
    Hello {
        control_version: u32,
    },
    /// Sent while waiting for a long answer, to notice a dead peer. Gets no answer.
    StillThere,
    /// Open another engine, on this rail alone, for the same client.
    OpenRail {
        rail: String,
    },
    /// Open another engine, like the first except for the number of channels, for the same client.
    OpenOther {
        channels: Option<u32>,
    },
    /// Open another engine, like the first except for a change, for the same client.
    OpenChanged {
        change: Change,
    },
    SetUp(SetUp),
    Poison,
    /// Take part in a sample of this many transfers.
    Begin {
        transfers: u64,
    },
    End,
    Verify {
        mode: Verify,
        slots: u64,
        round: u64,
    },
    TearDown,
    RawOpen(RawSpec),
    /// All connections are made; accept them.
    RawAccept,
    RawBegin {
        pieces: u64,
    },
    RawEnd,
    RawVerify,
    RawClose,
    /// Measure copies of memory with the last sample's use of memory.
    Copies,
    /// Report the CPUs of the progress threads.
    Threads,
    /// End the service. The message has the client's rails that carried nothing, and the server's rails to which the
    /// client sent nothing.
    Bye {
        down: Vec<DownRail>,
        #[serde(default)]
        unsent: Vec<DownRail>,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SetUp {
    pub(crate) op: Op,
    pub(crate) layout: Layout,
    pub(crate) depth: u64,
    /// Number of threads that post, each its part of the depth.
    #[serde(default = "one")]
    pub(crate) posters: u64,
    pub(crate) bidir: bool,
    pub(crate) latency: bool,
    /// Seed of the data that the asking end sends. The other end's seed is one greater.
    pub(crate) seed: u64,
    /// Number of the asking end's [`process`].
    pub(crate) process: u64,
    /// Sample CPUs and threads one by one.
    #[serde(default)]
    pub(crate) sample: bool,
    pub(crate) regions: Regions,
}

fn one() -> u64 {
    1
}

impl SetUp {
    /// Whether both set-ups can use the same memory: only the depth may differ.
    pub(crate) fn has_memory_of(&self, other: &Self) -> bool {
        *self == Self { depth: self.depth, ..other.clone() }
    }
}

/// Descriptions of regions, in hexadecimal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Regions {
    pub(crate) source: Option<String>,
    pub(crate) dest: Option<String>,
}

/// Answers of the serving end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub(crate) enum Answer {
    /// Sent if the client asks nothing for long, so that the server notices a dead client. Gets no answer.
    StillHere,
    Hello(Box<About>),
    Opened {
        address: SocketAddr,
        /// Key that lets the client in.
        invitation: String,
    },
    Ready(Regions),
    Done,
    Counted(Box<Counted>),
    Verified {
        bytes: u64,
    },
    Mismatch(Mismatch),
    RawReady {
        /// Addresses by rail.
        addresses: Vec<(String, SocketAddr)>,
    },
    RawAccepted {
        congestion: String,
    },
    RawCounted {
        cpu_seconds: f64,
    },
    /// Rate in GB/s of payload; `None` if other programs had nearly all of the CPUs.
    Copied {
        gb_per_s: Option<f64>,
    },
    Threads {
        threads: Vec<PlacedThread>,
    },
    Failed(Fault),
}

/// Description that the serving end gives of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) control_version: u32,
    pub(crate) tool: Tool,
    pub(crate) host: Host,
    pub(crate) config: BTreeMap<String, Setting>,
    pub(crate) memory: MemoryPlace,
    /// Name of each rail, and its rate in GB/s; `None` unless the rate of each is known.
    pub(crate) line: Option<Vec<(String, f64)>>,
}

/// Counters of the serving end for a sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) sample: PeerSample,
    /// Load, for the verdict.
    pub(crate) load: Load,
    /// Counters by rail.
    pub(crate) rails: Vec<RailDelta>,
    /// Number of times that only a watchdog wake-up of the end's engine continued transfers.
    pub(crate) rescues: Option<u64>,
}

/// End of the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

impl SetUp {
    /// Whether `end` sends data.
    pub(crate) fn sends(&self, end: End) -> bool {
        let from_client = self.op != Op::Read;
        self.both_ways() || from_client == (end == End::Client)
    }

    /// Whether `end` receives data.
    pub(crate) fn receives(&self, end: End) -> bool {
        self.both_ways() || !self.sends(end)
    }

    fn both_ways(&self) -> bool {
        self.bidir || self.latency
    }
}

impl Ask {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Hello { .. } => "hello",
            Self::StillThere => "still_there",
            Self::OpenRail { .. } => "open_rail",
            Self::OpenOther { .. } => "open_other",
            Self::OpenChanged { .. } => "open_changed",
            Self::SetUp(_) => "set_up",
            Self::Poison => "poison",
            Self::Begin { .. } => "begin",
            Self::End => "end",
            Self::Verify { .. } => "verify",
            Self::TearDown => "tear_down",
            Self::RawOpen(_) => "raw_open",
            Self::RawAccept => "raw_accept",
            Self::RawBegin { .. } => "raw_begin",
            Self::RawEnd => "raw_end",
            Self::RawVerify => "raw_verify",
            Self::RawClose => "raw_close",
            Self::Copies => "copies",
            Self::Threads => "threads",
            Self::Bye { .. } => "bye",
        }
    }
}

/// Returns a number that no other process has, not even one in another container of this machine.
pub(crate) fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 ^ u64::from(std::process::id()) << 40
    })
}
