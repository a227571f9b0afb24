//! The part of HTTP/1.1 that etcd's gateway needs: a request with a body, and an answer at once or in pieces.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::stop::Stop;

const CONNECT_DEADLINE: Duration = Duration::from_secs(3);
/// Maximum time until an answer begins, and between its pieces.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Maximum bytes of one answer: enough for a group of 10,000 engines with many rails.
const MOST_BYTES: usize = 64 << 20;
const MOST_HEADERS: usize = 64;
const MOST_HEAD_BYTES: usize = 64 << 10;

/// Connection to one host.
pub(crate) struct Connection {
    socket: Arc<TcpStream>,
    host: String,
    /// Bytes read and not consumed yet.
    buffer: Vec<u8>,
}

pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) body: Vec<u8>,
}

struct Head {
    code: u16,
    /// Length of the body. `None` if it comes in chunks.
    length: Option<usize>,
}

impl Connection {
    /// Connects to the first address of the host that answers. Like each call below, it returns in time for `stop`.
    pub(crate) fn open(host: &str, port: u16, stop: &Stop) -> io::Result<Self> {
        let mut last = io::Error::new(ErrorKind::NotFound, "the name has no address");
        for address in (host, port).to_socket_addrs()? {
            let left = stop.within(CONNECT_DEADLINE);
            if left.is_zero() {
                return Err(late());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    socket.set_write_timeout(Some(ANSWER_DEADLINE))?;
                    let socket = Arc::new(socket);
                    stop.cover(&socket);
                    let host = match host.contains(':') {
                        true => format!("[{host}]:{port}"),
                        false => format!("{host}:{port}"),
                    };
                    return Ok(Self { socket, host, buffer: Vec::new() });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Sends a request and reads the whole answer. The connection can be reused.
    pub(crate) fn ask(
        &mut self,
        path: &str,
        token: Option<&str>,
        body: &[u8],
        stop: &Stop,
    ) -> io::Result<Answer> {
        self.send(path, token, body)?;
        let until = Instant::now() + stop.within(ANSWER_DEADLINE);
        let head = self.head(until)?;
        self.rest(&head, until)
    }

    /// Sends a request whose answer continues. [`Self::line`] returns its pieces. An error of the gateway is returned
    /// whole.
    pub(crate) fn begin(
        &mut self,
        path: &str,
        token: Option<&str>,
        body: &[u8],
        stop: &Stop,
    ) -> io::Result<Result<(), Answer>> {
        self.send(path, token, body)?;
        let until = Instant::now() + stop.within(ANSWER_DEADLINE);
        let head = self.head(until)?;
        match head.code {
            200 if head.length.is_none() => Ok(Ok(())),
            _ => self.rest(&head, until).map(Err),
        }
    }

    /// Returns the next piece of a continuing answer, or `None` if there is none before `until`.
    pub(crate) fn line(&mut self, until: Instant) -> io::Result<Option<Vec<u8>>> {
        // The gateway sends a message as one chunk or several, so a line is assembled before bytes are removed from the
        // buffer.
        loop {
            if let Some((line, used)) = line_in_chunks(&self.buffer)? {
                self.buffer.drain(..used);
                return Ok(Some(line));
            }
            match self.fill(until) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::TimedOut => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn send(&mut self, path: &str, token: Option<&str>, body: &[u8]) -> io::Result<()> {
        let authorization = token.map(|token| format!("Authorization: {token}\r\n"));
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n{}\
             Content-Length: {}\r\n\r\n",
            self.host,
            authorization.unwrap_or_default(),
            body.len()
        );
        // One write, so that it is one packet.
        let request = [head.as_bytes(), body].concat();
        (&*self.socket).write_all(&request)
    }

    fn head(&mut self, until: Instant) -> io::Result<Head> {
        loop {
            let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
            let mut response = httparse::Response::new(&mut headers);
            let parsed = response.parse(&self.buffer).map_err(|_| garbage("it speaks no HTTP"))?;
            if let httparse::Status::Complete(used) = parsed {
                let code = response.code.unwrap_or_default();
                let header = |name: &str| {
                    let found =
                        response.headers.iter().find(|it| it.name.eq_ignore_ascii_case(name));
                    found.and_then(|it| std::str::from_utf8(it.value).ok()).map(str::trim)
                };
                let is_chunked = header("transfer-encoding")
                    .is_some_and(|value| value.eq_ignore_ascii_case("chunked"));
                let length = match is_chunked {
                    true => None,
                    false => Some(
                        header("content-length")
                            .and_then(|value| value.parse().ok())
                            .filter(|length| *length <= MOST_BYTES)
                            .ok_or_else(|| garbage("its answer has no length, or is too long"))?,
                    ),
                };
                self.buffer.drain(..used);
                return Ok(Head { code, length });
            }
            if self.buffer.len() > MOST_HEAD_BYTES {
                return Err(garbage("its answer has no end of headers"));
            }
            self.fill(until)?;
        }
    }

    fn rest(&mut self, head: &Head, until: Instant) -> io::Result<Answer> {
        let code = head.code;
        let Some(length) = head.length else {
            loop {
                if let Some((body, used)) = all_chunks(&self.buffer)? {
                    self.buffer.drain(..used);
                    return Ok(Answer { code, body });
                }
                self.fill(until)?;
            }
        };
        while self.buffer.len() < length {
            self.fill(until)?;
        }
        Ok(Answer { code, body: self.buffer.drain(..length).collect() })
    }

    fn fill(&mut self, until: Instant) -> io::Result<()> {
        if self.buffer.len() > 2 * MOST_BYTES {
            return Err(garbage("its answer is too long"));
        }
        let mut part = [0; 32 << 10];
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(late());
            }
            self.socket.set_read_timeout(Some(left))?;
            match (&*self.socket).read(&mut part) {
                Ok(0) => return Err(io::Error::new(ErrorKind::UnexpectedEof, "it hung up")),
                Ok(count) => {
                    self.buffer.extend_from_slice(&part[..count]);
                    return Ok(());
                }
                // Errors of the system for an expired timeout.
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "no answer in time")
}

fn garbage(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Returns the content of the first chunk and the offset behind it, or `None` if it is incomplete.
fn chunk(bytes: &[u8]) -> io::Result<Option<(&[u8], usize)>> {
    match httparse::parse_chunk_size(bytes) {
        Ok(httparse::Status::Partial) => Ok(None),
        Ok(httparse::Status::Complete((begin, size))) => {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if size > MOST_BYTES {
                return Err(garbage("its answer is too long"));
            }
            // A line break ends each chunk.
            let end = begin + size + 2;
            Ok((bytes.len() >= end).then(|| (&bytes[begin..begin + size], end)))
        }
        Err(_) => Err(garbage("its answer is not in chunks")),
    }
}

/// Returns the content of all chunks and the number of bytes consumed, or `None` if they are incomplete.
fn all_chunks(bytes: &[u8]) -> io::Result<Option<(Vec<u8>, usize)>> {
    let (mut body, mut used) = (Vec::new(), 0);
    while let Some((part, end)) = chunk(&bytes[used..])? {
        used += end;
        if part.is_empty() {
            return Ok(Some((body, used)));
        }
        body.extend_from_slice(part);
    }
    Ok(None)
}

/// Returns the first line of a chunked answer and the number of bytes consumed. After the line its last chunk has only
/// blanks: the gateway ends each message with a line break and flushes.
fn line_in_chunks(bytes: &[u8]) -> io::Result<Option<(Vec<u8>, usize)>> {
    let (mut line, mut used) = (Vec::new(), 0);
    while let Some((part, end)) = chunk(&bytes[used..])? {
        used += end;
        if part.is_empty() {
            return Err(io::Error::new(ErrorKind::UnexpectedEof, "it ended the answer"));
        }
        line.extend_from_slice(part);
        if line.ends_with(b"\n") && !line.trim_ascii().is_empty() {
            return Ok(Some((line, used)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_in_however_many_chunks() {
        let bytes = b"3\r\n{\"a\r\n4\r\n\":1}\r\n1\r\n\n\r\n4\r\n{}\n\n\r\n";
        let (line, used) = line_in_chunks(bytes).unwrap().unwrap();
        assert_eq!(line, b"{\"a\":1}\n");
        for len in 0..used {
            assert!(line_in_chunks(&bytes[..len]).unwrap().is_none(), "{len}");
        }
        assert_eq!(line_in_chunks(&bytes[used..]).unwrap().unwrap().0, b"{}\n\n");
        assert!(line_in_chunks(b"0\r\n\r\n").is_err(), "the end");
        assert!(line_in_chunks(b"zz\r\n").is_err());
        assert!(line_in_chunks(b"ffffffffff\r\n").is_err(), "too long");
    }

    #[test]
    fn a_body_in_chunks_ends_with_an_empty_one() {
        let bytes = b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n";
        assert_eq!(all_chunks(bytes).unwrap(), Some((b"abc".to_vec(), bytes.len())));
        assert_eq!(all_chunks(&bytes[..14]).unwrap(), None);
    }
}
