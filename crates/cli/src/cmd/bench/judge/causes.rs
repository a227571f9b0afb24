//! Every cause that a verdict can name, and what `--why` changes to test it.

use super::suspects::{Knob, Scene};

/// A cause that a verdict names. Finer than the kind of the limit: one kind may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// More transfers at once would be faster, or there is room for them.
    Depth,
    /// One message at a time was measured.
    OneMessage,
    /// The rails carry what their links carry.
    FullLinks,
    /// The same, and one rail is much slower than the others.
    SlowRail,
    /// Memory is copied as fast as it can be.
    Memory,
    /// The thread that posts is always at it.
    Posting,
    /// The number of transfers is what costs.
    MessageRate,
    /// Devices copied the bytes themselves.
    Device,
    /// A process was stopped, or had no CPU.
    Away,
    /// The CPU quota of a control group had run out.
    Quota,
    /// The processes use the CPUs that there are.
    BusyCpus,
    /// Other programs use them.
    OtherPrograms,
    /// One CPU is full.
    HotCpu,
    /// One thread uses a whole CPU.
    BusyThread,
    /// The receiver has no room.
    NoRoom,
    /// Packets are lost on the way.
    Lost,
    /// The queue of an interface drops packets.
    ShortQueue,
    /// A rail is down.
    RailDown,
    /// A rail has no channel.
    NoChannel,
    /// A rail leads nowhere.
    NoPartner,
    /// Rails of one subnet receive by one NIC.
    OneNic,
    /// The window is full.
    Window,
    /// Protecting payload takes CPU time.
    Protection,
}

/// How `--why` tests a cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    By(&'static [Knob]),
    /// Not at all, for this reason.
    Not(&'static str),
}

impl Cause {
    /// The list of them.
    #[cfg(test)]
    pub(crate) const ALL: [Self; 23] = [
        Self::Depth,
        Self::OneMessage,
        Self::FullLinks,
        Self::SlowRail,
        Self::Memory,
        Self::Posting,
        Self::MessageRate,
        Self::Device,
        Self::Away,
        Self::Quota,
        Self::BusyCpus,
        Self::OtherPrograms,
        Self::HotCpu,
        Self::BusyThread,
        Self::NoRoom,
        Self::Lost,
        Self::ShortQueue,
        Self::RailDown,
        Self::NoChannel,
        Self::NoPartner,
        Self::OneNic,
        Self::Window,
        Self::Protection,
    ];

    /// The table of causes and their tests.
    pub(crate) fn test(self) -> Test {
        use Test::{By, Not};
        match self {
            Self::Depth => By(&[Knob::Depth]),
            Self::OneMessage => Not("one message at a time is what --latency measures"),
            Self::FullLinks => Not("no setting makes links faster"),
            Self::SlowRail => By(&[Knob::Rails]),
            Self::Memory => By(&[Knob::Chunk]),
            Self::Posting => {
                Not("this command posts the transfers, from as many threads as --posters says")
            }
            Self::MessageRate => {
                Not("the size is what is measured, and larger transfers are another --sizes")
            }
            Self::Device => Not("no setting of the rails changes what devices copy"),
            Self::Away => {
                Not("what stops a process, or takes its CPUs, is outside of this command")
            }
            Self::Quota => Not("the quota is one of the system's"),
            Self::BusyCpus => By(&[Knob::Layout, Knob::Chunk, Knob::Channels]),
            Self::OtherPrograms => Not("other programs are not this command's to end"),
            Self::HotCpu | Self::BusyThread => By(&[Knob::Layout, Knob::Channels]),
            Self::NoRoom => By(&[Knob::Buffers]),
            Self::Lost | Self::ShortQueue => By(&[Knob::Congestion]),
            Self::RailDown => Not("no setting brings a link up"),
            Self::NoChannel => By(&[Knob::Channels]),
            Self::NoPartner => {
                Not("rails are added by `rails` at the end opposite, and by its interfaces")
            }
            Self::OneNic => Not("the answers to ARP are settings of the host"),
            Self::Window => By(&[Knob::Window]),
            Self::Protection => By(&[Knob::Payload]),
        }
    }
}

/// Why `--why` does not test some of these causes in this scene; each reason once.
pub(crate) fn untested(causes: &[Cause], scene: &Scene<'_>) -> Vec<&'static str> {
    let mut reasons = Vec::new();
    for cause in causes {
        let reason = match cause.test() {
            Test::Not(reason) => Some(reason),
            Test::By(knobs) => {
                let is_out = knobs.iter().all(|knob| knob.changes(scene).is_empty());
                is_out.then_some(OUT_OF_BOUNDS)
            }
        };
        reasons.extend(reason.filter(|reason| !reasons.contains(reason)));
    }
    reasons
}

const OUT_OF_BOUNDS: &str =
    "the change that tests it takes more memory, channels or rails than a trial may have";
