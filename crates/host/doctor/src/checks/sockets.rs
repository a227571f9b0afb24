//! Settings of TCP, and its counters of losses.

use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "tcp-features-off",
        group: Group::Tcp,
        title: "TCP's basic features are switched off",
        cost: Cost::Breaks,
        why: "Without window scaling a connection carries 64 KiB per round trip; without SACK and \
              timestamps a loss costs much more. Old tuning guides switch them off; do not follow them.",
        remedy: "Switch tcp_window_scaling, tcp_sack and tcp_timestamps on again.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/ipv4/tcp_{window_scaling,sack,timestamps}"],
        run: tcp_features_off,
    },
    Check {
        id: "tcp-receive-buffer",
        group: Group::Tcp,
        title: "receive buffers can't grow to what the network needs",
        cost: Cost::Large,
        why: "A connection has at most its receive window on the way, about half of the buffer. The need \
              is twice the rate of a flow times the round trip (`--rtt`); a flow ends at 6 GB/s anyway.",
        remedy: "Raise the third number of net.ipv4.tcp_rmem.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/ipv4/tcp_rmem", "/sys/class/net/*/speed", "--rtt"],
        run: tcp_receive_buffer,
    },
    Check {
        id: "tcp-send-buffer",
        group: Group::Tcp,
        title: "send buffers can't grow to what the network needs",
        cost: Cost::Large,
        why: "What is sent stays in the send buffer until it is acknowledged, so that a small one empties \
              before the acknowledgement comes. The need is that of the receive buffer.",
        remedy: "Raise the third number of net.ipv4.tcp_wmem.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/ipv4/tcp_wmem", "/sys/class/net/*/speed", "--rtt"],
        run: tcp_send_buffer,
    },
    Check {
        id: "bbr-without-fq",
        group: Group::Tcp,
        title: "the congestion control is bbr, without the queue discipline fq",
        cost: Cost::Large,
        why: "BBR paces each connection; without fq it sets a timer per burst instead. On loopback that \
              cost a factor of 2 to 3 here (2.5 against 6.8 GB/s). Connections that choose for \
              themselves, as Polyrail's do with the setting `congestion`, are not touched.",
        remedy: "Inside a datacentre use cubic; else set net.core.default_qdisc to fq.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/ipv4/tcp_congestion_control", "/proc/sys/net/core/default_qdisc"],
        run: bbr_without_fq,
    },
    Check {
        id: "cubic-denied",
        group: Group::Tcp,
        title: "ordinary users may not choose cubic",
        cost: Cost::Small,
        why: "Flows within a host want a congestion control that does not pace. Polyrail takes cubic for \
              them, or reno where the user may not use cubic, which recovers slower from a loss; the \
              setting `congestion=cubic` is refused. Root may use all controls.",
        remedy: "Add cubic to net.ipv4.tcp_allowed_congestion_control.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/ipv4/tcp_{available,allowed}_congestion_control"],
        run: cubic_denied,
    },
    Check {
        id: "tcp-retransmits",
        group: Group::Tcp,
        title: "many segments are sent again",
        cost: Cost::Large,
        why: "Above one in a thousand, losses hold the rate down. Counted since boot over all \
              connections of this network namespace, those to the internet included.",
        remedy: "Find the drops: `nic-drops`, switch counters, MTU; `polyrail sample` shows which flow.",
        needs_root: false,
        reversible: true,
        reads: &["/proc/net/snmp"],
        run: tcp_retransmits,
    },
    Check {
        id: "listen-overflows",
        group: Group::Tcp,
        title: "connections were refused because a listener's queue was full",
        cost: Cost::Breaks,
        why: "When many peers start at once, connections above the listener's queue are dropped and come \
              a second later, or never. Counted since boot in this network namespace.",
        remedy: "Give the listener that is late a longer queue (its backlog, and net.core.somaxconn if that is less) \
                 and restart it.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/net/netstat", "/proc/sys/net/core/somaxconn"],
        run: listen_overflows,
    },
    Check {
        id: "tcp-memory-pressure",
        group: Group::Tcp,
        title: "TCP ran into its limit of memory",
        cost: Cost::Large,
        why: "Under pressure the kernel shrinks windows and drops what came out of order. The limit is \
              one for the whole host, in pages. Counted since boot.",
        remedy: "Raise net.ipv4.tcp_mem.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/net/netstat", "/proc/sys/net/ipv4/tcp_mem"],
        run: tcp_memory_pressure,
    },
    Check {
        id: "receive-queue-drops",
        group: Group::Tcp,
        title: "TCP drops what it received because readers are late",
        cost: Cost::Small,
        why: "Segments that no longer fit a socket's buffer or backlog are dropped and sent again: the \
              reading thread has too little CPU time, or the buffer is too small. Counted since boot.",
        remedy: "Give the receiving threads CPUs of their own; look at `tcp-receive-buffer`.",
        needs_root: false,
        reversible: true,
        reads: &["/proc/net/netstat", "/proc/net/snmp"],
        run: receive_queue_drops,
    },
    Check {
        id: "slow-start-after-idle",
        group: Group::Tcp,
        title: "connections start slowly again after each pause",
        cost: Cost::Small,
        why: "After an idle time of one retransmission timeout (200 ms or more) the congestion window \
              falls back to its start, so that the first round trips of each burst carry little.",
        remedy: "Set net.ipv4.tcp_slow_start_after_idle to 0.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/ipv4/tcp_slow_start_after_idle"],
        run: slow_start_after_idle,
    },
];

const IPV4: &str = "/proc/sys/net/ipv4";
const SNMP: &str = "/proc/net/snmp";
const NETSTAT: &str = "/proc/net/netstat";

fn tcp_features_off(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    for name in ["tcp_window_scaling", "tcp_sack", "tcp_timestamps"] {
        let path = format!("{IPV4}/{name}");
        match cx.number(&path) {
            Ok(0) => outcome
                .found(Finding::new(format!("{name} is off")).because(&path, 0).write(&path, 0, 1)),
            Ok(value) => outcome.saw(path, value),
            Err(Unknown(why)) => outcome.unknown(why),
        }
    }
    Ok(outcome)
}

/// Most bytes per second that one flow moves, whatever the link: one CPU copies no faster.
const FLOW_BYTES_PER_S: f64 = 6e9;

/// Returns the bytes that a buffer must hold, and the calculation as text.
fn need(cx: &Context) -> (u64, String) {
    let speeds = cx.rails().into_iter().filter_map(|nic| nic.speed_mbps);
    let line = speeds.max().map(|mbps| f64::from(mbps) * 125_000.0);
    let rate = line.unwrap_or(FLOW_BYTES_PER_S).min(FLOW_BYTES_PER_S);
    let rtt = cx.options().rtt;
    let bytes = (2.0 * rate * rtt.as_secs_f64()).ceil() as u64;
    let text = format!("2 × {:.2} GB/s × {} µs = {bytes} bytes", rate / 1e9, rtt.as_micros());
    (bytes, text)
}

fn buffer(cx: &Context, name: &str) -> Result<Outcome, Unknown> {
    let path = format!("{IPV4}/{name}");
    let [min, default, max] = cx.three(&path)?;
    let (need, how) = need(cx);
    let value = format!("{min} {default} {max}");
    let mut outcome = Outcome::default();
    if max < need {
        // Round up to a power of two, as people write such values.
        let target = need.next_power_of_two();
        outcome.found(
            Finding::new(format!("at most {max} bytes, needed are {need}"))
                .because(&path, &value)
                .because("needed", how)
                .write(&path, &value, format!("{min} {default} {target}")),
        );
    } else {
        outcome.saw(path, value);
        outcome.saw("needed", how);
    }
    Ok(outcome)
}

fn tcp_receive_buffer(cx: &Context) -> Result<Outcome, Unknown> {
    buffer(cx, "tcp_rmem")
}

fn tcp_send_buffer(cx: &Context) -> Result<Outcome, Unknown> {
    buffer(cx, "tcp_wmem")
}

fn bbr_without_fq(cx: &Context) -> Result<Outcome, Unknown> {
    let path = format!("{IPV4}/tcp_congestion_control");
    let congestion = cx.text(&path)?;
    let mut outcome = Outcome::default();
    if !congestion.starts_with("bbr") {
        outcome.saw(path, congestion);
        return Ok(outcome);
    }
    let qdisc_path = "/proc/sys/net/core/default_qdisc";
    let qdisc = cx.text(qdisc_path)?;
    if qdisc == "fq" {
        outcome.saw(path, congestion);
        outcome.saw(qdisc_path, qdisc);
        return Ok(outcome);
    }
    outcome.found(
        Finding::new(format!("{congestion} with {qdisc} paces by timers"))
            .because(&path, &congestion)
            .because(qdisc_path, qdisc)
            .write(&path, &congestion, "cubic"),
    );
    Ok(outcome)
}

fn cubic_denied(cx: &Context) -> Result<Outcome, Unknown> {
    let available_path = format!("{IPV4}/tcp_available_congestion_control");
    let allowed_path = format!("{IPV4}/tcp_allowed_congestion_control");
    let (available, allowed) = (cx.text(&available_path)?, cx.text(&allowed_path)?);
    let has = |list: &str, wanted: &str| list.split_whitespace().any(|name| name == wanted);
    // Every kernel has reno.
    if !has(&available, "reno") {
        return Err(Unknown(format!("{available_path} has `{available}`, without reno")));
    }
    if !has(&available, "cubic") {
        return Ok(Outcome::not_applicable(format!("{available_path} is without cubic")));
    }
    let mut outcome = Outcome::default();
    if has(&allowed, "cubic") {
        outcome.saw(available_path, available);
        outcome.saw(allowed_path, allowed);
        return Ok(outcome);
    }
    outcome.found(
        Finding::new(format!("only root may choose cubic, other users {allowed}"))
            .because(available_path, available)
            .because(&allowed_path, &allowed)
            .write(&allowed_path, &allowed, format!("{allowed} cubic")),
    );
    Ok(outcome)
}

fn tcp_retransmits(cx: &Context) -> Result<Outcome, Unknown> {
    let again = cx.protocol(SNMP, "Tcp", "RetransSegs")?;
    let sent = cx.protocol(SNMP, "Tcp", "OutSegs")?;
    let value = format!("{again} of {sent} segments");
    let mut outcome = Outcome::default();
    if again > sent / 1_000 && again >= 1_000 {
        outcome.found(
            Finding::new(format!("{again} of {sent} segments were sent again"))
                .because("/proc/net/snmp: Tcp RetransSegs, OutSegs", value),
        );
    } else {
        outcome.saw("/proc/net/snmp: Tcp RetransSegs, OutSegs", value);
    }
    Ok(outcome)
}

fn listen_overflows(cx: &Context) -> Result<Outcome, Unknown> {
    let overflows = cx.protocol(NETSTAT, "TcpExt", "ListenOverflows")?;
    let mut outcome = Outcome::default();
    let evidence = "/proc/net/netstat: TcpExt ListenOverflows";
    if overflows == 0 {
        outcome.saw(evidence, 0);
        return Ok(outcome);
    }
    let path = "/proc/sys/net/core/somaxconn";
    let queue = cx.number(path)?;
    let mut finding = Finding::new(format!("{overflows} connections found a full queue"))
        .because(evidence, overflows)
        .because(path, queue);
    if queue < 4096 {
        finding = finding.write(path, queue, 4096);
    } else {
        finding = finding.command("ss -ltn   # Recv-Q at Send-Q shows the listener that is late");
    }
    outcome.found(finding);
    Ok(outcome)
}

fn tcp_memory_pressure(cx: &Context) -> Result<Outcome, Unknown> {
    let pressures = cx.protocol(NETSTAT, "TcpExt", "TCPMemoryPressures")?;
    let path = format!("{IPV4}/tcp_mem");
    let [low, pressure, high] = cx.three(&path)?;
    let value = format!("{low} {pressure} {high}");
    let mut outcome = Outcome::default();
    outcome.saw("/proc/net/netstat: TcpExt TCPMemoryPressures", pressures);
    if pressures > 0 {
        let more = [low, pressure, high].map(|pages| pages.saturating_mul(2));
        outcome.found(
            Finding::new(format!("TCP was under memory pressure {pressures} times"))
                .because("/proc/net/netstat: TcpExt TCPMemoryPressures", pressures)
                .because(&path, &value)
                .write(&path, &value, more.map(|pages| pages.to_string()).join(" ")),
        );
    }
    Ok(outcome)
}

fn receive_queue_drops(cx: &Context) -> Result<Outcome, Unknown> {
    let names = ["TCPRcvQDrop", "TCPBacklogDrop", "RcvPruned", "OfoPruned"];
    let mut outcome = Outcome::default();
    let mut dropped: u64 = 0;
    let mut values = Vec::new();
    for name in names {
        match cx.protocol(NETSTAT, "TcpExt", name) {
            Ok(count) => {
                dropped = dropped.saturating_add(count);
                values.push(format!("{name} {count}"));
            }
            // Kernels before 5.13 don't count drops at the receive queue.
            Err(Unknown(why)) => outcome.unknown(why),
        }
    }
    let received = cx.protocol(SNMP, "Tcp", "InSegs")?;
    let evidence = "/proc/net/netstat: TcpExt";
    if dropped > received / 100_000 && dropped >= 10 {
        outcome.found(
            Finding::new(format!("{dropped} of {received} received segments were dropped"))
                .because(evidence, values.join(", ")),
        );
    } else if !values.is_empty() {
        outcome.saw(evidence, values.join(", "));
    }
    Ok(outcome)
}

fn slow_start_after_idle(cx: &Context) -> Result<Outcome, Unknown> {
    let path = format!("{IPV4}/tcp_slow_start_after_idle");
    let value = cx.number(&path)?;
    let mut outcome = Outcome::default();
    if value == 0 {
        outcome.saw(path, 0);
    } else {
        outcome.found(
            Finding::new("each pause sends the window back to its start")
                .because(&path, value)
                .write(&path, value, 0),
        );
    }
    Ok(outcome)
}
