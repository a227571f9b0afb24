//! Time that threads poll before they sleep.

use std::time::Duration;

use crate::invalid::Invalid;
use crate::number::parse_time;
use crate::value::{Field, Value};

/// Allowed values, for messages and docs.
pub(crate) const FORMS: &str = "auto, off, or a time from 1us to 1s";

/// Polling time of waiting calls: about as long as a wake-up takes.
const CALLS: Duration = Duration::from_micros(20);

/// Maximum polling time.
const LONGEST: Duration = Duration::from_secs(1);

/// Time that a thread polls before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spin {
    /// Threads decide by themselves, on machines with spare CPUs.
    Auto,
    /// Threads sleep at once.
    Off,
    /// Threads poll at least this long, and longer where [`Spin::Auto`] does.
    AtLeast(Duration),
}

impl Spin {
    /// Returns the minimum polling time of an idle progress thread.
    #[inline]
    pub const fn of_proxies(self) -> Duration {
        match self {
            Self::Auto | Self::Off => Duration::ZERO,
            Self::AtLeast(time) => time,
        }
    }

    /// Returns the minimum polling time of a waiting call.
    #[inline]
    pub const fn of_calls(self) -> Duration {
        match self {
            Self::Off => Duration::ZERO,
            Self::AtLeast(time) if time.as_micros() > CALLS.as_micros() => time,
            Self::Auto | Self::AtLeast(_) => CALLS,
        }
    }
}

/// Reads one of the [`FORMS`].
pub(crate) fn parse(text: &str) -> Result<Spin, Invalid> {
    match text {
        "auto" => return Ok(Spin::Auto),
        "off" => return Ok(Spin::Off),
        _ => {}
    }
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if is_number && text.bytes().any(|byte| byte != b'0') {
        return Err(Invalid::because("has no unit").help(format!("write {text}us")));
    }
    if text.starts_with(|first: char| first.is_alphabetic()) {
        return Err(Invalid::because("is neither auto, off nor a time"));
    }
    let time = if is_number { Duration::ZERO } else { parse_time(text)? };
    match time {
        Duration::ZERO => Err(Invalid::because("is out of range").help("write `off`")),
        time if time <= LONGEST => Ok(Spin::AtLeast(time)),
        _ => Err(Invalid::because("is out of range")),
    }
}

impl Field for Spin {
    type Const = Self;

    fn new(default: Self) -> Self {
        default
    }

    fn value(&self) -> Value {
        Value::Text(match self {
            Self::Auto => "auto".to_owned(),
            Self::Off => "off".to_owned(),
            Self::AtLeast(time) => match time.as_micros() {
                micros if micros.is_multiple_of(1_000_000) => format!("{}s", micros / 1_000_000),
                micros if micros.is_multiple_of(1_000) => format!("{}ms", micros / 1_000),
                micros => format!("{micros}us"),
            },
        })
    }

    fn from_value(value: Value) -> Option<Self> {
        parse(&value.to_string()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_least(micros: u64) -> Spin {
        Spin::AtLeast(Duration::from_micros(micros))
    }

    #[test]
    fn two_words_and_times_are_read_and_nothing_else() {
        for (text, spin) in [
            ("auto", Spin::Auto),
            ("off", Spin::Off),
            ("1us", at_least(1)),
            ("2 ms", at_least(2000)),
            ("1s", at_least(1_000_000)),
        ] {
            assert_eq!(parse(text), Ok(spin), "{text}");
        }
        for (text, why) in [
            ("", "is empty"),
            ("0", "is out of range"),
            ("0us", "is out of range"),
            ("1000001us", "is out of range"),
            ("2s", "is out of range"),
            ("30", "has no unit"),
            ("on", "is neither auto, off nor a time"),
            ("30m", "has the unit `m`, which is ambiguous"),
        ] {
            assert_eq!(parse(text).unwrap_err().reason, why, "{text}");
        }
        assert_eq!(parse("30").unwrap_err().help.unwrap(), "write 30us");
        assert_eq!(parse("0s").unwrap_err().help.unwrap(), "write `off`");
    }

    #[test]
    fn each_value_is_shown_in_its_largest_whole_unit_and_reads_back() {
        for (spin, shown) in [
            (Spin::Auto, "auto"),
            (Spin::Off, "off"),
            (at_least(30), "30us"),
            (at_least(2000), "2ms"),
            (at_least(1500), "1500us"),
            (at_least(1_000_000), "1s"),
        ] {
            assert_eq!(spin.value(), Value::Text(shown.to_owned()));
            assert_eq!(Field::from_value(spin.value()), Some(spin));
        }
    }

    #[test]
    fn calls_poll_by_default_and_proxies_only_where_a_time_is_given() {
        let times = [Spin::Auto, Spin::Off, at_least(7), at_least(30)]
            .map(|spin| (spin.of_proxies().as_micros(), spin.of_calls().as_micros()));
        assert_eq!(times, [(0, 20), (0, 0), (7, 20), (30, 30)]);
    }
}
