//! What can be changed, and how it is recognised.

use std::fmt;

use polyrail_nic::Setting;
use serde::{Deserialize, Serialize};

use crate::plan::check_path;

/// One thing that has a value. Its identity never depends on a number that a reboot, a driver or
/// another machine would give to something else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// Queues, rings and coalescing of an interface.
    Ethtool {
        nic: String,
        /// As in [`Setting::full_name`].
        setting: String,
    },
    /// How an interface spreads received packets over its queues, as an
    /// [`RssTable`](polyrail_nic::RssTable).
    Rss { nic: String },
    /// The CPUs that an interrupt may go to, as a list like `0-3,8`.
    Irq(VectorId),
    /// The service irqbalance, which moves interrupts by itself: `running` or `stopped`.
    IrqbalanceService,
    /// An irqbalance that no service manager has started, as above. `stopped` means paused by
    /// SIGSTOP, because nobody would know how to start it again.
    IrqbalanceProcess {
        pid: u32,
        /// When it was started, in clock ticks since boot: PIDs are reused.
        start_ticks: u64,
    },
    /// A file of `/proc` or `/sys` that holds one value.
    File {
        /// The path on the machine.
        path: String,
    },
}

/// An interrupt vector of a device.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VectorId {
    /// The PCI address of the device, such as `0000:8a:00.0`.
    pub pci: String,
    /// The place among the device's vectors, counted from 0.
    pub index: u32,
    /// The name under which the driver asked for it.
    pub action: String,
}

impl Target {
    /// The setting, if this is one of an interface.
    pub fn setting(&self) -> Option<&'static Setting> {
        match self {
            Self::Ethtool { setting, .. } => Setting::parse(setting),
            _ => None,
        }
    }

    /// Its place in the order of applying: first programs that would interfere, then changes that
    /// reset a device, since drivers then forget the affinities of their interrupts.
    pub fn rank(&self) -> u8 {
        match self {
            Self::IrqbalanceService | Self::IrqbalanceProcess { .. } => 0,
            Self::Ethtool { setting, .. } if setting.starts_with("channels.") => 1,
            Self::Ethtool { setting, .. } if setting.starts_with("rings.") => 2,
            Self::Ethtool { .. } | Self::Rss { .. } => 3,
            Self::Irq(_) => 4,
            Self::File { .. } => 5,
        }
    }

    /// As [`Self::rank`], for a reset: programs that would interfere start again last.
    pub fn undo_rank(&self) -> u8 {
        if self.is_balancer() { u8::MAX } else { self.rank() }
    }

    /// Whether it is a program rather than a value.
    pub fn is_balancer(&self) -> bool {
        matches!(self, Self::IrqbalanceService | Self::IrqbalanceProcess { .. })
    }

    /// Checks that it is a setting that this crate may write, whatever text named it.
    ///
    /// # Errors
    /// A phrase that follows `changes`.
    pub(crate) fn check(&self) -> Result<(), String> {
        match self {
            Self::File { path } => check_path(path),
            _ => Ok(()),
        }
    }

    /// Whether a change may take the link down for a moment.
    pub fn resets_link(&self) -> bool {
        matches!(self, Self::Ethtool { .. }) && self.rank() < 3
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ethtool { nic, setting } => write!(f, "{setting} of {nic}"),
            Self::Rss { nic } => write!(f, "RSS table of {nic}"),
            Self::Irq(id) => write!(f, "{id}"),
            Self::IrqbalanceService => f.write_str(crate::balancer::UNIT),
            Self::IrqbalanceProcess { pid, .. } => write!(f, "irqbalance (process {pid})"),
            Self::File { path } => f.write_str(path),
        }
    }
}

impl fmt::Display for VectorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vector {} of {} ({})", self.index, self.pci, self.action)
    }
}
