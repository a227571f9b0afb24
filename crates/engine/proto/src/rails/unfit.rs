//! Errors in lists of rails.

use super::{Family, Interface};
use crate::hello::MAX_RAILS;

/// Reason why a list of rails can't be used.
#[derive(Debug)]
pub struct Unfit {
    /// Fault of the list.
    pub why: String,
    /// True if another list fixes it; otherwise this machine lacks something.
    pub is_wrong: bool,
    /// Allowed contents.
    pub allowed: Allowed,
}

/// Allowed contents of a list of rails, as far as they matter for a fault.
#[derive(Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Interfaces and addresses.
    Interfaces,
    /// A loopback interface.
    Loopback,
    /// Syntax of a plugin.
    Plugin,
    /// Fewer rails.
    Count,
}

impl Unfit {
    /// Adds which addresses were considered, if not all.
    #[must_use]
    pub fn among(self, family: Option<Family>) -> Self {
        match family {
            None => self,
            Some(family) => {
                Self { why: format!("{}, with address_family = {family}", self.why), ..self }
            }
        }
    }

    /// Returns a fault that another list fixes.
    pub fn wrong(why: String, allowed: Allowed) -> Self {
        Self { why, is_wrong: true, allowed }
    }

    pub(super) fn no_interface(why: String) -> Self {
        Self::wrong(why, Allowed::Interfaces)
    }

    pub(super) fn lacking(why: String) -> Self {
        Self { why, is_wrong: false, allowed: Allowed::Interfaces }
    }
}

impl Allowed {
    /// Returns the text, with a hint how to fix the list.
    pub fn told(&self, interfaces: &[Interface]) -> (String, &'static str) {
        match self {
            Self::Interfaces => (
                format!("auto, ^NAME (auto without it), or what is usable here: {}", usable(interfaces)),
                "name some of these in `rails`; `polyrail host show` lists all interfaces",
            ),
            Self::Loopback => (
                format!("a loopback interface that is up, or what is usable here: {}", usable(interfaces)),
                "`ip link set lo up` (as root) brings it up; or name rails that are usable here",
            ),
            Self::Plugin => (
                "plugin:LIBRARY, or plugin:LIBRARY@DEVICE+DEVICE, once, alone or beside interfaces and addresses that are \
                 named"
                    .to_owned(),
                "name a library as NCCL_NET_PLUGIN does, and its devices by name or number: \
                 eth0,plugin:/opt/libnccl-net.so@eth1+eth2",
            ),
            Self::Count => (
                format!("1 to {MAX_RAILS}"),
                "name fewer interfaces or addresses, and some devices of a plugin as plugin:LIBRARY@NAME+NUMBER",
            ),
        }
    }
}

/// Checks whether an engine can have this many rails, wherever they come from.
pub fn check_count(rails: usize) -> Result<(), Unfit> {
    if rails <= MAX_RAILS { Ok(()) } else { Err(too_many(rails)) }
}

/// Returns the fault of a list that names too many rails.
pub fn too_many(rails: usize) -> Unfit {
    Unfit::wrong(format!("these are {rails} rails"), Allowed::Count)
}

pub(super) fn usable(all: &[Interface]) -> String {
    let up =
        all.iter().filter(|i| i.up && i.is_usable()).map(|i| format!("{} ({})", i.name, i.address));
    let names: Vec<_> = up.collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
