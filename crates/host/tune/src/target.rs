//! Targets of changes, and how they are identified.

use std::fmt;

use polyrail_nic::Setting;
use serde::{Deserialize, Serialize};

use crate::plan::check_path;

/// A target of a change, which has a value. Its identity never depends on a number that a reboot, a
/// driver or another machine would give to another target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// A setting of queues, rings or coalescing of an interface.
    Ethtool {
        nic: String,
        /// As in [`Setting::full_name`].
        setting: String,
    },
    /// The distribution of received packets over an interface's queues, as an
    /// [`RssTable`](polyrail_nic::RssTable).
    Rss { nic: String },
    /// The CPUs that an interrupt may go to, as a list like `0-3,8`.
    Irq(VectorId),
    /// The service irqbalance, which moves interrupts on its own: `running` or `stopped`.
    IrqbalanceService,
    /// An irqbalance without a service manager, with the same values. `stopped` means paused by
    /// SIGSTOP, because no service manager could start it again.
    IrqbalanceProcess {
        pid: u32,
        /// Start time, in clock ticks since boot: PIDs are reused.
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
    /// The name under which the driver requested the vector.
    pub action: String,
}

impl Target {
    /// Returns the setting, if this target is one of an interface.
    pub fn setting(&self) -> Option<&'static Setting> {
        match self {
            Self::Ethtool { setting, .. } => Setting::parse(setting),
            _ => None,
        }
    }

    /// Returns the position in the order of applying: first programs that would interfere, then
    /// changes that reset a device, since drivers then forget the affinities of their interrupts.
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

    /// Returns the position in the order of a reset, like [`Self::rank`], but programs that would
    /// interfere start again last.
    pub fn undo_rank(&self) -> u8 {
        if self.is_balancer() { u8::MAX } else { self.rank() }
    }

    /// Whether the target is a program rather than a value.
    pub fn is_balancer(&self) -> bool {
        matches!(self, Self::IrqbalanceService | Self::IrqbalanceProcess { .. })
    }

    /// Checks that the target is a setting that this crate may write, whatever text named it.
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
