//! An unauthenticated client that disturbs every listener: garbage, silence, halves of greetings, hundreds of
//! connections. It knows only the first bytes of the protocol.

use std::io::{Read, Write, stdin};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use polyrail_testkit::Rng;
use serde::{Deserialize, Serialize};

use crate::talk::hear;

/// First bytes of every greeting of the protocol.
const MAGIC: &[u8] = b"PLYR";
/// Number of threads. Each disturbs one listener at a time.
const THREADS: u64 = 6;
const PATIENCE: Duration = Duration::from_millis(500);
/// Connections of a flood to each listener.
const FLOOD: usize = 100;

/// Message from the supervisor.
#[derive(Serialize, Deserialize)]
pub(crate) enum Hint {
    Listeners(Vec<SocketAddr>),
    /// Opens connections to all listeners at once.
    Flood,
}

type Listeners = Arc<Mutex<Vec<SocketAddr>>>;

/// Runs until standard input ends.
pub(crate) fn run(seed: u64) -> ExitCode {
    let listeners = Listeners::default();
    for thread in 0..THREADS {
        let (listeners, mut rng) = (listeners.clone(), Rng::new(seed ^ thread));
        thread::spawn(move || {
            loop {
                let known = listeners.lock().map(|known| known.clone()).unwrap_or_default();
                match known.is_empty() {
                    true => thread::sleep(Duration::from_millis(50)),
                    false => bother(known[rng.index(known.len())], &mut rng),
                }
            }
        });
    }
    for hint in hear(stdin().lock()) {
        match hint {
            Hint::Listeners(now) => {
                if let Ok(mut known) = listeners.lock() {
                    *known = now;
                }
            }
            Hint::Flood => {
                let known = listeners.lock().map(|known| known.clone()).unwrap_or_default();
                thread::spawn(move || known.into_iter().for_each(flood));
            }
        }
    }
    ExitCode::SUCCESS
}

/// Makes one connection. All errors are ignored.
fn bother(address: SocketAddr, rng: &mut Rng) {
    let Ok(mut stream) = connect(address) else {
        return thread::sleep(Duration::from_millis(rng.between(5, 50)));
    };
    let mut bytes = vec![0; rng.size(5000)];
    rng.fill(&mut bytes);
    let _ = match rng.below(7) {
        // Garbage.
        0 => stream.write_all(&bytes),
        // Garbage that begins like a greeting.
        1 => stream.write_all(MAGIC).and_then(|()| stream.write_all(&bytes)),
        // A part of a greeting's beginning, then silence until the engine's timeout.
        2 => stream
            .write_all(&MAGIC[..rng.index(MAGIC.len() + 1)])
            .and_then(|()| listen(&mut stream)),
        // Silence.
        3 => listen(&mut stream),
        // Half open: no more bytes will come, and the connection stays.
        4 => stream.shutdown(Shutdown::Write).and_then(|()| listen(&mut stream)),
        // Byte by byte.
        5 => drip(&mut stream, &bytes[..bytes.len().min(40)]),
        // All at once, then a reset: what the engine sent is not read.
        _ => stream.write_all(&bytes).and_then(|()| reset(&stream)),
    };
}

fn connect(address: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(10 * PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Reads until the other side closes.
fn listen(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut bytes = [0; 256];
    while stream.read(&mut bytes)? > 0 {}
    Ok(())
}

fn drip(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(MAGIC)?;
    for byte in bytes {
        stream.write_all(&[*byte])?;
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

fn reset(stream: &TcpStream) -> std::io::Result<()> {
    socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO))
}

/// Opens many connections at once, held for a moment.
fn flood(address: SocketAddr) {
    let held: Vec<TcpStream> = (0..FLOOD).map_while(|_| connect(address).ok()).collect();
    thread::sleep(PATIENCE);
    held.iter().for_each(|stream| drop(reset(stream)));
}
