//! Queues, rings and packet drops.

use super::topology::no_rails_means_nothing;
use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "queues-below-max",
        group: Group::Queues,
        title: "a NIC uses fewer queues than it could",
        cost: Cost::Large,
        why: "Each queue is served by one CPU, so that few queues cap the rate however many flows there \
              are. More queues than CPUs of the node gain nothing.",
        remedy: "Raise the number of queues to the CPUs of the NIC's node; the link may drop for a moment.",
        needs_root: true,
        reversible: true,
        reads: &["ethtool -l"],
        run: queues_below_max,
    },
    Check {
        id: "single-queue",
        group: Group::Queues,
        title: "a NIC has one queue on a machine with many CPUs",
        cost: Cost::Large,
        why: "All its packets go through one CPU, which ends at 5 to 8 GB/s. Virtual machines get more \
              queues by their definition (`queues=`), not from inside.",
        remedy: "Give the NIC more queues in the definition of the virtual machine, or use RPS.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/class/net/*/queues"],
        run: single_queue,
    },
    Check {
        id: "rings-small",
        group: Group::Queues,
        title: "a NIC's receive rings are short",
        cost: Cost::Large,
        why: "At 100 Gbit/s a ring of 512 is full of large packets after 60 µs, and a CPU that is late by \
              more drops them. Rings above 4096 only wear out the caches.",
        remedy: "Raise the receive rings to 1024 or more; the link may drop for a moment.",
        needs_root: true,
        reversible: true,
        reads: &["ethtool -g"],
        run: rings_small,
    },
    Check {
        id: "nic-drops",
        group: Group::Queues,
        title: "a NIC drops packets",
        cost: Cost::Large,
        why: "Each drop is a retransmit and a smaller congestion window. Counted since the interface came \
              up; below one in 100,000 packets the check stays silent.",
        remedy: "See which queue drops (`ethtool -S`), then raise rings and spread interrupts.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/net/dev", "ethtool -S"],
        run: nic_drops,
    },
    Check {
        id: "nic-errors",
        group: Group::Queues,
        title: "a NIC receives damaged packets",
        cost: Cost::Large,
        why: "Damage comes from cables, transceivers and ports, and each damaged packet is a retransmit. \
              Below one in a million packets the check stays silent.",
        remedy: "Replace cable or transceiver, or clean the fibre.",
        needs_root: false,
        reversible: true,
        reads: &["/proc/net/dev"],
        run: nic_errors,
    },
    Check {
        id: "coalescing-off",
        group: Group::Queues,
        title: "a NIC interrupts for every packet",
        cost: Cost::Small,
        why: "Without coalescing each packet may be an interrupt. It lowers the latency of single \
              packets, and costs CPU time where there are many.",
        remedy: "Switch adaptive coalescing on, or hold interrupts back for some microseconds.",
        needs_root: true,
        reversible: true,
        reads: &["ethtool -c"],
        run: coalescing_off,
    },
    Check {
        id: "offloads-off",
        group: Group::Queues,
        title: "a NIC leaves to the CPU what it or the kernel could do at once",
        cost: Cost::Large,
        why: "Without TSO and GSO each packet passes the whole stack when it is sent, without GRO when \
              it is received, and without checksums in the device every byte is read once more. Some \
              is switched off on purpose, for packet captures and routers.",
        remedy: "Switch it on with `ethtool -K`; where that says `fixed`, the device or the definition of \
                 the virtual machine lacks it.",
        needs_root: true,
        reversible: true,
        reads: &["ethtool -k"],
        run: offloads_off,
    },
];

fn queues_below_max(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let queues = match cx
            .probe(nic, "channels", |probe| Some((probe.queues?, probe.queues_setting.clone())))
        {
            Ok(queues) => queues,
            Err(Unknown(why)) => {
                outcome.unknown(why);
                continue;
            }
        };
        let (queues, setting) = queues;
        let Some(max) = queues.max else {
            outcome.unknown(format!("{}: its driver does not tell the most queues", nic.name));
            continue;
        };
        let near = cx.topology().cpus_near(nic.node);
        let cpus = near.unwrap_or_else(|| cx.topology().cpus.online.clone());
        // Siblings of one core share its execution units, so a queue per core is enough.
        let cores = cx.topology().cpus.cores(&cpus).len().max(1);
        let wanted = max.min(cores as u32);
        let asked = format!("ethtool -l {}", nic.name);
        let value = format!("{} of {max} ({cores} cores near it)", queues.now);
        if queues.now < wanted {
            outcome.found(
                Finding::new(format!("{} queues are in use; {wanted} can be", queues.now))
                    .about(&nic.name)
                    .because(asked, value)
                    .set(&nic.name, &format!("channels.{setting}"), queues.now, wanted),
            );
        } else {
            outcome.saw(asked, value);
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

const MANY_CPUS: usize = 4;

fn single_queue(cx: &Context) -> Result<Outcome, Unknown> {
    let cpus = cx.topology().cpus.online.len();
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let path = format!("/sys/class/net/{}/queues", nic.name);
        let probe = cx.probes().nics.get(&nic.name);
        let max = probe.and_then(|probe| probe.queues?.max);
        match nic.rx_queues {
            0 => outcome.unknown(format!("{path} names no queues")),
            // `queues-below-max` covers NICs that could use more queues.
            1 if cpus >= MANY_CPUS && max.is_none_or(|max| max <= 1) => outcome.found(
                Finding::new(format!("one queue serves {cpus} CPUs"))
                    .about(&nic.name)
                    .because(path, "rx-0"),
            ),
            count => outcome.saw(path, format!("{count} receive queues, {cpus} CPUs")),
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

const SHORT_RING: u32 = 1024;

fn rings_small(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let ring = match cx.probe(nic, "rings", |probe| probe.rx_ring) {
            Ok(ring) => ring,
            Err(Unknown(why)) => {
                outcome.unknown(why);
                continue;
            }
        };
        let asked = format!("ethtool -g {}", nic.name);
        let value =
            format!("rx {} of {}", ring.now, ring.max.map_or("?".into(), |max| max.to_string()));
        let target = ring.max.unwrap_or(ring.now).min(SHORT_RING);
        if ring.now < target {
            outcome.found(
                Finding::new(format!("receive rings have {} descriptors", ring.now))
                    .about(&nic.name)
                    .because(asked, value)
                    .set(&nic.name, "rings.rx", ring.now, target),
            );
        } else {
            outcome.saw(asked, value);
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

fn counters(cx: &Context) -> Result<polyrail_host::NetDev, Unknown> {
    Ok(polyrail_host::NetDev::read(cx.root())?)
}

/// Calls `look` with each rail's counters. Rails without counters are unknown.
fn each_counted(
    cx: &Context,
    mut look: impl FnMut(&mut Outcome, &polyrail_host::Nic, &polyrail_host::NetDevCounters),
) -> Result<Outcome, Unknown> {
    let table = counters(cx)?;
    let mut outcome = Outcome::default();
    for nic in cx.links() {
        match table.interface(&nic.name) {
            Some(counters) => look(&mut outcome, nic, counters),
            None => outcome.unknown(format!("{}: /proc/net/dev has no such interface", nic.name)),
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

fn nic_drops(cx: &Context) -> Result<Outcome, Unknown> {
    each_counted(cx, |outcome, nic, row| {
        let dropped = row.rx_dropped.saturating_add(row.rx_fifo).saturating_add(row.tx_dropped);
        let packets = row.rx_packets.saturating_add(row.tx_packets).saturating_add(dropped);
        let value = format!(
            "drop {} + fifo {} of {} received; drop {} of {} sent",
            row.rx_dropped, row.rx_fifo, row.rx_packets, row.tx_dropped, row.tx_packets
        );
        if dropped > packets / 100_000 && dropped >= MIN_COUNT {
            let what = format!("{dropped} of {packets} packets were dropped");
            let mut finding = Finding::new(what)
                .about(&nic.name)
                .because("/proc/net/dev", value)
                .command(format!(
                    "ethtool -S {} | grep -iE 'drop|discard|no_buf' | grep -v ': 0$'",
                    nic.name
                ));
            let drops = cx.probes().nics.get(&nic.name).map(|probe| &probe.drops);
            for (name, count) in drops.into_iter().flatten().take(4) {
                finding = finding.because(format!("ethtool -S {}: {name}", nic.name), count);
            }
            outcome.found(finding);
        } else {
            outcome.saw("/proc/net/dev", format!("{}: {value}", nic.name));
        }
    })
}

/// Smallest count to report; ignores a handful of drops at boot.
const MIN_COUNT: u64 = 10;

fn nic_errors(cx: &Context) -> Result<Outcome, Unknown> {
    each_counted(cx, |outcome, nic, row| {
        let value = format!("{} errors of {} packets", row.rx_errors, row.rx_packets);
        if row.rx_errors > row.rx_packets / 1_000_000 && row.rx_errors >= MIN_COUNT {
            outcome.found(
                Finding::new(format!("{} received packets were damaged", row.rx_errors))
                    .about(&nic.name)
                    .because("/proc/net/dev", value)
                    .command(format!(
                        "ethtool -S {} | grep -iE 'err|crc' | grep -v ': 0$'",
                        nic.name
                    )),
            );
        } else {
            outcome.saw("/proc/net/dev", format!("{}: {value}", nic.name));
        }
    })
}

fn coalescing_off(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let coalesce = match cx.probe(nic, "coalesce", |probe| probe.coalesce) {
            Ok(coalesce) => coalesce,
            Err(Unknown(why)) => {
                outcome.unknown(why);
                continue;
            }
        };
        let asked = format!("ethtool -c {}", nic.name);
        let value = format!(
            "rx-usecs {}, adaptive-rx {}",
            coalesce.rx_usecs.map_or("unknown".into(), |usecs| usecs.to_string()),
            coalesce.adaptive_rx.map_or("unknown", |on| if on { "on" } else { "off" })
        );
        if nic.driver.as_deref() == Some("virtio_net") && coalesce.rx_usecs == Some(0) {
            // The driver reports 0 even if the device can't coalesce.
            outcome.unknown(format!("{}: virtio_net says 0 whether it can or not", nic.name));
            continue;
        }
        let finding = || Finding::new("interrupts are not held back at all").about(&nic.name);
        match (coalesce.rx_usecs, coalesce.adaptive_rx) {
            (_, Some(true)) | (Some(1..), _) => outcome.saw(asked, value),
            (Some(0), Some(false)) => outcome.found(finding().because(asked, value).set(
                &nic.name,
                "coalesce.adaptive-rx",
                0,
                1,
            )),
            (Some(0), None) => outcome.found(finding().because(asked, value).set(
                &nic.name,
                "coalesce.rx-usecs",
                0,
                8,
            )),
            // Devices that have only adaptive coalescing, or none, report no time.
            _ => outcome.unknown(format!("{}: its driver does not tell: {value}", nic.name)),
        }
    }
    Ok(no_rails_means_nothing(outcome))
}

fn offloads_off(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for nic in cx.links() {
        let on = match cx.probe(nic, "offloads", |probe| probe.offloads) {
            Ok(on) => on,
            Err(Unknown(why)) => {
                outcome.unknown(why);
                continue;
            }
        };
        // GRO is off by default on a veth: the NIC below has already merged the packets.
        let gro = on.gro || cx.rails().is_empty();
        // In the order of their dependencies.
        let all = [
            ("tx-checksumming", "tx", on.tx_checksum),
            ("rx-checksumming", "rx", on.rx_checksum),
            ("tcp-segmentation-offload", "tso", on.tso),
            ("generic-segmentation-offload", "gso", on.gso),
            ("generic-receive-offload", "gro", gro),
        ];
        let asked = format!("ethtool -k {}", nic.name);
        let off: Vec<_> = all.iter().filter(|(_, _, is_on)| !is_on).collect();
        if off.is_empty() {
            outcome.saw(
                asked,
                match on.gro {
                    true => "tx, rx, tso, gso and gro are on",
                    false => "tx, rx, tso and gso are on; gro is left to the NIC",
                },
            );
            continue;
        }
        let names: Vec<&str> = off.iter().map(|(name, ..)| *name).collect();
        let switches: Vec<String> = off.iter().map(|(_, short, _)| format!("{short} on")).collect();
        outcome.found(
            Finding::new(format!(
                "{} {} off",
                names.join(", "),
                match off.len() {
                    1 => "is",
                    _ => "are",
                }
            ))
            .about(&nic.name)
            .because(
                asked,
                names.iter().map(|name| format!("{name}: off")).collect::<Vec<_>>().join(", "),
            )
            .command(format!("ethtool -K {} {}", nic.name, switches.join(" "))),
        );
    }
    Ok(no_rails_means_nothing(outcome))
}
