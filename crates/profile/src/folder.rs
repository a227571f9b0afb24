//! A profile folder: read it with [`Folder`], fill it with [`Recorder`].

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};

use crate::clock::{Alignment, Anchor};
use crate::error::ProfileError;
use crate::plan::{Plan, Step};
use crate::run::{Metadata, RUN_VERSION, Run};
use crate::sample::Sample;
use crate::table::{ReadRow, Row, heading_line, read_row, read_rows, utf8, write_row};
use crate::thermal::Temperature;
use crate::yaml;

/// A folder that can be read, also while it is being filled.
#[derive(Clone, Debug)]
pub struct Folder {
    dir: PathBuf,
    plan: Plan,
    run: Run,
}

/// A file without which a folder can still be read; shown as its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// What devices said of themselves.
    Temperatures,
    /// Comparisons of clocks.
    Anchors,
    /// What is known of an endpoint.
    Metadata {
        /// Which.
        rank: u32,
    },
}

/// The lock on a profile that nobody fills yet: see [`Folder::claim`].
#[derive(Debug)]
pub struct Claim {
    /// Closing it ends the lock.
    _file: File,
}

/// A folder that is being filled, by one process at a time. All methods but
/// [`refine`](Self::refine) take `&self` and may be called from several threads at once.
#[derive(Debug)]
pub struct Recorder {
    folder: Folder,
    session: u32,
    done: Mutex<HashSet<(u32, u32)>>,
    samples: Mutex<Appender>,
    temperatures: Mutex<Appender>,
    anchors: Mutex<Appender>,
}

/// A table that grows by whole lines.
#[derive(Debug)]
struct Appender {
    path: PathBuf,
    file: File,
    /// How long the file is, up to the last line that was written whole.
    whole_bytes: u64,
    /// How many lines that are, for errors.
    lines: u64,
    line: String,
}

impl Folder {
    /// Begins a profile in a folder that does not exist or is empty: writes `run.yml` and
    /// `plan.json` before anything is measured.
    ///
    /// # Errors
    /// A folder that holds something, or that can't be written.
    pub fn create(dir: impl AsRef<Path>, plan: &Plan, run: &Run) -> Result<Recorder, ProfileError> {
        let dir = dir.as_ref();
        plan.check()?;
        fs::create_dir_all(dir).map_err(ProfileError::io("create", dir))?;
        refuse_full(dir)?;
        let folder = Self { dir: dir.into(), plan: plan.clone(), run: run.clone() };
        let samples = folder.appender::<Sample>(SAMPLES)?;
        folder.write_run(run)?;
        folder.write_plan()?;
        folder.recorder(samples, 0, HashSet::new())
    }

    /// Checks that a profile can begin here, before minutes go into preparation. Leaves nothing
    /// behind but parent folders.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn try_out(dir: impl AsRef<Path>) -> Result<(), ProfileError> {
        let dir = dir.as_ref();
        let is_new = !dir.exists();
        fs::create_dir_all(dir).map_err(ProfileError::io("create", dir))?;
        refuse_full(dir)?;
        let file = dir.join(SAMPLES);
        let tried = fs::write(&file, "").and_then(|()| fs::remove_file(&file));
        if is_new {
            // A folder that is no longer empty belongs to somebody else.
            let _ = fs::remove_dir(dir);
        }
        tried.map_err(ProfileError::io("write", &file))
    }

    /// Keeps other processes from filling a profile until the claim is dropped. Changes nothing.
    ///
    /// Drop the claim right before [`Self::resume`], which takes the same lock for itself.
    ///
    /// # Errors
    /// A folder that is no profile, that another process fills, or that can't be opened for writing.
    pub fn claim(dir: impl AsRef<Path>) -> Result<Claim, ProfileError> {
        let folder = Self::open(dir)?;
        let path = folder.dir.join(SAMPLES);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = file.map_err(ProfileError::io("open", &path))?;
        lock_table(&file, &path, &folder.dir)?;
        Ok(Claim { _file: file })
    }

    /// Goes on with a profile that ended early. Removes a line that was cut short.
    ///
    /// # Errors
    /// A folder that is no profile, that another process fills, or that can't be read.
    pub fn resume(dir: impl AsRef<Path>) -> Result<Recorder, ProfileError> {
        let folder = Self::open(dir)?;
        let appender = folder.appender::<Sample>(SAMPLES)?;
        let samples = folder.samples()?;
        let session = samples.iter().map(|sample| sample.session + 1).max().unwrap_or(0);
        let done = samples.iter().map(|sample| (sample.configuration, sample.repetition));
        folder.recorder(appender, session, done.collect())
    }

    /// Opens a profile for reading.
    ///
    /// # Errors
    /// A folder that is no profile, or whose plan or `run.yml` can't be used.
    pub fn open(dir: impl AsRef<Path>) -> Result<Self, ProfileError> {
        let dir = dir.as_ref();
        for missing in [PLAN, RUN, SAMPLES] {
            match fs::metadata(dir.join(missing)) {
                Ok(found) if found.is_file() => {}
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(ProfileError::io("read", dir.join(missing))(error));
                }
                _ => return Err(ProfileError::Foreign { dir: dir.into(), missing }),
            }
        }
        let plan = read_plan(&dir.join(PLAN))?;
        let path = dir.join(RUN);
        let run: Run = yaml::read(&read_text(&path)?, &path)?;
        if run.schema_version != RUN_VERSION {
            let fault = format!("{}; allowed: {RUN_VERSION}", run.schema_version);
            return Err(field(&path, "schema_version", fault));
        }
        run.check().map_err(|error| in_file(&path, error))?;
        Ok(Self { dir: dir.into(), plan, run })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What was to be measured.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// How it was measured.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// All samples in the order in which they were taken. One-way times between ends that have a clock
    /// each follow from their stamps and all anchors that are there now.
    ///
    /// # Errors
    /// A table that can't be read, or a sample that the plan does not know or that is there twice.
    pub fn samples(&self) -> Result<Vec<Sample>, ProfileError> {
        let path = self.dir.join(SAMPLES);
        let mut samples: Vec<Sample> = read_rows(&path)?;
        let mut seen = HashSet::with_capacity(samples.len());
        for (place, sample) in samples.iter().enumerate() {
            let fault = match self.check(sample) {
                Err((value, allowed)) => format!("{value}; allowed: {allowed}"),
                Ok(()) if seen.insert((sample.configuration, sample.repetition)) => continue,
                Ok(()) => format!(
                    "configuration {}, repetition {} is there twice",
                    sample.configuration, sample.repetition
                ),
            };
            // This program writes no line twice and none over several lines.
            return Err(ProfileError::Line {
                file: path.display().to_string(),
                line: place as u64 + 2,
                fault,
            });
        }
        let has_two_clocks = |one: &Sample| one.t_oneway_ns.is_none() && one.sink.clock.is_some();
        if samples.iter().any(has_two_clocks) {
            let alignment = self.alignment()?;
            samples.iter_mut().for_each(|one| one.align(&alignment));
        }
        Ok(samples)
    }

    /// The files that `polyrail profile` always writes and this folder lacks. Everything but their
    /// content can still be read.
    ///
    /// # Errors
    /// If the system refuses, or something other than a file has that name.
    pub fn missing(&self) -> Result<Vec<Part>, ProfileError> {
        let metadata = self.plan.endpoints.iter().map(|one| Part::Metadata { rank: one.rank });
        let mut missing = Vec::new();
        for part in [Part::Temperatures, Part::Anchors].into_iter().chain(metadata) {
            if !is_there(&self.dir.join(part.to_string()))? {
                missing.push(part);
            }
        }
        Ok(missing)
    }

    /// The log of the devices; empty where there is none.
    ///
    /// # Errors
    /// A table that can't be read, or a look at an endpoint that the plan does not have.
    pub fn temperatures(&self) -> Result<Vec<Temperature>, ProfileError> {
        let looks: Vec<Temperature> = self.rows_if_there(TEMPERATURES)?;
        let ranks = self.plan.endpoints.len();
        match looks.iter().position(|look| look.rank as usize >= ranks) {
            Some(place) => Err(ProfileError::Cell {
                file: self.dir.join(TEMPERATURES).display().to_string(),
                // As for samples: no line is over several, and none is twice.
                line: place as u64 + 2,
                column: "rank".into(),
                value: looks[place].rank.to_string(),
                allowed: format!("0 to {}", ranks - 1),
            }),
            None => Ok(looks),
        }
    }

    /// Raw comparisons of clocks; empty where there is but one clock, and where the file is
    /// [missing](Self::missing).
    ///
    /// # Errors
    /// A table that can't be read.
    pub fn anchors(&self) -> Result<Vec<Anchor>, ProfileError> {
        self.rows_if_there(ANCHORS)
    }

    /// Every clock against the reference, computed anew from the anchors.
    ///
    /// # Errors
    /// As [`Alignment::fit`], with the file named, and anchors that can't be read.
    pub fn alignment(&self) -> Result<Alignment, ProfileError> {
        let aligned = Alignment::fit(&self.run.clocks, &self.anchors()?);
        aligned.map_err(|error| in_file(&self.dir.join(ANCHORS), error))
    }

    /// What is known of an endpoint; `None` where its file is missing.
    ///
    /// # Errors
    /// A file that can't be used.
    pub fn metadata(&self, rank: u32) -> Result<Option<Metadata>, ProfileError> {
        let path = self.dir.join(metadata_name(rank));
        if !is_there(&path)? {
            return Ok(None);
        }
        let metadata: Metadata = yaml::read(&read_text(&path)?, &path)?;
        if metadata.rank == rank {
            return Ok(Some(metadata));
        }
        Err(field(&path, "rank", format!("{}; allowed: {rank}, as in the name", metadata.rank)))
    }

    /// Checks that the plan has a sample; otherwise names the sample and what the plan has.
    fn check(&self, sample: &Sample) -> Result<(), (String, String)> {
        let Sample { configuration, repetition, .. } = *sample;
        let last = self.plan.configurations.len() - 1;
        if configuration as usize > last {
            return Err((format!("configuration {configuration}"), format!("0 to {last}")));
        }
        let is_sentinel = self.plan.sentinel.is_some_and(|one| one.configuration == configuration);
        if self.plan.is_sentinel(repetition) && !is_sentinel {
            let value = format!("repetition {repetition} of configuration {configuration}");
            return Err((value, format!("0 to {}", self.plan.repetitions - 1)));
        }
        Ok(())
    }

    fn rows_if_there<R: ReadRow>(&self, name: &str) -> Result<Vec<R>, ProfileError> {
        let path = self.dir.join(name);
        if is_there(&path)? { read_rows(&path) } else { Ok(Vec::new()) }
    }

    fn recorder(
        self,
        samples: Appender,
        session: u32,
        done: HashSet<(u32, u32)>,
    ) -> Result<Recorder, ProfileError> {
        let temperatures = self.appender::<Temperature>(TEMPERATURES)?;
        let anchors = self.appender::<Anchor>(ANCHORS)?;
        Ok(Recorder {
            folder: self,
            session,
            done: Mutex::new(done),
            samples: Mutex::new(samples),
            temperatures: Mutex::new(temperatures),
            anchors: Mutex::new(anchors),
        })
    }

    fn appender<R: Row>(&self, name: &str) -> Result<Appender, ProfileError> {
        Appender::open(self.dir.join(name), &self.dir, &heading_line::<R>())
    }

    fn write_run(&self, run: &Run) -> Result<(), ProfileError> {
        self.write_yaml(RUN, run)
    }

    fn write_plan(&self) -> Result<(), ProfileError> {
        let mut text = json_text(&self.dir.join(PLAN), &self.plan)?;
        text.push('\n');
        replace(&self.dir.join(PLAN), text.as_bytes())
    }

    fn write_yaml(&self, name: &str, value: &impl serde::Serialize) -> Result<(), ProfileError> {
        let path = self.dir.join(name);
        let text = yaml::write(value).map_err(|error| field(&path, ".", error.to_string()))?;
        replace(&path, text.as_bytes())
    }
}

impl Recorder {
    /// The folder, for reading.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// What [`Sample::session`] must be: how often the profile was taken up again.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// The steps that are not there yet, in the order of the plan.
    pub fn remaining(&self) -> Vec<Step> {
        self.folder.plan.remaining(&lock(&self.done))
    }

    /// Adds a sample. It is in the file, though not yet safe from a loss of power, when this
    /// returns.
    ///
    /// # Errors
    /// A sample that the plan does not know or that is there already, a number that could not be
    /// read back, and a full disk; then the file ends with the last whole line, and later calls may
    /// succeed.
    pub fn append(&self, sample: &Sample) -> Result<(), ProfileError> {
        let refused = |(value, allowed)| ProfileError::Value { field: "sample", value, allowed };
        self.folder.check(sample).map_err(refused)?;
        let mut done = lock(&self.done);
        let key = (sample.configuration, sample.repetition);
        if done.contains(&key) {
            let value = format!("repetition {} of configuration {}", key.1, key.0);
            return Err(refused((value, "each once".into())));
        }
        lock(&self.samples).append(sample)?;
        done.insert(key);
        Ok(())
    }

    /// Adds a look at a device.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_temperature(&self, temperature: &Temperature) -> Result<(), ProfileError> {
        lock(&self.temperatures).append(temperature)
    }

    /// Adds a comparison of clocks.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn append_anchor(&self, anchor: &Anchor) -> Result<(), ProfileError> {
        lock(&self.anchors).append(anchor)
    }

    /// Writes the metadata of an endpoint over what was written before.
    ///
    /// # Errors
    /// A rank that the plan does not have, and what the system refuses.
    pub fn write_metadata(&self, metadata: &Metadata) -> Result<(), ProfileError> {
        let ranks = self.folder.plan.endpoints.len();
        if metadata.rank as usize >= ranks {
            let allowed = format!("0 to {}", ranks - 1);
            let value = metadata.rank.to_string();
            return Err(ProfileError::Value { field: "metadata.rank", value, allowed });
        }
        self.folder.write_yaml(&metadata_name(metadata.rank), metadata)
    }

    /// Writes `run.yml` in place of what was written before; readers see either the old or the new.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn write_run(&mut self, run: &Run) -> Result<(), ProfileError> {
        self.folder.write_run(run)?;
        self.folder.run = run.clone();
        Ok(())
    }

    /// Adds sizes to the plan and writes it, and returns how many were new.
    ///
    /// # Errors
    /// As [`Plan::refine`], and what the system refuses.
    pub fn refine(
        &mut self,
        extra: impl IntoIterator<Item = (u32, u32, crate::PathKind, u64)>,
    ) -> Result<usize, ProfileError> {
        let before = self.folder.plan.clone();
        let added = self.folder.plan.refine(extra)?;
        if let Err(error) = self.folder.write_plan() {
            self.folder.plan = before;
            return Err(error);
        }
        Ok(added)
    }

    /// Writes everything that follows from the rest: the execution log and the traces, see
    /// [`Folder::write_derived`]; call it at the end of a run, also of one that was cut short.
    ///
    /// # Errors
    /// As [`Folder::write_derived`].
    pub fn finish(&mut self, run: &Run) -> Result<(), ProfileError> {
        self.write_run(run)?;
        for table in [&self.samples, &self.temperatures, &self.anchors] {
            let table = lock(table);
            table.file.sync_all().map_err(ProfileError::io("write", &table.path))?;
        }
        self.folder.write_derived()
    }
}

impl Appender {
    /// Opens or begins a table. Whoever holds the lock on it is the one who fills the folder.
    fn open(path: PathBuf, dir: &Path, heading: &str) -> Result<Self, ProfileError> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
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

    fn append<R: ReadRow>(&mut self, row: &R) -> Result<(), ProfileError> {
        self.line.clear();
        let cells = write_row(row, &mut self.line);
        // A number that no reader accepts, such as NaN, would make the whole folder unreadable.
        read_row::<R>(&cells, &self.path, self.lines + 1)?;
        self.write()
    }

    fn write(&mut self) -> Result<(), ProfileError> {
        let written = self.file.write_all(self.line.as_bytes());
        if let Err(source) = written {
            // The half of a line would spoil the next; what can't be cut now is cut at resume.
            let _ = self.cut();
            return Err(ProfileError::io("write", &self.path)(source));
        }
        self.whole_bytes += self.line.len() as u64;
        self.lines += 1;
        Ok(())
    }

    fn cut(&mut self) -> Result<(), ProfileError> {
        let cut = self.file.set_len(self.whole_bytes);
        let cut = cut.and_then(|()| self.file.seek(SeekFrom::Start(self.whole_bytes)));
        cut.map(drop).map_err(ProfileError::io("write", &self.path))
    }
}

/// Puts a file in its place as a whole, or leaves the old one.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<(), ProfileError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    let written = fs::write(&new, bytes).and_then(|()| fs::rename(&new, path));
    written.map_err(|source| {
        // A leftover temporary file only takes space.
        let _ = fs::remove_file(&new);
        ProfileError::io("write", path)(source)
    })
}

fn lock_table(file: &File, path: &Path, dir: &Path) -> Result<(), ProfileError> {
    file.try_lock().map_err(|error| match error {
        fs::TryLockError::WouldBlock => ProfileError::Busy { dir: dir.into() },
        fs::TryLockError::Error(source) => ProfileError::io("lock", path)(source),
    })
}

fn read_plan(path: &Path) -> Result<Plan, ProfileError> {
    let text = read_text(path)?;
    let mut json = serde_json::Deserializer::from_str(&text);
    let plan: Plan = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let line = error.inner().line() as u64;
        let file = path.display().to_string();
        let fault = error.inner().to_string();
        ProfileError::Field { file, line, field: error.path().to_string(), fault }
    })?;
    json.end().map_err(|error| field(path, ".", error.to_string()))?;
    plan.check().map_err(|error| in_file(path, error))?;
    Ok(plan)
}

/// Adds the file name to a fault.
fn in_file(path: &Path, error: ProfileError) -> ProfileError {
    match error {
        ProfileError::Value { field: name, value, allowed } => {
            field(path, name, format!("{value}; allowed: {allowed}"))
        }
        ProfileError::Clock { clock, fault } => {
            let (file, fault) = (path.display().to_string(), format!("clock {clock}: {fault}"));
            ProfileError::Line { file, line: 0, fault }
        }
        other => other,
    }
}

fn read_text(path: &Path) -> Result<String, ProfileError> {
    let bytes = fs::read(path).map_err(ProfileError::io("read", path))?;
    utf8(&bytes, path).map(str::to_owned)
}

fn refuse_full(dir: &Path) -> Result<(), ProfileError> {
    match fs::read_dir(dir).map_err(ProfileError::io("read", dir))?.next() {
        Some(_) => Err(ProfileError::NotEmpty { dir: dir.into() }),
        None => Ok(()),
    }
}

/// Whether a regular file exists. Anything else might be read for ever, or not at all.
fn is_there(path: &Path) -> Result<bool, ProfileError> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(true),
        Ok(_) => {
            let file = path.display().to_string();
            let fault = "is not a file; allowed: a file, or nothing".to_owned();
            Err(ProfileError::Line { file, line: 0, fault })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(ProfileError::io("read", path)(error)),
    }
}

fn json_text(path: &Path, value: &impl serde::Serialize) -> Result<String, ProfileError> {
    serde_json::to_string_pretty(value).map_err(|error| field(path, ".", error.to_string()))
}

fn field(path: &Path, field: &str, fault: String) -> ProfileError {
    let file = path.display().to_string();
    ProfileError::Field { file, line: 0, field: field.to_owned(), fault }
}

fn metadata_name(rank: u32) -> String {
    Part::Metadata { rank }.to_string()
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Temperatures => f.write_str(TEMPERATURES),
            Self::Anchors => f.write_str(ANCHORS),
            Self::Metadata { rank } => write!(f, "metadata_rank_{rank}.yml"),
        }
    }
}

/// Every change under these locks is one call, so a thread that panicked left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

const PLAN: &str = "plan.json";
const RUN: &str = "run.yml";
const SAMPLES: &str = "samples.csv";
const TEMPERATURES: &str = "temperatures.csv";
const ANCHORS: &str = "anchors.csv";

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
