//! The bodies of the fuzzers `cpus`, `interrupts` and `bindings`; `cargo test -p polyrail-host` runs
//! them on the corpus, too. Each program uses its part.

use std::fmt::Display;

use polyrail_host::bindings::Bindings;
use polyrail_host::{CpuSet, Interrupts, NetDev, Softirqs, Softnet, Stat};

/// Longest message about a text of any length, in bytes.
const MESSAGE_LIMIT_BYTES: usize = 1024;

/// Any text as a list and as a mask of CPUs. A valid text is written so that it reads back, in both forms; the error of
/// an invalid one is one short line, with a column inside the text.
pub(crate) fn cpus(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for parsed in [CpuSet::parse_list(text), CpuSet::parse_mask(text)] {
        match parsed {
            Ok(set) => {
                assert_eq!(CpuSet::parse_list(&set.to_string()), Ok(set.clone()));
                for cpu_ids in [0, 1, 32, 33, 208, 8192] {
                    assert_eq!(CpuSet::parse_mask(&set.to_mask(cpu_ids)), Ok(set.clone()));
                }
                assert_eq!(set.iter().count(), set.len());
                assert_eq!(set.iter().last(), set.last());
                assert!(set.ranges().iter().all(|(first, last)| first <= last));
            }
            Err(error) => {
                assert!((1..=text.chars().count() + 1).contains(&error.column), "{error}");
                check(&error);
            }
        }
    }
}

/// Any text as `/proc/interrupts` and as the other tables of counters. Rows of an accepted table have a count for each
/// CPU, and no interrupt appears twice.
pub(crate) fn interrupts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Interrupts::parse(text) {
        Ok(table) => {
            assert!(!table.cpus.is_empty() && table.cpus.is_sorted());
            for (at, irq) in table.irqs.iter().enumerate() {
                assert_eq!(irq.counts.len(), table.cpus.len());
                assert!(table.irqs[..at].iter().all(|other| other.number != irq.number));
                assert_eq!(table.irq(irq.number), Some(irq));
                if let Some(pci) = irq.pci {
                    assert!(table.of_device(pci).contains(&irq));
                }
            }
            assert!(table.named.iter().all(|row| row.counts.len() <= table.cpus.len()));
        }
        Err(error) => check(&error),
    }
    match Softirqs::parse(text) {
        Ok(table) => {
            assert!(table.rows.iter().all(|(_, counts)| counts.len() == table.cpus.len()));
        }
        Err(error) => check(&error),
    }
    if let Err(error) = Stat::parse(text) {
        check(&error);
    }
    match Softnet::parse(text) {
        Ok(table) => assert_eq!(table.rows.len(), text.lines().count()),
        Err(error) => check(&error),
    }
    if let Err(error) = NetDev::parse(text) {
        check(&error);
    }
}

/// Any text as bindings. Valid bindings are written in the form of TCPX, where every item is a range, and read back
/// unchanged; the error of invalid ones has a column inside the text.
pub(crate) fn bindings(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Bindings::parse(text) {
        Ok(bindings) => {
            let written = bindings.to_string();
            assert!(!written.contains(char::is_whitespace));
            let items = written.split(';').filter_map(|entry| entry.split_once(':'));
            for item in items.flat_map(|(_, list)| list.split(',')) {
                assert_eq!(item.split('-').count(), 2, "{written}");
            }
            assert_eq!(Bindings::parse(&written).as_ref(), Ok(&bindings), "{written}");
            for (name, cpus) in &bindings.entries {
                assert!(!cpus.is_empty() && cpus.is_subset(&bindings.all_cpus()));
                assert_eq!(bindings.cpus(name), Some(cpus));
            }
        }
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.column), "{error}");
            assert_ne!(error.help().as_deref(), Some(""));
            check(&error);
        }
    }
}

fn check(error: &impl Display) {
    let message = error.to_string();
    assert!(!message.is_empty() && message.len() < MESSAGE_LIMIT_BYTES, "{message}");
    assert!(!message.chars().any(char::is_control), "{message:?}");
}
