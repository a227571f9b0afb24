//! Measurements, as lines of the results folder.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Measurement of one cell in one block.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Block, from 0.
    pub block: u64,
    /// Place in the order of the block, from 0.
    pub position: usize,
    /// Index of the cell in the plan.
    pub cell: usize,
    /// Level of each factor.
    pub levels: BTreeMap<String, String>,
    pub figure: f64,
    /// Result of reading the levels back.
    pub verified: Verified,
    /// Start, in milliseconds since 1970 UTC.
    pub started_unix_ms: u64,
    /// Duration with applying and undoing, in seconds.
    pub seconds: f64,
}

/// Result of reading back the levels while the cell was measured. A level that was not in force ends the run, and
/// leaves no line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verified {
    /// Everything was read back.
    ReadBack,
    /// Something can't be read back: the command does not report its settings.
    NotReported,
}

/// Returns the figures of the whole blocks: for each, the figure of every cell. An interrupted block is measured again
/// from its start, since its cells would not share the same conditions.
pub fn whole_blocks(measured: &[Measured], cells: usize) -> Vec<Vec<f64>> {
    let mut blocks: BTreeMap<u64, Vec<Option<f64>>> = BTreeMap::new();
    for one in measured.iter().filter(|one| one.cell < cells) {
        let block = blocks.entry(one.block).or_insert_with(|| vec![None; cells]);
        block[one.cell] = Some(one.figure);
    }
    let whole = blocks.into_values().map(|block| block.into_iter().collect::<Option<Vec<f64>>>());
    // Blocks after a gap come from a file that was changed by hand.
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
