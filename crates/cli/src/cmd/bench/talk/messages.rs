//! What the two ends say to each other: questions and answers.

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

/// Raised whenever a message changes; ends of different versions refuse each other.
pub(crate) const CONTROL_VERSION: u32 = 9;

/// What the measuring end asks the serving end.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "ask")]
pub(crate) enum Ask {
    Hello {
        control_version: u32,
    },
    /// Sent while waiting for a long answer, to notice a peer that died. Gets no answer.
    StillThere,
    /// Make another engine, on this rail alone, for the same client.
    OpenRail {
        rail: String,
    },
    /// Make another engine, like the first but for the number of channels, for the same client.
    OpenOther {
        channels: Option<u32>,
    },
    /// Make another engine, like the first but for a change, for the same client.
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
    /// Where the progress threads run.
    Threads,
    /// The end; with the client's rails that carried nothing, and those of the server to which it sent nothing.
    Bye {
        down: Vec<DownRail>,
        #[serde(default)]
        unsent: Vec<DownRail>,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SetUp {
    pub(crate) op: Op,
    pub(crate) layout: Layout,
    pub(crate) depth: u64,
    /// Threads that post what is sent, each its part of the depth.
    #[serde(default = "one")]
    pub(crate) posters: u64,
    pub(crate) bidir: bool,
    pub(crate) latency: bool,
    /// Of the data that the asking end sends; the other end's is one more.
    pub(crate) seed: u64,
    /// Of the asking end, as [`process`] gives it.
    pub(crate) process: u64,
    /// Look at CPUs and threads one by one.
    #[serde(default)]
    pub(crate) sample: bool,
    pub(crate) regions: Regions,
}

fn one() -> u64 {
    1
}

/// Descriptions of regions, in hexadecimal.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Regions {
    pub(crate) source: Option<String>,
    pub(crate) dest: Option<String>,
}

/// What the serving end answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub(crate) enum Answer {
    /// Sent if the client asks nothing for long, so that the server notices a client that died. It gets no
    /// answer.
    StillHere,
    Hello(Box<About>),
    Opened {
        address: SocketAddr,
        /// Lets the client in.
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
        /// By rail.
        addresses: Vec<(String, SocketAddr)>,
    },
    RawAccepted {
        congestion: String,
    },
    RawCounted {
        cpu_seconds: f64,
    },
    Threads {
        threads: Vec<PlacedThread>,
    },
    Failed(Fault),
}

/// What the serving end says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) control_version: u32,
    pub(crate) tool: Tool,
    pub(crate) host: Host,
    pub(crate) config: BTreeMap<String, Setting>,
    pub(crate) memory: MemoryPlace,
    /// Each rail's name and rate, in GB/s; `None` where that is not known of each.
    pub(crate) line: Option<Vec<(String, f64)>>,
}

/// What the serving end saw of a sample.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Counted {
    pub(crate) sample: PeerSample,
    /// The rest of what the verdict needs.
    pub(crate) load: Load,
    /// By rail, what it sent and how that went.
    pub(crate) rails: Vec<RailDelta>,
    /// How often only its engine's periodic look brought transfers on.
    pub(crate) rescues: Option<u64>,
}

/// Which end of the conversation this is.
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
            Self::Threads => "threads",
            Self::Bye { .. } => "bye",
        }
    }
}

/// A number that no other process has, not even one in another container of this machine.
pub(crate) fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS.get_or_init(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_nanos() as u64 ^ u64::from(std::process::id()) << 40
    })
}
