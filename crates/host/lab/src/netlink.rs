//! A small part of rtnetlink: enough for links, addresses and token buckets.

mod route;

use std::os::fd::OwnedFd;

use parking_lot::Mutex;
use polyrail_netlink::{Error, Message, Protocol, Socket};
use rustix::io::Errno;

pub(crate) use route::{Link, PeerLink};

/// A netlink socket, bound for its life to the network namespace it was opened in.
///
/// Threads of any namespace may share the socket; it carries one request at a time.
#[derive(Debug)]
pub(crate) struct Netlink {
    /// Locked per request, so that its answers don't mix with another thread's.
    socket: Mutex<Socket>,
}

/// Opens a socket in the calling thread's network namespace. Safe between fork and exec.
pub(crate) fn open_socket() -> Result<OwnedFd, Errno> {
    polyrail_netlink::open(Protocol::Route)
}

/// Lists the interfaces of this network namespace that have a token bucket on everything they send, with its rate in
/// bytes per second. Needs no privileges.
///
/// # Errors
/// The kernel refuses a socket or the request.
pub fn token_buckets() -> std::io::Result<Vec<(String, u64)>> {
    let netlink = Netlink::new(open_socket()?);
    let (links, buckets) = (netlink.links()?, netlink.token_buckets()?);
    let name = |index| links.iter().find(|link| link.index == index).map(|link| link.name.clone());
    Ok(buckets.into_iter().filter_map(|(index, rate)| Some((name(index)?, rate))).collect())
}

/// Counts of the queue in front of an interface since the interface was made. These are the kernel's counters: they
/// wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueCounts {
    /// Packets that left the queue.
    pub sent: u32,
    /// Packets dropped because the queue was full.
    pub dropped: u32,
}

/// Lists the counts of each interface of this network namespace that has a queue. Needs no
/// privileges.
///
/// # Errors
/// The kernel refuses a socket or the request.
pub fn queue_counts() -> std::io::Result<Vec<(String, QueueCounts)>> {
    let netlink = Netlink::new(open_socket()?);
    let (links, counts) = (netlink.links()?, netlink.queue_counts()?);
    let name = |index| links.iter().find(|link| link.index == index).map(|link| link.name.clone());
    Ok(counts.into_iter().filter_map(|(index, counts)| Some((name(index)?, counts))).collect())
}

impl Netlink {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: Mutex::new(socket.into()) }
    }

    /// Sends one change and waits for the kernel's answer.
    fn change(&self, message: Message, flags: u16) -> Result<(), Errno> {
        self.with_socket(|socket| socket.request(message, flags).map(drop))
    }

    /// Requests all objects of a kind; returns the bodies of the answers of type `wanted`.
    fn dump(&self, request: impl Fn() -> Message, wanted: u16) -> Result<Vec<Vec<u8>>, Errno> {
        self.with_socket(|socket| socket.dump_whole(request, wanted))
    }

    fn with_socket<T>(
        &self,
        ask: impl FnOnce(&mut Socket) -> Result<T, Error>,
    ) -> Result<T, Errno> {
        // After a panic in another thread, leftover answers carry a sequence number that no thread
        // waits for.
        let mut socket = self.socket.lock();
        ask(&mut socket).map_err(|error| match error {
            Error::Refused { source, .. } => Errno::from_io_error(&source).unwrap_or(Errno::BADMSG),
            Error::Malformed(_) => Errno::BADMSG,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_share_a_socket_get_their_own_answers() {
        let netlink = Netlink::new(open_socket().unwrap());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50).for_each(|_| assert!(!netlink.links().unwrap().is_empty())));
            }
        });
    }
}
