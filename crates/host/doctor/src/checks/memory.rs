//! Pages, and limits on pages and files.

use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "hugepages-off",
        group: Group::Memory,
        title: "no huge pages can be had",
        cost: Cost::Large,
        why: "Copies through 4 KiB pages miss the TLB all the time. The bench asks for transparent huge \
              pages; where they are set to `never` and none are reserved, no program gets any.",
        remedy: "Set transparent_hugepage/enabled to madvise.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/kernel/mm/transparent_hugepage/enabled", "/proc/meminfo"],
        run: hugepages_off,
    },
    Check {
        id: "hugepages-lopsided",
        group: Group::Memory,
        title: "reserved huge pages are not on every node with a NIC",
        cost: Cost::Small,
        why: "A pool that lies on one node gives memory far from the NICs of the others. Only for \
              programs that use reserved huge pages; transparent ones come from the right node.",
        remedy: "Reserve pages per node: /sys/devices/system/node/nodeN/hugepages.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/devices/system/node/node*/hugepages/*/nr_hugepages"],
        run: hugepages_lopsided,
    },
    Check {
        id: "memlock-small",
        group: Group::Memory,
        title: "little memory may be locked",
        cost: Cost::Small,
        why: "Zero-copy sends, io_uring's fixed buffers and memory for GPUs are locked, and requests above \
              the limit fail or fall back to copies. The limit does not bind root.",
        remedy: "Raise the limit: `LimitMEMLOCK=infinity` in the unit, `--ulimit memlock=-1` for Docker.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/self/limits", "/proc/self/status"],
        run: memlock_small,
    },
    Check {
        id: "open-files-limit",
        group: Group::Memory,
        title: "few files may be open at once",
        cost: Cost::Breaks,
        why: "Each flow is an open file at either end: 64 peers, 8 rails and 4 flows are 4096 with two \
              directions. Above the limit connections fail.",
        remedy: "Raise the limit: `ulimit -n`, up to what `ulimit -Hn` says; above it only root can: \
                 `LimitNOFILE=65536` in the unit, `--ulimit nofile=65536` for Docker.",
        needs_root: false,
        reversible: true,
        reads: &["/proc/self/limits"],
        run: open_files_limit,
    },
    Check {
        id: "optmem-small",
        group: Group::Zerocopy,
        title: "zero-copy sends have little room for their bookkeeping",
        cost: Cost::Small,
        why: "Each MSG_ZEROCOPY send holds a record until its completion is read; above the limit sends \
              fail with ENOBUFS and fall back to copies. Kernels before 6.7 had 20 KiB.",
        remedy: "Set net.core.optmem_max to 131072 or more.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/net/core/optmem_max"],
        run: optmem_small,
    },
];

fn hugepages_off(cx: &Context) -> Result<Outcome, Unknown> {
    let path = "/sys/kernel/mm/transparent_hugepage/enabled";
    let text = cx.text(path)?;
    let mut outcome = Outcome::default();
    if !text.contains("[never]") {
        outcome.saw(path, text);
        return Ok(outcome);
    }
    let reserved = cx.row("/proc/meminfo", "HugePages_Total")?;
    if reserved != "0" {
        outcome.saw(path, text);
        outcome.saw("/proc/meminfo: HugePages_Total", reserved);
        return Ok(outcome);
    }
    outcome.found(
        Finding::new("transparent huge pages are off, and none are reserved")
            .because(path, &text)
            .because("/proc/meminfo: HugePages_Total", reserved)
            .write(path, "never", "madvise"),
    );
    Ok(outcome)
}

fn hugepages_lopsided(cx: &Context) -> Result<Outcome, Unknown> {
    let topology = cx.topology();
    if topology.nodes_with_cpus() <= 1 {
        return Ok(Outcome::not_applicable("the machine has one node"));
    }
    let mut outcome = Outcome::default();
    let rails = cx.rails();
    for size in ["hugepages-2048kB", "hugepages-1048576kB"] {
        let path = |node: u32| {
            format!("/sys/devices/system/node/node{node}/hugepages/{size}/nr_hugepages")
        };
        let mut counts = Vec::new();
        for node in &topology.nodes {
            if let Some(count) = cx.root().read_parsed::<u64>(path(node.id))? {
                counts.push((node.id, count));
            }
        }
        let total: u64 = counts.iter().map(|(_, count)| count).sum();
        for (node, count) in &counts {
            let has_rail = rails.iter().any(|nic| nic.node == Some(*node));
            if total > 0 && *count == 0 && has_rail {
                outcome.found(
                    Finding::new(format!("node {node} has a NIC and none of {total} pages"))
                        .about(format!("node {node}"))
                        .because(path(*node), count),
                );
            } else {
                outcome.saw(path(*node), count);
            }
        }
    }
    if outcome.seen.is_empty() && outcome.findings.is_empty() {
        return Err(Unknown("the nodes have no files of huge pages".into()));
    }
    Ok(outcome)
}

const LIMITS: &str = "/proc/self/limits";

/// Returns the soft limit in a row of `/proc/self/limits`; `None` means unlimited.
fn limit(cx: &Context, name: &str) -> Result<Option<u64>, Unknown> {
    let text = cx.text(LIMITS)?;
    let row = text.lines().find_map(|line| line.strip_prefix(name));
    let soft = row.and_then(|row| row.split_whitespace().next());
    match soft {
        Some("unlimited") => Ok(None),
        Some(number) => match number.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(Unknown(format!("{LIMITS} has `{number}` for {name}"))),
        },
        None => Err(Unknown(format!("{LIMITS} has no row {name}"))),
    }
}

const MEMLOCK_BYTES: u64 = 64 << 20;
/// `CAP_IPC_LOCK`.
const IPC_LOCK: u64 = 1 << 14;

fn memlock_small(cx: &Context) -> Result<Outcome, Unknown> {
    let evidence = format!("{LIMITS}: Max locked memory");
    let limit = limit(cx, "Max locked memory")?;
    let mut outcome = Outcome::default();
    match limit {
        None => outcome.saw(evidence, "unlimited"),
        Some(bytes) if bytes >= MEMLOCK_BYTES => outcome.saw(evidence, bytes),
        Some(bytes) => {
            let text = cx.row("/proc/self/status", "CapEff")?;
            let capabilities = u64::from_str_radix(&text, 16)
                .map_err(|_| Unknown(format!("/proc/self/status has `{text}` for CapEff")))?;
            if capabilities & IPC_LOCK != 0 {
                // MSG_ZEROCOPY charges its pages to the limit only without this capability.
                outcome.saw(evidence, format!("{bytes}, which CAP_IPC_LOCK lifts"));
                return Ok(outcome);
            }
            outcome.found(
                Finding::new(format!("{bytes} bytes may be locked"))
                    .because(evidence, bytes)
                    .command("ulimit -l unlimited   # in the shell or unit that starts the job"),
            );
        }
    }
    Ok(outcome)
}

const FILES: u64 = 4096;

fn open_files_limit(cx: &Context) -> Result<Outcome, Unknown> {
    let evidence = format!("{LIMITS}: Max open files");
    let mut outcome = Outcome::default();
    match limit(cx, "Max open files")? {
        None => outcome.saw(evidence, "unlimited"),
        Some(files) if files >= FILES => outcome.saw(evidence, files),
        Some(files) => outcome.found(
            Finding::new(format!("{files} files may be open"))
                .because(evidence, files)
                .command("ulimit -n 65536   # in the shell or unit that starts the job"),
        ),
    }
    Ok(outcome)
}

const OPTMEM_BYTES: u64 = 128 << 10;

fn optmem_small(cx: &Context) -> Result<Outcome, Unknown> {
    let path = "/proc/sys/net/core/optmem_max";
    let bytes = cx.number(path)?;
    let mut outcome = Outcome::default();
    if bytes < OPTMEM_BYTES {
        outcome.found(
            Finding::new(format!("{bytes} bytes per socket")).because(path, bytes).write(
                path,
                bytes,
                OPTMEM_BYTES,
            ),
        );
    } else {
        outcome.saw(path, bytes);
    }
    Ok(outcome)
}
