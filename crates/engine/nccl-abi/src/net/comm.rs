//! Connections, with their registrations and requests.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::NetError;
use super::memory::Memory;
use super::raw::{MAX_GROUP, Parts, Raw, UNTOLD};
use crate::{DeviceHandle, Opaque};

/// Key of memory registered with a connection, valid for this connection only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    comm: u64,
    slot: usize,
    generation: u64,
}

/// A message's place in a region.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Region registered with the same connection.
    pub region: Region,
    /// Offset from the region's start, in bytes.
    pub offset: usize,
    /// Length of the message, or of the room for it.
    pub bytes: usize,
    /// Tag that tells messages of a grouped receive apart; 0 otherwise.
    pub tag: i32,
}

/// Lengths of a completed request's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    count: usize,
    bytes: [usize; MAX_GROUP],
    is_told: bool,
}

impl Sizes {
    /// True if the plugin has reported the lengths. Some plugins never do. Then those of a receive are 0, like in NCCL.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// Lengths of all messages, in the order in which they were posted.
    pub fn all(&self) -> &[usize] {
        &self.bytes[..self.count]
    }

    /// Length of the first message.
    pub fn first(&self) -> usize {
        self.bytes[0]
    }
}

/// A posted request. If it is dropped before it completes, its memory stays registered until the connection is closed.
#[must_use = "a request is over when `test` has said so"]
#[derive(Debug)]
pub struct Request {
    comm: u64,
    pointer: Opaque,
    count: usize,
    slots: [usize; MAX_GROUP],
    room: [usize; MAX_GROUP],
    state: State,
    is_receive: bool,
}

// SAFETY: the pointer goes back to the plugin only, by its connection.
unsafe impl Send for Request {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Posted,
    Done,
}

/// A connection that sends. Dropping it closes it, even with requests in flight.
pub type SendComm = Comm<Sends>;

/// A connection that receives. Dropping it closes it, even with requests in flight.
pub type RecvComm = Comm<Receives>;

/// A connection.
pub struct Comm<S: Side> {
    raw: Arc<Raw>,
    /// Null once closed.
    comm: Opaque,
    serial: u64,
    slots: Vec<Slot>,
    /// Requests that occupy a slot of the plugin.
    under_way: usize,
    // Dropped after the connection, because the plugin has its address.
    side: S,
}

// SAFETY: plugins accept calls for a connection from any thread, one at a time, and all methods take `&mut self`.
unsafe impl<S: Side> Send for Comm<S> {}

/// Direction of a connection.
pub trait Side: sealed::Side {}

/// The sending side.
pub struct Sends;

/// The receiving side.
pub struct Receives {
    /// Plugin's description of how receives finish on a GPU.
    pub(super) on_gpu: Option<Box<DeviceHandle>>,
}

impl Side for Sends {}
impl Side for Receives {}

mod sealed {
    pub trait Side {
        const SENDS: bool;
    }

    impl Side for super::Sends {
        const SENDS: bool = true;
    }

    impl Side for super::Receives {
        const SENDS: bool = false;
    }
}

/// A registration, or a free slot.
struct Slot {
    handle: Opaque,
    /// `None` if the slot is free.
    memory: Option<Arc<dyn Memory>>,
    generation: u64,
    /// Number of pending requests that use this memory.
    users: usize,
}

static SERIAL: AtomicU64 = AtomicU64::new(0);

impl Comm<Sends> {
    /// Posts a message. Returns `None` if the plugin has no room for it yet. Changing the memory before the request
    /// completes may change the bytes that arrive.
    ///
    /// # Errors
    /// If the message is not within its region, or the plugin refuses.
    pub fn isend(&mut self, part: Part) -> Result<Option<Request>, NetError> {
        let parts = self.parts(&[part])?;
        if self.is_full() {
            return Ok(None);
        }
        let (data, region) = (parts.data[0], parts.regions[0]);
        // SAFETY: the connection is open; it keeps the memory of the region until the request is done.
        let request = unsafe { self.raw.isend(self.comm, data, parts.bytes[0], part.tag, region) }?;
        Ok(self.posted(request, &[part], false))
    }
}

impl Comm<Receives> {
    /// Handle for finishing receives on a GPU, for devices of the kind "unpack". There, data of completed receives is
    /// in place only after that step.
    pub fn device_handle(&self) -> Option<DeviceHandle> {
        self.side.on_gpu.as_deref().copied()
    }

    /// Returns the plugin's handle of a region for a GPU, or null if it has none.
    ///
    /// # Errors
    /// If the region belongs to another connection, or the plugin refuses or has no such function.
    pub fn device_region(&mut self, region: Region) -> Result<Opaque, NetError> {
        let handle = self.slot(region)?.handle;
        // SAFETY: the connection is open, and the region belongs to it.
        unsafe { self.raw.device_mr(self.comm, handle) }
    }

    /// Posts memory for one message, or for several with different tags, at most the device's `max_recvs`. Returns
    /// `None` if the plugin has no room for it yet.
    ///
    /// # Errors
    /// If a part is not within its region or there are too many, or the plugin refuses.
    pub fn irecv(&mut self, parts: &[Part]) -> Result<Option<Request>, NetError> {
        let mut lists = self.parts(parts)?;
        if self.is_full() {
            return Ok(None);
        }
        // SAFETY: the connection is open; it keeps the memory of the regions until the request is done.
        let request = unsafe { self.raw.irecv(self.comm, &mut lists) }?;
        Ok(self.posted(request, parts, true))
    }

    /// Makes received data visible to the GPU that owns the memory. Returns `None` if nothing has to be done.
    ///
    /// # Errors
    /// As [`irecv`](Self::irecv).
    pub fn iflush(&mut self, parts: &[Part]) -> Result<Option<Request>, NetError> {
        let mut lists = self.parts(parts)?;
        // SAFETY: as for a receive.
        let request = unsafe { self.raw.iflush(self.comm, &mut lists) }?;
        Ok(self.posted(request, parts, false))
    }

    /// Tells the plugin that the data of a completed receive is in place, if it has a function for that: it then reuses
    /// the intermediate memory. Receives are consumed in the order in which they were posted.
    ///
    /// # Errors
    /// If the request is not a completed receive of this connection, or the plugin refuses.
    pub fn consume(&mut self, request: Request) -> Result<(), NetError> {
        self.own(&request)?;
        if request.state != State::Done || !request.is_receive {
            return Err(NetError::Misuse("only a receive that is done can be consumed".to_owned()));
        }
        if !self.raw.has_consumed() {
            return Ok(());
        }
        self.under_way -= 1;
        let count = request.count as c_int;
        // SAFETY: a completed receive of this open connection, which is dropped after this.
        unsafe { self.raw.irecv_consumed(self.comm, count, request.pointer) }
    }
}

impl<S: Side> Comm<S> {
    pub(super) fn new(raw: &Arc<Raw>, comm: Opaque, side: S) -> Self {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        Self { raw: raw.clone(), comm, serial, slots: Vec::new(), under_way: 0, side }
    }

    /// Registers memory.
    ///
    /// # Errors
    /// If the plugin refuses.
    pub fn register(&mut self, memory: Arc<dyn Memory>) -> Result<Region, NetError> {
        self.register_as(memory, None)
    }

    /// Registers memory by a DMA-BUF that contains it from this offset on.
    ///
    /// # Safety
    /// The DMA-BUF contains the memory.
    ///
    /// # Errors
    /// If the plugin refuses, or does not support this.
    pub unsafe fn register_dma_buf(
        &mut self,
        memory: Arc<dyn Memory>,
        descriptor: BorrowedFd<'_>,
        offset: u64,
    ) -> Result<Region, NetError> {
        self.register_as(memory, Some((descriptor, offset)))
    }

    fn register_as(
        &mut self,
        memory: Arc<dyn Memory>,
        dma_buf: Option<(BorrowedFd<'_>, u64)>,
    ) -> Result<Region, NetError> {
        let (data, bytes, kind) = (memory.address(), memory.bytes(), memory.kind().bit());
        let (raw, comm) = (&self.raw, self.comm);
        // SAFETY: the connection is open. It keeps the memory until it is deregistered, or closed.
        let handle = unsafe {
            match dma_buf {
                None => raw.reg_mr(comm, data, bytes, kind)?,
                Some((descriptor, offset)) => {
                    let descriptor = descriptor.as_raw_fd();
                    raw.reg_mr_dma_buf(comm, (data, bytes, kind), offset, descriptor)?
                }
            }
        };
        let free = self.slots.iter().position(|slot| slot.memory.is_none());
        let slot = free.unwrap_or_else(|| {
            self.slots.push(Slot { handle: null_mut(), memory: None, generation: 0, users: 0 });
            self.slots.len() - 1
        });
        let place = &mut self.slots[slot];
        (place.handle, place.memory, place.generation) =
            (handle, Some(memory), place.generation + 1);
        Ok(Region { comm: self.serial, slot, generation: place.generation })
    }

    /// Ends a registration.
    ///
    /// # Errors
    /// If a request uses it, it belongs to another connection, or the plugin refuses.
    pub fn deregister(&mut self, region: Region) -> Result<(), NetError> {
        let slot = self.slot(region)?;
        let (handle, users) = (slot.handle, slot.users);
        if users > 0 {
            return Err(NetError::Misuse(format!("{users} requests use the region")));
        }
        let memory = self.slots[region.slot].memory.take();
        // SAFETY: the connection is open, the region belongs to it, and no request uses it.
        let done = unsafe { self.raw.dereg_mr(self.comm, handle) };
        if done.is_err() {
            // The plugin may still have it.
            self.slots[region.slot].memory = memory;
        }
        done
    }

    fn slot(&self, region: Region) -> Result<&Slot, NetError> {
        let slot = self.slots.get(region.slot).filter(|slot| {
            region.comm == self.serial
                && region.generation == slot.generation
                && slot.memory.is_some()
        });
        slot.ok_or_else(|| NetError::Misuse("the region is not one of this connection".to_owned()))
    }

    /// Builds the lists for the plugin, after checking that all parts are within their regions.
    fn parts(&self, parts: &[Part]) -> Result<Parts, NetError> {
        if parts.is_empty() || parts.len() > MAX_GROUP {
            let text =
                format!("{} messages in a group; 1 to {MAX_GROUP} are possible", parts.len());
            return Err(NetError::Misuse(text));
        }
        let mut lists = Parts {
            count: parts.len() as c_int,
            data: [null_mut(); MAX_GROUP],
            bytes: [0; MAX_GROUP],
            tags: [0; MAX_GROUP],
            regions: [null_mut(); MAX_GROUP],
        };
        for (index, part) in parts.iter().enumerate() {
            let slot = self.slot(part.region)?;
            let memory = slot.memory.as_ref().map_or(0, |memory| memory.bytes());
            let end = part.offset.checked_add(part.bytes);
            let (true, Ok(bytes)) =
                (end.is_some_and(|end| end <= memory), c_int::try_from(part.bytes))
            else {
                return Err(NetError::Misuse(format!(
                    "{} bytes at {} are not within a region of {memory} bytes, or too long for a \
                     message",
                    part.bytes, part.offset
                )));
            };
            let begin = slot.memory.as_ref().map_or(null_mut(), |memory| memory.address());
            lists.data[index] = begin.wrapping_byte_add(part.offset);
            (lists.bytes[index], lists.tags[index]) = (bytes, part.tag);
            lists.regions[index] = slot.handle;
        }
        Ok(lists)
    }

    fn is_full(&self) -> bool {
        self.under_way >= self.raw.max_requests()
    }

    fn posted(&mut self, pointer: Opaque, parts: &[Part], is_receive: bool) -> Option<Request> {
        if pointer.is_null() {
            return None;
        }
        let (mut slots, mut room) = ([0; MAX_GROUP], [0; MAX_GROUP]);
        for (index, part) in parts.iter().enumerate() {
            self.slots[part.region.slot].users += 1;
            (slots[index], room[index]) = (part.region.slot, part.bytes);
        }
        self.under_way += 1;
        let (comm, count, state) = (self.serial, parts.len(), State::Posted);
        Some(Request { comm, pointer, count, slots, room, state, is_receive })
    }

    fn own(&self, request: &Request) -> Result<(), NetError> {
        if request.comm != self.serial {
            return Err(NetError::Misuse("the request is another connection's".to_owned()));
        }
        Ok(())
    }

    /// Returns the lengths of the messages if the request has completed. Sent memory may be reused then. A completed
    /// receive has to be passed to [`consume`](Comm::consume).
    ///
    /// # Errors
    /// If the request had completed before or belongs to another connection, or the plugin refuses.
    pub fn test(&mut self, request: &mut Request) -> Result<Option<Sizes>, NetError> {
        self.own(request)?;
        if request.state == State::Done {
            return Err(NetError::Misuse("the request was done already".to_owned()));
        }
        // SAFETY: the connection is open, and the request belongs to it and has not completed.
        let Some(told) = (unsafe { self.raw.test(request.pointer) })? else { return Ok(None) };
        request.state = State::Done;
        // A receive keeps its slot until it is consumed.
        self.under_way -= usize::from(!(request.is_receive && self.raw.has_consumed()));
        let mut sizes = Sizes { count: request.count, bytes: [0; MAX_GROUP], is_told: true };
        let mut fault = None;
        for (index, got) in told.into_iter().take(request.count).enumerate() {
            self.slots[request.slots[index]].users -= 1;
            let room = request.room[index];
            match usize::try_from(got).ok().filter(|got| *got <= room) {
                // The length of a sent message is known, and some plugins write nothing or garbage there.
                _ if !request.is_receive => sizes.bytes[index] = room,
                Some(got) => sizes.bytes[index] = got,
                None if got == UNTOLD => sizes.is_told = false,
                None => fault = Some(format!("a length of {got}; 0 to {room} are possible")),
            }
        }
        match fault {
            Some(answer) => Err(NetError::Answer { function: "test", answer }),
            None => Ok(Some(sizes)),
        }
    }

    /// Closes the connection and returns the plugin's result.
    ///
    /// # Errors
    /// If the plugin refuses. The connection is gone nevertheless.
    pub fn close(mut self) -> Result<(), NetError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), NetError> {
        if self.comm.is_null() {
            return Ok(());
        }
        let mut done = Ok(());
        for slot in self.slots.iter().filter(|slot| slot.memory.is_some()) {
            // SAFETY: the connection is open. Pending requests end with it, as when NCCL aborts.
            done = done.and(unsafe { self.raw.dereg_mr(self.comm, slot.handle) });
        }
        let comm = std::mem::replace(&mut self.comm, null_mut());
        // SAFETY: open until here, and never used again.
        done.and(unsafe {
            if S::SENDS { self.raw.close_send(comm) } else { self.raw.close_recv(comm) }
        })
    }
}

impl<S: Side> Drop for Comm<S> {
    fn drop(&mut self) {
        // The memory is dropped after this. An error of the plugin can't be handled here.
        drop(self.end());
    }
}
