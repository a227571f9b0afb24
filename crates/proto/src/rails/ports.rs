//! The ports that an engine listens on.

use std::ops::RangeInclusive;

use crate::id::InstanceId;

/// The ports that an engine tries, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// All that it may take.
    pub range: RangeInclusive<u16>,
    /// The one that it tries first.
    pub begin: u16,
}

impl Ports {
    /// The ports of an engine with this instance. `listen_port`: the setting, 0 if the engine chooses.
    pub fn new(range: RangeInclusive<u16>, listen_port: u16, instance: InstanceId) -> Self {
        // Who chooses freely begins anywhere, so the port of one that has ended is seldom the
        // next one's, and a peer that still looks for it there meets nobody.
        let ahead = match listen_port {
            0 => (instance.0 % range.len() as u128) as u16,
            _ => 0,
        };
        Self { begin: range.start() + ahead, range }
    }

    /// From the first one to the end, and then from the beginning.
    pub fn in_order(&self) -> impl Iterator<Item = u16> {
        (self.begin..=*self.range.end()).chain(*self.range.start()..self.begin)
    }
}
