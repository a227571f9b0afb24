//! Records every change before it is made.
//!
//! A session is a folder below the state folder with one file, `journal.jsonl`. The first line
//! names the machine and the plan. Then comes, before each write, a line with target, old and new
//! value, and after it a line with the result. Each line is on the disk before the next step, so
//! the file tells what to undo, whenever the process dies. Folders are never overwritten: the
//! oldest old value of a boot is the pristine one.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use polyrail_host::Sysroot;
use polyrail_sys::files::{self, Opening};
use serde::{Deserialize, Serialize};

use crate::error::TuneError;
use crate::host_id::HostId;
use crate::plan::Plan;
use crate::target::Target;

/// The folder of all sessions of a machine.
#[derive(Clone, Debug)]
pub struct StateDir {
    path: PathBuf,
    /// The copy of a machine that contains the folder; `None` for the machine itself.
    copy: Option<PathBuf>,
}

/// One line of a journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "step", rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    Begin {
        /// The version of this format.
        journal_version: u32,
        /// As [`Plan::name`].
        name: String,
        /// The machine and its boot.
        host: HostId,
        /// As [`Plan::state_hash`].
        state_hash: String,
        plan: Box<Plan>,
    },
    /// A value that the plan does not change, but that a driver may change as a side effect.
    Saved {
        target: Target,
        old: String,
    },
    /// A value is about to be changed.
    Write {
        /// Counts from 0.
        number: usize,
        target: Target,
        old: String,
        new: String,
    },
    /// The write is done.
    Written {
        number: usize,
    },
    /// The kernel places this vector itself; the value is as before.
    Managed {
        number: usize,
    },
    /// The driver refused an optional value; the value is as before.
    Refused {
        number: usize,
        error: String,
    },
    /// The write failed; the value is as before.
    Failed {
        number: usize,
        error: String,
    },
    Committed,
    /// The user confirmed that the machine can still be reached.
    Confirmed,
    /// A value was restored.
    Restored {
        target: Target,
        /// The restored value.
        value: String,
    },
    /// Everything was undone.
    Reset,
}

/// A session as read from its journal.
#[derive(Clone, Debug)]
pub struct Session {
    /// The session's name, which sorts by time.
    pub id: String,
    /// As [`Plan::name`].
    pub name: String,
    /// The machine and its boot.
    pub host: HostId,
    /// The plan of the session.
    pub plan: Plan,
    /// Everything that a reset may have to restore, with its old value, in order.
    pub old: Vec<(Target, String)>,
    /// The vectors that the kernel places itself, and the optional values that drivers refused.
    pub managed: Vec<Target>,
    /// Every value that the session has set, with its target, in order.
    pub set: Vec<(Target, String)>,
    /// The progress of the session.
    pub status: Status,
    /// Whether the user confirmed the session.
    pub is_confirmed: bool,
    /// Lines that could not be read, with their numbers; a torn last line is not among them.
    pub damaged: Vec<(usize, String)>,
    /// A write whose result is not known yet.
    under_way: Option<(Target, String)>,
    path: PathBuf,
}

/// Progress of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The session has begun; its process is running or was killed.
    Begun,
    /// The session was carried out.
    Committed,
    /// The session was undone.
    Reset,
}

/// The disk that journals are written to. Tests simulate a full one.
pub trait Disk {
    /// Makes a folder for this user alone, with its missing parents.
    ///
    /// # Errors
    /// The system's error.
    fn make_folder(&mut self, path: &Path) -> io::Result<()>;

    /// Makes a file that must not exist yet, and opens it for appending.
    ///
    /// # Errors
    /// The system's error.
    fn create(&mut self, path: &Path) -> io::Result<File>;

    /// Appends to a file and returns when it is on the disk.
    ///
    /// # Errors
    /// The system's error.
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

    /// Uses a folder, which need not exist yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), copy: None }
    }

    /// Returns the default folder of a machine. In a copy, no part of the path to a journal may be
    /// a link.
    pub fn of(root: &Sysroot) -> Self {
        let copy = (!root.is_live()).then(|| root.root().to_owned());
        Self { path: root.path(Self::DEFAULT), copy }
    }

    /// Checks, if this process has privileges, that only root and this user can make or change a journal here: the
    /// journal decides what this process writes.
    ///
    /// # Errors
    /// [`TuneError::Untrusted`] with the part that others may change; [`TuneError::Journal`] if the folder can't be
    /// examined.
    pub fn check(&self) -> Result<(), TuneError> {
        let no_links = |copy: &PathBuf| files::refuse_links(copy, Path::new(Self::DEFAULT));
        let checked = self.copy.as_ref().map_or(Ok(()), no_links);
        checked.and_then(|()| files::require_trusted(&self.path)).map_err(failed(&self.path))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns all sessions, the oldest first.
    ///
    /// # Errors
    /// [`TuneError::Journal`] if the folder exists but can't be read; [`TuneError::Untrusted`] if others may have made
    /// a journal in it; [`TuneError::BadJournal`] if a session does not even name its machine.
    pub fn sessions(&self) -> Result<Vec<Session>, TuneError> {
        let failed = failed(&self.path);
        match self.path.symlink_metadata() {
            // `--sysroot` may name an archive, which is not a folder.
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                return Ok(Vec::new());
            }
            _ => self.check()?,
        }
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(failed(error)),
        };
        // This program makes no links here.
        let is_plain = |path: &Path| path.symlink_metadata().is_ok_and(|found| !found.is_symlink());
        let mut ids = Vec::new();
        for entry in entries {
            let name = entry.map_err(&failed)?.file_name();
            let Some(name) = name.to_str() else { continue };
            let folder = self.path.join(name);
            if is_plain(&folder) && is_plain(&folder.join(FILE)) {
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
        // Don't begin a journal that could not be undone later.
        self.check()?;
        disk.make_folder(&folder).map_err(failed(&folder))?;
        let path = folder.join(FILE);
        let file = disk.create(&path).map_err(failed(&path))?;
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
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed(folder))?;
        }
        Ok(journal)
    }
}

impl Session {
    /// Opens the journal to append to it.
    pub(crate) fn reopen<'a>(&self, disk: &'a mut dyn Disk) -> Result<Journal<'a>, TuneError> {
        let failed = failed(&self.path);
        let file = files::open_trusted(&self.path, true).map_err(&failed)?;
        let text = content(&file).map_err(failed)?;
        let mut journal = Journal { disk, file, path: self.path.clone(), id: self.id.clone() };
        // The torn line of a killed process must not run into the next line. An empty line after it
        // distinguishes it from a damaged one.
        if text.last().is_some_and(|last| *last != b'\n') {
            journal.raw(b"\n\n")?;
        }
        Ok(journal)
    }

    /// Records that the machine can still be reached, which keeps the session from being reset.
    ///
    /// # Errors
    /// [`TuneError::Journal`] if it can't be written.
    pub fn confirm(&self, disk: &mut dyn Disk) -> Result<(), TuneError> {
        self.reopen(disk)?.add(&Entry::Confirmed)
    }

    /// Reads a session; `None` for a journal without a complete first line.
    fn read(path: &Path, id: String) -> Result<Option<Self>, TuneError> {
        let file = files::open_trusted(path, false);
        let bytes = file.and_then(|file| content(&file)).map_err(failed(path))?;
        let text = String::from_utf8_lossy(&bytes);
        match parse(&text) {
            Ok(None) => Ok(None),
            Ok(Some(parsed)) => Ok(Some(Self { id, path: path.to_owned(), ..parsed })),
            Err((line, fault)) => Err(TuneError::BadJournal { path: path.to_owned(), line, fault }),
        }
    }

    /// Parses the text of a journal; `None` if its first line is incomplete, which means that
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
            Entry::Begin { .. } => {}
            Entry::Saved { target, old } => self.old.push((target, old)),
            Entry::Write { target, old, new, .. } => {
                self.under_way = Some((target.clone(), new));
                self.old.push((target, old));
            }
            Entry::Written { .. } => self.set.extend(self.under_way.take()),
            Entry::Restored { target, value } => self.set.push((target, value)),
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

/// Parses a journal's text. A last line without its end was torn by a kill and is ignored, also if an empty line and
/// further lines follow it; other unreadable lines are listed.
///
/// # Errors
///
/// If the first line does not name the machine: the number of the line and the problem in it.
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
        set: Vec::new(),
        status: Status::Begun,
        is_confirmed: false,
        damaged: Vec::new(),
        under_way: None,
        path: PathBuf::new(),
    };
    while let Some((number, line)) = lines.next() {
        let was_torn = lines.peek().is_some_and(|(_, next)| next.is_empty());
        match serde_json::from_str(line) {
            Ok(entry) => match wrong_target(&entry) {
                Some(fault) => session.damaged.push((number, fault)),
                None => session.take(entry),
            },
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
        files::make_folders(path, 0o700)
    }

    fn create(&mut self, path: &Path) -> io::Result<File> {
        files::open_to_write(path, Opening::New, 0o600)
    }

    fn append(&mut self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)?;
        file.sync_data()
    }
}

/// Returns a fault for an entry that would make a reset write a target that no plan may write.
fn wrong_target(entry: &Entry) -> Option<String> {
    match entry {
        Entry::Saved { target, .. }
        | Entry::Write { target, .. }
        | Entry::Restored { target, .. } => {
            target.check().err().map(|fault| format!("the journal changes {fault}"))
        }
        _ => None,
    }
}

/// Reads the bytes of a journal. This program writes none of more than 64 MiB.
fn content(file: &File) -> io::Result<Vec<u8>> {
    const MOST: u64 = 64 << 20;
    let mut bytes = Vec::new();
    if file.take(MOST + 1).read_to_end(&mut bytes)? as u64 > MOST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than 64 MiB"));
    }
    Ok(bytes)
}

/// Converts an error of a file or folder of journals.
fn failed(path: &Path) -> impl Fn(io::Error) -> TuneError {
    let path = path.to_owned();
    move |source| match source.kind() {
        io::ErrorKind::InvalidData => TuneError::Untrusted { path: path.clone(), source },
        _ => TuneError::Journal { path: path.clone(), source },
    }
}

/// Describes the problem in a line. The description may quote the line, so it is made safe to
/// print.
fn words(error: &serde_json::Error) -> String {
    polyrail_yaml::shortened(&error.to_string(), 200)
}

/// Makes an id such as `20261120-223848-123456-4711`: time in UTC, microseconds, process.
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

/// Converts a day counted from 1 January 1970 to a date.
fn civil(days: u64) -> (u64, u64, u64) {
    // Years begin on 1 March here, which makes the leap day the last day of the year.
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
