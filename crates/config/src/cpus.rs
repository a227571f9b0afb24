//! The kernel's list of CPUs: `8-21,112-125`.

/// The highest CPU number accepted: the most the kernel can be built for.
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
        /// Where the range starts.
        first: u32,
        /// Where it ends.
        last: u32,
    },
    /// Beyond [`LAST_CPU`].
    #[error("has CPU {0}; the last one possible is {LAST_CPU}")]
    TooHigh(u64),
}

/// Reads a list of CPUs, like `8-21,112-125`, into ascending CPU numbers without repeats.
///
/// The empty text is the empty list. Whether the CPUs exist on this machine is not checked.
///
/// # Errors
/// [`CpuListError`] names the item that is wrong.
pub fn parse_cpulist(text: &str) -> Result<Vec<u32>, CpuListError> {
    parse_cpulist_at(text).map_err(|(_, error)| error)
}

/// As [`parse_cpulist`]; an error comes with how many characters stand before the wrong item.
pub(crate) fn parse_cpulist_at(text: &str) -> Result<Vec<u32>, (usize, CpuListError)> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    // One flag per CPU bounds the memory however often a range is repeated.
    let mut listed = vec![false; LAST_CPU as usize + 1];
    let mut start = 0;
    for item in text.split(',') {
        let indent = item.chars().take_while(|c| c.is_whitespace()).count();
        let (first, last) = range(item.trim()).map_err(|error| (start + indent, error))?;
        listed[first as usize..=last as usize].fill(true);
        start += item.chars().count() + 1;
    }
    Ok((0..=LAST_CPU).filter(|&cpu| listed[cpu as usize]).collect())
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
        let item: String = item.chars().take(40).flat_map(char::escape_debug).collect();
        return Err(CpuListError::NotACpu(item));
    }
    let number = digits.parse().unwrap_or(u64::MAX);
    match u32::try_from(number) {
        Ok(number) if number <= LAST_CPU => Ok(number),
        _ => Err(CpuListError::TooHigh(number)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_and_single_cpus_mix_and_come_out_sorted() {
        assert_eq!(parse_cpulist("3, 0-1,8191"), Ok(vec![0, 1, 3, 8191]));
        assert_eq!(parse_cpulist("4-6,5"), Ok(vec![4, 5, 6]));
        assert_eq!(parse_cpulist(""), Ok(vec![]));
        assert_eq!(parse_cpulist("8-21,112-125").unwrap().len(), 28);
    }

    #[test]
    fn each_fault_of_a_list_is_named() {
        assert_eq!(parse_cpulist("1,,2"), Err(CpuListError::EmptyItem));
        assert_eq!(parse_cpulist("1,"), Err(CpuListError::EmptyItem));
        assert_eq!(parse_cpulist("5-3"), Err(CpuListError::Reversed { first: 5, last: 3 }));
        assert_eq!(parse_cpulist("8192"), Err(CpuListError::TooHigh(8192)));
        assert_eq!(parse_cpulist("0-99999999999999999999"), Err(CpuListError::TooHigh(u64::MAX)));
        for item in ["-3", "3-", "1-2-3", "eth1:8-21", "+3", "0x3", "0-10:2"] {
            assert_eq!(parse_cpulist(item), Err(CpuListError::NotACpu(item.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn a_written_list_reads_back(cpus in proptest::collection::btree_set(0..=LAST_CPU, 0..50)) {
            let text = cpus.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(parse_cpulist(&text), Ok(cpus.into_iter().collect()));
        }

        #[test]
        fn what_is_taken_of_any_text_ascends_and_is_in_range(
            text in "[0-9,\\- ]*|[0-9]{1,4}(-[0-9]{4})?(, ?[0-9]{1,4})*|\\PC*",
        ) {
            if let Ok(cpus) = parse_cpulist(&text) {
                prop_assert!(cpus.is_sorted_by(|a, b| a < b), "{:?}", cpus);
                prop_assert!(cpus.iter().all(|cpu| *cpu <= LAST_CPU));
                prop_assert_eq!(cpus.is_empty(), text.trim().is_empty());
            }
        }
    }
}
