//! The table that spreads received packets over queues: reading, computing and writing it.
//!
//! This module uses the old ethtool call, because netlink writes the table only since Linux 6.17.

use std::fmt;
use std::io;
use std::str::FromStr;

use crate::error::NicError;
use crate::ioctl::{call, command, rx_queues};

/// The queue of each bucket. A packet's hash chooses the bucket.
///
/// The text form is exact and short: `0-7 x16` is the queues 0 to 7 sixteen times in a row, `0*85,1*43` is 85 buckets
/// of queue 0 and then 43 of queue 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RssTable {
    buckets: Vec<u32>,
}

/// A text or a choice of queues that gives no valid table.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}; allowed: {allowed}")]
pub struct BadRssTable {
    pub fault: String,
    /// The accepted values.
    pub allowed: String,
}

fn bad(fault: impl Into<String>, allowed: impl Into<String>) -> BadRssTable {
    BadRssTable { fault: fault.into(), allowed: allowed.into() }
}

const GRSSH: u32 = 0x46;
const SRSSH: u32 = 0x47;
/// `struct ethtool_rxfh` up to its table, in words of 4 bytes.
const HEAD_WORDS: usize = 6;
const TABLE_SIZE: usize = 2;
const KEY_SIZE: usize = 3;
/// Hash function, input transformation, and two bytes that must be zero.
const FUNCTION: usize = 4;

/// Upper limit on buckets; the largest devices have 4,096.
const MOST_BUCKETS: usize = 1 << 16;

impl RssTable {
    /// Deals `size` buckets to the queues 0 to `queues` − 1, round-robin.
    ///
    /// # Errors
    /// [`BadRssTable`] if that leaves a queue without a bucket, or if there is no queue.
    pub fn equal(size: usize, queues: u32) -> Result<Self, BadRssTable> {
        check_count(size, queues as usize)?;
        Ok(Self { buckets: (0..queues).cycle().take(size).collect() })
    }

    /// Distributes `size` buckets in proportion to the weights of queue 0, 1 and so on.
    ///
    /// # Errors
    /// [`BadRssTable`] if all weights are 0, or a queue with a weight above 0 gets no bucket.
    pub fn weighted(size: usize, weights: &[u32]) -> Result<Self, BadRssTable> {
        check_count(size, weights.len())?;
        let sum: u64 = weights.iter().copied().map(u64::from).sum();
        if sum == 0 {
            return Err(bad("all weights are 0", "at least one above 0"));
        }
        let mut buckets = Vec::with_capacity(size);
        let mut so_far = 0;
        for (queue, weight) in (0u32..).zip(weights) {
            so_far += u64::from(*weight);
            // Both factors are below 2^48, so the product of the real ones fits.
            let end = (size as u128 * u128::from(so_far) / u128::from(sum)) as usize;
            if *weight > 0 && end == buckets.len() {
                let least = sum.div_ceil(size as u64);
                return Err(bad(
                    format!(
                        "the weight {weight} of queue {queue} is less than one of {size} buckets"
                    ),
                    format!("at least {least}"),
                ));
            }
            buckets.resize(end, queue);
        }
        Ok(Self { buckets })
    }

    /// Returns the queue of each bucket.
    pub fn buckets(&self) -> &[u32] {
        &self.buckets
    }

    /// Returns the number of buckets of each queue; queues without buckets are left out.
    pub fn counts(&self) -> Vec<(u32, usize)> {
        let mut queues = self.buckets.clone();
        queues.sort_unstable();
        queues.chunk_by(|a, b| a == b).map(|queue| (queue[0], queue.len())).collect()
    }

    /// Whether this is the kernel's default table for a device with `queues` queues.
    fn is_default(&self, queues: u32) -> bool {
        queues > 0 && self.buckets.iter().zip((0..queues).cycle()).all(|(is, would)| *is == would)
    }
}

/// Reads the table of `nic`.
///
/// # Errors
/// [`NicError::Refused`]; see [`NicError::is_unsupported`] for drivers that have none.
pub fn rss_table(nic: &str) -> Result<RssTable, NicError> {
    let asked = || format!("the RSS table of {nic}");
    let head = head(nic)?;
    let (size, key) = (head[TABLE_SIZE] as usize, head[KEY_SIZE] as usize);
    if size == 0 {
        let source = io::Error::from_raw_os_error(libc::EOPNOTSUPP);
        return Err(NicError::Refused { asked: asked(), source, said: None });
    }
    if size > MOST_BUCKETS || key > MOST_BUCKETS {
        return Err(NicError::Malformed { asked: asked(), fault: "more than 65,536 buckets" });
    }
    let mut request = command(GRSSH, (HEAD_WORDS + size) * 4 + key);
    request[TABLE_SIZE] = head[TABLE_SIZE];
    request[KEY_SIZE] = head[KEY_SIZE];
    call(nic, "the RSS table", &mut request)?;
    Ok(RssTable { buckets: request[HEAD_WORDS..HEAD_WORDS + size].to_vec() })
}

/// Writes the table of `nic`. Hash function and key stay as they are.
///
/// The kernel's own table is requested as the default, so that the kernel keeps adapting the table when the number of
/// queues changes. With any other table, the kernel refuses fewer queues than the table uses.
///
/// # Errors
/// [`NicError::Refused`] if the driver can't do it, has another number of buckets, or has fewer
/// queues. Then nothing has changed.
pub fn set_rss_table(nic: &str, table: &RssTable) -> Result<(), NicError> {
    let head = head(nic)?;
    if head[TABLE_SIZE] as usize != table.buckets.len() {
        return Err(NicError::Refused {
            asked: format!("the RSS table of {nic}"),
            source: io::Error::from_raw_os_error(libc::EINVAL),
            said: Some(format!(
                "the device has {} buckets, and the table {}",
                head[TABLE_SIZE],
                table.buckets.len()
            )),
        });
    }
    let is_default = rx_queues(nic).is_ok_and(|queues| table.is_default(queues));
    let buckets: &[u32] = if is_default { &[] } else { &table.buckets };
    let mut request = command(SRSSH, (HEAD_WORDS + buckets.len()) * 4);
    request[TABLE_SIZE] = buckets.len() as u32;
    // With 0 here, the kernel keeps its hash function, but it would apply a transformation of 0.
    request[FUNCTION] = only_transformation(head[FUNCTION]);
    request[HEAD_WORDS..].copy_from_slice(buckets);
    call(nic, "a new RSS table", &mut request)
}

/// For fuzzing: parses a table, and checks that its text form reads back to the same table.
pub(crate) fn examine(bytes: &[u8]) -> usize {
    let text = std::str::from_utf8(bytes).unwrap_or_default();
    let Ok(table) = text.parse::<RssTable>() else { return 0 };
    assert_eq!(table.to_string().parse().as_ref(), Ok(&table), "{text}");
    table.buckets.len()
}

/// Reads the sizes of table and key, and the function.
fn head(nic: &str) -> Result<Vec<u32>, NicError> {
    let mut request = command(GRSSH, HEAD_WORDS * 4);
    call(nic, "the size of the RSS table", &mut request)?;
    Ok(request)
}

/// Clears the hash function, the first byte, and the two bytes after the transformation.
fn only_transformation(function: u32) -> u32 {
    let [_, transformation, ..] = function.to_ne_bytes();
    u32::from_ne_bytes([0, transformation, 0, 0])
}

fn check_count(size: usize, queues: usize) -> Result<(), BadRssTable> {
    match queues {
        0 => Err(bad("no queue is left", "at least 1")),
        _ if queues > size => Err(bad(
            format!("{queues} queues are more than the {size} buckets of the table"),
            format!("1 to {size}"),
        )),
        _ => Ok(()),
    }
}

impl fmt::Display for RssTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.buckets.len();
        let repeats =
            |period: &usize| self.buckets.iter().zip(&self.buckets[*period..]).all(|(a, b)| a == b);
        let periods = (1..=size / 2).filter(|period| size.is_multiple_of(*period));
        let period = periods.into_iter().find(repeats).unwrap_or(size);
        let mut rest = &self.buckets[..period];
        let mut separator = "";
        while let Some(first) = rest.first() {
            let same = rest.iter().take_while(|queue| *queue == first).count();
            let rising = rest.iter().zip(*first..).take_while(|(is, next)| *is == next).count();
            f.write_str(separator)?;
            let taken = same.max(rising);
            match (same, rising) {
                (1, 1) => write!(f, "{first}")?,
                (same, rising) if same > rising => write!(f, "{first}*{same}")?,
                _ => write!(f, "{first}-{}", rest[taken - 1])?,
            }
            rest = &rest[taken..];
            separator = ",";
        }
        match size / period.max(1) {
            0 | 1 => Ok(()),
            times => write!(f, " x{times}"),
        }
    }
}

impl FromStr for RssTable {
    type Err = BadRssTable;

    fn from_str(text: &str) -> Result<Self, BadRssTable> {
        parse(text).ok_or_else(|| {
            let shown: String = text.chars().take(40).collect();
            bad(format!("`{shown}` is no RSS table"), "one like `0-7 x16` or `0*85,1*43`")
        })
    }
}

fn parse(text: &str) -> Option<RssTable> {
    let (list, times) = match text.split_once(" x") {
        Some((list, times)) => (list, times.parse().ok()?),
        None => (text, 1usize),
    };
    let mut buckets: Vec<u32> = Vec::new();
    for item in list.split(',') {
        let room = MOST_BUCKETS - buckets.len();
        if let Some((queue, count)) = item.split_once('*') {
            let count = count.parse().ok().filter(|count| *count <= room)?;
            buckets.extend(std::iter::repeat_n(queue.parse::<u32>().ok()?, count));
        } else {
            let (first, last) = item.split_once('-').unwrap_or((item, item));
            let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
            if first > last || (last - first) as usize >= room {
                return None;
            }
            buckets.extend(first..=last);
        }
    }
    let size = buckets.len().checked_mul(times).filter(|size| (1..=MOST_BUCKETS).contains(size))?;
    Some(RssTable { buckets: buckets.into_iter().cycle().take(size).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(buckets: &[u32]) -> RssTable {
        RssTable { buckets: buckets.to_vec() }
    }

    #[test]
    fn equal_shares_are_dealt_out_in_turn_and_weights_in_blocks() {
        assert_eq!(RssTable::equal(8, 3).unwrap().buckets, [0, 1, 2, 0, 1, 2, 0, 1]);
        assert_eq!(RssTable::weighted(8, &[3, 0, 1]).unwrap().buckets, [0, 0, 0, 0, 0, 0, 2, 2]);
        assert_eq!(RssTable::weighted(128, &[2, 1]).unwrap().counts(), [(0, 85), (1, 43)]);
        let huge = RssTable::weighted(2, &[u32::MAX, u32::MAX]).unwrap();
        assert_eq!(huge.buckets, [0, 1]);
    }

    #[test]
    fn shares_that_leave_a_queue_without_a_bucket_are_refused() {
        assert!(RssTable::equal(8, 0).unwrap_err().to_string().contains("at least 1"));
        assert!(RssTable::equal(8, 9).unwrap_err().to_string().contains("8 buckets"));
        assert!(RssTable::weighted(8, &[]).is_err() && RssTable::weighted(8, &[0, 0]).is_err());
        let error = RssTable::weighted(8, &[1, 100]).unwrap_err();
        assert!(
            error.to_string().contains("queue 0") && error.to_string().contains("at least 13"),
            "{error}"
        );
    }

    #[test]
    fn tables_are_short_text_that_reads_back() {
        for (buckets, text) in [
            (vec![0, 1, 2, 3, 0, 1, 2, 3], "0-3 x2"),
            (vec![0; 4], "0 x4"),
            (vec![0, 0, 0, 1, 1], "0*3,1*2"),
            (vec![0, 1, 2, 0, 1], "0-2,0-1"),
            (vec![5, 3, 9], "5,3,9"),
            (vec![7], "7"),
        ] {
            assert_eq!(table(&buckets).to_string(), text);
            assert_eq!(text.parse(), Ok(table(&buckets)));
        }
        let eighth = RssTable::equal(128, 8).unwrap();
        assert_eq!(eighth.to_string(), "0-7 x16");
    }

    #[test]
    fn what_is_no_table_is_refused_whatever_its_size_would_be() {
        for text in [
            "",
            "x",
            "1-",
            "3-1",
            "0*4294967295",
            "0-4294967295",
            "0-9 x99999999",
            "0 x0",
            "0,",
            "-",
        ] {
            assert!(text.parse::<RssTable>().is_err(), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn every_table_reads_back_and_no_text_panics(
            buckets in proptest::collection::vec(0u32..6, 1..40),
            times in 1usize..4,
            text in "[0-9,*x -]{0,20}",
        ) {
            let table = table(&buckets.repeat(times));
            proptest::prop_assert_eq!(table.to_string().parse(), Ok(table));
            examine(text.as_bytes());
        }
    }

    #[test]
    fn the_kernels_own_table_is_known_by_its_order_and_number_of_queues() {
        assert!(RssTable::equal(10, 4).unwrap().is_default(4));
        assert!(!RssTable::equal(10, 4).unwrap().is_default(8));
        assert!(!table(&[0, 0, 1, 1]).is_default(2) && !table(&[0]).is_default(0));
    }

    #[test]
    fn of_function_and_transformation_only_the_latter_is_kept() {
        let before = u32::from_ne_bytes([1, 2, 9, 9]);
        assert_eq!(only_transformation(before).to_ne_bytes(), [0, 2, 0, 0]);
    }
}
