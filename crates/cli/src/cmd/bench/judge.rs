//! What keeps a size from being faster, and the measures for that. The rules are in `rules`, their order in
//! `verdict`; the numbers that they compare come from `ends::yardsticks`. Every cause that a
//! verdict can name is in `causes`, with what can be changed to test it, which is in `suspects`; `ends::why` tries it, and
//! `attempt` says what that came to.

mod attempt;
mod causes;
mod down;
mod evidence;
mod machine;
mod one_nic;
mod others;
mod rules;
mod silent;
mod starved;
mod suspects;
mod verdict;

pub(crate) use self::attempt::{AGAIN, Attempt, Pairs, best_first};
pub(crate) use self::causes::{Cause, untested};
pub(crate) use self::evidence::{BesideRails, Deeper, Evidence, Line};
pub(crate) use self::machine::{Copied, Copies, CopyRate, CopyRates, Use};
pub(crate) use self::rules::MESSAGE_BYTES;
pub(crate) use self::silent::silent_rails;
pub(crate) use self::starved::starved;
pub(crate) use self::suspects::{Scene, suspects};
pub(crate) use self::verdict::{Judged, judge};
