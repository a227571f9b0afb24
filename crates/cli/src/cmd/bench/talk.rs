//! Messages between the two ends: questions and answers as JSON, in notifications of the measured engine. No second
//! connection is needed, and none can disturb the first.

mod bounds;
mod hex;
mod link;
mod load;
mod messages;
mod raw_spec;

pub(crate) use self::hex::{from_hex, to_hex};
pub(crate) use self::link::{Link, Silent, unexpected};
pub(crate) use self::load::{
    DownRail, Load, OneNic, OwnCpus, Program, RailDelta, Throttled, WhyDown,
};
pub(crate) use self::messages::{
    About, Answer, Ask, CONTROL_VERSION, Counted, End, Regions, SetUp, process,
};
pub(crate) use self::raw_spec::{RawSpec, Traffic};
