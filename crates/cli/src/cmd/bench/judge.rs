//! What keeps a size from being faster, and the measures for that. The rules are in `verdict`; the
//! numbers that they compare come from `ends::yardsticks`.

mod machine;
mod verdict;

pub(crate) use self::machine::{Copies, CopyRate, CopyRates, Use};
pub(crate) use self::verdict::{Evidence, Line, judge};
