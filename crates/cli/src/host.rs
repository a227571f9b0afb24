//! Description of the machine in reports.

use std::fmt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use polyrail_host::Sysroot;
use polyrail_report::{Host, show_memory};

use crate::groups;

/// Describes this machine from the kernel's files. Missing values are `None`.
pub(crate) fn describe() -> Host {
    describe_from(&Sysroot::live())
}

/// Returns the host's name, or `localhost` if the kernel does not report one.
pub(crate) fn hostname() -> String {
    named(&Sysroot::live())
}

/// Memory that this process can still allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Available {
    pub(crate) bytes: u64,
    /// File with the limit, if a control group leaves less than the host has available.
    pub(crate) limit: Option<PathBuf>,
}

impl fmt::Display for Available {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = show_memory(self.bytes);
        match &self.limit {
            None => write!(f, "{bytes}, which is available"),
            Some(limit) => write!(f, "{bytes}, which {} leaves", limit.display()),
        }
    }
}

/// Returns `None` if the kernel reports neither the host's available memory nor a limit.
pub(crate) fn available_memory() -> Option<Available> {
    let meminfo_text = Sysroot::live().read("/proc/meminfo").unwrap_or_default();
    let of_host = meminfo(&meminfo_text, "MemAvailable");
    less(of_host, groups::memory_left(Path::new(groups::MOUNT), &groups::own()))
}

fn less(of_host: Option<u64>, of_group: Option<(PathBuf, u64)>) -> Option<Available> {
    match of_group {
        Some((limit, bytes)) if of_host.is_none_or(|of_host| bytes < of_host) => {
            Some(Available { bytes, limit: Some(limit) })
        }
        _ => of_host.map(|bytes| Available { bytes, limit: None }),
    }
}

/// Milliseconds since 1970 UTC.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

fn named(root: &Sysroot) -> String {
    let name = root.hostname().ok().filter(|name| !name.is_empty());
    name.unwrap_or_else(|| "localhost".into())
}

fn describe_from(root: &Sysroot) -> Host {
    let cpuinfo = root.read("/proc/cpuinfo").unwrap_or_default();
    let meminfo_text = root.read("/proc/meminfo").unwrap_or_default();
    let allowed = thread::available_parallelism().map_or(1, usize::from);
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    Host {
        hostname: named(root),
        // A container may hide the id. An empty one would make any two such containers count as one host.
        boot_id: root.boot_id().ok().filter(|id| !id.is_empty()),
        kernel: root.kernel().unwrap_or_else(|_| "unknown".into()),
        cpu_model: field(&cpuinfo, "model name"),
        cpus: if cpus == 0 { allowed } else { cpus },
        cpus_allowed: allowed,
        memory_bytes: meminfo(&meminfo_text, "MemTotal"),
        congestion_control: root.read("/proc/sys/net/ipv4/tcp_congestion_control").ok(),
        transparent_hugepage: root
            .read("/sys/kernel/mm/transparent_hugepage/enabled")
            .ok()
            .and_then(|text| chosen(&text)),
    }
}

/// Returns the value of a `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let value = field(text, name)?;
    let kib: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Returns the word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_captured_machine_is_described_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/sys/kernel/hostname", "node7\n");
        put("proc/sys/kernel/osrelease", "6.1.0-test\n");
        put("proc/cpuinfo", "processor : 0\nmodel name : Fast 9000\nprocessor : 1\n");
        put("proc/meminfo", "MemTotal:       1024 kB\nMemAvailable: 12 kB\n");
        put("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
        let host = describe_from(&Sysroot::at(root.path()));
        assert_eq!((host.hostname.as_str(), host.kernel.as_str()), ("node7", "6.1.0-test"));
        assert_eq!((host.cpus, host.memory_bytes), (2, Some(1 << 20)));
        assert_eq!(host.cpu_model.as_deref(), Some("Fast 9000"));
        assert_eq!(host.transparent_hugepage.as_deref(), Some("madvise"));
        assert_eq!((host.boot_id, host.congestion_control), (None, None));
    }

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let host = describe();
        assert!(host.cpus >= 1 && host.cpus_allowed >= 1);
        assert!(host.kernel.contains('.'), "{}", host.kernel);
        assert!(available_memory().unwrap().bytes > 1 << 20);
    }

    #[test]
    fn a_control_group_that_leaves_less_than_the_host_has_is_named() {
        let limit = || PathBuf::from("/sys/fs/cgroup/a/memory.max");
        let shown = |of_host, of_group| less(of_host, of_group).map(|left| left.to_string());
        let of_group = "700 MiB, which /sys/fs/cgroup/a/memory.max leaves";
        let group = || Some((limit(), 700 << 20));
        assert_eq!(shown(Some(8 << 30), group()).as_deref(), Some(of_group));
        assert_eq!(shown(None, group()).as_deref(), Some(of_group));
        assert_eq!(shown(Some(1 << 20), group()).as_deref(), Some("1.00 MiB, which is available"));
        assert_eq!(less(None, None), None);
    }
}
