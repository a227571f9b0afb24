//! Limits on what one peer may make this engine remember. An honest peer near a quota gets a refusal: wait, or this
//! operation is impossible. Exceeding a limit that only a dishonest peer reaches is a protocol violation.

use thiserror::Error;

/// A peer exceeds a quota that no honest peer exceeds: close the flow that brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the peer's quota of {quota} is exceeded: {value}, allowed is at most {limit}")]
pub struct QuotaExceeded {
    /// Counted resource.
    pub quota: &'static str,
    /// Resulting amount.
    pub value: u64,
    /// Maximum amount.
    pub limit: u64,
}

impl QuotaExceeded {
    /// Returns an error if `value` is over `limit`.
    pub fn check(quota: &'static str, value: usize, limit: usize) -> Result<(), Self> {
        if value <= limit {
            return Ok(());
        }
        // A usize has at most 64 bits.
        Err(Self { quota, value: value as u64, limit: limit as u64 })
    }
}
