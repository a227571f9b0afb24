//! Errors of hosted plugins.

use std::ffi::c_int;

use thiserror::Error;

/// Reason why a call into a plugin failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NetError {
    /// The library has no table of this version.
    #[error("the plugin has no table of version {version}; it has {}", listed(has))]
    NoVersion {
        /// Requested version.
        version: u32,
        /// Versions of the library.
        has: Vec<u32>,
    },
    /// The table has no such function.
    #[error("the plugin has no function {function} in version {version}")]
    Missing {
        /// NCCL's name of the function.
        function: &'static str,
        /// Version of the table.
        version: u32,
    },
    /// The function returned an error.
    #[error("{function} of the plugin gave {code} ({})", meaning(*.code))]
    Failed {
        /// NCCL's name of the function.
        function: &'static str,
        /// An `ncclResult_t`.
        code: c_int,
    },
    /// The function returned success with an impossible result.
    #[error("{function} of the plugin gave {answer}")]
    Answer {
        /// NCCL's name of the function.
        function: &'static str,
        /// Result, and the possible values.
        answer: String,
    },
    /// The call makes no sense, and the plugin was not called.
    #[error("{0}")]
    Misuse(String),
}

/// Formats versions as in "versions 7, 8 and 11".
fn listed(versions: &[u32]) -> String {
    let all: Vec<String> = versions.iter().map(u32::to_string).collect();
    match all.as_slice() {
        [] => "none".to_owned(),
        [one] => format!("version {one}"),
        [others @ .., last] => format!("versions {} and {last}", others.join(", ")),
    }
}

/// Description of NCCL's result codes.
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
