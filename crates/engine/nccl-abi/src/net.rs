//! Calls a plugin as NCCL does, with any version of its table.
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
//! None of this contains a plugin that writes to wrong memory, ends the process, or never returns.

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

/// Maximum number of devices of a plugin: the capacity of NCCL's list of NICs (`NCCL_TOPO_MAX_NODES` of 2.30).
const DEVICES_MAX: usize = 640;

/// Handle of a listener, needed to connect to it.
pub type Handle = [u8; HANDLE_BYTES];

/// An initialized plugin. Since version 11 it is finalized when this and all of its connections are dropped.
#[derive(Clone)]
pub struct Net(Arc<Raw>);

impl Net {
    /// Initializes the plugin's table of this version, or its newest one, like NCCL. Tables before version 11 are
    /// initialized once per process, however often this is called.
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
    /// The table's functions do what NCCL expects of them.
    ///
    /// # Errors
    /// If the table's `init` fails.
    pub unsafe fn from_table(table: Table) -> Result<Self, NetError> {
        Ok(Self(Arc::new(Raw::init(table, None)?)))
    }

    /// Name that the plugin reports.
    pub fn name(&self) -> String {
        self.0.table.name()
    }

    /// Version of the interface.
    pub fn version(&self) -> u32 {
        self.0.table.version()
    }

    /// Number of devices.
    ///
    /// # Errors
    /// If the call fails, or the number is impossible.
    pub fn devices(&self) -> Result<usize, NetError> {
        let count = self.0.devices()?;
        let possible = usize::try_from(count).ok().filter(|count| *count <= DEVICES_MAX);
        possible.ok_or_else(|| NetError::Answer {
            function: "devices",
            answer: format!("{count} devices; 0 to {DEVICES_MAX} are possible"),
        })
    }

    /// Properties of a device as the plugin reports them, unchecked.
    ///
    /// # Errors
    /// If the plugin refuses.
    pub fn properties(&self, device: usize) -> Result<Properties, NetError> {
        self.0.properties(number(device)?)
    }

    /// Maximum number of concurrent requests on a connection. NCCL posts no more, so plugins may fail with more.
    pub fn max_requests(&self) -> usize {
        self.0.max_requests()
    }

    /// True if memory can be registered by DMA-BUF.
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

    /// Starts to connect to a listener, which may be in another process.
    ///
    /// # Errors
    /// If the device number is impossible.
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
