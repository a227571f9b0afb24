//! Snapshots: archives of the files that this crate reads, without details that identify a machine.
//!
//! Only files of a fixed list go in. The archive zeroes hardware addresses and replaces IP addresses and names of
//! control groups. It contains no host names, serial numbers, UUIDs or keys.

mod redact;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::nvml::{self, NvmlReport};
use crate::programs::system_program;
use crate::sysroot::{ReadError, Sysroot};
use crate::topology::Cpus;

/// Files to add, with `*` for any name in a folder. Files that a machine lacks are left out.
const FILES: &[&str] = &[
    "/proc/cpuinfo",
    "/proc/driver/nvidia/gpus/*/information",
    "/proc/interrupts",
    "/proc/irq/*/affinity_hint",
    "/proc/irq/*/effective_affinity",
    "/proc/irq/*/effective_affinity_list",
    "/proc/irq/*/node",
    "/proc/irq/*/smp_affinity",
    "/proc/irq/*/smp_affinity_list",
    "/proc/irq/default_smp_affinity",
    "/proc/meminfo",
    "/proc/net/dev",
    "/proc/net/netstat",
    "/proc/net/route",
    "/proc/net/snmp",
    "/proc/net/softnet_stat",
    "/proc/self/limits",
    "/proc/self/status",
    "/proc/softirqs",
    "/proc/stat",
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/kernel/numa_balancing",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/perf_event_paranoid",
    "/proc/sys/net/core/*",
    "/proc/sys/net/ipv4/conf/*/arp_announce",
    "/proc/sys/net/ipv4/conf/*/arp_filter",
    "/proc/sys/net/ipv4/conf/*/arp_ignore",
    "/proc/sys/net/ipv4/conf/*/rp_filter",
    "/proc/sys/net/ipv4/tcp_*",
    "/proc/sys/net/netfilter/nf_conntrack_count",
    "/proc/sys/net/netfilter/nf_conntrack_max",
    "/proc/sys/vm/zone_reclaim_mode",
    "/sys/class/dmi/id/product_name",
    "/sys/class/dmi/id/sys_vendor",
    "/sys/devices/system/clocksource/clocksource0/available_clocksource",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    "/sys/devices/system/cpu/*",
    "/sys/devices/system/cpu/cpu*/cache/index*/*",
    "/sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference",
    "/sys/devices/system/cpu/cpu*/cpufreq/scaling_driver",
    "/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
    "/sys/devices/system/cpu/cpu*/cpuidle/state*/disable",
    "/sys/devices/system/cpu/cpu*/cpuidle/state*/latency",
    "/sys/devices/system/cpu/cpu*/cpuidle/state*/name",
    "/sys/devices/system/cpu/cpu*/online",
    "/sys/devices/system/cpu/cpu*/topology/*",
    "/sys/devices/system/cpu/smt/*",
    "/sys/devices/system/node/*",
    "/sys/devices/system/node/node*/cpulist",
    "/sys/devices/system/node/node*/cpumap",
    "/sys/devices/system/node/node*/distance",
    "/sys/devices/system/node/node*/hugepages/*/*",
    "/sys/devices/system/node/node*/meminfo",
    "/sys/devices/system/node/node*/numastat",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    "/sys/fs/cgroup/unified/cgroup.controllers",
    "/sys/kernel/irq/*/actions",
    "/sys/kernel/irq/*/chip_name",
    "/sys/kernel/irq/*/hwirq",
    "/sys/kernel/irq/*/per_cpu_count",
    "/sys/kernel/mm/transparent_hugepage/enabled",
];

/// Files of each device on the PCI bus, relative to its folder.
const PCI_FILES: &[&str] = &[
    "class",
    "config",
    "current_link_speed",
    "current_link_width",
    "device",
    "enable",
    "irq",
    "local_cpulist",
    "local_cpus",
    "max_link_speed",
    "max_link_width",
    "msi_irqs/*",
    "numa_node",
    "revision",
    "subsystem_device",
    "subsystem_vendor",
    "vendor",
];

/// Files of each network interface, relative to its folder.
const NET_FILES: &[&str] = &[
    "address",
    "carrier",
    "dev_id",
    "dev_port",
    "duplex",
    "flags",
    "gro_flush_timeout",
    "ifindex",
    "iflink",
    "mtu",
    "napi_defer_hard_irqs",
    "operstate",
    "phys_port_name",
    "queues/*/*",
    "queues/*/byte_queue_limits/*",
    "speed",
    "statistics/*",
    "threaded",
    "tx_queue_len",
    "type",
    "uevent",
];

/// Words in a file's name that keep the file out, even if a list has it.
const SECRET: &[&str] = &["key", "secret", "uuid", "serial"];

/// Programs whose presence matters; the names of all others stay private.
const PROGRAMS: &[&str] = &["irqbalance", "tuned", "irqd", "numad", "google_set_mult"];

/// Files of each control group.
const GROUP_FILES: &[&str] = &["cpu.max", "cpu.stat"];

/// Answers that only a running machine gives, besides its files. Each is added as a separate file.
#[derive(Clone, Debug, Default)]
pub struct Answers<'a> {
    /// NVML's report; its UUIDs are removed. A report in a copy of a machine is added without this.
    pub nvml: Option<&'a NvmlReport>,
    /// Other files by their path in the copy, such as `/polyrail/probes.json`. The caller removes details that identify
    /// a machine.
    pub files: Vec<(&'a str, String)>,
}

/// Content of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SnapshotSummary {
    pub files: usize,
    pub links: usize,
    /// Total size of the files, in bytes.
    pub bytes: u64,
}

/// Error while writing or opening a snapshot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The machine could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The archive could not be written.
    #[error("the archive can't be written: {0}")]
    Write(#[source] io::Error),
    /// The archive or folder could not be opened.
    #[error(
        "{} can't be opened as the files of a machine: {source}; allowed: a folder with proc and sys, or an archive \
         of them",
        path.display()
    )]
    Open {
        /// Path as given.
        path: PathBuf,
        /// Error of the system or of the archive reader.
        source: io::Error,
    },
}

impl SnapshotError {
    /// Returns a suggestion on how to resolve the error, if there is one.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Read(error) => error.help(),
            Self::Write(_) => None,
            Self::Open { .. } => Some(
                "give a folder with proc and sys in it, or an archive made by \
                 `polyrail host snapshot`, not compressed"
                    .to_owned(),
            ),
        }
    }
}

/// Writes the machine's files below a folder `name` into a tar archive.
///
/// hwloc's `lstopo -i` opens the unpacked folder; [`open`] opens both.
///
/// # Errors
/// [`SnapshotError::Write`], or [`SnapshotError::Read`] if the root is not the tree of a machine. Files that this
/// process may not read are left out.
pub fn write(
    root: &Sysroot,
    name: &str,
    answers: &Answers<'_>,
    out: impl Write,
) -> Result<SnapshotSummary, SnapshotError> {
    Cpus::read_online(root)?;
    let recorded = if root.is_live() { None } else { NvmlReport::read(root).ok().flatten() };
    let nvml = answers.nvml.or(recorded.as_ref());
    let mut archive = Archive {
        root,
        name,
        tar: tar::Builder::new(out),
        summary: SnapshotSummary::default(),
        done: std::collections::HashSet::new(),
    };
    let mut collect = || {
        archive.collect()?;
        if let Some(report) = nvml {
            archive.add(nvml::FILE, report.redacted().to_json().as_bytes())?;
        }
        for (path, text) in &answers.files {
            archive.add(path, text.as_bytes())?;
        }
        Ok(())
    };
    collect().and_then(|()| archive.tar.finish()).map_err(SnapshotError::Write)?;
    Ok(archive.summary)
}

/// Opens a folder with `/proc` and `/sys`, or an archive of [`write()`], which is read into memory.
///
/// # Errors
/// [`SnapshotError::Open`].
pub fn open(path: &Path) -> Result<Sysroot, SnapshotError> {
    let fail = |source| SnapshotError::Open { path: path.to_owned(), source };
    if fs::metadata(path).map_err(fail)?.is_dir() {
        fs::metadata(path.join("sys")).map_err(fail)?;
        return Ok(Sysroot::at(path));
    }
    let file = fs::File::open(path).map_err(fail)?;
    Sysroot::in_archive(path, io::BufReader::new(file)).map_err(fail)
}

struct Archive<'a, W: Write> {
    root: &'a Sysroot,
    name: &'a str,
    tar: tar::Builder<W>,
    summary: SnapshotSummary,
    /// Paths added so far; several links lead to one device.
    done: std::collections::HashSet<String>,
}

impl<W: Write> Archive<'_, W> {
    fn collect(&mut self) -> io::Result<()> {
        for pattern in FILES {
            self.matching(pattern)?;
        }
        for address in self.names("/sys/bus/pci/devices") {
            let link = format!("/sys/bus/pci/devices/{address}");
            let Some(folder) = self.link(&link)? else { continue };
            self.link(&format!("{folder}/driver"))?;
            for file in PCI_FILES {
                self.matching(&format!("{folder}/{file}"))?;
            }
        }
        for name in self.names("/sys/class/net") {
            let Some(folder) = self.link(&format!("/sys/class/net/{name}"))? else { continue };
            if let Some(device) = self.link(&format!("{folder}/device"))? {
                self.link(&format!("{device}/driver"))?;
                // The device need not be on the PCI bus: Hyper-V and Xen have their own buses.
                self.file(&format!("{device}/numa_node"))?;
            }
            for file in NET_FILES {
                self.matching(&format!("{folder}/{file}"))?;
            }
            let is_layer = |entry: &str| {
                entry == "master" || entry.starts_with("lower_") || entry.starts_with("upper_")
            };
            for entry in self.names(&folder).iter().filter(|entry| is_layer(entry)) {
                self.link(&format!("{folder}/{entry}"))?;
            }
        }
        self.programs()?;
        self.groups()
    }

    /// Adds the listed programs that run, and one entry to show that processes are visible.
    fn programs(&mut self) -> io::Result<()> {
        for pid in self.names("/proc") {
            let Ok(number) = pid.parse() else { continue };
            let path = format!("/proc/{pid}/comm");
            let name = system_program(self.root, number).unwrap_or_default();
            if PROGRAMS.contains(&name.as_str()) {
                self.add(&path, format!("{name}\n").as_bytes())?;
            } else if pid == "1" && !name.is_empty() {
                self.add(&path, b"init\n")?;
            }
        }
        Ok(())
    }

    /// Adds the control groups of this process under other names: the real names may contain users, jobs and
    /// containers.
    fn groups(&mut self) -> io::Result<()> {
        let Ok(text) = self.root.read("/proc/self/cgroup") else { return Ok(()) };
        let bases = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
        let is_base = |base: &&&str| self.root.exists(format!("{base}/cgroup.controllers"));
        let base = bases.iter().find(is_base).copied();
        let mut lines = String::new();
        for line in text.lines() {
            let Some((kind, group)) = line.rsplit_once(':') else { continue };
            let mut other = String::new();
            if let ("0:", Some(base)) = (kind, base) {
                let mut real = String::new();
                for file in GROUP_FILES {
                    self.file(&format!("{base}/{file}"))?;
                }
                for (at, part) in group.split('/').filter(|part| !part.is_empty()).enumerate() {
                    (real, other) = (format!("{real}/{part}"), format!("{other}/group{}", at + 1));
                    for file in GROUP_FILES {
                        let content = self.root.content_of_file(format!("{base}{real}/{file}"));
                        if let Some(content) = content {
                            self.add(&format!("{base}{other}/{file}"), &content)?;
                        }
                    }
                }
            }
            let group = if other.is_empty() { "/" } else { &other };
            lines.push_str(&format!("{kind}:{group}\n"));
        }
        self.add("/proc/self/cgroup", lines.as_bytes())
    }

    /// Adds every file that the pattern matches.
    fn matching(&mut self, pattern: &str) -> io::Result<()> {
        let Some(star) = pattern.find('*') else { return self.file(pattern) };
        let folder_end = pattern[..star].rfind('/').unwrap_or(0);
        let (folder, prefix) = (&pattern[..folder_end], &pattern[folder_end + 1..star]);
        let rest = &pattern[star + 1..];
        for name in self.names(folder) {
            if name.starts_with(prefix) {
                self.matching(&format!("{folder}/{name}{rest}"))?;
            }
        }
        Ok(())
    }

    fn names(&self, folder: &str) -> Vec<String> {
        self.root.list_optional(folder).unwrap_or_default()
    }

    fn file(&mut self, path: &str) -> io::Result<()> {
        let name = path.rsplit('/').next().unwrap_or_default();
        if SECRET.iter().any(|word| name.contains(word)) || self.done.contains(path) {
            return Ok(());
        }
        let Some(content) = self.root.content_of_file(path) else { return Ok(()) };
        self.done.insert(path.to_owned());
        self.add(path, &redact::content(path, content))
    }

    fn add(&mut self, path: &str, content: &[u8]) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        self.tar.append_data(&mut header, format!("{}{path}", self.name), content)?;
        self.summary.files += 1;
        self.summary.bytes += content.len() as u64;
        Ok(())
    }

    /// Adds a link unchanged if it is relative. Returns the path below the root where it leads.
    fn link(&mut self, path: &str) -> io::Result<Option<String>> {
        let Some(target) = self.root.link(path) else { return Ok(None) };
        let resolved = self.root.resolve(path);
        let folder = resolved.and_then(|folder| folder.to_str().map(str::to_owned));
        if target.is_relative() && self.done.insert(path.to_owned()) {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            header.set_mode(0o777);
            self.tar.append_link(&mut header, format!("{}{path}", self.name), target)?;
            self.summary.links += 1;
        }
        Ok(folder)
    }
}
