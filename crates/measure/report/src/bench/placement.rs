//! Placement of the threads of both ends.

use serde::{Deserialize, Serialize};

/// Placement of threads on CPUs, and what decided it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    pub by: PlacedBy,
    /// The choice, or why none was made, in a phrase.
    pub why: String,
    /// Progress threads of both ends.
    pub threads: Vec<PlacedThread>,
}

/// Source of the choice of CPUs for threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlacedBy {
    /// This program, from the topology of the machine.
    Topology,
    Settings,
    /// No placement: the kernel moves the threads freely.
    Nobody,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedThread {
    pub name: String,
    /// Whether the thread belongs to the other side.
    pub is_peer: bool,
    /// CPUs that the thread should be bound to, as a kernel CPU list; empty for any.
    pub expected: String,
    /// CPUs that the thread could run on, read back.
    pub actual: String,
    /// CPU that the thread was last seen on.
    pub last_cpu: Option<u32>,
    /// Number of times that the thread was seen on another CPU than before: a lower bound of its migrations.
    pub migrations: u64,
}

impl PlacedThread {
    /// Whether the thread ran where it should; true if nothing was requested.
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
