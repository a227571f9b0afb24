//! What one peer may make this engine remember. An honest peer that comes near a quota is told to wait
//! or that one operation can't be; what only a peer that breaks the rules does is a breach.

use thiserror::Error;

/// A peer is past a quota that no honest peer passes: close the flow that brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer's quota of {quota} is exceeded: {value}, allowed is at most {limit}")]
pub struct QuotaExceeded {
    /// What there is too much of.
    pub quota: &'static str,
    /// How much that would be.
    pub value: u64,
    /// How much there may be.
    pub limit: u64,
}

impl QuotaExceeded {
    /// An error if `value` is over `limit`.
    pub fn check(quota: &'static str, value: usize, limit: usize) -> Result<(), Self> {
        if value <= limit {
            return Ok(());
        }
        // A usize has at most 64 bits.
        Err(Self { quota, value: value as u64, limit: limit as u64 })
    }
}
