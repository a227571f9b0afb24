//! Asks many processes for their metrics at once, and waits for none longer than its deadline.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use socket2::Socket;

use crate::server::timespec;
use crate::sockets::Called;

/// Time for a process to answer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);
/// Maximum length of one answer, in bytes.
const MOST_BYTES: usize = 2 << 20;
/// Maximum length of all answers in a round, in bytes.
const MOST_BYTES_OF_ALL: usize = 64 << 20;
const MOST_HEADERS: usize = 16;

const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: polyrail\r\n\
      Accept: application/openmetrics-text;version=1.0.0\r\nConnection: close\r\n\r\n";

/// Reason for a process without metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Silence {
    /// No process listens any more.
    Dead,
    /// The process did not answer in time.
    Timeout,
    /// The process sent something else, or hung up.
    Garbage,
    /// The answer was too long.
    TooLarge,
    /// The system refused.
    System,
}

impl Silence {
    pub(crate) const ALL: [Self; 5] =
        [Self::Dead, Self::Timeout, Self::Garbage, Self::TooLarge, Self::System];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Dead => "dead",
            Self::Timeout => "timeout",
            Self::Garbage => "garbage",
            Self::TooLarge => "too_large",
            Self::System => "system",
        }
    }
}

/// A question that is under way.
struct Question {
    index: usize,
    socket: Socket,
    sent: usize,
    read: Vec<u8>,
    until: Instant,
}

impl AsFd for Question {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns the texts of `count` processes, in their order. `connect` connects to each by its number, and `at_a_time`
/// are asked together.
pub(crate) fn ask_all(
    count: usize,
    at_a_time: usize,
    mut connect: impl FnMut(usize) -> Called,
) -> Vec<Result<String, Silence>> {
    let mut answers: Vec<Result<String, Silence>> =
        (0..count).map(|_| Err(Silence::System)).collect();
    let mut waiting: VecDeque<usize> = (0..count).collect();
    let mut asked: Vec<Question> = Vec::new();
    let mut left = MOST_BYTES_OF_ALL;
    loop {
        while asked.len() < at_a_time
            && let Some(index) = waiting.pop_front()
        {
            let until = Instant::now() + DEADLINE;
            match connect(index) {
                Called::Connected(socket) => {
                    asked.push(Question { index, socket, sent: 0, read: Vec::new(), until });
                }
                Called::Dead => answers[index] = Err(Silence::Dead),
                Called::Full => answers[index] = Err(Silence::Timeout),
                Called::Failed(_) => answers[index] = Err(Silence::System),
            }
        }
        if asked.is_empty() {
            return answers;
        }
        if !wait(&asked) {
            return answers;
        }
        let now = Instant::now();
        asked.retain_mut(|question| {
            let end = match question.step(left.min(MOST_BYTES)) {
                Some(end) => end,
                None if now < question.until => return true,
                None => Err(Silence::Timeout),
            };
            if let Ok(text) = &end {
                left = left.saturating_sub(text.len());
            }
            answers[question.index] = end;
            false
        });
    }
}

/// Waits until a question can continue or is late. Returns whether waiting is possible.
fn wait(asked: &[Question]) -> bool {
    let awaits = |one: &Question| match one.sent < REQUEST.len() {
        true => PollFlags::OUT,
        false => PollFlags::IN,
    };
    let mut fds: Vec<PollFd<'_>> = asked.iter().map(|one| PollFd::new(one, awaits(one))).collect();
    let until = asked.iter().map(|one| one.until).min();
    let left = until.map_or(DEADLINE, |it| it.saturating_duration_since(Instant::now()));
    matches!(poll(&mut fds, Some(&timespec(left))), Ok(_) | Err(rustix::io::Errno::INTR))
}

impl Question {
    /// Continues as far as it can without waiting. Returns the result once there is one.
    fn step(&mut self, most_bytes: usize) -> Option<Result<String, Silence>> {
        while self.sent < REQUEST.len() {
            match self.socket.write(&REQUEST[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Some(Err(Silence::Garbage)),
            }
        }
        let mut part = [0; 64 << 10];
        // A process that never stops must not keep the others waiting.
        for _ in 0..4 {
            match self.socket.read(&mut part) {
                Ok(0) => return Some(text_of(&self.read).ok_or(Silence::Garbage)),
                Ok(count) if self.read.len() + count > most_bytes => {
                    return Some(Err(Silence::TooLarge));
                }
                Ok(count) => self.read.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Some(Err(Silence::Garbage)),
            }
        }
        None
    }
}

/// The text of an answer, if it is one.
pub(crate) fn text_of(answer: &[u8]) -> Option<String> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head)) = response.parse(answer) else { return None };
    if response.code != Some(200) {
        return None;
    }
    String::from_utf8(answer[head..].to_vec()).ok()
}
