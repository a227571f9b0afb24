//! The privileges that this process has, and those that it lacks.

use std::fs;
use std::io;

use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

use crate::error::{During, LabError};
use crate::holder::Holder;
use crate::named;
use crate::node::Form;

/// The privilege that builds a lab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// Namespaces with names in `/run/netns`, visible to every user.
    Root,
    /// Namespaces inside a user namespace, kept alive by a process of this user.
    UserNamespace,
}

impl Privilege {
    /// The name for output and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::UserNamespace => "user-namespace",
        }
    }
}

/// Determines how this process could build a lab; changes nothing permanently.
///
/// # Errors
/// [`LabError::NotPermitted`], with the missing permission and the way to grant it.
pub fn availability() -> Result<Privilege, LabError> {
    if is_root() {
        return Ok(Privilege::Root);
    }
    // Only an attempt can find out: sysctls, security modules and seccomp filters can all refuse.
    let nothing = fs::File::open("/dev/null").during(|| "opening /dev/null".into())?;
    Holder::spawn(std::os::fd::AsFd::as_fd(&nothing), Form::Pair)?;
    Ok(Privilege::UserNamespace)
}

/// Whether this process can make network namespaces and name them.
pub(crate) fn is_root() -> bool {
    lacking_for_root().is_none()
}

/// Builds the error for a failed step towards a user namespace, with the missing permission.
pub(crate) fn explain(step: &str, errno: Errno) -> LabError {
    let root = lacking_for_root().unwrap_or_else(|| "nothing for root".into());
    let (cause, grant) = explain_user_namespace(errno, |path| fs::read_to_string(path));
    LabError::NotPermitted {
        missing: format!(
            "as root: {root}; in a user namespace: {step} failed ({}), {cause}",
            io::Error::from(errno)
        ),
        grant: format!("run as root, for instance with `sudo`, or {grant}"),
    }
}

fn lacking_for_root() -> Option<String> {
    let effective = match capabilities(None) {
        Ok(sets) => sets.effective,
        Err(errno) => return Some(format!("capabilities cannot be read ({errno})")),
    };
    let needed =
        [(CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"), (CapabilitySet::NET_ADMIN, "CAP_NET_ADMIN")];
    let missing = needed.iter().filter(|(one, _)| !effective.contains(*one));
    let missing = missing.map(|(_, name)| *name).collect::<Vec<_>>();
    if !missing.is_empty() {
        return Some(format!("{} missing (uid {})", missing.join(" and "), geteuid().as_raw()));
    }
    let errno = named::may_mount().err()?;
    Some(format!("mounting is refused ({})", io::Error::from(errno)))
}

/// Returns the cause and the fix, from the errno and the sysctls that distributions have.
fn explain_user_namespace(
    errno: Errno,
    read: impl Fn(&str) -> io::Result<String>,
) -> (String, String) {
    let switch = |name: &str| {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        read(&path).ok().and_then(|text| text.trim().parse::<u64>().ok())
    };
    let by_sysctl = |name: &str, value: u64, wanted: &str| {
        (format!("{name} is {value}"), format!("`sysctl -w {name}={wanted}` as root"))
    };
    for name in ["user.max_user_namespaces", "user.max_net_namespaces"] {
        if switch(name) == Some(0) || errno == Errno::NOSPC && switch(name).is_some() {
            return by_sysctl(name, switch(name).unwrap_or(0), "10000");
        }
    }
    if switch("kernel.unprivileged_userns_clone") == Some(0) {
        return by_sysctl("kernel.unprivileged_userns_clone", 0, "1");
    }
    if switch("kernel.apparmor_restrict_unprivileged_userns").is_some_and(|value| value > 0) {
        return by_sysctl("kernel.apparmor_restrict_unprivileged_userns", 1, "0");
    }
    if errno == Errno::INVAL || errno == Errno::NOSYS {
        return (
            "the kernel may lack CONFIG_USER_NS or CONFIG_NET_NS".into(),
            "use a kernel built with both".into(),
        );
    }
    (
        "probably by a seccomp filter or security module, as in a container".into(),
        "allow unshare(CLONE_NEWUSER), for instance with `docker run --privileged`".into(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(errno: Errno, switches: &[(&str, &str)]) -> String {
        let read = |path: &str| {
            let found = switches.iter().find(|(name, _)| path.ends_with(&name.replace('.', "/")));
            found.map(|(_, value)| format!("{value}\n")).ok_or(io::ErrorKind::NotFound.into())
        };
        let (cause, grant) = explain_user_namespace(errno, read);
        format!("{cause}; {grant}")
    }

    #[test]
    fn the_switch_that_forbids_user_namespaces_is_named() {
        let max = ("user.max_user_namespaces", "0");
        assert!(explained(Errno::NOSPC, &[max]).contains("sysctl -w user.max_user_namespaces="));
        let debian = ("kernel.unprivileged_userns_clone", "0");
        assert!(explained(Errno::PERM, &[debian]).contains("userns_clone is 0; `sysctl -w"));
        let ubuntu = ("kernel.apparmor_restrict_unprivileged_userns", "1");
        assert!(explained(Errno::ACCESS, &[ubuntu]).contains("unprivileged_userns=0` as root"));
        assert!(explained(Errno::PERM, &[("user.max_user_namespaces", "9")]).contains("seccomp"));
        assert!(explained(Errno::INVAL, &[]).contains("CONFIG_USER_NS"));
    }

    #[test]
    fn the_answer_names_both_ways_that_are_closed() {
        let error = explain("making a user namespace", Errno::PERM);
        assert!(error.to_string().contains("in a user namespace: making a user namespace failed"));
        assert!(error.help().unwrap().starts_with("run as root"));
    }
}
