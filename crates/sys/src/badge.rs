//! Which process has a name, on the kernel's word: a socket in the abstract namespace that somebody
//! listens on. The kernel remembers who called `listen`, and tells whoever connects.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept, bind, connect, listen,
    socket_with,
};

/// Whoever looks at a badge waits for nobody, so it only takes room until the bearer looks.
const BACKLOG: i32 = 128;

/// A name that this process has as long as this value lives. Every process of the network namespace
/// can see the name, and find out whose it is; nothing is ever read from them.
#[derive(Debug)]
pub struct Badge(OwnedFd);

/// Who has a name.
#[derive(Debug)]
pub struct Bearer {
    /// The number of the process, as this process sees it; `None` in a PID namespace that it doesn't
    /// see.
    pub process: Option<u32>,
    /// The user that it ran as when it took the name, as this process sees it.
    pub user: u32,
    connection: OwnedFd,
    /// Of the process; `None` before Linux 6.5, which does not hand it out.
    handle: Option<OwnedFd>,
}

impl Badge {
    /// Takes a name, which must not be taken.
    pub fn take(name: &str) -> io::Result<Self> {
        let socket = socket()?;
        bind(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        listen(&socket, BACKLOG)?;
        Ok(Self(socket))
    }

    /// Forgets who has looked, so that others can. Never blocks.
    pub fn make_room(&self) {
        // As many as there may be: somebody may go on looking.
        for _ in 0..=BACKLOG {
            if accept(&self.0).is_err() {
                return;
            }
        }
    }
}

impl Bearer {
    /// Who has the name, in this network namespace. Never blocks.
    ///
    /// A process that took the name and has ended may have left it to a child. The kernel still tells
    /// its number, which may be another process's by now. From Linux 6.5 on that is an error.
    pub fn of(name: &str) -> io::Result<Self> {
        let connection = socket()?;
        connect(&connection, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        let (process, user) = peer_credentials(&connection)?;
        let bearer = Self { process, user, handle: handle(&connection)?, connection };
        match bearer.has_ended() {
            false => Ok(bearer),
            true => Err(Errno::SRCH.into()),
        }
    }

    /// Whether somebody still has the name that had it when this value was made, and the process that
    /// took it has not ended: so until now its number was no other process's.
    pub fn has_it(&self) -> bool {
        !has_happened(&self.connection, PollFlags::empty()) && !self.has_ended()
    }

    fn has_ended(&self) -> bool {
        self.handle.as_ref().is_some_and(|handle| has_happened(handle, PollFlags::IN))
    }
}

/// Whether any of these has happened, or the end of all.
fn has_happened(descriptor: &OwnedFd, what: PollFlags) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(descriptor, what)], Some(&now)) != Ok(0)
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// The process that called `listen`, as a descriptor that no later process of its number has.
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
            // How kernels say that it has ended.
            Some(Errno::INVAL | Errno::SRCH) => Err(Errno::SRCH.into()),
            _ => Err(error),
        };
    }
    // SAFETY: the kernel has just made it for this process, and nobody else knows it.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(found) }))
}

/// Who is at the other end of a Unix connection, as this process sees them: the process, `None` in a PID
/// namespace that this one doesn't see, and its user when it called `listen` or `connect`.
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
    // 0 is nobody's: the process is in a namespace that this one doesn't see.
    Ok((u32::try_from(found.pid).ok().filter(|number| *number > 0), found.uid))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_name_is_one_process_s_until_it_lets_go_of_it() {
        let name = format!("polyrail-test-{}", std::process::id());
        assert!(Bearer::of(&name).is_err(), "nobody has it");
        let badge = Badge::take(&name).unwrap();
        assert!(Badge::take(&name).is_err(), "it is taken");
        let bearer = Bearer::of(&name).unwrap();
        assert_eq!(bearer.process, Some(std::process::id()));
        assert_eq!(bearer.user, rustix::process::geteuid().as_raw());
        assert!(bearer.has_it());
        drop(badge);
        // A process that another test has just forked has the socket, too, until it becomes a program.
        let deadline = Instant::now() + Duration::from_secs(10);
        while bearer.has_it() {
            assert!(Instant::now() < deadline, "somebody still has it");
            // It looks again: nobody tells.
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(Bearer::of(&name).is_err(), "nobody has it any more");
    }

    #[test]
    fn a_name_that_its_process_has_left_to_a_child_proves_no_number() {
        let name = format!("polyrail-test-left-{}", std::process::id());
        let taken = name.clone();
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped());
        let leave = move || {
            let badge = Badge::take(&taken)?;
            // SAFETY: it has one argument, and changes a flag of an open descriptor.
            if unsafe { libc::fcntl(badge.0.as_raw_fd(), libc::F_SETFD, 0) } != 0 {
                return Err(io::Error::last_os_error());
            }
            std::mem::forget(badge);
            // SAFETY: both processes only do what is allowed after a fork: the first one ends, the
            // other one becomes `cat`.
            match unsafe { libc::fork() } {
                -1 => Err(io::Error::last_os_error()),
                0 => Ok(()),
                // SAFETY: it ends the process and runs nothing.
                _ => unsafe { libc::_exit(0) },
            }
        };
        // SAFETY: no other thread of this process can hold a lock that `take` needs: it only calls
        // the system, and formats nothing.
        unsafe { command.pre_exec(leave) };
        let mut child = command.spawn().unwrap();
        // To wait would end it.
        let stdin = child.stdin.take();
        child.wait().unwrap();
        let own = format!("polyrail-test-own-{}", std::process::id());
        let badge = Badge::take(&own).unwrap();
        if Bearer::of(&own).unwrap().handle.is_none() {
            return polyrail_skip::skip(
                "this kernel tells no handle of a process (it is older than Linux 6.5)",
                "boot Linux 6.5 or later && cargo test -p polyrail-sys",
            );
        }
        drop(badge);
        let error = Bearer::of(&name).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::SRCH.raw_os_error()));
        // `cat` ends with its standard input.
        drop(stdin);
    }

    #[test]
    fn who_looks_again_and_again_is_forgotten_when_the_bearer_looks() {
        let name = format!("polyrail-test-again-{}", std::process::id());
        let badge = Badge::take(&name).unwrap();
        for _ in 0..5 {
            // Nobody waits: when there is no room, that is an error.
            while Bearer::of(&name).is_ok() {}
            badge.make_room();
            assert!(Bearer::of(&name).is_ok());
        }
    }
}
