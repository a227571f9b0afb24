//! What was measured, as the lines of the results folder keep it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One cell of one block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The block, from 0.
    pub block: u64,
    /// The place in the order of the block, from 0.
    pub position: usize,
    /// The cell, by its place in the plan.
    pub cell: usize,
    /// The level of each factor.
    pub levels: BTreeMap<String, String>,
    pub figure: f64,
    /// What was read back.
    pub verified: Verified,
    /// When it began, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    /// How long it took with applying and undoing, in seconds.
    pub seconds: f64,
}

/// Whether the levels were in force while the cell was measured. One that was not in force ends the run,
/// and leaves no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verified {
    /// Everything was read back.
    ReadBack,
    /// Something has no way to be read back: the command does not report its settings.
    NotReported,
}

/// The figures of the blocks that are whole: for each the figure of every cell. A block that was interrupted
/// is measured again from its beginning, since its cells would not have stood the same moment.
pub fn whole_blocks(measured: &[Measured], cells: usize) -> Vec<Vec<f64>> {
    let mut blocks: BTreeMap<u64, Vec<Option<f64>>> = BTreeMap::new();
    for one in measured.iter().filter(|one| one.cell < cells) {
        let block = blocks.entry(one.block).or_insert_with(|| vec![None; cells]);
        block[one.cell] = Some(one.figure);
    }
    let whole = blocks.into_values().map(|block| block.into_iter().collect::<Option<Vec<f64>>>());
    // Those behind a gap belong to a file that somebody changed.
    whole.take_while(Option::is_some).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_blocks_count() {
        let one = |block, cell, figure| Measured {
            block,
            position: 0,
            cell,
            levels: BTreeMap::new(),
            figure,
            verified: Verified::ReadBack,
            started_unix_ms: 0,
            seconds: 1.0,
        };
        let lines = [one(0, 1, 2.0), one(0, 0, 1.0), one(1, 0, 3.0)];
        assert_eq!(whole_blocks(&lines, 2), [[1.0, 2.0]]);
        assert_eq!(whole_blocks(&lines, 1), [[1.0], [3.0]]);
        assert!(whole_blocks(&lines, 3).is_empty());
    }
}
