//! One for a host: the metrics of all processes with a socket in a folder.

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
use crate::process::PORT_HELP;
use crate::samples::Samples;
use crate::server::{Running, THREAD};
use crate::sockets::{Called, call, on_port, pid_in, remove_dead, sockets_in};

/// Sockets of a folder that are asked.
const MOST_SOCKETS: usize = 256;
/// Those that are asked at a time.
const AT_A_TIME: usize = 64;
/// From when on no further answer is read: a text with as many series as may be takes most of a second.
const GATHER_MAX: Duration = Duration::from_secs(3);

/// Serves the metrics of all processes with a socket in a folder, until it is dropped.
#[derive(Debug)]
pub struct Exporter {
    address: SocketAddr,
    _running: Running,
}

/// The exporter can't listen.
#[derive(Debug, Error)]
#[error(
    "--listen `{address}`: can't listen: {source}; allowed: an address of this host and a free port"
)]
pub struct ExporterError {
    address: SocketAddr,
    source: io::Error,
}

impl ExporterError {
    /// What to do about it.
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
    /// Starts to serve there; port 0 is any that is free. `version`: what the exporter is called in its
    /// own metrics.
    ///
    /// # Errors
    /// If it can't listen there.
    pub fn start(address: SocketAddr, folder: &Path, version: &str) -> Result<Self, ExporterError> {
        let failed = |source| ExporterError { address, source };
        let bound = on_port(address).map_err(failed)?;
        let bound_address = match &bound.listener {
            Listener::Tcp(listener) => listener.local_addr().map_err(failed)?,
            Listener::Unix(_) | Listener::Abstract(_) => address,
        };
        let mut round = Round {
            folder: folder.to_owned(),
            version: version.to_owned(),
            failures: [0; Silence::ALL.len()],
            removed: 0,
            was_readable: true,
        };
        let render = Box::new(move || round.text());
        let running = Running::start(THREAD, bound.listener, render).map_err(failed)?;
        Ok(Self { address: bound_address, _running: running })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What stays from round to round.
struct Round {
    folder: PathBuf,
    version: String,
    failures: [u64; Silence::ALL.len()],
    removed: u64,
    /// In the round before, so that a folder that goes, or comes back, is told once.
    was_readable: bool,
}

impl Round {
    fn text(&mut self) -> String {
        let start = Instant::now();
        // The sockets that are asked and removed are in this folder, whatever has its name by then.
        let opened = OpenFolder::open(&self.folder);
        let listed = opened.and_then(|folder| Ok((sockets_in(&folder)?, folder)));
        let is_readable = listed.is_ok();
        self.tell_of_folder(listed.as_ref().err());
        let (listed, folder) = listed.map_or((Vec::new(), None), |(listed, it)| (listed, Some(it)));
        let in_folder = listed.len();
        // Whoever may put a socket there chooses its name, which goes into labels and the log.
        let shown = listed.into_iter().map(|socket| (harmless(&socket.0, &[]), socket));
        // Two may look alike then.
        let sockets: BTreeMap<String, (String, Found)> = shown.collect();
        let sockets = in_turn(sockets, |(_, found)| found.owner()).into_iter().take(MOST_SOCKETS);
        let (names, sockets): (Vec<String>, Vec<(String, Found)>) = sockets.unzip();
        let ignored = in_folder - names.len();
        let answers = ask_all(sockets.len(), AT_A_TIME, |index| match &folder {
            Some(folder) => call(&folder.path_by_descriptor(&sockets[index].0)),
            None => Called::Dead,
        });
        let is_removed = |(name, found): &(String, Found)| {
            folder.as_ref().is_some_and(|folder| remove_dead(folder, name, found))
        };
        let mut all = Exposition::default();
        let mut own = Samples::default();
        for ((name, socket), answer) in names.iter().zip(&sockets).zip(answers) {
            let result = match answer {
                Ok(_) if start.elapsed() > GATHER_MAX => Err(Silence::TooLarge),
                Ok(text) => add(&mut all, name, &text).map_err(|()| Silence::Garbage),
                Err(Silence::Dead) if is_removed(socket) => {
                    self.removed += 1;
                    continue;
                }
                Err(silence) => Err(silence),
            };
            if let Err(silence) = result {
                self.failures[silence as usize] += 1;
                let reason = silence.name();
                tracing::warn!(target: "polyrail::engine", socket = name, reason, "no metrics");
            }
            let pid = pid_in(name).unwrap_or_default();
            own.count(&families::UP, &[pid, name], result.is_ok().into());
        }
        own.info(&families::INFO, &[&self.version]);
        own.count(&families::PROCESSES, &[], names.len() as u64);
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
        let folder = harmless(&self.folder.to_string_lossy(), &[]);
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

/// By name, with the first of each user before the second of any: so no user's sockets keep out another's.
fn in_turn<T>(all: BTreeMap<String, T>, user: impl Fn(&T) -> u32) -> Vec<(String, T)> {
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    let mut found: Vec<_> = all
        .into_iter()
        .map(|(name, one)| {
            let turn = turns.entry(user(&one)).or_default();
            *turn += 1;
            (*turn, (name, one))
        })
        .collect();
    found.sort_by_key(|(turn, _)| *turn);
    found.into_iter().map(|(_, one)| one).collect()
}

/// Adds what a process said, with labels that tell it from others.
fn add(all: &mut Exposition, name: &str, text: &str) -> Result<(), ()> {
    let labels = match pid_in(name) {
        Some(pid) => ("pid", pid),
        None => ("socket", name),
    };
    let added = all.add(text, &[labels], is_of_engines).or_else(|garbage| {
        // In two containers two processes have the same number, and engines of the same name.
        let is_again = garbage.is_again() && labels.0 == "pid";
        let both = [labels, ("socket", name)];
        if is_again { all.add(text, &both, is_of_engines) } else { Err(garbage) }
    });
    added.map_err(|error| {
        tracing::warn!(target: "polyrail::engine", socket = name, %error, "what it says is no metrics");
    })
}

/// Processes tell about engines, and neither about others nor about the exporter.
fn is_of_engines(family: &str) -> bool {
    let own = |name: &str| name == "polyrail_up" || name.starts_with("polyrail_exporter");
    family.starts_with("polyrail_") && !own(family)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_one_user_keep_out_none_of_another() {
        let of = |user: u32| move |number: u32| (format!("polyrail-{user}-{number:03}.sock"), user);
        let all = (0..300).map(of(1000)).chain((0..2).map(of(1001))).collect();
        let order: Vec<u32> =
            in_turn(all, |user| *user).into_iter().map(|(_, user)| user).collect();
        assert_eq!(order[..5], [1000, 1001, 1000, 1001, 1000]);
        let one = (0..9).map(of(7)).collect::<BTreeMap<_, _>>();
        let names: Vec<String> = one.keys().cloned().collect();
        let in_turn = in_turn(one, |user| *user);
        assert_eq!(in_turn.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), names);
    }
}
