//! Speed of the CPUs, and the share of their time that this host gets.

use polyrail_host::{CpuSet, Stat};

use crate::check::{Check, Cost, Finding, Group, Outcome, Unknown};
use crate::context::Context;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "cpu-governor",
        group: Group::Cpu,
        title: "CPUs run below their frequency",
        cost: Cost::Large,
        why: "Copies go at the CPU's frequency, and short bursts of work never raise it under a governor \
              that saves power. With intel_pstate and amd-pstate `powersave` is no such governor; there \
              the energy preference counts. Virtual machines mostly have no say.",
        remedy: "Set the governor to performance on all CPUs.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/devices/system/cpu/cpu*/cpufreq/*"],
        run: cpu_governor,
    },
    Check {
        id: "cpu-steal",
        group: Group::Cpu,
        title: "the hypervisor takes CPU time away",
        cost: Cost::Large,
        why: "A thread whose CPU is taken stops in the middle of a copy, and measurements mean little. \
              Counted since boot; below one in a hundred the check stays silent.",
        remedy: "Use a machine type whose CPUs are not shared.",
        needs_root: false,
        reversible: true,
        reads: &["/proc/stat"],
        run: cpu_steal,
    },
    Check {
        id: "cgroup-throttled",
        group: Group::Cpu,
        title: "a quota stops this process's threads",
        cost: Cost::Large,
        why: "With a CPU quota all threads stop until the next period once it is used up, up to 100 ms at \
              a time. Binding threads does not help against it. Counted since the group was made.",
        remedy: "Take the CPU limit out of the container (requests may stay), or raise it.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/self/cgroup", "/sys/fs/cgroup/**/cpu.max", "/sys/fs/cgroup/**/cpu.stat"],
        run: cgroup_throttled,
    },
    Check {
        id: "cpuset-off-node",
        group: Group::Cpu,
        title: "this process may not use CPUs near a NIC",
        cost: Cost::Large,
        why: "Threads that serve a NIC of another node cross between sockets for each packet. A cpuset or \
              `taskset` that keeps a job to one node leaves it the NICs of that node only.",
        remedy: "Give the job CPUs of every node that has a rail, or fewer rails (`rails`).",
        needs_root: false,
        reversible: true,
        reads: &["/proc/self/status", "/sys/devices/system/node/*/cpulist"],
        run: cpuset_off_node,
    },
    Check {
        id: "clock-slow",
        group: Group::Cpu,
        title: "reading the clock is slow",
        cost: Cost::Large,
        why: "TCP and the engine read the clock for every burst. With hpet or acpi_pm each read goes to a \
              device and takes about a microsecond.",
        remedy: "Boot with tsc=reliable if `dmesg` says why the kernel gave it up, or fix the \
        firmware.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/devices/system/clocksource/clocksource0/current_clocksource"],
        run: clock_slow,
    },
    Check {
        id: "cpu-deep-idle",
        group: Group::Cpu,
        title: "CPUs may sleep deeply",
        cost: Cost::Small,
        why: "A CPU that needs more than 50 µs to wake up adds that to the latency of a quiet connection. \
              Throughput hardly feels it. Virtual machines mostly have no say.",
        remedy: "Disable the deep states (`cpupower idle-set -D 50`), or hold /dev/cpu_dma_latency.",
        needs_root: true,
        reversible: true,
        reads: &["/sys/devices/system/cpu/cpu*/cpuidle/state*/{name,latency,disable}"],
        run: cpu_deep_idle,
    },
    Check {
        id: "numa-balancing",
        group: Group::Cpu,
        title: "the kernel moves memory between nodes by itself",
        cost: Cost::Small,
        why: "To see who uses which page it takes pages away from time to time, and each is a fault in \
              the middle of a copy. Programs that place memory themselves gain nothing from it.",
        remedy: "Set kernel.numa_balancing to 0.",
        needs_root: true,
        reversible: true,
        reads: &["/proc/sys/kernel/numa_balancing"],
        run: numa_balancing,
    },
];

const CPU: &str = "/sys/devices/system/cpu";

fn cpu_governor(cx: &Context) -> Result<Outcome, Unknown> {
    let mut slow: Vec<(u32, String, String)> = Vec::new();
    let (mut checked, mut why) = (0, None);
    for cpu in cx.topology().cpus.online.iter() {
        let folder = format!("{CPU}/cpu{cpu}/cpufreq");
        let Some(governor) = cx.optional(&format!("{folder}/scaling_governor"))? else { continue };
        checked += 1;
        let driver = cx.optional(&format!("{folder}/scaling_driver"))?.unwrap_or_default();
        let preference = cx.optional(&format!("{folder}/energy_performance_preference"))?;
        // Under drivers that leave the frequency to the hardware, `powersave` does not mean slow: the energy preference
        // decides.
        let in_hardware =
            driver.starts_with("intel_pstate") || driver.starts_with("amd-pstate-epp");
        let is_fast = match governor.as_str() {
            "performance" => true,
            "powersave" if in_hardware => {
                preference.as_deref().is_some_and(|text| text.contains("performance"))
            }
            _ => false,
        };
        if !is_fast {
            why.get_or_insert_with(|| match &preference {
                Some(text) => format!("{governor} by {driver}, preference {text}"),
                None => format!("{governor} by {driver}"),
            });
            slow.push((cpu, format!("{folder}/scaling_governor"), governor));
        }
    }
    if checked == 0 {
        // Without cpufreq the hypervisor or firmware decides, and does not report the frequency.
        return Err(Unknown(
            "the CPUs have no cpufreq folder: their frequency can't be read".into(),
        ));
    }
    let mut outcome = Outcome::default();
    if slow.is_empty() {
        outcome.saw(
            format!("{CPU}/cpu*/cpufreq/scaling_governor"),
            format!("{checked} CPUs are at performance"),
        );
        return Ok(outcome);
    }
    let cpus: CpuSet = slow.iter().map(|(cpu, _, _)| *cpu).collect();
    let mut finding = Finding::new(format!("CPUs {cpus} save power"))
        .because(&slow[0].1, why.unwrap_or_default())
        .command("cpupower frequency-set -g performance");
    for (_, path, governor) in slow {
        let target = polyrail_tune::Target::File { path };
        let to = "performance".to_owned();
        finding.changes.push(crate::check::Change { target, from: Some(governor), to });
    }
    outcome.found(finding);
    Ok(outcome)
}

fn cpu_steal(cx: &Context) -> Result<Outcome, Unknown> {
    let stat = Stat::read(cx.root())?;
    let (steal, all) = (stat.all.steal, stat.all.total());
    if all == 0 {
        return Err(Unknown("/proc/stat counts no time".into()));
    }
    // The hypervisor can't steal from idle CPUs, so count only the time in which CPUs wanted to run.
    let busy = all - stat.all.idle.min(all) - stat.all.iowait.min(all - stat.all.idle.min(all));
    let percent = 100.0 * steal as f64 / busy.max(1) as f64;
    let value = format!("steal {steal} of {busy} busy ticks ({percent:.2} %)");
    let mut outcome = Outcome::default();
    if percent > 1.0 && steal >= 100 {
        outcome.found(
            Finding::new(format!("{percent:.1} % of the time that CPUs wanted to run was taken"))
                .because("/proc/stat", value),
        );
    } else {
        outcome.saw("/proc/stat", value);
    }
    Ok(outcome)
}

/// Returns the cgroup v2 folders of this process's group and of its ancestors.
fn cgroup_folders(cx: &Context) -> Result<Vec<String>, Unknown> {
    let text = cx.text("/proc/self/cgroup")?;
    let own = text.lines().find_map(|line| line.strip_prefix("0::"));
    let own = own.ok_or_else(|| Unknown("/proc/self/cgroup has no group of version 2".into()))?;
    let bases = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let base =
        bases.into_iter().find(|base| cx.root().exists(format!("{base}/cgroup.controllers")));
    let base = base.ok_or_else(|| Unknown("no cgroups of version 2 are mounted".into()))?;
    let mut folders = Vec::new();
    let mut group = own.trim_end_matches('/');
    while !group.is_empty() {
        folders.push(format!("{base}{group}"));
        group = group.rsplit_once('/').map_or("", |(parent, _)| parent);
    }
    // In a container with its own cgroup namespace the base is the container's group.
    folders.push(base.into());
    Ok(folders)
}

fn cgroup_throttled(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    let mut known = false;
    for folder in cgroup_folders(cx)? {
        let (max_path, stat_path) = (format!("{folder}/cpu.max"), format!("{folder}/cpu.stat"));
        let Some(max) = cx.optional(&max_path)? else { continue };
        known = true;
        let row = |name: &str| -> Result<u64, Unknown> {
            let text = cx.optional(&stat_path)?.unwrap_or_default();
            let mut rows = text.lines().filter_map(|line| line.split_once(' '));
            let value = rows.find(|(key, _)| *key == name).map(|(_, value)| value.parse());
            match value {
                Some(Ok(value)) => Ok(value),
                _ => Err(Unknown(format!("{stat_path} has no {name}"))),
            }
        };
        if max.starts_with("max") {
            outcome.saw(max_path, max);
            continue;
        }
        let (throttled, periods) = (row("nr_throttled")?, row("nr_periods")?);
        let value = format!("nr_throttled {throttled} of nr_periods {periods}");
        if throttled > periods / 100 && throttled > 0 {
            outcome.found(
                Finding::new(format!(
                    "the quota `{max}` stopped the group in {throttled} of {periods} periods"
                ))
                .because(&max_path, &max)
                .because(stat_path, value)
                .command(format!("echo max > {max_path}   # where no orchestrator puts it back")),
            );
        } else {
            outcome.saw(max_path, max);
            outcome.saw(stat_path, value);
        }
    }
    if !known {
        // The root group of a host has no quota and no file for a quota.
        let is_root = cx.text("/proc/self/cgroup")?.lines().any(|line| line == "0::/");
        if !is_root {
            return Err(Unknown("the group of this process has no CPU controller".into()));
        }
        let is_first = cx.optional("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")?;
        match is_first {
            Some(quota) if quota == "-1" => {
                outcome.saw("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", quota)
            }
            Some(_) => return Err(Unknown("cgroups of version 1 with a quota".into())),
            None => outcome.saw("/proc/self/cgroup", "0::/, which has no quota"),
        }
    }
    Ok(outcome)
}

fn cpuset_off_node(cx: &Context) -> Result<Outcome, Unknown> {
    let topology = cx.topology();
    if topology.nodes_with_cpus() <= 1 {
        return Ok(Outcome::not_applicable("the machine has one node"));
    }
    let path = "/proc/self/status";
    let text = cx.row(path, "Cpus_allowed_list")?;
    let allowed = CpuSet::parse_list(&text).map_err(|error| Unknown(format!("{path}: {error}")))?;
    let mut outcome = Outcome::default();
    for nic in cx.rails() {
        let near = nic.node.and_then(|node| topology.cpus_near(Some(node)));
        let Some((node, near)) = nic.node.zip(near) else {
            outcome.unknown(format!("{}: its node is not known", nic.name));
            continue;
        };
        if allowed.intersects(&near) {
            outcome.saw(path, format!("{}: {}", nic.name, allowed.intersection(&near)));
        } else {
            outcome.found(
                Finding::new(format!("none of the CPUs of node {node} ({near}) may be used"))
                    .about(&nic.name)
                    .because(format!("{path}: Cpus_allowed_list"), &text),
            );
        }
    }
    Ok(super::topology::no_rails_means_nothing(outcome))
}

fn clock_slow(cx: &Context) -> Result<Outcome, Unknown> {
    let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let clock = cx.text(path)?;
    let mut outcome = Outcome::default();
    if ["hpet", "acpi_pm", "jiffies", "pit", "refined-jiffies"].contains(&clock.as_str()) {
        outcome.found(
            Finding::new(format!("the clock is {clock}"))
                .because(path, &clock)
                .command("dmesg | grep -iE 'tsc|clocksource'"),
        );
    } else {
        outcome.saw(path, clock);
    }
    Ok(outcome)
}

const DEEP_US: u64 = 50;

fn cpu_deep_idle(cx: &Context) -> Result<Outcome, Unknown> {
    let mut outcome = Outcome::default();
    // All CPUs have the same states, but differ in which of them are disabled.
    let mut deep = CpuSet::new();
    let mut example: Option<Finding> = None;
    let mut changes = Vec::new();
    for cpu in cx.topology().cpus.online.iter() {
        let folder = format!("{CPU}/cpu{cpu}/cpuidle");
        for state in cx.root().list_optional(&folder)? {
            let state = format!("{folder}/{state}");
            let Some(latency) = cx.root().read_parsed::<u64>(format!("{state}/latency"))? else {
                continue;
            };
            let disabled = cx.root().read_parsed::<u64>(format!("{state}/disable"))?.unwrap_or(0);
            let name = cx.optional(&format!("{state}/name"))?.unwrap_or_default();
            if latency <= DEEP_US || disabled != 0 {
                outcome.seen.push(crate::check::Evidence::new(
                    &state,
                    format!("{name}: {latency} µs, disable {disabled}"),
                ));
                continue;
            }
            deep.insert(cpu);
            let path = format!("{state}/disable");
            changes.push(crate::check::Change {
                target: polyrail_tune::Target::File { path: path.clone() },
                from: Some("0".into()),
                to: "1".into(),
            });
            example.get_or_insert_with(|| {
                Finding::new(format!("state {name} takes {latency} µs to wake up from"))
                    .because(format!("{state}/latency"), latency)
                    .because(path, 0)
                    .command(format!("cpupower idle-set -D {DEEP_US}"))
            });
        }
    }
    outcome.seen.truncate(4);
    if let Some(mut finding) = example {
        finding.changes = changes;
        finding.subject = Some(format!("CPUs {deep}"));
        outcome.found(finding);
    } else if outcome.seen.is_empty() {
        return Err(Unknown(
            "the CPUs have no cpuidle folder: their idle states can't be read".into(),
        ));
    }
    Ok(outcome)
}

fn numa_balancing(cx: &Context) -> Result<Outcome, Unknown> {
    if cx.topology().nodes_with_cpus() <= 1 {
        return Ok(Outcome::not_applicable("the machine has one node"));
    }
    let path = "/proc/sys/kernel/numa_balancing";
    let Some(text) = cx.optional(path)? else {
        if !cx.root().exists("/proc/sys/kernel") {
            return Err(Unknown("/proc/sys/kernel is not there".into()));
        }
        return Ok(Outcome::not_applicable("the kernel was built without it"));
    };
    let mut outcome = Outcome::default();
    if text == "0" {
        outcome.saw(path, text);
    } else {
        outcome.found(
            Finding::new("pages are taken away to see who uses them")
                .because(path, &text)
                .write(path, &text, 0),
        );
    }
    Ok(outcome)
}
