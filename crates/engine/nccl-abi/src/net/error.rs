//! What can go wrong with a plugin that is hosted.

use std::ffi::c_int;

use thiserror::Error;

/// Why a call into a plugin did not do what it is for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NetError {
    /// The library has no table of this version.
    #[error("the plugin has no table of version {version}; it has {}", listed(has))]
    NoVersion {
        /// What was asked for.
        version: u32,
        /// What there is.
        has: Vec<u32>,
    },
    /// The table has no such function.
    #[error("the plugin has no function {function} in version {version}")]
    Missing {
        /// NCCL's name of it.
        function: &'static str,
        /// Of the table.
        version: u32,
    },
    /// What it returned is an error.
    #[error("{function} of the plugin gave {code} ({})", meaning(*.code))]
    Failed {
        /// NCCL's name of it.
        function: &'static str,
        /// An `ncclResult_t`.
        code: c_int,
    },
    /// It returned success, and something that can't be.
    #[error("{function} of the plugin gave {answer}")]
    Answer {
        /// NCCL's name of it.
        function: &'static str,
        /// What it gave, and what would be possible.
        answer: String,
    },
    /// The plugin was not called, since the call makes no sense.
    #[error("{0}")]
    Misuse(String),
}

/// As in "versions 7, 8 and 11".
fn listed(versions: &[u32]) -> String {
    let all: Vec<String> = versions.iter().map(u32::to_string).collect();
    match all.as_slice() {
        [] => "none".to_owned(),
        [one] => format!("version {one}"),
        [others @ .., last] => format!("versions {} and {last}", others.join(", ")),
    }
}

/// What NCCL calls the results.
fn meaning(code: c_int) -> &'static str {
    match code {
        1 => "a CUDA error",
        2 => "a system error",
        3 => "an internal error",
        4 => "an invalid argument",
        5 => "an invalid usage",
        6 => "a remote error",
        7 => "in progress",
        _ => "an unknown result",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_listed_as_people_do() {
        let says = |has: &[u32]| NetError::NoVersion { version: 9, has: has.to_vec() }.to_string();
        assert_eq!(says(&[8]), "the plugin has no table of version 9; it has version 8");
        assert!(says(&[7, 8]).ends_with("it has versions 7 and 8"));
        assert!(says(&[7, 8, 11]).ends_with("it has versions 7, 8 and 11"));
    }
}
