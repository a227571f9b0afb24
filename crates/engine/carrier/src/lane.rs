//! One direction of a plugin connection.

mod pump;

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use polyrail_gpu::{Completion, GpuError, Ticket};
use polyrail_nccl_abi::{HostMemory, Part, RecvComm, Region, Request, SendComm};
use polyrail_sys::threads::monotonic_ns;

use crate::bytes::{Bytes, Holder};
use crate::calls::{self, Stuck};
use crate::closing::{Closer, Closing};
use crate::gatherer::Gatherers;
use crate::unpack::{Gathering, Unpack};
use crate::way::Way;

/// One direction of a plugin connection: messages in order, each of one or more pieces. Clones are the same lane. It
/// may be used from any thread, and must be closed by [`Lane::close`].
#[derive(Clone)]
pub struct Lane(Arc<Shared>);

/// Bytes that a lane sends, or a target for bytes that it receives.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Owner of the bytes.
    pub holder: Holder,
    /// All bytes of the owner.
    pub bytes: Bytes,
    /// Offset from their start.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// CRC-32C that a received message in host memory must have. A mismatch breaks the lane.
#[derive(Clone, Copy, Debug)]
pub struct Check {
    /// CRC of the data before the message.
    pub begun: u32,
    /// CRC of that data and the message.
    pub want: u32,
}

/// Interval at which waiting code checks for stuck calls.
const LOOK: Duration = Duration::from_millis(10);

struct Shared {
    /// Number of this lane in the process, from 1 on.
    number: u64,
    state: Mutex<State>,
    /// Number of completed messages.
    completed: AtomicU64,
    begun: AtomicU64,
    progressed_ns: AtomicU64,
    /// Reason why the lane takes no more messages. Posted memory may still be touched.
    broken: OnceLock<String>,
    /// True when the plugin has closed the connection: it touches no more memory.
    is_closed: Arc<AtomicBool>,
    /// Number of callers that wait for the closing thread.
    await_closer: AtomicUsize,
    closer: Closer,
}

struct State {
    /// `None` once it is being closed.
    way: Option<Way>,
    /// Assembles messages that arrive as fragments.
    unpack: Option<Unpack>,
    /// Posts for which the plugin has no room yet.
    waiting: VecDeque<Post>,
    posted: VecDeque<Posted>,
    /// Number of posts, oldest first, that have arrived and may not be in place yet.
    came: usize,
    /// Registrations by owner.
    regions: Vec<(Holder, Region)>,
    /// Target for discarded messages.
    scratch: Option<(Region, usize)>,
    /// CRC of the message that is arriving.
    crc: u32,
}

/// A piece to be posted.
struct Post {
    part: Part,
    /// Target of the piece, if it has a checksum or a GPU must see it.
    bytes: Option<(Bytes, u64)>,
    begins: Option<Check>,
    ends: Option<Ends>,
}

/// Marks the last piece of a message.
#[derive(Clone, Copy)]
enum Ends {
    Unchecked,
    Checked(Check),
}

struct Posted {
    post: Post,
    request: Request,
    /// Flush after a receive into GPU memory.
    flush: Option<Request>,
    gathering: Option<Gathering>,
}

impl Lane {
    pub(crate) fn new(way: Way, unpack: Option<Unpack>, closer: Closer) -> Self {
        let state = State {
            way: Some(way),
            unpack,
            came: 0,
            waiting: VecDeque::new(),
            posted: VecDeque::new(),
            regions: Vec::new(),
            scratch: None,
            crc: 0,
        };
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Shared {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            state: Mutex::new(state),
            completed: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            progressed_ns: AtomicU64::new(monotonic_ns()),
            broken: OnceLock::new(),
            is_closed: Arc::default(),
            await_closer: AtomicUsize::new(0),
            closer,
        }))
    }

    /// Both ends of a plugin connection within this process, for testing a plugin as an engine uses it, and a thread
    /// that ends when both are dropped and the plugin has closed them.
    pub fn both(
        sender: SendComm,
        receiver: RecvComm,
    ) -> Result<(Self, Self, JoinHandle<()>), String> {
        let (closer, thread) = Closer::start().map_err(|error| error.to_string())?;
        let mut gatherers = Gatherers::default();
        let unpack = receiver.device_handle().map(|handle| Unpack::open(&handle, &mut gatherers));
        let unpack = unpack.transpose()?;
        let sends = Self::new(Way::Sends(sender), None, closer.clone());
        Ok((sends, Self::new(Way::Receives(receiver), unpack, closer), thread))
    }

    /// Sends or receives the pieces as one message. The ticket is done when the bytes may be used: they have left, or
    /// are in place. It fails if the lane is closed before. Memory that the caller keeps must stay valid until then,
    /// and be [forgotten](Self::forget) before it is freed.
    pub fn post(&self, pieces: impl IntoIterator<Item = Piece>, check: Option<Check>) -> Ticket {
        let Some(mut state) = self.0.lock() else { return self.ticket(true) };
        let mut posts = Vec::new();
        for Piece { holder, bytes, offset, len } in pieces {
            let State { way: Some(way), regions, unpack, .. } = &mut *state else {
                return self.ticket(true);
            };
            let is_receive = matches!(way, Way::Receives(_));
            let known = regions.iter().find(|(known, _)| *known == holder);
            let region = match known {
                Some((_, region)) => *region,
                None => match way.register(bytes.clone()) {
                    Ok(region) => {
                        regions.push((holder, region));
                        region
                    }
                    Err(error) => {
                        self.0.break_off(&mut state, error.to_string());
                        return self.ticket(true);
                    }
                },
            };
            let part = Part { region, offset: offset as usize, bytes: len as usize, tag: 0 };
            let wanted = is_receive
                && (check.is_some() || unpack.is_some() || matches!(bytes, Bytes::Cuda(_)));
            let bytes = wanted.then_some((bytes, offset));
            posts.push(Post { part, bytes, begins: None, ends: None });
        }
        self.enqueue(&mut state, posts, check)
    }

    /// Receives a message of pieces with these lengths and discards it. The returned ticket is done when it has
    /// arrived.
    pub fn discard(&self, lens: impl IntoIterator<Item = u64>) -> Ticket {
        let lens: Vec<usize> = lens.into_iter().map(|len| len as usize).collect();
        let Some(mut state) = self.0.lock() else { return self.ticket(true) };
        let most = lens.iter().copied().max().unwrap_or_default();
        let region = match state.scratch(most) {
            Some(Ok(region)) => region,
            Some(Err(why)) => {
                self.0.break_off(&mut state, why);
                return self.ticket(true);
            }
            None => return self.ticket(true),
        };
        let post = |bytes| {
            let part = Part { region, offset: 0, bytes, tag: 0 };
            Post { part, bytes: None, begins: None, ends: None }
        };
        self.enqueue(&mut state, lens.into_iter().map(post).collect(), None)
    }

    fn enqueue(&self, state: &mut State, mut posts: Vec<Post>, check: Option<Check>) -> Ticket {
        let (Some(first), true) = (posts.first_mut(), state.way.is_some()) else {
            return self.ticket(true);
        };
        first.begins = check;
        if let Some(last) = posts.last_mut() {
            last.ends = Some(check.map_or(Ends::Unchecked, Ends::Checked));
        }
        if self.0.begun.fetch_add(1, Ordering::Relaxed) == self.0.completed.load(Ordering::Relaxed)
        {
            self.0.progressed_ns.store(monotonic_ns(), Ordering::Relaxed);
        }
        state.waiting.extend(posts);
        self.0.pump(state);
        self.ticket(false)
    }

    /// Ticket of the last message, or one that never completes.
    fn ticket(&self, is_lost: bool) -> Ticket {
        let begun = self.0.begun.load(Ordering::Relaxed);
        Ticket::new(self.0.clone(), if is_lost { u64::MAX } else { begun })
    }

    /// Drives posted messages. Does nothing if another thread is driving them.
    pub fn poll(&self) {
        if let Some(mut state) = self.0.state.try_lock() {
            calls::moves(self.0.number);
            self.0.pump(&mut state);
        }
    }

    /// True if both are the same lane.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// True if messages are in flight.
    pub fn is_busy(&self) -> bool {
        self.broken().is_none()
            && self.0.begun.load(Ordering::Relaxed) != self.0.completed.load(Ordering::Relaxed)
    }

    /// Reason why the lane takes no more messages.
    pub fn broken(&self) -> Option<&str> {
        self.0.broken.get().map(String::as_str)
    }

    /// Time since the plugin last moved a posted message, by the monotonic clock. Time in which a GPU assembles a
    /// message does not count.
    pub fn silence(&self, now: u64) -> Duration {
        let since = self.0.progressed_ns.load(Ordering::Relaxed);
        match self.is_busy() {
            true => Duration::from_nanos(now.saturating_sub(since)),
            false => Duration::ZERO,
        }
    }

    /// Deregisters the holder's memory, which is about to be freed and has no message in flight. Returns true if the
    /// plugin has forgotten it. Otherwise the plugin forgets it when the lane [is closed](Self::is_closed), which
    /// happens unless it [is given up](Self::is_given_up).
    pub fn forget(&self, holder: Holder) -> bool {
        let Some(mut state) = self.0.lock() else { return false };
        let State { way: Some(way), regions, .. } = &mut *state else { return self.is_closed() };
        let Some(at) = regions.iter().position(|(known, _)| *known == holder) else { return true };
        let (_, region) = regions.swap_remove(at);
        match way.deregister(region) {
            Ok(()) => true,
            Err(error) => {
                // The plugin may still use the memory.
                self.0.break_off(&mut state, error.to_string());
                false
            }
        }
    }

    /// Like [`Self::forget`], on the closing thread, for callers that must not block in the plugin forever. Gives up
    /// like any call.
    pub fn forget_elsewhere(&self, holder: Holder) -> bool {
        let (tell, told) = sync_channel(1);
        let lane = self.clone();
        self.0.await_closer.fetch_add(1, Ordering::Relaxed);
        self.0.closer.run(move || {
            let has_forgotten = lane.forget(holder);
            // The caller may have given up.
            let _ = tell.send(has_forgotten);
        });
        let has_forgotten = loop {
            match told.recv_timeout(LOOK) {
                Ok(has_forgotten) => break has_forgotten,
                Err(RecvTimeoutError::Timeout) => {
                    calls::stuck();
                    if self.is_given_up() {
                        return false;
                    }
                }
                // The closing thread has stopped.
                Err(RecvTimeoutError::Disconnected) => break self.forget(holder),
            }
        };
        self.0.await_closer.fetch_sub(1, Ordering::Relaxed);
        has_forgotten
    }

    /// True if the plugin has closed the connection and touches no more memory.
    pub fn is_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Acquire)
    }

    /// True if a call that drives this lane, or that its closing waits for, has exceeded its limit
    /// ([`stuck`](crate::stuck)). Its tickets fail, and the plugin may touch its memory forever.
    pub fn is_given_up(&self) -> bool {
        self.0.is_given_up()
    }

    /// Closes the connection soon, on another thread. From then on all its tickets fail. Does nothing if it was closed
    /// before.
    pub fn close(&self) {
        let why = "the connection was closed".to_owned();
        match self.0.lock() {
            Some(mut state) => self.0.break_off(&mut state, why),
            // The thread inside the lane closes it when it returns.
            None => drop(self.0.broken.set(why)),
        }
    }
}

impl Shared {
    /// Locks the state to call the plugin. `None` if another thread is stuck in it.
    fn lock(&self) -> Option<MutexGuard<'_, State>> {
        loop {
            if let Some(state) = self.state.try_lock_for(LOOK) {
                calls::moves(self.number);
                return Some(state);
            }
            calls::stuck();
            if self.is_given_up() {
                return None;
            }
        }
    }

    fn is_given_up(&self) -> bool {
        let waits = || {
            let is_closing = self.broken.get().is_some() && !self.is_closed.load(Ordering::Acquire);
            is_closing || self.await_closer.load(Ordering::Relaxed) > 0
        };
        // Calls of the closing thread.
        let is_of_closer =
            |call: &Stuck| call.function.starts_with("close") || call.function == "deregMr";
        calls::are_given_up(|call| {
            call.lane == Some(self.number) || (is_of_closer(call) && waits())
        })
    }

    fn break_off(&self, state: &mut State, why: String) {
        let Some(way) = state.way.take() else { return };
        state.unpack = None;
        // Another thread may have set the reason.
        let _ = self.broken.set(why);
        state.waiting.clear();
        let gathered = state.posted.drain(..).filter_map(|posted| posted.gathering).collect();
        self.closer.close(Closing::new(way, gathered, self.is_closed.clone()));
    }
}

/// Callers hold locks of the engine, so don't call the plugin here.
impl Completion for Shared {
    fn completed(&self) -> Result<u64, GpuError> {
        if self.is_closed.load(Ordering::Acquire) {
            let text = self.broken.get().cloned().unwrap_or_default();
            return Err(GpuError::Driver { call: "plugin", name: "closed".to_owned(), text });
        }
        let completed = self.completed.load(Ordering::Acquire);
        match self.is_given_up() {
            true => {
                let text = "a call has not returned".to_owned();
                Err(GpuError::Driver { call: "plugin", name: "stuck".to_owned(), text })
            }
            false => Ok(completed),
        }
    }
}

impl State {
    /// Returns memory of at least `len` bytes for discarded messages, or `None` if the lane is closed.
    fn scratch(&mut self, len: usize) -> Option<Result<Region, String>> {
        let way = self.way.as_mut()?;
        if let Some((region, size)) = self.scratch
            && size >= len
        {
            return Some(Ok(region));
        }
        // The smaller memory stays until the connection is closed, because receives may still write to it.
        let size = len.next_power_of_two().max(64 << 10);
        let Some(memory) = HostMemory::new(size) else {
            return Some(Err(format!("there is no memory for {size} bytes")));
        };
        let registered = way.register_any(Arc::new(memory)).map_err(|error| error.to_string());
        if let Ok(region) = registered {
            self.scratch = Some((region, size));
        }
        Some(registered)
    }
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (completed, begun) = (load(&self.0.completed), load(&self.0.begun));
        let (waiting, posted) = match self.0.state.try_lock() {
            Some(state) => (state.waiting.len(), state.posted.len()),
            None => (0, 0),
        };
        write!(
            f,
            "Lane({completed} of {begun} messages, {waiting} wait, {posted} posted, {:?})",
            self.broken()
        )
    }
}
