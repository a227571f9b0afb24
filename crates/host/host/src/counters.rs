//! Counters of `/proc` that grow since boot: `stat`, `softirqs`, `net/softnet_stat`, `net/dev`.

mod net_dev;
mod softirqs;
mod softnet;
mod stat;

pub use net_dev::{NetDev, NetDevCounters};
pub use softirqs::Softirqs;
pub use softnet::{Softnet, SoftnetCpu};
pub use stat::{CpuTicks, Stat};

/// The text is not in the expected format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {fault}")]
pub struct CountersError {
    /// Line number, counted from 1.
    pub line: usize,
    /// The fault in this line.
    pub fault: String,
}

impl CountersError {
    fn new(line: usize, fault: impl Into<String>) -> Self {
        Self { line, fault: fault.into() }
    }
}

/// Parses all words as numbers of this base.
fn numbers<'a>(
    words: impl Iterator<Item = &'a str>,
    base: u32,
    line: usize,
) -> Result<Vec<u64>, CountersError> {
    let number = |word: &str| {
        let is_plain = word.bytes().all(|byte| byte.is_ascii_hexdigit());
        let value = is_plain.then(|| u64::from_str_radix(word, base).ok()).flatten();
        let fault = || format!("`{}` is not a number", crate::sysroot::short(word));
        value.ok_or_else(|| CountersError::new(line, fault()))
    };
    words.map(number).collect()
}
