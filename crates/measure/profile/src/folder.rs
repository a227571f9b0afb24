//! A profile folder: read it with [`Folder`], fill it with [`Recorder`]. This module begins, opens, claims and reads
//! folders; `recorder` fills them, `appender` keeps tables at whole lines, and `files` handles single files.

mod appender;
mod files;
mod recorder;

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use polyrail_sys::files::{
    OpenFolder, Opening, make_folders, open_to_write, remove_empty, remove_opened,
};

use self::appender::{Appender, lock_table};
pub(crate) use self::files::replace;
use self::files::{is_there, json_text, read_text};
pub use self::recorder::Recorder;
use crate::clock::{Alignment, Anchor};
use crate::document::{Document, fault_at, in_file, read_json, read_yaml};
use crate::error::{ProfileError, shown_path};
use crate::plan::Plan;
use crate::run::{Metadata, Run};
use crate::sample::Sample;
use crate::table::{ReadRow, read_rows};
use crate::thermal::Temperature;
use crate::yaml;

/// A folder that can be read, even while it is being filled.
#[derive(Clone, Debug)]
pub struct Folder {
    dir: PathBuf,
    plan: Plan,
    run: Run,
}

/// A file that a folder can be read without; displayed as its file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Log of the devices.
    Temperatures,
    Anchors,
    /// Description of an endpoint.
    Metadata {
        rank: u32,
    },
}

/// Lock on a profile that no process fills yet: see [`Folder::claim`].
#[derive(Debug)]
pub struct Claim {
    file: File,
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A program that another thread is starting has a copy of the descriptor until it runs, so closing may not
        // release the lock.
        let _ = self.file.unlock();
    }
}

impl Folder {
    /// Begins a profile in a folder that does not exist or is empty: writes `run.yml` and `plan.json` before anything
    /// is measured.
    ///
    /// # Errors
    /// If the folder is not empty, or can't be written. Then only parent folders are left behind.
    pub fn create(dir: impl AsRef<Path>, plan: &Plan, run: &Run) -> Result<Recorder, ProfileError> {
        let dir = dir.as_ref();
        plan.check()?;
        let is_new = !dir.exists();
        let opened = make_empty(dir)?;
        let folder = Self { dir: dir.into(), plan: plan.clone(), run: run.clone() };
        let begun = folder.begin();
        // Keep the profile that another process has just begun here.
        if begun.as_ref().is_err_and(|error| !matches!(error, ProfileError::Busy { .. })) {
            // A partial profile could neither be resumed nor begun again.
            for name in [PLAN, RUN, SAMPLES] {
                if let Ok(Some(found)) = opened.find(name) {
                    let _ = opened.remove(name, &found);
                }
            }
            if is_new {
                // Fails if another program has put something there.
                let _ = remove_empty(dir);
            }
        }
        folder.recorder(begun?, 0, HashSet::new())
    }

    fn begin(&self) -> Result<Appender, ProfileError> {
        let samples = self.appender::<Sample>(SAMPLES)?;
        self.write_run(&self.run)?;
        self.write_plan()?;
        Ok(samples)
    }

    /// Checks that a profile can begin here, before minutes go into preparation. Leaves only parent folders behind.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub fn try_out(dir: impl AsRef<Path>) -> Result<(), ProfileError> {
        let dir = dir.as_ref();
        let is_new = !dir.exists();
        make_empty(dir)?;
        let file = dir.join(SAMPLES);
        let tried = open_to_write(&file, Opening::New, 0o666);
        let tried = tried.and_then(|made| remove_opened(&file, &made).map(drop));
        if is_new {
            // Fails if another program has put something there.
            let _ = remove_empty(dir);
        }
        tried.map_err(ProfileError::io("write to", &file))
    }

    /// Keeps other processes from filling a profile until the claim is dropped. Changes nothing, and checks that no
    /// file in the folder blocks the traces that are written at the end.
    ///
    /// Drop the claim right before [`Self::resume`], which takes the same lock.
    ///
    /// # Errors
    /// If the folder is not a profile, another process fills it, or it can't be opened for writing.
    pub fn claim(dir: impl AsRef<Path>) -> Result<Claim, ProfileError> {
        let folder = Self::open(dir)?;
        let path = folder.dir.join(SAMPLES);
        let file = open_to_write(&path, Opening::Keep, 0o600);
        let file = file.map_err(ProfileError::io("open", &path))?;
        lock_table(&file, &path, &folder.dir)?;
        folder.require_derivable()?;
        Ok(Claim { file })
    }

    /// Resumes a profile that ended early. Removes a line that was cut short.
    ///
    /// # Errors
    /// If the folder is not a profile, another process fills it, or it can't be read.
    pub fn resume(dir: impl AsRef<Path>) -> Result<Recorder, ProfileError> {
        let folder = Self::open(dir)?;
        folder.require_derivable()?;
        let appender = folder.appender::<Sample>(SAMPLES)?;
        let samples = folder.samples()?;
        let session = samples.iter().map(|sample| sample.session + 1).max().unwrap_or(0);
        let done = samples.iter().map(|sample| (sample.configuration, sample.repetition));
        folder.recorder(appender, session, done.collect())
    }

    /// Opens a profile for reading.
    ///
    /// # Errors
    /// If the folder is not a profile, or its plan or `run.yml` can't be used.
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
        let path = dir.join(PLAN);
        let plan = read_json(&read_text(&path)?, &path)?;
        let path = dir.join(RUN);
        let run = read_yaml(&read_text(&path)?, &path)?;
        Ok(Self { dir: dir.into(), plan, run })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the plan of the measurement.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the description of the run.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// Reads all samples, in the order in which they were taken. One-way times between ends with different clocks are
    /// computed from their stamps and all anchors that exist now.
    ///
    /// # Errors
    /// If the table can't be read, or a sample is unknown to the plan or there twice.
    pub fn samples(&self) -> Result<Vec<Sample>, ProfileError> {
        let path = self.dir.join(SAMPLES);
        let mut samples: Vec<Sample> = read_rows(&path)?;
        let mut seen = HashSet::with_capacity(samples.len());
        for (place, sample) in samples.iter().enumerate() {
            let fault = match self.check(sample) {
                Err((value, allowed)) => format!("{value}; allowed: {allowed}"),
                Ok(()) if seen.insert((sample.configuration, sample.repetition)) => continue,
                Ok(()) => format!(
                    "configuration {}, repetition {} is there twice; allowed: once",
                    sample.configuration, sample.repetition
                ),
            };
            // Polyrail writes each row on exactly one line, so its place gives the line.
            return Err(ProfileError::Line {
                file: shown_path(&path),
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

    /// Returns the files that `polyrail profile` always writes and this folder lacks. Everything except their content
    /// can still be read.
    ///
    /// # Errors
    /// If the system refuses, or one of these names is not a file.
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

    /// Reads the log of the devices; empty if there is none.
    ///
    /// # Errors
    /// If the table can't be read, or an endpoint in it is unknown to the plan.
    pub fn temperatures(&self) -> Result<Vec<Temperature>, ProfileError> {
        let looks: Vec<Temperature> = self.rows_if_there(TEMPERATURES)?;
        let ranks = self.plan.endpoints.len();
        match looks.iter().position(|look| look.rank as usize >= ranks) {
            Some(place) => Err(ProfileError::Cell {
                file: shown_path(&self.dir.join(TEMPERATURES)),
                // As for samples: each row is on exactly one line.
                line: place as u64 + 2,
                column: "rank".into(),
                value: looks[place].rank.to_string(),
                allowed: format!("0 to {}", ranks - 1),
            }),
            None => Ok(looks),
        }
    }

    /// Reads the raw comparisons of clocks; empty if there is only one clock, or if the file is
    /// [missing](Self::missing).
    ///
    /// # Errors
    /// If the table can't be read.
    pub fn anchors(&self) -> Result<Vec<Anchor>, ProfileError> {
        self.rows_if_there(ANCHORS)
    }

    /// Aligns every clock with the reference, computed from the anchors at each call.
    ///
    /// # Errors
    /// As [`Alignment::fit`], with the file named; also if the anchors can't be read.
    pub fn alignment(&self) -> Result<Alignment, ProfileError> {
        let aligned = Alignment::fit(&self.run.clocks, &self.anchors()?);
        aligned.map_err(|error| in_file(&self.dir.join(ANCHORS), |_| 0, error))
    }

    /// Reads the description of an endpoint; `None` if its file is missing.
    ///
    /// # Errors
    /// If the file can't be used.
    pub fn metadata(&self, rank: u32) -> Result<Option<Metadata>, ProfileError> {
        let path = self.dir.join(metadata_name(rank));
        if !is_there(&path)? {
            return Ok(None);
        }
        let metadata: Metadata = read_yaml(&read_text(&path)?, &path)?;
        if metadata.rank == rank {
            return Ok(Some(metadata));
        }
        let fault = format!("`{}`; allowed: {rank}, as in the name", metadata.rank);
        Err(fault_at(&path, 0, "rank", fault))
    }

    /// Checks that the plan has a sample; otherwise returns the sample and the values that the plan has.
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
        let text = yaml::write(value).map_err(|error| fault_at(&path, 0, "", error.to_string()))?;
        replace(&path, text.as_bytes())
    }
}

/// Creates a folder, or opens an empty one.
fn make_empty(dir: &Path) -> Result<OpenFolder, ProfileError> {
    let made = make_folders(dir, 0o777).and_then(|()| OpenFolder::open(dir));
    let opened = made.map_err(ProfileError::io("create", dir))?;
    match opened.names(1).map_err(ProfileError::io("read", dir))?.is_empty() {
        true => Ok(opened),
        false => Err(ProfileError::NotEmpty { dir: dir.into() }),
    }
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

const PLAN: &str = "plan.json";
const RUN: &str = "run.yml";
const SAMPLES: &str = "samples.csv";
const TEMPERATURES: &str = "temperatures.csv";
const ANCHORS: &str = "anchors.csv";

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
