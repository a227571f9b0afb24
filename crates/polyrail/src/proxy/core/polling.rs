//! How flows that bring something are found: by the poller, or where callers drive by looking.

use std::os::fd::AsFd;
use std::time::Duration;

use polyrail_sys::{PollEvent, Poller};

use super::{Core, streams};
use crate::device::shared_memory::stream::SharedStream;
use crate::engine::pass::Pass;
use crate::proxy::Proxy;
use crate::proxy::flow::Flow;

/// While polling: looks at the busiest flow directly, and at all of them every so many rounds.
const ROUNDS_PER_POLL: u32 = 16;
/// Up to so many flows, callers read each of them instead of asking the poller which bring something.
const FEW_FLOWS: usize = 4;
/// Callers that look again so soon look at the busiest flow only.
const SOON_NS: u64 = 5_000;
/// The same while something comes there.
const SOON_IF_BUSY_NS: u64 = 50_000;

impl Core {
    /// Looks for events without waiting. Says whether there are any: flows that nobody watches are to
    /// be looked at, which is none.
    pub(in crate::proxy) fn poll(&mut self, poller: &Poller) -> bool {
        if !self.watches {
            self.look_at_all_but(None);
            return false;
        }
        let before = self.events.len();
        match poller.wait(&mut self.events, Some(Duration::ZERO)) {
            Ok(is_woken) => self.took_wake_up |= is_woken,
            Err(error) => tracing::error!(target: "polyrail::proxy", %error, "epoll failed"),
        }
        self.note_sockets(before);
        self.look_at_streams();
        self.events.len() > before
    }

    /// What the poller has told of, from this event on: of a flow with a stream only that its socket is to be
    /// looked at, not whether there is room.
    pub(in crate::proxy) fn note_sockets(&mut self, from: usize) {
        if self.streamed.is_empty() {
            return;
        }
        for event in &mut self.events[from..] {
            let flow = self.flows.get(event.token as usize);
            if let Some(stream) = flow.and_then(Flow::stream) {
                stream.note_event();
                event.writable &= event.ended || stream.has_room();
            }
        }
    }

    /// Whether a thread that sleeps on the poller has to be woken, since this one has taken its wake-up, or what it
    /// sleeps for, or leaves a flow whose visit was over before its bytes were. Else whatever comes on a stream wakes
    /// it, also on one that it did not know.
    pub(in crate::proxy) fn must_wake_sleeper(&mut self) -> bool {
        self.has_taken_wake_up() | std::mem::take(&mut self.leaves_unread)
    }

    /// Whether a wake-up that another thread sleeps for was taken here.
    pub(in crate::proxy) fn has_taken_wake_up(&mut self) -> bool {
        std::mem::take(&mut self.took_wake_up) | !self.may_sleep()
    }

    /// Looks at flows whose bytes the poller does not see.
    fn look_at_streams(&mut self) {
        for (key, flow, stream) in streams(&self.streamed, &self.flows) {
            self.events.extend(news_of_stream(key, flow, stream));
        }
    }

    /// Whether the thread may sleep on the poller: streams have nothing, and whatever comes there wakes
    /// it. Marks those that have something.
    pub(in crate::proxy) fn may_sleep(&mut self) -> bool {
        let new: Vec<usize> = streams(&self.streamed, &self.flows)
            .filter(|(_, flow, stream)| !stream.may_sleep(flow.is_held_back()))
            .map(|(key, ..)| key)
            .collect();
        new.iter().for_each(|key| self.mark_readable(*key));
        new.is_empty()
    }

    /// The thread sleeps no longer.
    pub(in crate::proxy) fn is_awake(&self) {
        streams(&self.streamed, &self.flows).for_each(|(_, _, stream)| stream.is_awake());
    }

    /// Looks at flows that nobody watches, in place of the poller: all may have something, but one
    /// that was read just now.
    fn look_at_all_but(&mut self, read: Option<usize>) -> bool {
        for (key, flow) in &self.flows {
            if let Some(stream) = flow.stream() {
                self.events.extend(news_of_stream(key, flow, stream));
                continue;
            }
            let readable = Some(key) != read;
            let is_full = flow.tx.as_ref().is_some_and(|tx| !tx.writable);
            if readable || is_full {
                let token = key as u64;
                self.events.push(PollEvent { token, readable, writable: true, ended: false });
            }
        }
        !self.events.is_empty()
    }

    /// From now on the poller watches: a thread may sleep on it.
    pub(in crate::proxy) fn watch_all(&mut self, poller: &Poller) {
        if self.watches {
            return;
        }
        let add = |(key, flow): (usize, &Flow)| {
            match poller.add(flow.connection.wire.socket().as_fd(), key as u64) {
                // From a time before, when there was no room for all.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                added => added,
            }
        };
        match self.flows.iter().try_for_each(add) {
            Ok(()) => self.watches = true,
            // They are looked at as before, and whoever sleeps does so for some time only.
            Err(error) => tracing::error!(target: "polyrail::proxy", %error, "epoll failed"),
        }
    }

    /// While polling: most rounds only try to read where bytes came from last, which costs one
    /// system call that brings the bytes, instead of two.
    pub(in crate::proxy) fn poll_hot(&mut self, poller: &Poller) -> bool {
        self.rounds = self.rounds.wrapping_add(1);
        if let Some(hot) = self.hot
            && !self.rounds.is_multiple_of(ROUNDS_PER_POLL)
            && self.flows.contains(hot)
        {
            self.mark_readable(hot);
            return false;
        }
        self.poll(poller)
    }

    /// For callers: has the flow that brought bytes last read again; says whether there is one.
    pub(in crate::proxy) fn mark_hot(&mut self) -> bool {
        let hot = self.hot.filter(|hot| self.flows.contains(*hot));
        hot.inspect(|hot| self.mark_readable(*hot)).is_some()
    }

    /// For callers, who may look again at once or much later: looks for events of all flows, unless
    /// that was done just now, or not long ago and the caller has got something.
    pub(in crate::proxy) fn poll_if_due(&mut self, poller: &Poller, now: u64, got: bool) -> bool {
        let patience = if got { SOON_IF_BUSY_NS } else { SOON_NS };
        let is_due = now.saturating_sub(self.polled_at) >= patience;
        if is_due {
            self.polled_at = now;
        }
        is_due && if self.watches { self.poll(poller) } else { self.look_at_all_but(self.hot) }
    }

    pub(super) fn watch(&mut self, key: usize, proxy: &Proxy, pass: &mut Pass<'_>) {
        let Some(flow) = self.flows.get(key) else { return };
        if flow.stream().is_some() {
            self.streamed.push(key);
        }
        if self.watches
            && let Err(error) =
                proxy.doorbell.poller.add(flow.connection.wire.socket().as_fd(), key as u64)
        {
            return self.drop_flow(key, error.into(), proxy, pass);
        }
        self.mark_readable(key);
        if self.flows.len() > FEW_FLOWS {
            self.watch_all(&proxy.doorbell.poller);
        }
    }
}

/// What a stream has that was not seen yet.
fn news_of_stream(key: usize, flow: &Flow, stream: &SharedStream) -> Option<PollEvent> {
    let is_full = match &flow.tx {
        Some(tx) => !tx.writable,
        // Acknowledgements may also be held, with room.
        None => flow.owes_acks() && stream.is_full(),
    };
    let readable = stream.has_come() && !flow.is_held_back();
    let writable = is_full && stream.has_room();
    let event = PollEvent { token: key as u64, readable, writable, ended: false };
    (readable || writable).then_some(event)
}
