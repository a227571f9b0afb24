//! Errors between this process and the kernel.

use std::io;

use polyrail_netlink::{Error, refusal};

/// Reasons why the kernel did not answer a request about a network interface.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NicError {
    /// A socket or watch to the kernel can't be opened.
    #[error("{what} can't be opened: {source}")]
    Open {
        /// The object that this process tried to open, such as a netlink socket.
        what: &'static str,
        source: io::Error,
    },
    /// The kernel is too old, or was built without the family.
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
        /// The kernel's own message, if there was one.
        said: Option<String>,
    },
    /// The answer can't be understood.
    #[error("{asked}: the kernel's answer has {fault}")]
    Malformed {
        asked: String,
        /// The problem with the answer.
        fault: &'static str,
    },
}

impl NicError {
    /// Converts an error of a netlink socket; `asked` describes the request.
    pub(crate) fn of(asked: &str) -> impl FnOnce(Error) -> Self {
        let asked = asked.to_owned();
        move |error| match error {
            Error::Refused { source, said } => Self::Refused { asked, source, said },
            Error::Malformed(fault) => Self::Malformed { asked, fault },
        }
    }

    /// Returns the system's error code, if the system refused.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Open { source, .. } | Self::Refused { source, .. } => source.raw_os_error(),
            Self::NoFamily { .. } | Self::Malformed { .. } => None,
        }
    }

    /// Whether the driver or the kernel lacks the feature, which is not a fault of the machine.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::NoFamily { .. }) || self.raw_os_error() == Some(libc::EOPNOTSUPP)
    }

    /// Whether the interface does not exist.
    pub fn is_absent(&self) -> bool {
        self.raw_os_error() == Some(libc::ENODEV)
    }

    /// Whether a capability is missing.
    pub fn is_permission(&self) -> bool {
        matches!(self.raw_os_error(), Some(libc::EPERM | libc::EACCES))
    }

    /// Returns the fix where one is known.
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
