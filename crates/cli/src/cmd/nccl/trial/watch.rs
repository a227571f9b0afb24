//! Observes each call into the plugin, and reports those that matter to the parent.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_nccl_abi::{Call, NetError};

use super::canary::{Event, Failure};
use super::findings::CloseFault;

/// Calls of one function in a row are reported again after this, as the parent would take them for one call.
const AGAIN: Duration = Duration::from_secs(1);
/// Functions that end something.
const ENDS: [&str; 5] = ["deregMr", "closeSend", "closeRecv", "closeListen", "finalize"];

/// Observes each call, and reports one that does not return in time.
pub(super) struct Watch {
    socket: Mutex<UnixStream>,
    calls: Mutex<Calls>,
    limit: Duration,
}

#[derive(Default)]
struct Calls {
    /// Calls that have not returned, and their beginnings.
    under_way: Vec<(ThreadId, &'static str, Instant)>,
    told: Option<(&'static str, Instant)>,
    close_faults: Vec<CloseFault>,
}

impl Watch {
    /// Starts a thread that runs as long as the process.
    pub(super) fn start(socket: UnixStream, limit: Duration) -> io::Result<Arc<Self>> {
        let (socket, calls) = (Mutex::new(socket), Mutex::default());
        let watch = Arc::new(Self { socket, calls, limit });
        let own = Arc::clone(&watch);
        thread::Builder::new().name("canary-watch".to_owned()).spawn(move || own.look())?;
        Ok(watch)
    }

    pub(super) fn say(&self, event: &Event) {
        let Ok(mut line) = serde_json::to_vec(event) else { return };
        line.push(b'\n');
        // If this fails, the process that reads it is gone, and this one ends with it.
        let _ = self.socket.lock().write_all(&line);
    }

    /// Records a call, on the thread that makes it.
    pub(super) fn hear(&self, call: Call) {
        let (own, now) = (thread::current().id(), Instant::now());
        let mut calls = self.calls.lock();
        match call {
            Call::Begins(name) => {
                calls.under_way.push((own, name, now));
                let is_told = |(told, at)| told == name && now.duration_since(at) < AGAIN;
                if !calls.told.is_some_and(is_told) {
                    calls.told = Some((name, now));
                    drop(calls);
                    self.say(&Event::Call(name.to_owned()));
                }
            }
            Call::Ends(name, code) => {
                calls.under_way.retain(|(thread, ..)| *thread != own);
                if let Some(code) = code.filter(|code| *code != 0 && ENDS.contains(&name)) {
                    calls.count(name, code);
                }
            }
        }
    }

    /// Calls that were to end something and failed, in the order of their first failures.
    pub(super) fn close_faults(&self) -> Vec<CloseFault> {
        self.calls.lock().close_faults.clone()
    }

    /// Reports the first call that does not return in time. Sleeps until a call can be late.
    fn look(&self) {
        loop {
            let now = Instant::now();
            let oldest = self.calls.lock().under_way.iter().min_by_key(|call| call.2).copied();
            let end = oldest.map_or(now, |(.., begun)| begun) + self.limit;
            match oldest {
                Some((_, name, _)) if now >= end => {
                    let text = format!("`{name}` did not return in {:?}", self.limit);
                    return self.say(&Event::Failed(Failure::Call(text)));
                }
                _ => thread::sleep(end - now),
            }
        }
    }
}

impl Calls {
    fn count(&mut self, function: &'static str, code: i32) {
        let text = NetError::Failed { function, code }.to_string();
        match self.close_faults.iter_mut().find(|fault| fault.text == text) {
            Some(known) => known.times += 1,
            None => {
                self.close_faults.push(CloseFault { call: function.to_owned(), text, times: 1 })
            }
        }
    }
}
