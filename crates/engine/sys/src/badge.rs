//! Identification of processes by the kernel: a process listens on a socket in the abstract namespace. The kernel
//! records which process called `listen` and reports it to those that connect.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, listen,
    socket_with,
};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

use crate::process::user;

/// Backlog of connections. `net.core.somaxconn` may be lower.
const BACKLOG: i32 = 4096;

/// Name held by this process while this value lives. Every process of the network namespace can see the name and find
/// out which process holds it. No data is ever read from them.
#[derive(Debug)]
pub struct Badge(OwnedFd);

/// Another process of this machine and of this user, or this one, as identified by the kernel. Only [`Self::with_name`]
/// makes one. Every access to a process needs one, so a process number sent by a peer is never enough.
#[derive(Debug)]
pub struct ProvenProcess {
    pub(crate) number: Pid,
    /// Descriptor of the process itself. A later process with the same number does not match it.
    handle: OwnedFd,
}

/// Reason why the kernel can't identify a process.
#[derive(Debug, thiserror::Error)]
pub enum Unproven {
    /// No process of this network namespace has the name.
    #[error("the other process is not in this network namespace")]
    NotHere,
    /// This process doesn't see the PID namespace of the other one.
    #[error("the processes are in different PID namespaces (containers)")]
    OtherNamespace,
    /// The processes have different users, which can't access each other's memory.
    #[error("the processes are of different users ({own} and {theirs})")]
    OtherUser {
        /// The user of this process.
        own: u32,
        /// User of the process that has the name, when it took it.
        theirs: u32,
    },
    /// The process that took the name has ended.
    #[error("the other process has ended")]
    Ended,
    /// The backlog of the name's holder is full and the holder has not accepted the connections yet, or it has dropped
    /// this process's connection during the check. Try again.
    #[error("too many processes look at the other one")]
    Crowded,
    /// A system call failed.
    #[error("the kernel can't say which process the other one is: {0}")]
    System(#[from] io::Error),
}

impl Badge {
    /// Takes a name. Fails if it is taken.
    pub fn take(name: &str) -> io::Result<Self> {
        let socket = socket()?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&socket, BACKLOG)?;
        Ok(Self(socket))
    }

    /// Accepts and drops all pending connections, which makes room for others. Never blocks. The badge is readable when
    /// connections are pending.
    pub fn make_room(&self) {
        // Bounded, because new connections may keep coming.
        for _ in 0..=BACKLOG {
            if accept(&self.0).is_err() {
                return;
            }
        }
    }
}

impl AsFd for Badge {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl ProvenProcess {
    /// Identifies the process that holds the name, in this network namespace. Never blocks.
    ///
    /// A process that took the name and has ended may have left the socket to a child. Before Linux 6.5 the kernel then
    /// still reports its number, which may belong to another process by now. From 6.5 on that is an error.
    pub fn with_name(name: &str) -> Result<Self, Unproven> {
        let connection = socket()?;
        let address =
            SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(io::Error::from)?;
        match connect(&connection, &address) {
            Err(Errno::CONNREFUSED) => return Err(Unproven::NotHere),
            Err(Errno::AGAIN) => return Err(Unproven::Crowded),
            connected => connected.map_err(io::Error::from)?,
        }
        let (number, theirs) = peer_credentials(&connection)?;
        let own = user();
        if theirs != own {
            return Err(Unproven::OtherUser { own, theirs });
        }
        let number = number.and_then(|number| Pid::from_raw(number.try_into().ok()?));
        let number = number.ok_or(Unproven::OtherNamespace)?;
        let handle = match handle(&connection) {
            Ok(Some(handle)) => handle,
            Ok(None) => {
                let handle = pidfd_open(number, PidfdFlags::empty()).map_err(io::Error::from)?;
                // While the connection is pending, the holder lives and no other process has its number. If the
                // connection was dropped meanwhile, try again.
                if has_happened(&connection, PollFlags::empty()) {
                    return Err(Unproven::Crowded);
                }
                handle
            }
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => {
                return Err(Unproven::Ended);
            }
            Err(error) => return Err(error.into()),
        };
        let proven = Self { number, handle };
        match proven.has_ended() {
            true => Err(Unproven::Ended),
            false => Ok(proven),
        }
    }

    /// Process number, as this process sees it. No other process has it until [`Self::has_ended`].
    pub fn number(&self) -> u32 {
        self.number.as_raw_pid().unsigned_abs()
    }

    /// True if the process has ended. Until then no other process has its number.
    pub fn has_ended(&self) -> bool {
        has_happened(&self.handle, PollFlags::IN)
    }

    /// Duplicates one of the process's file descriptors. The kernel allows that to processes that may trace it: those
    /// of the same user where `ptrace_scope` is 0, and those with `CAP_SYS_PTRACE`.
    pub fn descriptor(&self, number: u32) -> io::Result<OwnedFd> {
        let number = i32::try_from(number).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(pidfd_getfd(&self.handle, number, PidfdGetfdFlags::empty())?)
    }

    /// Path of one of the process's file descriptors in `/proc`. Check [`Self::has_ended`] after opening it.
    pub(crate) fn path_of_descriptor(&self, number: u32) -> String {
        format!("/proc/{}/fd/{number}", self.number())
    }

    /// A process of this test, without a name.
    #[cfg(test)]
    pub(crate) fn assumed(number: u32) -> Self {
        let number = Pid::from_raw(number.cast_signed()).unwrap();
        Self { number, handle: pidfd_open(number, PidfdFlags::empty()).unwrap() }
    }
}

/// True if any of these events, or a hang-up, has happened.
fn has_happened(descriptor: &OwnedFd, what: PollFlags) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(descriptor, what)], Some(&now)) != Ok(0)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Descriptor of the process that called `listen`. A later process with its number does not match it.
fn handle(connection: &OwnedFd) -> io::Result<Option<OwnedFd>> {
    let mut found: RawFd = -1;
    let mut len = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes, the size of `found`.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        let error = io::Error::last_os_error();
        return match Errno::from_io_error(&error) {
            Some(Errno::NOPROTOOPT) => Ok(None),
            // Errors of different kernels for a process that has ended.
            Some(Errno::INVAL | Errno::SRCH) => Err(Errno::SRCH.into()),
            _ => Err(error),
        };
    }
    // SAFETY: the kernel has just made it for this process, and no other code knows it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(found) }))
}

/// Credentials of the other end of a Unix connection, as seen by this process: its process number, `None` in a PID
/// namespace that this process doesn't see, and its user when it called `listen` or `connect`.
pub fn peer_credentials(connection: impl AsFd) -> io::Result<(Option<u32>, u32)> {
    let connection = connection.as_fd();
    let mut found = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes, the size of `found`,
    // whose fields may have any value.
    let result = unsafe {
        libc::getsockopt(
            connection.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // 0 means that the process is in a namespace that this one doesn't see.
    Ok((u32::try_from(found.pid).ok().filter(|number| *number > 0), found.uid))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_name_is_one_process_s_until_it_lets_go_of_it() {
        let name = format!("polyrail-test-{}", std::process::id());
        let of_name = || ProvenProcess::with_name(&name);
        assert!(matches!(of_name(), Err(Unproven::NotHere)), "no process has it");
        let badge = Badge::take(&name).unwrap();
        assert!(Badge::take(&name).is_err(), "it is taken");
        let proven = of_name().unwrap();
        assert_eq!(proven.number(), std::process::id());
        assert!(!proven.has_ended());
        drop(badge);
        // A process that another test has just forked still has the socket until it calls exec.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !matches!(of_name(), Err(Unproven::NotHere)) {
            assert!(Instant::now() < deadline, "a process still has it");
            // No event reports the close, so poll.
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!proven.has_ended(), "the proof outlives the name");
    }

    #[test]
    fn a_name_that_its_process_has_left_to_a_child_proves_no_number() {
        let name = format!("polyrail-test-left-{}", std::process::id());
        let taken = name.clone();
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped());
        let leave = move || {
            let badge = Badge::take(&taken)?;
            // SAFETY: the call has one argument, and changes a flag of an open descriptor.
            if unsafe { libc::fcntl(badge.0.as_raw_fd(), libc::F_SETFD, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
            std::mem::forget(badge);
            // SAFETY: both processes only do what is allowed after a fork: the first one ends, the
            // other one becomes `cat`.
            match unsafe { libc::fork() } {
                -1 => Err(io::Error::last_os_error()),
                0 => Ok(()),
                // SAFETY: the call ends the process and runs nothing.
                _ => unsafe { libc::_exit(0) },
            }
        };
        // SAFETY: no other thread of this process can hold a lock that `take` needs: it only makes system calls, and
        // formats nothing.
        unsafe { command.pre_exec(leave) };
        let mut child = command.spawn().unwrap();
        // Waiting would close its standard input, which ends it.
        let stdin = child.stdin.take();
        child.wait().unwrap();
        let own = format!("polyrail-test-own-{}", std::process::id());
        let badge = Badge::take(&own).unwrap();
        let connection = socket().unwrap();
        connect(&connection, &SocketAddrUnix::new_abstract_name(own.as_bytes()).unwrap()).unwrap();
        if handle(&connection).unwrap().is_none() {
            return polyrail_skip::skip(
                "this kernel tells no handle of a process (it is older than Linux 6.5)",
                "boot Linux 6.5 or later && cargo test -p polyrail-sys",
            );
        }
        drop(badge);
        assert!(matches!(ProvenProcess::with_name(&name), Err(Unproven::Ended)));
        // `cat` ends with its standard input.
        drop(stdin);
    }

    #[test]
    fn a_bearer_that_forgets_at_once_is_proven_all_the_same() {
        let name = format!("polyrail-test-forgets-{}", std::process::id());
        let badge = Badge::take(&name).unwrap();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    badge.make_room();
                }
            });
            for _ in 0..2000 {
                let found = loop {
                    match ProvenProcess::with_name(&name) {
                        Err(Unproven::Crowded) => {}
                        found => break found,
                    }
                };
                // Whatever the result, the other thread must end.
                if found.is_err() {
                    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
                }
                assert_eq!(found.unwrap().number(), std::process::id());
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    }

    #[test]
    fn who_looks_again_and_again_is_forgotten_when_the_bearer_looks() {
        let name = format!("polyrail-test-again-{}", std::process::id());
        let badge = Badge::take(&name).unwrap();
        for _ in 0..5 {
            // Checking never blocks: a full backlog is an error.
            let full = loop {
                if let Err(error) = ProvenProcess::with_name(&name) {
                    break error;
                }
            };
            assert!(matches!(full, Unproven::Crowded), "{full}");
            assert!(has_happened(&badge.0, PollFlags::IN));
            badge.make_room();
            assert!(ProvenProcess::with_name(&name).is_ok());
        }
    }

    #[test]
    fn a_process_that_has_ended_stays_ended_whatever_has_its_number() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let proven = ProvenProcess::assumed(child.id());
        assert!(!proven.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(proven.has_ended() && proven.descriptor(0).is_err());
    }

    #[test]
    fn a_descriptor_of_a_proven_process_is_the_same_file() {
        let own = ProvenProcess::assumed(std::process::id());
        let (mut reader, writer) = io::pipe().unwrap();
        let copy = own.descriptor(writer.as_raw_fd().unsigned_abs()).unwrap();
        drop(writer);
        std::fs::File::from(copy).write_all(b"x").unwrap();
        let mut read = String::new();
        reader.read_to_string(&mut read).unwrap();
        assert_eq!(read, "x");
        assert!(own.descriptor(1 << 20).is_err() && own.descriptor(u32::MAX).is_err());
    }
}
