//! Rights of this process that its user does not have.

use std::fs;

use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

/// Whether this process may do more than an ordinary user: it is root, or has a capability. Root of a user namespace that
/// has one user only can do no more than that user.
pub fn is_privileged() -> bool {
    let may_more = geteuid().is_root()
        || capabilities(None).map_or(true, |sets| sets.effective != CapabilitySet::empty());
    may_more && !has_one_user(&user_map())
}

/// The number that the user `own` has outside of this process's user namespace, where it may be root. The number
/// itself if the system does not say.
pub fn user_outside(own: u32) -> u32 {
    let map = user_map();
    let mut inside = ranges(&map).filter(|(first, _, count)| own >= *first && own - first < *count);
    inside.next().map_or(own, |(first, outer, _)| outer + (own - first))
}

/// Whether this user is root or the user of this process.
pub(super) fn is_trusted(user: u32) -> bool {
    user == 0 || user == geteuid().as_raw()
}

fn user_map() -> String {
    fs::read_to_string("/proc/self/uid_map").unwrap_or_default()
}

fn has_one_user(map: &str) -> bool {
    let users = ranges(map).map(|(_, _, count)| u64::from(count)).sum::<u64>();
    users == 1
}

/// The first user inside, the first one outside, and the number of users.
fn ranges(map: &str) -> impl Iterator<Item = (u32, u32, u32)> {
    map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_of_a_namespace_with_one_user_is_an_ordinary_user() {
        assert!(has_one_user("         0       1000          1\n"));
        assert!(!has_one_user("         0          0 4294967295\n"));
        assert!(!has_one_user("0 1000 1\n1 100000 65536\n"));
        assert!(!has_one_user(""), "an unreadable map is no reason to trust more");
    }
}
