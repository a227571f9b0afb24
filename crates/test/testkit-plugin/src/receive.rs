//! The receiving end: messages fill posted receives in order.

use std::collections::VecDeque;

use polyrail_gpu::Ticket;
use polyrail_nccl_abi::{DeviceHandle, MAX_REQUESTS};
use polyrail_sys::{In, IoVecs, Memory};

use crate::bounce::{Bounce, Fragments, Landing};
use crate::error::CallError;
use crate::link::Link;
use crate::metadata::{DEPTH, FRAGMENTS_MAX};
use crate::send::HEAD_BYTES;
use crate::settings::BadMetadata;
use crate::stage::Part;

pub(crate) struct ReceiveEnd {
    link: Link,
    posted: VecDeque<Posted>,
    /// Progress of the message for the front of `posted`.
    coming: Coming,
    /// Present in mode `unpack`.
    bounce: Option<Bounce>,
    /// Messages whose fragments a GPU is copying, and whole ones that came after one.
    scattering: VecDeque<(Landed, Option<(Ticket, Part)>)>,
    /// Whole messages that no test has reported yet.
    landed: VecDeque<Landed>,
    /// Reported and not yet consumed; in mode `unpack` only.
    unconsumed: VecDeque<Landed>,
    last: u32,
}

struct Posted {
    number: u32,
    room: u64,
    /// Target of the message, if it lands in place.
    buffer: Option<Memory>,
}

struct Landed {
    number: u32,
    room: u64,
    bytes: u64,
    /// Empty if it is in place.
    fragments: Fragments,
}

#[derive(Default)]
enum Coming {
    #[default]
    Nothing,
    /// Received bytes of the head, and their number.
    Head([u8; HEAD_BYTES], usize),
    /// The head has arrived, and there is no room yet.
    Waiting(u64),
    Body(Body),
}

struct Body {
    bytes: u64,
    got: u64,
    landing: Landing,
    fragments: Fragments,
    /// The fragment that comes next, and its received bytes.
    next: (usize, u32),
}

impl ReceiveEnd {
    /// Creates the receiving end of the connection with this number.
    pub(crate) fn new(link: Link, number: u64) -> Result<Self, CallError> {
        let settings = &link.plugin.settings;
        let pool = link.plugin.pool(link.device)?;
        let bounce = pool.map(|pool| Bounce::new(settings, pool, number << 32)).transpose()?;
        Ok(Self {
            link,
            posted: VecDeque::new(),
            coming: Coming::Nothing,
            bounce,
            scattering: VecDeque::new(),
            landed: VecDeque::new(),
            unconsumed: VecDeque::new(),
            last: 0,
        })
    }

    /// Device handle for the host, in mode `unpack`.
    pub(crate) fn handle(&self) -> Result<Option<DeviceHandle>, CallError> {
        let version = self.link.plugin.settings.unpack_version;
        self.bounce.as_ref().map(|bounce| bounce.handle(version)).transpose()
    }

    /// Posts room for a message. Returns `None` if there is no slot for it.
    pub(crate) fn post(
        &mut self,
        room: u64,
        buffer: Option<Memory>,
    ) -> Result<Option<u32>, CallError> {
        self.link.check()?;
        self.progress()?;
        let open = self.posted.len() + self.scattering.len() + self.landed.len();
        let (open, most) = match self.bounce {
            Some(_) => (open + self.unconsumed.len(), DEPTH),
            None => (open, MAX_REQUESTS),
        };
        if open >= most {
            return Ok(None);
        }
        self.last = self.last.wrapping_add(1);
        let in_place = self.bounce.is_none() || self.link.plugin.settings.host_in_place;
        let buffer = buffer.filter(|_| in_place);
        self.posted.push_back(Posted { number: self.last, room, buffer });
        self.progress()?;
        Ok(Some(self.last))
    }

    /// Returns the length of the message if it is whole.
    pub(crate) fn test(&mut self, number: u32) -> Result<Option<u64>, CallError> {
        self.progress()?;
        if self.bounce.is_some() {
            self.check_turn(number)?;
        }
        let place = self.landed.iter().position(|landed| landed.number == number);
        let Some(landed) = place.and_then(|place| self.landed.remove(place)) else {
            return Ok(None);
        };
        let bytes = landed.bytes;
        if self.bounce.is_some() {
            self.unconsumed.push_back(landed);
        }
        Ok(Some(bytes))
    }

    /// Handles a message whose fragments the host has gathered.
    pub(crate) fn consumed(&mut self, number: u32) -> Result<(), CallError> {
        if self.bounce.is_none() {
            return Ok(());
        }
        let expected = self.unconsumed.front().map_or(0, |landed| landed.number);
        if number != expected {
            let call = "irecvConsumed";
            return Err(CallError::OutOfTurn { call, found: number, expected });
        }
        self.unconsumed.pop_front();
        Ok(())
    }

    /// TCPX lets hosts test only the oldest request (`tcpxTest` in `net_tcpx.cc`).
    fn check_turn(&self, number: u32) -> Result<(), CallError> {
        let landed = self.landed.front().map(|landed| landed.number);
        let scattering = self.scattering.front().map(|(landed, _)| landed.number);
        let posted = self.posted.front().map(|posted| posted.number);
        let expected = landed.or(scattering).or(posted).unwrap_or(0);
        match number == expected {
            true => Ok(()),
            false => Err(CallError::OutOfTurn { call: "test", found: number, expected }),
        }
    }

    fn progress(&mut self) -> Result<(), CallError> {
        self.finish_scattering()?;
        self.link.check()?;
        while !self.posted.is_empty() {
            self.coming = match std::mem::take(&mut self.coming) {
                Coming::Nothing => Coming::Head([0; HEAD_BYTES], 0),
                Coming::Head(head, HEAD_BYTES) => self.meet(u64::from_be_bytes(head))?,
                Coming::Head(mut head, got) => {
                    let left = self.link.left()?;
                    let end = HEAD_BYTES.min(got.saturating_add(left as usize));
                    let mut into = IoVecs::<In>::new();
                    into.push_buffer(&mut head[got..end]);
                    let more = self.link.receive(&mut into)?;
                    if more == 0 {
                        self.coming = Coming::Head(head, got);
                        return Ok(());
                    }
                    Coming::Head(head, got + more)
                }
                Coming::Waiting(bytes) => match self.begin(bytes)? {
                    Some(body) => Coming::Body(body),
                    None => {
                        self.coming = Coming::Waiting(bytes);
                        return Ok(());
                    }
                },
                Coming::Body(mut body) if body.got < body.bytes => {
                    let more = body.read(&mut self.link)?;
                    self.coming = Coming::Body(body);
                    if more == 0 {
                        return Ok(());
                    }
                    continue;
                }
                Coming::Body(body) => {
                    self.land(body)?;
                    Coming::Nothing
                }
            };
        }
        Ok(())
    }

    /// Handles a head: the message must fit.
    fn meet(&mut self, bytes: u64) -> Result<Coming, CallError> {
        let most = self.posted.front().map_or(0, |posted| posted.room);
        match bytes <= most {
            true => Ok(Coming::Waiting(bytes)),
            false => Err(self.link.fail(CallError::TooLong { bytes, most })),
        }
    }

    /// Finds room for the message. Returns `None` while there is none.
    fn begin(&mut self, bytes: u64) -> Result<Option<Body>, CallError> {
        let buffer = self.posted.front().and_then(|posted| posted.buffer.clone());
        if let Some(buffer) = buffer {
            let landing = Landing::Fragments(buffer);
            let fragments = Fragments::in_place(bytes)?;
            return Ok(Some(Body { bytes, got: 0, landing, fragments, next: (0, 0) }));
        }
        let none = CallError::Invalid("a receive without a buffer");
        let bounce = self.bounce.as_mut().ok_or(none)?;
        let placed = bounce.place(bytes).map_err(|error| self.link.fail(error))?;
        Ok(placed.map(|(landing, fragments)| Body {
            bytes,
            got: 0,
            landing,
            fragments,
            next: (0, 0),
        }))
    }

    /// Handles a whole message.
    fn land(&mut self, body: Body) -> Result<(), CallError> {
        let Some(Posted { number, room, buffer }) = self.posted.pop_front() else { return Ok(()) };
        let Body { bytes, landing, fragments, .. } = body;
        let fragments = if buffer.is_some() { Fragments::default() } else { fragments };
        let landed = Landed { number, room, bytes, fragments };
        let copied = match (landing, &self.bounce) {
            (Landing::Stage(part), Some(bounce)) => {
                let ticket = bounce.scatter(&part.memory, &landed.fragments)?;
                ticket.map(|ticket| (ticket, part))
            }
            _ => None,
        };
        // Messages are reported in order, even if a later one needs no copy.
        self.scattering.push_back((landed, copied));
        self.finish_scattering()
    }

    fn finish_scattering(&mut self) -> Result<(), CallError> {
        while let Some((_, copied)) = self.scattering.front() {
            if let Some((ticket, _)) = copied
                && !ticket.is_done()?
            {
                break;
            }
            let Some((landed, _)) = self.scattering.pop_front() else { break };
            self.publish(landed)?;
        }
        Ok(())
    }

    /// Announces a message to the host's GPU. Every receive uses a slot, even with no bytes.
    fn publish(&mut self, landed: Landed) -> Result<(), CallError> {
        if let Some(bounce) = &self.bounce {
            let settings = &self.link.plugin.settings;
            let slot = landed.number.wrapping_sub(1) as usize % DEPTH;
            let mut fragments = landed.fragments.all.clone();
            let mut count = fragments.len() as u64;
            if let (Some(bad), Some(first)) = (settings.bad_metadata, fragments.first().copied()) {
                let last = fragments.len() - 1;
                match bad {
                    BadMetadata::Count => count = FRAGMENTS_MAX as u64 + 1,
                    BadMetadata::Target => fragments[last].dst_off = landed.room,
                    BadMetadata::Source => fragments[last].src_off = settings.bounce_bytes as u32,
                    BadMetadata::Twice => {
                        fragments.push(first);
                        fragments.swap_remove(last);
                    }
                }
            }
            bounce.metadata()?.publish(slot, &fragments, count)?;
        }
        self.landed.push_back(landed);
        Ok(())
    }
}

impl Body {
    /// Reads available bytes to their targets, and returns their number.
    fn read(&mut self, link: &mut Link) -> Result<u64, CallError> {
        let mut room = link.left()?.min(self.bytes - self.got);
        let mut into = IoVecs::<In>::new();
        let failed = |error| CallError::system("receiving", error);
        match &self.landing {
            Landing::Stage(part) => {
                into.push_memory(&part.memory, self.got, room).map_err(failed)?;
            }
            Landing::Fragments(memory) => {
                let (mut index, mut done) = self.next;
                while room > 0 && !into.is_full() {
                    let Some(fragment) = self.fragments.all.get(index) else { break };
                    let len = u64::from(fragment.len - done).min(room);
                    let at = u64::from(fragment.src_off + done);
                    into.push_memory(memory, at, len).map_err(failed)?;
                    room -= len;
                    (index, done) = (index + 1, 0);
                }
            }
        }
        let received = link.receive(&mut into)? as u64;
        self.got += received;
        let mut left = received;
        while let Some(fragment) = self.fragments.all.get(self.next.0).filter(|_| left > 0) {
            let rest = u64::from(fragment.len - self.next.1);
            self.next = match left < rest {
                true => (self.next.0, self.next.1 + left as u32),
                false => (self.next.0 + 1, 0),
            };
            left = left.saturating_sub(rest);
        }
        Ok(received)
    }
}
