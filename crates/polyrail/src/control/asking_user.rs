//! Asking the user whether a peer may join. The answer may take its time: a thread of its own waits
//! for it, and the handshake waits for that at most until its deadline.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::thread;

use parking_lot::{Mutex, MutexGuard};
use polyrail_proto::hello::{Card, Hello, RefusedCode, Reply};
use polyrail_proto::reason::{ConnectReason, Refusal};

use super::Control;
use crate::control::handshake::Cause;
use crate::engine::control_handle::ControlCommand;
use crate::engine::joining::{Admission, Hook, Incoming};
use crate::engine::state::EngineShared;

/// Calls of the hook at a time; further peers wait for their turn.
const THREADS_MAX: usize = 8;
/// Questions that are open at a time. Whoever comes then is told to come again.
const ASKED_MAX: usize = 256;
/// Peers that were let in and have not come yet; the oldest is forgotten first.
const ADMITTED_MAX: usize = 64;

/// Questions that are open, and answers that were not needed yet.
pub(crate) struct Admissions {
    desk: Option<Arc<Desk>>,
    asked: Vec<(u64, Card)>,
    admitted: VecDeque<Card>,
    last_question: u64,
}

/// What the threads share that call the hook. It keeps no engine alive.
struct Desk {
    hook: Arc<Hook>,
    engine: Weak<EngineShared>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Incoming)>,
    threads: usize,
}

impl Admissions {
    pub(crate) fn new(engine: &Arc<EngineShared>) -> Self {
        let desk = engine.admit.clone().map(|hook| {
            Arc::new(Desk { hook, engine: Arc::downgrade(engine), queue: Mutex::default() })
        });
        Self { desk, asked: Vec::new(), admitted: VecDeque::new(), last_question: 0 }
    }
}

impl Desk {
    fn ask(self: &Arc<Self>, question: u64, incoming: Incoming) {
        let mut queue = self.queue();
        queue.waiting.push_back((question, incoming));
        if queue.threads == THREADS_MAX {
            return;
        }
        let desk = self.clone();
        let builder = thread::Builder::new().name("pr-admit".to_owned());
        // Without a thread the peer waits for one that is at work, or is told that nobody decides.
        if builder.spawn(move || desk.work()).is_ok() {
            queue.threads += 1;
        }
    }

    fn work(&self) {
        loop {
            let mut queue = self.queue();
            let Some((question, incoming)) = queue.waiting.pop_front() else {
                queue.threads -= 1;
                return;
            };
            drop(queue);
            let Some(callbacks) = self.engine.upgrade().map(|engine| engine.callbacks.clone())
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

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

impl Control {
    /// A hello came: answers it, once the user has said whether the peer may join.
    pub(super) fn receive(&mut self, key: usize, hello: Hello) {
        let card = hello.card();
        if self.may_join(card, &hello) {
            return self.reply(key, hello);
        }
        let (Some(desk), Some(handshake)) =
            (self.admissions.desk.clone(), self.handshakes.get_mut(key))
        else {
            return;
        };
        let known = self.admissions.asked.iter().find(|(_, other)| other == card);
        let question = known.map(|(question, _)| *question);
        if question.is_none() && self.admissions.asked.len() == ASKED_MAX {
            let (code, reason) = (RefusedCode::Undecided, "too many others are asking".to_owned());
            handshake.reply(&Reply::Refused { code, reason }, None);
            return self.step(key);
        }
        let incoming = Incoming {
            card: card.clone(),
            address: handshake.remote,
            same_host: card.host == self.engine.card.host,
            names: self.engine.peers.names.lock().of(card.instance),
        };
        let number = question.unwrap_or_else(|| {
            self.admissions.last_question += 1;
            self.admissions.last_question
        });
        handshake.await_verdict(number, hello);
        if question.is_none() {
            self.admissions.asked.push((number, incoming.card.clone()));
            desk.ask(number, incoming);
        }
    }

    /// The user has said whether a peer may join.
    pub(super) fn decide(&mut self, question: u64, verdict: &Admission) {
        let asked = &mut self.admissions.asked;
        let Some(at) = asked.iter().position(|(number, _)| *number == question) else { return };
        let (_, card) = asked.swap_remove(at);
        if *verdict == Admission::Accept {
            self.admissions.admitted.push_back(card);
            if self.admissions.admitted.len() > ADMITTED_MAX {
                self.admissions.admitted.pop_front();
            }
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
                // Only the first may find it among those that were let in, but by then it is known.
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

    /// Whether a peer may join without a question, or was let in before.
    fn may_join(&mut self, card: &Card, hello: &Hello) -> bool {
        if self.admissions.desk.is_none() || !self.engine.is_stranger(card.instance) {
            return true;
        }
        // It is refused anyway.
        if matches!(hello, Hello::Flow(flow) if flow.target != self.engine.card.instance) {
            return true;
        }
        let admitted = &mut self.admissions.admitted;
        match admitted.iter().position(|other| other == card) {
            None => false,
            // Who has introduced himself has not joined yet.
            Some(_) if matches!(hello, Hello::Introduction(_)) => true,
            Some(at) => admitted.remove(at).is_some(),
        }
    }
}
