//! `/proc/softirqs`: runs of deferred work on each CPU.

use serde::Serialize;

use super::{CountersError, numbers};
use crate::interrupts::heading_cpus;
use crate::sysroot::{ReadError, Sysroot, short};

const PATH: &str = "/proc/softirqs";

/// Content of `/proc/softirqs` at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Softirqs {
    /// CPU of each column: all possible CPUs, online or not.
    pub cpus: Vec<u32>,
    /// Names (`NET_RX`, `NET_TX`, `TIMER` …) with one count per CPU, in the file's order.
    pub rows: Vec<(String, Vec<u64>)>,
}

impl Softirqs {
    /// Reads `/proc/softirqs` below the root.
    ///
    /// # Errors
    /// [`ReadError`] with the path.
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        Self::parse(&root.read(PATH)?).map_err(|error| root.content(PATH, error.to_string()))
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// [`CountersError`] with the line: a heading that names no CPUs, or a row whose number of counts is not that of
    /// CPUs.
    pub fn parse(text: &str) -> Result<Self, CountersError> {
        let mut lines = text.lines();
        let cpus = heading_cpus(lines.next().unwrap_or_default())
            .map_err(|fault| CountersError::new(1, fault))?;
        let mut rows = Vec::new();
        for (line, text) in lines.enumerate().map(|(at, text)| (at + 2, text)) {
            if text.trim().is_empty() {
                continue;
            }
            let Some((name, counts)) = text.split_once(':') else {
                return Err(CountersError::new(line, format!("`{}` has no colon", short(text))));
            };
            let counts = numbers(counts.split_ascii_whitespace(), 10, line)?;
            if counts.len() != cpus.len() {
                let fault = format!("has {} counts for {} CPUs", counts.len(), cpus.len());
                return Err(CountersError::new(line, fault));
            }
            rows.push((name.trim().to_owned(), counts));
        }
        Ok(Self { cpus, rows })
    }

    /// Returns the counts of one kind, such as `NET_RX`: one per entry of [`Self::cpus`].
    pub fn row(&self, name: &str) -> Option<&[u64]> {
        self.rows.iter().find(|(row, _)| row == name).map(|(_, counts)| counts.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_a_count_for_every_cpu_that_is_possible() {
        let table = Softirqs::parse("   CPU0  CPU1\n  HI:  0 1\nNET_RX:  5   7\n").unwrap();
        assert_eq!(table.row("NET_RX"), Some([5, 7].as_slice()));
        assert_eq!(table.row("NET_TX"), None);
        for (text, line) in
            [("", 1), ("CPU0\nHI 3", 2), ("CPU0\nHI: 3\nRX: 3 4", 3), ("CPU0\nHI: a", 2)]
        {
            assert_eq!(Softirqs::parse(text).unwrap_err().line, line, "{text}");
        }
    }

    #[test]
    fn this_machine_receives() {
        let table = Softirqs::read(&Sysroot::live()).unwrap();
        assert!(table.row("NET_RX").unwrap().iter().sum::<u64>() > 0);
    }
}
