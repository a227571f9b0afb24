//! All budgets of an engine that its peers share.
//!
//! | budget | limit | a peer may take | the least of each peer | past that |
//! |---|---|---|---|---|
//! | pinned memory to send, and to receive | half of `staging_limit_bytes` each | 7/8 of it | one ring of a chunk | the chunk waits; idle rings are given back, and rings of stalled payload |
//! | connections from peers | `flow_limit` | 7/8 of it | 1 | refused |
//! | connections through shared memory | `STREAMS_MAX` | `STREAMS_OF_A_PEER_MAX` | 1 | the socket is used |
//! | pending connections of a plugin | `LISTENERS_MAX` | `MOST_ASKED` | 1 | the flow's own connection is used |
//! | notifications that the user has not taken | `notification_queue` | an equal share | 1 | nothing is read from the peer |
//!
//! `Inbox` holds the last one. Each of the others is a `Budget`, whose reserve is for peers that hold nothing of it.

use std::sync::Arc;

use polyrail_proto::budget::{Budget, StagingBudget};

/// Budgets of the table at the top of this file.
pub(crate) struct Budgets {
    pub(crate) staging: Arc<StagingBudget>,
    /// Connections from peers: arriving, up, or about to close.
    pub(crate) connections: Arc<Budget>,
    pub(crate) streams: Arc<Budget>,
    pub(crate) listeners: Arc<Budget>,
}

impl Budgets {
    pub(crate) fn new(staging_limit_bytes: u64) -> Self {
        let [connections, streams, listeners] = [(); 3].map(|()| Budget::new());
        let staging = StagingBudget::new(staging_limit_bytes);
        Self { staging, connections, streams, listeners }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::device::staging::Direction;
    use polyrail_proto::budget::{STREAMS_MAX, Wanted};
    use polyrail_proto::peer::carriers::LISTENERS_MAX;

    const RING: u64 = 2 << 20;

    /// All budgets of places, with their limits. All fields are named here, so that a new one is added to this list.
    fn places(budgets: &Budgets) -> [(&'static str, &Arc<Budget>, u64); 3] {
        let Budgets { staging: _, connections, streams, listeners } = budgets;
        [
            ("connections", connections, 4096),
            ("streams", streams, STREAMS_MAX),
            ("listeners", listeners, LISTENERS_MAX),
        ]
    }

    #[test]
    fn a_peer_that_takes_what_it_gets_leaves_some_of_every_budget_to_each_other_one() {
        let budgets = Budgets::new(1 << 30);
        for (name, budget, limit) in places(&budgets) {
            let hog = budget.share();
            let all: Vec<_> = std::iter::from_fn(|| hog.take(Wanted::ONE, limit)).collect();
            assert_eq!(all.len() as u64, limit - limit / 8, "{name}");
            let others: Vec<_> = (0..limit / 8).map(|_| budget.share()).collect();
            let firsts: Vec<_> =
                others.iter().map(|share| share.take(Wanted::ONE, limit)).collect();
            assert!(firsts.iter().all(Option::is_some), "{name}: one each");
        }
        for direction in [Direction::Out, Direction::In] {
            let hog = budgets.staging.stock(direction);
            let all: Vec<_> = std::iter::from_fn(|| hog.take(RING, RING).ok()).collect();
            assert_eq!(all.len() as u64 * RING, 448 << 20, "{direction:?}");
            let others: Vec<_> = (0..32).map(|_| budgets.staging.stock(direction)).collect();
            let firsts: Vec<_> = others.iter().map(|stock| stock.take(RING, RING)).collect();
            assert!(firsts.iter().all(Result::is_ok), "{direction:?}: one ring each");
            let short = budgets.staging.stock(direction).take(RING, RING).unwrap_err();
            assert!(short.passes, "later there may be some");
        }
    }

    #[test]
    fn flows_are_asked_to_give_memory_back_now_and_then() {
        let staging = StagingBudget::new(1 << 30);
        let asked = [0, 60, 70, 109, 110].map(|ms| staging.must_ask(ms * 1_000_000));
        assert_eq!(asked, [false, true, false, false, true]);
    }

    fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => sources(&path, found),
                false => found.push(path),
            }
        }
    }

    #[test]
    fn every_budget_that_peers_share_is_in_this_file() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut found = Vec::new();
        sources(&folder, &mut found);
        let makes_one = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            code.contains("Budget::new(")
        };
        found.retain(makes_one);
        found.sort();
        assert_eq!(found, [folder.join("engine/budgets.rs")]);
    }
}
