//! Memory that two processes of one host have open.
//!
//! A [`ring`] holds chunks: the sender's device or CPU copies a chunk there, the chunk's header goes over the flow, and
//! the receiver copies the chunk from there. A [`stream`] replaces the bytes of a connection, and is agreed on by an
//! [`offer`] in the connection's hello. A [`trial`] with a page finds out whether rings are possible.

pub(crate) mod offer;
pub(crate) mod ring;
pub(crate) mod stream;
pub(crate) mod trial;

use polyrail_proto::wire::SharedPlace;
use polyrail_sys::{Badge, Memory, ProvenProcess, SharedMemory, SharedWord};

use crate::base::host_identity::random;

/// Memory of this process that peers may open as long as this value lives.
pub(crate) struct Shown(SharedMemory);

impl Shown {
    /// Allocates `bytes` zeroed bytes and all their pages: running out of pages later would kill the process.
    pub(crate) fn new(bytes: u64) -> Result<Self, String> {
        let shown = Self::to_pin(bytes)?;
        shown.0.populate().map_err(|error| failed(bytes, &error))?;
        Ok(shown)
    }

    /// Allocates `bytes` zeroed bytes for a device to pin, which takes their pages on the node near it.
    pub(crate) fn to_pin(bytes: u64) -> Result<Self, String> {
        let token = random().map_err(|error| format!("no random bits: {error}"))?;
        SharedMemory::create(bytes, token).map(Self).map_err(|error| failed(bytes, &error))
    }

    pub(crate) fn memory(&self) -> &Memory {
        self.0.memory()
    }

    /// Returns how a peer finds the memory. The peer checks this process's badge before it opens any memory.
    pub(crate) fn place(&self, badge: &Badge) -> SharedPlace {
        badge.make_room();
        SharedPlace {
            process: std::process::id(),
            descriptor: self.0.descriptor(),
            bytes: self.0.memory().len(),
            token: self.0.token(),
        }
    }
}

/// Opens memory that the peer shows; `peer` is the only process that the place may name.
pub(crate) fn open(peer: &ProvenProcess, place: SharedPlace) -> Result<Memory, String> {
    let SharedPlace { process, descriptor, bytes, token } = place;
    if process != peer.number() {
        let number = peer.number();
        return Err(format!(
            "memory of process {process} can't be opened: the peer is process {number} (in another \
             PID namespace, a container, it has another number)"
        ));
    }
    SharedMemory::open(peer, descriptor, bytes, token).map_err(|error| {
        format!("file descriptor {descriptor} of process {process} can't be opened: {error}")
    })
}

fn failed(bytes: u64, error: &dyn std::fmt::Display) -> String {
    format!("{bytes} bytes of shared memory can't be had: {error}")
}

fn word(memory: &Memory, at: u64) -> Result<SharedWord, String> {
    SharedWord::new(memory, at).map_err(|error| error.to_string())
}
