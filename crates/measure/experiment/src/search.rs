//! Chooses the next cells of a sweep: all of them, or by successive halving (Jamieson and Talwalkar, AISTATS'16) only
//! those that may still be the best.

use crate::dice::Dice;
use crate::effect::Better;

/// A search for the best cell. One cell, the default, is measured in each block and never leaves.
#[derive(Clone, Debug)]
pub struct Search {
    better: Better,
    seed: u64,
    default: usize,
    /// Cells in the race, without the default.
    racing: Vec<usize>,
    /// Logarithms of each cell's figures, by block.
    logs: Vec<Vec<f64>>,
    /// Blocks until the worse half leaves.
    until_cut: usize,
    /// Blocks from the previous cut to the next one.
    rung: usize,
    halves: bool,
    blocks: u64,
}

/// Blocks before the first cut: with one block per cell, a burst of load would drop the best one.
const FIRST_RUNG: usize = 2;
const LONGEST_RUNG: usize = 16;

impl Search {
    /// Creates a search that measures each of these cells `times` times.
    pub fn whole(cells: usize, default: usize, better: Better, seed: u64, times: usize) -> Self {
        Self { until_cut: times, halves: false, ..Self::halving(cells, default, better, seed) }
    }

    /// Creates a search that halves the cells repeatedly, until one is left.
    pub fn halving(cells: usize, default: usize, better: Better, seed: u64) -> Self {
        Self {
            better,
            seed,
            default,
            racing: (0..cells).filter(|cell| *cell != default).collect(),
            logs: vec![Vec::new(); cells],
            until_cut: FIRST_RUNG,
            rung: FIRST_RUNG,
            halves: true,
            blocks: 0,
        }
    }

    /// Returns the cells of the next block, in the order to measure them; `None` when the search is over.
    pub fn next_block(&self) -> Option<Vec<usize>> {
        let is_over = self.until_cut == 0
            || self.racing.is_empty()
            || (self.halves && self.racing.len() == 1 && self.blocks > 0);
        if is_over {
            return None;
        }
        let mut order: Vec<usize> = self.racing.iter().copied().chain([self.default]).collect();
        Dice::of_part(self.seed, self.blocks).shuffle(&mut order);
        Some(order)
    }

    /// Adds the figures of a whole block; they must be above zero.
    pub fn take(&mut self, figures: &[(usize, f64)]) {
        for (cell, figure) in figures {
            self.logs[*cell].push(figure.ln());
        }
        self.blocks += 1;
        self.until_cut -= 1;
        if self.until_cut == 0 && self.halves {
            self.racing = self.ranked();
            self.racing.truncate(self.racing.len().div_ceil(2));
            self.rung = (2 * self.rung).min(LONGEST_RUNG);
            self.until_cut = self.rung;
        }
    }

    /// Removes a cell that can't be measured.
    pub fn leave(&mut self, cell: usize) {
        self.racing.retain(|one| *one != cell);
    }

    /// Returns the best cell that was measured, which may be the default.
    pub fn best(&self) -> usize {
        let racing = self.ranked().into_iter().find(|cell| !self.logs[*cell].is_empty());
        let Some(first) = racing else { return self.default };
        if self.score(first) > self.score(self.default) { first } else { self.default }
    }

    /// Returns the figures of a cell.
    pub fn figures(&self, cell: usize) -> Vec<f64> {
        self.logs[cell].iter().map(|log| log.exp()).collect()
    }

    /// Returns each cell's median figure over the blocks that all measured cells share.
    pub fn first_figures(&self) -> Vec<Option<f64>> {
        let blocks = self.logs.iter().map(Vec::len).filter(|count| *count > 0).min().unwrap_or(0);
        let middle = |logs: &Vec<f64>| {
            polyrail_report::median(logs.iter().take(blocks).copied()).map(f64::exp)
        };
        self.logs.iter().map(middle).collect()
    }

    /// Returns the number of blocks measured.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    fn ranked(&self) -> Vec<usize> {
        let mut cells = self.racing.clone();
        cells.sort_by(|one, other| self.score(*other).total_cmp(&self.score(*one)));
        cells
    }

    /// Returns the median of the logarithms, with its sign such that higher is better. All cells compared were in the
    /// same blocks.
    fn score(&self, cell: usize) -> f64 {
        let middle = polyrail_report::median(self.logs[cell].iter().copied());
        match (middle, self.better) {
            (None, _) => f64::NEG_INFINITY,
            (Some(log), Better::Higher) => log,
            (Some(log), Better::Lower) => -log,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search over cells of these speeds, with noise of 3 %.
    fn race(mut search: Search, speeds: &[f64], seed: u64) -> (usize, usize) {
        let mut dice = Dice::new(seed);
        let mut measured = 0;
        while let Some(order) = search.next_block() {
            let mut noise = || (0..12).map(|_| dice.share()).sum::<f64>() - 6.0;
            let figures: Vec<(usize, f64)> = order
                .into_iter()
                .map(|cell| (cell, speeds[cell] * (0.03 * noise()).exp()))
                .collect();
            measured += figures.len();
            search.take(&figures);
        }
        (search.best(), measured)
    }

    #[test]
    fn halving_finds_a_cell_near_the_best_with_a_part_of_the_work() {
        let mut near = 0;
        for seed in 0..100 {
            // From 4 to 6 in steps of 0.8 %, shuffled.
            let mut speeds: Vec<f64> = (0..54).map(|step| 4.0 * 1.008_f64.powi(step)).collect();
            Dice::of_part(seed, 9).shuffle(&mut speeds);
            let (best, measured) =
                race(Search::halving(54, 0, Better::Higher, seed), &speeds, seed);
            let most = speeds.iter().copied().fold(0.0, f64::max);
            near += usize::from(speeds[best] >= 0.97 * most);
            // If all cells were measured as long as the last ones, that would be 54 times the blocks.
            assert!(measured < 54 * 20, "{measured}");
        }
        assert!(near >= 95, "{near} of 100 within 3 %");
    }

    #[test]
    fn of_times_the_lowest_is_the_best_and_a_default_that_is_best_stays() {
        let speeds = [3.0, 1.0, 2.0, 4.0];
        assert_eq!(race(Search::whole(4, 0, Better::Lower, 1, 5), &speeds, 1), (1, 20));
        assert_eq!(race(Search::halving(4, 1, Better::Lower, 1), &speeds, 2).0, 1);
        assert_eq!(race(Search::halving(4, 3, Better::Higher, 1), &speeds, 2).0, 3);
    }

    #[test]
    fn a_cell_that_leaves_is_never_the_best_and_one_cell_alone_ends_the_search() {
        let mut search = Search::halving(3, 0, Better::Higher, 1);
        search.leave(2);
        assert_eq!(search.next_block().map(|order| order.len()), Some(2));
        search.take(&[(0, 1.0), (1, 2.0)]);
        assert_eq!((search.next_block(), search.best()), (None, 1));
        assert_eq!(search.first_figures(), [Some(1.0), Some(2.0), None]);
        search.leave(1);
        assert_eq!(search.best(), 0);
    }
}
