//! Tables for a terminal: columns aligned, headings above, no borders.

use std::fmt;

/// The alignment of a cell in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Names.
    Left,
    /// Numbers.
    Right,
}

/// Rows of text under headings; [`fmt::Display`] writes it with aligned columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Adds a column on the right.
    pub fn column(mut self, heading: impl Into<String>, align: Align) -> Self {
        self.columns.push((heading.into(), align));
        self
    }

    /// Adds a row; cells that are missing stay empty, and those without a column are left out.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> = cells.into_iter().collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Whether there is no row: headings alone say nothing.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| &row[column]);
            let heading = &self.columns[column].0;
            cells.chain([heading]).map(|text| text.chars().count()).max().unwrap_or(0)
        };
        (0..self.columns.len()).map(width).collect()
    }
}

/// Ends each line with a newline and leaves no spaces at the end of a line.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let headings: Vec<String> = self.columns.iter().map(|(text, _)| text.clone()).collect();
        for row in [&headings].into_iter().chain(&self.rows) {
            let mut line = String::new();
            for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let gap = if index == 0 { "" } else { "  " };
                let cell = match self.columns[index].1 {
                    Align::Left => format!("{gap}{cell:<width$}"),
                    Align::Right => format!("{gap}{cell:>width$}"),
                };
                line.push_str(&cell);
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_without_spaces() {
        let mut table = Table::default().column("name", Align::Left).column("GB/s", Align::Right);
        table.row(["a".into(), "10.5".into()]);
        table.row(["longer".into(), "1.25".into()]);
        table.row(["gap".into()]);
        assert_eq!(table.to_string(), "name    GB/s\na       10.5\nlonger  1.25\ngap\n");
    }

    #[test]
    fn width_counts_characters_and_not_bytes() {
        let mut table = Table::default().column("±%", Align::Right).column("x", Align::Left);
        table.row(["1".into(), "y".into()]);
        assert_eq!(table.to_string(), "±%  x\n 1  y\n");
    }
}
