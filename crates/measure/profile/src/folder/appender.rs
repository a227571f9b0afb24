//! A table that grows by whole lines, and the lock of the process that fills it. Removes a line that was cut short.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use polyrail_sys::files::{self, Opening};

use crate::error::ProfileError;
use crate::table::{ReadRow, read_row, write_row};

/// A table that grows by whole lines.
#[derive(Debug)]
pub(super) struct Appender {
    path: PathBuf,
    file: File,
    /// Size of the file up to the last whole line, in bytes.
    whole_bytes: u64,
    /// Number of these lines, for errors.
    lines: u64,
    line: String,
}

impl Appender {
    /// Opens or creates a table, and locks it: the holder of the lock may fill the folder.
    pub(super) fn open(path: PathBuf, dir: &Path, heading: &str) -> Result<Self, ProfileError> {
        let file = files::open_to_write(&path, Opening::Keep, 0o600);
        let mut file = file.map_err(ProfileError::io("open", &path))?;
        lock_table(&file, &path, dir)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(ProfileError::io("read", &path))?;
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let lines = text[..whole].iter().filter(|byte| **byte == b'\n').count() as u64;
        let (whole_bytes, line) = (whole as u64, String::new());
        let mut appender = Self { path, file, whole_bytes, lines, line };
        appender.cut()?;
        if whole == 0 {
            heading.clone_into(&mut appender.line);
            appender.write()?;
        }
        Ok(appender)
    }

    pub(super) fn append<R: ReadRow>(&mut self, row: &R) -> Result<(), ProfileError> {
        self.line.clear();
        let cells = write_row(row, &mut self.line);
        // A number that no reader accepts, such as NaN, would make the whole folder unreadable.
        read_row::<R>(&cells, &self.path, self.lines + 1)?;
        self.write()
    }

    /// Makes the table durable across a power failure.
    pub(super) fn sync(&self) -> Result<(), ProfileError> {
        self.file.sync_all().map_err(ProfileError::io("write to", &self.path))
    }

    fn write(&mut self) -> Result<(), ProfileError> {
        let written = self.file.write_all(self.line.as_bytes());
        if let Err(source) = written {
            // Remove the partial line, which would spoil the next. If that fails, resuming removes it.
            let _ = self.cut();
            return Err(ProfileError::io("write to", &self.path)(source));
        }
        self.whole_bytes += self.line.len() as u64;
        self.lines += 1;
        Ok(())
    }

    fn cut(&mut self) -> Result<(), ProfileError> {
        let cut = self.file.set_len(self.whole_bytes);
        let cut = cut.and_then(|()| self.file.seek(SeekFrom::Start(self.whole_bytes)));
        cut.map(drop).map_err(ProfileError::io("write to", &self.path))
    }
}

pub(super) fn lock_table(file: &File, path: &Path, dir: &Path) -> Result<(), ProfileError> {
    files::lock(file).map_err(|error| match error.kind() {
        ErrorKind::WouldBlock => ProfileError::Busy { dir: dir.into() },
        _ => ProfileError::io("lock", path)(error),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::folder::tests::{plan, sample};

    #[test]
    fn a_full_disk_keeps_every_whole_line() {
        // A device that is always full replaces the disk.
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let path = PathBuf::from("/dev/full");
        let mut appender =
            Appender { path, file: full, whole_bytes: 0, lines: 0, line: String::new() };
        let error = appender.append(&sample(&plan().steps()[0])).unwrap_err();
        assert!(error.help().unwrap().contains("--resume"), "{error}");
        assert_eq!(appender.whole_bytes, 0);
    }
}
