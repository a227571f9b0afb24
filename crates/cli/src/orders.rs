//! Worker's side: the process that started this one sends orders as lines of JSON.

use std::io::{self, BufRead};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use polyrail_report::exit;
use rustix::process::{Signal, set_parent_process_death_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::stdout::{keep, tell_starter};

/// Orders from the process that started this one. This process exits when its standard input ends, even during an
/// order.
pub(crate) struct Orders(Receiver<String>);

impl Orders {
    /// Makes this process a worker. From then on only [`reply`] writes to standard output.
    pub(crate) fn follow() -> Result<Self, Fault> {
        Interrupt::ignore_signals()?;
        // Standard input ends with the starting process, too, but a call into a plugin or library might block the exit.
        set_parent_process_death_signal(Some(Signal::KILL))
            .map_err(|error| Fault::system("asking for a signal", error.into()))?;
        keep().map_err(|error| Fault::system("keeping standard output", error))?;
        let (sender, orders) = channel();
        let listen = move || {
            for line in io::stdin().lock().lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
            std::process::exit(i32::from(exit::INTERRUPTED));
        };
        let started = thread::Builder::new().spawn(listen);
        started.map_err(|error| Fault::system("starting a thread", error))?;
        Ok(Self(orders))
    }

    /// Waits for the next order.
    pub(crate) fn next<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        let line = self.0.recv().map_err(io::Error::other);
        let order = line.and_then(|line| Ok(serde_json::from_str(&line)?));
        order.map_err(|error| Fault::system("reading an order", error))
    }

    /// Waits for the end of this process, and keeps everything that the process holds until then.
    pub(crate) fn stay(self) {
        while self.0.recv().is_ok() {}
    }
}

/// Sends a reply to the process that started this one.
pub(crate) fn reply(reply: &impl Serialize) -> Result<(), Fault> {
    let text = serde_json::to_string(reply).map_err(io::Error::from);
    let written = text.and_then(|text| tell_starter(&text));
    written.map_err(|error| Fault::system("writing a reply", error))
}
