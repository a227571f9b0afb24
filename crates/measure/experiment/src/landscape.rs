//! The dependence of a sweep's figures on the settings: the influence of each factor, and maps of any two.

use serde::{Deserialize, Serialize};

use crate::effect::percent;
use crate::plan::Plan;

/// Influence of one factor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    pub factor: String,
    /// Distance of its highest level from its lowest, in percent; includes noise.
    pub percent: f64,
    /// Level with the highest figures.
    pub highest: String,
    /// Level with the lowest figures.
    pub lowest: String,
    /// Spread of the figures of one cell, in percent; `None` if no cell was measured again.
    pub noise_percent: Option<f64>,
}

impl Sensitivity {
    /// Whether the difference exceeds the noise, as far as known.
    pub fn exceeds_noise(&self) -> bool {
        self.noise_percent.is_some_and(|noise| self.percent > noise)
    }
}

/// Figures by the levels of two factors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeatMap {
    /// Factor of the rows.
    pub row_factor: String,
    /// Factor of the columns.
    pub column_factor: String,
    /// Levels of the rows.
    pub rows: Vec<String>,
    /// Levels of the columns.
    pub columns: Vec<String>,
    /// By row and column, the geometric mean over the levels of the other factors; `null` if nothing was measured.
    pub figures: Vec<Vec<Option<f64>>>,
}

/// Returns the influence of each factor on the cells' figures, the strongest first.
pub fn sensitivity(
    plan: &Plan,
    figures: &[Option<f64>],
    noise_percent: Option<f64>,
) -> Vec<Sensitivity> {
    let of_factor = |(at, factor): (usize, &crate::plan::Factor)| {
        let levels = (0..factor.levels.len())
            .filter_map(|level| Some((level, mean_log(plan, figures, |cell| cell[at] == level)?)));
        let levels: Vec<(usize, f64)> = levels.collect();
        let highest = levels.iter().max_by(|one, other| one.1.total_cmp(&other.1))?;
        let lowest = levels.iter().min_by(|one, other| one.1.total_cmp(&other.1))?;
        Some(Sensitivity {
            factor: factor.name.clone(),
            percent: percent(highest.1 - lowest.1),
            highest: factor.levels[highest.0].clone(),
            lowest: factor.levels[lowest.0].clone(),
            noise_percent,
        })
    };
    let mut all: Vec<Sensitivity> = plan.factors.iter().enumerate().filter_map(of_factor).collect();
    all.sort_by(|one, other| other.percent.total_cmp(&one.percent));
    all
}

/// Returns the map of two factors, given by index.
pub fn heat_map(plan: &Plan, figures: &[Option<f64>], row: usize, column: usize) -> HeatMap {
    let (rows, columns) = (&plan.factors[row], &plan.factors[column]);
    let at = |one: usize, other: usize| {
        mean_log(plan, figures, |cell| cell[row] == one && cell[column] == other).map(f64::exp)
    };
    let line = |one: usize| (0..columns.levels.len()).map(|other| at(one, other)).collect();
    HeatMap {
        row_factor: rows.name.clone(),
        column_factor: columns.name.clone(),
        rows: rows.levels.clone(),
        columns: columns.levels.clone(),
        figures: (0..rows.levels.len()).map(line).collect(),
    }
}

fn mean_log(
    plan: &Plan,
    figures: &[Option<f64>],
    belongs: impl Fn(&[usize]) -> bool,
) -> Option<f64> {
    let cells = plan.cells.iter().zip(figures).filter(|(cell, _)| belongs(cell));
    let logs: Vec<f64> = cells.filter_map(|(_, figure)| figure.map(f64::ln)).collect();
    (!logs.is_empty()).then(|| logs.iter().sum::<f64>() / logs.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Design, Factor, Kind};

    #[test]
    fn the_factor_that_matters_comes_first_and_maps_have_its_figures() {
        let factor = |name: &str, levels: &[&str]| Factor {
            name: name.to_owned(),
            kind: Kind::Setting,
            levels: levels.iter().map(ToString::to_string).collect(),
            baseline: 0,
        };
        let factors = vec![factor("a", &["0", "1"]), factor("b", &["x", "y", "z"])];
        let plan = Plan::new(factors, Design::Grid, 1, |_| true).unwrap();
        let figures: Vec<Option<f64>> = plan
            .cells
            .iter()
            .map(|cell| Some([1.0, 1.1][cell[0]] * [1.0, 2.0, 4.0][cell[1]]))
            .collect();
        let all = sensitivity(&plan, &figures, Some(10.5));
        assert_eq!([&all[0], &all[1]].map(Sensitivity::exceeds_noise), [true, false]);
        assert!(!sensitivity(&plan, &figures, None)[0].exceeds_noise());
        assert_eq!(
            (all[0].factor.as_str(), all[0].highest.as_str(), all[0].lowest.as_str()),
            ("b", "z", "x")
        );
        assert!((all[0].percent - 300.0).abs() < 1e-9 && (all[1].percent - 10.0).abs() < 1e-9);
        let map = heat_map(&plan, &figures, 0, 1);
        assert_eq!((map.rows.len(), map.columns.len()), (2, 3));
        assert!((map.figures[1][2].unwrap() - 4.4).abs() < 1e-9);
        assert_eq!(heat_map(&plan, &[None; 6], 0, 1).figures[0][0], None);
    }
}
