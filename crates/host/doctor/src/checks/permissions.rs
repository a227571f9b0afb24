//! Rights of this process.

use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::{Context, OSRELEASE};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "bind-device-denied",
        group: Group::Permissions,
        title: "sockets can't be bound to a NIC",
        cost: Cost::Breaks,
        why: "Before Linux 5.7 binding a socket to an interface needs CAP_NET_RAW; without it rails on \
              one subnet can't be told apart by their device.",
        remedy: "Give the container or unit CAP_NET_RAW, or use Linux 5.7 or later.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/self/status", "/proc/sys/kernel/osrelease"],
        run: bind_device_denied,
    },
    Check {
        id: "io-uring-blocked",
        group: Group::Permissions,
        title: "io_uring is switched off",
        cost: Cost::Small,
        why: "No program can then use zero-copy through io_uring. Many clouds switch it off for \
              its history of security holes, and container runtimes filter it.",
        remedy: "Set kernel.io_uring_disabled to 0 where your security policy allows it.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/kernel/io_uring_disabled", "/proc/self/status"],
        run: io_uring_blocked,
    },
    Check {
        id: "perf-blocked",
        group: Group::Permissions,
        title: "programs may not count cycles and cache misses",
        cost: Cost::Small,
        why: "Profilers then see nothing, not even of their own threads. It costs no speed, only insight; \
              root may count anyway.",
        remedy: "Set kernel.perf_event_paranoid to 2 or less.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/kernel/perf_event_paranoid"],
        run: perf_blocked,
    },
];

/// `CAP_NET_RAW`.
const NET_RAW: u64 = 1 << 13;

fn bind_device_denied(cx: &Context) -> Result<Outcome, Unknown> {
    let kernel = cx.kernel()?;
    let release = cx.text(OSRELEASE)?;
    let mut outcome = Outcome::default();
    outcome.saw(OSRELEASE, &release);
    if kernel >= (5, 7) {
        return Ok(outcome);
    }
    let text = cx.row("/proc/self/status", "CapEff")?;
    let capabilities = u64::from_str_radix(&text, 16)
        .map_err(|_| Unknown(format!("/proc/self/status has `{text}` for CapEff")))?;
    if capabilities & NET_RAW == 0 {
        outcome.found(
            Finding::new("this kernel wants CAP_NET_RAW for it")
                .because(OSRELEASE, release)
                .because("/proc/self/status: CapEff", text),
        );
    }
    Ok(outcome)
}

fn io_uring_blocked(cx: &Context) -> Result<Outcome, Unknown> {
    let path = "/proc/sys/kernel/io_uring_disabled";
    let mut outcome = Outcome::default();
    match cx.optional(path)?.as_deref() {
        // 1 allows only members of a group, 2 no user.
        Some(value @ ("1" | "2")) => {
            outcome.found(
                Finding::new(if value == "2" { "nobody may use it" } else { "few may use it" })
                    .because(path, value)
                    .write(path, value, 0),
            );
            return Ok(outcome);
        }
        Some(value) => outcome.saw(path, value),
        None if cx.kernel()? >= (6, 6) => {
            return Err(Unknown(format!(
                "{path} is not there: the kernel may be without io_uring"
            )));
        }
        None => outcome.saw(OSRELEASE, "before 6.6, without the switch"),
    }
    // A system call filter does not show which calls it stops.
    match cx.row("/proc/self/status", "Seccomp")?.as_str() {
        "0" => outcome.saw("/proc/self/status: Seccomp", 0),
        mode => {
            outcome.seen.clear();
            outcome.unknown(format!("a filter of system calls (Seccomp {mode}) may stop it"));
        }
    }
    Ok(outcome)
}

fn perf_blocked(cx: &Context) -> Result<Outcome, Unknown> {
    let path = "/proc/sys/kernel/perf_event_paranoid";
    let text = cx.text(path)?;
    let level: i64 = text.parse().map_err(|_| Unknown(format!("{path} has `{text}`")))?;
    let mut outcome = Outcome::default();
    if level > 2 {
        outcome.found(
            Finding::new("counters are for root only").because(path, level).write(path, level, 2),
        );
    } else {
        outcome.saw(path, level);
    }
    Ok(outcome)
}
