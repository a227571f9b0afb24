//! The recorder, which fills a folder: writes each sample, temperature and anchor immediately.

use std::collections::HashSet;

use parking_lot::{Mutex, MutexGuard};

use super::appender::Appender;
use super::{ANCHORS, Folder, TEMPERATURES, metadata_name};
use crate::clock::Anchor;
use crate::error::ProfileError;
use crate::plan::Step;
use crate::run::{Metadata, Run};
use crate::sample::Sample;
use crate::table::{Row, heading_line};
use crate::thermal::Temperature;

/// A folder that is being filled, by one process at a time. Several threads may call its `&self` methods concurrently.
#[derive(Debug)]
pub struct Recorder {
    folder: Folder,
    session: u32,
    done: Mutex<HashSet<(u32, u32)>>,
    samples: Mutex<Appender>,
    temperatures: Mutex<Appender>,
    anchors: Mutex<Appender>,
}

impl Recorder {
    /// Returns the folder, for reading.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Returns the value for [`Sample::session`]: the number of times that the profile was resumed.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// Returns the steps that have no sample yet, in the order of the plan.
    pub fn remaining(&self) -> Vec<Step> {
        self.folder.plan.remaining(&lock(&self.done))
    }

    /// Adds a sample. On return it is in the file, but not yet durable across a power failure.
    ///
    /// # Errors
    /// If the sample is unknown to the plan or already there, a number could not be read back, or the disk is full.
    /// Then the file ends with the last whole line, and later calls may succeed.
    pub fn append(&self, sample: &Sample) -> Result<(), ProfileError> {
        let refused =
            |(value, allowed)| ProfileError::Value { field: "sample".into(), value, allowed };
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

    /// Adds a reading of a device.
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

    /// Writes the metadata of an endpoint; replaces earlier metadata.
    ///
    /// # Errors
    /// If the plan does not have the rank, or the system refuses.
    pub fn write_metadata(&self, metadata: &Metadata) -> Result<(), ProfileError> {
        let ranks = self.folder.plan.endpoints.len();
        if metadata.rank as usize >= ranks {
            let allowed = format!("0 to {}", ranks - 1);
            let value = metadata.rank.to_string();
            return Err(ProfileError::Value { field: "metadata.rank".into(), value, allowed });
        }
        self.folder.write_yaml(&metadata_name(metadata.rank), metadata)
    }

    /// Replaces `run.yml`; readers see either the old or the new file.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn write_run(&mut self, run: &Run) -> Result<(), ProfileError> {
        self.folder.write_run(run)?;
        self.folder.run = run.clone();
        Ok(())
    }

    /// Adds sizes to the plan, writes it, and returns how many were new.
    ///
    /// # Errors
    /// As [`crate::Plan::refine`]; also if the system refuses.
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

    /// Writes `run.yml` and all derived files, the execution log and the traces: see [`Folder::write_derived`]. Call it
    /// at the end of a run, even of an interrupted one.
    ///
    /// # Errors
    /// As [`Folder::write_derived`].
    pub fn finish(&mut self, run: &Run) -> Result<(), ProfileError> {
        self.write_run(run)?;
        for table in [&self.samples, &self.temperatures, &self.anchors] {
            lock(table).sync()?;
        }
        self.folder.write_derived()
    }
}

impl Folder {
    pub(super) fn recorder(
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

    pub(super) fn appender<R: Row>(&self, name: &str) -> Result<Appender, ProfileError> {
        Appender::open(self.dir.join(name), &self.dir, &heading_line::<R>())
    }
}

/// Every change under these locks is one call, so a thread that panicked left no partial change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}
