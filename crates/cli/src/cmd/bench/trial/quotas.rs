//! Throttling of this process by the CPU quotas of its control groups, according to the kernel.
//!
//! Files and their meaning: `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`, `cpu.stat`) and
//! `Documentation/scheduler/sched-bwc.rst` of Linux, which also describes version 1.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cmd::bench::talk::Throttled;
use crate::groups::{MOUNT, folders, own};

/// Groups of this process, and their ancestors, that have a quota.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Quotas(Vec<Quota>);

#[derive(Clone, Debug, PartialEq)]
struct Quota {
    folder: PathBuf,
    /// CPU time that the group may use, as a number of CPUs.
    cpus: f64,
    /// Number of periods in which the group ran.
    periods: u64,
    /// Number of those periods in which the group had to stop before their end.
    throttled: u64,
}

impl Quotas {
    /// Reads the quotas. Empty if the kernel has no control groups.
    pub(crate) fn look() -> Self {
        Self::below(Path::new(MOUNT), &own())
    }

    fn below(mount: &Path, groups: &str) -> Self {
        let folders = groups.lines().flat_map(|line| folders(mount, line, "cpu"));
        Self(folders.filter_map(read).collect())
    }

    /// Returns the CPU time that the strictest quota grants, as a number of CPUs; `None` without a quota.
    pub(crate) fn least_cpus(&self) -> Option<f64> {
        self.0.iter().map(|quota| quota.cpus).min_by(f64::total_cmp)
    }

    /// Returns the group whose quota ran out in the greatest share of its periods between this look and `later`.
    pub(crate) fn worst(&self, later: &Self) -> Option<Throttled> {
        let since = |quota: &Quota| {
            let before = self.0.iter().find(|before| before.folder == quota.folder);
            let [periods, throttled] = before.map_or([0, 0], |one| [one.periods, one.throttled]);
            let periods = quota.periods.saturating_sub(periods);
            let throttled = quota.throttled.saturating_sub(throttled);
            let share = throttled as f64 / periods.max(1) as f64;
            Throttled { cpus: quota.cpus, periods_share: share.min(1.0) }
        };
        let all = later.0.iter().map(since);
        all.max_by(|a, b| a.periods_share.total_cmp(&b.periods_share))
    }
}

fn read(folder: PathBuf) -> Option<Quota> {
    let file = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |name: &str| file(name)?.trim().parse::<f64>().ok();
    let cpus = match file("cpu.max") {
        Some(text) => {
            let mut words = text.split_whitespace().map(str::parse::<f64>);
            // The first word is `max` if there is no quota.
            words.next()?.ok()? / words.next()?.ok()?
        }
        None => {
            number("cpu.cfs_quota_us").filter(|quota| *quota > 0.0)? / number("cpu.cfs_period_us")?
        }
    };
    let stat = file("cpu.stat")?;
    let count = |name: &str| {
        let mut lines = stat.lines().filter_map(|line| line.split_once(' '));
        lines.find(|(known, _)| *known == name)?.1.trim().parse().ok()
    };
    let (periods, throttled) = (count("nr_periods")?, count("nr_throttled")?);
    Some(Quota { folder, cpus, periods, throttled })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::tests::write;

    #[test]
    fn a_quota_of_an_ancestor_counts_in_version_2() {
        let mount = tempfile::tempdir().unwrap();
        let at = |group: &str| mount.path().join(group);
        let stat = "usage_usec 5\nnr_periods 100\nnr_throttled 10\nthrottled_usec 7\n";
        write(mount.path(), &[("cgroup.controllers", "cpu"), ("cpu.stat", "usage_usec 5\n")]);
        write(&at("a"), &[("cpu.max", "20000 100000\n"), ("cpu.stat", stat)]);
        write(&at("a/b"), &[("cpu.max", "max 100000\n"), ("cpu.stat", stat)]);
        let before = Quotas::below(mount.path(), "0::/a/b\n");
        assert_eq!(before.0.len(), 1, "only one has a quota: {before:?}");
        write(&at("a"), &[("cpu.stat", "nr_periods 120\nnr_throttled 25\n")]);
        let after = Quotas::below(mount.path(), "0::/a/b\n");
        let throttled = Throttled { cpus: 0.2, periods_share: 0.75 };
        assert_eq!(before.worst(&after), Some(throttled));
        assert_eq!(before.worst(&before).unwrap().periods_share, 0.0, "no period went by");
    }

    #[test]
    fn version_1_has_the_same_in_other_files() {
        let mount = tempfile::tempdir().unwrap();
        let stat = "nr_periods 4\nnr_throttled 3\nthrottled_time 9\n";
        let quota = |text| {
            [("cpu.cfs_quota_us", text), ("cpu.cfs_period_us", "100000\n"), ("cpu.stat", stat)]
        };
        write(&mount.path().join("cpu"), &quota("-1\n"));
        write(&mount.path().join("cpu/a"), &quota("150000\n"));
        let groups = "7:memory:/a\n4:cpu,cpuacct:/a\n0::/\nnonsense\n";
        let quotas = Quotas::below(mount.path(), groups);
        let worst = Quotas::default().worst(&quotas);
        assert_eq!(worst, Some(Throttled { cpus: 1.5, periods_share: 0.75 }));
        assert_eq!(Quotas::below(mount.path(), ""), Quotas::default());
    }
}
