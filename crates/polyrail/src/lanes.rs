//! Which proxies are asked to send to a peer.

use crate::sync::{AtomicUsize, Ordering};

/// Proxies that send to a peer, and how many of them are asked to.
///
/// Whoever has something to send puts it where a proxy finds it, then asks, then wakes who was
/// asked. A proxy that finds nothing says so with [`Lanes::want_nothing`], and looks once more.
pub(crate) struct Lanes {
    /// In the order in which they are asked.
    proxies: Vec<usize>,
    /// How many of them are asked: there may be something to send, posted, given back or waiting
    /// for room. Few are asked for little, so that small messages stay on one flow, where the peer
    /// looks first, and idle proxies sleep.
    wanted: AtomicUsize,
}

impl Lanes {
    pub(crate) fn new(proxies: Vec<usize>) -> Self {
        Self { proxies, wanted: AtomicUsize::new(0) }
    }

    /// Proxies that send to the peer, in the order in which they are asked.
    pub(crate) fn proxies(&self) -> &[usize] {
        &self.proxies
    }

    /// The place of a proxy among those that send to the peer.
    pub(crate) fn place_of(&self, proxy: usize) -> usize {
        self.proxies.iter().position(|other| *other == proxy).unwrap_or(0)
    }

    /// Says that there is something to send, enough for so many proxies; which, is returned.
    pub(crate) fn want(&self, proxies: usize) -> &[usize] {
        let asked = proxies.clamp(1, self.proxies.len());
        self.wanted.fetch_max(asked, Ordering::AcqRel);
        &self.proxies[..asked]
    }

    /// Says that there is something to send for everybody.
    pub(crate) fn want_all(&self) {
        self.want(self.proxies.len());
    }

    /// Nothing is left to send. Whoever says so looks at the pool afterwards: what is posted is in
    /// there before it is wanted.
    pub(crate) fn want_nothing(&self) {
        // An exchange and no store: either it takes back a wish, and then sees what the wish was
        // for, or the wish comes later and stands. A store may be seen after that second look, and
        // undo a wish whose post the look has missed.
        self.wanted.swap(0, Ordering::AcqRel);
    }

    /// Whether the proxy in this place is asked to send.
    pub(crate) fn wants(&self, place: usize) -> bool {
        self.wanted.load(Ordering::Acquire) > place
    }

    /// If something is left to send and not everybody was asked: one who was not, and now is. As
    /// each that is asked does the same, many are soon.
    pub(crate) fn ask_another(&self) -> Option<usize> {
        let asked = self.wanted.load(Ordering::Acquire);
        if asked == 0 || asked >= self.proxies.len() {
            return None;
        }
        // If others ask at the same time, the same one is asked twice, and asks on.
        self.wanted.fetch_max(asked + 1, Ordering::AcqRel);
        Some(self.proxies[asked])
    }
}
