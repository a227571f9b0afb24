//! Tables of counters that only this crate reads: protocols, and interrupts by CPU. The readers parse bytes, and leave
//! out values that are not numbers.

use std::collections::BTreeMap;

/// Reads `/proc/net/snmp` or `/proc/net/netstat`, where a line of names comes before each line of
/// values, into `sums` under names such as `TcpExt.TCPTimeouts`; only protocols in `wanted`.
pub(crate) fn protocols(text: &[u8], wanted: &[&str], sums: &mut BTreeMap<String, u64>) {
    let mut lines = lines(text);
    while let (Some(names), Some(values)) = (lines.next(), lines.next()) {
        let (mut names, mut values) = (words(names), words(values));
        let protocol = names.next();
        if protocol != values.next() {
            return;
        }
        let protocol = protocol.and_then(|word| word.strip_suffix(b":"));
        let Some(protocol) = wanted.iter().find(|name| protocol == Some(name.as_bytes())) else {
            continue;
        };
        for (name, value) in names.zip(values) {
            // Some values are not counters: limits, which may be negative, and numbers of open connections.
            if NO_COUNTERS.contains(&name) {
                continue;
            }
            if let (Ok(name), Some(value)) = (std::str::from_utf8(name), number(value)) {
                sums.insert(format!("{protocol}.{name}"), value);
            }
        }
    }
}

const NO_COUNTERS: [&[u8]; 5] = [b"RtoAlgorithm", b"RtoMin", b"RtoMax", b"MaxConn", b"CurrEstab"];

/// Reads a comma-separated row of counts, as in `/sys/kernel/irq/N/per_cpu_count`, with one for
/// each possible CPU. The counters have 32 bits and wrap.
pub(crate) fn per_cpu_counts(text: &[u8]) -> Option<Vec<u32>> {
    text.trim_ascii().split(|byte| *byte == b',').map(number).collect()
}

/// Parses decimal digits.
pub(crate) fn number<T: TryFrom<u64>>(word: &[u8]) -> Option<T> {
    let mut value = 0u64;
    for byte in word {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        value = value.checked_mul(10)?.checked_add(digit.into())?;
    }
    if word.is_empty() { None } else { T::try_from(value).ok() }
}

pub(crate) fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
}

pub(crate) fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocol_counters_are_found_by_name() {
        let text = b"Tcp: RtoMin MaxConn RetransSegs\nTcp: 200 -1 7\nUdp: X\nUdp: 3\n";
        let mut sums = BTreeMap::new();
        protocols(text, &["Tcp"], &mut sums);
        let sums: Vec<_> = sums.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        assert_eq!(sums, [("Tcp.RetransSegs", 7)]);
    }

    #[test]
    fn counts_by_cpu_are_all_or_nothing() {
        assert_eq!(per_cpu_counts(b"0,12,4294967295\n"), Some(vec![0, 12, u32::MAX]));
        assert_eq!(per_cpu_counts(b"0,,1"), None);
        assert_eq!(per_cpu_counts(b""), None);
    }

    #[test]
    fn the_tables_of_this_machine_are_read() {
        let read = |path: &str| std::fs::read(path).unwrap();
        let mut sums = BTreeMap::new();
        protocols(&read("/proc/net/snmp"), &["Tcp"], &mut sums);
        protocols(&read("/proc/net/netstat"), &["TcpExt"], &mut sums);
        assert!(sums.contains_key("Tcp.RetransSegs") && sums.contains_key("TcpExt.TCPTimeouts"));
    }
}
