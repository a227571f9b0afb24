//! Checks that the host can receive packets straight into device memory. They run only with `--devmem`, because a host
//! that can't is not faulty.

use super::topology::no_rails_means_nothing;
use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::{Context, OSRELEASE};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "devmem-driver",
        group: Group::Devmem,
        title: "driver or kernel can't receive into device memory",
        cost: Cost::Breaks,
        why: "Linux 6.12 brought the interface, drivers came later: bnxt_en with 6.16, mlx5_core with \
              6.17, gve and fbnic with 6.18. Images for GPUs may carry earlier ports of their own.",
        remedy: "Use a kernel and NIC that can, or ask the image's vendor.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/class/net/*/device/driver", "/proc/sys/kernel/osrelease", "ethtool -S"],
        run: devmem_driver,
    },
    Check {
        id: "devmem-split",
        group: Group::Devmem,
        title: "headers and payload are not put apart",
        cost: Cost::Breaks,
        why: "The kernel must see headers, which device memory hides, so that binding a queue fails \
              unless the NIC splits packets.",
        remedy: "Switch tcp-data-split on.",
        needs_root: true,
        reversible: true,
        reads: &["ethtool -g"],
        run: devmem_split,
    },
    Check {
        id: "devmem-ntuple",
        group: Group::Devmem,
        title: "flows can't be steered to a queue",
        cost: Cost::Breaks,
        why: "Only packets that arrive at a bound queue land in device memory; without flow rules the \
              hash decides, and the rest arrives as plain data.",
        remedy: "Switch flow rules on: `ethtool -K NIC ntuple on`.",
        needs_root: true,
        reversible: true,
        reads: &["ethtool -n"],
        run: devmem_ntuple,
    },
    Check {
        id: "devmem-capability",
        group: Group::Devmem,
        title: "this process may not bind queues to device memory",
        cost: Cost::Breaks,
        why: "Binding a queue needs CAP_NET_ADMIN in the network namespace of the NIC, which containers \
              do not have by default.",
        remedy: "Give the container or unit CAP_NET_ADMIN.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/self/status"],
        run: devmem_capability,
    },
];

pub(super) fn not_asked(cx: &Context) -> Option<Outcome> {
    (!cx.options().devmem).then(|| Outcome::not_applicable("it was not asked for (--devmem)"))
}

/// Returns the first kernel whose driver of that name receives into device memory.
fn first_kernel(driver: &str) -> Option<(u32, u32)> {
    match driver {
        "bnxt_en" => Some((6, 16)),
        "mlx5_core" => Some((6, 17)),
        "gve" | "fbnic" => Some((6, 18)),
        _ => None,
    }
}

fn devmem_driver(cx: &Context) -> Result<Outcome, Unknown> {
    if let Some(outcome) = not_asked(cx) {
        return Ok(outcome);
    }
    let kernel = cx.kernel()?;
    let release = cx.text(OSRELEASE)?;
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let path = format!("/sys/class/net/{}/device/driver", nic.name);
        let Some(driver) = &nic.driver else {
            outcome.unknown(format!("{}: its driver is not known", nic.name));
            continue;
        };
        // Google's images have an earlier port of the interface, which GPUDirect-TCPX uses. This counter shows the
        // port.
        const PORT: &str = "rx_devmem_pkts";
        let counters = cx.probes().nics.get(&nic.name).map(|probe| &probe.devmem);
        if let Some(count) = counters.and_then(|counters| counters.get(PORT)) {
            outcome.saw(format!("ethtool -S {}: {PORT}", nic.name), count);
            continue;
        }
        let what = match first_kernel(driver) {
            Some(first) if kernel >= first => {
                outcome.saw(path, format!("{driver}, Linux {release}"));
                continue;
            }
            Some((major, minor)) => {
                format!("the driver {driver} can from Linux {major}.{minor} on")
            }
            None => format!("the driver {driver} is not known to do it"),
        };
        let finding = Finding::new(what).about(&nic.name).because(path, driver);
        outcome.found(finding.because(OSRELEASE, &release));
    }
    Ok(no_rails_means_nothing(outcome))
}

fn devmem_split(cx: &Context) -> Result<Outcome, Unknown> {
    if let Some(outcome) = not_asked(cx) {
        return Ok(outcome);
    }
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let asked = format!("ethtool -g {}: tcp-data-split", nic.name);
        match cx.probe(nic, "rings", |probe| probe.tcp_data_split) {
            Ok(2) => outcome.saw(asked, "on"),
            Ok(value) => {
                let text = if value == 1 { "off" } else { "auto" };
                outcome.found(
                    Finding::new("packets are not split")
                        .about(&nic.name)
                        .because(asked, text)
                        .set(&nic.name, "rings.tcp-data-split", value, 2),
                );
            }
            Err(Unknown(why)) => outcome.unknown(why),
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

fn devmem_ntuple(cx: &Context) -> Result<Outcome, Unknown> {
    if let Some(outcome) = not_asked(cx) {
        return Ok(outcome);
    }
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let asked = format!("ethtool -n {}", nic.name);
        let probe = cx.probes().nics.get(&nic.name);
        match probe.map(|probe| (probe.ntuple_rules, probe.errors.get("ntuple"))) {
            Some((Some(rules), _)) => outcome.saw(asked, format!("{rules} rules")),
            Some((None, Some(why))) => outcome.found(
                Finding::new("the driver takes no flow rules")
                    .about(&nic.name)
                    .because(asked, why)
                    .command(format!("ethtool -K {} ntuple on", nic.name)),
            ),
            _ => outcome.unknown(format!("{}: its driver was not asked", nic.name)),
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

/// `CAP_NET_ADMIN`.
const NET_ADMIN: u64 = 1 << 12;

fn devmem_capability(cx: &Context) -> Result<Outcome, Unknown> {
    if let Some(outcome) = not_asked(cx) {
        return Ok(outcome);
    }
    let text = cx.row("/proc/self/status", "CapEff")?;
    let capabilities = u64::from_str_radix(&text, 16)
        .map_err(|_| Unknown(format!("/proc/self/status has `{text}` for CapEff")))?;
    let mut outcome = Outcome::default();
    if capabilities & NET_ADMIN != 0 {
        outcome.saw("/proc/self/status: CapEff", text);
    } else {
        outcome.found(
            Finding::new("this process lacks CAP_NET_ADMIN")
                .because("/proc/self/status: CapEff", text),
        );
    }
    Ok(outcome)
}
