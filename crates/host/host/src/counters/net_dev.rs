//! `/proc/net/dev`: bytes, packets and losses of each network interface.

use serde::Serialize;

use super::{CountersError, numbers};
use crate::sysroot::{ReadError, Sysroot, short};

const PATH: &str = "/proc/net/dev";

/// Content of `/proc/net/dev` at one moment: the interfaces of this network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetDev {
    /// Names and counters, in the file's order.
    pub interfaces: Vec<(String, NetDevCounters)>,
}

/// Counters of one interface since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NetDevCounters {
    pub rx_bytes: u64,
    pub rx_packets: u64,
    /// Received packets that were damaged.
    pub rx_errors: u64,
    /// Received packets that the kernel dropped.
    pub rx_dropped: u64,
    /// Packets that the interface itself had no room for.
    pub rx_fifo: u64,
    pub tx_bytes: u64,
    pub tx_packets: u64,
    /// Packets that could not be sent.
    pub tx_errors: u64,
    /// Packets dropped before they were sent.
    pub tx_dropped: u64,
}

impl NetDev {
    /// Reads `/proc/net/dev` below the root.
    ///
    /// # Errors
    /// [`ReadError`] with the path.
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        Self::parse(&root.read(PATH)?).map_err(|error| root.content(PATH, error.to_string()))
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// [`CountersError`] with the line: no colon, a word that is not a number, or too few numbers.
    pub fn parse(text: &str) -> Result<Self, CountersError> {
        let mut interfaces = Vec::new();
        // Two lines of headings come first.
        for (at, text) in text.lines().enumerate().skip(2) {
            let line = at + 1;
            // Names may contain colons; numbers don't.
            let Some((name, counters)) = text.rsplit_once(':') else {
                return Err(CountersError::new(line, format!("`{}` has no colon", short(text))));
            };
            let columns = numbers(counters.split_ascii_whitespace(), 10, line)?;
            if columns.len() < 12 {
                return Err(CountersError::new(line, "has less than twelve columns"));
            }
            let counters = NetDevCounters {
                rx_bytes: columns[0],
                rx_packets: columns[1],
                rx_errors: columns[2],
                rx_dropped: columns[3],
                rx_fifo: columns[4],
                tx_bytes: columns[8],
                tx_packets: columns[9],
                tx_errors: columns[10],
                tx_dropped: columns[11],
            };
            interfaces.push((name.trim().to_owned(), counters));
        }
        Ok(Self { interfaces })
    }

    /// Returns the counters of the interface with exactly this name.
    pub fn interface(&self, name: &str) -> Option<&NetDevCounters> {
        self.interfaces.iter().find(|(other, _)| other == name).map(|(_, counters)| counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Inter-|   Receive        |  Transmit\n face |bytes ... |bytes ...\n\
                        eth10: 1 2 3 4 5 0 0 0 9 10 11 12 0 0 0 0\n  eth1:21 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n";

    #[test]
    fn a_name_that_begins_another_is_told_apart() {
        let table = NetDev::parse(TEXT).unwrap();
        assert_eq!(table.interface("eth1").unwrap().rx_bytes, 21);
        let eth10 = table.interface("eth10").unwrap();
        assert_eq!(
            (eth10.rx_dropped, eth10.rx_fifo, eth10.tx_bytes, eth10.tx_dropped),
            (4, 5, 9, 12)
        );
        assert_eq!(table.interface("eth"), None);
    }

    #[test]
    fn what_is_not_the_file_is_refused() {
        assert_eq!(NetDev::parse("a\nb\neth0 1 2").unwrap_err().line, 3);
        assert_eq!(NetDev::parse("a\nb\neth0: 1 2").unwrap_err().line, 3);
        assert!(NetDev::parse("").unwrap().interfaces.is_empty());
    }

    #[test]
    fn this_machine_has_a_loopback_interface() {
        assert!(NetDev::read(&Sysroot::live()).unwrap().interface("lo").is_some());
    }
}
