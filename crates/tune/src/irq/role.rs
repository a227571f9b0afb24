//! What a vector is for, by the name that its driver gave it.

use serde::{Deserialize, Serialize};

/// What a vector serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A queue that receives.
    Rx,
    /// A queue that sends.
    Tx,
    /// A queue of each kind.
    Both,
    /// The device itself: configuration, link state, firmware.
    Management,
    /// A device that is no network interface.
    Other,
    /// A network interface's, but of unknown purpose.
    Unknown,
}

impl Role {
    /// Whether this vector serves a queue. Policies plan only such vectors.
    pub fn is_queue(self) -> bool {
        matches!(self, Self::Rx | Self::Tx | Self::Both)
    }

    /// As `irq show` prints it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Rx => "rx",
            Self::Tx => "tx",
            Self::Both => "rx+tx",
            Self::Management => "mgmt",
            Self::Other => "other",
            Self::Unknown => "unknown",
        }
    }
}

/// Role and queue, as the driver of a network interface encodes them in a vector's name.
///
/// `blocks` is how many queue vectors the device has: `gve` counts those that send first, and
/// those that receive from half of them on, however many queues are in use.
pub(super) fn role(action: &str, blocks: u32) -> (Role, Option<u32>) {
    let name = action.split_once("@pci:").map_or(action, |(name, _)| name).to_ascii_lowercase();
    const MANAGEMENT: &[&str] = &[
        "mgmnt", "mgmt", "mailbox", "async", "-config", "-control", "fdir", "hwc", "-misc",
        "other", "pages_eq", "cmd_eq",
    ];
    if MANAGEMENT.iter().any(|word| name.contains(word)) {
        return (Role::Management, None);
    }
    let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (stem, number) = name.split_at(name.len() - digits);
    let Ok(number) = number.parse::<u32>() else { return (Role::Unknown, None) };
    let stem = stem.trim_end_matches(['-', '.', '_']);
    if stem.ends_with("ntfy-blk") || stem.ends_with("ntfy-block") {
        let half = blocks / 2;
        return match number < half {
            true => (Role::Tx, Some(number)),
            false => (Role::Rx, Some(number - half)),
        };
    }
    const BOTH: &[&str] = &["txrx", "tx-rx", "mlx5_comp", "mlx5_combined", "mana_msi", "mana_q"];
    let role = if BOTH.iter().any(|end| stem.ends_with(end)) {
        Role::Both
    } else if stem.ends_with("rx") || stem.ends_with("input") {
        Role::Rx
    } else if stem.ends_with("tx") || stem.ends_with("output") {
        Role::Tx
    } else {
        return (Role::Unknown, None);
    };
    (role, Some(number))
}

/// Whether a name is one of `gve`'s queue vectors.
pub(super) fn is_gve_block(action: &str) -> bool {
    action.contains("ntfy-blk") || action.contains("ntfy-block")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_drivers_names_are_understood() {
        let cases = [
            ("gve-ntfy-blk0@pci:0000:06:00.0", Role::Tx, Some(0)),
            ("gve-ntfy-blk15@pci:0000:06:00.0", Role::Tx, Some(15)),
            ("gve-ntfy-blk16@pci:0000:06:00.0", Role::Rx, Some(0)),
            ("eth1-ntfy-block.31", Role::Rx, Some(15)),
            ("gve-mgmnt@pci:0000:06:00.0", Role::Management, None),
            ("mlx5_async0@pci:0000:08:00.0", Role::Management, None),
            ("mlx5_comp12@pci:0000:08:00.0", Role::Both, Some(12)),
            ("eth0-Tx-Rx-3", Role::Both, Some(3)),
            ("ena-mgmnt@pci:0000:00:05.0", Role::Management, None),
            ("eth0-TxRx-7", Role::Both, Some(7)),
            ("eth0-rx-2", Role::Rx, Some(2)),
            ("eth10-tx-0", Role::Tx, Some(0)),
            ("virtio1-input.3", Role::Rx, Some(3)),
            ("virtio1-output.0", Role::Tx, Some(0)),
            ("virtio1-config", Role::Management, None),
            ("idpf-eth0-TxRx-1", Role::Both, Some(1)),
            ("idpf-eth0-Mailbox-0", Role::Management, None),
            ("mana_hwc@pci:7870:00:00.0", Role::Management, None),
            ("mana_msi4@pci:7870:00:00.0", Role::Both, Some(4)),
            ("ice-eth0-TxRx-63", Role::Both, Some(63)),
            ("i40e-eth0-fdir-TxRx-0", Role::Management, None),
            ("something", Role::Unknown, None),
            ("eth0", Role::Unknown, None),
            ("99999999999", Role::Unknown, None),
        ];
        for (name, role_wanted, queue) in cases {
            assert_eq!(role(name, 32), (role_wanted, queue), "{name}");
        }
    }
}
