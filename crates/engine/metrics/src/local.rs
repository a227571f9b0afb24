//! Servers that processes of the same user, and of root, reach by an abstract name, which has no file. So they work in
//! every process, whatever folders exist, and leave nothing behind.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::mem;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use polyrail_sys::files::{Found as FoundFile, OpenFolder};
use polyrail_sys::peer_credentials;
use rustix::process::geteuid;
use socket2::Socket;

use crate::ask::{Silence, ask_all};
use crate::figures::{Figure, read};
use crate::http::{Listener, ROOT_USER};
use crate::sockets::{Bound, Called, call, in_turn, sockets_in};

/// Name of the thread that answers `polyrail top`. It lives in the network namespace of the thread that built the first
/// engine, which need not be that of its process.
pub const THREAD: &str = "pr-top";
const PREFIX: &str = "polyrail-top-";
/// The abstract names of the calling thread's network namespace, and all other Unix sockets.
pub(crate) const TABLE: &str = "/proc/thread-self/net/unix";
/// Flag of the table: the socket listens.
const LISTENS: u32 = 1 << 16;
/// Maximum number of names to call, and time for that. Any user of the host may listen under any number of them.
const MOST_CALLED: usize = 16_384;
const CALL_DEADLINE: Duration = Duration::from_millis(500);
/// Time for finding out which of the names are sockets of the process in them.
const PROOF_DEADLINE: Duration = Duration::from_millis(200);
/// Maximum number of sockets to ask per process: one for each copy of this crate that was loaded into it.
const MOST_OF_PROCESS: usize = 4;
/// Maximum number of sockets to ask of the calling user, of any other user, and of a folder.
const MOST_OF_USER: usize = 256;
/// Maximum number of sockets to ask of all other users together.
const MOST_OF_OTHERS: usize = 384;

/// Answers of processes.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// One answer for each socket that was asked.
    pub answers: Vec<Answer>,
    /// Number of sockets under such a name that were not asked, because of the limits per process, user or call.
    pub not_asked: usize,
}

/// Answer of a process that serves its metrics under an abstract name.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Process number; `None` in a PID namespace that the calling process doesn't see.
    pub process: Option<u32>,
    /// User of the process.
    pub user: u32,
    /// Metrics of the process, or the reason why there are none.
    pub figures: Result<Vec<Figure>, NoAnswer>,
}

/// Reason for a process without metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The process is another user's, and the calling process is not root's.
    Forbidden,
    /// The process did not answer in time.
    Late,
    /// The process sent something other than metrics, or hung up.
    Garbage,
}

/// Listens under a unique name.
pub(crate) fn listen() -> io::Result<Bound> {
    // The process number alone may be another process's in another PID namespace.
    let random = getrandom::u32().map_err(io::Error::other)?;
    let name = format!("{PREFIX}{}-{random:08x}", std::process::id());
    let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    Ok(Bound { listener: Listener::Abstract(listener), file: None })
}

/// Asks the processes in the calling thread's network namespace that serve their metrics under an abstract name, or
/// only process `only`. Takes at most two seconds, however many of them hang: processes of the calling user are asked
/// first, then all others.
///
/// # Errors
/// If the kernel does not list the names.
pub fn ask_local(only: Option<u32>) -> io::Result<Answers> {
    let (told, not_asked) = texts(only)?;
    Ok(Answers { answers: told.into_iter().map(Told::read).collect(), not_asked })
}

/// Asks the processes with a socket in a folder, or only process `only`. The kernel reports which process a socket
/// belongs to, whatever its name. Takes at most a second, however many of them hang.
///
/// # Errors
/// If the folder can't be read.
pub fn ask_folder(folder: &Path, only: Option<u32>) -> io::Result<Answers> {
    let folder = OpenFolder::open(folder)?;
    let sockets: BTreeMap<String, FoundFile> = sockets_in(&folder)?.into_iter().collect();
    let in_folder = sockets.len();
    let sockets = in_turn(sockets, FoundFile::owner);
    let held = sockets.into_iter().take(MOST_OF_USER).filter_map(|(socket, _)| {
        let Called::Connected(called) = call(&folder.path_by_descriptor(&socket)) else {
            return None;
        };
        let (process, user) = peer_credentials(&called).ok()?;
        let answer = Answer { process, user, figures: Err(NoAnswer::Late) };
        let is_wanted = only.is_none() || process == only;
        is_wanted.then_some(Held { answer, socket, called: Called::Connected(called) })
    });
    let answers = asked(held.collect()).into_iter().map(Told::read).collect();
    Ok(Answers { answers, not_asked: in_folder.saturating_sub(MOST_OF_USER) })
}

/// A process that was asked, and its text.
pub(crate) struct Told {
    /// The answer without metrics.
    pub(crate) answer: Answer,
    /// Name as in the kernel's list.
    pub(crate) socket: String,
    pub(crate) text: Result<String, Silence>,
}

impl Told {
    fn read(self) -> Answer {
        let figures = match self.text {
            Ok(text) => read(&text).map_err(|_| NoAnswer::Garbage),
            Err(Silence::Dead) => Err(NoAnswer::Forbidden),
            Err(Silence::Timeout) => Err(NoAnswer::Late),
            Err(Silence::Garbage | Silence::TooLarge | Silence::System) => Err(NoAnswer::Garbage),
        };
        Answer { figures, ..self.answer }
    }
}

/// Returns the texts of the processes that [`ask_local`] asks, and the number of sockets that were not asked.
pub(crate) fn texts(only: Option<u32>) -> io::Result<(Vec<Told>, usize)> {
    let mut found = Found::default();
    found.call_all(fair(names(&fs::read(TABLE)?), only, &Proc), only);
    let own = geteuid().as_raw();
    let (own, others): (Vec<Held>, Vec<Held>) =
        found.held.into_iter().partition(|held| held.answer.user == own);
    Ok(([own, others].into_iter().flat_map(asked).collect(), found.not_asked))
}

/// Asks all of these at once.
fn asked(mut held: Vec<Held>) -> Vec<Told> {
    let count = held.len();
    let connect = |index: usize| mem::replace(&mut held[index].called, Called::Dead);
    let texts = ask_all(count, count, connect);
    let told = |(held, text): (Held, _)| Told { answer: held.answer, socket: held.socket, text };
    held.into_iter().zip(texts).map(told).collect()
}

/// Abstract name of such a server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Name {
    path: PathBuf,
    /// The process in it, as its own PID namespace numbers it.
    pid: u32,
    /// Later sockets have higher ones.
    inode: u64,
}

/// A process to ask.
struct Held {
    answer: Answer,
    socket: String,
    /// [`Called::Dead`]: this user may not ask it.
    called: Called,
}

/// The processes to ask, with limits per process and user.
#[derive(Default)]
struct Found {
    held: Vec<Held>,
    not_asked: usize,
    of_process: HashMap<(u32, u32), usize>,
    of_user: HashMap<u32, usize>,
    of_others: usize,
    /// Numbers of processes in their own namespaces.
    namespaced: HashMap<u32, Vec<u32>>,
}

impl Found {
    fn call_all(&mut self, names: Vec<Name>, only: Option<u32>) {
        let until = Instant::now() + CALL_DEADLINE;
        let mut names = names.into_iter();
        for name in names.by_ref().take(MOST_CALLED) {
            match call(&name.path) {
                Called::Connected(socket) => self.add(&name, socket, only),
                Called::Full => self.add_late(&name, only, &Proc),
                Called::Dead => {}
                Called::Failed(_) => self.not_asked += 1,
            }
            if Instant::now() >= until {
                break;
            }
        }
        self.not_asked += names.count();
    }

    fn add(&mut self, name: &Name, socket: Socket, only: Option<u32>) {
        let Ok((process, user)) = peer_credentials(&socket) else { return };
        if only.is_some() && process != only || !self.is_named_after(name, process) {
            return;
        }
        self.hold(name, (process, user), Called::Connected(socket));
    }

    /// Adds a process whose socket accepts no connection now, for instance while others fill its queue. Without a
    /// connection only `/proc` shows which process the socket belongs to.
    fn add_late(&mut self, name: &Name, only: Option<u32>, processes: &impl Processes) {
        if only.is_some_and(|only| only != name.pid) {
            return;
        }
        let user = processes.user(name.pid);
        match (user, processes.sockets(name.pid)) {
            (Some(_), Some(sockets)) if !sockets.contains(&name.inode) => {}
            (Some(user), _) => self.hold(name, (Some(name.pid), user), Called::Full),
            // The process is in another PID namespace.
            (None, _) => self.not_asked += 1,
        }
    }

    fn hold(&mut self, name: &Name, (process, user): (Option<u32>, u32), called: Called) {
        let own = geteuid().as_raw();
        let of_process = self.of_process.entry((user, process.unwrap_or(name.pid))).or_default();
        let of_user = self.of_user.entry(user).or_default();
        let is_other = user != own;
        if *of_process >= MOST_OF_PROCESS
            || *of_user >= MOST_OF_USER
            || is_other && self.of_others >= MOST_OF_OTHERS
        {
            self.not_asked += 1;
            return;
        }
        *of_process += 1;
        *of_user += 1;
        self.of_others += usize::from(is_other);
        let may_ask = !is_other || own == ROOT_USER;
        let answer = Answer { process, user, figures: Err(NoAnswer::Forbidden) };
        let socket = name.path.to_string_lossy().replace('\0', "@");
        let called = if may_ask { called } else { Called::Dead };
        self.held.push(Held { answer, socket, called });
    }

    /// Whether the process that listens is the one in the name. Otherwise another process squats on the name. For
    /// processes outside the calling process's PID namespace the kernel gives no number to compare.
    fn is_named_after(&mut self, name: &Name, process: Option<u32>) -> bool {
        let Some(process) = process.filter(|process| *process != name.pid) else { return true };
        self.namespaced.entry(process).or_insert_with(|| own_numbers(process)).contains(&name.pid)
    }
}

/// Numbers of a process in its own PID namespaces.
fn own_numbers(process: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    numbers.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Facts about processes from `/proc`.
trait Processes {
    /// User of a process, if the process exists.
    fn user(&self, pid: u32) -> Option<u32>;
    /// Sockets of a process, if the calling process may read them.
    fn sockets(&self, pid: u32) -> Option<HashSet<u64>>;
}

struct Proc;

impl Processes for Proc {
    fn user(&self, pid: u32) -> Option<u32> {
        Some(fs::metadata(format!("/proc/{pid}")).ok()?.uid())
    }

    fn sockets(&self, pid: u32) -> Option<HashSet<u64>> {
        let inode = |entry: io::Result<fs::DirEntry>| {
            let target = fs::read_link(entry.ok()?.path()).ok()?;
            target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
        };
        Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.filter_map(inode).collect())
    }
}

/// Sorts the names so that no user's hide another's. Those of `first` and of the calling user's processes come before
/// the others, which take turns by user. Among the names that contain one process, the process's own sockets come
/// first. If there are more than it may have, those that can't be attributed to it come last.
fn fair(names: Vec<Name>, first: Option<u32>, processes: &impl Processes) -> Vec<Name> {
    let until = Instant::now() + PROOF_DEADLINE;
    let own = geteuid().as_raw();
    let mut of_process: BTreeMap<u32, Vec<(usize, Name)>> = BTreeMap::new();
    for (at, name) in names.into_iter().enumerate() {
        of_process.entry(name.pid).or_default().push((at, name));
    }
    let user_of = |(pid, names): (u32, Vec<_>)| (processes.user(pid), pid, names);
    let mut groups: Vec<_> = of_process.into_iter().map(user_of).collect();
    let is_later =
        |user: Option<u32>, pid: u32| (Some(pid) != first, user != Some(own) && user.is_some());
    groups.sort_by_key(|(user, pid, names)| (is_later(*user, *pid), names.len(), *pid));
    let mut turns: HashMap<(bool, Option<u32>), usize> = HashMap::new();
    let mut ranked = Vec::new();
    for (user, pid, names) in groups {
        let is_crowded = names.len() > MOST_OF_PROCESS;
        let may_look = is_crowded && Instant::now() < until;
        let sockets = may_look.then(|| processes.sockets(pid)).flatten().unwrap_or_default();
        for (at, name) in names {
            let is_last = is_crowded && !sockets.contains(&name.inode);
            let turn = turns.entry((is_last, user)).or_default();
            *turn += 1;
            ranked.push(((is_last, is_later(user, pid), *turn, at), name));
        }
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, name)| name).collect()
}

/// Names of these servers in a table of Unix sockets, as paths that begin with a zero byte, later sockets before
/// earlier ones. Names of other programs may hold any bytes.
fn names(table: &[u8]) -> Vec<Name> {
    let name_in = |line: &[u8]| {
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.split_ascii_whitespace();
        let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
        let inode = words.nth(2)?.parse().ok()?;
        let name = words.next()?.strip_prefix('@')?;
        let (pid, random) = name.strip_prefix(PREFIX)?.split_once('-')?;
        let pid = pid.parse().ok()?;
        let is_one = flags & LISTENS != 0
            && u32::from_str_radix(random, 16).is_ok()
            && words.next().is_none();
        let path = || OsString::from_vec([b"\0", name.as_bytes()].concat());
        is_one.then(|| Name { path: PathBuf::from(path()), pid, inode })
    };
    let mut found: Vec<Name> = table.split(|byte| *byte == b'\n').filter_map(name_in).collect();
    found.sort_by_key(|name| Reverse(name.inode));
    found
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use socket2::{Domain, SockAddr, Type};

    use super::*;

    /// Lock for tests that look at all sockets of this process.
    static ALONE: Mutex<()> = Mutex::new(());

    #[test]
    fn only_names_of_this_form_that_somebody_listens_on_are_asked() {
        let table = b"Num RefCount Protocol Flags Type St Inode Path\n\
            000: 00000002 00000000 00010000 0001 01 100 @polyrail-top-7-00ff\n\
            001: 00000003 00000000 00000000 0001 03 101 @polyrail-top-8-00ff\n\
            002: 00000002 00000000 00010000 0001 01 102 /run/polyrail-top-9-00ff\n\
            003: 00000002 00000000 00010000 0001 01 103 @\xff\xfe\n\
            004: 00000002 00000000 00010000 0001 01 104\n\
            005: 00000002 00000000 00010000 0001 01 105 @polyrail-00ff\n\
            006: 00000002 00000000 00010000 0001 01 106 @polyrail-top-x-00ff\n\
            007: 00000002 00000000 00010000 0001 01 107 @polyrail-top-7-ghost\n";
        let only = Name { path: PathBuf::from("\0polyrail-top-7-00ff"), pid: 7, inode: 100 };
        assert_eq!(names(table), [only]);
        assert_eq!(names(b"garbage\n\n"), []);
    }

    #[test]
    fn the_process_that_is_asked_for_comes_first_and_then_the_latest_socket() {
        let line = |pid: u32, inode: u32| {
            format!("0: 2 0 00010000 0001 01 {inode} @polyrail-top-{pid}-0000000a\n")
        };
        let table = [line(7, 3), line(8, 9), line(9, 12), line(7, 4)].concat();
        let order = |first| inodes(fair(names(table.as_bytes()), first, &Table::default()));
        assert_eq!(order(None), [9, 12, 4, 3]);
        assert_eq!(order(Some(7)), [4, 3, 9, 12]);
    }

    fn inodes(names: Vec<Name>) -> Vec<u64> {
        names.into_iter().map(|name| name.inode).collect()
    }

    #[derive(Default)]
    struct Table {
        users: HashMap<u32, u32>,
        sockets: HashMap<u32, HashSet<u64>>,
    }

    impl Processes for Table {
        fn user(&self, pid: u32) -> Option<u32> {
            self.users.get(&pid).copied()
        }

        fn sockets(&self, pid: u32) -> Option<HashSet<u64>> {
            self.sockets.get(&pid).cloned()
        }
    }

    #[test]
    fn thousands_of_names_of_one_user_hide_no_other_users_process() {
        let others = geteuid().as_raw() + 1;
        let name = |pid: u32, inode: u64| Name { path: PathBuf::new(), pid, inode };
        // A crowd after 20 processes, and as many after the victim's.
        let crowd = (0..20_000u64).map(|at| name(100 + at as u32 % 20, 1_000 + at));
        let squatters = (0..20_000u64).map(|at| name(7, 50_000 + at));
        let all: Vec<Name> = crowd.chain(squatters).chain([name(7, 500), name(8, 501)]).collect();
        let mut table = Table::default();
        table.users.extend((100..120).map(|pid| (pid, others)));
        table.users.extend([(7, others + 1), (8, geteuid().as_raw())]);
        let fds = |of: std::ops::Range<u64>| of.collect::<HashSet<u64>>();
        table.sockets.extend([(7, fds(400..501)), (100, fds(1_000..21_000))]);
        let order = inodes(fair(all.clone(), None, &table));
        assert_eq!(order.len(), all.len());
        assert_eq!(order[0], 501, "the calling user's");
        assert!(order[1..3].contains(&500), "{:?}", &order[..5]);
        // Processes that the calling one may not look into.
        table.sockets.clear();
        assert_eq!(inodes(fair(all, None, &table))[0], 501);
    }

    #[test]
    fn a_process_that_hangs_is_late_and_one_that_is_asked_for_alone_is_asked_alone() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let Bound { listener, .. } = listen().unwrap();
        let own = std::process::id();
        let of_this = |only| {
            let answers = ask_local(only).unwrap();
            answers.answers.into_iter().find(|answer| answer.process == Some(own))
        };
        let answer = of_this(Some(own)).expect("it listens");
        assert_eq!(answer.figures.unwrap_err(), NoAnswer::Late);
        assert_eq!(answer.user, geteuid().as_raw());
        assert!(of_this(Some(u32::MAX)).is_none());
        drop(listener);
        assert!(of_this(Some(own)).is_none(), "it left something behind");
    }

    #[test]
    fn a_process_whose_queue_others_fill_is_late_and_not_gone() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let own = std::process::id();
        let bind = |pid: u32| {
            let path = PathBuf::from(format!("\0{PREFIX}{pid}-0000f011"));
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
            socket.bind(&SockAddr::unix(&path).unwrap()).unwrap();
            socket.listen(1).unwrap();
            let mut knocking = Vec::new();
            while let Called::Connected(one) = call(&path) {
                knocking.push(one);
            }
            (socket, knocking)
        };
        // The second one only has its parent's number.
        let parent = std::os::unix::process::parent_id();
        let full = [own, parent].map(bind);
        let answers = ask_local(None).unwrap();
        let of = |process| {
            let found = answers.answers.iter().find(|answer| answer.process == Some(process));
            found.map(|answer| answer.figures.clone().unwrap_err())
        };
        assert_eq!(of(own), Some(NoAnswer::Late));
        assert_eq!(of(parent), None);
        drop(full);
    }

    #[test]
    fn names_that_others_squat_on_are_not_asked_and_many_of_a_process_are_counted() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let own = std::process::id();
        let squat = |pid: u32, number: u32| {
            let name = format!("{PREFIX}{pid}-{number:08x}");
            UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap()
        };
        // No process has such a number, and the kernel reports that this one listens.
        let others: Vec<UnixListener> = (0..300).map(|at| squat(u32::MAX - at, at)).collect();
        let own_names: Vec<UnixListener> = (0..300).map(|at| squat(own, at)).collect();
        let start = Instant::now();
        let answers = ask_local(Some(own)).unwrap();
        // 64 at a time would take 5 s for those of this process, and as long again for the others.
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
        assert_eq!(answers.answers.len(), MOST_OF_PROCESS);
        assert_eq!(answers.not_asked, own_names.len() - MOST_OF_PROCESS);
        drop((others, own_names));
    }
}
