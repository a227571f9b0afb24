//! A carrier moves bytes on one path and times the transfers.

use std::time::Duration;

use polyrail_profile::{End, Verify};

use crate::error::ProfilerError;

/// The result of one measurement; `None` where it measured nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// When the transfer of `t_host_ns` was posted, reference clock.
    pub posted_ns: i64,
    /// Each as [`polyrail_profile::Metric`] defines it. This one only if both ends have one clock:
    /// otherwise it follows from the stamps of both and the anchors.
    pub t_oneway_ns: Option<f64>,
    /// Half of a round trip.
    pub t_rtt2_ns: Option<f64>,
    /// Device-gated.
    pub t_gpu_ns: Option<f64>,
    /// Post to completion.
    pub t_host_ns: Option<f64>,
    /// Of a stream.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Raw stamps of the source's clock around the one-way transfer.
    pub source: End,
    /// Of the sink's.
    pub sink: End,
    /// Whether all bytes were compared.
    pub verify: Verify,
}

/// Bytes from the start of one rank's source to the start of another's sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cargo {
    /// The rank that they leave.
    pub src: u32,
    /// The rank where they arrive.
    pub dst: u32,
    /// The number of bytes.
    pub bytes: u64,
}

/// Moves bytes on one path, between ranks of the plan.
pub trait Carrier: Send {
    /// One untimed transfer.
    ///
    /// # Errors
    /// A transfer that failed.
    fn warm(&mut self, cargo: Cargo) -> Result<(), ProfilerError>;

    /// One measurement of all metrics that the path has, every byte compared if `verify`.
    ///
    /// # Errors
    /// If a transfer failed. Wrong bytes are not an error; [`Measured::verify`] reports them.
    fn measure(&mut self, cargo: Cargo, verify: bool) -> Result<Measured, ProfilerError>;

    /// Begins transfers between these pairs that go on for at least about this long, and returns.
    ///
    /// # Errors
    /// If the path has no background load, or a transfer failed.
    fn begin_load(&mut self, pairs: &[(u32, u32)], time: Duration) -> Result<(), ProfilerError>;

    /// Waits until the background load ends.
    ///
    /// # Errors
    /// A transfer that failed.
    fn end_load(&mut self) -> Result<(), ProfilerError>;
}

/// How many transfers a stream has, and how many of them are outstanding at once.
pub(crate) fn stream_of(bytes: u64, total_bytes: u64) -> (u64, usize) {
    let count = (total_bytes / bytes.max(1)).clamp(3, 32);
    (count, if bytes >= 64 << 20 { 2 } else { 4 })
}

/// `bytes` in `ns`, per second.
pub(crate) fn per_second(bytes: u64, ns: i64) -> Option<f64> {
    (ns > 0).then(|| bytes as f64 / ns as f64 * 1e9)
}
