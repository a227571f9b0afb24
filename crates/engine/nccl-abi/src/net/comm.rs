//! Connections, and what is registered and posted on them.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::NetError;
use super::memory::Memory;
use super::raw::{MAX_GROUP, Parts, Raw, UNTOLD};
use crate::{DeviceHandle, Opaque};

/// Memory registered with a connection; a key that only this connection knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    comm: u64,
    slot: usize,
    generation: u64,
}

/// A message: where in a region it is.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Registered with the same connection.
    pub region: Region,
    /// From its begin, in bytes.
    pub offset: usize,
    /// Length of the message, or the room for it.
    pub bytes: usize,
    /// Tells messages of a grouped receive apart; 0 else.
    pub tag: i32,
}

/// Lengths of the messages of a request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    count: usize,
    bytes: [usize; MAX_GROUP],
    is_told: bool,
}

impl Sizes {
    /// Whether the plugin has told them: some never do. Then those of a receive are 0, which is what NCCL takes
    /// them for.
    pub fn is_told(&self) -> bool {
        self.is_told
    }

    /// One for each message, in the order in which they were posted.
    pub fn all(&self) -> &[usize] {
        &self.bytes[..self.count]
    }

    /// Of the first message.
    pub fn first(&self) -> usize {
        self.bytes[0]
    }
}

/// Something posted. The memory of a request that is dropped before it is done stays registered until the
/// connection is closed.
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

/// A connection that sends. Dropping it closes it, whatever is under way.
pub type SendComm = Comm<Sends>;

/// A connection that receives. Dropping it closes it, whatever is under way.
pub type RecvComm = Comm<Receives>;

/// A connection.
pub struct Comm<S: Side> {
    raw: Arc<Raw>,
    /// Null once it was closed.
    comm: Opaque,
    serial: u64,
    slots: Vec<Slot>,
    /// Requests that hold a place of the plugin's.
    under_way: usize,
    // Dropped behind the connection: a plugin has the address of it.
    side: S,
}

// SAFETY: plugins take calls of a connection from any thread, one at a time, and all take `&mut self`.
unsafe impl<S: Side> Send for Comm<S> {}

/// What a connection does.
pub trait Side: sealed::Side {}

/// It sends.
pub struct Sends;

/// It receives.
pub struct Receives {
    /// What the plugin says about finishing receives on a GPU.
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

/// A registration, or a place for one.
struct Slot {
    handle: Opaque,
    /// `None` if the place is free.
    memory: Option<Arc<dyn Memory>>,
    generation: u64,
    /// Requests that are not done, and have this memory.
    users: usize,
}

static SERIAL: AtomicU64 = AtomicU64::new(0);

impl Comm<Sends> {
    /// Posts a message; `None` if the plugin has no room for it yet. Whoever changes the memory before the
    /// request is done may change what arrives.
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
    /// What finishes receives on a GPU, for devices of the kind "unpack": then done receives are not in
    /// place until that was carried out.
    pub fn device_handle(&self) -> Option<DeviceHandle> {
        self.side.on_gpu.as_deref().copied()
    }

    /// What the plugin calls a region on a GPU; null if it has no name for it.
    ///
    /// # Errors
    /// If the region is not one of this connection, or the plugin refuses or has no such function.
    pub fn device_region(&mut self, region: Region) -> Result<Opaque, NetError> {
        let handle = self.slot(region)?.handle;
        // SAFETY: the connection is open, and the region is one of it.
        unsafe { self.raw.device_mr(self.comm, handle) }
    }

    /// Posts memory for one message, or for several that their tags tell apart, as many as the device's
    /// `max_recvs`; `None` if the plugin has no room for it yet.
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

    /// Makes what was received visible to the GPU that has the memory; `None` if it is so already.
    ///
    /// # Errors
    /// As [`irecv`](Self::irecv).
    pub fn iflush(&mut self, parts: &[Part]) -> Result<Option<Request>, NetError> {
        let mut lists = self.parts(parts)?;
        // SAFETY: as for a receive.
        let request = unsafe { self.raw.iflush(self.comm, &mut lists) }?;
        Ok(self.posted(request, parts, false))
    }

    /// Tells the plugin that a receive that is done is in place, where it wants to know: it uses the memory
    /// in between again. Receives are consumed in the order in which they were posted.
    ///
    /// # Errors
    /// If the request is not a done receive of this connection, or the plugin refuses.
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
        // SAFETY: a receive of this open connection that is done, and is gone after this.
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

    /// Registers memory by a DMA-BUF that has it from this offset on.
    ///
    /// # Safety
    /// The DMA-BUF has the memory.
    ///
    /// # Errors
    /// If the plugin refuses, or can't do this.
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
        // SAFETY: the connection is open. It keeps the memory until it was deregistered, or closed.
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
    /// If a request uses it, it is not one of this connection, or the plugin refuses.
    pub fn deregister(&mut self, region: Region) -> Result<(), NetError> {
        let slot = self.slot(region)?;
        let (handle, users) = (slot.handle, slot.users);
        if users > 0 {
            return Err(NetError::Misuse(format!("{users} requests use the region")));
        }
        let memory = self.slots[region.slot].memory.take();
        // SAFETY: the connection is open, the region one of it, and no request uses it.
        let done = unsafe { self.raw.dereg_mr(self.comm, handle) };
        if done.is_err() {
            // The plugin may have it still.
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

    /// The lists for the plugin, if all parts are within their regions.
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

    /// The lengths of the messages if the request is done: a message sent has left, so that its memory may
    /// be used. A receive that is done is for [`consume`](Comm::consume) then.
    ///
    /// # Errors
    /// If the request was done before or is another connection's, or the plugin refuses.
    pub fn test(&mut self, request: &mut Request) -> Result<Option<Sizes>, NetError> {
        self.own(request)?;
        if request.state == State::Done {
            return Err(NetError::Misuse("the request was done already".to_owned()));
        }
        // SAFETY: the connection is open, and the request one of it that was not done.
        let Some(told) = (unsafe { self.raw.test(request.pointer) })? else { return Ok(None) };
        request.state = State::Done;
        // A receive holds its place until the plugin hears that it was consumed.
        self.under_way -= usize::from(!(request.is_receive && self.raw.has_consumed()));
        let mut sizes = Sizes { count: request.count, bytes: [0; MAX_GROUP], is_told: true };
        let mut fault = None;
        for (index, got) in told.into_iter().take(request.count).enumerate() {
            self.slots[request.slots[index]].users -= 1;
            let room = request.room[index];
            match usize::try_from(got).ok().filter(|got| *got <= room) {
                // NCCL knows what it sends, and some plugins write nothing or anything there.
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

    /// Closes it and tells what the plugin says to that.
    ///
    /// # Errors
    /// If the plugin refuses; it is gone nevertheless.
    pub fn close(mut self) -> Result<(), NetError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), NetError> {
        if self.comm.is_null() {
            return Ok(());
        }
        let mut done = Ok(());
        for slot in self.slots.iter().filter(|slot| slot.memory.is_some()) {
            // SAFETY: the connection is open. Requests that are not done end with it, as when NCCL aborts.
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
        // The memory is dropped behind this. Nothing can be done about a plugin that refuses it.
        drop(self.end());
    }
}
