//! Ports that an engine listens on.

use std::ops::RangeInclusive;

use crate::id::InstanceId;

/// Ports that an engine tries, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// All allowed ports.
    pub range: RangeInclusive<u16>,
    /// First port to try.
    pub begin: u16,
}

impl Ports {
    /// Returns the ports of an engine with this instance. `is_chosen`: no port was given, so the engine may begin
    /// anywhere.
    pub fn new(range: RangeInclusive<u16>, is_chosen: bool, instance: InstanceId) -> Self {
        // Engines that choose freely begin anywhere. So a new engine seldom takes the port of one that has ended, and a
        // peer that still tries that port finds it closed.
        let ahead = match is_chosen {
            true => (instance.0 % range.len() as u128) as u16,
            false => 0,
        };
        Self { begin: range.start() + ahead, range }
    }

    /// Returns the ports from the first one to the end, and then from the beginning.
    pub fn in_order(&self) -> impl Iterator<Item = u16> {
        (self.begin..=*self.range.end()).chain(*self.range.start()..self.begin)
    }
}
