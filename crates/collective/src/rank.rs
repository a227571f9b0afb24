//! A rank: its memory, its connections, and the thread that works through a plan.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ops::Range;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use polyrail_nccl_abi::Opaque;
use serde::{Deserialize, Serialize};

use crate::element::Element;
use crate::error::RankError;
use crate::memory::Memory;
use crate::net::{Handle, Net};
use crate::plan::{Area, DEPTH, MESSAGE_BYTES, Operation, Plan, Receive, Send, Shape};

/// What a rank is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The number of this one, from 0.
    pub rank: usize,
    /// How many there are; at least 2.
    pub ranks: usize,
    /// Connections to each rank that it talks to; at least 1.
    pub channels: usize,
    /// What they do.
    pub operation: Operation,
    /// On what.
    pub element: Element,
    /// The most bytes that an operation will have.
    pub max_bytes: usize,
}

/// One of the ranks. It belongs to one thread.
pub struct Rank {
    spec: Spec,
    /// Connected, and without a request that an operation has left behind.
    is_ready: bool,
    // Ends before the memory does.
    net: Net,
    listeners: Vec<Opaque>,
    outgoing: Vec<Link>,
    incoming: Vec<Link>,
    input: Memory,
    output: Memory,
    staging: Memory,
}

// SAFETY: what the plugin gave belongs to no thread, and all uses of it take `&mut self`.
unsafe impl std::marker::Send for Rank {}

/// A connection, and the memory registered with it: input, output and staging.
struct Link {
    comm: Opaque,
    regions: [Opaque; 3],
}

/// Messages of a connection: so many posted, so many over, and the requests in between.
#[derive(Default)]
struct Stream {
    posted: usize,
    done: usize,
    requests: VecDeque<Opaque>,
}

/// Before the places of messages that are added: where a barrier has its flags.
const FLAGS_BYTES: usize = 4096;
const POISON: u8 = 0xee;

/// What each rank connects by, from what each rank listens by: `listened[rank][connection]`.
pub fn route<T: Clone>(listened: &[Vec<T>], channels: usize) -> Vec<Vec<T>> {
    let target = |rank, link| (rank + 1 + link / channels) % listened.len();
    let of = |rank: usize| {
        let links = 0..listened[rank].len();
        links.map(|link| listened[target(rank, link)][link].clone()).collect()
    };
    (0..listened.len()).map(of).collect()
}

impl Rank {
    /// Takes memory, and listens for each connection that others make. The handles of these are for
    /// [`route`].
    ///
    /// # Errors
    /// If there is no memory or no device, or the plugin refuses.
    pub fn listen(net: Net, spec: Spec) -> Result<(Self, Vec<Handle>), RankError> {
        let devices = net.devices()?;
        if devices == 0 {
            return Err(RankError::NoDevice);
        }
        let input = Memory::new(spec.max_bytes)?;
        let output = Memory::new(spec.max_bytes)?;
        let places = if spec.operation.reduces() { spec.channels * DEPTH } else { 0 };
        let staging = Memory::new(FLAGS_BYTES + places * place_bytes(&spec))?;
        let (listeners, outgoing, incoming) = (Vec::new(), Vec::new(), Vec::new());
        let mut rank = Self {
            spec,
            is_ready: false,
            net,
            listeners,
            outgoing,
            incoming,
            input,
            output,
            staging,
        };
        let mut handles = Vec::new();
        for link in 0..spec.connections() {
            let (handle, listener) = rank.net.listen(spec.device(link, devices))?;
            rank.listeners.push(listener);
            handles.push(handle);
        }
        Ok((rank, handles))
    }

    /// Connects to the others, which do so at the same time.
    ///
    /// # Errors
    /// If the plugin refuses, or not all connections are there in time.
    pub fn connect(&mut self, handles: &[Handle], until: Instant) -> Result<(), RankError> {
        let wanted = self.spec.connections();
        if handles.len() != wanted {
            return Err(RankError::Handles { got: handles.len(), wanted });
        }
        let devices = self.net.devices()?;
        let mut handles = handles.to_vec();
        self.outgoing = (0..wanted).map(|_| Link::none()).collect();
        self.incoming = (0..wanted).map(|_| Link::none()).collect();
        loop {
            for (link, handle) in handles.iter_mut().enumerate() {
                if self.outgoing[link].comm.is_null() {
                    let device = self.spec.device(link, devices);
                    let comm = self.net.connect(device, handle)?;
                    self.outgoing[link].comm = comm.unwrap_or(null_mut());
                }
                if self.incoming[link].comm.is_null() {
                    let comm = self.net.accept(self.listeners[link])?;
                    self.incoming[link].comm = comm.unwrap_or(null_mut());
                }
            }
            let missing = |links: &[Link]| links.iter().position(|link| link.comm.is_null());
            let waits_for = match (missing(&self.outgoing), missing(&self.incoming)) {
                (None, None) => break,
                (Some(link), _) => format!("no connection to rank {}", self.spec.target(link)),
                (_, Some(link)) => format!("no connection from rank {}", self.spec.source(link)),
            };
            if Instant::now() > until {
                return Err(RankError::Late { waits_for });
            }
            thread::yield_now();
        }
        self.register()?;
        self.is_ready = true;
        Ok(())
    }

    /// Runs the operation so many times, the first ones without counting, and returns what the others
    /// took. All ranks do it at once.
    ///
    /// # Errors
    /// If the plugin refuses, or it is not over in time; nothing else can be run then.
    pub fn run(
        &mut self,
        shape: Shape,
        [warmup, iterations]: [u32; 2],
        seed: u64,
        until: Instant,
    ) -> Result<Duration, RankError> {
        let plan = self.begin(shape, seed)?;
        for _ in 0..warmup {
            self.perform(&plan, until)?;
        }
        self.perform(&Plan::barrier(self.spec.ranks), until)?;
        let begun = Instant::now();
        for _ in 0..iterations {
            self.perform(&plan, until)?;
        }
        Ok(begun.elapsed())
    }

    /// Runs the operation once on other data, over a poisoned output, and returns how many elements of
    /// it are wrong.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn check(&mut self, shape: Shape, seed: u64, until: Instant) -> Result<u64, RankError> {
        let plan = self.begin(shape, seed)?;
        // SAFETY: no request is under way.
        unsafe { self.output.slice_mut(plan.result.clone()) }.fill(POISON);
        self.perform(&plan, until)?;
        // SAFETY: as above.
        let result = unsafe { self.output.slice(plan.result.clone()) };
        let Spec { operation, element, rank, .. } = self.spec;
        Ok(element.wrong(result, operation, shape, rank, seed))
    }

    fn begin(&mut self, shape: Shape, seed: u64) -> Result<Plan, RankError> {
        if !self.is_ready {
            return Err(RankError::NotReady);
        }
        let Spec { operation, element, rank, channels, .. } = self.spec;
        let (bytes, room) = (operation.bytes(shape, element), self.input.len());
        if bytes > room || shape.ranks != self.spec.ranks {
            return Err(RankError::TooLong { bytes, room });
        }
        // SAFETY: no request is under way, as the rank is ready.
        let input = unsafe { self.input.slice_mut(0..bytes) };
        element.fill(input, rank, seed);
        Ok(Plan::new(operation, shape, element, rank, channels))
    }

    fn register(&mut self) -> Result<(), RankError> {
        let areas = [&self.input, &self.output, &self.staging];
        for link in self.outgoing.iter_mut().chain(&mut self.incoming) {
            for (region, memory) in link.regions.iter_mut().zip(areas) {
                let (at, bytes) = (memory.address(0), memory.len());
                // SAFETY: the connection is open, and is closed before the memory ends.
                *region = unsafe { self.net.register(link.comm, at, bytes) }?;
            }
        }
        Ok(())
    }

    /// Works until all of a plan is done. Otherwise requests are left, and the rank is not ready.
    fn perform(&mut self, plan: &Plan, until: Instant) -> Result<(), RankError> {
        let done = self.work(plan, until);
        self.is_ready = done.is_ok();
        done
    }

    /// As NCCL's proxy works: it tests only the oldest request of each connection.
    fn work(&self, plan: &Plan, until: Instant) -> Result<(), RankError> {
        for (from, to, bytes) in plan.copies.iter().copied() {
            // SAFETY: no request is under way yet.
            let (input, output) = unsafe {
                (self.input.slice(from..from + bytes), self.output.slice_mut(to..to + bytes))
            };
            output.copy_from_slice(input);
        }
        let streams = |count| (0..count).map(|_| Stream::default()).collect::<Vec<_>>();
        let (mut sends, mut receives) = (streams(plan.sends.len()), streams(plan.receives.len()));
        loop {
            let (mut has_moved, mut is_over) = (false, true);
            for link in 0..plan.sends.len() {
                let (out, into) = (&mut sends[link], &mut receives[link]);
                has_moved |= self.receive(link, &plan.receives[link], into, out.done)?;
                has_moved |= self.send(link, &plan.sends[link], out, into.done)?;
                is_over &= into.done == plan.receives[link].len();
                is_over &= out.done == plan.sends[link].len();
            }
            if is_over {
                return Ok(());
            }
            if !has_moved {
                if Instant::now() > until {
                    return Err(self.late(plan, &sends, &receives));
                }
                thread::yield_now();
            }
        }
    }

    /// Whether it has posted or finished anything. `sent`: messages on the way to the other side that
    /// are over.
    fn receive(
        &self,
        link: usize,
        plan: &[Receive],
        stream: &mut Stream,
        sent: usize,
    ) -> Result<bool, RankError> {
        let Link { comm, regions } = &self.incoming[link];
        let mut has_moved = false;
        while let Some(next) = stream.next(plan)
            && next.after <= sent
        {
            let (area, at) = match next.adds {
                true => (Area::Staging, self.place(link, stream.posted)),
                false => (next.into, next.at),
            };
            let to = self.area(area).address(at);
            // SAFETY: the connection is open. The plan posts nothing else at this place, and nothing
            // that reads it, before it is done; a place of staging is free, as the message before it
            // there is over.
            let posted =
                unsafe { self.net.receive(*comm, to, next.bytes, regions[area as usize]) }?;
            let Some(request) = posted else { break };
            stream.post(request);
            has_moved = true;
        }
        let Some(oldest) = stream.requests.front() else { return Ok(has_moved) };
        // SAFETY: it was posted on this connection, and was not done.
        let Some(got) = unsafe { self.net.test(*oldest) }? else { return Ok(has_moved) };
        let message = plan[stream.done];
        if usize::try_from(got) != Ok(message.bytes) {
            let (from, got) = (self.spec.source(link), i64::from(got));
            return Err(RankError::Length { from, got, wanted: message.bytes });
        }
        if message.adds {
            let (to, at) = (span(message.at, message.bytes), self.place(link, stream.done));
            // SAFETY: the request on the place of staging is done. The plan sends from this part of the
            // output only after this, and nothing receives into it or into the input.
            unsafe {
                let came = self.staging.slice(span(at, message.bytes));
                let own = self.input.slice(to.clone());
                self.spec.element.add(self.output.slice_mut(to), own, came);
            }
        }
        stream.finish();
        Ok(true)
    }

    /// As [`receive`](Self::receive); `received`: messages from the other side that are over.
    fn send(
        &self,
        link: usize,
        plan: &[Send],
        stream: &mut Stream,
        received: usize,
    ) -> Result<bool, RankError> {
        let Link { comm, regions } = &self.outgoing[link];
        let mut has_moved = false;
        while let Some(next) = stream.next(plan)
            && next.after <= received
        {
            let from = self.area(next.from).address(next.at);
            // SAFETY: the connection is open. The plan writes nothing to this place before it is done.
            let posted =
                unsafe { self.net.send(*comm, from, next.bytes, regions[next.from as usize]) }?;
            let Some(request) = posted else { break };
            stream.post(request);
            has_moved = true;
        }
        let Some(oldest) = stream.requests.front() else { return Ok(has_moved) };
        // SAFETY: it was posted on this connection, and was not done.
        if unsafe { self.net.test(*oldest) }?.is_none() {
            return Ok(has_moved);
        }
        stream.finish();
        Ok(true)
    }

    fn area(&self, area: Area) -> &Memory {
        match area {
            Area::Input => &self.input,
            Area::Output => &self.output,
            Area::Staging => &self.staging,
        }
    }

    /// Where in staging a message waits to be added.
    fn place(&self, link: usize, message: usize) -> usize {
        FLAGS_BYTES + (link * DEPTH + message % DEPTH) * place_bytes(&self.spec)
    }

    fn late(&self, plan: &Plan, sends: &[Stream], receives: &[Stream]) -> RankError {
        let of = |streams: &[Stream], lengths: Vec<usize>| {
            let stuck = |(link, length): (usize, usize)| {
                let done = streams[link].done;
                (done < length).then(|| (link, format!("{} of {length}", done + 1)))
            };
            lengths.into_iter().enumerate().find_map(stuck)
        };
        let came = of(receives, plan.receives.iter().map(Vec::len).collect());
        let left = of(sends, plan.sends.iter().map(Vec::len).collect());
        let waits_for = match (came, left) {
            (Some((link, which)), _) => {
                format!("message {which} from rank {} did not come", self.spec.source(link))
            }
            (None, Some((link, which))) => {
                format!("message {which} to rank {} did not leave", self.spec.target(link))
            }
            (None, None) => "it took too long".to_owned(),
        };
        RankError::Late { waits_for }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // Nothing can be done about a plugin that refuses this.
        for listener in self.listeners.drain(..) {
            // SAFETY: open until here, and never used again.
            let _ = unsafe { self.net.close_listener(listener) };
        }
        for (link, sends) in self
            .outgoing
            .drain(..)
            .map(|link| (link, true))
            .chain(self.incoming.drain(..).map(|link| (link, false)))
            .filter(|(link, _)| !link.comm.is_null())
        {
            for region in link.regions.into_iter().filter(|region| !region.is_null()) {
                // SAFETY: registered with this connection; requests on it end with the connection.
                let _ = unsafe { self.net.deregister(link.comm, region) };
            }
            // SAFETY: open until here, and never used again.
            let _ = unsafe {
                match sends {
                    true => self.net.close_send(link.comm),
                    false => self.net.close_receive(link.comm),
                }
            };
        }
    }
}

impl Spec {
    /// To each rank that it talks to, the nearest first, a connection for each channel.
    fn connections(&self) -> usize {
        self.channels * if self.operation.needs_all() { self.ranks - 1 } else { 1 }
    }

    fn distance(&self, link: usize) -> usize {
        1 + link / self.channels
    }

    fn target(&self, link: usize) -> usize {
        (self.rank + self.distance(link)) % self.ranks
    }

    fn source(&self, link: usize) -> usize {
        (self.rank + self.ranks - self.distance(link)) % self.ranks
    }

    /// Channels take the devices in turn.
    fn device(&self, link: usize, devices: usize) -> c_int {
        (link % self.channels % devices) as c_int
    }
}

impl Link {
    fn none() -> Self {
        Self { comm: null_mut(), regions: [null_mut(); 3] }
    }
}

impl Stream {
    /// The next message to post, if there is room for it.
    fn next<T: Copy>(&self, plan: &[T]) -> Option<T> {
        plan.get(self.posted).filter(|_| self.requests.len() < DEPTH).copied()
    }

    fn post(&mut self, request: Opaque) {
        self.requests.push_back(request);
        self.posted += 1;
    }

    fn finish(&mut self) {
        self.requests.pop_front();
        self.done += 1;
    }
}

fn place_bytes(spec: &Spec) -> usize {
    MESSAGE_BYTES.min(spec.max_bytes.next_multiple_of(64))
}

fn span(at: usize, bytes: usize) -> Range<usize> {
    at..at + bytes
}
