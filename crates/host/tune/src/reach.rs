//! Interfaces over which this host is reached, which no change may cut by mistake.

use std::collections::BTreeMap;

use polyrail_host::Sysroot;

use crate::error::TuneError;
use crate::plan::Plan;
use crate::target::Target;

/// Interfaces whose loss would cut off the host, with the reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    nics: BTreeMap<String, &'static str>,
}

impl Reach {
    /// Reads the default routes below the root; `ssh` is the interface that the caller's SSH
    /// session uses.
    ///
    /// # Errors
    /// [`TuneError::Read`] if the routes exist but can't be read.
    pub fn read(root: &Sysroot, ssh: Option<String>) -> Result<Self, TuneError> {
        let mut nics = BTreeMap::new();
        let v4 = root.read_optional("/proc/net/route")?.unwrap_or_default();
        nics.extend(v4.lines().skip(1).filter_map(|line| {
            let mut words = line.split_whitespace();
            let (nic, destination) = (words.next()?, words.next()?);
            let mask = words.nth(5)?;
            let is_default = destination == "00000000" && mask == "00000000";
            is_default.then(|| (nic.to_owned(), "the default route"))
        }));
        let v6 = root.read_optional("/proc/net/ipv6_route")?.unwrap_or_default();
        nics.extend(v6.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (destination, length) = (words.first()?, words.get(1)?);
            let (gateway, nic) = (words.get(4)?, words.get(9)?);
            let zeros = |text: &str| text.bytes().all(|byte| byte == b'0');
            // The kernel's own entry for "unreachable" has no gateway and is on `lo`.
            let is_default = zeros(destination) && *length == "00" && !zeros(gateway);
            is_default.then(|| ((*nic).to_owned(), "the default route"))
        }));
        if let Some(nic) = ssh {
            nics.insert(nic, "this SSH session");
        }
        Ok(Self { nics })
    }

    /// Returns the reason why an interface matters, if it does.
    pub fn carries(&self, nic: &str) -> Option<&'static str> {
        self.nics.get(nic).copied()
    }
}

/// Refuses a plan that may take down an interface over which the host is reached. If the caller
/// allows that, returns the number of such changes.
///
/// # Errors
/// [`TuneError::Disruptive`] unless `allow`.
pub fn refuse_disruptive(plan: &Plan, reach: &Reach, allow: bool) -> Result<usize, TuneError> {
    let mut found = 0;
    for change in plan.changes.iter().filter(|change| change.target.resets_link()) {
        let Target::Ethtool { nic, .. } = &change.target else { continue };
        let Some(carries) = reach.carries(nic) else { continue };
        if !allow {
            return Err(TuneError::Disruptive {
                what: format!("{} from {} to {}", change.target, change.old, change.new),
                nic: nic.clone(),
                carries: carries.to_owned(),
            });
        }
        found += 1;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interfaces_of_default_routes_are_found_and_others_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        std::fs::create_dir_all(root.path("/proc/net")).unwrap();
        let v4 = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
                  eth1\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\n\
                  eth10\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\n";
        let zero = "0".repeat(32);
        let v6 = format!(
            "{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo\n\
             {zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 1 0 00000003 eth2\n"
        );
        std::fs::write(root.path("/proc/net/route"), v4).unwrap();
        std::fs::write(root.path("/proc/net/ipv6_route"), v6).unwrap();
        let reach = Reach::read(&root, Some("eth7".to_owned())).unwrap();
        assert_eq!(reach.carries("eth1"), Some("the default route"));
        assert_eq!(reach.carries("eth2"), Some("the default route"));
        assert_eq!(reach.carries("eth7"), Some("this SSH session"));
        assert_eq!(reach.carries("eth10"), None);
        assert_eq!(reach.carries("lo"), None);
    }
}
