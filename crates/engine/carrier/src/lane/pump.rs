//! How a lane moves on: pieces are posted while the plugin has room, and tested until they are through.

use std::sync::atomic::Ordering;

use polyrail_nccl_abi::NetError;
use polyrail_sys::threads::monotonic_ns;

use super::{Bytes, Ends, Post, Posted, Shared, State};
use crate::unpack::{DEPTH, Unpack};
use crate::way::Way;

impl Shared {
    /// Posts and tests once; breaks the lane if the plugin says that something is wrong.
    pub(super) fn pump(&self, state: &mut State) {
        match state.pump() {
            Ok(Moved { any, messages }) => {
                if any || state.is_gathering() {
                    self.progressed_ns.store(monotonic_ns(), Ordering::Relaxed);
                }
                // Whoever reads this number finds the bytes in place.
                self.completed.fetch_add(messages, Ordering::Release);
            }
            Err(why) => return self.break_off(state, why),
        }
        // While the plugin was called, somebody has given it up.
        if let Some(why) = self.broken.get().cloned() {
            self.break_off(state, why);
        }
    }
}

/// What a look has found.
#[derive(Default)]
struct Moved {
    /// Whether a piece has come.
    any: bool,
    /// Messages that are through.
    messages: u64,
}

impl State {
    /// Whether a GPU puts a message together.
    fn is_gathering(&self) -> bool {
        self.posted.front().is_some_and(|oldest| oldest.gathering.is_some())
    }

    fn pump(&mut self) -> Result<Moved, String> {
        let mut moved = Moved::default();
        let Some(way) = &mut self.way else { return Ok(moved) };
        // In order, as NCCL does: plugins rely on that for headers of their own.
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
        // Behind that, since it made room.
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

/// Why a connection is given up here: the peer sees that it ends, and not why.
fn wrong(why: String) -> String {
    tracing::warn!(target: "polyrail::carrier", why, "what the plugin brought is of no use");
    why
}

impl Posted {
    /// Whether the plugin is through with it. What makes it usable begins then.
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
        // Some plugins never tell; the peer's announcement is what counts then.
        let got = if sizes.is_told() { sizes.first() } else { wanted };
        if got != wanted {
            return Err(wrong(format!("{got} bytes came where the peer announced {wanted}")));
        }
        if let Some(unpack) = unpack {
            let gathering = unpack.take(got as u64, self.post.bytes.as_ref());
            self.gathering = gathering.map_err(wrong)?;
        } else if matches!(self.post.bytes, Some((Bytes::Cuda(_), _))) {
            // The plugin says whether the GPU would see old bytes otherwise.
            self.flush = comm.iflush(&[self.post.part]).map_err(fail)?;
        }
        Ok(true)
    }

    /// Whether what has come may be used.
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
