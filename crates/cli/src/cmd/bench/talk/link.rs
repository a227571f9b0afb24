//! One end of the conversation: it asks, waits for answers, and notices other clients.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use polyrail::{Engine, Notification, Peer, RailStats, Transfer};
use polyrail_report::exit;
use serde::Serialize;

use super::load::{DownRail, Load, OneNic};
use super::messages::{Answer, Ask};
use crate::cmd::bench::faults;
use crate::fault::{Cause, Fault};
use crate::interrupt::Interrupt;
use crate::stdout::{excerpt, one_line};

/// One end of the conversation.
pub(crate) struct Link<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) peer: Peer,
    /// Notifications that arrived while another one was awaited.
    waiting: Mutex<VecDeque<Vec<u8>>>,
    refused_other: Mutex<Option<Instant>>,
    /// Rails that carried nothing, and rails that received through one NIC, at the ends of this end's samples.
    silent: Mutex<Option<Silent>>,
    interrupt: Interrupt,
}

/// Rails of one end that carried nothing, or not through their own NIC.
#[derive(Clone, Debug, Default)]
pub(crate) struct Silent {
    pub(crate) down: Vec<DownRail>,
    /// Rails of the other end to which this one sent nothing.
    pub(crate) unsent: Vec<DownRail>,
    pub(crate) one_nic: Option<OneNic>,
}

impl<'a> Link<'a> {
    /// Creates a link. Once `interrupt` is raised, waits for the other end are short.
    pub(crate) fn new(engine: &'a Engine, peer: Peer, interrupt: Interrupt) -> Self {
        Self {
            engine,
            peer,
            waiting: Mutex::default(),
            refused_other: Mutex::default(),
            silent: Mutex::default(),
            interrupt,
        }
    }

    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupt.is_raised()
    }

    /// Keeps a sample's result about silent rails: later, rails also lose connections because the bench ends. A fault
    /// of an earlier sample is kept, too.
    pub(crate) fn note_silent(&self, load: &Load) {
        let Load { mut down, unsent, one_nic, .. } = load.clone();
        let mut silent = self.silent.lock();
        let before = silent.take().map_or_else(Vec::new, |silent| silent.down);
        for rail in before.into_iter().filter(|rail| rail.why.is_fault()) {
            if down.iter().all(|known| known.name != rail.name) {
                down.push(rail);
            }
        }
        *silent = Some(Silent { down, unsent, one_nic });
    }

    /// Returns the silent rails of this end's samples, if any sample was taken.
    pub(crate) fn silent(&self) -> Option<Silent> {
        self.silent.lock().clone()
    }

    /// Returns the names of the local rails that lead to the peer, each with the peer's rail. Rails without a flow that
    /// is up are left out, unless none has one.
    pub(crate) fn pairs(&self) -> Vec<(String, String)> {
        let stats = self.engine.stats();
        let rails = stats.peers.iter().filter(|peer| peer.name == self.peer.name());
        let rails: Vec<_> = rails.flat_map(|peer| &peer.rails).collect();
        let up = |rail: &&&RailStats| rail.flows.iter().any(|flow| flow.up);
        let pair = |rail: &RailStats| Some((rail.name.clone(), rail.partner.clone()?));
        let led: Vec<_> = rails.iter().filter(up).filter_map(|rail| pair(rail)).collect();
        if led.is_empty() { rails.into_iter().filter_map(pair).collect() } else { led }
    }

    /// Asks, and waits for the answer. A failure at the other end is returned as an error.
    pub(crate) fn ask(&self, ask: &Ask) -> Result<Answer, Fault> {
        self.begin(ask)?;
        self.answer_to(ask)
    }

    /// Asks. [`Link::answer_to`] must follow.
    pub(crate) fn begin(&self, ask: &Ask) -> Result<(), Fault> {
        self.say(ask)
    }

    /// Waits for the answer to the last question.
    pub(crate) fn answer_to(&self, ask: &Ask) -> Result<Answer, Fault> {
        let name = ask.name();
        let started = Instant::now();
        let mut heard = started;
        loop {
            if let Some(bytes) = self.next(Interrupt::LOOK) {
                heard = Instant::now();
                return match decode(&bytes, name)? {
                    Answer::StillHere => continue,
                    Answer::Failed(fault) => Err(of_server(fault)),
                    Answer::Mismatch(mismatch) => Err(mismatch.into()),
                    answer => Ok(answer),
                };
            }
            if let Some(why) = self.peer.lost() {
                return Err(faults::gone(self.peer.name(), why));
            }
            self.interrupt.check_wait()?;
            let waited = started.elapsed();
            if waited > SILENCE_MAX {
                return Err(faults::silent(name, waited));
            }
            if heard.elapsed() >= KEEP_ALIVE {
                // Delivery fails if the peer is gone.
                self.say(&Ask::StillThere)?;
                heard = Instant::now();
            }
        }
    }

    /// Asks like [`Link::ask`], for questions whose only answer is [`Answer::Done`].
    pub(crate) fn tell(&self, ask: &Ask) -> Result<(), Fault> {
        match self.ask(ask)? {
            Answer::Done => Ok(()),
            other => Err(unexpected(ask, &other)),
        }
    }

    pub(crate) fn answer(&self, answer: &Answer) -> Result<(), Fault> {
        self.say(answer)
    }

    /// Lets the server continue with its next client. There is no answer: this client closes at once, and may be gone
    /// before an answer could arrive.
    pub(crate) fn say_good_bye(&self, Silent { down, unsent, .. }: Silent) {
        let _ = self.say(&Ask::Bye { down, unsent });
    }

    /// Waits for the next notification of this peer. Returns `None` after `timeout`.
    pub(crate) fn next(&self, timeout: Duration) -> Option<Vec<u8>> {
        if let Some(bytes) = self.waiting().pop_front() {
            return Some(bytes);
        }
        let started = Instant::now();
        loop {
            let left = timeout.checked_sub(started.elapsed())?;
            let notification = self.engine.wait_notification(left)?;
            if self.put_back(notification) {
                return self.waiting().pop_front();
            }
        }
    }

    /// Keeps a notification for [`Link::next`]. One of another client is answered with a refusal and not kept.
    pub(crate) fn put_back(&self, notification: Notification) -> bool {
        let Notification { peer, data, .. } = notification;
        let is_ours = peer == self.peer;
        if is_ours {
            self.waiting().push_back(data);
        } else {
            *self.refused_other.lock() = Some(Instant::now());
            refuse_second(self.engine, &peer);
        }
        is_ours
    }

    /// Returns whether another client was refused within the last 30 s.
    pub(crate) fn is_awaited(&self) -> bool {
        self.refused_other.lock().is_some_and(|at| at.elapsed() < AWAITED_FOR)
    }

    /// Whether a message of the peer is waiting to be read.
    pub(crate) fn has_news(&self) -> bool {
        for notification in self.engine.take_notifications() {
            self.put_back(notification);
        }
        !self.waiting().is_empty()
    }

    /// Locks the queue. Each change of the queue is complete, so a panic elsewhere leaves it usable.
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        self.waiting.lock()
    }

    /// Delivers a message. Returns an error if the peer can't be reached any more.
    fn say(&self, message: &impl Serialize) -> Result<(), Fault> {
        let bytes = serde_json::to_vec(message)
            .map_err(|error| Fault::system("writing a control message", error.into()))?;
        if self.interrupt.has_waited() {
            return Err(Fault::interrupted());
        }
        let transfer = self.engine.notify(&self.peer, &bytes)?;
        self.wait_patiently(&transfer)
    }

    /// Waits for a small transfer. The engine's own deadlines end it if the peer is gone.
    fn wait_patiently(&self, transfer: &Transfer) -> Result<(), Fault> {
        let started = Instant::now();
        loop {
            if let Some(ended) = transfer.wait(Interrupt::LOOK) {
                return Ok(ended.map(drop)?);
            }
            self.interrupt.check_wait()?;
            let waited = started.elapsed();
            if waited > SILENCE_MAX {
                return Err(faults::silent("a control message", waited));
            }
        }
    }
}

/// Refuses a second client: a server serves one client at a time.
pub(crate) fn refuse_second(engine: &Engine, peer: &Peer) {
    let busy = Fault::new(exit::PEER, BUSY).with_help("try again when it is done");
    // The refusal need not arrive.
    if let Ok(bytes) = serde_json::to_vec(&Answer::Failed(busy))
        && let Ok(transfer) = engine.notify(peer, &bytes)
    {
        transfer.detach();
    }
}

/// Returns the server's reason for a refusal or a failure.
fn of_server(fault: Fault) -> Fault {
    let cause = if fault.message == BUSY { Cause::Busy } else { Cause::Other };
    Fault { cause, ..Fault::of_peer("the other side", fault) }
}

fn decode(bytes: &[u8], ask: &'static str) -> Result<Answer, Fault> {
    serde_json::from_slice(bytes).map_err(|_| {
        let answer = excerpt(&String::from_utf8_lossy(bytes));
        faults::protocol(ask, answer)
    })
}

pub(crate) fn unexpected(ask: &Ask, answer: &Answer) -> Fault {
    let answer = serde_json::to_string(answer).unwrap_or_default();
    faults::protocol(ask.name(), one_line(&answer, 80))
}

/// Answer of a server to a second client.
const BUSY: &str = "another client is being served";
/// Time for which a refused client counts as waiting, because its user may try again.
const AWAITED_FOR: Duration = Duration::from_secs(30);
/// Time to wait for an answer before checking that the peer is still there.
const KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Maximum time that a live peer may take for an answer. Verifying is slowest: 100 GB take about half a minute.
const SILENCE_MAX: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_busy_is_known_by_its_whole_answer() {
        let cause = |text: &str| of_server(Fault::new(exit::PEER, text)).cause;
        assert_eq!(cause(BUSY), Cause::Busy);
        assert_eq!(cause(&format!("no: {BUSY}")), Cause::Other);
    }

    #[test]
    fn a_fault_goes_over_the_wire_with_its_help_and_without_its_cause() {
        let sent = Fault { cause: Cause::Late, ..Fault::new(exit::DATA, "no").with_help("look") };
        let answer = serde_json::to_vec(&Answer::Failed(sent.clone())).unwrap();
        let Ok(Answer::Failed(got)) = decode(&answer, "hello") else { panic!("{answer:?}") };
        assert_eq!(got, Fault { cause: Cause::Other, ..sent });
    }
}
