//! Which process has a name, on the kernel's word: a socket in the abstract namespace that somebody
//! listens on. The kernel remembers who called `listen`, and tells whoever connects.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
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
    pub fn of(name: &str) -> io::Result<Self> {
        let connection = socket()?;
        connect(&connection, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
        let (process, user) = credentials(&connection)?;
        Ok(Self { process, user, connection })
    }

    /// Whether somebody still has the name that had it when this value was made.
    pub fn has_it(&self) -> bool {
        let mut ends = [PollFd::new(&self.connection, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut ends, Some(&now)).is_ok_and(|gone| gone == 0)
    }
}

fn socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?)
}

/// Of whoever called `listen`.
fn credentials(connection: &OwnedFd) -> io::Result<(Option<u32>, u32)> {
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
        assert!(!bearer.has_it());
        assert!(Bearer::of(&name).is_err(), "nobody has it any more");
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
