//! The sending end: messages one after another, each preceded by its length.

use std::collections::VecDeque;

use polyrail_gpu::{CopyPlace, DeviceMemory, Ticket};
use polyrail_nccl_abi::MAX_REQUESTS;
use polyrail_sys::{IoVecs, Memory, Out};

use crate::error::CallError;
use crate::link::Link;
use crate::metadata::MESSAGE_BYTES_MAX;
use crate::plugin::{Region, Stages};
use crate::settings::Mode;
use crate::stage::Part;

/// Bytes in front of a message: its length.
pub(crate) const HEAD_BYTES: usize = 8;

pub(crate) struct SendEnd {
    link: Link,
    /// Posted messages that the kernel has not taken yet.
    queue: VecDeque<Message>,
    posted: u32,
    sent: u32,
    stages: Stages,
}

struct Message {
    head: [u8; HEAD_BYTES],
    bytes: Memory,
    /// Copy of the bytes to host memory, until it is done.
    copied: Option<Ticket>,
    /// The part of the stage that contains them.
    _part: Option<Part>,
    /// Bytes sent of head and message.
    sent: usize,
}

impl SendEnd {
    /// Creates everything a GPU needs now: later a kernel of the host may wait for a message, and creating it would
    /// wait for that kernel.
    pub(crate) fn new(link: Link) -> Result<Self, CallError> {
        let stages = link.plugin.stages()?;
        Ok(Self { link, queue: VecDeque::new(), posted: 0, sent: 0, stages })
    }

    /// Posts a message that begins `offset` bytes into the region. Returns `None` if there is no room for it.
    pub(crate) fn post(
        &mut self,
        region: &Region,
        offset: u64,
        bytes: u64,
    ) -> Result<Option<u32>, CallError> {
        self.link.check()?;
        if self.link.plugin.settings.mode != Mode::Plain && bytes > MESSAGE_BYTES_MAX {
            return Err(CallError::TooLong { bytes, most: MESSAGE_BYTES_MAX });
        }
        self.progress()?;
        if self.queue.len() >= MAX_REQUESTS {
            return Ok(None);
        }
        let outside = |_| CallError::Invalid("a message lies outside its registered memory");
        let (memory, copied, part) = match region {
            Region::Host(memory) => (memory.part(offset, bytes).map_err(outside)?, None, None),
            Region::Gpu(memory) => {
                let memory = memory.part(offset, bytes).map_err(outside)?;
                let Some((part, ticket)) = self.stage(&memory)? else { return Ok(None) };
                (part.memory.clone(), Some(ticket), Some(part))
            }
        };
        let head = bytes.to_be_bytes();
        self.queue.push_back(Message { head, bytes: memory, copied, _part: part, sent: 0 });
        self.posted = self.posted.wrapping_add(1);
        self.progress()?;
        Ok(Some(self.posted))
    }

    /// True if the kernel has taken the whole message.
    pub(crate) fn test(&mut self, number: u32) -> Result<bool, CallError> {
        self.progress()?;
        Ok(self.sent.wrapping_sub(number) as i32 >= 0 && !self.link.plugin.settings.never_sent)
    }

    fn progress(&mut self) -> Result<(), CallError> {
        self.link.check()?;
        while let Some(message) = self.queue.front_mut() {
            if let Some(ticket) = &message.copied {
                if !ticket.is_done()? {
                    return Ok(());
                }
                message.copied = None;
            }
            let total = HEAD_BYTES + message.bytes.len() as usize;
            while message.sent < total {
                let left = self.link.left()?;
                let mut from = IoVecs::<Out>::new();
                let head = &message.head[message.sent.min(HEAD_BYTES)..];
                let head = &head[..head.len().min(left as usize)];
                let room = left - head.len() as u64;
                let done = message.sent.saturating_sub(HEAD_BYTES) as u64;
                let len = (message.bytes.len() - done).min(room);
                if !head.is_empty() {
                    from.push_bytes(head);
                }
                if len > 0 {
                    let pushed = from.push_memory(&message.bytes, done, len);
                    pushed.map_err(|error| CallError::system("sending", error))?;
                }
                match self.link.send(&mut from)? {
                    0 => return Ok(()),
                    bytes => message.sent += bytes,
                }
            }
            self.queue.pop_front();
            self.sent = self.sent.wrapping_add(1);
        }
        Ok(())
    }

    /// Starts to copy a message from the GPU, if there is room in the stage.
    fn stage(&mut self, from: &DeviceMemory) -> Result<Option<(Part, Ticket)>, CallError> {
        let none = CallError::Invalid("memory of CUDA is for SCATTER_MODE=unpack-gpu");
        // Any GPU can copy from any other, but more slowly.
        let own = self.stages.iter().find(|stage| stage.is_of(&**from.device()));
        let stage = own.or(self.stages.first()).ok_or(none)?;
        let Some(part) = stage.take(from.len())? else { return Ok(None) };
        let (target, source) = (CopyPlace::Host(&part.memory, 0), CopyPlace::Device(from, 0));
        let mut queue = stage.queue();
        let pushed = queue.push(target, source, from.len());
        pushed.map_err(|error| CallError::system("staging", error))?;
        let ticket = queue.begin()?;
        drop(queue);
        Ok(Some((part, ticket)))
    }
}
