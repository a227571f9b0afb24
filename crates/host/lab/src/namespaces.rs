//! The network namespaces of a lab, and ways to work inside them.

use std::ffi::CStr;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{self, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use rustix::process::{WaitOptions, waitpid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::error::{During, LabError};
use crate::netlink::{self, Netlink};
use crate::os;

/// Open references, which keep the namespaces alive even if their names are removed.
#[derive(Debug)]
pub(crate) struct Namespaces {
    /// The user namespace that owns the others; `None` if they belong to the machine's root.
    pub(crate) user: Option<OwnedFd>,
    /// The nodes, and then the switch where there is one.
    pub(crate) net: Vec<OwnedFd>,
}

/// Device and inode, which identify a namespace.
pub(crate) type Identity = (u64, u64);

impl Namespaces {
    /// Returns the namespace of `seat`, which must exist.
    pub(crate) fn net(&self, seat: usize) -> BorrowedFd<'_> {
        self.net[seat].as_fd()
    }

    /// Moves the calling thread to `seat`. Bare system calls only, so fit for a forked child.
    ///
    /// Returns `ENOENT` for a seat that the lab does not have.
    ///
    /// The kernel refuses to change the user namespace of a process with several threads.
    pub(crate) fn enter(&self, seat: usize) -> Result<(), Errno> {
        let net = self.net.get(seat).ok_or(Errno::NOENT)?;
        if let Some(user) = &self.user {
            let here = fs::stat(c"/proc/self/ns/user")?;
            let there = fs::fstat(user)?;
            // Joining the current user namespace is an error, not a no-op.
            if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino) {
                move_into_link_name_space(user.as_fd(), Some(LinkNameSpaceType::User))?;
            }
        }
        move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))
    }

    /// Opens a netlink socket that lives at `seat`, without moving the caller.
    pub(crate) fn netlink(&self, seat: usize) -> Result<Netlink, LabError> {
        let socket = match &self.user {
            None => self.socket_by_thread(seat),
            Some(_) => self.socket_by_child(seat),
        };
        socket.map(Netlink::new).during(|| "opening a netlink socket in the lab".into())
    }

    /// Writes a short text to a file of `/proc/sys/net` as `seat` sees it.
    pub(crate) fn write_setting(&self, seat: usize, file: &CStr, text: &[u8]) -> Result<(), Errno> {
        // Bare system calls only, with memory from the stack: fit for a forked child.
        let write = || -> Result<(), Errno> {
            self.enter(seat)?;
            let file = fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(file, text).map(drop)
        };
        match self.user {
            None => on_own_thread(write),
            Some(_) => in_child(write),
        }
    }

    /// Opens the socket in a short-lived thread: a network namespace belongs to a thread.
    fn socket_by_thread(&self, seat: usize) -> Result<OwnedFd, Errno> {
        on_own_thread(|| {
            self.enter(seat)?;
            netlink::open_socket()
        })
    }

    /// Opens the socket in a child process, which hands it over and ends: only single-threaded
    /// processes can join a user namespace.
    fn socket_by_child(&self, seat: usize) -> Result<OwnedFd, Errno> {
        let (ours, theirs) = channel()?;
        let visit = || -> Result<(), Errno> {
            self.enter(seat)?;
            let socket = netlink::open_socket()?;
            send_descriptor(theirs.as_fd(), socket.as_fd())
        };
        // SAFETY: `visit` makes bare system calls with memory from the stack.
        let forked = unsafe { os::fork(|| visit().map_or_else(Errno::raw_os_error, |()| 0)) };
        let child = forked.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        drop(theirs);
        let received = receive_descriptor(ours.as_fd());
        // If another thread has already waited for the child, its errno is lost, but not the result.
        let status = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
        let exit = status.ok().flatten().and_then(|(_, status)| status.exit_status());
        match (received?, exit) {
            (Some(socket), _) => Ok(socket),
            (None, Some(errno @ 1..=255)) => Err(Errno::from_raw_os_error(errno)),
            (None, _) => Err(Errno::CHILD),
        }
    }
}

/// Opens a namespace by its name in the file system; `None` when no namespace is there.
pub(crate) fn open(path: &Path) -> Result<Option<OwnedFd>, LabError> {
    let file = match fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno).during_path("opening", path),
    };
    let kind = fs::fstatfs(&file).during_path("looking at", path)?.f_type;
    Ok((kind as u64 == NSFS_MAGIC).then_some(file))
}

pub(crate) fn identity(namespace: impl AsFd) -> Result<Identity, Errno> {
    let stat = fs::fstat(namespace)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Runs `work` in a new thread, which starts in the caller's namespace and ends with `work`.
pub(crate) fn on_own_thread<T: Send>(
    work: impl FnOnce() -> Result<T, Errno> + Send,
) -> Result<T, Errno> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("polyrail-lab".into());
        let spawned = thread.spawn_scoped(scope, work);
        let handle = spawned.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::AGAIN))?;
        handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `work`, which must make bare system calls only, in a forked child and returns its errno.
fn in_child(work: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    // SAFETY: the caller makes bare system calls with memory from the stack.
    let forked = unsafe { os::fork(|| work().map_or_else(Errno::raw_os_error, |()| 0)) };
    let child = forked.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
    let status = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()))?;
    match status.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        Some(errno @ 1..=255) => Err(Errno::from_raw_os_error(errno)),
        _ => Err(Errno::CHILD),
    }
}

/// Makes two connected sockets that keep message boundaries and close on exec.
pub(crate) fn channel() -> Result<(OwnedFd, OwnedFd), Errno> {
    net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// The caller's own network namespace, for `open`.
pub(crate) const OWN_NETWORK: &CStr = c"/proc/thread-self/ns/net";

const NSFS_MAGIC: u64 = 0x6e73_6673;

fn send_descriptor(channel: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    net::sendmsg(channel, &[IoSlice::new(&[1])], &mut control, SendFlags::empty())?;
    Ok(())
}

/// Receives a descriptor; `None` when the other end closed without sending one.
fn receive_descriptor(channel: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut byte)];
        net::recvmsg(channel, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}
