//! Programs that run on the machine, by name.

use rustix::process::geteuid;

use crate::Sysroot;

/// Returns the name of a process whose real and effective user are root or the calling user. Other processes don't
/// count: any user may give a process any name, and may run a set-user-ID program. In a copy of a machine that has only
/// names, every name counts.
pub fn system_program(root: &Sysroot, pid: u32) -> Option<String> {
    let name = root.read(format!("/proc/{pid}/comm")).ok()?;
    let is_trusted = |user: &u32| [0, geteuid().as_raw()].contains(user);
    let is_trusted = match root.read(format!("/proc/{pid}/status")) {
        Ok(status) => users(&status).is_some_and(|users| users.iter().all(is_trusted)),
        Err(_) => !root.is_live(),
    };
    is_trusted.then_some(name)
}

/// Returns the real and the effective user, which are the first two of four.
fn users(status: &str) -> Option<[u32; 2]> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let mut users = line.split_whitespace().map(str::parse);
    Some([users.next()?.ok()?, users.next()?.ok()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_if_the_process_is_of_root_or_of_this_user() {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        let at = root.path("/proc/7");
        std::fs::create_dir_all(&at).unwrap();
        let found = || system_program(&root, 7);
        assert_eq!(found(), None);
        std::fs::write(at.join("comm"), "irqbalance\n").unwrap();
        assert_eq!(found().as_deref(), Some("irqbalance"), "a copy");
        let (own, other) = (geteuid().as_raw(), geteuid().as_raw() + 1);
        for (users, is_found) in [
            ("0\t0\t0\t0".to_owned(), true),
            (format!("{other}\t0\t0\t0"), false),
            (format!("0\t{own}\t0\t0"), true),
            (format!("0\t{other}\t0\t0"), false),
            ("0".to_owned(), false),
        ] {
            std::fs::write(at.join("status"), format!("Name:\tx\nUid:\t{users}\n")).unwrap();
            assert_eq!(found().is_some(), is_found, "{users}");
        }
        assert_eq!(system_program(&Sysroot::live(), u32::MAX), None);
    }
}
