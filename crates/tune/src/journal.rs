//! Records every change before it is made.
//!
//! A session is a folder below the state folder with one file, `journal.jsonl`. Its first line says
//! which machine and plan; then comes, before each write, a line with target, old and new value,
//! and after it a line with the result. Each line is on the disk before anything else is done, so
//! the file tells what to undo, whenever the process dies. Folders are never overwritten: the
//! oldest old value of a boot is the pristine one.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::TuneError;
use crate::host_id::HostId;
use crate::plan::Plan;
use crate::target::Target;

/// The folder of all sessions of a machine.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
}

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    /// The first line.
    Begin {
        /// The version of this form.
        journal_version: u32,
        /// As [`Plan::name`].
        name: String,
        /// The machine and its boot.
        host: HostId,
        /// As [`Plan::state_hash`].
        state_hash: String,
        /// The whole plan.
        plan: Box<Plan>,
    },
    /// A value that the plan does not change, but that a driver may change as a side effect.
    Saved {
        /// What.
        target: Target,
        /// Its value.
        old: String,
    },
    /// A value is about to be changed.
    Write {
        /// Counts from 0.
        number: usize,
        /// What.
        target: Target,
        /// From this.
        old: String,
        /// To this.
        new: String,
    },
    /// The write is done.
    Written {
        /// As in [`Self::Write`].
        number: usize,
    },
    /// The kernel places this vector itself; the value is as before.
    Managed {
        /// As in [`Self::Write`].
        number: usize,
    },
    /// The driver refused a wish; the value is as before.
    Refused {
        /// As in [`Self::Write`].
        number: usize,
        /// The driver's answer.
        error: String,
    },
    /// The write failed; the value is as before.
    Failed {
        /// As in [`Self::Write`].
        number: usize,
        /// The system's answer.
        error: String,
    },
    /// Everything is done.
    Committed,
    /// The user confirmed that the machine can still be reached.
    Confirmed,
    /// A value is back.
    Restored {
        /// What.
        target: Target,
        /// The value that it has again.
        value: String,
    },
    /// Everything is taken back.
    Reset,
}

/// A session as its journal tells it.
#[derive(Clone, Debug)]
pub struct Session {
    /// Its name, which sorts by time.
    pub id: String,
    /// As [`Plan::name`].
    pub name: String,
    /// The machine and its boot.
    pub host: HostId,
    /// What was to be.
    pub plan: Plan,
    /// Everything that a reset may have to restore, with its old value, in order.
    pub old: Vec<(Target, String)>,
    /// The vectors that the kernel places itself, and the wishes that drivers refused.
    pub managed: Vec<Target>,
    /// How far it came.
    pub status: Status,
    /// Whether someone confirmed it.
    pub is_confirmed: bool,
    /// Lines that could not be read, with their numbers; a torn last line is not among them.
    pub damaged: Vec<(usize, String)>,
    path: PathBuf,
}

/// How far a session came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// It has begun; its process is at work or was killed.
    Begun,
    /// It was carried out.
    Committed,
    /// It was taken back.
    Reset,
}

/// Where journals are written. Tests fill it up.
pub trait Disk {
    /// Makes a folder for this user alone, with those above it.
    ///
    /// # Errors
    /// As the system says.
    fn make_folder(&mut self, path: &Path) -> io::Result<()>;

    /// Makes a file that must not be there yet, and opens it for appending.
    ///
    /// # Errors
    /// As the system says.
    fn create(&mut self, path: &Path) -> io::Result<File>;

    /// Appends to a file and returns when it is on the disk.
    ///
    /// # Errors
    /// As the system says.
    fn append(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()>;
}

/// The machine's own disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

/// A journal being written.
pub(crate) struct Journal<'a> {
    disk: &'a mut dyn Disk,
    file: File,
    path: PathBuf,
    pub(crate) id: String,
}

const FILE: &str = "journal.jsonl";
const VERSION: u32 = 1;

impl StateDir {
    /// The default folder of sessions.
    pub const DEFAULT: &str = "/var/lib/polyrail/host";

    /// A folder, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All sessions, the oldest first.
    ///
    /// # Errors
    /// [`TuneError::Journal`] if the folder exists but can't be read; [`TuneError::BadJournal`] if
    /// a session does not even name its machine.
    pub fn sessions(&self) -> Result<Vec<Session>, TuneError> {
        let failed = |source| TuneError::Journal { path: self.path.clone(), source };
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry.map_err(failed)?.file_name();
            let Some(name) = name.to_str() else { continue };
            if self.path.join(name).join(FILE).is_file() {
                ids.push(name.to_owned());
            }
        }
        ids.sort_unstable();
        let sessions = ids.into_iter().map(|id| Session::read(&self.path.join(&id).join(FILE), id));
        // A session killed before its first line was on the disk has changed nothing.
        sessions.filter_map(Result::transpose).collect()
    }

    /// Begins a session. Change nothing before this returns.
    pub(crate) fn begin<'a>(
        &self,
        disk: &'a mut dyn Disk,
        host: HostId,
        plan: &Plan,
        saved: &[(Target, String)],
    ) -> Result<Journal<'a>, TuneError> {
        let id = new_id();
        let folder = self.path.join(&id);
        let at = |path: &Path| {
            let path = path.to_owned();
            move |source| TuneError::Journal { path, source }
        };
        disk.make_folder(&folder).map_err(at(&folder))?;
        let path = folder.join(FILE);
        let file = disk.create(&path).map_err(at(&path))?;
        let mut journal = Journal { disk, file, path, id };
        journal.add(&Entry::Begin {
            journal_version: VERSION,
            name: plan.name.clone(),
            // Record this machine, not the plan's: with force they may differ.
            host,
            state_hash: plan.state_hash.clone(),
            plan: Box::new(plan.clone()),
        })?;
        for (target, old) in saved {
            journal.add(&Entry::Saved { target: target.clone(), old: old.clone() })?;
        }
        // The names of folder and file must be on the disk, too.
        for folder in [&folder, &self.path] {
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(at(folder))?;
        }
        Ok(journal)
    }
}

impl Session {
    /// Opens the journal to append to it.
    pub(crate) fn reopen<'a>(&self, disk: &'a mut dyn Disk) -> Result<Journal<'a>, TuneError> {
        let failed = |source| TuneError::Journal { path: self.path.clone(), source };
        let file = OpenOptions::new().append(true).open(&self.path).map_err(failed)?;
        let mut journal = Journal { disk, file, path: self.path.clone(), id: self.id.clone() };
        // The torn line of a killed process must not run into the next line. An empty line after it
        // tells it from a damaged one.
        let text = fs::read(&self.path).map_err(failed)?;
        if text.last().is_some_and(|last| *last != b'\n') {
            journal.raw(b"\n\n")?;
        }
        Ok(journal)
    }

    /// Notes that the machine can still be reached, which keeps the session from being reset.
    ///
    /// # Errors
    /// [`TuneError::Journal`] if it can't be written.
    pub fn confirm(&self, disk: &mut dyn Disk) -> Result<(), TuneError> {
        self.reopen(disk)?.add(&Entry::Confirmed)
    }

    /// `None` for a journal without a whole first line.
    fn read(path: &Path, id: String) -> Result<Option<Self>, TuneError> {
        let failed = |source| TuneError::Journal { path: path.to_owned(), source };
        let bytes = fs::read(path).map_err(failed)?;
        let text = String::from_utf8_lossy(&bytes);
        match parse(&text) {
            Ok(None) => Ok(None),
            Ok(Some(parsed)) => Ok(Some(Self { id, path: path.to_owned(), ..parsed })),
            Err((line, fault)) => Err(TuneError::BadJournal { path: path.to_owned(), line, fault }),
        }
    }

    /// Reads the text of a journal; `None` if its first line is incomplete, which means that
    /// nothing was changed.
    ///
    /// # Errors
    /// [`TuneError::BadJournal`] if the first line does not name the machine.
    pub fn parse(text: &str) -> Result<Option<Self>, TuneError> {
        let path = PathBuf::from(FILE);
        parse(text).map_err(|(line, fault)| TuneError::BadJournal { path, line, fault })
    }

    /// Whether the session has this name or one that begins with it: `tune` matches `tune latency`.
    /// An empty name matches every session.
    pub fn is_of(&self, name: &str) -> bool {
        let rest = self.name.strip_prefix(name);
        rest.is_some_and(|rest| name.is_empty() || rest.is_empty() || rest.starts_with(' '))
    }

    /// Whether a reset may have to restore values.
    pub fn is_open(&self) -> bool {
        self.status != Status::Reset
    }

    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Begin { .. } | Entry::Written { .. } | Entry::Restored { .. } => {}
            Entry::Saved { target, old } | Entry::Write { target, old, .. } => {
                self.old.push((target, old));
            }
            Entry::Managed { .. } | Entry::Refused { .. } | Entry::Failed { .. } => {
                // This refers to the last write, which changed nothing.
                if let Some((target, _)) = self.old.pop()
                    && !matches!(entry, Entry::Failed { .. })
                {
                    self.managed.push(target);
                }
            }
            Entry::Committed => self.status = Status::Committed,
            Entry::Confirmed => self.is_confirmed = true,
            Entry::Reset => self.status = Status::Reset,
        }
    }
}

/// Reads a journal's text. A last line without its end was torn by a kill and says nothing, also
/// when the journal went on behind it after an empty line; other lines that can't be read are listed.
///
/// # Errors
/// If the first line does not name the machine: the number of the line and what is wrong with it.
pub(crate) fn parse(text: &str) -> Result<Option<Session>, (usize, String)> {
    let Some((whole, _torn)) = text.rsplit_once('\n') else { return Ok(None) };
    let mut lines = whole.split('\n').enumerate().map(|(at, line)| (at + 1, line)).peekable();
    let (_, first) = lines.next().unwrap_or((1, ""));
    let first: Entry = serde_json::from_str(first).map_err(|error| (1, words(&error)))?;
    let Entry::Begin { journal_version, name, host, plan, .. } = first else {
        return Err((1, "a journal begins with the step `begin`".to_owned()));
    };
    if journal_version != VERSION {
        return Err((1, format!("journal_version is {journal_version}; allowed: {VERSION}")));
    }
    let mut session = Session {
        id: String::new(),
        name,
        host,
        plan: *plan,
        old: Vec::new(),
        managed: Vec::new(),
        status: Status::Begun,
        is_confirmed: false,
        damaged: Vec::new(),
        path: PathBuf::new(),
    };
    while let Some((number, line)) = lines.next() {
        let was_torn = lines.peek().is_some_and(|(_, next)| next.is_empty());
        match serde_json::from_str(line) {
            Ok(entry) => session.take(entry),
            Err(_) if line.is_empty() || was_torn => {}
            Err(error) => session.damaged.push((number, words(&error))),
        }
    }
    Ok(Some(session))
}

impl Journal<'_> {
    /// Writes one line and waits until it is on the disk.
    pub(crate) fn add(&mut self, entry: &Entry) -> Result<(), TuneError> {
        // JSON can express every value here: text and numbers.
        let mut line = serde_json::to_string(entry).unwrap_or_default();
        line.push('\n');
        self.raw(line.as_bytes())
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<(), TuneError> {
        let result = self.disk.append(&mut self.file, bytes);
        result.map_err(|source| TuneError::Journal { path: self.path.clone(), source })
    }
}

impl Disk for RealDisk {
    fn make_folder(&mut self, path: &Path) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)
    }

    fn create(&mut self, path: &Path) -> io::Result<File> {
        OpenOptions::new().create_new(true).append(true).mode(0o600).open(path)
    }

    fn append(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)?;
        file.sync_data()
    }
}

/// What is wrong with a line. The words may quote it, so they are made safe to print.
fn words(error: &serde_json::Error) -> String {
    polyrail_yaml::shortened(&error.to_string(), 200)
}

/// Such as `20261120-223848-123456-4711`: time in UTC, microseconds, process.
fn new_id() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (now.as_secs() / 86_400, now.as_secs() % 86_400);
    let (year, month, day) = civil(days);
    format!(
        "{year:04}{month:02}{day:02}-{:02}{:02}{:02}-{:06}-{}",
        second / 3600,
        second / 60 % 60,
        second % 60,
        now.subsec_micros(),
        std::process::id()
    )
}

/// The date of a day counted from 1 January 1970.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years begin on 1 March here, so that the day that leap years add is the last.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_become_dates() {
        assert_eq!(civil(0), (1970, 1, 1));
        assert_eq!(civil(11_016), (2000, 2, 29));
        assert_eq!(civil(20_777), (2026, 11, 20));
    }

    #[test]
    fn a_journal_that_was_torn_in_its_first_line_has_changed_nothing() {
        assert!(parse("").unwrap().is_none());
        assert!(parse("{\"step\":\"beg").unwrap().is_none());
        assert_eq!(parse("{\"step\":\"committed\"}\n").unwrap_err().0, 1);
        assert_eq!(parse("nonsense\n").unwrap_err().0, 1);
    }
}
