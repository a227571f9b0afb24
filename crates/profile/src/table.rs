//! Tables as comma-separated values (RFC 4180): readers are strict, and headings identify the
//! columns.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::error::{ProfileError, short};

/// A value that is one of a few words.
pub trait Word: Copy + PartialEq + 'static {
    /// Each word and what it means.
    const WORDS: &'static [(&'static str, Self)];

    /// The word for this value.
    fn word(self) -> &'static str {
        // Every value has a word; a test of each type says so.
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }

    /// The value for a word.
    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
    }

    /// All words, as errors list them.
    fn allowed() -> String {
        let words: Vec<&str> = Self::WORDS.iter().map(|(word, _)| *word).collect();
        words.join(", ")
    }
}

/// One line of a table that this crate writes.
pub(crate) trait Row {
    /// The headings, in the order in which they are written.
    const COLUMNS: &'static [&'static str];

    /// Adds each cell.
    fn write(&self, line: &mut Line<'_>);
}

/// A row that this crate reads, too.
pub(crate) trait ReadRow: Row + Sized {
    /// Reads a line whose columns are all there.
    fn read(cells: &Cells<'_>) -> Result<Self, ProfileError>;
}

/// A line that is being written; cells are separated as they come.
pub(crate) struct Line<'a> {
    out: &'a mut String,
    is_first: bool,
}

impl Line<'_> {
    pub(crate) fn cell(&mut self, value: impl std::fmt::Display) {
        if !self.is_first {
            self.out.push(',');
        }
        self.is_first = false;
        let start = self.out.len();
        // Writing to a string can't fail.
        let _ = write!(self.out, "{value}");
        if self.out[start..].contains([',', '"', '\n', '\r']) {
            let quoted = format!("\"{}\"", self.out[start..].replace('"', "\"\""));
            self.out.replace_range(start.., &quoted);
        }
    }

    pub(crate) fn optional(&mut self, value: Option<impl std::fmt::Display>) {
        match value {
            Some(value) => self.cell(value),
            None => self.cell(""),
        }
    }
}

/// Headings as a line.
pub(crate) fn heading_line<R: Row>() -> String {
    R::COLUMNS.join(",") + "\n"
}

/// Adds a line to a text.
pub(crate) fn write_row<R: Row>(row: &R, out: &mut String) {
    row.write(&mut Line { out, is_first: true });
    out.push('\n');
}

/// Reads a whole file that this crate wrote. A last line without a newline is one that was being
/// written when its program ended, and is left out.
pub(crate) fn read_rows<R: ReadRow>(path: &Path) -> Result<Vec<R>, ProfileError> {
    let text = fs::read(path).map_err(ProfileError::io("read", path))?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
    let table = Table::parse(&text[..whole], path, R::COLUMNS, &[], Unknown::Refuse)?;
    let mut rows = Vec::with_capacity(whole / 96);
    table.for_each(|cells| {
        rows.push(R::read(cells)?);
        Ok(())
    })?;
    Ok(rows)
}

/// Reads one line that was just written.
pub(crate) fn read_row<R: ReadRow>(text: &str, path: &Path, line: u64) -> Result<R, ProfileError> {
    let mut cells = Vec::with_capacity(R::COLUMNS.len());
    split_record(text, &mut cells);
    let file = path.display().to_string();
    R::read(&Cells { cells: &cells, names: R::COLUMNS, file: &file, line })
}

/// The text of a file.
pub(crate) fn utf8<'a>(bytes: &'a [u8], path: &Path) -> Result<&'a str, ProfileError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let before = bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
        let found = bytes.get(at).copied().unwrap_or(0);
        let fault = format!("is not UTF-8 text: 0x{found:02x} at byte {at} of the file");
        ProfileError::Line { file: path.display().to_string(), line: 1 + before, fault }
    })
}

/// What to do with an unknown column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Refuse it: the file has another format.
    Refuse,
    /// Other programs may add columns of their own.
    Ignore,
}

/// A table in memory, with its headings checked.
#[derive(Debug)]
pub struct Table<'a> {
    text: &'a str,
    file: String,
    /// For each column of the file, its place among those asked for.
    places: Vec<Option<usize>>,
    names: Vec<&'static str>,
    first_line: u64,
}

impl<'a> Table<'a> {
    /// Checks the text and its headings. `required` columns must be there; `optional` ones may.
    ///
    /// # Errors
    /// Text that is not UTF-8, no headings, a column that is missing, there twice, or unknown.
    pub fn parse(
        bytes: &'a [u8],
        path: &Path,
        required: &[&'static str],
        optional: &[&'static str],
        unknown: Unknown,
    ) -> Result<Self, ProfileError> {
        let file = path.display().to_string();
        let names = [required, optional].concat();
        let fault = |fault: String| ProfileError::Columns {
            file: file.clone(),
            fault,
            allowed: names.join(","),
        };
        let text = utf8(bytes, path)?;
        // Spreadsheets like to put a byte order mark in front.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut headings = Vec::new();
        let Some((rest, lines)) = split_record(text, &mut headings) else {
            return Err(fault("there are no headings".into()));
        };
        let mut places = Vec::new();
        for heading in &headings {
            let place = names.iter().position(|name| *name == heading.trim());
            if place.is_none() && unknown == Unknown::Refuse {
                return Err(fault(format!("`{}` is not a column of this table", short(heading))));
            }
            if place.is_some() && places.contains(&place) {
                return Err(fault(format!("column {heading} is there twice")));
            }
            places.push(place);
        }
        let missing: Vec<&str> = (0..required.len())
            .filter(|place| !places.contains(&Some(*place)))
            .map(|place| required[place])
            .collect();
        if !missing.is_empty() {
            return Err(fault(format!("missing column {}", missing.join(", "))));
        }
        Ok(Self { text: rest, file, places, names, first_line: 1 + lines })
    }

    /// Calls `each` with each line, until it fails.
    ///
    /// # Errors
    /// A line with too many or too few cells, and what `each` returns.
    pub fn for_each(
        &self,
        mut each: impl FnMut(&Cells<'_>) -> Result<(), ProfileError>,
    ) -> Result<(), ProfileError> {
        let mut rest = self.text;
        let mut line = self.first_line;
        let mut record = Vec::new();
        let mut cells = vec![Cow::Borrowed(""); self.names.len()];
        while let Some((after, lines)) = split_record(rest, &mut record) {
            if record.len() == 1 && record[0].is_empty() {
                (rest, line) = (after, line + lines);
                continue;
            }
            if record.len() != self.places.len() {
                let fault = format!("has {} cells; allowed: {}", record.len(), self.places.len());
                return Err(ProfileError::Line { file: self.file.clone(), line, fault });
            }
            for (cell, place) in record.drain(..).zip(&self.places) {
                if let Some(place) = place {
                    cells[*place] = cell;
                }
            }
            each(&Cells { cells: &cells, names: &self.names, file: &self.file, line })?;
            (rest, line) = (after, line + lines);
        }
        Ok(())
    }
}

/// The cells of one line, by the place of their column in what was asked for.
#[derive(Debug)]
pub struct Cells<'a> {
    cells: &'a [Cow<'a, str>],
    names: &'a [&'static str],
    file: &'a str,
    /// Counted from 1.
    line: u64,
}

impl Cells<'_> {
    /// The line in the file, counted from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The text of a cell, without space around it.
    pub fn text(&self, column: usize) -> &str {
        self.cells[column].trim()
    }

    /// An error about a cell.
    pub fn fault(&self, column: usize, allowed: impl Into<String>) -> ProfileError {
        ProfileError::Cell {
            file: self.file.to_owned(),
            line: self.line,
            column: self.names[column].to_owned(),
            value: short(self.text(column)),
            allowed: allowed.into(),
        }
    }

    /// A whole number in a range.
    ///
    /// # Errors
    /// Anything else.
    pub fn whole<N>(
        &self,
        column: usize,
        range: std::ops::RangeInclusive<N>,
    ) -> Result<N, ProfileError>
    where
        N: std::str::FromStr + PartialOrd + std::fmt::Display,
    {
        match self.text(column).parse() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => {
                let allowed = format!("a whole number, {} to {}", range.start(), range.end());
                Err(self.fault(column, allowed))
            }
        }
    }

    /// A finite number in `range`.
    ///
    /// # Errors
    /// Anything else.
    pub fn number(
        &self,
        column: usize,
        range: std::ops::RangeInclusive<f64>,
    ) -> Result<f64, ProfileError> {
        match self.text(column).parse::<f64>() {
            Ok(number) if number.is_finite() && range.contains(&number) => Ok(number),
            _ => {
                let [least, most] = [range.start(), range.end()].map(|bound| match bound.abs() {
                    0.001..1e6 | 0.0 => bound.to_string(),
                    _ => format!("{bound:e}"),
                });
                let allowed = format!("a number, {least} to {most}");
                Err(self.fault(column, allowed))
            }
        }
    }

    /// `None` for an empty cell, else what `read` makes of it.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn optional<T>(
        &self,
        column: usize,
        read: impl FnOnce(&Self) -> Result<T, ProfileError>,
    ) -> Result<Option<T>, ProfileError> {
        if self.text(column).is_empty() { Ok(None) } else { read(self).map(Some) }
    }

    /// One of the words of `W`.
    ///
    /// # Errors
    /// Anything else.
    pub fn word<W: Word>(&self, column: usize) -> Result<W, ProfileError> {
        W::from_word(self.text(column)).ok_or_else(|| self.fault(column, W::allowed()))
    }
}

/// Takes one record from the front and says what is left and how many lines it took; `None` at the
/// end of the text.
fn split_record<'a>(text: &'a str, cells: &mut Vec<Cow<'a, str>>) -> Option<(&'a str, u64)> {
    cells.clear();
    if text.is_empty() {
        return None;
    }
    let bytes = text.as_bytes();
    let (mut at, mut lines) = (0, 1);
    loop {
        let start = at;
        if bytes.get(at) == Some(&b'"') {
            let (cell, after, inside) = quoted(text, at + 1);
            cells.push(Cow::Owned(cell));
            (at, lines) = (after, lines + inside);
        } else {
            while at < bytes.len() && !matches!(bytes[at], b',' | b'\n') {
                at += 1;
            }
            cells.push(Cow::Borrowed(text[start..at].trim_end_matches('\r')));
        }
        match bytes.get(at) {
            Some(b',') => at += 1,
            Some(b'\n') => return Some((&text[at + 1..], lines)),
            // Only a separator may follow a closing quote. Anything else becomes an extra cell, and
            // the caller refuses the wrong number of cells.
            Some(b'\r') => at += 1,
            Some(_) => {}
            None => return Some(("", lines)),
        }
        if bytes.get(at) == Some(&b'\n') && bytes[at - 1] == b'\r' {
            return Some((&text[at + 1..], lines));
        }
    }
}

/// A cell from behind its opening quote: its text, where it ends, and the newlines in it.
fn quoted(text: &str, start: usize) -> (String, usize, u64) {
    let mut cell = String::new();
    let mut at = start;
    while let Some(length) = text[at..].find('"') {
        cell.push_str(&text[at..at + length]);
        at += length + 1;
        if !text[at..].starts_with('"') {
            let lines = cell.matches('\n').count() as u64;
            return (cell, at, lines);
        }
        cell.push('"');
        at += 1;
    }
    cell.push_str(&text[at..]);
    let lines = cell.matches('\n').count() as u64;
    (cell, text.len(), lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str) -> Result<Vec<Vec<String>>, ProfileError> {
        let table = Table::parse(
            text.as_bytes(),
            Path::new("t.csv"),
            &["a", "b"],
            &["c"],
            Unknown::Ignore,
        )?;
        let mut rows = Vec::new();
        table.for_each(|cells| {
            rows.push((0..3).map(|column| cells.text(column).to_owned()).collect());
            Ok(())
        })?;
        Ok(rows)
    }

    #[test]
    fn columns_are_found_by_name_in_any_order() {
        let found = rows("b,extra,a\n2,x,1\r\n4,y,3").unwrap();
        assert_eq!(found, [["1", "2", ""], ["3", "4", ""]]);
    }

    #[test]
    fn quotes_may_hold_separators_quotes_and_newlines() {
        let found = rows("a,b,c\n\"x,\"\"y\"\"\",\"two\nlines\",3\n\n5,6,7\r\n").unwrap();
        assert_eq!(found, [["x,\"y\"", "two\nlines", "3"], ["5", "6", "7"]]);
    }

    #[test]
    fn what_is_missing_twice_or_too_much_is_named() {
        let fault = |text: &str| rows(text).unwrap_err().to_string();
        assert_eq!(fault("a,x\n"), "t.csv:1: missing column b; allowed columns: a,b,c");
        assert_eq!(fault("a,b,a\n"), "t.csv:1: column a is there twice; allowed columns: a,b,c");
        assert_eq!(fault("a,b\n1,2\n1\n"), "t.csv:3: has 1 cells; allowed: 2");
        assert_eq!(fault("a,b\n\"1\"x,2\n"), "t.csv:2: has 3 cells; allowed: 2");
        assert_eq!(fault(""), "t.csv:1: there are no headings; allowed columns: a,b,c");
        let bytes = b"a,b\n1,\xff\n";
        let error = Table::parse(bytes, Path::new("t.csv"), &["a"], &[], Unknown::Ignore);
        assert_eq!(
            error.unwrap_err().to_string(),
            "t.csv:2: is not UTF-8 text: 0xff at byte 6 of the file"
        );
    }

    #[test]
    fn a_cell_out_of_range_is_named_with_line_column_and_range() {
        let table = Table::parse(
            b"a,b\n1,2\n1,1e999\n",
            Path::new("t.csv"),
            &["a", "b"],
            &[],
            Unknown::Refuse,
        )
        .unwrap();
        let error = table.for_each(|cells| cells.number(1, 0.0..=1e18).map(drop)).unwrap_err();
        let text = error.to_string();
        assert_eq!(text, "t.csv:3, column b: `1e999`; allowed: a number, 0 to 1e18");
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut text = String::from("a,b,c\n");
        let mut line = Line { out: &mut text, is_first: true };
        line.cell("x,\"y\"");
        line.optional(None::<u32>);
        line.cell(7);
        assert_eq!(rows(&text).unwrap(), [["x,\"y\"", "", "7"]]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_rows_or_an_error(text in "[ab,\"\r\n x]{0,60}") {
            match rows(&format!("a,b\n{text}")) {
                Ok(found) => {
                    let mut again = String::from("a,b,c\n");
                    for row in &found {
                        let mut line = Line { out: &mut again, is_first: true };
                        row.iter().for_each(|cell| line.cell(cell));
                        again.push('\n');
                    }
                    proptest::prop_assert_eq!(rows(&again).unwrap(), found, "{}", again);
                }
                Err(error) => {
                    let error = error.to_string();
                    proptest::prop_assert!(error.starts_with("t.csv"), "{}", error);
                }
            }
        }
    }
}
