//! Verdict on a size: the cause that keeps it from being faster, and the limits to compare it with. The rules are in
//! `rules`, their order in `verdict`; the numbers that they compare come from `ends::yardsticks`. `causes` lists every
//! cause that a verdict can name. `suspects` has the changes that test the causes, `ends::why` tries the changes, and
//! `attempt` evaluates the results.

mod attempt;
mod causes;
mod down;
mod evidence;
mod fit;
mod known;
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
pub(crate) use self::down::{names_down, words as why_down};
pub(crate) use self::evidence::{BesideRails, Deeper, Evidence, Line};
pub(crate) use self::fit::{Cost, fit, show_cpus, show_gbit};
pub(crate) use self::known::{KNOWN_FILE, KnownRates, Machine};
pub(crate) use self::machine::{Copied, Copies, CopyRate, CopyRates, Use};
pub(crate) use self::rules::MESSAGE_BYTES;
pub(crate) use self::silent::silent_rails;
pub(crate) use self::starved::starved;
pub(crate) use self::suspects::{Scene, suspects};
pub(crate) use self::verdict::{Judged, is_open, judge};
