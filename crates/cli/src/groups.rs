//! Control groups of this process, and the memory that they leave it.
//!
//! Files and their meaning: `Documentation/admin-guide/cgroup-v2.rst` (`memory.max`, `memory.current`, `memory.stat`)
//! and `Documentation/admin-guide/cgroup-v1/memory.rst` of Linux.

use std::fs;
use std::path::{Path, PathBuf};

/// Mount point of the control groups.
pub(crate) const MOUNT: &str = "/sys/fs/cgroup";

/// Returns the control groups of this process in the kernel's format, or an empty string if the kernel has none.
pub(crate) fn own() -> String {
    fs::read_to_string("/proc/self/cgroup").unwrap_or_default()
}

/// Returns the folders of the group that a line of `/proc/self/cgroup` names, and of its ancestors: those of version 2,
/// or those of this controller of version 1.
pub(crate) fn folders(mount: &Path, line: &str, controller: &str) -> Vec<PathBuf> {
    let mut parts = line.splitn(3, ':');
    let (Some(_), Some(controllers), Some(group)) = (parts.next(), parts.next(), parts.next())
    else {
        return Vec::new();
    };
    let mount = match controllers {
        "" if mount.join("cgroup.controllers").exists() => mount.to_owned(),
        "" => mount.join("unified"),
        _ if controllers.split(',').any(|one| one == controller) => mount.join(controller),
        _ => return Vec::new(),
    };
    let group = Path::new(group.trim_start_matches('/'));
    // In a container the path may be the host's view of the group. Then only the container's root folder exists.
    group.ancestors().map(|group| mount.join(group)).collect()
}

/// Returns the limit that leaves this process the least memory, and the number of bytes that it leaves.
pub(crate) fn memory_left(mount: &Path, groups: &str) -> Option<(PathBuf, u64)> {
    let folders = groups.lines().flat_map(|line| folders(mount, line, "memory"));
    folders.filter_map(|folder| left_by(&folder)).min_by_key(|(_, bytes)| *bytes)
}

/// Returns `None` if the group has no limit.
fn left_by(folder: &Path) -> Option<(PathBuf, u64)> {
    let file = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| file(name)?.trim().parse::<u64>().ok();
    let versions = [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ];
    let mut limits = versions.into_iter();
    let (limit, used, cache) = limits.find(|(limit, ..)| number(limit).is_some())?;
    // The kernel reclaims inactive file cache before it refuses memory.
    let stat = file("memory.stat").unwrap_or_default();
    let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
    let cached = lines.find(|(name, _)| *name == cache).and_then(|(_, bytes)| bytes.parse().ok());
    let used = number(used)?.saturating_sub(cached.unwrap_or(0));
    Some((folder.join(limit), number(limit)?.saturating_sub(used)))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Writes files into the folder of a group.
    pub(crate) fn write(folder: &Path, files: &[(&str, &str)]) {
        fs::create_dir_all(folder).unwrap();
        files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    }

    #[test]
    fn the_tightest_limit_of_a_group_and_its_ancestors_counts() {
        let mount = tempfile::tempdir().unwrap();
        let at = |group: &str| mount.path().join(group);
        write(mount.path(), &[("cgroup.controllers", "memory")]);
        write(&at("a"), &[("memory.max", "700\n"), ("memory.current", "300\n")]);
        write(&at("a"), &[("memory.stat", "anon 200\ninactive_file 50\n")]);
        write(&at("a/b"), &[("memory.max", "max\n"), ("memory.current", "300\n")]);
        let left = |groups: &str| memory_left(mount.path(), groups);
        assert_eq!(left("0::/a/b\n"), Some((at("a/memory.max"), 450)));
        write(&at("a/b"), &[("memory.max", "310\n")]);
        assert_eq!(left("0::/a/b\n"), Some((at("a/b/memory.max"), 10)));
        assert_eq!(left("0::/\n"), None);
        assert_eq!(left(""), None);
    }

    #[test]
    fn version_1_has_the_same_in_other_files() {
        let mount = tempfile::tempdir().unwrap();
        let (limit, used) = ("memory.limit_in_bytes", "memory.usage_in_bytes");
        // The group's path is the host's view; only the container's root folder exists.
        write(&mount.path().join("memory"), &[(limit, "1000\n"), (used, "1100\n")]);
        write(&mount.path().join("cpu"), &[(limit, "1\n"), (used, "1\n")]);
        let groups = "7:memory:/docker/a\n4:cpu,cpuacct:/a\n0::/\nnonsense\n";
        let file = mount.path().join("memory").join(limit);
        assert_eq!(memory_left(mount.path(), groups), Some((file, 0)));
    }
}
