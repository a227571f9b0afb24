//! Settings that are a choice between names.

use std::fmt;
use std::str::FromStr;

use crate::suggest;
use crate::value::{Field, Value};

/// A name that is not among the choices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not one of {allowed}")]
pub struct UnknownChoice {
    /// Given name.
    pub name: String,
    /// Allowed names, separated by commas.
    pub allowed: String,
    /// Choice that was probably meant.
    pub suggestion: Option<&'static str>,
}

/// Declares an enum together with its names, so that the two can't drift apart.
macro_rules! choices {
    ($(
        $(#[$outer:meta])*
        $enum:ident { $( $(#[$inner:meta])* $variant:ident = $name:literal, )+ }
    )+) => {$(
        $(#[$outer])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $enum { $( $(#[$inner])* $variant, )+ }

        impl $enum {
            /// Every choice, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];
            /// Names of [`Self::ALL`], in the same order.
            pub const NAMES: &[&'static str] = &[$($name),+];

            /// Returns the name as written in files, the environment and on the command line.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl fmt::Display for $enum {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $enum {
            type Err = UnknownChoice;

            fn from_str(name: &str) -> Result<Self, UnknownChoice> {
                match name {
                    $($name => Ok(Self::$variant),)+
                    _ => Err(unknown(name, Self::NAMES)),
                }
            }
        }

        impl Field for $enum {
            type Const = Self;

            fn new(default: Self) -> Self {
                default
            }

            fn value(&self) -> Value {
                Value::Text(self.name().to_owned())
            }

            fn from_value(value: Value) -> Option<Self> {
                match value {
                    Value::Text(name) => name.parse().ok(),
                    _ => None,
                }
            }
        }
    )+};
}

choices! {
    /// A named set of values for one purpose; any explicit value wins over it.
    Preset {
        /// Shortest time for small transfers, at the cost of CPU.
        Latency = "latency",
        /// Most bytes per second for large transfers.
        Throughput = "throughput",
        /// Fewest CPU seconds per byte, and none while idle.
        Cpu = "cpu",
        /// The defaults.
        Balanced = "balanced",
    }

    /// Thread that moves the data.
    Progress {
        /// Progress threads of the engine.
        Proxy = "proxy",
        /// Thread that posts and waits.
        Caller = "caller",
    }

    /// Assignment of sending and receiving to progress threads.
    ProxyLayout {
        /// Sending and receiving have separate threads.
        Split = "split",
        /// Each thread does both.
        Merged = "merged",
    }

    /// Address of an interface that its rail takes.
    AddressFamily {
        /// IPv4, or IPv6 where the interface has no other.
        Auto = "auto",
        /// Only IPv4.
        Ipv4 = "ipv4",
        /// Only IPv6.
        Ipv6 = "ipv6",
    }

    /// Path of bytes where there is more than one.
    PathChoice {
        /// The fastest path that both ends can take.
        Auto = "auto",
        /// Like `auto`, but CPUs copy nothing from memory to memory.
        Device = "device",
        /// Through memory that both ends on one host have open.
        Shared = "shared",
        /// Over the rails.
        Tcp = "tcp",
    }

    /// Devices that the NCCL plugin shows to NCCL.
    NcclDevices {
        /// All rails together.
        One = "one",
        /// The rails of a NUMA node.
        Node = "node",
        /// Each rail.
        Nic = "nic",
    }

    /// Authentication of engines that connect.
    Auth {
        /// By metadata, a secret, or as the same user on one host.
        On = "on",
        /// None: any engine that reaches the port may connect.
        None = "none",
    }

    /// Protection of payload on the wire.
    Payload {
        /// Not beyond TCP's own checksum.
        None = "none",
        /// By a CRC-32C of each chunk: finds accidents.
        Crc32c = "crc32c",
        /// Encrypted and authenticated.
        Aead = "aead",
    }

    /// Minimum severity of the log records that are written.
    LogLevel {
        /// Only what failed.
        Error = "error",
        /// Also what is likely wrong.
        Warn = "warn",
        /// Also what happens once per peer, rail or run.
        Info = "info",
        /// Also what happens once per flow or transfer.
        Debug = "debug",
        /// Everything, once per chunk.
        Trace = "trace",
    }

    /// Format of log records.
    LogFormat {
        /// A line for people.
        Text = "text",
        /// A line that is a JSON document.
        Json = "json",
    }
}

fn unknown(name: &str, names: &'static [&'static str]) -> UnknownChoice {
    UnknownChoice {
        name: name.to_owned(),
        allowed: names.join(", "),
        suggestion: suggest::closest(name, names.iter().copied()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_reads_back_from_its_name() {
        for &choice in Preset::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for &choice in LogLevel::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for &choice in PathChoice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
    }

    #[test]
    fn an_unknown_choice_lists_the_names_and_suggests_the_nearest() {
        let error = "latencey".parse::<Preset>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`latencey` is not one of latency, throughput, cpu, balanced"
        );
        assert_eq!(error.suggestion, Some("latency"));
    }
}
