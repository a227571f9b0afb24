//! Removes details from files that identify a machine or user, and keeps those that checks need.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

/// Bytes of the configuration space to keep. They hold no serial number; reading beyond them needs root anyway.
const PCI_CONFIG_BYTES: usize = 256;

/// Rows of `/proc/self/status` to keep: they show the rights of the process, not its identity.
const STATUS_ROWS: &[&str] = &["CapEff:", "Seccomp:", "Cpus_allowed_list:"];

/// Returns the content of the file at `path` in a form that is safe to give to others.
pub(super) fn content(path: &str, content: Vec<u8>) -> Vec<u8> {
    let keep_lines = |keep: fn(&&str) -> bool| {
        let text = String::from_utf8_lossy(&content);
        let lines: Vec<&str> = text.lines().filter(keep).collect();
        format!("{}\n", lines.join("\n")).into_bytes()
    };
    match path.rsplit('/').next().unwrap_or_default() {
        "address" => b"00:00:00:00:00:00\n".to_vec(),
        // In the file of NVIDIA's driver, only the name of the model is known to be harmless.
        "information" => keep_lines(|line| line.starts_with("Model:")),
        "cpuinfo" => keep_lines(|line| !line.starts_with("Serial")),
        "config" => content[..content.len().min(PCI_CONFIG_BYTES)].to_vec(),
        "status" if path == "/proc/self/status" => {
            keep_lines(|line| STATUS_ROWS.iter().any(|row| line.starts_with(row)))
        }
        "route" if path == "/proc/net/route" => {
            routes(&String::from_utf8_lossy(&content)).into_bytes()
        }
        _ => content,
    }
}

/// Returns the table of routes with other addresses. The result keeps which interface has which route, which routes are
/// equal, and which are default routes. Lines in another format are left out.
fn routes(text: &str) -> String {
    let mut known: BTreeMap<String, u32> = BTreeMap::new();
    let mut lines = text.lines();
    let mut redacted = format!("{}\n", lines.next().unwrap_or_default());
    for line in lines {
        let mut fields: Vec<&str> = line.split_whitespace().collect();
        let [_, destination, gateway, ..] = fields.as_slice() else { continue };
        let is_address = |text: &&str| text.len() == 8 && u32::from_str_radix(text, 16).is_ok();
        if !is_address(destination) || !is_address(gateway) {
            continue;
        }
        let count = u32::try_from(known.len()).unwrap_or(u32::MAX);
        let destination = match *destination {
            "00000000" => "00000000".to_owned(),
            other => subnet(*known.entry(other.to_owned()).or_insert(count)),
        };
        let gateway = match *gateway {
            "00000000" => "00000000".to_owned(),
            _ => in_kernel_order(Ipv4Addr::new(198, 19, 255, 1)),
        };
        (fields[1], fields[2]) = (&destination, &gateway);
        redacted.push_str(&fields.join("\t"));
        redacted.push('\n');
    }
    redacted
}

/// Returns the subnet of this number, from the range reserved for benchmarks.
fn subnet(number: u32) -> String {
    let [.., high, low] = number.min(0xfffe).to_be_bytes();
    in_kernel_order(Ipv4Addr::new(198, 18 + high / 128, high % 128 * 2 + low / 128, low % 128 * 2))
}

/// Formats an address like the kernel: the bytes in memory order, as one number of this machine.
fn in_kernel_order(address: Ipv4Addr) -> String {
    format!("{:08X}", u32::from_ne_bytes(address.octets()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_keep_their_shape_and_lose_their_addresses() {
        let text = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n\
                    eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\n\
                    eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                    eth1\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                    eth1\t0001000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\n\
                    secret line\neth1\tsecret\tsecret\n";
        let redacted = routes(text);
        let lines: Vec<Vec<&str>> =
            redacted.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines.len(), 5, "{redacted}");
        assert_eq!((lines[1][0], lines[1][1], lines[1][7]), ("eth0", "00000000", "00000000"));
        assert_ne!(lines[1][2], "00000000", "a default route has a gateway");
        assert_eq!(lines[2][1], lines[3][1], "both are still on one subnet");
        assert_ne!(lines[3][1], lines[4][1]);
        for secret in ["0000000A", "0001000A", "0100000A", "secret"] {
            assert!(!redacted.contains(secret), "{secret}");
        }
        assert_eq!(lines[0], text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>());
    }

    #[test]
    fn every_number_is_another_subnet_in_the_range_for_tests() {
        let mut seen = std::collections::BTreeSet::new();
        for number in 0..1000 {
            let text = subnet(number);
            let bytes = u32::from_str_radix(&text, 16).unwrap().to_ne_bytes();
            assert!(bytes[0] == 198 && (bytes[1] == 18 || bytes[1] == 19), "{text}");
            assert!(seen.insert(text));
        }
    }

    #[test]
    fn of_the_process_only_its_rights_are_kept() {
        let status = b"Name:\tsecret\nPid:\t7\nCapEff:\t0000003000\nSeccomp:\t0\nUid:\t1000\n";
        let kept = content("/proc/self/status", status.to_vec());
        assert_eq!(kept, b"CapEff:\t0000003000\nSeccomp:\t0\n");
        assert_eq!(content("/sys/x/status", b"as it is".to_vec()), b"as it is");
    }
}
