//! Causes that a verdict can name, and the changes of `--why` that test them.

use super::suspects::{Knob, Scene};

/// Cause that a verdict names. Causes are finer than kinds of limits: one kind may have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// More outstanding transfers would be faster, or there is room for them.
    Depth,
    /// Only one message at a time was outstanding.
    OneMessage,
    /// The rails are as fast as their links.
    FullLinks,
    /// The rails are as fast as their links, and one rail is much slower than the others.
    SlowRail,
    /// Copies of memory are at their limit.
    Memory,
    /// The thread that posts is always busy.
    Posting,
    /// The cost of each transfer limits, not its bytes.
    MessageRate,
    /// Devices copied the bytes.
    Device,
    /// A process was stopped or got no CPU time.
    Away,
    /// The CPU quota of a control group was used up.
    Quota,
    /// The processes use all the CPUs.
    BusyCpus,
    /// Other programs use the CPUs.
    OtherPrograms,
    /// One CPU is full.
    HotCpu,
    /// One thread uses a whole CPU.
    BusyThread,
    /// The receiver's buffers are full.
    NoRoom,
    /// Packets are lost in the network.
    Lost,
    /// The queue of an interface drops packets.
    ShortQueue,
    /// A rail is down.
    RailDown,
    /// A rail has no channel.
    NoChannel,
    /// A rail has no partner at the other end.
    NoPartner,
    /// Rails of one subnet receive through one NIC.
    OneNic,
    /// The window is full.
    Window,
    /// Protecting payload takes CPU time.
    Protection,
}

/// Test of a cause by `--why`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    By(&'static [Knob]),
    /// No test, for this reason.
    Not(&'static str),
}

impl Cause {
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

    /// Returns the test of the cause.
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

/// Returns the reasons why `--why` does not test some of these causes in this scene, each reason once.
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
