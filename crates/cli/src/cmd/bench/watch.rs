//! With `--sample`: what CPUs and threads do during each measured interval, and a file that says so
//! second by second.

use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use polyrail_host::Sysroot;
use polyrail_sample::{Attached, Hot, Options, Sample, Sampler, Snapshot};

use super::error::BenchError;
use crate::queue_stats::read_queues;

/// Looks at this process at the start and the end of each interval.
#[derive(Clone)]
pub(super) struct Watch {
    sampler: Arc<Mutex<Sampler>>,
}

/// What was seen at one moment.
pub(super) struct Watched {
    snapshot: Snapshot,
    sampler: Arc<Mutex<Sampler>>,
}

impl Watch {
    /// Opens what there is to look at.
    pub(super) fn open() -> Result<Self, BenchError> {
        let options = Options { pids: vec![std::process::id()], ..Options::default() };
        let sampler = Sampler::open(&Sysroot::live(), options)?;
        Ok(Self { sampler: Arc::new(Mutex::new(sampler)) })
    }

    /// Reads all counters: some milliseconds at most, outside of what is timed.
    pub(super) fn look(&self) -> Watched {
        // The sampler holds files and buffers only, which a panic elsewhere leaves usable.
        let mut sampler = self.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        Watched { snapshot: sampler.snapshot(), sampler: Arc::clone(&self.sampler) }
    }
}

impl Watched {
    /// The busiest CPU of ours from the first to the second look.
    pub(super) fn hot((from, to): (&Self, &Self)) -> Option<Hot> {
        Hot::find(&Self::between(from, to))
    }

    fn between(from: &Self, to: &Self) -> Sample {
        let sampler = from.sampler.lock().unwrap_or_else(PoisonError::into_inner);
        sampler.between(&from.snapshot, &to.snapshot)
    }
}

/// Writes a sample each second to `file`, of this process and of those of the same program.
pub(super) fn attach(file: File, path: &Path) -> Result<Attached, BenchError> {
    let options = Options {
        pids: vec![std::process::id()],
        process_name: Some("polyrail".into()),
        ..Options::default()
    };
    let sampler = Sampler::open(&Sysroot::live(), options)?.with_queues(read_queues());
    Ok(Attached::start(sampler, file, path)?)
}
