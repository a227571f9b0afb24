//! Baseline of plain blocking sockets, as simple and as fast as handwritten code.
//!
//! Both ends agree on everything in advance, so that only payload is on the wire. There are as many connections as the
//! engine has flows, on the same rails, with the same congestion control and buffers, and one thread for each at both
//! ends. The sender calls `write_all` for one chunk after another of its part of the working set, and the receiver
//! `read_exact` straight into place. There is no window except TCP's. One byte back reports that the last chunk is in
//! place; its arrival stops the clock.

mod flow;

use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use polyrail_report::{AgainstSample, Histogram};
use polyrail_sys::threads::process_cpu_seconds;

use self::flow::{Awaited, Flow, Listener};
use crate::cmd::bench::faults;
use crate::cmd::bench::talk::{Answer, Ask, Link, RawSpec, Traffic, unexpected};
use crate::fault::{Fault, Mismatch};
use crate::interrupt::Interrupt;
use crate::together::start_all;

/// Measuring end of the baseline.
pub(crate) struct RawClient<'l> {
    link: &'l Link<'l>,
    interrupt: &'l Interrupt,
    spec: RawSpec,
    flows: Vec<Flow>,
    congestion: String,
}

/// Serving end of the baseline.
pub(crate) struct RawServer {
    spec: RawSpec,
    /// Listeners by rail.
    listeners: Vec<(String, Listener)>,
    awaited: Awaited,
    flows: Vec<Flow>,
    round: Option<Round>,
}

/// Round in progress at the serving end. Dropping it ends the round, so that no thread keeps its memory.
struct Round {
    cpu_seconds: f64,
    threads: Vec<JoinHandle<(Flow, io::Result<()>)>>,
    streams: Vec<Arc<TcpStream>>,
}

impl<'l> RawClient<'l> {
    /// Requests the serving end of the baseline, and connects to it.
    pub(crate) fn open(
        link: &'l Link<'l>,
        interrupt: &'l Interrupt,
        spec: RawSpec,
    ) -> Result<Self, Fault> {
        spec.check()?;
        let ask = Ask::RawOpen(spec.clone());
        let addresses = match link.ask(&ask)? {
            Answer::RawReady { addresses } if !addresses.is_empty() => addresses,
            other => return Err(unexpected(&ask, &other)),
        };
        let local = link.engine.rails();
        let ends = |(near, far): (String, String)| {
            let from = local.iter().find(|rail| rail.name == near)?.address.ip();
            Some((from, addresses.iter().find(|(rail, _)| *rail == far)?.1))
        };
        let pairs: Vec<(IpAddr, SocketAddr)> = link.pairs().into_iter().filter_map(ends).collect();
        let connect = |(index, traffic): (usize, Traffic)| {
            let Some(&(from, to)) = pairs.get(index % pairs.len().max(1)) else {
                return Err(unexpected(&ask, &Answer::RawReady { addresses: addresses.clone() }));
            };
            Flow::connect(&spec, traffic, index, from, to)
        };
        let flows: Result<Vec<Flow>, Fault> = spec.traffic().map(connect).collect();
        let flows = flows?;
        let congestion = match link.ask(&Ask::RawAccept)? {
            Answer::RawAccepted { congestion } => congestion,
            other => return Err(unexpected(&Ask::RawAccept, &other)),
        };
        Ok(Self { link, interrupt, spec, flows, congestion })
    }

    /// Returns the congestion control that the connections actually use.
    pub(crate) fn congestion(&self) -> &str {
        &self.congestion
    }

    /// Moves this many pieces in each direction in use. Also returns the one-way times of a ping-pong.
    pub(crate) fn round(&mut self, pieces: u64) -> Result<(AgainstSample, Histogram), Fault> {
        self.link.tell(&Ask::RawBegin { pieces })?;
        let cpu = process_cpu_seconds();
        let results = run_all(&mut self.flows, &self.spec, pieces, self.interrupt)
            .map_err(|source| Fault::system(THREADS, source))?;
        self.interrupt.check()?;
        let local_cpu_seconds = process_cpu_seconds() - cpu;
        let spec = &self.spec;
        let mut all_times = Histogram::default();
        let (mut first, mut last) = (None::<Instant>, None::<Instant>);
        for (started, ended, times) in results {
            let times = times.map_err(|source| faults::sockets(BASELINE, &source))?;
            all_times.merge(&times);
            first = Some(first.map_or(started, |first| first.min(started)));
            last = Some(last.map_or(ended, |last| last.max(ended)));
        }
        let peer_cpu_seconds = match self.link.ask(&Ask::RawEnd)? {
            Answer::RawCounted { cpu_seconds } => cpu_seconds,
            other => return Err(unexpected(&Ask::RawEnd, &other)),
        };
        let seconds = match (first, last) {
            (Some(first), Some(last)) => (last - first).as_secs_f64(),
            _ => 0.0,
        };
        // A ping-pong carries each piece twice.
        let ways = if spec.ping_pong { 2 } else { spec.traffic().count() / spec.flows };
        let bytes = pieces * spec.piece * ways as u64;
        let sample = AgainstSample { bytes, seconds, local_cpu_seconds, peer_cpu_seconds };
        Ok((sample, all_times))
    }

    /// Compares the received data with the sent data, at both ends.
    pub(crate) fn verify(&self) -> Result<(), Fault> {
        self.flows.iter().try_for_each(|flow| flow.verify(&self.spec))?;
        self.link.tell(&Ask::RawVerify)
    }

    /// Frees the memory of both ends.
    pub(crate) fn close(self) -> Result<(), Fault> {
        self.link.tell(&Ask::RawClose)
    }
}

impl RawServer {
    /// Listens on every rail.
    pub(crate) fn open(
        spec: RawSpec,
        rails: impl Iterator<Item = (String, IpAddr)>,
    ) -> Result<Self, Fault> {
        let listen = |(rail, address)| Ok((rail, Listener::open(&spec, address)?));
        let listeners: Result<_, Fault> = rails.map(listen).collect();
        let awaited = spec.traffic().collect();
        Ok(Self { spec, listeners: listeners?, awaited, flows: Vec::new(), round: None })
    }

    /// Returns the listening addresses by rail.
    pub(crate) fn addresses(&self) -> Result<Vec<(String, SocketAddr)>, Fault> {
        let each = self.listeners.iter();
        each.map(|(rail, listener)| Ok((rail.clone(), listener.address()?))).collect()
    }

    /// Accepts the connections that the client has made. Returns the congestion control of the first one.
    pub(crate) fn accept(&mut self, stop: &Interrupt) -> Result<String, Fault> {
        let deadline = Instant::now() + ACCEPT_MAX;
        let wanted = self.spec.traffic().count();
        while !self.awaited.is_empty() {
            let mut came = false;
            for (_, listener) in &mut self.listeners {
                if let Some(flow) = listener.accept(&self.spec, &mut self.awaited)? {
                    self.flows.push(flow);
                    came = true;
                }
            }
            stop.check()?;
            if !came && Instant::now() > deadline {
                let missing = self.awaited.len();
                let strangers: u64 = self.listeners.iter().map(|(_, one)| one.strangers()).sum();
                let reason = format!(
                    "{missing} of {wanted} connections did not come, and {strangers} came that are of no measuring end"
                );
                let source = io::Error::new(io::ErrorKind::TimedOut, reason);
                return Err(faults::sockets(BASELINE, &source));
            }
            if !came {
                thread::sleep(Duration::from_millis(1));
            }
        }
        self.flows.first().map_or_else(|| Ok(String::new()), Flow::congestion)
    }

    /// Starts a thread for each connection.
    pub(crate) fn begin(&mut self, pieces: u64) -> Result<(), Fault> {
        let (there, wanted) = (self.flows.len(), self.spec.traffic().count());
        if there < wanted {
            let answer = format!("{there} of {wanted} connections are there and idle");
            return Err(faults::protocol("a round of the raw baseline", answer));
        }
        let piece = self.spec.piece;
        let streams = self.flows.iter().map(Flow::stream).collect();
        let mut round = Round { cpu_seconds: process_cpu_seconds(), threads: Vec::new(), streams };
        for mut flow in self.flows.drain(..) {
            let pieces = self.spec.part(flow.index, pieces);
            let run = move || {
                let result = flow.server_round(piece, pieces);
                (flow, result)
            };
            let thread = Builder::new().name("raw".to_owned()).spawn(run);
            round.threads.push(thread.map_err(|source| Fault::system(THREADS, source))?);
        }
        self.round = Some(round);
        Ok(())
    }

    /// Returns whether a round is in progress.
    pub(crate) fn is_in_round(&self) -> bool {
        self.round.as_ref().is_some_and(|round| round.threads.iter().any(|it| !it.is_finished()))
    }

    /// Waits for the threads. Returns the CPU time of the process since their start.
    pub(crate) fn end(&mut self) -> Result<f64, Fault> {
        let Some(mut round) = self.round.take() else { return Ok(0.0) };
        let mut result = Ok(());
        for thread in round.threads.drain(..) {
            let (flow, ran) =
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            self.flows.push(flow);
            result = result.and(ran);
        }
        result.map_err(|source| faults::sockets(BASELINE, &source))?;
        Ok(process_cpu_seconds() - round.cpu_seconds)
    }

    /// Compares the data that this end received with the sent data.
    pub(crate) fn verify(&self) -> Result<(), Fault> {
        self.flows.iter().try_for_each(|flow| flow.verify(&self.spec))
    }
}

impl Drop for Round {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        // Fails only if the connection has already ended.
        self.streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
        for thread in self.threads.drain(..) {
            // A panic of the thread has been printed.
            let _ = thread.join();
        }
    }
}

/// Begin and end of a flow's round, and the one-way times of a ping-pong.
type FlowRan = (Instant, Instant, io::Result<Histogram>);

/// Runs one round of all flows at once, each on a separate thread. The round ends early once `interrupt` is raised.
fn run_all<'f>(
    flows: &'f mut [Flow],
    spec: &RawSpec,
    pieces: u64,
    interrupt: &Interrupt,
) -> io::Result<Vec<FlowRan>> {
    let streams: Vec<_> = flows.iter().map(Flow::stream).collect();
    let (tell, ran) = channel();
    let mut results = Vec::new();
    thread::scope(|scope| {
        let job = |flow: &'f mut Flow| {
            let tell = tell.clone();
            move || {
                let pieces = spec.part(flow.index, pieces);
                let started = Instant::now();
                let times = flow.client_round(spec.piece, pieces);
                // The receiver lives as long as this sender.
                let _ = tell.send((started, Instant::now(), times));
            }
        };
        start_all(scope, flows.iter_mut().map(job))?;
        drop(tell);
        loop {
            match ran.recv_timeout(Interrupt::LOOK) {
                Ok(result) => results.push(result),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if interrupt.is_raised() => {
                    // Fails only if the connection has already ended.
                    streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
        Ok(results)
    })
}

/// Returns the error for a wrong byte of the baseline.
fn mismatch(offset: u64, size: u64, expected: u8, got: u8) -> Fault {
    let host = crate::host::hostname();
    Mismatch { host, size, offset, expected, got }.into()
}

const BASELINE: &str = "the raw baseline";
const THREADS: &str = "starting the threads of the raw baseline";
const ACCEPT_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
