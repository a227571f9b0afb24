//! The purpose of a vector, derived from the name that its driver gave it.

use serde::{Deserialize, Serialize};

/// The purpose of a vector.
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
    /// A device other than a network interface.
    Other,
    /// A vector of a network interface, of unknown purpose.
    Unknown,
}

impl Role {
    /// Whether this vector serves a queue. Policies plan only such vectors.
    pub fn is_queue(self) -> bool {
        matches!(self, Self::Rx | Self::Tx | Self::Both)
    }

    /// Returns the reason why a plan leaves a vector without a queue alone.
    pub(super) fn why_skipped(self) -> &'static str {
        match self {
            Self::Unknown => "has a name that says no purpose known here; a map can place it",
            _ => "serves the device and no queue; only a map can name it",
        }
    }

    /// The word that `host show irq` prints.
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

/// A form of names: `*` is any text, `#` is a number, and upper case counts as lower.
struct Form {
    /// The drivers whose names have this form, if other drivers use it with another meaning; empty
    /// for all.
    drivers: &'static [&'static str],
    name: &'static str,
    role: Role,
}

const fn form(name: &'static str, role: Role) -> Form {
    Form { drivers: &[], name, role }
}

/// The forms; the first match wins. A name is compared as a whole, because interfaces can be called
/// `mgmt0` or `other`. Sources: the drivers of Linux 6.12 below `drivers/net/ethernet`, by the file
/// that calls `request_irq`.
const FORMS: &[Form] = &[
    // ice_main.c, i40e_main.c: `ice-0000:17:00.0:misc`; fdir and control interfaces have their own
    // queues, which carry rules and no packets: `i40e-0000:17:00.0:fdir-TxRx-0`.
    form("*:misc", Role::Management),
    form("*:ll_ts", Role::Management),
    form("*:mbx", Role::Management),
    form("*[:-]fdir-txrx-#", Role::Management),
    form("*:ctrl-txrx-#", Role::Management),
    // virtio_pci_common.c: one vector for all queues where the device has too few.
    form("virtio#-config", Role::Management),
    form("virtio#-control", Role::Management),
    form("virtio*-virtqueues", Role::Both),
    form("virtio#-input.#", Role::Rx),
    form("virtio#-output.#", Role::Tx),
    // mellanox/mlx5/core/pci_irq.c and eq.c, mlx4/eq.c; an event queue serves both directions.
    form("mlx5_async#", Role::Management),
    form("mlx5_async_eq", Role::Management),
    form("mlx5_pages_eq", Role::Management),
    form("mlx5_cmd_eq", Role::Management),
    form("mlx5_ctrl#", Role::Management),
    form("mlx5_comp#", Role::Both),
    form("mlx5_combined#", Role::Both),
    form("mlx4-async", Role::Management),
    form("mlx4-comp-#", Role::Both),
    form("mlx4-#", Role::Both),
    // microsoft/mana/gdma_main.c.
    form("mana_hwc", Role::Management),
    form("mana_msi#", Role::Both),
    form("mana_q#", Role::Both),
    // google/gve/gve_main.c (queues: see `role`), amazon/ena/ena_netdev.c.
    form("gve-mgmnt", Role::Management),
    form("ena-mgmnt", Role::Management),
    form("*-mgmnt", Role::Management),
    // intel/idpf/idpf_lib.c, broadcom/bnx2x (slow path), qlogic/qed/qed_main.c (slow path).
    form("idpf-*-mailbox-#", Role::Management),
    form("*-sp", Role::Management),
    form("sp-#-*", Role::Management),
    // vmware/vmxnet3, cisco/enic, netronome/nfp, hisilicon/hns3 (hclge_main.c), pensando/ionic.
    form("*-event-#", Role::Management),
    form("*-err", Role::Management),
    form("*-notify", Role::Management),
    form("*-lsc", Role::Management),
    form("*-exn", Role::Management),
    form("hclge-misc-*", Role::Management),
    form("hclgevf-misc-*", Role::Management),
    form("*-misc", Role::Management),
    form("ionic-*-admin*", Role::Management),
    form("ionic-*-notify*", Role::Management),
    // meta/fbnic, chelsio/cxgb4.
    form("fbnic_fw", Role::Management),
    form("fbnic_mac", Role::Management),
    form("*-fweventq", Role::Management),
    // ixgbe, igb, igc, ice, i40e, iavf, idpf, hns3, bnxt, ngbe, fbnic: `eth0-TxRx-3`. ena:
    // `eth0-Tx-Rx-3`. vmxnet3, nfp, liquidio, octeontx2: `eth0-rxtx-3`.
    form("*-txrx-#", Role::Both),
    form("*-tx-rx-#", Role::Both),
    form("*-rxtx-#", Role::Both),
    form("*_combined#", Role::Both),
    // bnx2x_main.c, qede_main.c: fast path. emulex/benet/be_main.c, octeon_ep: `eth0-q3`.
    form("*-fp-#", Role::Both),
    Form { drivers: &["be2net", "octeon_ep", "octeon_ep_vf"], name: "*-q#", role: Role::Both },
    // sfc/efx_channels.c, bnx2.c: `eth0-3`; with channels for one direction `eth0-tx-3`.
    Form { drivers: &["sfc", "sfc_siena", "bnx2"], name: "*-rx-#", role: Role::Rx },
    Form { drivers: &["sfc", "sfc_siena", "bnx2"], name: "*-tx-#", role: Role::Tx },
    Form { drivers: &["sfc", "sfc_siena"], name: "*-xdp-#", role: Role::Tx },
    Form { drivers: &["sfc", "sfc_siena", "bnx2"], name: "*-#", role: Role::Both },
    // Most drivers with vectors for one direction; stmmac: `eth0:rx-3`; xen-netfront: `eth0-q3-rx`;
    // cxgb4: `eth0-Rx3`; hinic: `hinic_rxq3`; ionic: `ionic-eth0-L0-rx3`.
    form("*[:-]rx-#", Role::Rx),
    form("*[:-]tx-#", Role::Tx),
    form("*-q#-rx", Role::Rx),
    form("*-q#-tx", Role::Tx),
    form("*-rx#", Role::Rx),
    form("*-tx#", Role::Tx),
    form("*_rxq#", Role::Rx),
    form("*_txq#", Role::Tx),
    // broadcom/tg3.c: the first vector is for the link.
    Form { drivers: &["tg3"], name: "*-#", role: Role::Management },
];

/// Drivers that name the link's vector after the interface, and the queues' vectors differently.
const LINK_BY_NAME: &[&str] =
    &["e1000e", "igb", "igbvf", "igc", "ixgbe", "ixgbevf", "txgbe", "ngbe", "fm10k", "cxgb4"];

/// Facts about one vector of a network interface, from its driver.
pub(super) struct Named<'a> {
    pub(super) action: &'a str,
    /// The driver's name; empty if unknown.
    pub(super) driver: &'a str,
    /// The interfaces of the device.
    pub(super) nics: &'a [String],
    /// Number of vectors of the device.
    pub(super) vectors: u32,
    /// Number of those vectors that are `gve`'s for queues.
    pub(super) blocks: u32,
}

/// Reads role and queue from a vector's name, as the driver of a network interface encodes them.
///
/// `gve` numbers sending queues first, and receiving queues from half of its vectors on, however
/// many queues are in use.
pub(super) fn role(named: &Named<'_>) -> (Role, Option<u32>) {
    let name = named.action.split_once('@').map_or(named.action, |(name, _)| name);
    if named.nics.iter().any(|nic| nic == name) {
        // A single vector serves everything.
        return match named.vectors {
            1 => (Role::Both, Some(0)),
            _ if LINK_BY_NAME.contains(&named.driver) => (Role::Management, None),
            _ => (Role::Unknown, None),
        };
    }
    let name = name.to_ascii_lowercase();
    if is_gve_block(&name) {
        let digits = name.trim_start_matches(|c: char| !c.is_ascii_digit());
        let digits = digits.rsplit(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        let half = named.blocks / 2;
        return match digits.parse::<u32>() {
            Ok(number) if number < half => (Role::Tx, Some(number)),
            Ok(number) => (Role::Rx, Some(number - half)),
            Err(_) => (Role::Unknown, None),
        };
    }
    let found = FORMS.iter().find_map(|form| {
        let is_its = form.drivers.is_empty() || form.drivers.contains(&named.driver);
        let number =
            if is_its { fits(form.name.as_bytes(), name.as_bytes(), None)? } else { None? };
        Some((form.role, number))
    });
    match found {
        Some((role, number)) if role.is_queue() => (role, Some(number.unwrap_or(0))),
        Some((role, _)) => (role, None),
        None => (Role::Unknown, None),
    }
}

/// Matches a name with a form: `None` if it does not fit, else the name's last number, if it has
/// one.
fn fits(form: &[u8], name: &[u8], last: Option<u32>) -> Option<Option<u32>> {
    match form {
        [] => name.is_empty().then_some(last),
        [b'*', rest @ ..] => (0..=name.len()).find_map(|at| fits(rest, &name[at..], last)),
        [b'#', rest @ ..] => {
            let digits = name.iter().take_while(|byte| byte.is_ascii_digit()).count();
            let number = std::str::from_utf8(&name[..digits]).ok()?.parse().ok()?;
            fits(rest, &name[digits..], Some(number))
        }
        [b'[', a, b, b']', rest @ ..] => {
            let (first, behind) = name.split_first()?;
            if first == a || first == b { fits(rest, behind, last) } else { None }
        }
        [byte, rest @ ..] => {
            let (first, behind) = name.split_first()?;
            if first == byte { fits(rest, behind, last) } else { None }
        }
    }
}

/// Whether a name is one of `gve`'s queue vectors.
pub(super) fn is_gve_block(action: &str) -> bool {
    action.contains("ntfy-blk") || action.contains("ntfy-block")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role_of(driver: &str, action: &str, vectors: u32) -> (Role, Option<u32>) {
        let nics = ["eth4".to_owned(), "mgmt0".to_owned()];
        role(&Named { action, driver, nics: &nics, vectors, blocks: 32 })
    }

    #[test]
    fn every_drivers_names_are_understood() {
        const MANAGEMENT: (Role, Option<u32>) = (Role::Management, None);
        const UNKNOWN: (Role, Option<u32>) = (Role::Unknown, None);
        let both = |queue| (Role::Both, Some(queue));
        let rx = |queue| (Role::Rx, Some(queue));
        let tx = |queue| (Role::Tx, Some(queue));
        let cases = [
            ("gve", "gve-ntfy-blk0@pci:0000:06:00.0", tx(0)),
            ("gve", "gve-ntfy-blk15@pci:0000:06:00.0", tx(15)),
            ("gve", "gve-ntfy-blk16@pci:0000:06:00.0", rx(0)),
            ("gve", "eth1-ntfy-block.31", rx(15)),
            ("gve", "gve-mgmnt@pci:0000:06:00.0", MANAGEMENT),
            ("mlx5_core", "mlx5_async0@pci:0000:08:00.0", MANAGEMENT),
            ("mlx5_core", "mlx5_comp12@pci:0000:08:00.0", both(12)),
            ("mlx5_core", "mlx5_pages_eq@pci:0000:08:00.0", MANAGEMENT),
            ("mlx4_core", "mlx4-async@pci:0000:31:00.0", MANAGEMENT),
            ("mlx4_core", "mlx4-3@0000:31:00.0", both(3)),
            ("mlx4_core", "mlx4-comp-2@pci:0000:31:00.0", both(2)),
            ("ena", "eth0-Tx-Rx-3", both(3)),
            ("ena", "ena-mgmnt@pci:0000:00:05.0", MANAGEMENT),
            ("ixgbe", "eth0-TxRx-7", both(7)),
            ("ixgbe", "eth4", MANAGEMENT),
            ("tg3", "eth4", UNKNOWN),
            ("tg3", "eth4-rx-1", rx(1)),
            ("tg3", "eth4-0", MANAGEMENT),
            ("cxgb4", "eth4", MANAGEMENT),
            ("cxgb4", "eth4-FWeventq", MANAGEMENT),
            ("r8169", "enp3s0", UNKNOWN),
            ("bnxt_en", "eth0-TxRx-1", both(1)),
            ("bnxt_en", "eth10-tx-0", tx(0)),
            ("virtio_net", "virtio1-input.3", rx(3)),
            ("virtio_net", "virtio1-output.0", tx(0)),
            ("virtio_net", "virtio1-config", MANAGEMENT),
            ("virtio_net", "virtio1-virtqueues", both(0)),
            ("idpf", "idpf-eth0-TxRx-1", both(1)),
            ("idpf", "idpf-eth0-Mailbox-0", MANAGEMENT),
            ("mana", "mana_hwc@pci:7870:00:00.0", MANAGEMENT),
            ("mana", "mana_msi4@pci:7870:00:00.0", both(4)),
            ("ice", "ice-eth0-TxRx-63", both(63)),
            ("ice", "ice-mgmt0-TxRx-2", both(2)),
            ("ice", "ice-0000:17:00.0:misc", MANAGEMENT),
            ("ice", "ice-0000:17:00.0:ll_ts", MANAGEMENT),
            ("i40e", "i40e-eth0-fdir-TxRx-0", MANAGEMENT),
            ("i40e", "i40e-0000:17:00.0:fdir-TxRx-0", MANAGEMENT),
            ("iavf", "iavf-0000:17:00.0:mbx", MANAGEMENT),
            ("iavf", "iavf-eth0-TxRx-0", both(0)),
            ("vmxnet3", "ens192-rxtx-3", both(3)),
            ("vmxnet3", "ens192-event-4", MANAGEMENT),
            ("bnx2x", "eth4-fp-2", both(2)),
            ("bnx2x", "eth4-sp", MANAGEMENT),
            ("bnx2", "eth4-2", both(2)),
            ("qede", "qede2-fp-1", both(1)),
            ("qede", "sp-0-31:00.00", MANAGEMENT),
            ("be2net", "eth4-q3", both(3)),
            ("sfc", "eth4-2", both(2)),
            ("sfc", "eth4-tx-9", tx(9)),
            ("other", "eth4-2", UNKNOWN),
            ("hns3", "hns3-0000:7d:00.0-TxRx-3", both(3)),
            ("hns3", "hclge-misc-0000:7d:00.0", MANAGEMENT),
            ("nfp", "eth4-rxtx-0", both(0)),
            ("nfp", "eth4-lsc", MANAGEMENT),
            ("enic", "eth4-notify", MANAGEMENT),
            ("ionic", "ionic-eth4-L0-rx3", rx(3)),
            ("cxgb4", "eth4-Rx5", rx(5)),
            ("stmmac", "eth0:tx-1", tx(1)),
            ("", "something", UNKNOWN),
            ("", "99999999999", UNKNOWN),
            ("", "eth0-rx-99999999999", UNKNOWN),
        ];
        for (driver, name, expected) in cases {
            assert_eq!(role_of(driver, name, 33), expected, "{driver} {name}");
        }
        assert_eq!(role_of("e1000e", "eth4", 1), both(0), "one vector serves everything");
    }

    #[test]
    fn the_name_of_an_interface_says_nothing_about_its_vectors() {
        for nic in ["mgmt0", "async1", "other", "rx-1", "fdir", "misc", "config0"] {
            let action = format!("{nic}-TxRx-5");
            assert_eq!(role_of("ice", &action, 9), (Role::Both, Some(5)), "{action}");
        }
        assert_eq!(role_of("ice", "mgmt0", 9), (Role::Unknown, None));
    }
}
