//! Tables as comma-separated values (RFC 4180): readers are strict, and headings identify the columns.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use csv_core::ReadRecordResult;
use polyrail_report::csv_line;
use polyrail_yaml::excerpt;

use crate::error::{ProfileError, shown_path};

/// A value that is one of a few words.
pub trait Word: Copy + PartialEq + 'static {
    /// Each word with its value.
    const WORDS: &'static [(&'static str, Self)];

    /// Returns the word for this value.
    fn word(self) -> &'static str {
        // Every value has a word; a test of each type checks this.
        Self::WORDS.iter().find(|(_, value)| *value == self).map_or("", |(word, _)| word)
    }

    /// Returns the value for a word.
    fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.iter().find(|(known, _)| *known == word).map(|(_, value)| *value)
    }

    /// Returns all words, as errors list them.
    fn allowed() -> String {
        let words: Vec<&str> = Self::WORDS.iter().map(|(word, _)| *word).collect();
        words.join(", ")
    }
}

/// One line of a table that this crate writes.
pub(crate) trait Row {
    /// Headings, in the order in which they are written.
    const COLUMNS: &'static [&'static str];

    fn write(&self, line: &mut Line);
}

/// A row that this crate also reads.
pub(crate) trait ReadRow: Row + Sized {
    /// Reads a line that has all columns.
    fn read(cells: &Cells<'_>) -> Result<Self, ProfileError>;
}

/// A line being written.
#[derive(Default)]
pub(crate) struct Line {
    cells: Record,
}

/// The cells of a line, concatenated.
#[derive(Debug, Default)]
pub(crate) struct Record {
    text: String,
    /// End of each cell.
    ends: Vec<usize>,
}

impl Record {
    fn get(&self, cell: usize) -> Option<&str> {
        let start = if cell == 0 { 0 } else { *self.ends.get(cell - 1)? };
        self.text.get(start..*self.ends.get(cell)?)
    }

    fn len(&self) -> usize {
        self.ends.len()
    }

    fn iter(&self) -> impl Iterator<Item = &str> {
        (0..self.len()).filter_map(|cell| self.get(cell))
    }
}

impl Line {
    pub(crate) fn cell(&mut self, value: impl std::fmt::Display) {
        // Writing to a string can't fail.
        let _ = write!(self.cells.text, "{value}");
        self.cells.ends.push(self.cells.text.len());
    }

    pub(crate) fn optional(&mut self, value: Option<impl std::fmt::Display>) {
        match value {
            Some(value) => self.cell(value),
            None => self.cell(""),
        }
    }
}

pub(crate) fn heading_line<R: Row>() -> String {
    R::COLUMNS.join(",") + "\n"
}

/// Appends a line to a text; returns its cells.
pub(crate) fn write_row<R: Row>(row: &R, out: &mut String) -> Record {
    let mut line = Line::default();
    row.write(&mut line);
    *out += &csv_line(line.cells.iter());
    line.cells
}

/// Reads a whole file that this crate wrote. Ignores a last line without a newline, whose writing was interrupted.
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

/// Reads the cells of a line that was just written, to check them.
pub(crate) fn read_row<R: ReadRow>(
    record: &Record,
    path: &Path,
    line: u64,
) -> Result<R, ProfileError> {
    let file = shown_path(path);
    let fields: Vec<Option<usize>> = (0..R::COLUMNS.len()).map(Some).collect();
    R::read(&Cells { record, fields: &fields, names: R::COLUMNS, file: &file, line })
}

/// Returns the text of a file.
pub(crate) fn utf8<'a>(bytes: &'a [u8], path: &Path) -> Result<&'a str, ProfileError> {
    std::str::from_utf8(bytes).map_err(|error| {
        let at = error.valid_up_to();
        let before = bytes[..at].iter().filter(|byte| **byte == b'\n').count() as u64;
        let found = bytes.get(at).copied().unwrap_or(0);
        let fault =
            format!("is not UTF-8 text: 0x{found:02x} at byte {at} of the file; allowed: UTF-8");
        ProfileError::Line { file: shown_path(path), line: 1 + before, fault }
    })
}

/// Handling of unknown columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Refuse them: the file has another format.
    Refuse,
    /// Ignore them: other programs may add columns.
    Ignore,
}

/// A table in memory, with checked headings.
#[derive(Debug)]
pub struct Table<'a> {
    text: &'a str,
    file: String,
    /// Number of columns in the file.
    width: usize,
    /// Index in the file of each requested column.
    fields: Vec<Option<usize>>,
    names: Vec<&'static str>,
}

impl<'a> Table<'a> {
    /// Checks the text and its headings. `required` columns must be there; `optional` ones may.
    ///
    /// # Errors
    /// If the text is not UTF-8 or has no headings, or a column is missing, duplicate, or unknown.
    pub fn parse(
        bytes: &'a [u8],
        path: &Path,
        required: &[&'static str],
        optional: &[&'static str],
        unknown: Unknown,
    ) -> Result<Self, ProfileError> {
        let file = shown_path(path);
        let names = [required, optional].concat();
        let fault = |fault: String| ProfileError::Columns {
            file: file.clone(),
            fault,
            allowed: names.join(","),
        };
        let text = utf8(bytes, path)?;
        // Spreadsheets often write a byte order mark.
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut headings = Record::default();
        if Records::of(text).read(&mut headings).is_none() {
            return Err(fault("there are no headings".into()));
        }
        let mut fields = vec![None; names.len()];
        for (at, heading) in headings.iter().enumerate() {
            match names.iter().position(|name| *name == heading.trim()) {
                Some(place) if fields[place].is_some() => {
                    return Err(fault(format!("column {heading} is there twice")));
                }
                Some(place) => fields[place] = Some(at),
                None if unknown == Unknown::Refuse => {
                    return Err(fault(format!(
                        "`{}` is not a column of this table",
                        excerpt(heading)
                    )));
                }
                None => {}
            }
        }
        let missing = required.iter().zip(&fields).filter(|(_, field)| field.is_none());
        let missing: Vec<&str> = missing.map(|(name, _)| *name).collect();
        if !missing.is_empty() {
            return Err(fault(format!("missing column {}", missing.join(", "))));
        }
        Ok(Self { text, file, width: headings.len(), fields, names })
    }

    /// Calls `each` for each line, until it fails.
    ///
    /// # Errors
    /// If a line has too many or too few cells, or with the error of `each`.
    pub fn for_each(
        &self,
        mut each: impl FnMut(&Cells<'_>) -> Result<(), ProfileError>,
    ) -> Result<(), ProfileError> {
        let mut record = Record::default();
        let mut records = Records::of(self.text);
        records.read(&mut record);
        while let Some(line) = records.read(&mut record) {
            if record.len() == 1 && record.text.is_empty() {
                continue;
            }
            if record.len() != self.width {
                let fault = format!("has {} cells; allowed: {}", record.len(), self.width);
                return Err(ProfileError::Line { file: self.file.clone(), line, fault });
            }
            let (fields, names) = (&self.fields, &self.names);
            each(&Cells { record: &record, fields, names, file: &self.file, line })?;
        }
        Ok(())
    }
}

/// The records of a text, without empty lines.
struct Records<'a> {
    text: &'a str,
    reader: csv_core::Reader,
    at: usize,
    /// Offset up to which lines are counted; `line` is the line there.
    counted: usize,
    line: u64,
}

impl<'a> Records<'a> {
    fn of(text: &'a str) -> Self {
        Self { text, reader: csv_core::Reader::new(), at: 0, counted: 0, line: 1 }
    }

    /// Reads the next record; returns the line that it begins on, counted from 1; `None` at the end.
    fn read(&mut self, record: &mut Record) -> Option<u64> {
        let all = self.text.as_bytes();
        let empty = all[self.at..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let start = self.at + empty;
        let mut text = std::mem::take(&mut record.text).into_bytes();
        let ends = &mut record.ends;
        let (mut text_len, mut ends_len) = (0, 0);
        loop {
            text.resize((2 * text_len).max(256), 0);
            ends.resize((2 * ends_len).max(32), 0);
            let (result, taken, written, ended) = self.reader.read_record(
                &all[self.at..],
                &mut text[text_len..],
                &mut ends[ends_len..],
            );
            self.at += taken;
            text_len += written;
            ends_len += ended;
            match result {
                ReadRecordResult::Record => break,
                ReadRecordResult::End => {
                    ends.clear();
                    return None;
                }
                // Empty input signals the end; the other cases get larger buffers.
                ReadRecordResult::InputEmpty
                | ReadRecordResult::OutputFull
                | ReadRecordResult::OutputEndsFull => {}
            }
        }
        text.truncate(text_len);
        ends.truncate(ends_len);
        record.text = String::from_utf8(text).expect("cells of a text are text");
        self.line += all[self.counted..start].iter().filter(|byte| **byte == b'\n').count() as u64;
        self.counted = start;
        Some(self.line)
    }
}

/// The cells of one line, by the index of their column in the request.
#[derive(Debug)]
pub struct Cells<'a> {
    record: &'a Record,
    /// Index in the record of each column.
    fields: &'a [Option<usize>],
    names: &'a [&'static str],
    file: &'a str,
    /// Line number from 1.
    line: u64,
}

impl Cells<'_> {
    /// Returns the line number in the file, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Returns the text of a cell, without surrounding space.
    pub fn text(&self, column: usize) -> &str {
        self.fields[column].and_then(|at| self.record.get(at)).unwrap_or_default().trim()
    }

    /// Returns an error about a cell.
    pub fn fault(&self, column: usize, allowed: impl Into<String>) -> ProfileError {
        ProfileError::Cell {
            file: self.file.to_owned(),
            line: self.line,
            column: self.names[column].to_owned(),
            value: excerpt(self.text(column)),
            allowed: allowed.into(),
        }
    }

    /// Reads a whole number in `range`.
    ///
    /// # Errors
    /// If the cell holds anything else.
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

    /// Reads a finite number in `range`.
    ///
    /// # Errors
    /// If the cell holds anything else.
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

    /// Returns `None` for an empty cell, else the result of `read`.
    ///
    /// # Errors
    /// As `read`.
    pub fn optional<T>(
        &self,
        column: usize,
        read: impl FnOnce(&Self) -> Result<T, ProfileError>,
    ) -> Result<Option<T>, ProfileError> {
        if self.text(column).is_empty() { Ok(None) } else { read(self).map(Some) }
    }

    /// Reads one of the words of `W`.
    ///
    /// # Errors
    /// If the cell holds anything else.
    pub fn word<W: Word>(&self, column: usize) -> Result<W, ProfileError> {
        W::from_word(self.text(column)).ok_or_else(|| self.fault(column, W::allowed()))
    }
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
    fn cells_may_be_long_and_many() {
        let long = "é,".repeat(5_000);
        let extra: String = (0..100).map(|at| format!(",x{at}")).collect();
        let row = |a: &str| csv_line([a, "b"].into_iter().chain(["é"; 100]));
        let found = rows(&format!("a,b{extra}\n{}{}", row(&long), row("1"))).unwrap();
        assert_eq!(found, [[long.as_str(), "b", ""], ["1", "b", ""]]);
    }

    #[test]
    fn what_is_missing_twice_or_too_much_is_named() {
        let fault = |text: &str| rows(text).unwrap_err().to_string();
        assert_eq!(fault("a,x\n"), "t.csv:1: missing column b; allowed columns: a,b,c");
        assert_eq!(fault("a,b,a\n"), "t.csv:1: column a is there twice; allowed columns: a,b,c");
        assert_eq!(fault("a,b\n1,2\n1\n"), "t.csv:3: has 1 cells; allowed: 2");
        assert_eq!(fault("a,b\n\n\"1\n\",2\r\n\r\n1\n"), "t.csv:6: has 1 cells; allowed: 2");
        assert_eq!(fault(""), "t.csv:1: there are no headings; allowed columns: a,b,c");
        let bytes = b"a,b\n1,\xff\n";
        let error = Table::parse(bytes, Path::new("t.csv"), &["a"], &[], Unknown::Ignore);
        assert_eq!(
            error.unwrap_err().to_string(),
            "t.csv:2: is not UTF-8 text: 0xff at byte 6 of the file; allowed: UTF-8"
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
        let mut line = Line::default();
        line.cell("x,\"y\"");
        line.optional(None::<u32>);
        line.cell(7);
        let text = format!("a,b,c\n{}", csv_line(line.cells.iter()));
        assert_eq!(rows(&text).unwrap(), [["x,\"y\"", "", "7"]]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_rows_or_an_error(text in "[ab,\"\r\n x]{0,60}") {
            match rows(&format!("a,b\n{text}")) {
                Ok(found) => {
                    let mut again = String::from("a,b,c\n");
                    for row in &found {
                        again += &csv_line(row);
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
