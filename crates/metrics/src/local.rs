//! Servers that processes of the same user, and of root, reach by an abstract name, which has no file: so
//! they are there in every process, whatever folders there are, and leave nothing behind.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::PathBuf;

use polyrail_sys::peer_credentials;
use rustix::process::geteuid;

use crate::ask::{Silence, ask_all};
use crate::figures::{Figure, read};
use crate::http::{Listener, ROOT_USER};
use crate::sockets::{Bound, Called, call};

/// The thread that answers `polyrail top`; it lives in the network namespace of the thread that built the first engine,
/// which need not be that of its process.
pub const THREAD: &str = "pr-top";
const PREFIX: &str = "polyrail-top-";
/// The abstract names of the calling thread's network namespace, and all other Unix sockets.
const TABLE: &str = "/proc/thread-self/net/unix";
/// In the table's flags: somebody listens.
const LISTENS: u32 = 1 << 16;
/// Processes that are asked.
const MOST_ASKED: usize = 1024;

/// What a process said that serves its metrics under an abstract name.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its number; `None` in a PID namespace that the calling process doesn't see.
    pub process: Option<u32>,
    /// Its user.
    pub user: u32,
    /// What it said.
    pub figures: Result<Vec<Figure>, NoAnswer>,
}

/// Why a process said nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// It is another user's, and the calling process is not root's.
    Forbidden,
    /// It did not answer in time.
    Late,
    /// It said something that is no metrics, or hung up.
    Garbage,
}

/// Listens under a name of its own.
pub(crate) fn listen() -> io::Result<Bound> {
    // The number alone may be another process's in another PID namespace.
    let random = getrandom::u32().map_err(io::Error::other)?;
    let name = format!("{PREFIX}{}-{random:08x}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    Ok(Bound { listener: Listener::Abstract(listener), file: None })
}

/// Asks the processes in the calling thread's network namespace that serve their metrics under an
/// abstract name, or only one of them. Takes a second for each 64 that hang.
///
/// # Errors
/// If the kernel does not tell the names.
pub fn ask_local(only: Option<u32>) -> io::Result<Vec<Answer>> {
    let paths = names(&fs::read(TABLE)?);
    let mut answers: Vec<Option<Answer>> = vec![None; paths.len()];
    let texts = ask_all(paths.len(), |index| {
        let called = call(&paths[index]);
        let Called::Connected(socket) = &called else { return called };
        let Ok((process, user)) = peer_credentials(socket) else { return Called::Dead };
        if only.is_some() && process != only {
            return Called::Dead;
        }
        let figures = Err(NoAnswer::Forbidden);
        answers[index] = Some(Answer { process, user, figures });
        let own = geteuid().as_raw();
        if own == user || own == ROOT_USER { called } else { Called::Dead }
    });
    for (answer, text) in answers.iter_mut().zip(texts) {
        let Some(answer) = answer else { continue };
        answer.figures = match text {
            Ok(text) => read(&text).map_err(|_| NoAnswer::Garbage),
            Err(Silence::Dead) => continue,
            Err(Silence::Timeout) => Err(NoAnswer::Late),
            Err(Silence::Garbage | Silence::TooLarge | Silence::System) => Err(NoAnswer::Garbage),
        };
    }
    Ok(answers.into_iter().flatten().collect())
}

/// The names of these servers in a table of Unix sockets, as paths that begin with a zero byte. Names of
/// other programs may hold any bytes.
fn names(table: &[u8]) -> Vec<PathBuf> {
    let name_in = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.split_ascii_whitespace();
        let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
        let name = words.nth(3)?.strip_prefix('@')?;
        let is_one = flags & LISTENS != 0 && name.starts_with(PREFIX) && words.next().is_none();
        let path = || OsString::from_vec([b"\0", name.as_bytes()].concat());
        is_one.then(|| PathBuf::from(path()))
    };
    let found = table.split(|byte| *byte == b'\n').filter_map(name_in);
    found.take(MOST_ASKED).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_this_form_that_somebody_listens_on_are_asked() {
        let table = b"Num RefCount Protocol Flags Type St Inode Path\n\
            000: 00000002 00000000 00010000 0001 01 100 @polyrail-top-7-00ff\n\
            001: 00000003 00000000 00000000 0001 03 101 @polyrail-top-8-00ff\n\
            002: 00000002 00000000 00010000 0001 01 102 /run/polyrail-top-9-00ff\n\
            003: 00000002 00000000 00010000 0001 01 103 @\xff\xfe\n\
            004: 00000002 00000000 00010000 0001 01 104\n\
            005: 00000002 00000000 00010000 0001 01 105 @polyrail-00ff\n";
        assert_eq!(names(table), [PathBuf::from("\0polyrail-top-7-00ff")]);
        assert_eq!(names(b"garbage\n\n"), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_process_that_hangs_is_late_and_one_that_is_asked_for_alone_is_asked_alone() {
        let Bound { listener, .. } = listen().unwrap();
        let own = std::process::id();
        let of_this = |only| {
            let answers = ask_local(only).unwrap();
            answers.into_iter().find(|answer| answer.process == Some(own))
        };
        let answer = of_this(Some(own)).expect("it listens");
        assert_eq!(answer.figures.unwrap_err(), NoAnswer::Late);
        assert_eq!(answer.user, geteuid().as_raw());
        assert!(of_this(Some(u32::MAX)).is_none());
        drop(listener);
        assert!(of_this(Some(own)).is_none(), "it left something behind");
    }
}
