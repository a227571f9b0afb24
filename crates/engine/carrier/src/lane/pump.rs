//! Progress of a lane: pieces are posted while the plugin has room, and tested until they complete.

use std::sync::atomic::Ordering;

use polyrail_nccl_abi::NetError;
use polyrail_sys::threads::monotonic_ns;

use super::{Bytes, Ends, Post, Posted, Shared, State};
use crate::unpack::{DEPTH, Unpack};
use crate::way::Way;

impl Shared {
    /// Posts and tests once. Breaks the lane if the plugin reports an error.
    pub(super) fn pump(&self, state: &mut State) {
        match state.pump() {
            Ok(Moved { any, messages }) => {
                if any || state.is_gathering() {
                    self.progressed_ns.store(monotonic_ns(), Ordering::Relaxed);
                }
                // Released after the bytes are in place: threads that read this count see them.
                self.completed.fetch_add(messages, Ordering::Release);
            }
            Err(why) => return self.break_off(state, why),
        }
        // Another thread has given up the lane during the plugin call.
        if let Some(why) = self.broken.get().cloned() {
            self.break_off(state, why);
        }
    }
}

/// Result of one round.
#[derive(Default)]
struct Moved {
    /// True if a piece has arrived.
    any: bool,
    /// Number of completed messages.
    messages: u64,
}

impl State {
    /// True if a GPU is assembling a message.
    fn is_gathering(&self) -> bool {
        self.posted.front().is_some_and(|oldest| oldest.gathering.is_some())
    }

    fn pump(&mut self) -> Result<Moved, String> {
        let mut moved = Moved::default();
        let Some(way) = &mut self.way else { return Ok(moved) };
        // In order, like NCCL: plugins rely on it for their own headers.
        while let Some(next) = self.posted.get_mut(self.came) {
            if !next.has_come(way, &mut self.unpack)? {
                break;
            }
            self.came += 1;
            moved.any = true;
        }
        while self.came > 0 {
            let Some(oldest) = self.posted.front_mut() else { break };
            if !oldest.is_in_place(way, &mut self.unpack)? {
                break;
            }
            self.came -= 1;
            let Some(Posted { post, request, .. }) = self.posted.pop_front() else { break };
            if let Way::Receives(comm) = way {
                comm.consume(request).map_err(|error| error.to_string())?;
            }
            if let Some(check) = post.begins {
                self.crc = check.begun;
            }
            self.crc = post.continue_crc(self.crc)?;
            match post.ends {
                Some(Ends::Checked(check)) if check.want != self.crc => {
                    return Err(wrong("bytes came that have a wrong checksum".to_owned()));
                }
                Some(_) => moved.messages += 1,
                None => {}
            }
        }
        // After the tests, because they made room.
        let most = if self.unpack.is_some() { DEPTH } else { usize::MAX };
        while let Some(post) = self.waiting.front().filter(|_| self.posted.len() < most) {
            let request = way.begin(post.part).map_err(|error| error.to_string())?;
            let Some(request) = request else { break };
            let Some(post) = self.waiting.pop_front() else { break };
            self.posted.push_back(Posted { post, request, flush: None, gathering: None });
        }
        Ok(moved)
    }
}

/// Logs why a connection is given up: the peer sees only that it ends.
fn wrong(why: String) -> String {
    tracing::warn!(target: "polyrail::carrier", why, "what the plugin brought is of no use");
    why
}

impl Posted {
    /// Tests whether the plugin has completed the piece, and starts the flush or the assembly then.
    fn has_come(&mut self, way: &mut Way, unpack: &mut Option<Unpack>) -> Result<bool, String> {
        let fail = |error: NetError| match error {
            NetError::Answer { .. } => wrong(error.to_string()),
            _ => error.to_string(),
        };
        let comm = match way {
            Way::Sends(comm) => {
                return Ok(comm.test(&mut self.request).map_err(fail)?.is_some());
            }
            Way::Receives(comm) => comm,
        };
        let Some(sizes) = comm.test(&mut self.request).map_err(fail)? else { return Ok(false) };
        let wanted = self.post.part.bytes;
        // Some plugins never report sizes. Then the peer's announcement counts.
        let got = if sizes.is_told() { sizes.first() } else { wanted };
        if got != wanted {
            return Err(wrong(format!("{got} bytes came where the peer announced {wanted}")));
        }
        if let Some(unpack) = unpack {
            let gathering = unpack.take(got as u64, self.post.bytes.as_ref());
            self.gathering = gathering.map_err(wrong)?;
        } else if matches!(self.post.bytes, Some((Bytes::Cuda(_), _))) {
            // The plugin decides whether the GPU needs a flush to see the new bytes.
            self.flush = comm.iflush(&[self.post.part]).map_err(fail)?;
        }
        Ok(true)
    }

    /// True if the arrived bytes may be used.
    fn is_in_place(&mut self, way: &mut Way, unpack: &mut Option<Unpack>) -> Result<bool, String> {
        if let (Some(flush), Way::Receives(comm)) = (&mut self.flush, way) {
            let done = comm.test(flush).map_err(|error| error.to_string())?;
            if done.is_none() {
                return Ok(false);
            }
            self.flush = None;
        }
        match (&mut self.gathering, unpack) {
            (Some(gathering), Some(unpack)) => {
                let message = (self.post.part.bytes as u64, self.post.bytes.as_ref());
                unpack.is_done(gathering, message)
            }
            _ => Ok(true),
        }
    }
}

impl Post {
    fn continue_crc(&self, crc: u32) -> Result<u32, String> {
        match &self.bytes {
            Some((bytes, offset)) => {
                let continued = bytes.crc32c(crc, *offset, self.part.bytes as u64);
                continued.map_err(|error| error.to_string())
            }
            None => Ok(crc),
        }
    }
}
