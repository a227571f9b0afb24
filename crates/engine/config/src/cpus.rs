//! Parser of the kernel's CPU lists: `8-21,112-125`.

use polyrail_yaml::excerpt;

/// Highest CPU number accepted, which is the kernel's build-time maximum.
pub const LAST_CPU: u32 = 8191;

/// A text that is not a list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CpuListError {
    /// Nothing between two commas, or before the first or after the last.
    #[error("has an empty item in the list")]
    EmptyItem,
    /// Neither `N` nor `N-M`.
    #[error("has the item `{0}`, which is neither a CPU nor a range of CPUs")]
    NotACpu(String),
    /// The range ends before it starts.
    #[error("has the range `{first}-{last}`, which ends before it starts")]
    Reversed {
        /// Start of the range.
        first: u32,
        /// End of the range.
        last: u32,
    },
    /// Beyond [`LAST_CPU`].
    #[error("has CPU {0}; the last one possible is {LAST_CPU}")]
    TooHigh(String),
}

/// Reads a list of CPUs, like `8-21,112-125`, into ascending CPU numbers without repeats.
///
/// The empty text is the empty list. Whether the CPUs exist on this machine is not checked.
///
/// # Errors
/// [`CpuListError`] names the wrong item. Its number counts the characters before the item.
pub(crate) fn parse_cpulist(text: &str) -> Result<Vec<u32>, (usize, CpuListError)> {
    let ranges = parse_cpu_ranges(text)?;
    // One flag per CPU bounds the memory however often a range is repeated.
    let mut listed = vec![false; LAST_CPU as usize + 1];
    for (first, last) in ranges {
        listed[first as usize..=last as usize].fill(true);
    }
    Ok((0..=LAST_CPU).filter(|&cpu| listed[cpu as usize]).collect())
}

/// Reads a list of CPUs as the ranges that it names, first and last of each, in their order.
///
/// # Errors
/// [`CpuListError`] names the wrong item. Its number counts the characters before the item.
pub fn parse_cpu_ranges(text: &str) -> Result<Vec<(u32, u32)>, (usize, CpuListError)> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut start = 0;
    let item = |item: &str| {
        let indent = item.chars().take_while(|c| c.is_whitespace()).count();
        let range = range(item.trim()).map_err(|error| (start + indent, error))?;
        start += item.chars().count() + 1;
        Ok(range)
    };
    text.split(',').map(item).collect()
}

fn range(item: &str) -> Result<(u32, u32), CpuListError> {
    if item.is_empty() {
        return Err(CpuListError::EmptyItem);
    }
    let (first, last) = item.split_once('-').unwrap_or((item, item));
    let (first, last) = (cpu(first, item)?, cpu(last, item)?);
    if first > last {
        return Err(CpuListError::Reversed { first, last });
    }
    Ok((first, last))
}

fn cpu(digits: &str, item: &str) -> Result<u32, CpuListError> {
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !is_number {
        return Err(CpuListError::NotACpu(excerpt(item)));
    }
    match digits.parse() {
        Ok(number) if number <= LAST_CPU => Ok(number),
        _ => Err(CpuListError::TooHigh(excerpt(digits))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<Vec<u32>, CpuListError> {
        parse_cpulist(text).map_err(|(_, error)| error)
    }

    #[test]
    fn ranges_and_single_cpus_mix_and_come_out_sorted() {
        assert_eq!(read("3, 0-1,8191"), Ok(vec![0, 1, 3, 8191]));
        assert_eq!(read("4-6,5"), Ok(vec![4, 5, 6]));
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(read("8-21,112-125").unwrap().len(), 28);
    }

    #[test]
    fn each_fault_of_a_list_is_named() {
        assert_eq!(read("1,,2"), Err(CpuListError::EmptyItem));
        assert_eq!(read("1,"), Err(CpuListError::EmptyItem));
        assert_eq!(read("5-3"), Err(CpuListError::Reversed { first: 5, last: 3 }));
        for high in ["8192", "99999999999999999999"] {
            let error = CpuListError::TooHigh(high.to_owned());
            assert_eq!(read(&format!("0-{high}")), Err(error));
        }
        for item in ["-3", "3-", "1-2-3", "eth1:8-21", "+3", "0x3", "0-10:2"] {
            assert_eq!(read(item), Err(CpuListError::NotACpu(item.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn a_written_list_reads_back(cpus in proptest::collection::btree_set(0..=LAST_CPU, 0..50)) {
            let text = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(read(&text), Ok(cpus.into_iter().collect()));
        }

        #[test]
        fn what_is_taken_of_any_text_ascends_and_is_in_range(
            text in "[0-9,\\- ]*|[0-9]{1,4}(-[0-9]{4})?(, ?[0-9]{1,4})*|\\PC*",
        ) {
            if let Ok(cpus) = read(&text) {
                prop_assert!(cpus.is_sorted_by(|a, b| a < b), "{:?}", cpus);
                prop_assert!(cpus.iter().all(|cpu| *cpu <= LAST_CPU));
                prop_assert_eq!(cpus.is_empty(), text.trim().is_empty());
            }
        }
    }
}
