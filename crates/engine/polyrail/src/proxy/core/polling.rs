//! Search for flows that bring something: by the poller, or where callers drive by looking.

use std::os::fd::AsFd;
use std::time::Duration;

use polyrail_sys::{PollEvent, Poller};

use super::{Core, streams};
use crate::device::shared_memory::stream::SharedStream;
use crate::engine::pass::Pass;
use crate::proxy::Proxy;
use crate::proxy::flow::Flow;
use crate::wake::sleeper::Sleeper;

/// While polling: the busiest flow is read directly, and all flows are looked at once in this many rounds.
const ROUNDS_PER_POLL: u32 = 16;
/// Up to this many flows, callers read each of them instead of asking the poller which bring something.
const FEW_FLOWS: usize = 4;
/// Callers that look again within this time look at the busiest flow only.
const SOON_NS: u64 = 5_000;
/// The same time while something comes there.
const SOON_IF_BUSY_NS: u64 = 50_000;

impl Core {
    /// Looks for events without waiting. Returns whether there are any. Where flows are not watched, marks all of them
    /// to be looked at, and returns false.
    pub(in crate::proxy) fn poll(&mut self, poller: &Poller) -> bool {
        if !self.watches {
            self.look_at_all_but(None);
            return false;
        }
        let before = self.events.len();
        match poller.wait(&mut self.events, Some(Duration::ZERO)) {
            Ok(is_woken) => self.debts.note_look(is_woken),
            Err(error) => tracing::error!(target: "polyrail::proxy", %error, "epoll failed"),
        }
        self.note_told(before);
        self.look_at_streams();
        self.events.len() > before
    }

    /// Takes the events that a thread got when it slept on the poller.
    pub(in crate::proxy) fn take_events(&mut self, told: &mut Vec<PollEvent>) {
        let before = self.events.len();
        self.events.append(told);
        self.note_told(before);
    }

    /// Notes the poller's events from index `from` on. For a flow with a stream an event means only that its socket
    /// needs a look, not that it has room.
    fn note_told(&mut self, from: usize) {
        if self.events.len() > from {
            // The poller does not return these events again, so they stay noted until a pass reads them.
            self.debts.note_visits(true);
        }
        // Most proxies have no flow with a stream.
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

    /// Whether a thread that sleeps on the poller must be woken
    /// ([`Debts::must_rouse`](crate::wake::sleeper::Debts::must_rouse)). If not, all bytes on a stream wake it, also on
    /// a stream that it did not know. `gives_back`: this thread gives the core back. Otherwise it goes on.
    pub(in crate::proxy) fn must_rouse(&mut self, sleeper: &Sleeper, gives_back: bool) -> bool {
        if !sleeper.is_seated() {
            return false;
        }
        // Call both, whatever the other returns: each has effects.
        let streams_sleep = self.may_sleep();
        let left = gives_back.then(|| self.outlook());
        self.debts.must_rouse(left) | !streams_sleep
    }

    /// Looks at flows whose bytes the poller does not see.
    fn look_at_streams(&mut self) {
        for (key, flow, stream) in streams(&self.streamed, &self.flows) {
            self.events.extend(news_of_stream(key, flow, stream));
        }
    }

    /// Whether the thread may sleep on the poller: streams have nothing, and anything that comes there wakes it. Marks
    /// those that have something.
    pub(in crate::proxy) fn may_sleep(&mut self) -> bool {
        let new: Vec<usize> = streams(&self.streamed, &self.flows)
            .filter(|(_, flow, stream)| !stream.may_sleep(flow.is_held_back()))
            .map(|(key, ..)| key)
            .collect();
        new.iter().for_each(|key| self.mark_readable(*key));
        new.is_empty()
    }

    /// Notes that the thread no longer sleeps.
    pub(in crate::proxy) fn is_awake(&mut self) {
        self.debts.note_sleep(None);
        streams(&self.streamed, &self.flows).for_each(|(_, _, stream)| stream.is_awake());
    }

    /// Looks at unwatched flows, instead of the poller: all may have something, except one that was read just now.
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

    /// Makes the poller watch all flows from now on, so that a thread may sleep on it.
    pub(in crate::proxy) fn watch_all(&mut self, poller: &Poller) {
        if self.watches {
            return;
        }
        let add = |(key, flow): (usize, &Flow)| {
            match poller.add(flow.connection.wire.socket().as_fd(), key as u64) {
                // Added earlier, when there was no room for all.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
                added => added,
            }
        };
        match self.flows.iter().try_for_each(add) {
            Ok(()) => self.watches = true,
            // Passes look at all flows as before. The poller does not wake a sleeping thread for them, so the thread
            // looks again after a tenth of a second.
            Err(error) => tracing::error!(target: "polyrail::proxy", %error, "epoll failed"),
        }
    }

    /// While polling: most rounds only try to read where bytes came from last. That costs one system call, which brings
    /// the bytes, instead of two.
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

    /// For callers: marks the flow that last brought bytes as readable. Returns whether there is one.
    pub(in crate::proxy) fn mark_hot(&mut self) -> bool {
        let hot = self.hot.filter(|hot| self.flows.contains(*hot));
        hot.inspect(|hot| self.mark_readable(*hot)).is_some()
    }

    /// Looks for events of all flows for a caller, who may look again at once or much later. Skips that if it was done
    /// just now, or not long ago and the caller has received something.
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

/// News of a stream that no look has found yet.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use polyrail_config::Config;
    use polyrail_proto::progress::Outlook::{Ask, Told, Until};
    use polyrail_secure::Keys;
    use polyrail_sys::PollEvent;
    use polyrail_sys::threads::monotonic_ns;
    use socket2::{Domain, Socket, Type};

    use crate::api::engine::Engine;
    use crate::device::connection::Connection;
    use crate::device::wire::Wire;
    use crate::engine::peer::PeerShared;
    use crate::engine::proxy_handle::ProxyCommand;
    use crate::proxy::flow::Flow;
    use crate::proxy::{Proxy, Reads};

    fn engine() -> Engine {
        let settings = [("rails", "127.0.0.1"), ("progress", "caller")];
        let builder = settings
            .iter()
            .fold(Config::builder(), |builder, (name, value)| builder.set(name, value).unwrap());
        Engine::builder().config(builder.build().unwrap()).build().unwrap()
    }

    fn apart() -> Proxy {
        Proxy::new("apart".to_owned(), Vec::new(), false).unwrap()
    }

    /// A flow without sides. Its socket is not connected, so the poller returns an event for it.
    fn flow_of(peer: &Arc<PeerShared>) -> Flow {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let wire = Wire::new(Arc::new(socket), None);
        let connection = Connection::new(wire, Keys::new([1; 32], [2; 32]), false);
        Flow { peer: peer.clone(), connection, tx: None, rx: None }
    }

    #[test]
    fn events_of_the_poller_are_owed_until_a_pass() {
        let (a, proxy) = (engine(), apart());
        let event = PollEvent { token: 0, readable: true, writable: false, ended: false };
        let mut core = proxy.lock();
        core.take_events(&mut vec![event]);
        assert!(!core.debts.may_sleep());
        core.take_events(&mut vec![event]);
        proxy.pass(&mut core, a.shared(), monotonic_ns(), Reads::Yes);
        assert!(core.debts.may_sleep());
    }

    #[test]
    fn events_that_a_thread_has_left_are_taken_by_the_next_pass() {
        let (a, b) = (engine(), engine());
        let peer = a.add_peer(&b.metadata()).unwrap().shared.clone();
        let proxy = apart();
        let mut core = proxy.lock();
        let key = core.flows.insert(flow_of(&peer));
        let event = PollEvent { token: key as u64, readable: true, writable: false, ended: false };
        proxy.command(ProxyCommand::Events(vec![event]));
        proxy.pass(&mut core, a.shared(), monotonic_ns(), Reads::No);
        assert_eq!(core.ready, [key]);
        assert!(!core.debts.may_sleep(), "it has read nothing");
    }

    #[test]
    fn only_events_of_the_poller_are_owed() {
        let (a, b) = (engine(), engine());
        let peer = a.add_peer(&b.metadata()).unwrap().shared.clone();
        let proxy = apart();
        let poller = &proxy.doorbell.poller;
        let mut core = proxy.try_core(a.shared()).unwrap();
        core.flows.insert(flow_of(&peer));
        assert!(!core.poll(poller) && !core.events.is_empty(), "every flow may have something");
        core.watch_all(poller);
        drop(core);
        let mut core = proxy.try_core(a.shared()).unwrap();
        assert!(core.debts.may_sleep());
        assert!(core.poll(poller));
        drop(core);
        assert!(!proxy.lock().debts.may_sleep());
    }

    #[test]
    fn a_sleeping_caller_is_roused_for_an_earlier_outlook_once_this_thread_gives_the_core_back() {
        let proxy = apart();
        let _seat = proxy.sleeper.sit().unwrap();
        let mut core = proxy.lock();
        for (slept_for, is_earlier) in
            [(None, false), (Some(Told), true), (Some(Until(7)), true), (Some(Ask), false)]
        {
            core.debts.note_sleep(slept_for);
            core.withholds_acks = false;
            assert!(!core.must_rouse(&proxy.sleeper, true), "{slept_for:?}");
            core.withholds_acks = true;
            assert!(!core.must_rouse(&proxy.sleeper, false), "{slept_for:?}");
            assert_eq!(core.must_rouse(&proxy.sleeper, true), is_earlier, "{slept_for:?}");
            assert!(!core.must_rouse(&proxy.sleeper, true), "{slept_for:?}: it was roused");
        }
    }

    #[test]
    fn a_flow_that_is_skipped_for_a_lock_is_owed() {
        let (a, b) = (engine(), engine());
        let peer = a.add_peer(&b.metadata()).unwrap().shared.clone();
        let proxy = apart();
        let mut core = proxy.lock();
        let key = core.flows.insert(flow_of(&peer));
        core.mark_readable(key);
        let held = peer.tx();
        proxy.pass(&mut core, a.shared(), monotonic_ns(), Reads::Hastily);
        drop(held);
        assert!(!core.debts.may_sleep());
    }
}
