//! The kernel's receive path, behind the NIC.

use polyrail_host::Softnet;

use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "backlog-drops",
        group: Group::Queues,
        title: "CPUs drop packets because their backlog is full",
        cost: Cost::Large,
        why: "Packets of loopback, veth and RPS wait in a backlog of net.core.netdev_max_backlog, and \
              what comes on top is dropped. Counted since boot; below one in 100,000 the check \
              stays silent.",
        remedy: "Raise net.core.netdev_max_backlog.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/net/softnet_stat", "/proc/sys/net/core/netdev_max_backlog"],
        run: backlog_drops,
    },
    Check {
        id: "receive-budget",
        group: Group::Queues,
        title: "the receive path runs out of its budget",
        cost: Cost::Small,
        why: "A CPU that leaves packets after its budget of packets or time hands them to a thread that \
              waits for its turn. Counted since boot; below one in 10,000 packets the check stays \
              silent.",
        remedy: "Raise net.core.netdev_budget, or spread the interrupts over more CPUs.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/net/softnet_stat", "/proc/sys/net/core/netdev_budget"],
        run: receive_budget,
    },
    Check {
        id: "conntrack-full",
        group: Group::Tcp,
        title: "the table of tracked connections is nearly full",
        cost: Cost::Breaks,
        why: "When it is full the kernel drops packets of new connections, which looks like an \
              unreachable peer. It is shared by everything on the host.",
        remedy: "Raise net.netfilter.nf_conntrack_max, or keep rails out of connection tracking.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/netfilter/nf_conntrack_{count,max}"],
        run: conntrack_full,
    },
];

const SOFTNET: &str = "/proc/net/softnet_stat";

fn backlog_drops(cx: &Context) -> Result<Outcome, Unknown> {
    let rows = Softnet::read(cx.root())?.rows;
    let sum = |count: fn(&polyrail_host::SoftnetCpu) -> u64| rows.iter().map(count).sum::<u64>();
    let (dropped, processed) = (sum(|row| row.dropped), sum(|row| row.processed));
    let value = format!("{dropped} of {processed} packets dropped");
    let mut outcome = Outcome::default();
    if dropped > processed / 100_000 && dropped >= 10 {
        let path = "/proc/sys/net/core/netdev_max_backlog";
        let backlog = cx.number(path)?;
        outcome.found(
            Finding::new(format!("{dropped} packets were dropped at a full backlog"))
                .because(SOFTNET, value)
                .because(path, backlog)
                .write(path, backlog, backlog.saturating_mul(4).max(4096)),
        );
    } else {
        outcome.saw(SOFTNET, value);
    }
    Ok(outcome)
}

fn receive_budget(cx: &Context) -> Result<Outcome, Unknown> {
    let rows = Softnet::read(cx.root())?.rows;
    let sum = |count: fn(&polyrail_host::SoftnetCpu) -> u64| rows.iter().map(count).sum::<u64>();
    let (squeezed, processed) = (sum(|row| row.time_squeeze), sum(|row| row.processed));
    let value = format!("{squeezed} times, {processed} packets");
    let mut outcome = Outcome::default();
    if squeezed > processed / 10_000 && squeezed >= 100 {
        let path = "/proc/sys/net/core/netdev_budget";
        let budget = cx.number(path)?;
        outcome.found(
            Finding::new(format!("the budget of {budget} packets ran out {squeezed} times"))
                .because(SOFTNET, value)
                .because(path, budget)
                .write(path, budget, budget.saturating_mul(2)),
        );
    } else {
        outcome.saw(SOFTNET, value);
    }
    Ok(outcome)
}

fn conntrack_full(cx: &Context) -> Result<Outcome, Unknown> {
    const COUNT: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
    const MAX: &str = "/proc/sys/net/netfilter/nf_conntrack_max";
    if !cx.root().exists("/proc/sys/net") {
        return Err(Unknown("/proc/sys/net is not there".into()));
    }
    if cx.optional(COUNT)?.is_none() {
        return Ok(Outcome::not_applicable("connections are not tracked"));
    }
    let (count, max) = (cx.number(COUNT)?, cx.number(MAX)?);
    let mut outcome = Outcome::default();
    if count > max / 10 * 8 {
        outcome.found(
            Finding::new(format!("{count} of {max} entries are in use"))
                .because(COUNT, count)
                .because(MAX, max)
                .write(MAX, max, max.saturating_mul(4)),
        );
    } else {
        outcome.saw(COUNT, count);
        outcome.saw(MAX, max);
    }
    Ok(outcome)
}
