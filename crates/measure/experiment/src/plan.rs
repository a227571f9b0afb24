//! The plan of an experiment: factors, their levels, cells, and the order of blocks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::dice::Dice;
use crate::ranks;

/// Maximum number of cells of an experiment or a sweep.
pub const CELLS_MAX: usize = 4_096;

/// Probability that any comparison of an experiment finds an effect that does not exist.
pub const MISS: f64 = 0.05;

/// Something that may have an effect, with its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Factor {
    /// Name in the file and in reports.
    pub name: String,
    pub kind: Kind,
    /// Values, as written.
    pub levels: Vec<String>,
    /// Index of the level that the others are compared with.
    pub baseline: usize,
}

/// Kind of change that a factor makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A setting of Polyrail.
    Setting,
    /// Placement of threads: `none`, `matched`, or bindings for both directions.
    Bindings,
    /// Placement of interrupts: `default`, `matched`, a policy of `polyrail host plan irq`, or `map:FILE`.
    Irq,
    /// Settings of the host: `none`, or a profile of `polyrail host plan tune`.
    HostProfile,
    /// A word in the user's own command.
    Word,
    /// A variable of the command's environment. The baseline's level leaves it unchanged.
    Variable,
}

impl Kind {
    /// Whether the factor changes the host, which needs permissions, a journal and a way back.
    pub fn is_of_host(self) -> bool {
        matches!(self, Self::Irq | Self::HostProfile)
    }
}

/// Choice of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Design {
    /// Every level with every level of the other factors.
    Grid,
    /// The baseline, and each other level separately.
    OneAtATime,
}

/// The index of a level for each factor.
pub type Cell = Vec<usize>;

/// Cells, and the order in which they are measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub factors: Vec<Factor>,
    /// Cells; the baseline is the first.
    pub cells: Vec<Cell>,
    seed: u64,
}

/// Comparison of one level of a factor with the factor's baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Comparison {
    pub factor: usize,
    pub level: usize,
}

impl Plan {
    /// Creates the plan of these factors. `runs` returns whether a cell can be measured; comparisons use the pairs of
    /// cells that exist.
    ///
    /// # Errors
    /// The number of cells, if it is more than [`CELLS_MAX`].
    pub fn new(
        factors: Vec<Factor>,
        design: Design,
        seed: u64,
        runs: impl Fn(&[usize]) -> bool,
    ) -> Result<Self, usize> {
        let count = match design {
            Design::Grid => {
                factors.iter().fold(1_usize, |all, one| all.saturating_mul(one.levels.len()))
            }
            Design::OneAtATime => 1 + factors.iter().map(|one| one.levels.len() - 1).sum::<usize>(),
        };
        if count > CELLS_MAX {
            return Err(count);
        }
        let baseline: Cell = factors.iter().map(|factor| factor.baseline).collect();
        let mut cells = vec![baseline.clone()];
        match design {
            Design::Grid => {
                let all = grid(&factors);
                cells.extend(all.into_iter().filter(|cell| *cell != baseline && runs(cell)));
            }
            Design::OneAtATime => {
                for (at, factor) in factors.iter().enumerate() {
                    let others = (0..factor.levels.len()).filter(|level| *level != factor.baseline);
                    let alone = others.map(|level| {
                        let mut cell = baseline.clone();
                        cell[at] = level;
                        cell
                    });
                    cells.extend(alone.filter(|cell| runs(cell)));
                }
            }
        }
        Ok(Self { factors, cells, seed })
    }

    /// Returns the cells in the order of this block. The order depends only on the seed and the block, so a resumed run
    /// keeps it.
    pub fn block(&self, block: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.cells.len()).collect();
        Dice::of_part(self.seed, block).shuffle(&mut order);
        order
    }

    /// Returns all comparisons.
    pub fn comparisons(&self) -> Vec<Comparison> {
        let mut all = Vec::new();
        for (factor, one) in self.factors.iter().enumerate() {
            let others = (0..one.levels.len()).filter(|level| *level != one.baseline);
            let compared = others.map(|level| Comparison { factor, level });
            all.extend(compared.filter(|one| !self.pairs(*one).is_empty()));
        }
        all
    }

    /// Returns the pairs of cells that differ in this level only: the one with the level, and the one with the
    /// baseline.
    pub fn pairs(&self, comparison: Comparison) -> Vec<(usize, usize)> {
        let Comparison { factor, level } = comparison;
        let baseline = self.factors[factor].baseline;
        let with_level = self.cells.iter().enumerate().filter(|(_, cell)| cell[factor] == level);
        let pair = |(at, cell): (usize, &Cell)| {
            let mut other = cell.clone();
            other[factor] = baseline;
            let place = self.cells.iter().position(|one| *one == other)?;
            Some((at, place))
        };
        with_level.filter_map(pair).collect()
    }

    /// Returns the levels of a cell, as written.
    pub fn levels(&self, cell: usize) -> Vec<(&str, &str)> {
        let levels = self.factors.iter().zip(&self.cells[cell]);
        levels
            .map(|(factor, level)| (factor.name.as_str(), factor.levels[*level].as_str()))
            .collect()
    }

    /// Returns the level of each factor by name.
    pub fn level_map(&self, cell: usize) -> BTreeMap<String, String> {
        let levels = self.levels(cell).into_iter();
        levels.map(|(name, level)| (name.to_owned(), level.to_owned())).collect()
    }

    /// Returns the name of a cell for people: its differences from the baseline.
    pub fn label(&self, cell: usize) -> String {
        let places = self.factors.iter().zip(&self.cells[cell]);
        let changed = places.filter(|(factor, level)| **level != factor.baseline);
        let words: Vec<String> = changed
            .map(|(factor, level)| format!("{}={}", factor.name, factor.levels[*level]))
            .collect();
        if words.is_empty() { "baseline".to_owned() } else { words.join(" ") }
    }
}

/// The looks at the results, and the probability that an interval misses then.
///
/// Looking after each block and stopping when an interval looks good finds effects that do not exist. So the looks are
/// fixed in advance, and share [`MISS`] among them and among all comparisons (Bonferroni): whatever made the run stop,
/// at most 5 of 100 experiments claim an effect that does not exist. One more share is for runs that end between two
/// looks, by their time or by Ctrl-C: the first such end gets half of it, the next one, after resuming, half of the
/// rest.
#[derive(Clone, Debug, PartialEq)]
pub struct Looks {
    /// Numbers of blocks to look after, ascending.
    pub after: Vec<usize>,
    /// Probability that an interval misses, at each look.
    pub miss: f64,
}

impl Looks {
    /// Creates the looks of an experiment of at most this many blocks.
    ///
    /// # Errors
    /// The minimum number of blocks that these comparisons need, if `most` is less.
    pub fn new(comparisons: usize, most: usize) -> Result<Self, usize> {
        let comparisons = comparisons.max(1) as f64;
        let mut after = vec![most];
        while after[0] >= 2 * LEAST_BLOCKS {
            after.insert(0, after[0] / 2);
        }
        loop {
            let miss = MISS / comparisons / (after.len() + 1) as f64;
            if after[0] >= ranks::fewest(miss) {
                return Ok(Self { after, miss });
            }
            if after.len() == 1 {
                return Err(ranks::fewest(miss));
            }
            // Such an early look could find nothing, and takes a part of the others' share.
            after.remove(0);
        }
    }

    /// Returns the probability that an interval misses at an end between two looks, after `earlier` such ends.
    fn miss_between(&self, earlier: usize) -> f64 {
        self.miss * 0.5_f64.powi(earlier.min(1_000) as i32 + 1)
    }

    /// Returns the probability that an interval misses in a run that ends after so many blocks, after `earlier` ends
    /// between two looks.
    pub fn miss_at(&self, blocks: usize, earlier: usize) -> f64 {
        if self.is_due(blocks) { self.miss } else { self.miss_between(earlier) }
    }

    /// Whether to look now.
    pub fn is_due(&self, blocks: usize) -> bool {
        self.after.contains(&blocks)
    }

    pub fn most(&self) -> usize {
        self.after.last().copied().unwrap_or_default()
    }
}

/// Minimum number of blocks; fewer never have an interval of 95 %.
const LEAST_BLOCKS: usize = 6;

fn grid(factors: &[Factor]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = vec![Vec::new()];
    for factor in factors {
        let longer = |cell: &Cell| {
            let cell = cell.clone();
            (0..factor.levels.len()).map(move |level| {
                let mut longer = cell.clone();
                longer.push(level);
                longer
            })
        };
        cells = cells.iter().flat_map(longer).collect();
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn factor(name: &str, levels: &[&str]) -> Factor {
        let levels = levels.iter().map(ToString::to_string).collect();
        Factor { name: name.to_owned(), kind: Kind::Setting, levels, baseline: 0 }
    }

    fn plan(design: Design) -> Plan {
        let factors = vec![factor("a", &["0", "1"]), factor("b", &["x", "y", "z"])];
        Plan::new(factors, design, 42, |_| true).unwrap()
    }

    #[test]
    fn a_grid_has_every_combination_once_and_the_baseline_first() {
        let plan = plan(Design::Grid);
        assert_eq!(plan.cells.len(), 6);
        assert_eq!(plan.cells[0], [0, 0]);
        let mut sorted = plan.cells.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), 6);
        let all = plan.comparisons();
        assert_eq!(all.len(), 3);
        assert_eq!(plan.pairs(all[0]).len(), 3, "level 1 of a, with each level of b");
        assert_eq!((plan.label(0), plan.label(5)), ("baseline".to_owned(), "a=1 b=z".to_owned()));
        let levels: Vec<_> = plan.level_map(5).into_iter().collect();
        assert_eq!(levels, [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "z".to_owned())]);
    }

    #[test]
    fn one_at_a_time_compares_each_level_with_the_baseline_alone() {
        let plan = plan(Design::OneAtATime);
        assert_eq!(plan.cells, [[0, 0], [1, 0], [0, 1], [0, 2]]);
        for (at, comparison) in plan.comparisons().into_iter().enumerate() {
            assert_eq!(plan.pairs(comparison), [(at + 1, 0)]);
        }
    }

    #[test]
    fn each_block_has_all_cells_in_an_order_of_its_own_that_comes_again() {
        let plan = plan(Design::Grid);
        let orders: Vec<_> = (0..20).map(|block| plan.block(block)).collect();
        for order in &orders {
            let mut cells = order.clone();
            cells.sort_unstable();
            assert_eq!(cells, [0, 1, 2, 3, 4, 5]);
        }
        assert!(orders.iter().any(|order| *order != orders[0]));
        assert_eq!(plan.block(7), orders[7]);
    }

    #[test]
    fn a_cell_that_cannot_run_is_left_out_with_its_pairs() {
        let factors = vec![factor("a", &["0", "1"]), factor("b", &["x", "y"])];
        let plan = Plan::new(factors, Design::Grid, 1, |cell| cell != [1, 1]).unwrap();
        assert_eq!(plan.cells.len(), 3);
        assert!(plan.comparisons().iter().all(|one| plan.pairs(*one).len() == 1));
        let none = vec![factor("a", &["0", "1"])];
        let plan = Plan::new(none, Design::Grid, 1, |cell| cell != [1]).unwrap();
        assert!(plan.comparisons().is_empty());
    }

    #[test]
    fn too_many_cells_are_refused_by_their_number() {
        let levels: Vec<String> = (0..100).map(|level| level.to_string()).collect();
        let texts: Vec<&str> = levels.iter().map(String::as_str).collect();
        let factors = vec![factor("a", &texts), factor("b", &texts)];
        assert_eq!(Plan::new(factors, Design::Grid, 1, |_| true), Err(10_000));
    }

    #[test]
    fn looks_share_the_five_percent_and_leave_out_those_that_are_too_early() {
        let looks = Looks::new(1, 64).unwrap();
        assert_eq!(looks.after, [8, 16, 32, 64]);
        assert_eq!(looks.miss, MISS / 5.0);
        let many = Looks::new(4, 64).unwrap();
        assert_eq!(many.after, [16, 32, 64]);
        assert!((many.miss - MISS / 16.0).abs() < 1e-12);
        assert_eq!(Looks::new(1, 7).unwrap().after, [7]);
        assert_eq!(Looks::new(10, 6), Err(10));
        let ends: f64 = (0..50).map(|earlier| many.miss_between(earlier)).sum();
        let all = 4.0 * (ends + many.after.len() as f64 * many.miss);
        assert!(all <= MISS * (1.0 + 1e-12), "{all}");
    }
}
