//! Sampling for `--sample`: the activity of CPUs and threads during each measured interval, and a file with it for each
//! second.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use polyrail_host::Sysroot;
use polyrail_sample::{Attached, Hot, Options, Sample, SampleError, Sampler, Snapshot};

use crate::fault::Fault;
use crate::queue_stats::read_queues;

/// Sampler that observes this process at the start and the end of each interval.
#[derive(Clone)]
pub(crate) struct Watch {
    sampler: Arc<Mutex<Sampler>>,
}

/// Snapshot of the counters at one moment.
pub(crate) struct Watched {
    snapshot: Snapshot,
    sampler: Arc<Mutex<Sampler>>,
}

impl Watch {
    /// Opens every source of counters.
    pub(crate) fn open() -> Result<Self, Fault> {
        let options = Options { pids: vec![std::process::id()], ..Options::default() };
        let sampler = Sampler::open(&Sysroot::live(), options)?;
        Ok(Self { sampler: Arc::new(Mutex::new(sampler)) })
    }

    /// Reads all counters. Takes some milliseconds at most, outside of the timed part.
    pub(crate) fn look(&self) -> Watched {
        // The sampler holds files and buffers only, which a panic elsewhere leaves usable.
        let mut sampler = self.sampler.lock();
        Watched { snapshot: sampler.snapshot(), sampler: Arc::clone(&self.sampler) }
    }
}

impl Watched {
    /// Returns the busiest CPU that works for this process between the two looks.
    pub(crate) fn hot((from, to): (&Self, &Self)) -> Option<Hot> {
        Hot::find(&Self::between(from, to))
    }

    fn between(from: &Self, to: &Self) -> Sample {
        let sampler = from.sampler.lock();
        sampler.between(&from.snapshot, &to.snapshot)
    }
}

/// Writes a sample each second to `file`, for this process and for the one that it measures against if that is on this
/// machine, too.
pub(crate) fn attach(file: File, path: &Path) -> Result<Attached, Fault> {
    let root = Sysroot::live();
    let sampler = sampler_of(&root, partners(&root))?.with_queues(read_queues());
    Ok(Attached::start(sampler, file, path)?)
}

/// Opens a sampler of this process and of the partners that have not ended.
fn sampler_of(root: &Sysroot, mut partners: Vec<u32>) -> Result<Sampler, SampleError> {
    loop {
        let pids = [vec![std::process::id()], partners.clone()].concat();
        match Sampler::open(root, Options { pids, ..Options::default() }) {
            Err(SampleError::NoProcess { pid }) if partners.contains(&pid) => {
                partners.retain(|one| *one != pid);
            }
            opened => return opened,
        }
    }
}

/// Returns the serving process: a child of this one, or in a lab a child of the bench that made the lab.
fn partners(root: &Sysroot) -> Vec<u32> {
    let own = std::process::id();
    let Some((name, parent)) = name_and_parent(root, own) else { return Vec::new() };
    let in_lab = name_and_parent(root, parent).is_some_and(|(theirs, _)| theirs == name);
    let processes = root.list("/proc").unwrap_or_default();
    let others = processes.iter().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid != own);
    let is_partner = |pid: &u32| {
        name_and_parent(root, *pid)
            .is_some_and(|(theirs, of)| theirs == name && (of == own || in_lab && of == parent))
    };
    others.filter(is_partner).collect()
}

/// Reads `/proc/PID/stat`, where the name is in brackets and may contain brackets itself.
fn name_and_parent(root: &Sysroot, pid: u32) -> Option<(String, u32)> {
    let text = root.read(format!("/proc/{pid}/stat")).ok()?;
    let (head, tail) = text.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    Some((name, tail.split_whitespace().nth(1)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partner_that_has_ended_is_left_out() {
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        sampler_of(&Sysroot::live(), vec![ended.id()]).unwrap();
    }

    #[test]
    fn the_parent_of_a_process_is_found_whatever_its_name_holds() {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        std::fs::create_dir_all(root.path("/proc/7")).unwrap();
        std::fs::write(root.path("/proc/7/stat"), "7 (a) (b c) S 5 7 7 0\n").unwrap();
        assert_eq!(name_and_parent(&root, 7), Some(("a) (b c".into(), 5)));
        assert_eq!(name_and_parent(&root, 8), None);
        let parent = std::os::unix::process::parent_id();
        let own = name_and_parent(&Sysroot::live(), std::process::id()).unwrap();
        assert_eq!(own.1, parent);
    }
}
