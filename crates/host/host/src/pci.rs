//! Addresses on the PCI bus.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::sysroot::short;

/// Address on the PCI bus: `domain:bus:device.function`, such as `0000:8a:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// Four or more hexadecimal digits; above 0xffff only on some cloud machines.
    pub domain: u32,
    /// 0 to 0xff.
    pub bus: u8,
    /// 0 to 0x1f.
    pub device: u8,
    /// 0 to 7.
    pub function: u8,
}

/// The text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a PCI address like 0000:8a:00.0")]
pub struct BadPciAddress(String);

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for PciAddress {
    type Err = BadPciAddress;

    /// Parses `0000:8a:00.0` or, with domain 0, `8a:00.0`; upper and lower case.
    fn from_str(text: &str) -> Result<Self, BadPciAddress> {
        parse(text).ok_or_else(|| BadPciAddress(short(text)))
    }
}

impl Serialize for PciAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PciAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (slot, function) = text.rsplit_once('.')?;
    let (bus, device) = slot.rsplit_once(':')?;
    let (domain, bus) = bus.rsplit_once(':').unwrap_or(("0000", bus));
    let domain = hex(domain, 4..=8)?;
    let device = hex(device, 2..=2).filter(|device| *device < 32)?;
    let function = hex(function, 1..=1).filter(|function| *function < 8)?;
    let bus = u8::try_from(hex(bus, 2..=2)?).ok()?;
    Some(PciAddress { domain, bus, device: device as u8, function: function as u8 })
}

fn hex(digits: &str, lengths: std::ops::RangeInclusive<usize>) -> Option<u32> {
    // `from_str_radix` also accepts a sign.
    let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hex || !lengths.contains(&digits.len()) {
        return None;
    }
    u32::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_back_as_written() {
        for text in ["0000:8a:00.0", "10000:e1:1f.7", "0001:00:02.3"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        assert_eq!("8A:00.0".parse::<PciAddress>().unwrap().to_string(), "0000:8a:00.0");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in [
            "",
            "8a",
            "0000:8a:20.0",
            "0000:8a:00.8",
            "0000:8a:00",
            "+000:8a:00.0",
            "0000:8a:0.0",
            "pci0000:00",
            "000:8a:00.0",
            "0000:18a:00.0",
            "::.",
            "virtio2",
        ] {
            assert!(text.parse::<PciAddress>().is_err(), "{text}");
        }
    }
}
