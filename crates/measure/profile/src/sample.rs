//! One measured transfer, and the meaning of each of its metrics.

use std::fmt;
use std::ops::{BitOr, RangeInclusive};

use crate::clock::Alignment;
use crate::error::ProfileError;
use crate::table::{Cells, Line, ReadRow, Row, Word};

/// A metric of the duration or speed of a transfer. Each has one definition, which the documentation and the report
/// repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Time from the start at the source until the sink knows that all bytes have arrived, on aligned clocks.
    Oneway,
    /// Half of a ping-pong.
    HalfRoundTrip,
    /// Time on the device, without the launch.
    Gpu,
    /// Time from posting to completion at the host.
    Host,
    /// Rate of a stream of transfers.
    Bandwidth,
}

impl Metric {
    /// All metrics, in the order of preference for a latency.
    pub const ALL: [Self; 5] =
        [Self::Gpu, Self::Oneway, Self::HalfRoundTrip, Self::Host, Self::Bandwidth];

    /// Returns the exact definition.
    pub fn definition(self) -> &'static str {
        match self {
            Self::Oneway => {
                "from the start at the source (or at the sink, if that is later) until the sink knows \
                 that every byte has arrived, both on the reference clock after alignment, in ns; \
                 clock_uncertainty_ns bounds the error that the alignment adds"
            }
            Self::HalfRoundTrip => {
                "half the time from sending a message to receiving an answer of the same size, by one \
                 clock, in ns; if a sample is a train of round trips, their mean"
            }
            Self::Gpu => {
                "time on the device from the opening of a gate, which holds the queued transfer back, \
                 to the transfer's completion, in ns; excludes the launch; if a sample has several \
                 such transfers, their median"
            }
            Self::Host => {
                "time on the host's clock from posting the transfer until the host knows that every \
                 byte is in place, in ns; includes launch and notification"
            }
            Self::Bandwidth => {
                "of a stream that keeps several transfers outstanding: bytes in place, divided by the \
                 time from the first post to the last completion, in bytes/s"
            }
        }
    }
}

impl Word for Metric {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("t_oneway", Self::Oneway),
        ("t_rtt2", Self::HalfRoundTrip),
        ("t_gpu", Self::Gpu),
        ("t_host", Self::Host),
        ("bandwidth", Self::Bandwidth),
    ];
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// One measured transfer. Values that were not measured are `None`, never zero.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// Place in the order of the plan.
    pub order: u64,
    /// Number of the run that took the sample: 0 for the first, plus 1 for each resume.
    pub session: u32,
    pub configuration: u32,
    /// Number of the repetition of the configuration.
    pub repetition: u32,
    /// Time of posting, on the reference clock, in ns.
    pub posted_ns: i64,
    /// [`Metric::Oneway`] in ns. Tables hold it only if both ends share a clock, and it is then above zero.
    /// [`Folder::samples`](crate::Folder::samples) computes the others, which can be slightly below zero, within the
    /// uncertainty of the clocks.
    pub t_oneway_ns: Option<f64>,
    /// [`Metric::HalfRoundTrip`] in ns.
    pub t_rtt2_ns: Option<f64>,
    /// [`Metric::Gpu`] in ns.
    pub t_gpu_ns: Option<f64>,
    /// [`Metric::Host`] in ns.
    pub t_host_ns: Option<f64>,
    /// [`Metric::Bandwidth`] in bytes per second.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Error bound of [`t_oneway_ns`](Self::t_oneway_ns) from the clocks, in ns.
    pub clock_uncertainty_ns: Option<f64>,
    /// The source's view.
    pub source: End,
    /// The sink's view.
    pub sink: End,
    /// Result of comparing the bytes that arrived with those sent.
    pub verify: Verify,
    /// Defects of the sample.
    pub flags: Flags,
}

/// One end's view of a transfer; times are raw, by that end's own clock.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct End {
    /// Number of the clock in `run.yml`.
    pub clock: Option<u32>,
    /// Start, in ns of that clock.
    pub start_ns: Option<i64>,
    /// End, in ns of that clock.
    pub end_ns: Option<i64>,
    /// Temperature of the device, in °C.
    pub temperature_c: Option<f64>,
    /// Clock of the device's processors, in MHz.
    pub sm_clock_mhz: Option<u32>,
}

/// Result of comparing bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// Not compared for this sample.
    #[default]
    Off,
    /// Every byte was right.
    Ok,
    /// At least one byte was wrong.
    Failed,
}

impl Word for Verify {
    const WORDS: &'static [(&'static str, Self)] =
        &[("off", Self::Off), ("ok", Self::Ok), ("failed", Self::Failed)];
}

/// Defects of a sample; samples are flagged and never dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u16);

impl Flags {
    pub const NONE: Self = Self(0);
    /// The device named a thermal or power reason for a lower clock.
    pub const THROTTLED: Self = Self(1);
    /// The clock was more than a quarter below its usual value.
    pub const CLOCK_DROP: Self = Self(1 << 1);
    /// The device had been idle and was not at its working clock.
    pub const IDLE: Self = Self(1 << 2);
    /// Another process used the device.
    pub const FOREIGN_PROCESS: Self = Self(1 << 3);
    /// The time is within three times the timer's floor.
    pub const NEAR_FLOOR: Self = Self(1 << 4);
    /// The transfer failed and was repeated, or one end has no stamps.
    pub const INCOMPLETE: Self = Self(1 << 5);
    /// Link or PCIe error counters moved.
    pub const LINK_ERRORS: Self = Self(1 << 6);
    /// A rail failed or came back meanwhile.
    pub const RAIL_CHANGED: Self = Self(1 << 7);

    /// Whether all flags of `other` are set.
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether no flag is set.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn parse(text: &str) -> Option<Self> {
        let words = text.split('|').filter(|word| !word.is_empty());
        words.map(Self::from_word).try_fold(Self::NONE, |all, flag| Some(all | flag?))
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Word for Flags {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("throttled", Self::THROTTLED),
        ("clock_drop", Self::CLOCK_DROP),
        ("idle", Self::IDLE),
        ("foreign_process", Self::FOREIGN_PROCESS),
        ("near_floor", Self::NEAR_FLOOR),
        ("incomplete", Self::INCOMPLETE),
        ("link_errors", Self::LINK_ERRORS),
        ("rail_changed", Self::RAIL_CHANGED),
    ];
}

/// Writes the words, joined by `|`.
impl fmt::Display for Flags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = Self::WORDS.iter().filter(|(_, flag)| self.contains(*flag));
        for (place, (word, _)) in set.enumerate() {
            if place > 0 {
                f.write_str("|")?;
            }
            f.write_str(word)?;
        }
        Ok(())
    }
}

impl Sample {
    /// Returns a metric: ns, or bytes per second for [`Metric::Bandwidth`].
    pub fn metric(&self, metric: Metric) -> Option<f64> {
        match metric {
            Metric::Oneway => self.t_oneway_ns,
            Metric::HalfRoundTrip => self.t_rtt2_ns,
            Metric::Gpu => self.t_gpu_ns,
            Metric::Host => self.t_host_ns,
            Metric::Bandwidth => self.bandwidth_bytes_per_s,
        }
    }

    /// Computes the one-way time from the stamps of two clocks. Leaves it unknown if a stamp or the anchors of a clock
    /// are missing.
    pub(crate) fn align(&mut self, alignment: &Alignment) {
        let stamp = |clock: Option<u32>, ns: Option<i64>| clock.zip(ns);
        let (source, sink) = (&self.source, &self.sink);
        let sent = stamp(source.clock, source.start_ns);
        let (Some(sent), Some(seen)) = (sent, stamp(sink.clock, sink.end_ns)) else { return };
        if self.t_oneway_ns.is_some() {
            return;
        }
        let Ok((since_sent_ns, uncertainty_ns)) = alignment.later(seen, sent) else { return };
        let since_ready_ns = sink.start_ns.map(|ready_ns| seen.1.saturating_sub(ready_ns) as f64);
        // If the sink was ready later than the source, the time begins at the sink and needs only its clock.
        let (oneway_ns, uncertainty_ns) = match since_ready_ns {
            Some(since_ready_ns) if since_ready_ns < since_sent_ns => (since_ready_ns, 0.0),
            _ => (since_sent_ns, uncertainty_ns),
        };
        self.t_oneway_ns = Some(oneway_ns);
        self.clock_uncertainty_ns = Some(uncertainty_ns);
    }
}

impl Row for Sample {
    const COLUMNS: &'static [&'static str] = &[
        "order",
        "session",
        "configuration",
        "repetition",
        "posted_ns",
        "t_oneway_ns",
        "t_rtt2_ns",
        "t_gpu_ns",
        "t_host_ns",
        "bandwidth_bytes_per_s",
        "clock_uncertainty_ns",
        "clock_src",
        "start_src_ns",
        "end_src_ns",
        "temp_src_c",
        "sm_clock_src_mhz",
        "clock_dst",
        "start_dst_ns",
        "end_dst_ns",
        "temp_dst_c",
        "sm_clock_dst_mhz",
        "verify",
        "flags",
    ];

    fn write(&self, line: &mut Line) {
        line.cell(self.order);
        line.cell(self.session);
        line.cell(self.configuration);
        line.cell(self.repetition);
        line.cell(self.posted_ns);
        line.optional(self.t_oneway_ns);
        line.optional(self.t_rtt2_ns);
        line.optional(self.t_gpu_ns);
        line.optional(self.t_host_ns);
        line.optional(self.bandwidth_bytes_per_s);
        line.optional(self.clock_uncertainty_ns);
        for end in [&self.source, &self.sink] {
            line.optional(end.clock);
            line.optional(end.start_ns);
            line.optional(end.end_ns);
            line.optional(end.temperature_c);
            line.optional(end.sm_clock_mhz);
        }
        line.cell(self.verify.word());
        line.cell(self.flags);
    }
}

impl ReadRow for Sample {
    fn read(cells: &Cells<'_>) -> Result<Self, ProfileError> {
        let bound = |column, least| {
            cells.optional(column, |cells| cells.number(column, least..=TIME_MAX_NS))
        };
        let time = |column| bound(column, TIME_MIN_NS);
        let end = |first: usize| -> Result<End, ProfileError> {
            let stamp = |column| cells.optional(column, |cells| stamp(cells, column));
            Ok(End {
                clock: cells.optional(first, |cells| cells.whole(first, 0..=u32::MAX))?,
                start_ns: stamp(first + 1)?,
                end_ns: stamp(first + 2)?,
                temperature_c: cells
                    .optional(first + 3, |cells| cells.number(first + 3, -100.0..=200.0))?,
                sm_clock_mhz: cells
                    .optional(first + 4, |cells| cells.whole(first + 4, 0..=100_000))?,
            })
        };
        let (source, sink) = (end(11)?, end(16)?);
        let t_oneway_ns = time(5)?;
        let has_two_clocks = source.clock.zip(sink.clock).is_some_and(|(one, other)| one != other);
        if t_oneway_ns.is_some() && has_two_clocks {
            let allowed =
                "empty, since clock_src and clock_dst differ: it follows from the anchors";
            return Err(cells.fault(5, allowed));
        }
        Ok(Self {
            order: cells.whole(0, 0..=u64::MAX)?,
            session: cells.whole(1, 0..=SESSION_MAX)?,
            configuration: cells.whole(2, 0..=u32::MAX)?,
            repetition: cells.whole(3, 0..=u32::MAX)?,
            posted_ns: stamp(cells, 4)?,
            t_oneway_ns,
            t_rtt2_ns: time(6)?,
            t_gpu_ns: time(7)?,
            t_host_ns: time(8)?,
            bandwidth_bytes_per_s: cells.optional(9, |cells| cells.number(9, RATES))?,
            clock_uncertainty_ns: bound(10, 0.0)?,
            source,
            sink,
            verify: cells.word(21)?,
            flags: Flags::parse(cells.text(22)).ok_or_else(|| {
                cells.fault(22, format!("any of {}, joined by |", Flags::allowed()))
            })?,
        })
    }
}

/// Reads a stamp of a clock, in ns.
pub(crate) fn stamp(cells: &Cells<'_>, column: usize) -> Result<i64, ProfileError> {
    cells.whole(column, -STAMP_MAX_NS..=STAMP_MAX_NS)
}

/// Maximum session: numbers of anchor windows start at a million per session, in 32 bits.
const SESSION_MAX: u32 = 4_000;
/// Maximum stamp, 146 years: the difference of two stamps still fits.
const STAMP_MAX_NS: i64 = (1 << 62) - 1;

/// Minimum time, in ns: no transfer takes zero time, and rates divide by the time.
const TIME_MIN_NS: f64 = 1e-3;
/// Maximum time, in ns: a month.
const TIME_MAX_NS: f64 = 2.6e15;
/// Allowed rates in bytes/s: from one byte in 1000 s to more than any link carries.
const RATES: RangeInclusive<f64> = 1e-3..=1e18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_words_and_read_back() {
        let flags = Flags::THROTTLED | Flags::NEAR_FLOOR;
        assert_eq!(flags.to_string(), "throttled|near_floor");
        assert_eq!(Flags::parse("throttled|near_floor"), Some(flags));
        assert_eq!(Flags::parse(""), Some(Flags::NONE));
        assert_eq!(Flags::parse("throttled|odd"), None);
        assert!(flags.contains(Flags::THROTTLED) && !flags.contains(Flags::IDLE));
    }

    #[test]
    fn every_metric_has_a_word_and_a_definition() {
        for metric in Metric::ALL {
            assert_eq!(Metric::from_word(metric.word()), Some(metric));
            assert!(metric.definition().contains(" in "), "a definition names its unit");
        }
    }
}
