//! The servers of this process. Engines with the same setting share one.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use polyrail_config::{MetricsListen, expand_file_name};
use polyrail_sys::PerProcess;
use thiserror::Error;

use crate::local;
use crate::samples::{Samples, Source};
use crate::server::{Running, THREAD};
use crate::sockets::{self, Bound, SocketFile};

static SERVERS: PerProcess<Mutex<Servers>> = PerProcess::new();
/// One more than the rank that [`set_rank`] set; 0 if it is unknown.
static RANK: AtomicU64 = AtomicU64::new(0);

/// Maximum length of an engine's name in a label, in characters.
const LONGEST_NAME: usize = 100;

#[derive(Default)]
struct Servers {
    by_place: HashMap<Place, Server>,
    next: u64,
}

/// A place that a setting names; `None` is an abstract name.
type Place = Option<MetricsListen>;

struct Server {
    sources: Arc<Mutex<Vec<Registered>>>,
    // In this order: the server ends, and then its file is removed.
    _running: Running,
    _file: Option<SocketFile>,
}

struct Registered {
    number: u64,
    /// Value of the label `engine`.
    engine: String,
    source: Arc<dyn Source>,
}

/// Error of a server that can't listen.
#[derive(Debug, Error)]
#[error("metrics_listen = `{value}`: can't listen: {source}; allowed: {allowed}")]
pub struct ServeError {
    /// The setting's value.
    pub value: String,
    /// Allowed values.
    pub allowed: &'static str,
    /// The system's error.
    pub source: io::Error,
}

impl ServeError {
    /// Fix to suggest to the user.
    pub fn help(&self) -> String {
        let share = "several processes of a host share dir:FOLDER, which `polyrail exporter` reads";
        match self.source.kind() {
            io::ErrorKind::AddrInUse => format!("give each process a place of its own; {share}"),
            io::ErrorKind::NotFound => "make the folder: `mkdir -p` with its name".to_owned(),
            // Only ports have no folder.
            io::ErrorKind::PermissionDenied if !self.value.contains('/') => PORT_HELP.to_owned(),
            io::ErrorKind::PermissionDenied => {
                "name a folder that this user can write to, or change its permissions".to_owned()
            }
            _ => format!("name another place; {share}"),
        }
    }
}

/// Help for an address whose port this process may not use.
pub(crate) const PORT_HELP: &str =
    "a port below 1024 takes root, or CAP_NET_BIND_SERVICE; choose one from 1024 on";

/// Registration of a source, which is served until this is dropped.
#[derive(Debug)]
#[must_use = "the metrics are served until this is dropped"]
pub struct Registration {
    pid: u32,
    place: Place,
    number: u64,
}

/// Sets this process's number among those that work together, for the label `rank`.
pub fn set_rank(rank: u32) {
    RANK.store(u64::from(rank) + 1, Ordering::Relaxed);
}

/// Serves the metrics of a source at a place, together with those of all sources of this process that are served there.
///
/// # Errors
/// If this process can't listen there.
pub fn serve(
    place: &MetricsListen,
    host: &str,
    source: Arc<dyn Source>,
) -> Result<Registration, ServeError> {
    let start = |pid| Server::start(place, host, pid);
    register(Some(place.clone()), source, start)
}

/// Serves the metrics of a source to [`ask_local`](crate::ask_local): to processes of the same user, and of root, in
/// the same network namespace.
///
/// # Errors
/// If the system has no such socket for this process.
pub fn serve_local(source: Arc<dyn Source>) -> io::Result<Registration> {
    register(None, source, |_| Server::on(local::THREAD, local::listen()?))
}

fn register<E>(
    place: Place,
    source: Arc<dyn Source>,
    start: impl FnOnce(u32) -> Result<Server, E>,
) -> Result<Registration, E> {
    let pid = std::process::id();
    let mut servers = servers();
    let number = servers.next;
    if !servers.by_place.contains_key(&place) {
        servers.by_place.insert(place.clone(), start(pid)?);
    }
    servers.next += 1;
    if let Some(server) = servers.by_place.get(&place) {
        server.register(number, source);
    }
    Ok(Registration { pid, place, number })
}

impl Drop for Registration {
    fn drop(&mut self) {
        // A forked copy of the process must not end it.
        if std::process::id() != self.pid {
            return;
        }
        let mut servers = servers();
        let Some(server) = servers.by_place.get(&self.place) else { return };
        let mut sources = lock(&server.sources);
        sources.retain(|one| one.number != self.number);
        let is_last = sources.is_empty();
        drop(sources);
        let ended = if is_last { servers.by_place.remove(&self.place) } else { None };
        drop(servers);
        // Dropped without the lock, because the drop waits for the server's thread.
        drop(ended);
    }
}

impl Server {
    fn start(place: &MetricsListen, host: &str, pid: u32) -> Result<Self, ServeError> {
        let expand = |path: &str| expand_file_name(path, host, pid);
        let (value, allowed, bound) = match place {
            MetricsListen::Tcp(address) => (
                address.to_string(),
                "an address of this host and a port that is free",
                sockets::on_port(*address),
            ),
            MetricsListen::Unix(path) => (
                format!("unix:{path}"),
                "a name in a folder that exists and can be written to, of 107 bytes at most",
                sockets::on_path(Path::new(&expand(path))),
            ),
            MetricsListen::Folder(path) => (
                format!("dir:{path}"),
                "a folder that exists and can be written to, of 70 bytes at most",
                sockets::in_folder(Path::new(&expand(path))),
            ),
            _ => ("?".to_owned(), "a port or a path", Err(io::ErrorKind::Unsupported.into())),
        };
        let failed = |source| ServeError { value: value.clone(), allowed, source };
        Self::on(THREAD, bound.map_err(failed)?).map_err(failed)
    }

    fn on(thread: &str, bound: Bound) -> io::Result<Self> {
        let Bound { listener, file } = bound;
        let sources = Arc::<Mutex<Vec<Registered>>>::default();
        let rendered = sources.clone();
        let render = Box::new(move || render(&rendered));
        let running = Running::start(thread, listener, render)?;
        Ok(Self { sources, _running: running, _file: file })
    }

    fn register(&self, number: u64, source: Arc<dyn Source>) {
        let mut sources = lock(&self.sources);
        let name: String = source.name().chars().take(LONGEST_NAME).collect();
        let mut engine = name.clone();
        for again in 2.. {
            if !sources.iter().any(|one| one.engine == engine) {
                break;
            }
            engine = format!("{name} #{again}");
        }
        sources.push(Registered { number, engine, source });
    }
}

fn render(sources: &Mutex<Vec<Registered>>) -> String {
    let mut samples = Samples::default();
    let rank = RANK.load(Ordering::Relaxed).checked_sub(1);
    // Without the lock: the drop of a source here may end another one.
    let sources: Vec<_> =
        lock(sources).iter().map(|one| (one.engine.clone(), one.source.clone())).collect();
    for (engine, source) in sources {
        let mut common = vec![("engine", engine)];
        common.extend(rank.map(|rank| ("rank", rank.to_string())));
        samples.of(common);
        source.collect(&mut samples);
    }
    samples.text()
}

fn servers() -> MutexGuard<'static, Servers> {
    SERVERS.get().lock().unwrap_or_else(PoisonError::into_inner)
}

fn lock(sources: &Mutex<Vec<Registered>>) -> MutexGuard<'_, Vec<Registered>> {
    sources.lock().unwrap_or_else(PoisonError::into_inner)
}
