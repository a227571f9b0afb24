//! Matching of the greatest weight between two sets, by the Hungarian algorithm: 64 rails at each end take well under a
//! millisecond.

/// Returns pairs of rows and columns, each in one pair at most, with the greatest sum of weights. `weight` is above 0,
/// or `None` where the two can't be paired.
pub(super) fn heaviest(
    rows: usize,
    columns: usize,
    weight: impl Fn(usize, usize) -> Option<i128>,
) -> Vec<(usize, usize)> {
    let size = rows.max(columns);
    // Padding and impossible pairs cost nothing, so they count as no pair.
    let cost = |row: usize, column: usize| match row < rows && column < columns {
        true => -weight(row, column).unwrap_or_default(),
        false => 0,
    };
    let costs: Vec<i128> = (0..size * size).map(|at| cost(at / size, at % size)).collect();
    let row_of = assigned(size, &costs);
    let pairs = (0..size).map(|column| (row_of[column], column));
    let mut pairs: Vec<_> = pairs.filter(|(row, column)| costs[row * size + column] < 0).collect();
    pairs.sort_unstable();
    pairs
}

/// Returns the row of each column such that the costs have the least sum.
///
/// Rows are added one after the other, each along the shortest path of exchanges. Potentials of rows and
/// columns keep all reduced costs at 0 or above.
fn assigned(size: usize, costs: &[i128]) -> Vec<usize> {
    let (mut of_row, mut of_column) = (vec![0i128; size], vec![0i128; size + 1]);
    // Column `size` holds the row that is being added.
    let mut row_of: Vec<Option<usize>> = vec![None; size + 1];
    for row in 0..size {
        row_of[size] = Some(row);
        let mut slack = vec![i128::MAX; size];
        let mut came_from = vec![size; size];
        let mut is_seen = vec![false; size + 1];
        let mut column = size;
        while let Some(here) = row_of[column] {
            is_seen[column] = true;
            let (mut least, mut next) = (i128::MAX, size);
            for other in (0..size).filter(|other| !is_seen[*other]) {
                let reduced = costs[here * size + other] - of_row[here] - of_column[other];
                if reduced < slack[other] {
                    (slack[other], came_from[other]) = (reduced, column);
                }
                if slack[other] < least {
                    (least, next) = (slack[other], other);
                }
            }
            for other in 0..=size {
                match (is_seen[other], row_of[other]) {
                    (true, Some(seen)) => {
                        of_row[seen] += least;
                        of_column[other] -= least;
                    }
                    (false, _) if other < size => slack[other] -= least,
                    _ => {}
                }
            }
            column = next;
        }
        while column != size {
            let from = came_from[column];
            row_of[column] = row_of[from];
            column = from;
        }
    }
    // Each row was added to its own column.
    row_of.into_iter().take(size).map(Option::unwrap_or_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tries all matchings.
    fn best(rows: usize, columns: usize, weights: &[Vec<Option<i128>>]) -> i128 {
        fn from(row: usize, taken: u32, weights: &[Vec<Option<i128>>]) -> i128 {
            let Some(of_row) = weights.get(row) else { return 0 };
            let mut best = from(row + 1, taken, weights);
            for (column, weight) in of_row.iter().enumerate() {
                if let Some(weight) = weight
                    && taken >> column & 1 == 0
                {
                    best = best.max(weight + from(row + 1, taken | 1 << column, weights));
                }
            }
            best
        }
        assert!(weights.len() == rows && weights.iter().all(|row| row.len() == columns));
        from(0, 0, weights)
    }

    #[test]
    fn no_other_matching_weighs_more() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for _ in 0..2000 {
            let (rows, columns) = (random(6) as usize, random(6) as usize);
            let mut weight = || (random(3) > 0).then(|| 1 + i128::from(random(9)));
            let weights: Vec<Vec<_>> =
                (0..rows).map(|_| (0..columns).map(|_| weight()).collect()).collect();
            let found = heaviest(rows, columns, |row, column| weights[row][column]);
            let sum: i128 = found.iter().map(|(row, column)| weights[*row][*column].unwrap()).sum();
            assert_eq!(sum, best(rows, columns, &weights), "{weights:?}: {found:?}");
            for (at, pair) in found.iter().enumerate() {
                let others = &found[at + 1..];
                assert!(others.iter().all(|other| other.0 != pair.0 && other.1 != pair.1));
            }
        }
    }
}
