//! Sizes and times as people write them: `64KiB`, `8..1GiB`, `250ms`.

use std::time::Duration;

use polyrail_config::Invalid;

/// Maximum number of sizes in a list, with ranges expanded.
pub const SIZES_LIMIT: usize = 256;

/// A size or time that can't be parsed.
///
/// The message is a phrase to put after the field and the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; allowed: {allowed}")]
pub struct BadUnit {
    reason: String,
    allowed: &'static str,
    help: Option<String>,
}

impl BadUnit {
    /// Returns how to write the value, if known.
    pub fn help(&self) -> Option<String> {
        self.help.clone()
    }

    fn new(reason: impl Into<String>, allowed: &'static str) -> Self {
        Self { reason: reason.into(), allowed, help: None }
    }

    fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Parses one size in bytes, such as `8`, `64KiB` (1024) or `64kB` (1000). A bare `K`, `M` or `G` means 1024, which
/// [`bare_unit_note`] points out; settings refuse it.
///
/// # Errors
/// See [`polyrail_config::parse_size`]; also for 0 and sizes above 1 TiB.
pub fn parse_size(text: &str) -> Result<u64, BadUnit> {
    let whole = bare(text).map(|(digits, letter)| format!("{digits}{letter}iB"));
    let text = whole.as_deref().unwrap_or(text);
    match polyrail_config::parse_size(text).map_err(of(SIZE_ALLOWED))? {
        0 => Err(BadUnit::new("is zero", SIZE_ALLOWED)),
        bytes if bytes <= SIZE_MAX => Ok(bytes),
        _ => Err(BadUnit::new("is too large", SIZE_ALLOWED)),
    }
}

/// Returns a note for people on how the first size with a bare `K`, `M` or `G` in a list is read.
pub fn bare_unit_note(list: &str) -> Option<String> {
    let (digits, letter) = list.split(',').flat_map(|item| item.split("..")).find_map(bare)?;
    let thousand = if letter == 'K' { 'k' } else { letter };
    Some(format!(
        "{digits}{letter} is taken as {digits}{letter}iB (1024); {digits}{thousand}B is 1000"
    ))
}

/// Splits a size with a bare unit, such as `64K`, into digits and unit.
fn bare(text: &str) -> Option<(&str, char)> {
    let text = text.trim();
    let letter = text.chars().last().filter(|letter| "KMG".contains(*letter))?;
    let digits = &text[..text.len() - 1];
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some((digits, letter))
}

/// Parses a list of sizes: `8,64KiB,64MiB`. An item `8..1GiB` doubles from the first size up to the last.
///
/// # Errors
/// See [`parse_size`]; also for a range that runs backwards, and for more than [`SIZES_LIMIT`] sizes.
pub fn parse_sizes(text: &str) -> Result<Vec<u64>, BadUnit> {
    let mut sizes = Vec::new();
    for item in text.split(',') {
        match item.split_once("..") {
            None => sizes.push(parse_size(item)?),
            Some((first, last)) => {
                let (first, last) = (parse_size(first)?, parse_size(last)?);
                if first > last {
                    let swapped = format!("write the smaller size first, like {last}..{first}");
                    return Err(BadUnit::new("runs backwards", RANGE_ALLOWED).with_help(swapped));
                }
                // Sizes end at 1 TiB, so doubling never overflows.
                sizes.extend(
                    std::iter::successors(Some(first), |size| Some(size * 2))
                        .take_while(|size| *size <= last),
                );
            }
        }
        if sizes.len() > SIZES_LIMIT {
            return Err(BadUnit::new("has too many sizes", "1 to 256 sizes"));
        }
    }
    Ok(sizes)
}

/// Parses a time with its unit: `20us`, `250ms`, `3s`, `2min`, `1h`.
///
/// # Errors
/// See [`polyrail_config::parse_time`]; also for times above a day.
pub fn parse_duration(text: &str) -> Result<Duration, BadUnit> {
    match polyrail_config::parse_time(text).map_err(of(TIME_ALLOWED))? {
        time if time <= TIME_MAX => Ok(time),
        _ => Err(BadUnit::new("is too large", TIME_ALLOWED)),
    }
}

const SIZE_MAX: u64 = 1 << 40;
const SIZE_ALLOWED: &str = "1 to 1024GiB in B, KiB, MiB, GiB (1024) or kB, MB, GB (1000)";
const RANGE_ALLOWED: &str = "sizes and ranges such as 8,64KiB or 8..1GiB";
const TIME_MAX: Duration = Duration::from_secs(24 * 3600);
const TIME_ALLOWED: &str = "0s to 24h in us, ms, s, min or h";

/// Adds the allowed values to an error.
fn of(allowed: &'static str) -> impl Fn(Invalid) -> BadUnit {
    move |Invalid { reason, help }| BadUnit { reason, allowed, help }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::show_size;

    fn reason(text: &str) -> String {
        parse_size(text).unwrap_err().reason
    }

    #[test]
    fn a_bare_k_m_or_g_is_1024_and_other_short_units_are_refused_with_both_readings() {
        assert_eq!(["64K", "1M", " 2G "].map(parse_size), [Ok(64 << 10), Ok(1 << 20), Ok(2 << 30)]);
        assert_eq!(parse_sizes("512,1K..2K"), Ok(vec![512, 1024, 2048]));
        let note = "64K is taken as 64KiB (1024); 64kB is 1000";
        assert_eq!(bare_unit_note("8,64K..1M").as_deref(), Some(note));
        assert_eq!(bare_unit_note("1M").unwrap(), "1M is taken as 1MiB (1024); 1MB is 1000");
        for whole in ["8", "64KiB", "64kB", "K", "", "1.5M"] {
            assert_eq!(bare_unit_note(whole), None, "{whole}");
        }
        let error = parse_size("64Ki").unwrap_err();
        assert!(error.to_string().starts_with("has the unit `Ki`, which is ambiguous; allowed: 1"));
        assert_eq!(error.help().unwrap(), "write 64KiB (1024) or 64kB (1000)");
    }

    #[test]
    fn what_is_no_size_is_refused_by_its_fault() {
        for (text, fault) in [
            ("", "is empty"),
            ("0", "is zero"),
            ("1025GiB", "is too large"),
            ("99999999999999999999", "is above every allowed number"),
            ("99999999999GiB", "is above every allowed number"),
        ] {
            assert_eq!(reason(text), fault, "{text}");
        }
    }

    #[test]
    fn a_range_doubles_from_the_first_to_the_last_size() {
        assert_eq!(parse_sizes("8..64"), Ok(vec![8, 16, 32, 64]));
        assert_eq!(parse_sizes("3..10,1KiB"), Ok(vec![3, 6, 1024]));
        assert_eq!(parse_sizes("8,64KiB,64MiB"), Ok(vec![8, 65_536, 64 << 20]));
        assert_eq!(parse_sizes("8..1GiB").map(|sizes| sizes.len()), Ok(28));
        assert_eq!(parse_sizes("1..1024GiB").map(|sizes| sizes.len()), Ok(41));
    }

    #[test]
    fn a_range_that_runs_backwards_is_refused_with_the_other_order() {
        let error = parse_sizes("1KiB..8").unwrap_err();
        assert_eq!(error.help().unwrap(), "write the smaller size first, like 8..1024");
        assert!(parse_sizes("8..").is_err() && parse_sizes("8,,16").is_err());
    }

    #[test]
    fn a_list_beyond_the_limit_is_refused() {
        let list = ["1..1024GiB"; 7].join(",");
        assert_eq!(parse_sizes(&list).unwrap_err().reason, "has too many sizes");
    }

    #[test]
    fn times_end_at_a_day() {
        assert_eq!(parse_duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("3").unwrap_err().help().unwrap(), "write 3s or 3ms");
        assert_eq!(parse_duration("24h"), Ok(TIME_MAX));
        for over in ["25h", "1441min"] {
            let refused = parse_duration(over).unwrap_err().to_string();
            assert!(refused.starts_with("is too large; allowed: 0s to 24h"), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(bytes in 1u64..=1 << 40) {
            prop_assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }

        #[test]
        fn what_is_taken_of_any_text_is_within_the_limits(
            text in "\\PC*|[0-9]{1,5}[KMG]?i?B?(\\.\\.[0-9]{1,5}[KMG]iB)?|[0-9]{1,6}(us|ms|s|min|h)",
        ) {
            if let Ok(sizes) = parse_sizes(&text) {
                prop_assert!(!sizes.is_empty());
                for size in sizes {
                    prop_assert_eq!(parse_size(&show_size(size)), Ok(size));
                }
            }
            if let Ok(time) = parse_duration(&text) {
                prop_assert!(time <= Duration::from_secs(24 * 3600), "{:?}", time);
            }
        }
    }
}
