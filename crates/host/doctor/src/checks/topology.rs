//! Location and state of devices.

use polyrail_host::{PciFunction, PciLink};

use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "gpu-without-driver",
        group: Group::Topology,
        title: "a GPU on the bus has no driver",
        cost: Cost::Breaks,
        why: "Jobs count GPUs by their driver: with one missing, ranks and rails are matched wrongly \
              or the job does not start. A virtual function given to a guest is no fault.",
        remedy: "Load the driver, or find out from `dmesg` why it left the device.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/bus/pci/devices/*/class", "/sys/bus/pci/devices/*/driver"],
        run: gpu_without_driver,
    },
    Check {
        id: "pcie-link-degraded",
        group: Group::Topology,
        title: "a NIC or GPU runs on a slower PCIe link than it could",
        cost: Cost::Large,
        why: "A card that trained at half the width or speed moves half the bytes, and nothing else \
              says so. GPUs lower the speed of an idle link to save power, so only their width counts.",
        remedy: "Reseat the card or riser, or compare the slot's wiring with the card's needs.",
        needs_root: true,
        reversible: false,
        reads: &["/sys/bus/pci/devices/*/{current,max}_link_{speed,width}"],
        run: pcie_link_degraded,
    },
    Check {
        id: "numa-node-unknown",
        group: Group::Topology,
        title: "the machine does not tell the NUMA node of a NIC",
        cost: Cost::Small,
        why: "Without it threads, memory and interrupts can't be placed near the NIC, and some \
              programs take -1 for a node of its own. On machines with one node it does not matter.",
        remedy: "Tell programs where the NIC is (a topology file), or have the hypervisor expose it.",
        needs_root: false,
        reversible: true,
        reads: &["/sys/bus/pci/devices/*/numa_node"],
        run: numa_node_unknown,
    },
    Check {
        id: "gpu-nic-balance",
        group: Group::Topology,
        title: "GPUs and NICs do not divide evenly",
        cost: Cost::Small,
        why: "With five GPUs for four NICs one rail carries twice the load, and the slowest rail ends \
              a collective. Mostly a NIC or GPU is missing, or a management NIC is counted as a rail.",
        remedy: "Name the rails (`--nic eth1,eth2,…`), or find the device that is missing.",
        needs_root: false,
        reversible: true,
        reads: &["/sys/bus/pci/devices/*/class", "/sys/class/net/*/device"],
        run: gpu_nic_balance,
    },
];

fn gpu_without_driver(cx: &Context) -> Result<Outcome, Unknown> {
    let gpus = &cx.topology().gpus;
    if gpus.is_empty() {
        return Ok(Outcome::not_applicable("there are no GPUs"));
    }
    let mut outcome = Outcome::default();
    for gpu in gpus {
        let path = format!("/sys/bus/pci/devices/{}/driver", gpu.pci.address);
        match &gpu.driver {
            Some(driver) => outcome.saw(path, driver),
            None => outcome.found(
                Finding::new("the GPU has no driver, so no program can use it")
                    .about(gpu.pci.address.to_string())
                    .because(path, "absent"),
            ),
        }
    }
    Ok(outcome)
}

fn pcie_link_degraded(cx: &Context) -> Result<Outcome, Unknown> {
    let nics =
        cx.rails().into_iter().filter_map(|nic| Some((nic.name.clone(), nic.pci.as_ref()?, true)));
    let gpus = cx.topology().gpus.iter();
    let gpus = gpus.map(|gpu| (gpu.pci.address.to_string(), &gpu.pci, false));
    let mut outcome = Outcome::default();
    let mut devices = 0;
    for (name, pci, speed_counts) in nics.chain(gpus) {
        devices += 1;
        check_link(&mut outcome, &name, pci, speed_counts);
    }
    if devices == 0 {
        return Ok(Outcome::not_applicable("there are no NICs and GPUs on a PCI bus"));
    }
    Ok(outcome)
}

fn check_link(outcome: &mut Outcome, name: &str, pci: &PciFunction, speed_counts: bool) {
    let folder = format!("/sys/bus/pci/devices/{}", pci.address);
    let full = |link: &PciLink| Some((link.max_width?, gigatransfers(link.max_speed.as_ref()?)?));
    let link = pci.link.as_ref().and_then(|link| Some((link, full(link)?)));
    let Some((link, (max_width, max_speed))) = link else {
        outcome
            .unknown(format!("{name}: the bus does not tell the link (virtual machines hide it)"));
        return;
    };
    // PCI reports the width 63 for "unknown"; bridges of virtual machines report 0.
    if link.width == 0 || link.width >= 63 || max_width == 0 || max_width >= 63 {
        outcome.unknown(format!("{name}: the link has the width {}", link.width));
        return;
    }
    let Some(speed) = gigatransfers(&link.speed) else {
        outcome.unknown(format!("{name}: the link has the speed `{}`", link.speed));
        return;
    };
    let now = format!("{}, x{}", link.speed, link.width);
    if link.width < max_width || speed_counts && speed < max_speed {
        outcome.found(
            Finding::new(format!("the link runs at {now} of {max_speed} GT/s, x{max_width}"))
                .about(name)
                .because(format!("{folder}/current_link_width"), link.width)
                .because(format!("{folder}/max_link_width"), max_width)
                .because(format!("{folder}/current_link_speed"), &link.speed)
                .because(format!("{folder}/max_link_speed"), format!("{max_speed} GT/s"))
                .command(format!("lspci -vv -s {} | grep -i lnk", pci.address)),
        );
    } else {
        outcome.saw(format!("{folder}/current_link_*"), now);
    }
}

/// Returns the number in `16.0 GT/s PCIe`.
fn gigatransfers(text: &str) -> Option<f64> {
    text.split_whitespace().next()?.parse().ok()
}

fn numa_node_unknown(cx: &Context) -> Result<Outcome, Unknown> {
    let nodes = cx.topology().nodes_with_cpus();
    if nodes <= 1 {
        return Ok(Outcome::not_applicable("the machine has one node"));
    }
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let path = format!("/sys/class/net/{}/device/numa_node", nic.name);
        match nic.node {
            Some(node) => outcome.saw(path, node),
            None => outcome.found(
                Finding::new(format!("which of the {nodes} nodes the NIC is at is not known"))
                    .about(&nic.name)
                    .because(path, -1),
            ),
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

fn gpu_nic_balance(cx: &Context) -> Result<Outcome, Unknown> {
    let (gpus, rails) = (cx.topology().gpus.len(), cx.rails());
    if gpus == 0 || rails.is_empty() {
        return Ok(Outcome::not_applicable("there are no GPUs, or no NICs"));
    }
    // A management NIC, if there is one, is slower or has another driver.
    let key = |nic: &polyrail_host::Nic| (nic.driver.clone(), nic.speed_mbps);
    let fastest = rails.iter().max_by_key(|nic| {
        let alike = rails.iter().filter(|other| key(other) == key(nic)).count();
        (nic.speed_mbps, alike)
    });
    let Some(fastest) = fastest.map(|nic| key(nic)) else { return Ok(Outcome::default()) };
    let alike: Vec<&str> =
        rails.iter().filter(|nic| key(nic) == fastest).map(|nic| nic.name.as_str()).collect();
    let count = alike.len();
    let is_even = gpus.is_multiple_of(count) || count.is_multiple_of(gpus)
        // One NIC of the same kind may be for management, as on every A3 host.
        || cx.options().interfaces.is_empty() && count > 1 && gpus.is_multiple_of(count - 1);
    let mut outcome = Outcome::default();
    let value = format!("{gpus} GPUs, {count} NICs ({})", alike.join(", "));
    if is_even {
        outcome.saw("/sys/bus/pci/devices, /sys/class/net", value);
    } else {
        outcome.found(
            Finding::new(format!("{gpus} GPUs share {count} NICs"))
                .because("/sys/bus/pci/devices, /sys/class/net", value),
        );
    }
    Ok(outcome)
}

/// Turns an empty result into "not applicable": without rails there is nothing to examine, which is not "clean".
pub(super) fn no_rails_means_nothing(outcome: Outcome) -> Outcome {
    let said_nothing =
        outcome.findings.is_empty() && outcome.seen.is_empty() && outcome.unknown.is_empty();
    if said_nothing && outcome.not_applicable.is_none() {
        return Outcome::not_applicable("there are no NICs of devices");
    }
    outcome
}
