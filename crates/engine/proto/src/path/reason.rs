//! Reasons for the path of a request's bytes. A reason is data; its sentence is made where it is printed.

use std::borrow::Cow;
use std::fmt;

/// Reason for the path of a request's bytes. Its text is a fragment of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathReason {
    /// The setting `path` names the path.
    Setting,
    /// The setting `path` names shared memory, which is not possible.
    SettingNotPossible(PathObstacle),
    /// No better path is possible, for one reason.
    NothingBetter(PathObstacle),
    /// Neither copies nor shared memory are possible.
    NeitherCopiedNorShared {
        /// Reason against a copy from end to end.
        no_copy: PathObstacle,
        /// Reason against shared memory.
        no_sharing: PathObstacle,
    },
    /// Shared memory: both ends are on this host, and no device copies.
    NoPeerCopy(PathObstacle),
    /// Shared memory: both ends are on this host, and its CPUs don't copy.
    NoSingleCopy(PathObstacle),
    /// CPUs copy from end to end.
    CopiedByCpus {
        /// Both ends are in this process.
        is_within_process: bool,
    },
    /// A device copies from end to end.
    CopiedByDevice {
        /// Both ends are in this process.
        is_within_process: bool,
        /// Name of the device.
        device: String,
    },
    /// A device copies to or from pinned memory, and CPUs between that and the other process.
    CopiedInStages {
        /// Name of the device.
        device: String,
    },
    /// CPUs copy a message once its receive is known.
    CopiedOnceMatched,
}

/// Path that the setting `path` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnlyPath {
    /// Shared memory.
    Shared,
    /// TCP over the rails.
    Tcp,
}

/// Reason why a path is not possible, or not worthwhile. Its text is a fragment of a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PathObstacle {
    /// No device copies between host memories.
    NoDevice,
    /// The setting `path` names another path.
    PathSetting(OnlyPath),
    /// The setting `path` allows no copies by CPUs.
    NoCopiesByCpus,
    /// The peer's settings forbid the path.
    PeerSettings,
    /// The peer is on another host.
    OtherHost,
    /// The sender of a message chooses the path, not the receiver.
    SenderChooses,
    /// The memory of the receive is unknown until the message meets its receive.
    NotMatched,
    /// The far end is host memory of another process.
    FarHostMemory,
    /// The near end is host memory.
    NearHostMemory,
    /// The peer's region has ended.
    RegionGone,
    /// The peer would refuse the request.
    PeerWouldRefuse,
    /// The peer's region is not both readable and writable.
    NotReadableAndWritable,
    /// The request has no bytes.
    Empty,
    /// The request is short: a separate copy would not pay.
    Short,
    /// The request is short, and connections to the peer go through shared memory.
    ShortAndStreamed,
    /// The request is short, and no connection to the peer goes through shared memory.
    ShortNotStreamed(Cow<'static, str>),
    /// The request has more bytes than one thread should copy.
    Long,
    /// The request has more pieces than one copy takes.
    ManyPieces,
    /// The request has memory of several devices.
    SeveralDevices,
    /// An error, by its text.
    Error(Cow<'static, str>),
}

impl fmt::Display for OnlyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Shared => "shared",
            Self::Tcp => "tcp",
        })
    }
}

impl fmt::Display for PathReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = |is_within_process| match is_within_process {
            true => "in this process",
            false => "on this host",
        };
        match self {
            Self::Setting => f.write_str("the setting path says so"),
            Self::SettingNotPossible(why) => {
                write!(f, "the setting path says shared, which is not possible: {why}")
            }
            Self::NothingBetter(why) => why.fmt(f),
            Self::NeitherCopiedNorShared { no_copy, no_sharing } => {
                write!(f, "{no_copy}; not through shared memory: {no_sharing}")
            }
            Self::NoPeerCopy(why) => write!(f, "both ends are on this host; {why}"),
            Self::NoSingleCopy(why) => {
                write!(f, "both ends are on this host; no single copy: {why}")
            }
            Self::CopiedByCpus { is_within_process } => {
                write!(f, "both ends are {}, copied by its CPUs", place(*is_within_process))
            }
            Self::CopiedByDevice { is_within_process, device } => {
                write!(f, "both ends are {}, copied by {device}", place(*is_within_process))
            }
            Self::CopiedInStages { device } => {
                write!(f, "both ends are on this host, copied by {device} and this process's CPUs")
            }
            Self::CopiedOnceMatched => f.write_str(
                "both ends are on this host, copied by its CPUs once it meets a receive whose memory is known",
            ),
        }
    }
}

impl fmt::Display for PathObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = "it is short, and the rails carry it as fast";
        let text = match self {
            Self::PathSetting(path) => return write!(f, "the setting path says {path}"),
            Self::ShortNotStreamed(why) => {
                return write!(f, "{short}; no shared memory for connections: {why}");
            }
            Self::NoDevice => "neither end is a device's memory",
            Self::NoCopiesByCpus => "the setting path says device",
            Self::PeerSettings => "the peer's settings forbid it",
            Self::OtherHost => "the peer is on another host",
            Self::SenderChooses => "its sender chooses the path",
            Self::NotMatched => "where a message goes is known when it meets its receive",
            Self::FarHostMemory => "the other end is another process's host memory",
            Self::NearHostMemory => "this end is host memory",
            Self::RegionGone => "the region is gone",
            Self::PeerWouldRefuse => "the peer would refuse it",
            Self::NotReadableAndWritable => "the peer may not both read and write it",
            Self::Empty => "there are no bytes",
            Self::Short => short,
            Self::ShortAndStreamed => {
                "it is short, and connections to the peer go through shared memory"
            }
            Self::Long => "it has more than 256 KiB, which more threads move",
            Self::ManyPieces => "it has more than 256 pieces",
            Self::SeveralDevices => "it has memory of several devices",
            Self::Error(text) => text,
        };
        f.write_str(text)
    }
}

impl From<PathObstacle> for PathReason {
    fn from(why: PathObstacle) -> Self {
        Self::NothingBetter(why)
    }
}

impl From<Cow<'static, str>> for PathObstacle {
    fn from(text: Cow<'static, str>) -> Self {
        Self::Error(text)
    }
}

impl From<String> for PathObstacle {
    fn from(text: String) -> Self {
        Self::Error(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_a_sentence_where_it_is_printed() {
        let (no_copy, no_sharing) = (PathObstacle::NoCopiesByCpus, PathObstacle::Short);
        let device = "cuda:0".to_owned();
        for (reason, text) in [
            (
                PathReason::NeitherCopiedNorShared { no_copy, no_sharing },
                "the setting path says device; not through shared memory: it is short, and the rails carry it \
                 as fast",
            ),
            (
                PathReason::SettingNotPossible(PathObstacle::OtherHost),
                "the setting path says shared, which is not possible: the peer is on another host",
            ),
            (
                PathReason::NoPeerCopy(PathObstacle::PathSetting(OnlyPath::Tcp)),
                "both ends are on this host; the setting path says tcp",
            ),
            (
                PathReason::NoSingleCopy(String::from("EPERM").into()),
                "both ends are on this host; no single copy: EPERM",
            ),
            (
                PathReason::CopiedByDevice { is_within_process: true, device: device.clone() },
                "both ends are in this process, copied by cuda:0",
            ),
            (
                PathReason::CopiedInStages { device },
                "both ends are on this host, copied by cuda:0 and this process's CPUs",
            ),
            (PathObstacle::NoDevice.into(), "neither end is a device's memory"),
        ] {
            assert_eq!(reason.to_string(), text);
        }
        let why = PathObstacle::ShortNotStreamed("no room".into()).to_string();
        assert!(why.ends_with("as fast; no shared memory for connections: no room"), "{why}");
    }
}
