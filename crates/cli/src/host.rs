//! What the reports say about the machine.

use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use polyrail_host::Sysroot;
use polyrail_report::Host;

/// This machine as the kernel describes it; what it does not tell is `None`.
pub(crate) fn describe() -> Host {
    describe_from(&Sysroot::live())
}

/// The host's name, or `localhost` where the kernel does not tell.
pub(crate) fn hostname() -> String {
    named(&Sysroot::live())
}

/// Memory that programs could still take, in bytes.
pub(crate) fn available_memory_bytes() -> Option<u64> {
    meminfo(&Sysroot::live().read("/proc/meminfo").ok()?, "MemAvailable")
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
        // Empty where a container hides it, which would make any two of them one host.
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

/// The value of a `name : value` line.
fn field(text: &str, name: &str) -> Option<String> {
    let mut lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.find(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned())
}

fn meminfo(text: &str, name: &str) -> Option<u64> {
    let value = field(text, name)?;
    let kib: u64 = value.strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The word in brackets of `always [madvise] never`.
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
        assert!(available_memory_bytes() > Some(1 << 20));
    }
}
