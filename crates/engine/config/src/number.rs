//! Whole numbers with and without a unit: `4096`, `512KiB`, `3s`.

use std::time::Duration;

use polyrail_yaml::excerpt;

use crate::invalid::Invalid;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Unit of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Items of this name; no suffix is accepted.
    Count(&'static str),
    Bytes,
    Millis,
    Micros,
}

impl Unit {
    /// Returns the unit as rows and pages print it.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Count(label) => label,
            Self::Bytes => "bytes",
            Self::Millis => "ms",
            Self::Micros => "us",
        }
    }

    /// Reads a number in this unit.
    pub(crate) fn parse(self, text: &str) -> Result<u64, Invalid> {
        let (digits, suffix) = split(text)?;
        let number: u64 =
            digits.parse().map_err(|_| Invalid::because("is above every allowed number"))?;
        if suffix.is_empty() {
            return Ok(number);
        }
        let (multiplier, divisor) = match self {
            Self::Count(_) => {
                return Err(Invalid::because(format!(
                    "has `{}` after the number",
                    excerpt(suffix)
                ))
                .help(format!("write a plain number, like {digits}")));
            }
            Self::Bytes => (bytes_in(suffix, digits)?, 1),
            Self::Millis => (micros_in(suffix, digits)?, 1_000),
            Self::Micros => (micros_in(suffix, digits)?, 1),
        };
        // The product of any number and any unit fits in 128 bits.
        let total = u128::from(number) * u128::from(multiplier);
        if total % divisor != 0 {
            return Err(Invalid::because("is not a whole number of milliseconds"));
        }
        (total / divisor).try_into().map_err(|_| Invalid::because("is above every allowed number"))
    }

    /// Writes a number so that [`Unit::parse`] reads it back and a person can read it.
    pub(crate) fn show(self, number: u64) -> String {
        if self == Self::Bytes && number != 0 {
            return show_size(number);
        }
        number.to_string()
    }
}

/// Reads a size in bytes, such as `8`, `64KiB` (1024) or `64kB` (1000).
///
/// # Errors
/// Anything but a whole number, alone or with one of the units; a bare `K`, `M` or `G` is refused,
/// since it means 1000 to some and 1024 to others.
pub fn parse_size(text: &str) -> Result<u64, Invalid> {
    Unit::Bytes.parse(text)
}

/// Reads a time with its unit: `20us`, `250ms`, `3s`, `2min`.
///
/// # Errors
/// Anything but a whole number with one of these units.
pub fn parse_time(text: &str) -> Result<Duration, Invalid> {
    let (digits, suffix) = split(text)?;
    if suffix.is_empty() {
        return Err(Invalid::because("has no unit").help(format!("write {digits}s or {digits}ms")));
    }
    Unit::Micros.parse(text).map(Duration::from_micros)
}

/// Formats a size in the largest unit that divides it, such as `64KiB` or `1MB`; units of 1024 come first. Reads back
/// with [`parse_size`].
pub fn show_size(bytes: u64) -> String {
    let decimal = [(1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    for (size, suffix) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")].into_iter().chain(decimal) {
        if bytes != 0 && bytes.is_multiple_of(size) {
            return format!("{}{suffix}", bytes / size);
        }
    }
    format!("{bytes}B")
}

/// Splits `512 KiB` into digits and suffix.
fn split(text: &str) -> Result<(&str, &str), Invalid> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, rest) = text.split_at(end);
    if text.is_empty() {
        return Err(Invalid::because("is empty"));
    }
    if text.starts_with('-') {
        return Err(Invalid::because("is negative"));
    }
    if digits.is_empty() {
        return Err(Invalid::because("is not a number"));
    }
    if rest.starts_with(['.', ',', '_', '\'']) {
        return Err(Invalid::because("is not a whole number in plain digits"));
    }
    Ok((digits, rest.trim_start()))
}

fn bytes_in(suffix: &str, digits: &str) -> Result<u64, Invalid> {
    Ok(match suffix {
        "B" => 1,
        "KiB" => KIB,
        "MiB" => MIB,
        "GiB" => GIB,
        "kB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        _ => {
            let letter = suffix.chars().next().map_or('?', |c| c.to_ascii_uppercase());
            let known = "KMG".contains(letter) && suffix.len() <= 3;
            let thousand = if letter == 'K' { 'k' } else { letter };
            return Err(if known {
                let reason = format!("has the unit `{suffix}`, which is ambiguous");
                Invalid::because(reason)
                    .help(format!("write {digits}{letter}iB (1024) or {digits}{thousand}B (1000)"))
            } else {
                Invalid::because(format!("has the unknown unit `{}`", excerpt(suffix)))
                    .help("units of size are B, KiB, MiB, GiB (1024) and kB, MB, GB (1000)")
            });
        }
    })
}

fn micros_in(suffix: &str, digits: &str) -> Result<u64, Invalid> {
    Ok(match suffix {
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        "m" | "M" => {
            return Err(Invalid::because(format!("has the unit `{suffix}`, which is ambiguous"))
                .help(format!("write {digits}ms or {digits}min")));
        }
        _ => {
            let reason = format!("has the unknown unit `{}`", excerpt(suffix));
            return Err(Invalid::because(reason).help("units of time are us, ms, s, min and h"));
        }
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reason(unit: Unit, text: &str) -> String {
        unit.parse(text).unwrap_err().reason
    }

    #[test]
    fn sizes_read_in_powers_of_1024_and_of_1000() {
        for (text, bytes) in [
            ("4096", 4096),
            ("512KiB", 512 << 10),
            (" 1 MiB ", 1 << 20),
            ("2GiB", 2 << 30),
            ("1kB", 1000),
            ("1MB", 1_000_000),
            ("3GB", 3_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(Unit::Bytes.parse(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn a_bare_k_m_or_g_is_refused_with_both_readings() {
        let error = Unit::Bytes.parse("512K").unwrap_err();
        assert_eq!(error.reason, "has the unit `K`, which is ambiguous");
        let help = "write 512KiB (1024) or 512kB (1000)";
        assert_eq!(error.help.as_deref(), Some(help));
        for text in ["1M", "1g", "1k", "1KB", "1mb", "1mib"] {
            assert!(reason(Unit::Bytes, text).contains("ambiguous"), "{text}");
        }
        let help = Unit::Bytes.parse("1M").unwrap_err().help.unwrap();
        assert_eq!(help, "write 1MiB (1024) or 1MB (1000)");
    }

    #[test]
    fn what_is_not_a_whole_number_is_refused_by_its_fault() {
        for (text, fault) in [
            ("", "is empty"),
            ("  ", "is empty"),
            ("-1", "is negative"),
            ("many", "is not a number"),
            ("+5", "is not a number"),
            ("1.5MiB", "is not a whole number in plain digits"),
            ("1_000", "is not a whole number in plain digits"),
            ("99999999999999999999", "is above every allowed number"),
            ("99999999999999999GiB", "is above every allowed number"),
            ("4096 bytes", "has the unknown unit `bytes`"),
            ("4\u{e9}", "has the unknown unit `\u{e9}`"),
        ] {
            assert_eq!(reason(Unit::Bytes, text), fault, "{text}");
        }
        assert_eq!(reason(Unit::Count("chunks"), "16KiB"), "has `KiB` after the number");
    }

    #[test]
    fn times_convert_to_the_unit_of_the_setting() {
        assert_eq!(Unit::Millis.parse("3s"), Ok(3000));
        assert_eq!(Unit::Millis.parse("250"), Ok(250));
        assert_eq!(Unit::Millis.parse("2min"), Ok(120_000));
        assert_eq!(Unit::Millis.parse("5000us"), Ok(5));
        assert_eq!(Unit::Micros.parse("2ms"), Ok(2000));
        assert_eq!(reason(Unit::Millis, "1500us"), "is not a whole number of milliseconds");
        assert_eq!(reason(Unit::Millis, "3m"), "has the unit `m`, which is ambiguous");
        assert_eq!(Unit::Micros.parse("3h"), Ok(3 * 3_600_000_000));
        assert_eq!(reason(Unit::Micros, "3d"), "has the unknown unit `d`");
    }

    #[test]
    fn times_of_people_need_a_unit() {
        assert_eq!(parse_time("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_time("0s"), Ok(Duration::ZERO));
        let error = parse_time("3").unwrap_err();
        assert_eq!(error.to_string(), "has no unit");
        assert_eq!(error.help.unwrap(), "write 3s or 3ms");
        assert_eq!(parse_time("").unwrap_err().reason, "is empty");
    }

    #[test]
    fn sizes_take_the_largest_unit_that_divides_them() {
        let sizes = [8, 65_536, 3 << 20, 1 << 40, 1_000, 1_000_000, 1_024_000, 10_007, 0];
        let shown = ["8B", "64KiB", "3MiB", "1024GiB", "1kB", "1MB", "1000KiB", "10007B", "0B"];
        assert_eq!(sizes.map(show_size), shown);
    }

    proptest! {
        #[test]
        fn what_is_shown_reads_back(number: u64) {
            for unit in [Unit::Bytes, Unit::Millis, Unit::Micros, Unit::Count("")] {
                prop_assert_eq!(unit.parse(&unit.show(number)), Ok(number));
            }
        }

        #[test]
        fn whole_multiples_of_a_unit_read_back(number in 0u64..1 << 33) {
            for size in [KIB, MIB, GIB] {
                prop_assert_eq!(Unit::Bytes.parse(&Unit::Bytes.show(number * size)), Ok(number * size));
            }
        }

        #[test]
        fn what_is_taken_of_any_text_is_shown_as_a_text_that_means_the_same(
            text in "\\PC*|[0-9]{1,22} ?[kKMGBibmusn]{0,3}",
        ) {
            for unit in [Unit::Bytes, Unit::Millis, Unit::Micros, Unit::Count("")] {
                if let Ok(number) = unit.parse(&text) {
                    prop_assert!(text.trim().starts_with(|first: char| first.is_ascii_digit()));
                    prop_assert_eq!(unit.parse(&unit.show(number)), Ok(number));
                }
            }
        }
    }
}
