//! Options whose values are one of several words.

use serde::{Deserialize, Serialize};

use crate::fault::Fault;

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Op {
    /// This side writes into the other's memory.
    Write,
    /// This side reads the other's memory.
    Read,
    /// This side sends, the other receives by tag.
    Send,
}

/// What the engine is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Against {
    /// Plain blocking sockets with the same flows, chunks, congestion control and buffers.
    Raw,
    /// The engine on each rail alone.
    Alone,
    /// The engine with one contiguous piece in place of --segments.
    Contiguous,
    /// The CUDA driver's own copy, in this process.
    Cuda,
    /// NCCL's send and receive between two processes of its own.
    Nccl,
}

/// How much of the destination is compared with what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verify {
    /// Every byte, and every byte between the segments that must not have changed.
    Full,
    /// 64 blocks of 4 KiB, elsewhere each time.
    Sample,
    /// Nothing.
    Off,
}

/// What to do about the CPUs of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlaceThreads {
    /// By the topology, if the settings say nothing and there are cores enough.
    Auto,
    /// Nothing: only what the settings say.
    None,
}

/// A choice beside explaining the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnlyPath {
    /// Nothing: set up the transfers, and move nothing.
    Only,
}

impl Op {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
            Self::Send => "send",
        }
    }
}

impl Against {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Alone => "alone",
            Self::Contiguous => "contiguous",
            Self::Cuda => "cuda",
            Self::Nccl => "nccl",
        }
    }
}

impl Verify {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Sample => "sample",
            Self::Off => "off",
        }
    }
}

/// Returns the error of `--against cuda` and `--against nccl` without the devices that they need.
pub(crate) fn not_devices(value: &str) -> Fault {
    let reason = "moves memory between devices of this machine";
    Fault::usage("--against", value, reason, "with --mem cuda:N and --peer-mem cuda:N")
}
