//! Life of a peer as one engine sees it: its state, the events that change it, the resulting actions. The driver
//! reports events and carries out actions.
//!
//! A peer outlives its sessions: `Unknown`, `Lost` and `Removed` are states of an instance without a session, and are
//! kept together with what is remembered of it. All others are states of a session. Where one session ends for another
//! ([`Action::BeginAnew`]), the state that follows is that of the new one.
//!
//! | state | the user adds it | the user removes it | it says hello | it leaves or falls silent |
//! |---|---|---|---|---|
//! | `Unknown` | `New` | `Removed` | `New` | |
//! | `New`, `Connected`, `CutOff` | stays | `Leaving` | stays, or a `New` session | `Lost` |
//! | `Leaving` | a `New` session | stays | refused | `Removed` |
//! | `Closing` | refused | stays | stays | `Lost` |
//! | `Lost` | `New` | `Removed` | `New` | |
//! | `Removed` | `New` | stays | refused | |
//!
//! Only the user sets and ends `Removed`. From every other state a peer comes back by itself, when either end adds the
//! other again.
//!
//! Both ends count transfers, so an end that has lost the other must not continue with it as if nothing had happened.
//! Each session of a peer has a number. Every hello carries the session of its sender, and the receiver's session as
//! last received by the sender ([`Epoch`]). A session that either end has given up never comes back: its hellos are
//! refused for good ([`Greeter`]), which ends it at the other side as well.

mod attempts;
mod epoch;
mod greeter;
mod greeting;
mod names;
mod overdue;
mod parted;
mod standing;
mod state;

pub use attempts::{Attempts, CONFIRM, CONFIRM_NEW, is_final};
pub use epoch::Epoch;
pub use greeter::{Greeter, Live, Step};
pub use names::{Names, ProvenNames};
pub use overdue::overdue;
pub use parted::{Parted, Parting};
pub use standing::Standing;
pub use state::{Action, HelloKind, PeerEvent, PeerState};

#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
