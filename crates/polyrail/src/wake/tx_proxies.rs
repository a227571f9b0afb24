//! Which proxies are asked to send to a peer.

use crate::sync::{AtomicU64, Ordering};

/// Proxies that send to a peer, and which of them are asked to.
///
/// Whoever has something to send puts it where a proxy finds it, then asks, then wakes who was
/// asked. Whoever is asked is awake, or is told when it can go on: so one who only joins in asks
/// nobody but itself. A proxy that finds nothing says so with [`TxProxies::want_nothing`], and looks
/// once more.
pub(crate) struct TxProxies {
    /// In the order in which they are asked.
    proxies: Vec<usize>,
    /// A bit for each that is asked: there may be something to send, posted, given back or waiting
    /// for room. Few are asked for little, so that small messages stay on one flow, where the peer
    /// looks first, and idle proxies sleep.
    asked: AtomicU64,
}

impl TxProxies {
    pub(crate) fn new(proxies: Vec<usize>) -> Self {
        Self { proxies, asked: AtomicU64::new(0) }
    }

    /// Proxies that send to the peer, in the order in which they are asked.
    pub(crate) fn proxies(&self) -> &[usize] {
        &self.proxies
    }

    /// The place of a proxy among those that send to the peer.
    pub(crate) fn place_of(&self, proxy: usize) -> usize {
        self.proxies.iter().position(|other| *other == proxy).unwrap_or(0)
    }

    /// Says that there is something to send, enough for so many proxies.
    pub(crate) fn want(&self, proxies: usize) -> AskedProxies<'_> {
        let count = proxies.clamp(1, self.proxies.len());
        let before = self.ask(u64::MAX >> (u64::BITS - (count as u32).min(u64::BITS)));
        AskedProxies { proxies: &self.proxies[..count], before }
    }

    /// The proxy in this place, which is awake, may have something to send. The others are left in
    /// peace.
    pub(crate) fn join(&self, place: usize) {
        // Mostly it is asked already, and a load leaves the line to all who look at it.
        if !self.wants(place) {
            self.ask(bit(place));
        }
    }

    /// Nothing is left to send. Whoever says so looks at the pool afterwards, as what is posted is
    /// in there before it is wanted; if it finds something, it joins and sends it.
    pub(crate) fn want_nothing(&self) {
        // A swap, not a store. If it clears a request, this thread also sees the work behind the
        // request. If the request comes after the swap, it stays set. A store may take effect after
        // this thread's second look at the pool, and clear a request that the look has missed.
        self.asked.swap(0, Ordering::AcqRel);
    }

    /// Whether the proxy in this place is asked to send.
    pub(crate) fn wants(&self, place: usize) -> bool {
        self.asked.load(Ordering::Acquire) & bit(place) != 0
    }

    /// Whether anybody is asked to send.
    pub(crate) fn wants_any(&self) -> bool {
        self.asked.load(Ordering::Acquire) != 0
    }

    /// Whether there is anybody who could be asked as well.
    pub(crate) fn may_ask_another(&self) -> bool {
        self.unasked().is_some()
    }

    /// If something is left to send and not everybody was asked: one who was not, and now is, to be
    /// woken. As each that is asked does the same, many are soon.
    pub(crate) fn ask_another(&self) -> Option<usize> {
        let place = self.unasked()?;
        // If others ask at the same time, the same one is asked twice, and asks on.
        self.ask(bit(place));
        Some(self.proxies[place])
    }

    fn unasked(&self) -> Option<usize> {
        let asked = self.asked.load(Ordering::Acquire);
        let place = asked.trailing_ones() as usize;
        (asked != 0 && place < self.proxies.len()).then_some(place)
    }

    /// Says who was asked before.
    fn ask(&self, bits: u64) -> u64 {
        self.asked.fetch_or(bits, Ordering::AcqRel)
    }
}

/// Proxies that are asked to send.
pub(crate) struct AskedProxies<'a> {
    proxies: &'a [usize],
    /// The bits of those that were asked before.
    before: u64,
}

impl<'a> AskedProxies<'a> {
    pub(crate) fn all(&self) -> &'a [usize] {
        self.proxies
    }

    /// Whom to wake: each proxy that was not asked before. Of the others, which an earlier caller
    /// has woken or is about to, wake those that sleep all the same: their flows could not send the
    /// earlier work. Looking at a proxy is cheaper than waking one that is awake.
    pub(crate) fn to_wake(&self, sleeps: impl Fn(usize) -> bool) -> impl Iterator<Item = usize> {
        let is_new = |place: usize| {
            // Who shares a bit can't be told from the others of that bit.
            place >= u64::BITS as usize - 1 || self.before & bit(place) == 0
        };
        let places = self.proxies.iter().copied().enumerate();
        places
            .filter(move |(place, proxy)| is_new(*place) || sleeps(*proxy))
            .map(|(_, proxy)| proxy)
    }
}

/// Proxies beyond the 64th share a bit.
fn bit(place: usize) -> u64 {
    1 << place.min(u64::BITS as usize - 1)
}
