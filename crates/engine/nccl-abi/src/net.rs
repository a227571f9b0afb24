//! Calls a plugin as NCCL does, whatever the version of its table.
//!
//! ```no_run
//! use std::sync::Arc;
//! use polyrail_nccl_abi::{HostMemory, Library, Net, Part};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let net = Net::open(&Library::open("/opt/libnccl-net-other.so")?, None, None)?;
//! let mut listener = net.listen(0)?;
//! let mut connector = net.connect(0, *listener.handle())?;
//! let (mut sender, mut receiver) = (None, None);
//! while sender.is_none() || receiver.is_none() {
//!     sender = sender.or(connector.poll()?);
//!     receiver = receiver.or(listener.accept()?);
//! }
//! let mut sender = sender.ok_or("not connected")?;
//! let memory = Arc::new(HostMemory::new(4096).ok_or("no memory")?);
//! let region = sender.register(memory)?;
//! let sent = sender.isend(Part { region, offset: 0, bytes: 100, tag: 0 })?;
//! # drop(sent);
//! # Ok(())
//! # }
//! ```
//!
//! Nothing here can contain a plugin that writes where it may not, ends the process, or never returns.

mod comm;
mod error;
mod log;
mod memory;
mod properties;
mod raw;
mod setup;

use std::ffi::c_int;
use std::sync::Arc;

pub use self::comm::{
    Comm, Part, Receives, RecvComm, Region, Request, SendComm, Sends, Side, Sizes,
};
pub use self::error::NetError;
pub use self::log::{LogSink, log_to};
pub use self::memory::{HostMemory, Memory, MemoryKind};
pub use self::properties::Properties;
use self::raw::Raw;
pub use self::raw::{Call, MAX_GROUP, Observer};
pub use self::setup::{Connector, Listener};
use crate::{HANDLE_BYTES, Library, Table};

/// The most devices that a plugin can have: NCCL's list of NICs has room for no more (`NCCL_TOPO_MAX_NODES` of 2.30).
const DEVICES_MAX: usize = 640;

/// What a listener gives, and who connects to it needs.
pub type Handle = [u8; HANDLE_BYTES];

/// A plugin that was initialized. Since version 11 it is finalized when this and all of its connections are
/// dropped.
#[derive(Clone)]
pub struct Net(Arc<Raw>);

impl Net {
    /// Initializes a plugin's table of this version, or its newest one, as NCCL would. Versions before 11
    /// are initialized once in a process, however often this is called.
    ///
    /// # Errors
    /// If the library has no such table, or the plugin refuses.
    pub fn open(
        library: &Library,
        version: Option<u32>,
        observer: Option<Observer>,
    ) -> Result<Self, NetError> {
        let newest = library.versions().last().copied().unwrap_or_default();
        let version = version.unwrap_or(newest);
        let missing = || NetError::NoVersion { version, has: library.versions().to_vec() };
        let table = library.table(version).ok_or_else(missing)?;
        Ok(Self(Arc::new(Raw::init(table, observer)?)))
    }

    /// Initializes a table that is part of the program.
    ///
    /// # Safety
    /// Its functions do what NCCL expects of them.
    ///
    /// # Errors
    /// If it refuses.
    pub unsafe fn from_table(table: Table) -> Result<Self, NetError> {
        Ok(Self(Arc::new(Raw::init(table, None)?)))
    }

    /// The plugin's own name.
    pub fn name(&self) -> String {
        self.0.table.name()
    }

    /// The version of the interface.
    pub fn version(&self) -> u32 {
        self.0.table.version()
    }

    /// How many devices it has.
    ///
    /// # Errors
    /// If the plugin refuses, or tells a number that can't be.
    pub fn devices(&self) -> Result<usize, NetError> {
        let count = self.0.devices()?;
        let possible = usize::try_from(count).ok().filter(|count| *count <= DEVICES_MAX);
        possible.ok_or_else(|| NetError::Answer {
            function: "devices",
            answer: format!("{count} devices; 0 to {DEVICES_MAX} are possible"),
        })
    }

    /// What it tells about a device, unchecked.
    ///
    /// # Errors
    /// If the plugin refuses.
    pub fn properties(&self, device: usize) -> Result<Properties, NetError> {
        self.0.properties(number(device)?)
    }

    /// Requests that a connection takes at a time: NCCL has no more, so plugins may fail at more.
    pub fn max_requests(&self) -> usize {
        self.0.max_requests()
    }

    /// Whether memory can be registered by DMA-BUF.
    pub fn has_dma_buf(&self) -> bool {
        self.0.has_dma_buf()
    }

    /// Listens for one connection.
    ///
    /// # Errors
    /// If the plugin refuses.
    pub fn listen(&self, device: usize) -> Result<Listener, NetError> {
        Listener::open(&self.0, number(device)?)
    }

    /// Begins to connect to a listener, which may be in another process.
    ///
    /// # Errors
    /// If there can't be such a device.
    pub fn connect(&self, device: usize, handle: Handle) -> Result<Connector, NetError> {
        Ok(Connector::new(&self.0, number(device)?, handle))
    }
}

impl std::fmt::Debug for Net {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Net({:?})", self.0.table)
    }
}

fn number(device: usize) -> Result<c_int, NetError> {
    c_int::try_from(device).map_err(|_| NetError::Misuse(format!("there is no device {device}")))
}
