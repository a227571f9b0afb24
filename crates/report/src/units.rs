//! Sizes and times as people write them: `64KiB`, `8..1GiB`, `250ms`.

use std::time::Duration;

/// The most sizes one list may name, ranges written out.
pub const SIZES_LIMIT: usize = 256;

/// A size or time that can't be read.
///
/// The message is a phrase for a caller to put after the field and the value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}; allowed: {allowed}")]
pub struct BadUnit {
    reason: String,
    allowed: &'static str,
    help: Option<String>,
}

impl BadUnit {
    /// How to write it, where that is known.
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

/// Reads one size in bytes, such as `8`, `64KiB` (1024) or `64kB` (1000).
///
/// # Errors
/// Anything but a whole number from 1 to 1 TiB with one of the units; a bare `K`, `M` or `G` is
/// refused, since it means 1000 to some and 1024 to others.
pub fn parse_size(text: &str) -> Result<u64, BadUnit> {
    let (digits, unit) = split(text, SIZE_ALLOWED)?;
    let number: u64 = digits.parse().map_err(|_| too_large(SIZE_ALLOWED))?;
    let scale = match unit {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => return Err(bad_size_unit(digits, unit)),
    };
    match number.checked_mul(scale) {
        Some(0) => Err(BadUnit::new("is zero", SIZE_ALLOWED)),
        Some(bytes) if bytes <= SIZE_MAX => Ok(bytes),
        _ => Err(too_large(SIZE_ALLOWED)),
    }
}

/// Reads a list of sizes: `8,64KiB,64MiB`. An item `8..1GiB` doubles from the first size to the
/// last.
///
/// # Errors
/// As [`parse_size`]; also a range that runs backwards, and more than [`SIZES_LIMIT`] sizes.
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
                // Sizes end at 1 TiB, so that doubling never overflows.
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

/// Reads a time with its unit: `20us`, `250ms`, `3s`, `2min`.
///
/// # Errors
/// Anything but a whole number with one of these units, and times above a day.
pub fn parse_duration(text: &str) -> Result<Duration, BadUnit> {
    let (digits, unit) = split(text, TIME_ALLOWED)?;
    let number: u64 = digits.parse().map_err(|_| too_large(TIME_ALLOWED))?;
    let micros = match unit {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "" => {
            return Err(BadUnit::new("has no unit", TIME_ALLOWED)
                .with_help(format!("write {digits}s or {digits}ms")));
        }
        _ => return Err(BadUnit::new(format!("has the unknown unit `{unit}`"), TIME_ALLOWED)),
    };
    match number.checked_mul(micros) {
        Some(micros) if micros <= TIME_MAX_US => Ok(Duration::from_micros(micros)),
        _ => Err(too_large(TIME_ALLOWED)),
    }
}

const SIZE_MAX: u64 = 1 << 40;
const SIZE_ALLOWED: &str = "1 to 1024GiB in B, KiB, MiB, GiB (1024) or kB, MB, GB (1000)";
const RANGE_ALLOWED: &str = "sizes and ranges such as 8,64KiB or 8..1GiB";
const TIME_MAX_US: u64 = 86_400_000_000;
const TIME_ALLOWED: &str = "0s to 1440min in us, ms, s or min";

/// Parts `512 KiB` into digits and unit.
fn split<'a>(text: &'a str, allowed: &'static str) -> Result<(&'a str, &'a str), BadUnit> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    let reason = if text.is_empty() {
        "is empty"
    } else if text.starts_with('-') {
        "is negative"
    } else if digits.is_empty() {
        "is not a number"
    } else if rest.starts_with(['.', '_', '\'']) {
        "is not a whole number in plain digits"
    } else {
        return Ok((digits, rest.trim_start()));
    };
    Err(BadUnit::new(reason, allowed))
}

fn bad_size_unit(digits: &str, unit: &str) -> BadUnit {
    let letter = unit.chars().next().map_or(' ', |c| c.to_ascii_uppercase());
    if !"KMG".contains(letter) || unit.len() > 3 {
        let shown: String = unit.chars().take(20).flat_map(char::escape_debug).collect();
        return BadUnit::new(format!("has the unknown unit `{shown}`"), SIZE_ALLOWED);
    }
    let thousand = if letter == 'K' { 'k' } else { letter };
    BadUnit::new(format!("has the unit `{unit}`, which is ambiguous"), SIZE_ALLOWED)
        .with_help(format!("write {digits}{letter}iB (1024) or {digits}{thousand}B (1000)"))
}

fn too_large(allowed: &'static str) -> BadUnit {
    BadUnit::new("is too large", allowed)
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
    fn sizes_read_in_powers_of_1024_and_of_1000() {
        for (text, bytes) in [
            ("8", 8),
            ("64KiB", 65_536),
            (" 1 MiB ", 1 << 20),
            ("1GiB", 1 << 30),
            ("1kB", 1_000),
            ("3MB", 3_000_000),
            ("1GB", 1_000_000_000),
            ("7B", 7),
            ("1024GiB", 1 << 40),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_bare_k_m_or_g_is_refused_with_both_readings() {
        let error = parse_size("64K").unwrap_err();
        assert!(error.to_string().starts_with("has the unit `K`, which is ambiguous; allowed: 1"));
        assert_eq!(error.help().unwrap(), "write 64KiB (1024) or 64kB (1000)");
        for text in ["1M", "1g", "1k", "1KB", "1mb", "1mib"] {
            assert!(reason(text).contains("ambiguous"), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_by_its_fault() {
        for (text, fault) in [
            ("", "is empty"),
            ("0", "is zero"),
            ("-1", "is negative"),
            ("many", "is not a number"),
            ("1.5MiB", "is not a whole number in plain digits"),
            ("1025GiB", "is too large"),
            ("99999999999999999999", "is too large"),
            ("99999999999GiB", "is too large"),
            ("4096 bytes", "has the unknown unit `bytes`"),
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
    fn times_need_a_unit() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(parse_duration("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_duration("3").unwrap_err().help().unwrap(), "write 3s or 3ms");
        assert!(parse_duration("1441min").unwrap_err().to_string().contains("too large"));
        assert!(parse_duration("3h").unwrap_err().to_string().contains("unknown unit `h`"));
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(bytes in 1u64..=1 << 40) {
            prop_assert_eq!(parse_size(&show_size(bytes)), Ok(bytes));
        }

        #[test]
        fn what_is_taken_of_any_text_is_within_the_limits(
            text in "\\PC*|[0-9]{1,5}[KMG]?i?B?(\\.\\.[0-9]{1,5}[KMG]iB)?|[0-9]{1,6}(us|ms|s|min)",
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
