//! Reasons why a plugin can't be hosted, with fixes.

use std::time::Duration;

use polyrail_nccl_abi::{LoadError, NetError};
use thiserror::Error;

/// Maximum number of a plugin's devices that an engine uses as rails. An engine has no more rails.
pub const DEVICES_MAX: usize = 64;

/// Reason why a plugin can't be hosted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HostError {
    /// Loading failed.
    #[error("{0}")]
    Load(#[from] LoadError),
    /// A call into the plugin failed.
    #[error("{0}")]
    Net(#[from] NetError),
    /// The plugin has no devices.
    #[error("plugin {name} has no devices; at least 1 is needed")]
    NoDevices {
        /// Name that the plugin reports.
        name: String,
    },
    /// The plugin has more devices than an engine takes, and no device was selected.
    #[error(
        "plugin {name} has {count} devices; allowed: 1 to {DEVICES_MAX}, or some that are named"
    )]
    TooMany {
        /// Name that the plugin reports.
        name: String,
        /// Number of devices.
        count: usize,
    },
    /// A device reports a property that is impossible or not supported.
    #[error("device {device} of plugin {name}: {field} is {value}, allowed is {allowed}")]
    Property {
        /// Name that the plugin reports.
        name: String,
        /// The device's name or number.
        device: String,
        /// NCCL's name of the property.
        field: &'static str,
        /// Value that the plugin reports.
        value: String,
        /// Allowed values.
        allowed: &'static str,
    },
    /// The plugin has no such device.
    #[error("plugin {name} has no device {device:?}; it has {has}")]
    NoSuchDevice {
        /// Name that the plugin reports.
        name: String,
        /// Requested name or number.
        device: String,
        /// Devices that the plugin has.
        has: String,
    },
    /// A device was requested twice, perhaps by its name and its number.
    #[error("device {device} of plugin {name} is named twice; allowed: each device once")]
    Twice {
        /// Name that the plugin reports.
        name: String,
        /// The device's name.
        device: String,
    },
    /// The thread for slow calls can't be started.
    #[error("a thread for the plugin can't be started: {0}")]
    Thread(std::io::Error),
    /// A call that loads the plugin does not return.
    #[error("the plugin has not returned from `{function}` for {} s", limit.as_secs())]
    Hangs {
        /// NCCL's name of the function, or `dlopen`.
        function: &'static str,
        /// Time waited.
        limit: Duration,
    },
}

impl HostError {
    /// Returns the fix, if one is known.
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
