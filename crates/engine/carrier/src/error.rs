//! Why a plugin can't be hosted, and what to do about it.

use std::time::Duration;

use polyrail_nccl_abi::{LoadError, NetError};
use thiserror::Error;

/// The most devices of a plugin that an engine makes rails of: an engine has no more rails.
pub const DEVICES_MAX: usize = 64;

/// Why a plugin can't be hosted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// It can't be loaded.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// A call into it failed.
    #[error("{0}")]
    Net(#[from] NetError),
    /// It has no devices.
    #[error("plugin {name} has no devices; at least 1 is needed")]
    NoDevices {
        /// The plugin's name for itself.
        name: String,
    },
    /// It has more devices than an engine takes, and none is named.
    #[error(
        "plugin {name} has {count} devices; allowed: 1 to {DEVICES_MAX}, or some that are named"
    )]
    TooMany {
        /// The plugin's name for itself.
        name: String,
        /// How many it has.
        count: usize,
    },
    /// A device says of itself what can't be, or what is not supported.
    #[error("device {device} of plugin {name}: {field} is {value}, allowed is {allowed}")]
    Property {
        /// The plugin's name for itself.
        name: String,
        /// The device's name or number.
        device: String,
        /// NCCL's name of the property.
        field: &'static str,
        /// What the plugin says.
        value: String,
        /// What it may be.
        allowed: &'static str,
    },
    /// The plugin has no such device.
    #[error("plugin {name} has no device {device:?}; it has {has}")]
    NoSuchDevice {
        /// The plugin's name for itself.
        name: String,
        /// What was asked for: a name or a number.
        device: String,
        /// What there is.
        has: String,
    },
    /// A device was asked for twice, perhaps by its name and its number.
    #[error("device {device} of plugin {name} is named twice; allowed: each device once")]
    Twice {
        /// The plugin's name for itself.
        name: String,
        /// The device's name.
        device: String,
    },
    /// The thread for slow calls can't be started.
    #[error("a thread for the plugin can't be started: {0}")]
    Thread(std::io::Error),
    /// It does not return from a call by which it is loaded.
    #[error("the plugin has not returned from `{function}` for {} s", limit.as_secs())]
    Hangs {
        /// NCCL's name of the function, or `dlopen`.
        function: &'static str,
        /// For how long.
        limit: Duration,
    },
}

impl HostError {
    /// What to do about it, if that is known.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Load(error) => Some(error.help()),
            Self::Net(_) | Self::NoDevices { .. } | Self::Property { .. } | Self::Hangs { .. } => {
                Some("`polyrail nccl try` says what the plugin can do, call by call".into())
            }
            Self::TooMany { .. } => {
                Some("name some of the devices as plugin:LIBRARY@NAME+NUMBER".into())
            }
            Self::NoSuchDevice { .. } | Self::Twice { .. } => {
                Some("name devices as plugin:LIBRARY@NAME+NUMBER, or none for all".into())
            }
            Self::Thread(_) => None,
        }
    }
}
