//! The speed of one rail, as text and as a number.

use std::fmt;
use std::str::FromStr;

use crate::error::LabError;

/// The speed of a rail in each direction, Ethernet headers included: at an MTU of 1500 bytes a TCP
/// stream carries 0.956 of it as payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    /// A whole number of kbit/s, so that text and number convert exactly; `None` is unlimited.
    kbit_per_second: Option<u64>,
}

const MIN_KBIT: u64 = 1_000;
const MAX_KBIT: u64 = 400_000_000;
const ALLOWED: &str = "1mbit to 400gbit in whole kbit, or unlimited";

impl Rate {
    /// No shaping: as fast as the machine copies.
    pub const UNLIMITED: Self = Self { kbit_per_second: None };

    /// Makes a rate from kbit/s (1 kbit = 1000 bits).
    ///
    /// # Errors
    /// [`LabError::BadValue`] outside 1 Mbit/s to 400 Gbit/s.
    pub fn from_kbit_per_second(kbit: u64) -> Result<Self, LabError> {
        if !(MIN_KBIT..=MAX_KBIT).contains(&kbit) {
            return Err(LabError::bad("rate", format!("{kbit}kbit"), ALLOWED));
        }
        Ok(Self { kbit_per_second: Some(kbit) })
    }

    /// Bits per second, or `None` when unlimited.
    pub fn bits_per_second(self) -> Option<u64> {
        self.kbit_per_second.map(|kbit| kbit * 1000)
    }

    /// Bytes per second, or `None` when unlimited.
    pub fn bytes_per_second(self) -> Option<u64> {
        self.kbit_per_second.map(|kbit| kbit * 125)
    }

    /// Converts the kernel's value, rounded to the nearest kbit/s.
    pub(crate) fn from_kernel(bytes_per_second: u64) -> Self {
        Self { kbit_per_second: Some((bytes_per_second + 62) / 125) }
    }

    /// Returns the slower of the two.
    pub fn min(self, other: Self) -> Self {
        match (self.kbit_per_second, other.kbit_per_second) {
            (None, _) => other,
            (_, None) => self,
            (Some(a), Some(b)) => Self { kbit_per_second: Some(a.min(b)) },
        }
    }
}

impl FromStr for Rate {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let bad = || LabError::bad("rate", text, ALLOWED);
        let lower = text.trim().to_ascii_lowercase();
        if lower == "unlimited" {
            return Ok(Self::UNLIMITED);
        }
        let unit_at = lower.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?;
        let (number, unit) = lower.split_at(unit_at);
        let decimals = match unit {
            "kbit" => 0,
            "mbit" => 3,
            "gbit" => 6,
            _ => return Err(bad()),
        };
        let kbit = scaled(number.trim_end(), decimals).ok_or_else(bad)?;
        Self::from_kbit_per_second(kbit).map_err(|_| bad())
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // At most three decimals keep a rate readable, and it still parses back to itself.
        let (value, unit) = match self.kbit_per_second {
            None => return f.pad("unlimited"),
            Some(kbit) if kbit >= 1_000_000 && kbit % 1000 == 0 => (kbit / 1000, "gbit"),
            Some(kbit) => (kbit, "mbit"),
        };
        let (whole, rest) = (value / 1000, value % 1000);
        if rest == 0 {
            return f.pad(&format!("{whole}{unit}"));
        }
        let rest = format!("{rest:03}");
        f.pad(&format!("{whole}.{}{unit}", rest.trim_end_matches('0')))
    }
}

/// Reads a decimal number times `10^decimals` exactly; refuses more decimals than that.
fn scaled(number: &str, decimals: usize) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    if fraction.len() > decimals {
        return None;
    }
    let padded = format!("{whole}{fraction:0<decimals$}");
    padded.parse().ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bits(text: &str) -> Option<u64> {
        text.parse::<Rate>().unwrap().bits_per_second()
    }

    #[test]
    fn units_and_decimals_are_read_exactly() {
        assert_eq!(bits("100mbit"), Some(100_000_000));
        assert_eq!(bits("1gbit"), Some(1_000_000_000));
        assert_eq!(bits("2.5gbit"), Some(2_500_000_000));
        assert_eq!(bits("2.5Gbit"), Some(2_500_000_000));
        assert_eq!(bits(" 4 gbit "), Some(4_000_000_000));
        assert_eq!(bits("1500kbit"), Some(1_500_000));
        assert_eq!(bits("1.234567gbit"), Some(1_234_567_000));
        assert_eq!(bits("unlimited"), None);
    }

    #[test]
    fn the_edges_of_the_range_are_in_and_their_neighbours_out() {
        assert_eq!(bits("1mbit"), Some(1_000_000));
        assert_eq!(bits("400gbit"), Some(400_000_000_000));
        for text in ["999kbit", "0gbit", "0", "400.001gbit", "401gbit", "99999999999999999999gbit"]
        {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_without_unit_is_refused_with_a_hint() {
        let error = "1000".parse::<Rate>().unwrap_err();
        assert!(error.to_string().contains("rate `1000` is not valid; allowed: 1mbit to 400gbit"));
        assert!(error.help().unwrap().contains("2.5gbit"));
    }

    #[test]
    fn other_spellings_are_refused() {
        for text in [
            "",
            "gbit",
            ".5gbit",
            "1.gbit",
            "-1gbit",
            "1gb",
            "1Gbps",
            "1e3mbit",
            "1,5gbit",
            "١gbit",
            "1.0001mbit",
            "1000.5kbit",
            "1.1234567gbit",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_slower_of_two_rates_wins() {
        let (one, two) = ("1gbit".parse::<Rate>().unwrap(), "2gbit".parse::<Rate>().unwrap());
        assert_eq!(one.min(two), one);
        assert_eq!(two.min(Rate::UNLIMITED), two);
        assert_eq!(Rate::UNLIMITED.min(one), one);
    }

    proptest! {
        #[test]
        fn every_rate_prints_as_text_that_reads_back_as_itself(kbit in MIN_KBIT..=MAX_KBIT) {
            let rate = Rate::from_kbit_per_second(kbit).unwrap();
            prop_assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate);
            prop_assert_eq!(Rate::from_kernel(rate.bytes_per_second().unwrap()), rate);
        }

        #[test]
        fn what_is_taken_of_any_text_prints_as_text_that_means_the_same(
            text in ".{0,24}|[0-9]{1,9}(\\.[0-9]{0,9})? ?[kmgKMG]bit",
        ) {
            match text.parse::<Rate>() {
                Ok(rate) => prop_assert_eq!(rate.to_string().parse::<Rate>().unwrap(), rate),
                Err(error) => prop_assert!(error.to_string().contains(ALLOWED), "{}", error),
            }
        }
    }
}
