//! Numbers of sending and receiving progress threads.

use crate::invalid::Invalid;
use crate::number::Unit;
use crate::value::{Field, Value};

/// Meaning of 0.
pub(crate) const AUTOMATIC: &str = "auto: one per rail or channel, at most 3/8 of the CPUs (half of them if payload is not none) and no fewer than 2";

/// Maximum in each direction.
const MOST: u32 = 256;

/// Allowed values, for messages and docs.
pub(crate) fn forms() -> String {
    format!("0 ({AUTOMATIC}), 1 to {MOST}, or those that send and those that receive, like 2,3")
}

/// Numbers of progress threads; 0 leaves a number to the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Proxies {
    /// Sending threads.
    pub tx: u32,
    /// Receiving threads.
    pub rx: u32,
}

impl Proxies {
    /// Returns the number of threads if `proxy_layout` is merged and each does both.
    pub const fn merged(self) -> u32 {
        if self.tx > self.rx { self.tx } else { self.rx }
    }
}

/// Reads one number for both directions, or two numbers.
pub(crate) fn parse(text: &str) -> Result<Proxies, Invalid> {
    if text == "auto" {
        return Err(Invalid::because("is not a number").help("write `0`"));
    }
    let (tx, rx) = text.split_once(',').unwrap_or((text, text));
    if rx.contains(',') {
        return Err(Invalid::because("has more than two numbers"));
    }
    if !text.is_empty() && (tx.trim().is_empty() || rx.trim().is_empty()) {
        return Err(Invalid::because("has no number on one side of the comma"));
    }
    Ok(Proxies { tx: number(tx)?, rx: number(rx)? })
}

fn number(text: &str) -> Result<u32, Invalid> {
    let number = u32::try_from(Unit::Count("threads").parse(text)?).ok();
    number.filter(|number| *number <= MOST).ok_or_else(|| Invalid::because("is out of range"))
}

/// Two equal numbers are stored as one.
impl Field for Proxies {
    type Const = Self;

    fn new(default: Self) -> Self {
        default
    }

    fn value(&self) -> Value {
        match self {
            Self { tx, rx } if tx == rx => Value::Number(u64::from(*tx)),
            Self { tx, rx } => Value::Text(format!("{tx},{rx}")),
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
    fn one_number_is_for_both_directions_and_two_are_for_one_each() {
        for (text, tx, rx) in [("0", 0, 0), ("4", 4, 4), ("2,3", 2, 3), ("0, 256", 0, 256)] {
            assert_eq!(parse(text), Ok(Proxies { tx, rx }), "{text}");
        }
        for (text, why) in [
            ("", "is empty"),
            ("257", "is out of range"),
            ("1,257", "is out of range"),
            ("4294967296", "is out of range"),
            ("-1", "is negative"),
            ("2,", "has no number on one side of the comma"),
            ("1,2,3", "has more than two numbers"),
            ("auto", "is not a number"),
        ] {
            assert_eq!(parse(text).unwrap_err().reason, why, "{text}");
        }
    }

    #[test]
    fn both_forms_read_back_and_merged_proxies_are_as_many_as_the_larger_number() {
        for (tx, rx, value, merged) in [
            (0, 0, Value::Number(0), 0),
            (4, 4, Value::Number(4), 4),
            (2, 3, Value::Text("2,3".to_owned()), 3),
            (4, 0, Value::Text("4,0".to_owned()), 4),
        ] {
            let proxies = Proxies { tx, rx };
            assert_eq!(proxies.value(), value);
            assert_eq!(Field::from_value(value), Some(proxies));
            assert_eq!(proxies.merged(), merged);
        }
    }
}
