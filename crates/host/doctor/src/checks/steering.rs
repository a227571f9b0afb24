//! The CPU that handles a packet after its interrupt, and the queue that sends it.

use polyrail_host::{CpuSet, Nic};

use super::topology::no_rails_means_nothing;
use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "rps-on",
        group: Group::Steering,
        title: "packets are handed to other CPUs although the NIC has queues",
        cost: Cost::Small,
        why: "RPS spreads packets in software, with an interrupt between CPUs for each batch. A NIC with \
              several queues does that in hardware, for nothing; RPS then only adds work.",
        remedy: "Set rps_cpus of all receive queues to 0.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/class/net/*/queues/rx-*/rps_cpus"],
        run: rps_on,
    },
    Check {
        id: "xps-unset",
        group: Group::Steering,
        title: "sending queues are not tied to CPUs",
        cost: Cost::Small,
        why: "Without XPS a flow's queue is chosen by a hash, and its completions interrupt a CPU far from \
              the thread that sends. It must be set before connections are made.",
        remedy: "Give each sending queue the CPUs of its interrupt: `polyrail host plan tune throughput`.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/class/net/*/queues/tx-*/xps_cpus"],
        run: xps_unset,
    },
];

/// Returns the masks of a NIC's queues in one direction, with their paths.
fn masks(
    cx: &Context,
    nic: &Nic,
    prefix: &str,
    file: &str,
) -> Result<Vec<(String, CpuSet)>, Unknown> {
    let folder = format!("/sys/class/net/{}/queues", nic.name);
    let queues = cx.root().list_optional(&folder)?;
    let mut masks = Vec::new();
    for queue in queues.iter().filter(|queue| queue.starts_with(prefix)) {
        let path = format!("{folder}/{queue}/{file}");
        // Queues of devices with a single queue answer with an error.
        let Some(text) = cx.optional(&path)? else { continue };
        let mask =
            CpuSet::parse_mask(&text).map_err(|error| Unknown(format!("{path}: {error}")))?;
        masks.push((path, mask));
    }
    Ok(masks)
}

fn rps_on(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let masks = match masks(cx, nic, "rx-", "rps_cpus") {
            Ok(masks) => masks,
            Err(Unknown(why)) => {
                outcome.unknown(why);
                continue;
            }
        };
        if masks.is_empty() {
            outcome.unknown(format!("{}: no queue has a mask for RPS", nic.name));
            continue;
        }
        let on: Vec<_> = masks.iter().filter(|(_, mask)| !mask.is_empty()).collect();
        // With one queue, RPS is the only way to use a second CPU.
        if nic.rx_queues > 1 && !on.is_empty() {
            let mut finding =
                Finding::new(format!("{} of {} queues hand packets over", on.len(), masks.len()))
                    .about(&nic.name)
                    .because(&on[0].0, &on[0].1);
            for (path, _) in &on {
                let from = cx.text(path)?;
                finding = finding.write(path, from, 0);
            }
            outcome.found(finding);
        } else {
            outcome.saw(&masks[0].0, &masks[0].1);
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

fn xps_unset(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        if nic.tx_queues == 1 {
            outcome.saw(format!("/sys/class/net/{}/queues", nic.name), "one sending queue");
            continue;
        }
        let masks = match masks(cx, nic, "tx-", "xps_cpus") {
            Ok(masks) => masks,
            Err(Unknown(why)) => {
                outcome.unknown(why);
                continue;
            }
        };
        if masks.is_empty() {
            outcome.unknown(format!("{}: no queue has a mask for XPS", nic.name));
            continue;
        }
        if masks.iter().all(|(_, mask)| mask.is_empty()) {
            outcome.found(
                Finding::new(format!("none of {} sending queues has CPUs", masks.len()))
                    .about(&nic.name)
                    .because(&masks[0].0, "0")
                    .command("polyrail host plan tune throughput"),
            );
        } else {
            outcome.saw(&masks[0].0, &masks[0].1);
        }
    }
    Ok(no_rails_means_nothing(outcome))
}
