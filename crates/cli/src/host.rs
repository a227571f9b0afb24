//! What the reports say about the machine.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use polyrail_report::Host;

/// This machine as the kernel describes it; what it does not tell is `None`.
pub(crate) fn describe() -> Host {
    describe_from(Path::new("/"))
}

/// The host's name, or `localhost` where the kernel does not tell.
pub(crate) fn hostname() -> String {
    line(Path::new("/"), "proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".into())
}

/// Memory that programs could still take, in bytes.
pub(crate) fn available_memory_bytes() -> Option<u64> {
    meminfo(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// Milliseconds since 1970 UTC.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as u64
}

fn describe_from(root: &Path) -> Host {
    let cpuinfo = fs::read_to_string(root.join("proc/cpuinfo")).unwrap_or_default();
    let meminfo_text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let allowed = thread::available_parallelism().map_or(1, usize::from);
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    Host {
        hostname: line(root, "proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".into()),
        boot_id: line(root, "proc/sys/kernel/random/boot_id"),
        kernel: line(root, "proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".into()),
        cpu_model: field(&cpuinfo, "model name"),
        cpus: if cpus == 0 { allowed } else { cpus },
        cpus_allowed: allowed,
        memory_bytes: meminfo(&meminfo_text, "MemTotal"),
        congestion_control: line(root, "proc/sys/net/ipv4/tcp_congestion_control"),
        transparent_hugepage: line(root, "sys/kernel/mm/transparent_hugepage/enabled")
            .and_then(|text| chosen(&text)),
    }
}

fn line(root: &Path, path: &str) -> Option<String> {
    let text = fs::read_to_string(root.join(path)).ok()?;
    Some(text.lines().next()?.trim().to_owned()).filter(|line| !line.is_empty())
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
        let host = describe_from(root.path());
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
