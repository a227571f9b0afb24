//! Meanings of refusal codes, for the sender and as text. The codes are in `wire.rs`, where programs find them.

use super::RefusalCode;

impl RefusalCode {
    /// Every code.
    pub const ALL: [Self; 16] = [
        Self::UnknownRegion,
        Self::StaleKey,
        Self::OutOfBounds,
        Self::AccessDenied,
        Self::RegionDropped,
        Self::NotExpected,
        Self::Checksum,
        Self::Busy,
        Self::Device,
        Self::NoRing,
        Self::NoStaging,
        Self::TransferOver,
        Self::TransferQuota,
        Self::MessageQuota,
        Self::ReadQuota,
        Self::ReceiveQuota,
    ];

    /// Returns whether the same chunk may be taken when it is sent again.
    pub fn is_retryable(self) -> bool {
        self.frees_itself() || matches!(self, Self::Checksum | Self::NoRing | Self::NoStaging)
    }

    /// Returns whether the receiver takes the same chunk as soon as something else is over there.
    pub fn frees_itself(self) -> bool {
        matches!(self, Self::Busy | Self::TransferQuota | Self::MessageQuota | Self::ReadQuota)
    }

    /// Returns the code with this number.
    pub fn from_wire(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|known| *known as u8 == code)
    }

    /// Returns the cause, as a fragment of a sentence.
    pub fn reason(self) -> &'static str {
        match self {
            Self::UnknownRegion => "no region is registered in that slot",
            Self::StaleKey => "the region's key is stale: it was registered again since",
            Self::OutOfBounds => "the range is outside the region",
            Self::AccessDenied => "the region does not allow this access to peers",
            Self::RegionDropped => "the region was dropped",
            Self::NotExpected => "the peer no longer expects this data",
            Self::Checksum => "the checksum of a chunk differs",
            Self::Busy => "the peer's limits are reached",
            Self::Device => "the peer's device failed to copy the bytes into its memory",
            Self::NoRing => "the peer can't open the shared memory that the bytes are in",
            Self::NoStaging => "the peer has no pinned memory left for the flow",
            Self::TransferOver => {
                "the transfer was over at the peer, which can't tell whether these bytes had landed"
            }
            Self::TransferQuota => "the quota of unfinished transfers at the peer is used up",
            Self::MessageQuota => {
                "the quota of bytes of messages of unfinished transfers at the peer is used up"
            }
            Self::ReadQuota => "the quota of reads that the peer serves at once is used up",
            Self::ReceiveQuota => {
                "the quota of posted receives that wait for a message of the peer is used up"
            }
        }
    }
}
