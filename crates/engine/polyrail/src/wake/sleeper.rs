//! The thread that sleeps on a poller while others drive what it sleeps for.

use polyrail_proto::progress::Outlook;

use crate::sync::{AtomicU32, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;

/// The seat of the one thread that may sleep on a poller.
///
/// Several threads look for events, and the one that finds an event takes it from all others. So a thread that sleeps
/// sits first, then looks once more with the lock of the proxy. A driver notes what it owes ([`Debts`]) and asks for
/// the seat, with the same lock. If the driver had the lock later, it sees the seat, and rouses the sleeper. If the
/// sleeper had it later, it sees the debt, and does not sleep.
#[derive(Debug)]
pub(crate) struct Sleeper {
    seat: AtomicU32,
}

/// Held by the thread that sits. Its drop frees the seat.
#[derive(Debug)]
pub(crate) struct Seat<'a>(&'a Sleeper);

/// Wake-ups that drivers owe to a sleeping thread, and the outlook of its sleep. The lock of the driven core guards
/// both.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Debts {
    /// A look at the poller has taken a wake-up, which may have been meant for the thread that sleeps there.
    took_wake_up: bool,
    /// Something unread is left that nothing announces again.
    leaves_unread: bool,
    /// The outlook that the sleeping thread made its limit for. `None`: the thread is awake, or was roused for an
    /// earlier outlook.
    slept_for: Option<Outlook>,
}

impl Sleeper {
    pub(crate) fn new() -> Self {
        Self { seat: AtomicU32::new(FREE) }
    }

    /// Takes the seat, unless another thread sits. The thread takes it before its last look for work.
    pub(crate) fn sit(&self) -> Option<Seat<'_>> {
        // Acquire pairs with the release by the thread that sat here before.
        let taken = self.seat.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Acquire);
        // A thread that finds it taken makes no `Seat`, whose drop would free it.
        taken.is_ok().then(|| Seat(self))
    }

    /// Whether a thread sits. Callers ask with the lock of what they drive.
    #[inline]
    pub(crate) fn is_seated(&self) -> bool {
        self.seat.load(Ordering::Acquire) == TAKEN
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.seat.store(FREE, Ordering::Release);
    }
}

impl Debts {
    /// Notes a look at the poller, and whether it took a wake-up.
    pub(crate) fn note_look(&mut self, is_woken: bool) {
        self.took_wake_up |= is_woken;
    }

    /// Notes that this thread has read all that was ready, except what it leaves. That pays for what was left before.
    pub(crate) fn note_visits(&mut self, leaves_unread: bool) {
        self.leaves_unread = leaves_unread;
    }

    /// Notes that the sitting thread sleeps from now on, with a limit made for this outlook. `None`: it is awake.
    pub(crate) fn note_sleep(&mut self, outlook: Option<Outlook>) {
        self.slept_for = outlook;
    }

    /// Returns whether this thread must rouse the one that sits, which pays the debts. Callers ask only while a thread
    /// sits, so debts stay while none does. `left`: the outlook of the core that this thread gives back, which may be
    /// earlier than the sleeper's. `None`: this thread goes on, and reads the rest itself.
    pub(crate) fn must_rouse(&mut self, left: Option<Outlook>) -> bool {
        let took_wake_up = std::mem::take(&mut self.took_wake_up);
        let Some(left) = left else { return took_wake_up };
        let earlier = self.slept_for.take_if(|slept_for| slept_for.and(left) != *slept_for);
        took_wake_up | std::mem::take(&mut self.leaves_unread) | earlier.is_some()
    }

    /// Whether nothing is owed to this thread, which sits and is about to sleep. If something is, the thread makes a
    /// pass instead, which pays it.
    pub(crate) fn may_sleep(&mut self) -> bool {
        let took_wake_up = std::mem::take(&mut self.took_wake_up);
        let leaves_unread = std::mem::take(&mut self.leaves_unread);
        !took_wake_up && !leaves_unread
    }
}
