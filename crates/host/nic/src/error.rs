//! What can go wrong between this process and the kernel.

use std::io;

use polyrail_netlink::{Error, refusal};

/// Why the kernel did not answer a question about a network interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// No conversation with the kernel is possible.
    #[error("{what} can't be opened: {source}")]
    Open {
        /// What this process tried to open, such as a netlink socket.
        what: &'static str,
        source: io::Error,
    },
    /// The kernel is too old, or was built without this.
    #[error("this kernel has no netlink family `{family}`")]
    NoFamily {
        /// The name of the family.
        family: &'static str,
    },
    /// The kernel understood the request and refused it.
    #[error("{asked}: {}", refusal(source, said.as_deref()))]
    Refused {
        /// The request, with the interface.
        asked: String,
        source: io::Error,
        /// Its own words, if it had any.
        said: Option<String>,
    },
    /// The answer can't be understood.
    #[error("{asked}: the kernel's answer has {fault}")]
    Malformed {
        asked: String,
        /// What is wrong with the answer.
        fault: &'static str,
    },
}

impl NicError {
    /// What a netlink socket answered when it was asked for `asked`.
    pub(crate) fn of(asked: &str) -> impl FnOnce(Error) -> Self {
        let asked = asked.to_owned();
        move |error| match error {
            Error::Refused { source, said } => Self::Refused { asked, source, said },
            Error::Malformed(fault) => Self::Malformed { asked, fault },
        }
    }

    /// The system's error code, if it was the system that refused.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Open { source, .. } | Self::Refused { source, .. } => source.raw_os_error(),
            Self::NoFamily { .. } | Self::Malformed { .. } => None,
        }
    }

    /// Whether the driver or the kernel lacks the feature. That is not a fault of the machine.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::NoFamily { .. }) || self.raw_os_error() == Some(libc::EOPNOTSUPP)
    }

    /// Whether the interface is not there.
    pub fn is_absent(&self) -> bool {
        self.raw_os_error() == Some(libc::ENODEV)
    }

    /// Whether a capability is missing.
    pub fn is_permission(&self) -> bool {
        matches!(self.raw_os_error(), Some(libc::EPERM | libc::EACCES))
    }

    /// The remedy, where one is known.
    pub fn help(&self) -> Option<String> {
        if self.is_permission() {
            return Some("run as root, or with CAP_NET_ADMIN in this network namespace".into());
        }
        if self.is_absent() {
            return Some("`ip -br link` lists the interfaces of this network namespace".into());
        }
        match self {
            Self::NoFamily { family: "netdev" } => {
                Some("queues are tied to interrupts this way since Linux 6.8".into())
            }
            Self::NoFamily { family: "ethtool" } => Some("ethtool netlink came with 5.6".into()),
            _ => None,
        }
    }
}
