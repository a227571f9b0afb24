//! Tables for a terminal: columns aligned, headings above, no borders.

use std::fmt;

use polyrail_config::harmless;

use crate::wrap::{width, words, wrapped};

/// Alignment of a cell in its column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
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

    /// Adds a row. Missing cells stay empty, and cells without a column are dropped. A tab becomes a space, since it
    /// would move the cells after it. A cell is one line: the names in it come from peers and devices, so control
    /// characters are escaped.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        let mut cells: Vec<String> =
            cells.into_iter().map(|cell| harmless(&cell.replace('\t', " "), &[])).collect();
        cells.resize(self.columns.len(), String::new());
        self.rows.push(cells);
    }

    /// Whether the table has no rows; headings alone say nothing.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Formats the table for a terminal of `columns` columns. Wider cells continue on the next line, within their own
    /// column. Without a limit, each row is one line.
    pub fn fitted(&self, columns: Option<usize>) -> String {
        let widths = self.widths(columns.unwrap_or(usize::MAX));
        let headings: Vec<String> = self.columns.iter().map(|(text, _)| text.clone()).collect();
        let rows = [&headings].into_iter().chain(&self.rows);
        rows.map(|row| self.lines(row, &widths)).collect()
    }

    /// Formats a row. Each line ends with a newline and has no trailing spaces.
    fn lines(&self, row: &[String], widths: &[usize]) -> String {
        let cells: Vec<Vec<String>> =
            row.iter().zip(widths).map(|(cell, width)| broken(cell, *width)).collect();
        let height = cells.iter().map(Vec::len).max().unwrap_or(1);
        let mut text = String::new();
        for at in 0..height {
            let mut line = String::new();
            for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
                let gap = if index == 0 { "" } else { GAP };
                let part = cell.get(at).map_or("", String::as_str);
                // A width in a format string is at most 65535, and a name can be longer.
                let pad = " ".repeat(width.saturating_sub(part.chars().count()));
                line += &match self.columns[index].1 {
                    Align::Left => format!("{gap}{part}{pad}"),
                    Align::Right => format!("{gap}{pad}{part}"),
                };
            }
            text += line.trim_end();
            text.push('\n');
        }
        text
    }

    /// Returns the widths of the columns, shrunk to `most` in total if needed. The widest columns shrink first: at
    /// first they break between words, then within words. A number never breaks.
    fn widths(&self, most: usize) -> Vec<usize> {
        let of = |measure: &dyn Fn(&str, bool) -> usize| {
            let columns = self.columns.iter().enumerate();
            let widths = columns.map(|(index, (heading, align))| {
                let cells = self.rows.iter().map(|row| measure(&row[index], *align == Align::Left));
                cells.chain([measure(heading, true)]).max().unwrap_or(0)
            });
            widths.collect::<Vec<usize>>()
        };
        let longest_word = |text: &str| words(text).into_iter().map(width).max().unwrap_or(0);
        let between_words =
            of(&|text, breaks| if breaks { longest_word(text) } else { width(text) });
        let within_words: Vec<usize> = between_words
            .iter()
            .zip(&self.columns)
            .map(|(width, (_, align))| if *align == Align::Left { NARROWEST } else { *width })
            .collect();
        let mut widths = of(&|text, _| width(text));
        let gaps = GAP.len() * widths.len().saturating_sub(1);
        for least in [between_words, within_words] {
            while widths.iter().sum::<usize>() + gaps > most {
                let can_shrink = (0..widths.len()).filter(|index| widths[*index] > least[*index]);
                let Some(widest) = can_shrink.max_by_key(|index| widths[*index]) else { break };
                widths[widest] -= 1;
            }
        }
        widths
    }
}

const GAP: &str = "  ";
/// Minimum width of a column that breaks within words.
const NARROWEST: usize = 8;
/// A long word preferably breaks after one of these.
const JOINTS: [char; 8] = ['/', ',', '.', '_', '-', '=', ':', '@'];

/// Returns the lines of a cell.
fn broken(cell: &str, columns: usize) -> Vec<String> {
    wrapped(cell, columns, 0).into_iter().flat_map(|line| cut(line, columns)).collect()
}

/// Cuts a line that is too wide, even within a word.
fn cut(mut line: String, columns: usize) -> Vec<String> {
    let mut parts = Vec::new();
    while let Some((end, _)) = line.char_indices().nth(columns).filter(|_| columns > 0) {
        let joint = line[..end].rfind(JOINTS).map_or(end, |at| at + 1);
        let rest = line.split_off(joint);
        parts.push(std::mem::replace(&mut line, rest));
    }
    parts.push(line);
    parts
}

/// Writes each row on one line.
impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fitted(None))
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

    fn wide() -> Table {
        let mut table = Table::default()
            .column("setting", Align::Left)
            .column("wanted at least", Align::Right)
            .column("why", Align::Left);
        let path = "/proc/sys/net/ipv4/tcp_congestion_control";
        table.row([path.into(), "16.8 MB".into(), "many words say why ".repeat(3)]);
        table
    }

    #[test]
    fn a_table_fits_into_a_terminal_and_loses_no_word() {
        for columns in [40, 60, 80, 100] {
            let text = wide().fitted(Some(columns));
            let widest = text.lines().map(width).max().unwrap();
            assert!(widest <= columns, "{columns}:\n{text}");
            let count = |word| text.split_whitespace().filter(|part| *part == word).count();
            assert_eq!((count("many"), count("say")), (3, 3), "{columns}:\n{text}");
            assert!(text.contains("  16.8 MB"), "a number stays whole: {text}");
        }
        // Words break only if nothing else helps, and then after a joint.
        let path = "/proc/sys/net/ipv4/tcp_congestion_control";
        assert!(wide().fitted(Some(80)).contains(path));
        let narrow = wide().fitted(Some(40));
        assert!(!narrow.contains(path) && narrow.contains("/proc/"), "{narrow}");
        assert_eq!(wide().fitted(None).lines().count(), 2);
    }

    #[test]
    fn the_numbers_of_a_kernel_have_no_tabs_in_a_table() {
        let mut table = Table::default().column("x", Align::Left).column("y", Align::Left);
        table.row(["4096\t16384".into(), "z".into()]);
        assert_eq!(table.to_string(), "x           y\n4096 16384  z\n");
    }

    #[test]
    fn a_name_with_a_line_break_forges_no_row() {
        let mut table = Table::default().column("x", Align::Left).column("y", Align::Left);
        table.row(["a\n9 forged".into(), "\u{1b}[2J\u{202e}".into()]);
        assert_eq!(table.to_string().lines().count(), 2);
        assert!(table.to_string().contains("a\\u000a9 forged  \\u001b[2J\\u202e"), "{table}");
    }
}
