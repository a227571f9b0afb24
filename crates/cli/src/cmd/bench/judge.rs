//! What keeps a size from being faster, and the measures for that. The rules are in `rules`, their order in
//! `verdict`; the numbers that they compare come from `ends::yardsticks`. What can be changed to see whether it is
//! the cause is in `suspects`; `ends::why` tries it.

mod down;
mod evidence;
mod machine;
mod others;
mod rules;
mod suspects;
mod verdict;

pub(crate) use self::evidence::{BesideRails, Deeper, Evidence, Line};
pub(crate) use self::machine::{Copies, CopyRate, CopyRates, Use};
pub(crate) use self::rules::MESSAGE_BYTES;
pub(crate) use self::suspects::{Pairs, Scene, least_ratio, noise, suspects};
pub(crate) use self::verdict::judge;
