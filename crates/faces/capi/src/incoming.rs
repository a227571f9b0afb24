//! Peers that connect on their own, if the program decides about them.
//!
//! The engine asks on its own thread, which waits here for the answer. So C is not called back: the program takes one
//! question after another when it has time.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use polyrail::Admission;

use crate::bytes::Bytes;
use crate::call::{Out, call, duration, text};
use crate::engine::{Engine, Instance, to_json};
use crate::handles::{close, find, open};
use crate::status::{Failure, Status};

/// A peer that wants to join. It waits for polyrail_incoming_accept() or polyrail_incoming_refuse().
pub struct Incoming {
    question: Arc<Question>,
}

struct Question {
    incoming: polyrail::Incoming,
    answer: Mutex<Option<Admission>>,
    answered: Condvar,
}

/// Queue of questions for the program.
#[derive(Default)]
pub(crate) struct Desk {
    line: Mutex<Line>,
    came: Condvar,
}

#[derive(Default)]
struct Line {
    /// Bounded by the number of threads that ask.
    waiting: VecDeque<Arc<Question>>,
    /// Taken or waiting questions.
    open: Vec<Arc<Question>>,
    is_closed: bool,
}

/// Maximum time to wait for an answer. Peers retry long before that, as the engine asks them to.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes the next peer that wants to join, where polyrail_engine_options.admission is POLYRAIL_ADMIT_ASK; waits
/// for one. POLYRAIL_PENDING: none wants to. The descriptor of polyrail_events_open() does not tell of these.
///
/// Peers that are asked about wait, and nobody else does: up to 8 at a time, for a minute each. Who is accepted
/// after the time of its handshake (`connect_timeout_ms`) is let in when it comes again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_engine_next_incoming(
    engine: *mut Engine,
    timeout_ns: u64,
    incoming: *mut *mut Incoming,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("incoming", incoming)? };
        let held = find("engine", engine)?;
        let Some(desk) = &held.desk else {
            let text = "the engine asks nobody: its admission is not POLYRAIL_ADMIT_ASK".to_owned();
            return Err(Failure::new(Status::PolyrailErrArgument, text));
        };
        let Some(question) = desk.take(duration(timeout_ns)) else { return held.not_yet() };
        out.set(open(Incoming { question })?);
        Ok(Status::PolyrailOk)
    })
}

/// What it says of itself, as JSON: an object with `name`, `listens_on` and `is_same_host`; and what is known
/// of it: `address`, where its connection comes from, and `proven_names`, those on its certificate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_incoming_describe(
    incoming: *mut Incoming,
    json: *mut Bytes,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("json", json)? };
        let held = find("incoming", incoming)?;
        let who = &held.question.incoming;
        let listens_on: Vec<String> = who.listens_on().iter().map(ToString::to_string).collect();
        let told = serde_json::json!({
            "name": who.name(),
            "listens_on": listens_on,
            "is_same_host": who.is_same_host(),
            "address": who.address().to_string(),
            "proven_names": who.proven_names(),
        });
        out.set(Bytes::new(to_json(&told)?));
        Ok(Status::PolyrailOk)
    })
}

/// Which run of which engine it is, which it has proven.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_incoming_instance(
    incoming: *mut Incoming,
    instance: *mut Instance,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the place.
        let out = unsafe { Out::new("instance", instance)? };
        out.set(find("incoming", incoming)?.question.incoming.instance().into());
        Ok(Status::PolyrailOk)
    })
}

/// Lets it in, and ends the handle. polyrail_engine_accept_peer() then has the peer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_incoming_accept(incoming: *mut Incoming) -> c_int {
    call(|| {
        close("incoming", incoming)?.question.answer(Admission::Accept);
        Ok(Status::PolyrailOk)
    })
}

/// Refuses it for this reason, of which it hears 512 bytes, and ends the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_incoming_refuse(
    incoming: *mut Incoming,
    reason: *const c_char,
) -> c_int {
    call(|| {
        // SAFETY: the caller's promise of the text.
        let reason = unsafe { text("reason", reason)? };
        close("incoming", incoming)?.question.answer(Admission::refuse(reason));
        Ok(Status::PolyrailOk)
    })
}

impl Question {
    fn answer(&self, admission: Admission) {
        self.answer.lock().get_or_insert(admission);
        self.answered.notify_all();
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        // Applies if the program has not answered.
        self.question.answer(Admission::refuse("this engine has not decided"));
    }
}

impl Desk {
    /// Asks, and waits for the answer.
    pub(crate) fn ask(&self, incoming: &polyrail::Incoming) -> Admission {
        let (answer, answered) = (Mutex::new(None), Condvar::new());
        let question = Arc::new(Question { incoming: incoming.clone(), answer, answered });
        {
            let mut line = self.line.lock();
            if line.is_closed {
                return Admission::refuse("the engine is closed");
            }
            line.waiting.push_back(question.clone());
            line.open.push(question.clone());
        }
        self.came.notify_one();
        let mut answer = question.answer.lock();
        let is_open = |answer: &mut Option<Admission>| answer.is_none();
        question.answered.wait_while_for(&mut answer, is_open, PATIENCE);
        let given = answer.take();
        drop(answer);
        let mut line = self.line.lock();
        line.waiting.retain(|other| !Arc::ptr_eq(other, &question));
        line.open.retain(|other| !Arc::ptr_eq(other, &question));
        given.unwrap_or_else(|| Admission::refuse("this engine has not decided"))
    }

    fn take(&self, timeout: Duration) -> Option<Arc<Question>> {
        let is_idle = |line: &mut Line| line.waiting.is_empty() && !line.is_closed;
        let mut line = self.line.lock();
        match Instant::now().checked_add(timeout) {
            Some(until) => drop(self.came.wait_while_until(&mut line, is_idle, until)),
            None => self.came.wait_while(&mut line, is_idle),
        }
        line.waiting.pop_front()
    }

    /// Answers all pending questions, and ends the waits for questions.
    pub(crate) fn close(&self) {
        let mut line = self.line.lock();
        line.is_closed = true;
        let open = std::mem::take(&mut line.open);
        line.waiting.clear();
        drop(line);
        self.came.notify_all();
        open.iter().for_each(|question| question.answer(Admission::refuse("the engine is closed")));
    }
}
