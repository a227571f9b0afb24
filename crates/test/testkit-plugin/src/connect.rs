//! Connecting two ends. No call waits: hosts call again until the connection is established.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use polyrail_nccl_abi::HANDLE_BYTES;
use polyrail_sys::tcp::{FlowOptions, listen, start_connect};
use socket2::Socket;

use crate::error::CallError;
use crate::link::Link;
use crate::plugin::Plugin;

const MAGIC: [u8; 7] = *b"scatter";
/// Version of this plugin, in handles and hellos.
const VERSION: u8 = 1;
/// Maximum number of unauthenticated connections that a listener reads from at a time.
const WAITING_MAX: usize = 64;

/// Handle of a listener for those who connect: [`MAGIC`], version, family, address, port, token. The host passes the
/// same bytes in each call of `connect`, so the number of the attempt is stored behind them.
pub(crate) type Handle = [u8; HANDLE_BYTES];

const ADDRESS: usize = 9;
const PORT: usize = 25;
const TOKEN: usize = 32;
const ATTEMPT: usize = 40;

/// First bytes on a connection: magic, version, token.
type Hello = [u8; 16];

pub(crate) struct Listener {
    plugin: Arc<Plugin>,
    device: usize,
    socket: Socket,
    hello: Hello,
    waiting: Vec<(Socket, Hello, usize)>,
}

/// A connection that is being made.
pub(crate) struct Connecting {
    device: usize,
    address: SocketAddr,
    socket: Socket,
    hello: Hello,
}

impl Listener {
    /// Listens on a device. `number` is unique in this process.
    pub(crate) fn new(plugin: &Arc<Plugin>, device: usize) -> Result<(Self, Handle), CallError> {
        plugin.pool(device)?;
        let (_, address) = &plugin.settings.devices[device];
        let failed = |error: io::Error| CallError::system("listening", error);
        let socket = listen(SocketAddr::new(*address, 0)).map_err(failed)?;
        let bound = socket.local_addr().map_err(failed)?;
        let port = bound.as_socket().map_or(0, |bound| bound.port());
        let token = fastrand::u64(..);
        let mut handle = [0; HANDLE_BYTES];
        handle[..7].copy_from_slice(&MAGIC);
        handle[7] = plugin.settings.handle_version;
        match address {
            IpAddr::V4(address) => {
                handle[8] = 4;
                handle[ADDRESS..ADDRESS + 4].copy_from_slice(&address.octets());
            }
            IpAddr::V6(address) => {
                handle[8] = 6;
                handle[ADDRESS..ADDRESS + 16].copy_from_slice(&address.octets());
            }
        }
        handle[PORT..PORT + 2].copy_from_slice(&port.to_be_bytes());
        handle[TOKEN..TOKEN + 8].copy_from_slice(&token.to_be_bytes());
        let hello = hello(token);
        let (plugin, waiting) = (plugin.clone(), Vec::new());
        Ok((Self { plugin, device, socket, hello, waiting }, handle))
    }

    /// Accepts a connection whose other end has sent the right hello, if there is one.
    pub(crate) fn accept(&mut self) -> Result<Option<Link>, CallError> {
        if self.plugin.settings.never_connects {
            return Ok(None);
        }
        while self.waiting.len() < WAITING_MAX {
            match self.socket.accept() {
                Ok((socket, _)) => {
                    let set =
                        socket.set_nonblocking(true).and_then(|()| socket.set_tcp_nodelay(true));
                    set.map_err(|error| CallError::system("accepting", error))?;
                    self.waiting.push((socket, [0; 16], 0));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(CallError::system("accepting", error)),
            }
        }
        let mut complete = None;
        let mut waiting = Vec::new();
        for (mut socket, mut hello, mut got) in self.waiting.drain(..) {
            if complete.is_none() {
                match socket.read(&mut hello[got..]) {
                    Ok(0) => continue,
                    Ok(more) => got += more,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => continue,
                }
                if got == hello.len() {
                    if hello == self.hello {
                        complete = Some(socket);
                    }
                    continue;
                }
            }
            waiting.push((socket, hello, got));
        }
        self.waiting = waiting;
        Ok(complete.map(|socket| Link::new(self.plugin.clone(), self.device, socket)))
    }
}

impl Connecting {
    pub(crate) fn new(
        plugin: &Arc<Plugin>,
        device: usize,
        handle: &Handle,
    ) -> Result<Self, CallError> {
        if handle[..7] != MAGIC || handle[7] != VERSION {
            return Err(CallError::OtherVersion { version: handle[7], ours: VERSION });
        }
        let target: IpAddr = match handle[8] {
            4 => Ipv4Addr::from(part::<4>(handle, ADDRESS)).into(),
            _ => Ipv6Addr::from(part::<16>(handle, ADDRESS)).into(),
        };
        let address = SocketAddr::new(target, u16::from_be_bytes(part(handle, PORT)));
        plugin.stages()?;
        let (_, source) = &plugin.settings.devices[device];
        let socket = start_connect(*source, None, address, &FlowOptions::default());
        let socket = socket.and_then(|socket| socket.set_tcp_nodelay(true).map(|()| socket));
        let socket = socket.map_err(|error| failed(address, error))?;
        Ok(Self { device, address, socket, hello: hello(u64::from_be_bytes(part(handle, TOKEN))) })
    }

    /// Returns the attempt that the handle's host has begun before.
    pub(crate) fn attempt(handle: &Handle) -> Option<u64> {
        Some(u64::from_be_bytes(part(handle, ATTEMPT))).filter(|number| *number != 0)
    }

    /// Stores the number of the attempt in a handle; 0 for none.
    pub(crate) fn note(handle: &mut Handle, number: u64) {
        handle[ATTEMPT..ATTEMPT + 8].copy_from_slice(&number.to_be_bytes());
    }

    /// Sends the hello if the kernel has connected. Returns whether it did.
    pub(crate) fn advance(&mut self) -> Result<bool, CallError> {
        if let Some(error) = self.socket.take_error().unwrap_or(None) {
            return Err(failed(self.address, error));
        }
        match self.socket.write(&self.hello) {
            // These are the first bytes, for which there is always room.
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            Err(error) => Err(failed(self.address, error)),
        }
    }

    /// Returns the established connection.
    pub(crate) fn into_link(self, plugin: Arc<Plugin>) -> Link {
        Link::new(plugin, self.device, self.socket)
    }
}

fn failed(address: SocketAddr, why: io::Error) -> CallError {
    CallError::Connect { address: address.to_string(), why: why.to_string() }
}

fn hello(token: u64) -> Hello {
    let mut hello = [0; 16];
    hello[..7].copy_from_slice(&MAGIC);
    hello[7] = VERSION;
    hello[8..].copy_from_slice(&token.to_be_bytes());
    hello
}

fn part<const N: usize>(handle: &Handle, from: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&handle[from..from + N]);
    bytes
}
