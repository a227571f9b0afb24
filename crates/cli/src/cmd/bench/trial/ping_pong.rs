//! Ping-pong: one message to the other end and one back, over and over.
//!
//! With writes, a notification bound to the write reports that the message is in place; with sends, the receive does.
//! The one-way time is half of a round trip. Both ends do the same work, and neither waits for acknowledgements before
//! it answers.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use polyrail::{PreparedTransfer, Transfer};
use polyrail_profiler::drive::{Ran, wait};
use polyrail_report::Histogram;
use polyrail_sys::threads::thread_cpu_time;

use super::work::{Job, Maker};
use crate::cmd::bench::faults;
use crate::cmd::bench::memory::Buffers;
use crate::cmd::bench::options::Op;
use crate::cmd::bench::talk::{End, Link, Regions, SetUp};
use crate::fault::Fault;

/// One end of a ping-pong.
pub(crate) struct PingPong<'a> {
    link: &'a Link<'a>,
    out: PreparedTransfer,
    /// Receive of the other end's message. Writes need none.
    into: Option<PreparedTransfer>,
}

/// Ping-pong that has posted its first receive.
pub(crate) struct Ready<'p, 'a> {
    game: &'p PingPong<'a>,
    receive: Option<Transfer>,
    /// Sent messages whose acknowledgement may still be on its way.
    unacknowledged: VecDeque<Transfer>,
}

impl<'a> PingPong<'a> {
    pub(crate) fn new(
        link: &'a Link<'a>,
        buffers: &Buffers,
        set_up: &SetUp,
        theirs: &Regions,
    ) -> Result<Self, Fault> {
        let maker = Maker { engine: link.engine, peer: &link.peer, buffers, theirs };
        let (out, into) = if set_up.op == Op::Send {
            (maker.prepare(Job::Send, 0, None)?, Some(maker.prepare(Job::Receive, 0, None)?))
        } else {
            (maker.prepare(Job::Write, 0, Some(BALL))?, None)
        };
        Ok(Self { link, out, into })
    }

    /// Returns the request that sends.
    pub(crate) fn example(&self) -> &PreparedTransfer {
        &self.out
    }

    /// Prepares for the arrival of the first message.
    pub(crate) fn start(&self) -> Result<Ready<'_, 'a>, Fault> {
        let receive = self.into.as_ref().map(PreparedTransfer::post).transpose()?;
        Ok(Ready { game: self, receive, unacknowledged: VecDeque::with_capacity(UNACKNOWLEDGED) })
    }
}

impl Ready<'_, '_> {
    /// Plays `rounds` round trips. The client sends first.
    pub(crate) fn play(
        mut self,
        end: End,
        rounds: u64,
        stop: impl Fn(bool) -> bool,
    ) -> Result<Ran, Fault> {
        let idle_stop = || stop(true);
        let mut times = Histogram::default();
        let cpu = thread_cpu_time();
        let started = Instant::now();
        let mut hit = started;
        for round in 0..rounds {
            // Short waits end before `stop` is checked in them, so check here, too.
            if stop(false) {
                return Err(Fault::interrupted());
            }
            if end == End::Client {
                self.send()?;
            }
            self.receive(round + 1 < rounds, &idle_stop)?;
            match end {
                End::Server => self.send()?,
                End::Client => {
                    let now = Instant::now();
                    times.record((now - hit).as_nanos() as u64 / 2);
                    hit = now;
                }
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        for transfer in &self.unacknowledged {
            wait(self.game.link.engine, transfer, &idle_stop)?;
        }
        // Everything besides waiting for the other end takes next to no time.
        let waited = Duration::from_secs_f64(seconds);
        let cpu = thread_cpu_time().saturating_sub(cpu);
        Ok(Ran { seconds, times, cpu, waited })
    }

    fn send(&mut self) -> Result<(), Fault> {
        // The answer to a message arrives after its acknowledgement or with it. So the oldest of several messages is
        // already acknowledged, and this wait returns at once.
        if self.unacknowledged.len() == UNACKNOWLEDGED
            && let Some(oldest) = self.unacknowledged.pop_front()
        {
            wait(self.game.link.engine, &oldest, &|| false)?;
        }
        self.unacknowledged.push_back(self.game.out.post()?);
        Ok(())
    }

    fn receive(&mut self, again: bool, stop: &impl Fn() -> bool) -> Result<(), Fault> {
        let game = self.game;
        let Some(into) = &game.into else { return self.await_ball(stop) };
        if let Some(receive) = self.receive.take() {
            wait(game.link.engine, &receive, stop)?;
        }
        if again {
            self.receive = Some(into.post()?);
        }
        Ok(())
    }

    fn await_ball(&self, stop: &impl Fn() -> bool) -> Result<(), Fault> {
        let started = Instant::now();
        loop {
            if let Some(notification) = self.game.link.engine.wait_notification(SLICE) {
                if notification.data == BALL && notification.peer == self.game.link.peer {
                    return Ok(());
                }
                // Anything else from the peer means that it has given up the game.
                if self.game.link.put_back(notification) {
                    return Err(Fault::interrupted());
                }
            }
            if stop() {
                return Err(Fault::interrupted());
            }
            // If the peer is gone, the message to it fails.
            if let Some(transfer) = self.unacknowledged.back() {
                wait(self.game.link.engine, transfer, stop)?;
            }
            if started.elapsed() > SILENCE_MAX {
                let waited = started.elapsed();
                return Err(faults::stuck(waited, &self.game.link.engine.dump()));
            }
        }
    }
}

/// Notification of the ping-pong's writes. Control messages begin with a brace.
const BALL: &[u8] = b"o";
const UNACKNOWLEDGED: usize = 32;
const SLICE: Duration = Duration::from_millis(200);
const SILENCE_MAX: Duration = Duration::from_secs(60);
