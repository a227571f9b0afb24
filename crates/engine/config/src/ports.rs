//! Ports that an engine may listen on.

use std::ops::RangeInclusive;

use crate::invalid::Invalid;
use crate::number::Unit;
use crate::value::{Field, Value};

/// Meaning of 0: the engine chooses.
pub(crate) const CHOSEN: &str = "a free one of 29200 to 29999";

/// Reads a port, or the first and the last one of a range.
pub(crate) fn parse(text: &str) -> Result<RangeInclusive<u16>, Invalid> {
    // A leading minus belongs to a number.
    let Some((first, last)) = text.split_once('-').filter(|(first, _)| !first.is_empty()) else {
        let port = port(text)?;
        return Ok(port..=port);
    };
    let (first, last) = (port(first)?, port(last)?);
    if first == 0 || last < first {
        return Err(Invalid::because("is no range of ports")
            .help("write the first and the last port, like 5000-5063"));
    }
    Ok(first..=last)
}

fn port(text: &str) -> Result<u16, Invalid> {
    let number = Unit::Count("").parse(text)?;
    number.try_into().map_err(|_| Invalid::because("is out of range"))
}

/// Allowed values, for messages and docs.
pub(crate) fn forms() -> String {
    format!("0 ({CHOSEN}), 1 to 65535, or a range like 5000-5063")
}

/// A single port is stored as a number.
impl Field for RangeInclusive<u16> {
    type Const = Self;

    fn new(default: Self) -> Self {
        default
    }

    fn value(&self) -> Value {
        match (self.start(), self.end()) {
            (first, last) if first == last => Value::Number(u64::from(*first)),
            (first, last) => Value::Text(format!("{first}-{last}")),
        }
    }

    fn from_value(value: Value) -> Option<Self> {
        parse(&value.to_string()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_or_a_range_of_ports_is_read_and_nothing_else() {
        assert_eq!(parse("0"), Ok(0..=0));
        assert_eq!(parse("5000"), Ok(5000..=5000));
        assert_eq!(parse("5000-5063"), Ok(5000..=5063));
        assert_eq!(parse("1 - 65535"), Ok(1..=65535));
        for (text, why) in [
            ("0-5", "is no range of ports"),
            ("5063-5000", "is no range of ports"),
            ("65536", "is out of range"),
            ("5000-65536", "is out of range"),
            ("5000-", "is empty"),
            ("-1", "is negative"),
        ] {
            assert_eq!(parse(text).unwrap_err().reason, why, "{text}");
        }
    }

    #[test]
    fn a_range_reads_back_and_a_single_port_is_a_number() {
        for (ports, value) in [
            (0..=0, Value::Number(0)),
            (5000..=5000, Value::Number(5000)),
            (5000..=5063, Value::Text("5000-5063".to_owned())),
        ] {
            assert_eq!(ports.value(), value);
            assert_eq!(Field::from_value(value), Some(ports));
        }
    }
}
