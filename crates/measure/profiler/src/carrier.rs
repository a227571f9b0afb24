//! A carrier moves bytes on one path and times the transfers.

use std::time::Duration;

use polyrail_profile::{End, Verify};

use crate::error::ProfilerError;

/// Result of one measurement; `None` for what was not measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// Time when the transfer of `t_host_ns` was posted, on the reference clock.
    pub posted_ns: i64,
    /// Each metric as [`polyrail_profile::Metric`] defines it. This one only if both ends share a clock: otherwise it
    /// follows from the stamps of both and the anchors.
    pub t_oneway_ns: Option<f64>,
    /// Half of a round trip.
    pub t_rtt2_ns: Option<f64>,
    /// Time on the device, behind a gate.
    pub t_gpu_ns: Option<f64>,
    /// Time from post to completion.
    pub t_host_ns: Option<f64>,
    /// Rate of a stream.
    pub bandwidth_bytes_per_s: Option<f64>,
    /// Raw stamps of the source's clock around the one-way transfer.
    pub source: End,
    /// Raw stamps of the sink's clock.
    pub sink: End,
    /// Result of comparing all bytes.
    pub verify: Verify,
}

/// Bytes from the start of one rank's source to the start of another's sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cargo {
    /// Rank of the source.
    pub src: u32,
    /// Rank of the sink.
    pub dst: u32,
    /// Number of bytes.
    pub bytes: u64,
}

/// Moves bytes on one path, between ranks of the plan.
pub trait Carrier: Send {
    /// Makes one untimed transfer.
    ///
    /// # Errors
    /// If a transfer failed.
    fn warm(&mut self, cargo: Cargo) -> Result<(), ProfilerError>;

    /// Makes one measurement of all metrics that the path has; compares every byte if `verify`.
    ///
    /// # Errors
    /// If a transfer failed. Wrong bytes are not an error; [`Measured::verify`] reports them.
    fn measure(&mut self, cargo: Cargo, verify: bool) -> Result<Measured, ProfilerError>;

    /// Starts transfers between these pairs that last at least about this long, and returns.
    ///
    /// # Errors
    /// If the path has no background load, or a transfer failed.
    fn begin_load(&mut self, pairs: &[(u32, u32)], time: Duration) -> Result<(), ProfilerError>;

    /// Waits until the background load ends.
    ///
    /// # Errors
    /// If a transfer failed.
    fn end_load(&mut self) -> Result<(), ProfilerError>;
}

/// Returns the number of transfers of a stream, and how many of them are outstanding at once.
pub(crate) fn stream_of(bytes: u64, total_bytes: u64) -> (u64, usize) {
    let count = (total_bytes / bytes.max(1)).clamp(3, 32);
    (count, if bytes >= 64 << 20 { 2 } else { 4 })
}

/// Rate of `bytes` in `ns`, in bytes per second.
pub(crate) fn per_second(bytes: u64, ns: i64) -> Option<f64> {
    (ns > 0).then(|| bytes as f64 / ns as f64 * 1e9)
}
