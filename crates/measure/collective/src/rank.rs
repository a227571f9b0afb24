//! A rank: its memory, its connections, and the thread that works through a plan.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use polyrail_nccl_abi::{
    Comm, Handle, HostMemory, Listener, Memory, Net, NetError, Part, Receives, Region, Request,
    Sends, Side,
};
use serde::{Deserialize, Serialize};

use crate::element::Element;
use crate::error::RankError;
use crate::plan::{Area, DEPTH, MESSAGE_BYTES, Operation, Plan, Receive, Send, Shape};

/// Parameters of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Number of this rank, from 0.
    pub rank: usize,
    /// Number of ranks; at least 2.
    pub ranks: usize,
    /// Connections to each rank that this one sends to; at least 1.
    pub channels: usize,
    pub operation: Operation,
    pub element: Element,
    /// Maximum size of an operation, in bytes.
    pub max_bytes: usize,
}

/// One of the ranks. Belongs to one thread.
pub struct Rank {
    spec: Spec,
    /// Set while the rank is connected and no failed operation has left requests behind.
    is_ready: bool,
    net: Net,
    listeners: Vec<Listener>,
    outgoing: Vec<Link<Sends>>,
    incoming: Vec<Link<Receives>>,
    areas: Areas,
}

/// Memory that each connection has registered. No request uses it between plans.
struct Areas {
    input: Arc<HostMemory>,
    output: Arc<HostMemory>,
    staging: Arc<HostMemory>,
}

/// A connection, and its regions: input, output and staging.
struct Link<S: Side> {
    comm: Comm<S>,
    regions: [Region; 3],
}

/// Progress on a connection: messages posted, messages done, and the requests in between.
#[derive(Default)]
struct Stream {
    posted: usize,
    done: usize,
    requests: VecDeque<Request>,
}

/// Size of the barrier's flags, which lie at the start of staging, before the slots for messages to add.
const FLAGS_BYTES: usize = 4096;
const POISON: u8 = 0xee;

/// Routes what each rank listens with, `listened[rank][connection]`, to the ranks that connect to it: returns what each
/// rank connects with, in the same layout.
pub fn route<T: Clone>(listened: &[Vec<T>], channels: usize) -> Vec<Vec<T>> {
    let target = |rank, link| (rank + 1 + link / channels) % listened.len();
    let of = |rank: usize| {
        let links = 0..listened[rank].len();
        links.map(|link| listened[target(rank, link)][link].clone()).collect()
    };
    (0..listened.len()).map(of).collect()
}

impl Rank {
    /// Allocates memory, and listens for each connection that other ranks make. Pass the returned handles to [`route`].
    ///
    /// # Errors
    /// If there is no memory or no device, or the plugin refuses.
    pub fn listen(net: Net, spec: Spec) -> Result<(Self, Vec<Handle>), RankError> {
        let devices = net.devices()?;
        if devices == 0 {
            return Err(RankError::NoDevice);
        }
        let places = if spec.operation.reduces() { spec.channels * DEPTH } else { 0 };
        let areas = Areas {
            input: memory(spec.max_bytes)?,
            output: memory(spec.max_bytes)?,
            staging: memory(FLAGS_BYTES + places * place_bytes(&spec))?,
        };
        let links = 0..spec.connections();
        let listeners: Result<Vec<_>, _> =
            links.map(|link| net.listen(spec.device(link, devices))).collect();
        let listeners = listeners?;
        let handles = listeners.iter().map(|listener| *listener.handle()).collect();
        let (outgoing, incoming) = (Vec::new(), Vec::new());
        Ok((Self { spec, is_ready: false, net, listeners, outgoing, incoming, areas }, handles))
    }

    /// Connects to the other ranks, which must do so at the same time.
    ///
    /// # Errors
    /// If the plugin refuses, or not all connections are made in time.
    pub fn connect(&mut self, handles: &[Handle], until: Instant) -> Result<(), RankError> {
        let wanted = self.spec.connections();
        if handles.len() != wanted {
            return Err(RankError::Handles { got: handles.len(), wanted });
        }
        let devices = self.net.devices()?;
        let connectors = handles.iter().enumerate();
        let connectors: Result<Vec<_>, _> = connectors
            .map(|(link, handle)| self.net.connect(self.spec.device(link, devices), *handle))
            .collect();
        let mut connectors = connectors?;
        let mut outgoing: Vec<Option<_>> = (0..wanted).map(|_| None).collect();
        let mut incoming: Vec<Option<_>> = (0..wanted).map(|_| None).collect();
        loop {
            for link in 0..wanted {
                if outgoing[link].is_none() {
                    outgoing[link] = connectors[link].poll()?;
                }
                if incoming[link].is_none() {
                    incoming[link] = self.listeners[link].accept()?;
                }
            }
            let no_sender = outgoing.iter().position(Option::is_none);
            let no_receiver = incoming.iter().position(Option::is_none);
            let waits_for = match (no_sender, no_receiver) {
                (None, None) => break,
                (Some(link), _) => format!("no connection to rank {}", self.spec.target(link)),
                (_, Some(link)) => format!("no connection from rank {}", self.spec.source(link)),
            };
            if Instant::now() > until {
                return Err(RankError::Late { waits_for });
            }
            thread::yield_now();
        }
        let areas = &self.areas;
        let outgoing = outgoing.into_iter().flatten().map(|comm| Link::new(comm, areas));
        self.outgoing = outgoing.collect::<Result<_, _>>()?;
        let incoming = incoming.into_iter().flatten().map(|comm| Link::new(comm, areas));
        self.incoming = incoming.collect::<Result<_, _>>()?;
        self.is_ready = true;
        Ok(())
    }

    /// Runs the operation `warmup` times untimed and then `iterations` times, and returns the time of the latter. All
    /// ranks must call it at the same time.
    ///
    /// # Errors
    /// If the plugin refuses, or the operation doesn't finish in time. The rank can't run anything afterwards.
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

    /// Runs the operation once on other data, into a poisoned output, and returns the number of wrong elements.
    ///
    /// # Errors
    /// See [`run`](Self::run).
    pub fn check(&mut self, shape: Shape, seed: u64, until: Instant) -> Result<u64, RankError> {
        let plan = self.begin(shape, seed)?;
        // SAFETY: no request is under way.
        unsafe { self.areas.output.slice_mut(plan.result.clone()) }.fill(POISON);
        self.perform(&plan, until)?;
        // SAFETY: as above.
        let result = unsafe { self.areas.output.slice(plan.result.clone()) };
        let Spec { operation, element, rank, .. } = self.spec;
        Ok(element.wrong(result, operation, shape, rank, seed))
    }

    fn begin(&mut self, shape: Shape, seed: u64) -> Result<Plan, RankError> {
        if !self.is_ready {
            return Err(RankError::NotReady);
        }
        let Spec { operation, element, rank, channels, .. } = self.spec;
        let (bytes, room) = (operation.bytes(shape, element), self.areas.input.bytes());
        if bytes > room || shape.ranks != self.spec.ranks {
            return Err(RankError::TooLong { bytes, room });
        }
        // SAFETY: no request is under way, as the rank is ready.
        let input = unsafe { self.areas.input.slice_mut(0..bytes) };
        element.fill(input, rank, seed);
        Ok(Plan::new(operation, shape, element, rank, channels))
    }

    /// Works through a plan to its end. On an error, requests remain and the rank is no longer ready.
    fn perform(&mut self, plan: &Plan, until: Instant) -> Result<(), RankError> {
        let done = self.work(plan, until);
        self.is_ready = done.is_ok();
        done
    }

    /// Works through a plan as NCCL's proxy does: tests only the oldest request of each connection.
    fn work(&mut self, plan: &Plan, until: Instant) -> Result<(), RankError> {
        for (from, to, bytes) in plan.copies.iter().copied() {
            // SAFETY: no request is under way yet.
            let (input, output) = unsafe {
                (
                    self.areas.input.slice(from..from + bytes),
                    self.areas.output.slice_mut(to..to + bytes),
                )
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

    /// Posts and completes receives of a connection; returns whether anything was posted or completed. `sent`: messages
    /// on the outgoing connection that are done.
    fn receive(
        &mut self,
        link: usize,
        plan: &[Receive],
        stream: &mut Stream,
        sent: usize,
    ) -> Result<bool, RankError> {
        let mut has_moved = false;
        while let Some(next) = stream.next(plan)
            && next.after <= sent
        {
            let (area, offset) = match next.adds {
                true => (Area::Staging, self.place(link, stream.posted)),
                false => (next.into, next.at),
            };
            // The plan posts nothing else that writes or reads this range before this receive is done. A slot of
            // staging is free, because the message before in this slot is done.
            let Link { comm, regions } = &mut self.incoming[link];
            let (region, bytes) = (regions[area as usize], next.bytes);
            let posted = comm.irecv(&[Part { region, offset, bytes, tag: 0 }])?;
            let Some(request) = posted else { break };
            stream.post(request);
            has_moved = true;
        }
        let Some(oldest) = stream.requests.front_mut() else { return Ok(has_moved) };
        let comm = &mut self.incoming[link].comm;
        let Some(sizes) = comm.test(oldest)? else { return Ok(has_moved) };
        if let Some(request) = stream.requests.pop_front() {
            comm.consume(request)?;
        }
        let message = plan[stream.done];
        if sizes.is_told() && sizes.first() != message.bytes {
            let (from, got) = (self.spec.source(link), sizes.first());
            return Err(RankError::Length { from, got, wanted: message.bytes });
        }
        if message.adds {
            let (to, at) = (span(message.at, message.bytes), self.place(link, stream.done));
            // SAFETY: the request on the slot of staging is done. The plan sends from this part of the output only
            // after this, and nothing receives into it or into the input.
            unsafe {
                let came = self.areas.staging.slice(span(at, message.bytes));
                let own = self.areas.input.slice(to.clone());
                self.spec.element.add(self.areas.output.slice_mut(to), own, came);
            }
        }
        stream.done += 1;
        Ok(true)
    }

    /// Like [`receive`](Self::receive), for sends. `received`: messages on the incoming connection that are done.
    fn send(
        &mut self,
        link: usize,
        plan: &[Send],
        stream: &mut Stream,
        received: usize,
    ) -> Result<bool, RankError> {
        let Link { comm, regions } = &mut self.outgoing[link];
        let mut has_moved = false;
        while let Some(next) = stream.next(plan)
            && next.after <= received
        {
            // The plan writes nothing to this range before this send is done.
            let (region, offset, bytes) = (regions[next.from as usize], next.at, next.bytes);
            let posted = comm.isend(Part { region, offset, bytes, tag: 0 })?;
            let Some(request) = posted else { break };
            stream.post(request);
            has_moved = true;
        }
        let Some(oldest) = stream.requests.front_mut() else { return Ok(has_moved) };
        if comm.test(oldest)?.is_none() {
            return Ok(has_moved);
        }
        stream.requests.pop_front();
        stream.done += 1;
        Ok(true)
    }

    /// Offset in staging of the slot where a message waits to be added.
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

impl Spec {
    /// Number of connections: one for each channel to each rank that this one sends to, the nearest rank first.
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

    /// Device of a connection; channels use the devices round-robin.
    fn device(&self, link: usize, devices: usize) -> usize {
        link % self.channels % devices
    }
}

impl<S: Side> Link<S> {
    fn new(mut comm: Comm<S>, areas: &Areas) -> Result<Self, NetError> {
        let regions = [
            comm.register(areas.input.clone())?,
            comm.register(areas.output.clone())?,
            comm.register(areas.staging.clone())?,
        ];
        Ok(Self { comm, regions })
    }
}

impl Stream {
    /// The next message to post, if there is room for it.
    fn next<T: Copy>(&self, plan: &[T]) -> Option<T> {
        plan.get(self.posted).filter(|_| self.requests.len() < DEPTH).copied()
    }

    fn post(&mut self, request: Request) {
        self.requests.push_back(request);
        self.posted += 1;
    }
}

fn memory(bytes: usize) -> Result<Arc<HostMemory>, RankError> {
    HostMemory::new(bytes).map(Arc::new).ok_or(RankError::Memory { bytes })
}

fn place_bytes(spec: &Spec) -> usize {
    MESSAGE_BYTES.min(spec.max_bytes.next_multiple_of(64))
}

fn span(at: usize, bytes: usize) -> Range<usize> {
    at..at + bytes
}
