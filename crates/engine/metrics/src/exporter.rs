//! The exporter of a host: the metrics of all processes with a socket in a folder, or of all of this user.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polyrail_config::harmless;
use polyrail_sys::files::{Found, OpenFolder};
use thiserror::Error;

use crate::ask::{Silence, ask_all};
use crate::exposition::{Exposition, Format};
use crate::families::exporter as families;
use crate::http::Listener;
use crate::local::{self, TABLE};
use crate::process::PORT_HELP;
use crate::samples::Samples;
use crate::server::{Running, THREAD};
use crate::sockets::{call, in_turn, on_port, pid_in, remove_dead, sockets_in};

/// Maximum number of sockets of a folder to ask.
const MOST_SOCKETS: usize = 256;
/// Number of sockets asked at a time.
const AT_A_TIME: usize = 64;
/// Time after which no further answer is read: a text with the maximum number of series takes most of a second.
const GATHER_MAX: Duration = Duration::from_secs(3);

/// Serves the metrics of all processes with a socket in a folder, or of all of this user, until it is dropped.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    _running: Running,
}

/// Error of an exporter that can't listen.
#[derive(Debug, Error)]
#[error(
    "--listen `{address}`: can't listen: {source}; allowed: an address of this host and a free port"
)]
pub struct ExporterError {
    address: SocketAddr,
    source: io::Error,
}

impl ExporterError {
    /// Fix to suggest to the user.
    pub fn help(&self) -> String {
        match self.source.kind() {
            io::ErrorKind::AddrInUse => {
                "one exporter serves all processes of a host; choose another port for a second one"
            }
            io::ErrorKind::PermissionDenied => PORT_HELP,
            _ => "`ip addr` lists the addresses of this host",
        }
        .to_owned()
    }
}

impl Exporter {
    /// Starts to serve at an address; port 0 is any free port. Without a folder the exporter asks the processes that
    /// [`ask_local`](crate::ask_local) may ask. `version`: the exporter's version in its own metrics.
    ///
    /// # Errors
    /// If the exporter can't listen there.
    pub fn start(
        address: SocketAddr,
        folder: Option<&Path>,
        version: &str,
    ) -> Result<Self, ExporterError> {
        let failed = |source| ExporterError { address, source };
        let bound = on_port(address).map_err(failed)?;
        let bound_address = match &bound.listener {
            Listener::Tcp(listener) => listener.local_addr().map_err(failed)?,
            Listener::Unix(_) | Listener::Abstract(_) => address,
        };
        let mut round = Round {
            folder: folder.map(Path::to_owned),
            version: version.to_owned(),
            failures: [0; Silence::ALL.len()],
            removed: 0,
            was_readable: true,
        };
        let render = Box::new(move || round.text());
        let running = Running::start(THREAD, bound.listener, render).map_err(failed)?;
        Ok(Self { address: bound_address, _running: running })
    }

    /// Address on which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// State that stays from round to round.
struct Round {
    /// The folder with the sockets; `None`: the abstract names of this user's processes.
    folder: Option<PathBuf>,
    version: String,
    failures: [u64; Silence::ALL.len()],
    removed: u64,
    /// Whether the last round could read it, so that a folder that goes, or comes back, is logged once.
    was_readable: bool,
}

struct Asked {
    socket: String,
    pid: Option<String>,
    text: Result<String, Silence>,
}

#[derive(Default)]
struct Gathered {
    asked: Vec<Asked>,
    ignored: usize,
    /// Number of sockets of dead processes that were removed.
    removed: usize,
}

impl Gathered {
    fn of_folder(folder: &Path) -> io::Result<Self> {
        // Sockets are asked and removed in this folder, even if its name has been given to another one.
        let folder = OpenFolder::open(folder)?;
        let listed = sockets_in(&folder)?;
        let in_folder = listed.len();
        // Any user who may put a socket there chooses its name, which goes into labels and the log.
        let shown = listed.into_iter().map(|socket| (harmless(&socket.0, &[]), socket));
        // Two names may look alike then.
        let sockets: BTreeMap<String, (String, Found)> = shown.collect();
        let sockets = in_turn(sockets, |(_, found)| found.owner()).into_iter().take(MOST_SOCKETS);
        let (names, sockets): (Vec<String>, Vec<(String, Found)>) = sockets.unzip();
        let texts = ask_all(sockets.len(), AT_A_TIME, |index| {
            call(&folder.path_by_descriptor(&sockets[index].0))
        });
        let mut gathered = Self { ignored: in_folder - names.len(), ..Self::default() };
        for ((socket, (file, found)), text) in names.into_iter().zip(&sockets).zip(texts) {
            if matches!(text, Err(Silence::Dead)) && remove_dead(&folder, file, found) {
                gathered.removed += 1;
                continue;
            }
            let pid = pid_in(&socket).map(str::to_owned);
            gathered.asked.push(Asked { socket, pid, text });
        }
        Ok(gathered)
    }

    /// Asks the processes of this user. Leaves out those that this process may not ask.
    fn of_user() -> io::Result<Self> {
        let (told, not_asked) = local::texts(None)?;
        let asked = told.into_iter().filter(|told| !matches!(told.text, Err(Silence::Dead)));
        let asked = asked.map(|told| {
            let pid = told.answer.process.map(|pid| pid.to_string());
            Asked { socket: told.socket, pid, text: told.text }
        });
        Ok(Self { asked: asked.collect(), ignored: not_asked, removed: 0 })
    }
}

impl Round {
    fn text(&mut self) -> String {
        let start = Instant::now();
        let gathered = match &self.folder {
            Some(folder) => Gathered::of_folder(folder),
            None => Gathered::of_user(),
        };
        let is_readable = gathered.is_ok();
        self.tell_of_folder(gathered.as_ref().err());
        let Gathered { asked, ignored, removed } = gathered.unwrap_or_default();
        let processes = asked.len() + removed;
        self.removed += removed as u64;
        let mut all = Exposition::default();
        let mut own = Samples::default();
        for Asked { socket, pid, text } in asked {
            let pid = pid.as_deref();
            let result = match text {
                Ok(_) if start.elapsed() > GATHER_MAX => Err(Silence::TooLarge),
                Ok(text) => add(&mut all, pid, &socket, &text).map_err(|()| Silence::Garbage),
                Err(silence) => Err(silence),
            };
            if let Err(silence) = result {
                self.failures[silence as usize] += 1;
                let reason = silence.name();
                tracing::warn!(target: "polyrail::engine", socket, reason, "no metrics");
            }
            own.count(&families::UP, &[pid.unwrap_or_default(), &socket], result.is_ok().into());
        }
        own.info(&families::INFO, &[&self.version]);
        own.count(&families::PROCESSES, &[], processes as u64);
        own.count(&families::SOCKETS_IGNORED, &[], ignored as u64);
        own.count(&families::FOLDER_READABLE, &[], is_readable.into());
        own.number(&families::GATHER_TIME, &[], start.elapsed().as_secs_f64());
        for reason in Silence::ALL {
            own.count(&families::FAILURES, &[reason.name()], self.failures[reason as usize]);
        }
        own.count(&families::SOCKETS_REMOVED, &[], self.removed);
        // No process may have these families, so they are new.
        if let Err(error) = all.add(&own.text(), &[], |_| true) {
            tracing::error!(target: "polyrail::engine", %error, "the exporter's own metrics");
        }
        all.text(Format::OpenMetrics)
    }
}

impl Round {
    fn tell_of_folder(&mut self, error: Option<&io::Error>) {
        let folder = self.folder.as_deref().unwrap_or(Path::new(TABLE));
        let folder = harmless(&folder.to_string_lossy(), &[]);
        match error {
            Some(error) if self.was_readable => {
                tracing::warn!(target: "polyrail::engine", folder, %error, "no metrics of any process: the folder can't be read");
            }
            None if !self.was_readable => {
                tracing::warn!(target: "polyrail::engine", folder, "the folder can be read again");
            }
            _ => {}
        }
        self.was_readable = error.is_none();
    }
}

/// Adds the text of a process, with labels that tell it from others.
fn add(all: &mut Exposition, pid: Option<&str>, name: &str, text: &str) -> Result<(), ()> {
    let labels = pid.map_or(("socket", name), |pid| ("pid", pid));
    let added = all.add(text, &[labels], is_of_engines).or_else(|garbage| {
        // Two processes in two containers may have the same number, and engines of the same name.
        let is_again = garbage.is_again() && labels.0 == "pid";
        let both = [labels, ("socket", name)];
        if is_again { all.add(text, &both, is_of_engines) } else { Err(garbage) }
    });
    added.map_err(|error| {
        tracing::warn!(target: "polyrail::engine", socket = name, %error, "what it says is no metrics");
    })
}

/// Whether a family is about engines. Processes may report neither other families nor the exporter's.
fn is_of_engines(family: &str) -> bool {
    let own = |name: &str| name == "polyrail_up" || name.starts_with("polyrail_exporter");
    family.starts_with("polyrail_") && !own(family)
}
