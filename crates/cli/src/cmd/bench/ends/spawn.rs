//! Second process of a run on one machine: this program as the serving end.
//!
//! The process prints its connect string as its first line. It ends when its standard input ends, so that it never
//! outlives the process that started it.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use polyrail::{Config, Engine};
use polyrail_report::exit;

use super::serve::serve;
use crate::cmd::bench::faults;
use crate::cmd::bench::memory::Bank;
use crate::cmd::bench::options::{MemoryKind, Placed, Server, like, settings_for_child};
use crate::crew::{Heard, Output, Worker};
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::lines::LINE_MAX;
use crate::stdout::{keep, tell_starter};

/// Serving process. Dropping the value ends the process.
pub(crate) struct Served {
    worker: Worker,
    /// Time that the process gets to end.
    patience: Duration,
    pub(crate) server: Server,
}

impl Served {
    /// Runs `command`, which is this program in some place, with these settings and this kind of memory, and waits
    /// until it listens.
    pub(crate) fn start(
        mut command: Command,
        config: &Config,
        placed: &Placed,
        memory: MemoryKind,
    ) -> Result<Self, Fault> {
        let failed = |source| Fault::system("starting the other process", source);
        command.args(["bench", "--serve-parent"]).args(settings_for_child(config, &placed.theirs));
        command.arg("--mem").arg(memory.to_string());
        let output = [Output::Heard(LINE_MAX), Output::Ours];
        let mut worker = Worker::start(command, Stdio::piped(), output).map_err(failed)?;
        let line = match worker.hear(Duration::MAX) {
            Heard::Line(line) => line,
            Heard::Ended | Heard::Nothing => String::new(),
        };
        match Server::parse(line.trim()) {
            Ok(server) => Ok(Self { worker, patience: PATIENCE, server }),
            // The process has printed the reason on standard error, which this process shares.
            Err(_) => {
                worker.close();
                let status = worker.ended(Duration::MAX).map_err(failed)?;
                let code = status.and_then(|it| it.code()).and_then(|code| u8::try_from(code).ok());
                let code = code.filter(|code| *code != 0).unwrap_or(exit::ENVIRONMENT);
                let status = status.map_or_else(String::new, |status| status.to_string());
                let text = format!("the other process ended before it was ready ({status})");
                Err(Fault::new(code, text).with_help("it has told why, in the lines above"))
            }
        }
    }

    /// Shortens the time to end, because the user waits for the end of an interrupted run.
    pub(crate) fn hurry(&mut self) {
        self.patience = Interrupt::CHILD_PATIENCE;
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.worker.close();
        // The process is killed if it takes longer.
        let _ = self.worker.ended(self.patience);
    }
}

/// Serves the process at the other end of standard input and output.
pub(crate) fn serve_parent(config: Config, bank: Bank) -> Result<(), Fault> {
    Interrupt::ignore_signals()?;
    let failed = |source| Fault::system("writing the address", source);
    keep().map_err(failed)?;
    let engine = Engine::builder().config(config).build()?;
    let server = Server::of(&engine).map_or(String::new(), |server| server.to_string());
    tell_starter(&server).map_err(failed)?;
    let over = Interrupt::default();
    over.raise_when_stdin_ends()?;
    // The client reports its own errors.
    serve(&engine, &Arc::new(bank), &over, |_, _| false);
    Ok(())
}

/// Serving end on a thread of this process. Dropping the value ends it.
pub(crate) struct Here {
    is_over: Interrupt,
    thread: Option<JoinHandle<()>>,
    pub(crate) server: Server,
}

impl Here {
    /// Serves with these settings, as another process would.
    pub(crate) fn start(config: &Config, placed: &Placed, bank: Bank) -> Result<Self, Fault> {
        let mut builder = like(config)?;
        for (name, value) in &placed.theirs {
            builder = builder.set(name, value)?;
        }
        let engine = Engine::builder().config(builder.build()?).build()?;
        let Some(server) = Server::of(&engine) else {
            return Err(faults::protocol("serving", "no address".into()));
        };
        let is_over = Interrupt::default();
        let (over, bank) = (is_over.clone(), Arc::new(bank));
        let serve = move || serve(&engine, &bank, &over, |_, _| false);
        let failed = |source| Fault::system("starting the serving thread", source);
        let thread = thread::Builder::new().spawn(serve).map_err(failed)?;
        Ok(Self { is_over, thread: Some(thread), server })
    }
}

impl Drop for Here {
    fn drop(&mut self) {
        self.is_over.raise();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed, and the client has seen the end.
            let _ = thread.join();
        }
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
