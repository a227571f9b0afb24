//! Privileges that this process has and its user does not.

use std::fs;
use std::os::unix::fs::MetadataExt;

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

/// True if this process may do more than an ordinary user: it is root, or has a capability. Root of a user namespace
/// whose only user is an ordinary user outside can do no more than that user.
pub fn is_privileged() -> bool {
    let may_more = geteuid().is_root()
        || capabilities(None).map_or(true, |sets| sets.effective != CapabilitySet::empty());
    may_more && !is_ordinary_outside(&user_map(), owner_of_settings)
}

/// Owner of `/proc/sys`, which is root of the host. A user namespace without that user shows the overflow user.
fn owner_of_settings() -> Option<u32> {
    fs::metadata("/proc/sys").ok().map(|found| found.uid())
}

/// Number of the user `own` outside of this process's user namespace, where it may be root. Returns `own` if the system
/// does not report a mapping.
pub fn user_outside(own: u32) -> u32 {
    let map = user_map();
    let mut inside = ranges(&map).filter(|(first, _, count)| own >= *first && own - first < *count);
    inside.next().map_or(own, |(first, outer, _)| outer + (own - first))
}

/// True for root and the user of this process.
pub(super) fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

fn user_map() -> String {
    fs::read_to_string("/proc/self/uid_map").unwrap_or_default()
}

/// True if a user namespace has a single user, who is an ordinary user outside. The map gives the user in the parent
/// namespace only. With nested namespaces the owner of a file of the host's root identifies that root.
fn is_ordinary_outside(map: &str, owner_of_settings: impl Fn() -> Option<u32>) -> bool {
    let mut users = ranges(map);
    match (users.next(), users.next()) {
        (Some((inside, outside, 1)), None) => {
            outside != 0 && owner_of_settings().is_some_and(|owner| owner != inside)
        }
        _ => false,
    }
}

/// First user inside, first user outside, and number of users of each range.
fn ranges(map: &str) -> impl Iterator<Item = (u32, u32, u32)> {
    map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn root_of_a_namespace_whose_only_user_is_an_ordinary_one_is_an_ordinary_user() {
        let is_ordinary = |map: &str, owner| is_ordinary_outside(map, || owner);
        assert!(is_ordinary("         0       1000          1\n", Some(65534)));
        assert!(!is_ordinary("0 0 1\n", Some(65534)), "root of the namespace above");
        assert!(!is_ordinary("0 1000 1\n", Some(0)), "root of the host, through two namespaces");
        assert!(!is_ordinary("0 1000 1\n", None));
        assert!(!is_ordinary("         0          0 4294967295\n", Some(0)));
        assert!(!is_ordinary("0 1000 1\n1 100000 65536\n", Some(65534)));
        assert!(!is_ordinary("", Some(65534)), "an unreadable map is no reason to trust more");
    }

    /// Environment variable with the expected result for the child in the namespace.
    const EXPECTED: &str = "POLYRAIL_TEST_IS_PRIVILEGED";

    #[test]
    fn a_namespace_takes_no_privileges_from_root_and_gives_none_to_others() {
        if let Ok(expected) = std::env::var(EXPECTED) {
            assert_eq!(is_privileged().to_string(), expected, "{}", user_map());
            return;
        }
        let as_root = vec!["unshare", "-Ur"];
        let as_another = vec!["unshare", "-U", "--map-user=1000", "--map-group=1000"];
        let nested = [as_another, as_root.clone()].concat();
        let probe = Command::new(nested[0]).args(&nested[1..]).arg("true").status();
        if !probe.is_ok_and(|end| end.success()) {
            return polyrail_skip::skip(
                "needs user namespaces in user namespaces",
                "sudo cargo test -p polyrail-sys privilege",
            );
        }
        let name = "files::privilege::tests::a_namespace_takes_no_privileges_from_root_and_gives_none_to_others";
        let is_root = is_privileged();
        for way in [as_root, nested] {
            let mut command = Command::new(way[0]);
            command.args(&way[1..]).arg(std::env::current_exe().unwrap());
            command.args(["--exact", name, "--nocapture"]);
            let ran = command.env(EXPECTED, is_root.to_string()).output().unwrap();
            assert!(ran.status.success(), "{way:?}: {ran:?}");
        }
    }
}
