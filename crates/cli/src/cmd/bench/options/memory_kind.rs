//! Requested place of an end's memory: on the host or on a device.

use std::fmt;
use std::str::FromStr;

/// Value of `--mem` and `--peer-mem`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    #[default]
    Host,
    /// A CUDA device by its number in the process.
    Cuda(u32),
}

impl FromStr for MemoryKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            "is no place for memory; allowed: host, or a device by its number, like cuda:0"
                .to_owned()
        };
        match text.split_once(':') {
            None if text == "host" => Ok(Self::Host),
            Some(("cuda", digits)) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().map(Self::Cuda).map_err(|_| bad())
            }
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_the_host_or_a_device_by_its_number() {
        assert_eq!("host".parse(), Ok(MemoryKind::Host));
        assert_eq!("cuda:12".parse(), Ok(MemoryKind::Cuda(12)));
        for wrong in ["", "cuda", "cuda:", "cuda:-1", "cuda:+1", "gpu:0", "cuda:99999999999"] {
            let error = wrong.parse::<MemoryKind>().unwrap_err();
            assert!(
                error.ends_with("allowed: host, or a device by its number, like cuda:0"),
                "{wrong}"
            );
        }
        assert_eq!(MemoryKind::Cuda(1).to_string().parse(), Ok(MemoryKind::Cuda(1)));
    }
}
