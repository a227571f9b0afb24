//! `/proc/net/softnet_stat`: the backlog of each CPU.

use serde::Serialize;

use super::{CountersError, numbers};
use crate::sysroot::{ReadError, Sysroot};

const PATH: &str = "/proc/net/softnet_stat";

/// Content of `/proc/net/softnet_stat` at one moment: a row per online CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Softnet {
    /// Rows in the file's order.
    pub rows: Vec<SoftnetCpu>,
}

/// One CPU's row. Counters are 32 bits wide in the kernel and wrap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SoftnetCpu {
    /// CPU number; `None` on kernels that don't write it. The line number does not give the CPU either.
    pub cpu: Option<u32>,
    pub processed: u64,
    /// Packets dropped because the backlog was full (`net.core.netdev_max_backlog`).
    pub dropped: u64,
    /// Times that the budget ran out before the packets did (`net.core.netdev_budget`).
    pub time_squeeze: u64,
    /// Times that another CPU asked this one to handle packets (RPS).
    pub received_rps: u64,
    /// Packets dropped to protect other flows.
    pub flow_limit: u64,
    /// Packets that wait now.
    pub backlog_len: u64,
}

impl Softnet {
    /// Reads `/proc/net/softnet_stat` below the root.
    ///
    /// # Errors
    /// [`ReadError`] with the path.
    pub fn read(root: &Sysroot) -> Result<Self, ReadError> {
        Self::parse(&root.read(PATH)?).map_err(|error| root.content(PATH, error.to_string()))
    }

    /// Parses the text of the file; columns that a kernel lacks count as zero.
    ///
    /// # Errors
    /// [`CountersError`] with the line: a word that is not a hexadecimal number, or too few numbers.
    pub fn parse(text: &str) -> Result<Self, CountersError> {
        let mut rows = Vec::new();
        for (line, text) in text.lines().enumerate().map(|(at, text)| (at + 1, text)) {
            let columns = numbers(text.split_ascii_whitespace(), 16, line)?;
            if columns.len() < 3 {
                return Err(CountersError::new(line, "has less than three columns"));
            }
            let at = |index: usize| columns.get(index).copied().unwrap_or(0);
            rows.push(SoftnetCpu {
                cpu: columns.get(12).and_then(|cpu| u32::try_from(*cpu).ok()),
                processed: at(0),
                dropped: at(1),
                time_squeeze: at(2),
                received_rps: at(9),
                flow_limit: at(10),
                backlog_len: at(11),
            });
        }
        Ok(Self { rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_the_one_written_and_not_the_line() {
        let text = "0000ffff 00000001 00000002 0 0 0 0 0 0 00000003 00000004 00000005 00000000 0 0\n\
                    00000010 00000000 00000000 0 0 0 0 0 0 00000000 00000000 00000000 00000003 0 0\n";
        let rows = Softnet::parse(text).unwrap().rows;
        assert_eq!((rows[0].cpu, rows[1].cpu), (Some(0), Some(3)));
        assert_eq!((rows[0].processed, rows[0].dropped, rows[0].time_squeeze), (0xffff, 1, 2));
        assert_eq!((rows[0].received_rps, rows[0].flow_limit, rows[0].backlog_len), (3, 4, 5));
        assert_eq!(Softnet::parse("1 2 3 4 5 6 7 8 9\n").unwrap().rows[0].cpu, None);
    }

    #[test]
    fn what_is_not_the_file_is_refused() {
        assert_eq!(Softnet::parse("1 2 3\n1 2\n").unwrap_err().line, 2);
        assert!(Softnet::parse("1 2 g").is_err() && Softnet::parse("1 +2 3").is_err());
    }

    #[test]
    fn this_machine_has_a_row_per_cpu() {
        let rows = Softnet::read(&Sysroot::live()).unwrap().rows;
        assert!(!rows.is_empty() && rows.iter().any(|row| row.processed > 0));
    }
}
