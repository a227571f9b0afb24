//! A man in the middle between two engines, who sees all that crosses in the pieces that the sender wrote, and passes
//! on what he likes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use polyrail_proto::hello::{Kind, PREFIX_BYTES, Prefix};
use polyrail_secure::{RECORD_HEADER_BYTES, RecordHeader};

/// A piece of what crosses.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    /// Number of the connection, from 0.
    pub(crate) connection: usize,
    /// Whether it comes from the side that connected.
    pub(crate) up: bool,
    pub(crate) shape: Shape,
    /// Number among the parts of its shape in its direction of the connection, from 0.
    pub(crate) number: usize,
    pub(crate) bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// A message before the records, with its prefix.
    Message,
    /// A record up to its tag.
    Record,
    /// Payload behind a record.
    Raw,
}

type Hook = Mutex<Box<dyn FnMut(Part) -> Vec<u8> + Send>>;

pub(crate) struct Meddler {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    target: SocketAddr,
    hook: Hook,
    over: AtomicBool,
    /// Both ends of each connection.
    streams: Mutex<Vec<TcpStream>>,
}

impl Meddler {
    /// Makes a meddler on the way to `target`: the hook's result is passed on instead of a part.
    pub(crate) fn to(
        target: SocketAddr,
        hook: impl FnMut(Part) -> Vec<u8> + Send + 'static,
    ) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(target.ip(), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (hook, over, streams) =
            (Mutex::new(Box::new(hook) as Box<_>), AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { target, hook, over, streams });
        let thread = {
            let shared = shared.clone();
            std::thread::spawn(move || shared.run(&listener))
        };
        Self { address, shared, thread: Some(thread) }
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.streams.lock().unwrap().len() / 2
    }
}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for the next connection.
        drop(TcpStream::connect(self.address));
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

impl Shared {
    fn run(&self, listener: &TcpListener) {
        std::thread::scope(|scope| {
            for connection in 0.. {
                let Ok((client, _)) = listener.accept() else { break };
                if self.over.load(Ordering::Relaxed) {
                    break;
                }
                // The engine behind may be gone.
                let Ok(server) = TcpStream::connect(self.target) else { continue };
                for stream in [&client, &server] {
                    stream.set_nodelay(true).unwrap();
                    self.streams.lock().unwrap().push(stream.try_clone().unwrap());
                }
                let ends = (client.try_clone().unwrap(), server.try_clone().unwrap());
                scope.spawn(move || self.pass(connection, true, ends.0, ends.1));
                scope.spawn(move || self.pass(connection, false, server, client));
            }
            for stream in self.streams.lock().unwrap().iter() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }

    fn pass(&self, connection: usize, up: bool, mut from: TcpStream, mut to: TcpStream) {
        // Returns when either side hangs up.
        let _ = self.pass_all(connection, up, &mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
        let _ = from.shutdown(Shutdown::Read);
    }

    fn pass_all(
        &self,
        connection: usize,
        up: bool,
        from: &mut TcpStream,
        to: &mut TcpStream,
    ) -> io::Result<()> {
        let give = |to: &mut TcpStream, shape, number, bytes| {
            let part = Part { connection, up, shape, number, bytes };
            let mut hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner);
            let bytes = hook(part);
            drop(hook);
            to.write_all(&bytes)
        };
        for number in 0.. {
            let mut bytes = read(from, PREFIX_BYTES)?;
            let prefix = Prefix::decode(bytes.first_chunk().unwrap()).unwrap();
            bytes.extend(read(from, prefix.body_bytes())?);
            give(to, Shape::Message, number, bytes)?;
            // The last message of either side before the records.
            if matches!(prefix.kind(), Kind::Third | Kind::Reply) {
                break;
            }
        }
        let mut raws = 0;
        for number in 0.. {
            let mut bytes = read(from, RECORD_HEADER_BYTES)?;
            let header = RecordHeader::decode(bytes.first_chunk().unwrap()).unwrap();
            bytes.extend(read(from, header.bytes() - RECORD_HEADER_BYTES)?);
            give(to, Shape::Record, number, bytes)?;
            if header.raw > 0 {
                let bytes = read(from, header.raw as usize)?;
                give(to, Shape::Raw, raws, bytes)?;
                raws += 1;
            }
        }
        Ok(())
    }
}

fn read(from: &mut TcpStream, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
