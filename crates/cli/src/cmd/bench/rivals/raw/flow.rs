//! Connection of the baseline, and its memory.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memmap2::{Advice, MmapMut};
use polyrail_pattern::{POISON, Pattern};
use polyrail_report::Histogram;
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::mismatch;
use crate::cmd::bench::faults;
use crate::cmd::bench::talk::{RawSpec, Traffic};
use crate::fault::Fault;

/// Connection with its part of the working set.
pub(crate) struct Flow {
    pub(crate) index: usize,
    traffic: Traffic,
    /// Shared with the thread that may end a round.
    stream: Arc<TcpStream>,
    /// Memory to send from or to receive into. A ping-pong sends from the first half and receives into the second.
    area: MmapMut,
    is_server: bool,
    /// Greatest number of pieces that a round has received. Each round starts at the beginning of the area.
    landed_pieces: u64,
}

/// Expected flows that have not connected yet: each flow's number within its direction, and its direction.
pub(crate) type Awaited = HashSet<(usize, Traffic)>;

/// Listening socket whose connections have the right options from the start.
pub(crate) struct Listener {
    listener: TcpListener,
    /// Connections whose greeting has not arrived, and the time of their arrival.
    ungreeted: Vec<(TcpStream, Instant)>,
    strangers: u64,
}

impl Flow {
    pub(crate) fn connect(
        spec: &RawSpec,
        traffic: Traffic,
        index: usize,
        from: IpAddr,
        to: SocketAddr,
    ) -> Result<Self, Fault> {
        let open = || -> io::Result<Socket> {
            let socket = socket(spec, to)?;
            socket.bind(&SocketAddr::new(from, 0).into())?;
            Ok(socket)
        };
        let socket = open().map_err(|source| {
            Fault::system(format!("raw: opening a socket at {from} for {to}"), source)
        })?;
        let connect = || -> io::Result<TcpStream> {
            socket.connect_timeout(&to.into(), PATIENCE)?;
            let mut stream = TcpStream::from(socket);
            prepare(&stream)?;
            stream.write_all(&greeting(spec, traffic, index))?;
            Ok(stream)
        };
        let failed = |source| faults::sockets(&format!("raw: connecting to {to}"), &source);
        Self::new(spec, traffic, index, connect().map_err(failed)?, false)
    }

    /// Runs one round of the measuring end. Returns the one-way times of a ping-pong.
    pub(crate) fn client_round(&mut self, piece: u64, pieces: u64) -> io::Result<Histogram> {
        let mut times = Histogram::default();
        let stream = self.stream();
        let mut stream = &*stream;
        match self.traffic {
            Traffic::ToServer => {
                self.send(piece, pieces)?;
                stream.read_exact(&mut [0])?;
            }
            Traffic::ToClient => {
                stream.write_all(&[0])?;
                self.receive(piece, pieces)?;
            }
            Traffic::PingPong => {
                let (out, into) = self.area.split_at_mut(piece as usize);
                for _ in 0..pieces {
                    let hit = Instant::now();
                    stream.write_all(out)?;
                    stream.read_exact(into)?;
                    times.record(hit.elapsed().as_nanos() as u64 / 2);
                }
                self.landed_pieces = self.landed_pieces.max(pieces);
            }
        }
        Ok(times)
    }

    /// Runs one round of the serving end.
    pub(crate) fn server_round(&mut self, piece: u64, pieces: u64) -> io::Result<()> {
        let stream = self.stream();
        let mut stream = &*stream;
        match self.traffic {
            Traffic::ToServer => {
                self.receive(piece, pieces)?;
                stream.write_all(&[0])
            }
            Traffic::ToClient => {
                stream.read_exact(&mut [0])?;
                self.send(piece, pieces)
            }
            Traffic::PingPong => {
                let (out, into) = self.area.split_at_mut(piece as usize);
                for _ in 0..pieces {
                    stream.read_exact(into)?;
                    stream.write_all(out)?;
                }
                self.landed_pieces = self.landed_pieces.max(pieces);
                Ok(())
            }
        }
    }

    /// Returns the stream, with which another thread can end a round in progress.
    pub(crate) fn stream(&self) -> Arc<TcpStream> {
        Arc::clone(&self.stream)
    }

    /// Compares the received data with the data that the other end sent.
    pub(crate) fn verify(&self, spec: &RawSpec) -> Result<(), Fault> {
        let from_server = !self.is_server;
        let into = if self.traffic == Traffic::PingPong {
            &self.area[spec.piece as usize..]
        } else if self.receives() {
            &self.area[..]
        } else {
            return Ok(());
        };
        let filled = self.landed_pieces.saturating_mul(spec.piece).min(into.len() as u64);
        let pattern = outgoing(spec, self.index, from_server);
        match pattern.check(0, &into[..filled as usize]) {
            Ok(()) => Ok(()),
            Err(wrong) => Err(mismatch(wrong.at as u64, spec.piece, wrong.expected, wrong.got)),
        }
    }

    /// Returns the congestion control that the connection actually uses.
    pub(crate) fn congestion(&self) -> Result<String, Fault> {
        let name = SockRef::from(&*self.stream).tcp_congestion();
        let name = name.map_err(|source| Fault::system("raw: TCP_CONGESTION", source))?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    fn new(
        spec: &RawSpec,
        traffic: Traffic,
        index: usize,
        stream: TcpStream,
        is_server: bool,
    ) -> Result<Self, Fault> {
        let bytes = spec.flow_bytes();
        let area = memory(bytes).map_err(|source| faults::mapping(bytes, source))?;
        let mut flow =
            Self { index, traffic, stream: stream.into(), area, is_server, landed_pieces: 0 };
        let pattern = outgoing(spec, index, is_server);
        if traffic == Traffic::PingPong {
            let (out, into) = flow.area.split_at_mut(spec.piece as usize);
            pattern.fill(0, out);
            into.fill(POISON);
        } else if flow.receives() {
            flow.area.fill(POISON);
        } else {
            pattern.fill(0, &mut flow.area);
        }
        Ok(flow)
    }

    fn receives(&self) -> bool {
        (self.traffic == Traffic::ToServer) == self.is_server
    }

    fn send(&mut self, piece: u64, pieces: u64) -> io::Result<()> {
        let mut offset = 0;
        for _ in 0..pieces {
            let end = offset + piece as usize;
            (&*self.stream).write_all(&self.area[offset..end])?;
            offset = if end == self.area.len() { 0 } else { end };
        }
        Ok(())
    }

    fn receive(&mut self, piece: u64, pieces: u64) -> io::Result<()> {
        let mut offset = 0;
        for _ in 0..pieces {
            let end = offset + piece as usize;
            (&*self.stream).read_exact(&mut self.area[offset..end])?;
            offset = if end == self.area.len() { 0 } else { end };
        }
        self.landed_pieces = self.landed_pieces.max(pieces);
        Ok(())
    }
}

#[cfg(test)]
impl Flow {
    pub(crate) fn landed_pieces(&self) -> u64 {
        self.landed_pieces
    }

    pub(crate) fn area_mut(&mut self) -> &mut [u8] {
        &mut self.area
    }
}

impl Listener {
    pub(crate) fn open(spec: &RawSpec, address: IpAddr) -> Result<Self, Fault> {
        let address = SocketAddr::new(address, 0);
        let failed = |source| Fault::system(format!("raw: listening on {address}"), source);
        let listen = || -> io::Result<TcpListener> {
            let socket = socket(spec, address)?;
            socket.bind(&address.into())?;
            // Simultaneous connections must not be refused.
            socket.listen(4096)?;
            socket.set_nonblocking(true)?;
            Ok(socket.into())
        };
        Ok(Self { listener: listen().map_err(failed)?, ungreeted: Vec::new(), strangers: 0 })
    }

    pub(crate) fn address(&self) -> Result<SocketAddr, Fault> {
        self.listener.local_addr().map_err(|source| Fault::system("raw: address", source))
    }

    /// Returns the next connection that greets as one of the `awaited` flows, if any, and removes that flow from the
    /// set. Other connections are dropped once they send something else or end. A silent connection blocks nothing.
    pub(crate) fn accept(
        &mut self,
        spec: &RawSpec,
        awaited: &mut Awaited,
    ) -> Result<Option<Flow>, Fault> {
        let failed = |source| faults::sockets(ACCEPTING, &source);
        loop {
            if let Some(flow) = self.greeted(spec, awaited)? {
                return Ok(Some(flow));
            }
            if self.ungreeted.len() >= UNGREETED_MAX {
                // The measuring end greets at once. Meanwhile the kernel keeps further connections.
                if self.ungreeted[0].1.elapsed() < GREETS_WITHIN {
                    return Ok(None);
                }
                self.drop_stranger(0);
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let set = stream.set_nonblocking(true);
                    set.map_err(|source| Fault::system(ACCEPTING, source))?;
                    self.ungreeted.push((stream, Instant::now()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                // Foreign connections hold all descriptors that this process may open.
                Err(error)
                    if matches!(
                        Errno::from_io_error(&error),
                        Some(Errno::MFILE | Errno::NFILE)
                    ) =>
                {
                    self.strangers += self.ungreeted.len() as u64;
                    self.ungreeted.clear();
                    return Ok(None);
                }
                // The connection ended before it was accepted.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }

    /// Returns a connection whose greeting has arrived, if any.
    fn greeted(&mut self, spec: &RawSpec, awaited: &mut Awaited) -> Result<Option<Flow>, Fault> {
        let mut at = 0;
        while let Some((stream, _)) = self.ungreeted.get(at) {
            let mut bytes = [0; GREETING];
            match stream.peek(&mut bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => at += 1,
                Ok(got) if (1..GREETING).contains(&got) => at += 1,
                Ok(GREETING) => {
                    // Unexpected flows would take memory that no check has counted.
                    let flow = understand(spec, bytes).filter(|flow| awaited.remove(flow));
                    let Some((index, traffic)) = flow else {
                        self.drop_stranger(at);
                        continue;
                    };
                    let (mut stream, _) = self.ungreeted.remove(at);
                    let greeted = stream
                        .set_nonblocking(false)
                        .and_then(|()| prepare(&stream))
                        .and_then(|()| stream.read_exact(&mut bytes));
                    greeted.map_err(|source| faults::sockets(ACCEPTING, &source))?;
                    return Flow::new(spec, traffic, index, stream, true).map(Some);
                }
                _ => self.drop_stranger(at),
            }
        }
        Ok(None)
    }

    fn drop_stranger(&mut self, at: usize) {
        self.strangers += 1;
        self.ungreeted.remove(at);
    }

    /// Returns the number of connections that were dropped because they did not greet as the measuring end does.
    pub(crate) fn strangers(&self) -> u64 {
        self.strangers
    }
}

/// Returns the data of a flow. Each direction and index has different data.
fn outgoing(spec: &RawSpec, index: usize, from_server: bool) -> Pattern {
    Pattern::new(spec.seed.wrapping_add(index as u64 * 2 + u64::from(from_server)))
}

/// Maps memory like that of the engine's regions: with huge pages if the system provides them.
fn memory(bytes: u64) -> io::Result<MmapMut> {
    let len = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let memory = MmapMut::map_anon(len)?;
    // A hint: everything works without huge pages.
    let _ = memory.advise(Advice::HugePage);
    Ok(memory)
}

/// Opens a socket with the spec's options. Accepted connections inherit the options of their listening socket.
fn socket(spec: &RawSpec, to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    if !spec.congestion.is_empty() {
        socket.set_tcp_congestion(spec.congestion.as_bytes())?;
    }
    if spec.send_buffer > 0 {
        socket.set_send_buffer_size(spec.send_buffer as usize)?;
    }
    if spec.recv_buffer > 0 {
        socket.set_recv_buffer_size(spec.recv_buffer as usize)?;
    }
    Ok(socket)
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // The deadline matters because a machine that failed never answers.
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))
}

const ACCEPTING: &str = "raw: accepting a connection";
/// Length of the greeting: kind of traffic, index of the flow, and the seed of the measurement, which only its two ends
/// know.
const GREETING: usize = 13;
/// Maximum number of connections without a greeting that are kept.
const UNGREETED_MAX: usize = 256;
/// Time in which a connection of the measuring end greets, unless its host is busy.
const GREETS_WITHIN: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(30);

fn greeting(spec: &RawSpec, traffic: Traffic, index: usize) -> [u8; GREETING] {
    let kind = match traffic {
        Traffic::ToServer => 1,
        Traffic::ToClient => 2,
        Traffic::PingPong => 3,
    };
    let mut bytes = [kind; GREETING];
    bytes[1..5].copy_from_slice(&(index as u32).to_le_bytes());
    bytes[5..].copy_from_slice(&spec.seed.to_le_bytes());
    bytes
}

fn understand(spec: &RawSpec, bytes: [u8; GREETING]) -> Option<(usize, Traffic)> {
    let traffic = match bytes[0] {
        1 => Traffic::ToServer,
        2 => Traffic::ToClient,
        3 => Traffic::PingPong,
        _ => return None,
    };
    let index = u32::from_le_bytes(*bytes[1..].first_chunk()?) as usize;
    (greeting(spec, traffic, index) == bytes).then_some((index, traffic))
}
