//! What a proxy has before it when nothing moves: whether it may sleep, and for how long.
//!
//! Here are the answers, and how they add up. A proxy asks for them in one place (`Core::outlook`)
//! and decides in one (`proxy::drive`). Flows and the proxy's own lists say what they wait for, out
//! of what they noted while they worked. A pass asks each device once: if the device finished
//! between two questions, each answer would be right, and the sum of both would miss it.
//!
//! | what can become ready | who tells |
//! |---|---|
//! | an operation that is posted, chunks that are given back | the poster: `Doorbell` |
//! | bytes, acknowledgements, room in a socket | the poller |
//! | room in a window, or in a ring that the peer reads | acknowledgements |
//! | a command, a region's end, room in the inbox | `Doorbell` |
//! | a copy by a device, the end of another thread's system call | nobody: [`Outlook::Ask`] |
//! | the end of a rest, a check for stalls | the clock: [`Outlook::Until`] |
//!
//! `tests/loom.rs` of the driver tries it against a device and a poster in every order.

/// What a proxy has before it when nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Somebody tells it when there is something to do.
    Told,
    /// The same, and at this moment (monotonic, in ns) something is due all the same.
    Until(u64),
    /// It waits for what nobody tells it of, so it has to ask.
    Ask,
}

impl Outlook {
    /// Both together: asking covers every moment, and the earlier moment covers the later one.
    #[inline]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Ask, _) | (_, Self::Ask) => Self::Ask,
            (Self::Until(one), Self::Until(other)) => Self::Until(one.min(other)),
            (Self::Told, other) => other,
            (one, Self::Told) => one,
        }
    }

    /// [`Self::Ask`] if `asks`.
    #[inline]
    pub fn ask_if(asks: bool) -> Self {
        if asks { Self::Ask } else { Self::Told }
    }
}
