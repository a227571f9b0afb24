//! Questions to the user whether a peer may join. The answer may take long. A separate thread waits for it, and the
//! handshake waits for that thread at most until its deadline.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::Mutex;
use polyrail_proto::hello::{Hello, RefusedCode, Reply};
use polyrail_proto::reason::{ConnectReason, Refusal};

use super::Control;
use crate::control::handshake::Cause;
use crate::engine::control_handle::ControlCommand;
use crate::engine::joining::{Admission, Hook, Incoming};
use crate::engine::state::EngineShared;

/// Number of concurrent calls of the hook. Further peers wait for their turn.
const THREADS_MAX: usize = 8;

/// State that the threads which call the hook share. It keeps no engine alive.
pub(super) struct Desk {
    hook: Arc<Hook>,
    engine: Weak<EngineShared>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Incoming)>,
    threads: usize,
}

impl Desk {
    pub(super) fn new(engine: &Arc<EngineShared>) -> Option<Arc<Self>> {
        let (hook, engine) = (engine.admit.clone()?, Arc::downgrade(engine));
        Some(Arc::new(Self { hook, engine, queue: Mutex::default() }))
    }

    fn ask(self: &Arc<Self>, question: u64, incoming: Incoming) {
        let mut queue = self.queue.lock();
        queue.waiting.push_back((question, incoming));
        if queue.threads == THREADS_MAX {
            return;
        }
        let desk = self.clone();
        let builder = thread::Builder::new().name("pr-admit".to_owned());
        // Without a new thread the peer waits for one that is running, or its handshake ends undecided.
        if builder.spawn(move || desk.work()).is_ok() {
            queue.threads += 1;
        }
    }

    fn work(&self) {
        loop {
            let mut queue = self.queue.lock();
            let Some((question, incoming)) = queue.waiting.pop_front() else {
                queue.threads -= 1;
                return;
            };
            drop(queue);
            let Some(callbacks) =
                self.engine.upgrade().map(|engine| engine.arrived.callbacks.clone())
            else {
                continue;
            };
            let verdict = callbacks.call("admit", || (self.hook)(&incoming));
            let panicked = || Admission::refuse("the hook that admits peers there panicked");
            if let Some(engine) = self.engine.upgrade() {
                let verdict = verdict.unwrap_or_else(panicked);
                engine.control.command(ControlCommand::Decided { question, verdict });
            }
        }
    }
}

impl Control {
    /// Answers a hello, once the user has decided whether the peer may join.
    pub(super) fn receive(&mut self, key: usize, hello: Hello) {
        let card = hello.card();
        let own = self.engine.card.instance;
        // Without the user's hook nothing is asked.
        let Some(desk) = self.desk.clone().filter(|_| self.engine.is_stranger(card.instance))
        else {
            return self.reply(key, hello);
        };
        if self.admissions.lets_in(&hello, own) {
            return self.reply(key, hello);
        }
        let Some(handshake) = self.handshakes.get_mut(key) else { return };
        let Some((question, is_new)) = self.admissions.ask(card) else {
            let (code, reason) = (RefusedCode::Undecided, "too many others are asking".to_owned());
            handshake.reply(&Reply::Refused { code, reason }, None);
            return self.step(key);
        };
        if is_new {
            let incoming = Incoming {
                card: card.clone(),
                address: handshake.remote,
                same_host: card.host == self.engine.card.host,
                names: self.engine.peers.names.lock().of(card.instance),
            };
            desk.ask(question, incoming);
        }
        handshake.await_verdict(question, hello);
    }

    /// Applies the user's decision whether a peer may join.
    pub(super) fn decide(&mut self, question: u64, verdict: &Admission) {
        if !self.admissions.decide(question, *verdict == Admission::Accept) {
            return;
        }
        let waiting: Vec<usize> = self
            .handshakes
            .iter()
            .filter(|(_, handshake)| handshake.awaits(question))
            .map(|(key, _)| key)
            .collect();
        for key in waiting {
            let Some(handshake) = self.handshakes.get_mut(key) else { continue };
            let Some(hello) = handshake.take_awaiting() else { continue };
            match verdict {
                // Only the first one may find it among those that were admitted, but by then it is known.
                Admission::Accept => self.receive(key, hello),
                Admission::Refuse(reason) => {
                    let (code, text) = (RefusedCode::NotAdmitted, reason.clone());
                    handshake.reply(&Reply::Refused { code, reason: text.clone() }, None);
                    let remote = handshake.remote;
                    if let Cause::Accepted { rail, .. } = handshake.cause {
                        let why = ConnectReason::Refused(Refusal::new(code, text, None));
                        self.turn_away(rail, remote, &why);
                    }
                    self.step(key);
                }
            }
        }
    }
}
