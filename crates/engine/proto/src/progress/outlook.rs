//! Readiness of a progress thread when nothing moves: whether it may sleep, and for how long.
//!
//! This file has the answers, and how they combine. A progress thread collects them in one place (`Core::outlook`) and
//! decides in one (`proxy::drive`). Flows and the thread's own lists answer from notes that they made while they
//! worked. A pass queries each device once: if the device finished between two queries, each answer would be right, and
//! their sum would miss it.
//!
//! | what can become ready | notified by |
//! |---|---|
//! | an operation that is posted, chunks that are given back | the posting thread: `Doorbell` |
//! | bytes, acknowledgements, room in a socket | the poller |
//! | room in a window, or in a ring that the peer reads | acknowledgements |
//! | a command, a region's end, room in the inbox | `Doorbell` |
//! | a copy by a device, the end of another thread's system call | none: [`Outlook::Ask`] |
//! | the end of a rest, a check for stalls | the clock: [`Outlook::Until`] |
//!
//! `tests/loom.rs` of the driver tests it against a device and a posting thread in every order.

/// Readiness of a progress thread when nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Another thread will notify it when there is work.
    Told,
    /// Another thread will notify it, but at this time (monotonic, in ns) something is due anyway.
    Until(u64),
    /// The thread waits for something that sends no notification, so it has to poll.
    Ask,
}

impl Outlook {
    /// Returns the combination: asking covers every moment, and the earlier moment covers the later one.
    #[inline]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ask, _) | (_, Self::Ask) => Self::Ask,
            (Self::Until(one), Self::Until(other)) => Self::Until(one.min(other)),
            (Self::Told, other) => other,
            (one, Self::Told) => one,
        }
    }

    /// Returns [`Self::Ask`] if `asks`.
    #[inline]
    pub fn ask_if(asks: bool) -> Self {
        if asks { Self::Ask } else { Self::Told }
    }
}
