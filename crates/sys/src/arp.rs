//! Which interfaces answer ARP requests for addresses of other interfaces.

use std::fs;
use std::path::Path;

/// Whether the interface answers ARP requests for addresses that other interfaces of this host have, as the kernel's
/// defaults have it (`arp_ignore` is 0). Where several interfaces are in one network, packets for the address of one
/// may then arrive on any of them.
pub fn answers_for_others(interface: &str) -> bool {
    answers(Path::new("/proc/sys/net/ipv4/conf"), interface)
}

/// The kernel takes the larger of the values of `all` and of the interface. One that can't be read counts as the
/// default, 0.
fn answers(conf: &Path, interface: &str) -> bool {
    ["all", interface].iter().all(|name| {
        let value = fs::read_to_string(conf.join(name).join("arp_ignore"));
        value.ok().and_then(|value| value.trim().parse::<i32>().ok()).unwrap_or(0) == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_answers_for_others_unless_it_or_all_are_set_to_ignore() {
        let folder = std::env::temp_dir().join(format!("polyrail-arp-{}", std::process::id()));
        for (all, own, wanted) in [("0", "0", true), ("1", "0", false), ("0", "2", false)] {
            for (name, value) in [("all", all), ("eth1", own)] {
                fs::create_dir_all(folder.join(name)).unwrap();
                fs::write(folder.join(name).join("arp_ignore"), format!("{value}\n")).unwrap();
            }
            assert_eq!(answers(&folder, "eth1"), wanted, "{all} {own}");
        }
        assert!(answers(&folder.join("none"), "eth1"));
        fs::remove_dir_all(folder).unwrap();
    }
}
