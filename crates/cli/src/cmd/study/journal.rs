//! Journals of studies: files of JSON, line by line, with which a run that ended early goes on. The first line says which
//! run it is. A line that was torn by a kill is cut off.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use polyrail_sys::files::{Opening, lock, open_to_write, remove_opened};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{unread, unusable};
use crate::fault::Fault;
use crate::lines::Lines;
use crate::unwritten::Unwritten;

/// More than the names of all cells take.
const FIRST_MAX: usize = 4 << 20;

/// An open journal. No other process writes to it meanwhile.
pub(crate) struct Journal<Line> {
    path: PathBuf,
    file: File,
    of: PhantomData<fn(&Line)>,
}

/// Words for messages on the journals of one command.
pub(crate) struct Owner<'a> {
    /// The folder or file that the user named.
    pub(crate) place: &'a Path,
    /// The noun for a run.
    pub(crate) run: &'static str,
    /// The option that names another place, with a verb.
    pub(crate) elsewhere: &'static str,
    /// The remedy for a line that can't be read.
    pub(crate) repair: &'static str,
}

impl Owner<'_> {
    pub(crate) fn in_use(&self) -> Fault {
        let help = format!("wait for its end, or {}", self.elsewhere);
        unusable(self.place, &format!("is in use by another {}", self.run), &help)
    }
}

impl<Line: Serialize + DeserializeOwned> Journal<Line> {
    /// Makes the journal with this first line, or returns the other lines of one that is there. `differs` says why the run
    /// can't go on behind a first line, with a remedy.
    pub(crate) fn open(
        path: &Path,
        owner: &Owner<'_>,
        first: &Value,
        differs: impl FnOnce(&str) -> Option<(String, &'static str)>,
    ) -> Result<(Self, Vec<Line>), Fault> {
        let is_new = !path.exists();
        let file = open_to_write(path, Opening::ReadAppend, 0o600).map_err(Unwritten::at(path))?;
        lock(&file).map_err(|_| owner.in_use())?;
        let mut journal = Self { path: path.to_owned(), file, of: PhantomData };
        if journal.file.metadata().map_err(unread(path))?.len() > 0 {
            let lines = journal.read(owner, first, differs)?;
            return Ok((journal, lines));
        }
        let begun = journal.write(first);
        begun.inspect_err(|_| {
            if is_new {
                // A journal without its first line is of no run, so no run could go on with it.
                let _ = remove_opened(path, &journal.file);
            }
        })?;
        Ok((journal, Vec::new()))
    }

    fn read(
        &mut self,
        owner: &Owner<'_>,
        first: &Value,
        differs: impl FnOnce(&str) -> Option<(String, &'static str)>,
    ) -> Result<Vec<Line>, Fault> {
        let failed = unread(&self.path);
        let begin = Lines::up_to(FIRST_MAX, &self.file).next();
        let begin = begin.transpose().map_err(&failed)?.unwrap_or_default();
        if let Some((why, help)) = differs(&begin) {
            return Err(unusable(owner.place, &why, help));
        }
        let mut text = String::new();
        self.file.rewind().map_err(&failed)?;
        self.file.read_to_string(&mut text).map_err(&failed)?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let mut lines = Vec::new();
        for (at, line) in text[..whole].lines().enumerate().skip(1) {
            lines.push(serde_json::from_str(line).map_err(|error| {
                let inside = self.path.strip_prefix(owner.place).ok();
                let inside = inside.filter(|name| !name.as_os_str().is_empty());
                let inside = inside.map_or(String::new(), |name| format!(" in {}", name.display()));
                let why =
                    format!("has a line{inside} that can't be read: line {}: {error}", at + 1);
                unusable(owner.place, &why, owner.repair)
            })?);
        }
        if whole < text.len() {
            // The run was killed while it wrote a line, and the next one must not run into it.
            self.file.set_len(whole as u64).map_err(Unwritten::at(&self.path))?;
        }
        if whole == 0 {
            self.write(first)?;
        }
        Ok(lines)
    }

    /// Keeps a line.
    pub(crate) fn add(&mut self, line: &Line) -> Result<(), Fault> {
        self.write(&json!(line))
    }

    fn write(&mut self, line: &Value) -> Result<(), Fault> {
        let written = |file: &mut File| -> io::Result<()> {
            file.write_all(format!("{line}\n").as_bytes())?;
            file.sync_data()
        };
        Ok(written(&mut self.file).map_err(Unwritten::at(&self.path))?)
    }
}
