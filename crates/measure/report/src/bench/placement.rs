//! Where the threads of both ends ran.

use serde::{Deserialize, Serialize};

/// Who placed the threads, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub by: PlacedBy,
    /// What was chosen, or why nothing was, in a phrase.
    pub why: String,
    /// Progress threads of both ends.
    pub threads: Vec<PlacedThread>,
}

/// Who chose the CPUs of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacedBy {
    /// This program, from the topology of the machine.
    Topology,
    Settings,
    /// Nobody: the kernel moves them freely.
    Nobody,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedThread {
    pub name: String,
    /// Whether it belongs to the other side.
    pub is_peer: bool,
    /// The CPUs that it should be bound to, as the kernel's list; empty for any.
    pub expected: String,
    /// The CPUs that it could run on, read back.
    pub actual: String,
    /// The CPU that it was seen on last.
    pub last_cpu: Option<u32>,
    /// How often it was seen on another CPU than before: a lower bound of its moves.
    pub migrations: u64,
}

impl PlacedThread {
    /// Whether it ran where it should; true if nothing was requested.
    pub fn is_as_expected(&self) -> bool {
        self.expected.is_empty() || self.expected == self.actual
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_nobody_placed_is_where_it_should_be() {
        let mut thread = PlacedThread {
            name: "pr-tx0".into(),
            is_peer: false,
            expected: String::new(),
            actual: "0-7".into(),
            last_cpu: Some(3),
            migrations: 2,
        };
        assert!(thread.is_as_expected());
        thread.expected = "0-3".into();
        assert!(!thread.is_as_expected());
        thread.actual = "0-3".into();
        assert!(thread.is_as_expected());
    }
}
