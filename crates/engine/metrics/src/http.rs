//! One request on one connection, step by step and without waiting.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use polyrail_sys::peer_credentials;
use rustix::event::PollFlags;
use rustix::process::geteuid;

use crate::exposition::Format;

/// Maximum length of a request's head, in bytes.
pub(crate) const HEAD_BYTES: usize = 8 << 10;
const MOST_HEADERS: usize = 64;
/// Time for the head of a request to arrive.
const HEAD_DEADLINE: Duration = Duration::from_secs(2);
/// Time for a whole connection.
const DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of bytes to read from a client that goes on sending after its answer.
const MOST_IGNORED: usize = 64 << 10;
/// The user that may read everything.
pub(crate) const ROOT_USER: u32 = 0;

/// A listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
    /// An abstract name, without a file whose mode would decide who may connect.
    Abstract(UnixListener),
}

#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The client at the other end, as far as the kernel reports it. Connections of one client share its places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// An address. For IPv6 it is the network, in which a host may take any address.
    Host(IpAddr),
    /// A user of this host.
    User(u32),
}

/// A connection with its request.
pub(crate) struct Connection {
    stream: Stream,
    pub(crate) client: Client,
    stage: Stage,
    pub(crate) since: Instant,
}

enum Stage {
    Reading(Vec<u8>),
    Writing {
        head: Vec<u8>,
        body: Arc<[u8]>,
        done: usize,
    },
    /// Everything is written, and the peer closes. If this end closed first, a peer that still sends and has not read
    /// the answer would lose it.
    Closing {
        ignored: usize,
    },
}

/// Result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The connection waits for the peer.
    Waits,
    /// The connection is over.
    Over,
}

/// The requested page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Metrics(Format),
    /// The page that points to the metrics.
    Root,
}

impl Listener {
    pub(crate) fn accept(&self) -> io::Result<Connection> {
        let (stream, client) = match self {
            Self::Tcp(listener) => {
                let (stream, address) = listener.accept()?;
                (Stream::Tcp(stream), Client::at(address.ip()))
            }
            Self::Unix(listener) => {
                let stream = listener.accept()?.0;
                let (_, user) = peer_credentials(&stream)?;
                (Stream::Unix(stream), Client::User(user))
            }
            Self::Abstract(listener) => {
                let stream = listener.accept()?.0;
                let (_, user) = peer_credentials(&stream)?;
                if user != geteuid().as_raw() && user != ROOT_USER {
                    return Err(ErrorKind::ConnectionAborted.into());
                }
                (Stream::Unix(stream), Client::User(user))
            }
        };
        match &stream {
            Stream::Tcp(stream) => stream.set_nonblocking(true)?,
            Stream::Unix(stream) => stream.set_nonblocking(true)?,
        }
        Ok(Connection { stream, client, stage: Stage::Reading(Vec::new()), since: Instant::now() })
    }
}

impl Client {
    fn at(address: IpAddr) -> Self {
        Self::Host(match address.to_canonical() {
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            ip => ip,
        })
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) | Self::Abstract(listener) => listener.as_fd(),
        }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.stream {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Connection {
    /// Time at which the server drops it.
    pub(crate) fn deadline(&self) -> Instant {
        self.since
            + match self.stage {
                Stage::Reading(_) => HEAD_DEADLINE,
                Stage::Writing { .. } | Stage::Closing { .. } => DEADLINE,
            }
    }

    /// Events to wait for.
    pub(crate) fn awaits(&self) -> PollFlags {
        match self.stage {
            Stage::Reading(_) | Stage::Closing { .. } => PollFlags::IN,
            Stage::Writing { .. } => PollFlags::OUT,
        }
    }

    /// Order in which connections give their places to a newcomer: first those that have their answer, last those that
    /// wait for it.
    pub(crate) fn rank(&self) -> u8 {
        match self.stage {
            Stage::Closing { .. } => 0,
            Stage::Reading(_) => 1,
            Stage::Writing { .. } => 2,
        }
    }

    /// Continues as far as it can without waiting. `body` makes the requested page; `None`: that failed.
    pub(crate) fn step(&mut self, body: &mut dyn FnMut(Asked) -> Option<Arc<[u8]>>) -> Step {
        loop {
            let result = match &mut self.stage {
                Stage::Reading(read) => receive(&mut self.stream, read).map(|whole| {
                    whole.map(|answer| {
                        let (head, body) = answer.write(body);
                        Stage::Writing { head, body, done: 0 }
                    })
                }),
                Stage::Writing { head, body, done } => send(&mut self.stream, head, body, done)
                    .map(|()| {
                        let _ = self.stream.end();
                        Some(Stage::Closing { ignored: 0 })
                    }),
                Stage::Closing { ignored } => return drain(&mut self.stream, ignored),
            };
            match result {
                Ok(Some(next)) => self.stage = next,
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Waits,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Step::Over,
            }
        }
    }
}

/// The answer, known once the head of the request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    status: &'static str,
    asked: Option<Asked>,
    /// False for HEAD.
    has_body: bool,
}

impl Answer {
    const fn error(status: &'static str) -> Self {
        Self { status, asked: None, has_body: true }
    }

    fn write(self, make: &mut dyn FnMut(Asked) -> Option<Arc<[u8]>>) -> (Vec<u8>, Arc<[u8]>) {
        let (status, body) = match self.asked {
            None => (self.status, Arc::from(format!("{}\n", self.status).as_bytes())),
            Some(asked) => match make(asked) {
                Some(body) => (self.status, body),
                None => ("500 Internal Server Error", Arc::from(&b"no metrics\n"[..])),
            },
        };
        let format = match self.asked {
            Some(Asked::Metrics(format)) => format,
            Some(Asked::Root) | None => Format::Classic,
        };
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}\
             Connection: close\r\n\r\n",
            format.content_type(),
            body.len()
        );
        (head.into_bytes(), if self.has_body { body } else { Arc::from(&[][..]) })
    }
}

/// Reads more of the head. Returns the answer once the head is complete.
fn receive(stream: &mut Stream, read: &mut Vec<u8>) -> io::Result<Option<Answer>> {
    let mut part = [0; 2048];
    let room = (HEAD_BYTES - read.len()).min(part.len());
    match stream.read(&mut part[..room])? {
        0 => return Err(ErrorKind::UnexpectedEof.into()),
        count => read.extend_from_slice(&part[..count]),
    }
    Ok(answer_to(read))
}

pub(crate) fn answer_to(read: &[u8]) -> Option<Answer> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(read) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if read.len() < HEAD_BYTES => return None,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Some(Answer::error("431 Request Header Fields Too Large"));
        }
        Err(_) => return Some(Answer::error("400 Bad Request")),
    }
    let method = request.method.unwrap_or_default();
    if method != "GET" && method != "HEAD" {
        return Some(Answer::error("405 Method Not Allowed"));
    }
    let accepts = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case("accept"));
    let accepts = accepts.filter_map(|header| std::str::from_utf8(header.value).ok());
    let accept = accepts.collect::<Vec<_>>().join(",");
    let path = request.path.unwrap_or_default();
    let asked = match path.split('?').next().unwrap_or_default() {
        "/metrics" => Asked::Metrics(Format::accepted(&accept)),
        "/" => Asked::Root,
        _ => return Some(Answer::error("404 Not Found")),
    };
    Some(Answer { status: "200 OK", asked: Some(asked), has_body: method == "GET" })
}

fn send(stream: &mut Stream, head: &[u8], body: &[u8], done: &mut usize) -> io::Result<()> {
    while *done < head.len() + body.len() {
        let part = match head.get(*done..).filter(|rest| !rest.is_empty()) {
            Some(rest) => rest,
            None => &body[*done - head.len()..],
        };
        match stream.write(part)? {
            0 => return Err(ErrorKind::WriteZero.into()),
            count => *done += count,
        }
    }
    Ok(())
}

/// Reads what the peer still sends.
fn drain(stream: &mut Stream, ignored: &mut usize) -> Step {
    let mut part = [0; 2048];
    while *ignored < MOST_IGNORED {
        match stream.read(&mut part) {
            Ok(0) => return Step::Over,
            Ok(count) => *ignored += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Step::Waits,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Step::Over,
        }
    }
    Step::Over
}

impl Stream {
    fn end(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.shutdown(Shutdown::Write),
            Self::Unix(stream) => stream.shutdown(Shutdown::Write),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(from),
            Self::Unix(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> Option<&'static str> {
        answer_to(request.as_bytes()).map(|answer| answer.status)
    }

    #[test]
    fn a_request_is_answered_once_its_head_is_whole() {
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: x\r\n"), None);
        assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Some("200 OK"));
        assert_eq!(status("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n"), Some("200 OK"));
        assert_eq!(status("GET / HTTP/1.1\r\n\r\n"), Some("200 OK"));
        assert_eq!(status("GET /other HTTP/1.1\r\n\r\n"), Some("404 Not Found"));
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), Some("405 Method Not Allowed"));
        assert_eq!(status("\u{1}\u{2}garbage\r\n\r\n"), Some("400 Bad Request"));
    }

    #[test]
    fn a_head_without_an_end_is_refused() {
        let long = format!("GET /metrics HTTP/1.1\r\nx: {}", "x".repeat(HEAD_BYTES));
        let refused = Some("431 Request Header Fields Too Large");
        assert_eq!(status(&long[..HEAD_BYTES]), refused);
        let many = format!("GET / HTTP/1.1\r\n{}", "a: b\r\n".repeat(MOST_HEADERS + 1));
        assert_eq!(status(&many), refused);
    }

    #[test]
    fn the_format_follows_the_accept_of_the_request() {
        let asked = |accept: &str| {
            let request = format!("GET /metrics HTTP/1.1\r\naCCept: {accept}\r\n\r\n");
            answer_to(request.as_bytes()).and_then(|answer| answer.asked)
        };
        let open = asked("application/openmetrics-text;version=1.0.0,text/plain;q=0.5");
        assert_eq!(open, Some(Asked::Metrics(Format::OpenMetrics)));
        assert_eq!(asked("*/*"), Some(Asked::Metrics(Format::Classic)));
    }
}
