//! Journals of studies: files of JSON, line by line, with which a run that ended early goes on. The first line
//! identifies the run. A line torn by a kill is cut off.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use polyrail_profile::shown_path;
use polyrail_report::exit;
use polyrail_sys::files::{Opening, lock, open_to_write, remove_opened};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::fault_of_read;
use crate::fault::Fault;
use crate::unwritten::Unwritten;

/// Bytes of another run's first line to read beyond the length of this run's, to show how they differ.
const FIRST_MORE: usize = 1 << 20;

/// An open journal. No other process writes to it meanwhile.
pub(crate) struct Journal<Line> {
    path: PathBuf,
    file: File,
    of: PhantomData<fn(&Line)>,
}

/// Words for messages about the journals of one command.
pub(crate) struct Wording<'a> {
    /// The folder or file that the user named.
    pub(crate) place: &'a Path,
    /// The noun for the place.
    pub(crate) noun: &'static str,
    /// The noun for a run.
    pub(crate) run: &'static str,
    /// Advice that names the option for another place.
    pub(crate) elsewhere: &'static str,
    /// The fix for a line that can't be read.
    pub(crate) repair: &'static str,
}

impl Wording<'_> {
    /// The fault of a place that this run can't use. `why` follows the path.
    pub(crate) fn fault(&self, why: &str, help: &str) -> Fault {
        let (noun, path) = (self.noun, shown_path(self.place));
        let allowed = "results of the same run, or a new name";
        let message = format!("the {noun} {path} {why}; allowed: {allowed}");
        Fault::new(exit::USAGE, message).with_help(help)
    }

    /// Locks the file of a journal at `path`.
    pub(crate) fn lock(&self, path: &Path, file: &File) -> Result<(), Fault> {
        lock(file).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => {
                let help = format!("wait for its end, or {}", self.elsewhere);
                self.fault(&format!("is in use by another {}", self.run), &help)
            }
            _ => {
                let message = format!("can't lock {}: {error}", shown_path(path));
                Fault::new(exit::of_io(&error), message).with_help(self.elsewhere)
            }
        })
    }
}

/// Compares the first line of a journal with that of this run. Returns the reason why the run can't go on, with a fix.
pub(crate) type Differs<'a> = &'a dyn Fn(&str) -> Option<(String, &'static str)>;

impl<Line: Serialize + DeserializeOwned> Journal<Line> {
    /// Creates the journal with this first line, or returns the other lines of an existing one.
    pub(crate) fn open(
        path: &Path,
        wording: &Wording<'_>,
        first: &Value,
        differs: Differs<'_>,
    ) -> Result<(Self, Vec<Line>), Fault> {
        let is_new = !path.exists();
        let file = open_to_write(path, Opening::ReadAppend, 0o600).map_err(Unwritten::at(path))?;
        let mut journal = Self { path: path.to_owned(), file, of: PhantomData };
        // Locking takes permissions away from other users. Leave a file alone that is not a journal of this run.
        journal.check_first(wording, first, differs)?;
        wording.lock(path, &journal.file)?;
        // Another process may have written to it before the lock.
        if journal.check_first(wording, first, differs)? {
            let lines = journal.read(wording)?;
            return Ok((journal, lines));
        }
        let begun = journal.file.set_len(0).map_err(Unwritten::at(path)).map_err(Fault::from);
        begun.and_then(|()| journal.write(first)).inspect_err(|_| {
            if is_new {
                // A journal without its first line does not belong to a run, so no run could go on with it.
                let _ = remove_opened(path, &journal.file);
            }
        })?;
        Ok((journal, Vec::new()))
    }

    /// Refuses a journal of another run. Returns `false` if the first line is not whole, as after a kill while it was
    /// written.
    fn check_first(
        &mut self,
        wording: &Wording<'_>,
        first: &Value,
        differs: Differs<'_>,
    ) -> Result<bool, Fault> {
        let wanted = first.to_string();
        let mut found = Vec::new();
        let most = (wanted.len() + FIRST_MORE) as u64;
        let rewound = self.file.rewind();
        let read = rewound.and_then(|()| (&self.file).take(most).read_to_end(&mut found));
        read.map_err(|error| self.fault_of_read(wording, error))?;
        if let Some(end) = found.iter().position(|byte| *byte == b'\n') {
            found.truncate(end + 1);
        }
        if wanted.as_bytes().starts_with(&found) {
            return Ok(false);
        }
        let text = String::from_utf8_lossy(found.strip_suffix(b"\n").unwrap_or(&found));
        match differs(&text) {
            Some((why, help)) => Err(wording.fault(&why, help)),
            None => Ok(found.ends_with(b"\n")),
        }
    }

    /// Reads the lines after the first, and cuts off a torn one.
    fn read(&mut self, wording: &Wording<'_>) -> Result<Vec<Line>, Fault> {
        let mut bytes = Vec::new();
        let read = self.file.rewind().and_then(|()| self.file.read_to_end(&mut bytes));
        read.map_err(|error| self.fault_of_read(wording, error))?;
        // A line may have been torn inside a character, so the bytes are cut before they are decoded.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n').enumerate().skip(1);
        let line = |(at, line): (usize, &[u8])| {
            serde_json::from_slice(line).map_err(|error| {
                let inside = self.path.strip_prefix(wording.place).ok();
                let inside = inside.filter(|name| !name.as_os_str().is_empty());
                let inside = inside.map_or(String::new(), |name| format!(" in {}", name.display()));
                let why =
                    format!("has a line{inside} that can't be read: line {}: {error}", at + 1);
                wording.fault(&why, wording.repair)
            })
        };
        let lines = lines.map(line).collect::<Result<_, _>>()?;
        if whole < bytes.len() {
            // A kill tore the last line. The next one must not run into it.
            self.file.set_len(whole as u64).map_err(Unwritten::at(&self.path))?;
        }
        Ok(lines)
    }

    fn fault_of_read(&self, wording: &Wording<'_>, error: io::Error) -> Fault {
        fault_of_read(&self.path)(error).with_help(wording.elsewhere)
    }

    /// Adds a line.
    pub(crate) fn add(&mut self, line: &Line) -> Result<(), Fault> {
        self.write(&json!(line))
    }

    fn write(&mut self, line: &Value) -> Result<(), Fault> {
        let failed = Unwritten::at(&self.path);
        let before = self.file.metadata().map_err(&failed)?.len();
        let written = |file: &mut File| -> io::Result<()> {
            file.write_all(format!("{line}\n").as_bytes())?;
            file.sync_data()
        };
        let done = written(&mut self.file).inspect_err(|_| {
            // The next line must not run into a part of this one.
            let _ = self.file.set_len(before);
        });
        Ok(done.map_err(failed)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const FIRST: &str = r#"{"test_journal":1}"#;

    fn open(path: &Path) -> Result<(Journal<String>, Vec<String>), String> {
        open_as(path, &serde_json::from_str(FIRST).unwrap())
    }

    fn open_as(path: &Path, first: &Value) -> Result<(Journal<String>, Vec<String>), String> {
        let wording = Wording {
            place: path,
            noun: "file",
            run: "test",
            elsewhere: "name another file",
            repair: "take the line out",
        };
        let wanted = first.to_string();
        let differs =
            |found: &str| (found != wanted).then(|| ("is of another test".to_owned(), "change it"));
        Journal::open(path, &wording, first, &differs).map_err(|fault| fault.to_string())
    }

    fn refused(path: &Path) -> String {
        open(path).map(|(_, lines)| lines).unwrap_err()
    }

    #[test]
    fn lines_that_were_kept_come_back_and_a_torn_one_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let (mut journal, lines) = open(&path).unwrap();
        assert!(lines.is_empty());
        journal.add(&"ü".to_owned()).unwrap();
        drop(journal);
        let whole = fs::read(&path).unwrap();
        // The first of the two bytes of a character.
        fs::write(&path, [&whole[..], b"\"\xc3"].concat()).unwrap();
        let (mut journal, lines) = open(&path).unwrap();
        assert_eq!(lines, ["ü"]);
        assert_eq!(fs::read(&path).unwrap(), whole);
        journal.add(&"next".to_owned()).unwrap();
        drop(journal);
        assert_eq!(open(&path).unwrap().1, ["ü", "next"]);
    }

    #[test]
    fn a_file_that_is_no_journal_keeps_its_text_and_its_mode_though_a_program_has_locked_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        fs::write(&path, "not to be lost\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(refused(&path).contains("is of another test"));
        let file = File::open(&path).unwrap();
        file.lock().unwrap();
        assert!(refused(&path).contains("is of another test"));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(fs::read_to_string(&path).unwrap(), "not to be lost\n");
    }

    #[test]
    fn a_journal_has_one_run_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let opened = open(&path).unwrap();
        let said = refused(&path);
        assert!(said.starts_with("the file ") && said.contains("in use by another test"), "{said}");
        drop(opened);
        open(&path).unwrap();
    }

    #[test]
    fn an_empty_file_and_a_torn_first_line_begin_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        for torn in ["", &FIRST[..5], FIRST] {
            fs::write(&path, torn).unwrap();
            assert!(open(&path).unwrap().1.is_empty());
            assert_eq!(fs::read_to_string(&path).unwrap(), format!("{FIRST}\n"));
        }
        fs::write(&path, "{\"other").unwrap();
        assert!(refused(&path).contains("is of another test"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "{\"other");
    }

    #[test]
    fn a_line_in_the_middle_that_can_not_be_read_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        for wrong in [b"{".as_slice(), b"\"\xc3\""] {
            let text = [FIRST.as_bytes(), b"\n\"good\"\n", wrong, b"\n\"good\"\n"].concat();
            fs::write(&path, &text).unwrap();
            let said = refused(&path);
            assert!(said.contains("has a line that can't be read: line 3: "), "{said}");
            assert_eq!(fs::read(&path).unwrap(), text);
        }
    }

    #[test]
    fn a_first_line_may_be_as_long_as_the_names_of_all_cells() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let first = json!({ "cells": "c".repeat(5 << 20) });
        open_as(&path, &first).unwrap().0.add(&"kept".to_owned()).unwrap();
        assert_eq!(open_as(&path, &first).unwrap().1, ["kept"]);
    }
}
