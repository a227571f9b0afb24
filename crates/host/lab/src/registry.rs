//! Records of labs, one file per lab, for the few facts that the system does not keep itself.
//!
//! A file is written before anything is built and removed after everything is gone, so it leads to
//! whatever a crash leaves.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind::{AlreadyExists, NotFound};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::geteuid;
use serde::{Deserialize, Serialize};

use crate::error::{During, LabError};
use crate::holder::HolderId;
use crate::namespaces::Identity;
use crate::network::Network;
use crate::privilege;
use crate::processes::{ProcessId, who_locks};
use crate::spec::validate_name;

/// The contents of a lab's file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) schema_version: u32,
    /// Distinguishes labs from before the last boot, of which only files are left.
    pub(crate) boot_id: String,
    /// False while the lab is being built.
    pub(crate) ready: bool,
    pub(crate) rails: usize,
    /// Number of nodes on the switch; `None` where there is no switch.
    #[serde(default)]
    pub(crate) nodes: Option<usize>,
    #[serde(default)]
    pub(crate) network: Network,
    pub(crate) queue_ms: u32,
    pub(crate) mtu: u32,
    /// The process that the lab is tied to.
    #[serde(default)]
    pub(crate) owner: Option<ProcessId>,
    /// Without root, the process that keeps the namespaces alive.
    pub(crate) holder: Option<HolderId>,
    /// With root, the namespaces made for the lab.
    pub(crate) namespaces: Option<Vec<Identity>>,
}

/// State of a lab's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    Record(Record),
    /// The file exists, but its contents are not a valid record.
    Unreadable,
}

/// The directory with the records of this user's labs.
#[derive(Debug, Clone)]
pub(crate) struct Registry {
    directory: PathBuf,
    privileged: bool,
}

/// The exclusive right to change labs; one process at a time has it.
#[derive(Debug)]
pub(crate) struct Lock<'a> {
    registry: &'a Registry,
    directory: File,
}

pub(crate) const SCHEMA_VERSION: u32 = 1;
const PATIENCE: Duration = Duration::from_secs(20);

/// Time that one process may hold the lock before waiters report it as hung. Each new lock holder restarts the time, so
/// a waiter may wait longer behind many processes that take turns.
struct Patience {
    holder: Option<i32>,
    until: Instant,
}

impl Patience {
    fn new(now: Instant) -> Self {
        Self { holder: None, until: now + PATIENCE }
    }

    fn ends(&mut self, holder: Option<i32>, now: Instant) -> bool {
        if holder.is_some() && holder != self.holder {
            *self = Self { holder, until: now + PATIENCE };
        }
        now > self.until
    }
}

impl Registry {
    pub(crate) fn current() -> Self {
        let privileged = privilege::is_root();
        let uid = geteuid().as_raw();
        let session = PathBuf::from(format!("/run/user/{uid}"));
        // The parent directory belongs to this module, too: it is checked, and removed with the
        // last lab.
        let base = if privileged {
            // Not /run/polyrail: that belongs to the metrics exporter, and may have another owner.
            PathBuf::from("/run/polyrail-labs")
        } else if fs::metadata(&session).is_ok_and(|found| found.uid() == uid) {
            session.join("polyrail")
        } else {
            PathBuf::from(format!("/tmp/polyrail-{uid}"))
        };
        Self { directory: base.join("lab"), privileged }
    }

    /// Whether labs in this registry are made with root's rights.
    pub(crate) fn privileged(&self) -> bool {
        self.privileged
    }

    /// Waits for other processes that change labs.
    pub(crate) fn lock(&self) -> Result<Lock<'_>, LabError> {
        self.lock_while(&|| Ok(()))
    }

    /// Waits for the lock until `go_on` fails.
    pub(crate) fn lock_while(
        &self,
        go_on: &dyn Fn() -> Result<(), LabError>,
    ) -> Result<Lock<'_>, LabError> {
        let mut patience = Patience::new(Instant::now());
        loop {
            go_on()?;
            let late = patience.ends(self.holder(), Instant::now());
            match self.make_directory() {
                // Another process removed the last lab and its directory just before, or while the
                // directory was being made, which then fails because it is there and gone.
                Err(LabError::System { errno, .. })
                    if matches!(errno.kind(), NotFound | AlreadyExists)
                        && !self.directory.is_file()
                        && !late => {}
                result => {
                    result?;
                    if let Some(lock) = self.try_lock()? {
                        return Ok(lock);
                    }
                }
            }
            if late {
                let waited_s = PATIENCE.as_secs();
                return Err(LabError::Busy { lock: self.directory.clone(), waited_s });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The process that is changing labs now, if it is visible from this process.
    fn holder(&self) -> Option<i32> {
        File::open(&self.directory).ok().and_then(who_locks)
    }

    /// Takes the lock if the directory exists and no other process has the lock now. Dropping the lock removes an empty
    /// directory.
    pub(crate) fn lock_if_free(&self) -> Option<Lock<'_>> {
        self.directory.exists().then(|| self.try_lock().ok().flatten()).flatten()
    }

    /// Whether some process is changing labs right now.
    pub(crate) fn is_locked(&self) -> bool {
        // A shared lock, so that two readers do not mistake each other for a writer.
        let free = File::open(&self.directory).is_ok_and(|directory| {
            flock(&directory, FlockOperation::NonBlockingLockShared).is_ok()
        });
        self.directory.exists() && !free
    }

    /// Lists the labs with a file.
    pub(crate) fn labs(&self) -> Result<Vec<String>, LabError> {
        self.check_directory()?;
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == NotFound => return Ok(Vec::new()),
            entries => entries.during_path("reading", &self.directory)?,
        };
        let mut labs = Vec::new();
        for entry in entries {
            let path = entry.during_path("reading", &self.directory)?.path();
            labs.extend(lab_of(&path));
        }
        Ok(labs)
    }

    /// Reads a lab's record; `None` when the lab has no file.
    pub(crate) fn read(&self, lab: &str) -> Result<Option<Entry>, LabError> {
        self.check_directory()?;
        let path = self.path(lab);
        match fs::read_to_string(&path) {
            Err(error) if error.kind() == NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(Some(Entry::Unreadable)),
            text => {
                let record = serde_json::from_str(&text.during_path("reading", &path)?).ok();
                let known = record.filter(|r: &Record| r.schema_version == SCHEMA_VERSION);
                Ok(Some(known.map_or(Entry::Unreadable, Entry::Record)))
            }
        }
    }

    /// Marks the lab as tied to this process, until the returned file is dropped or the process ends in any way. The
    /// kernel then releases the mark, so every process that sees the record notices, also one with its own PIDs.
    pub(crate) fn own(&self, lab: &str) -> Result<Owned, LabError> {
        self.check_directory()?;
        let path = self.path(lab);
        // Opened again: a holder shares the open file with which the record was made.
        let file = File::open(&path).during_path("opening", &path)?;
        let deadline = Instant::now() + PATIENCE;
        // `is_owned` takes a shared lock for a moment.
        while let Err(errno) = flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if errno != Errno::WOULDBLOCK {
                return Err(errno).during_path("locking", &path);
            }
            if Instant::now() > deadline {
                return Err(LabError::Busy { lock: path, waited_s: PATIENCE.as_secs() });
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Owned(file))
    }

    /// Whether the process that the lab is tied to still runs.
    pub(crate) fn is_owned(&self, lab: &str) -> bool {
        // A shared lock, so that two readers do not mistake each other for the owner.
        let file = self.check_directory().ok().and_then(|()| File::open(self.path(lab)).ok());
        file.is_some_and(|file| {
            flock(file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
        })
    }

    /// Takes exclusive use of the lab until the file is dropped or the process ends. If another process has it, returns
    /// the id of that process, where it is visible.
    pub(crate) fn use_alone(&self, lab: &str) -> Result<Result<Owned, Option<i32>>, LabError> {
        self.check_directory()?;
        let path = self.use_path(lab);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(&path).during_path("opening", &path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => Ok(Err(who_locks(&file))),
            result => result.during_path("locking", &path).map(|()| Ok(Owned(file))),
        }
    }

    fn use_path(&self, lab: &str) -> PathBuf {
        self.directory.join(format!("{lab}.use"))
    }

    fn path(&self, lab: &str) -> PathBuf {
        self.directory.join(format!("{lab}.json"))
    }

    fn make_directory(&self) -> Result<(), LabError> {
        let mut builder = DirBuilder::new();
        builder.mode(0o700).recursive(true);
        builder.create(&self.directory).during_path("making", &self.directory)?;
        self.check_directory()?;
        // Every user who can open the directory can lock it.
        let private = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&self.directory, private).during_path("guarding", &self.directory)
    }

    /// Refuses a directory that other users may write to: in a directory like /tmp another user could have made it
    /// first, and the records in it are trusted. A missing directory is accepted.
    fn check_directory(&self) -> Result<(), LabError> {
        for path in [self.directory.parent(), Some(&*self.directory)].into_iter().flatten() {
            let found = match fs::symlink_metadata(path) {
                Err(error) if error.kind() == NotFound => return Ok(()),
                found => found.during_path("looking at", path)?,
            };
            let strangers = if self.privileged { 0o022 } else { 0o077 };
            let safe = found.is_dir()
                && found.uid() == geteuid().as_raw()
                && found.mode() & strangers == 0;
            if !safe {
                return Err(LabError::system(
                    format!("using {}, which others may write to or own,", path.display()),
                    Errno::PERM,
                ));
            }
        }
        Ok(())
    }

    /// Takes the lock; `None` if another process has it, or has just removed the directory.
    fn try_lock(&self) -> Result<Option<Lock<'_>>, LabError> {
        let directory = match File::open(&self.directory) {
            Err(error) if error.kind() == NotFound => return Ok(None),
            directory => directory.during_path("opening", &self.directory)?,
        };
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            result => result.during_path("locking", &self.directory)?,
        }
        let locked = directory.metadata().during_path("looking at", &self.directory)?;
        let same = fs::metadata(&self.directory).is_ok_and(|now| now.ino() == locked.ino());
        Ok(same.then_some(Lock { registry: self, directory }))
    }
}

/// A lock on a file of a lab. While it is held, other processes can see that its holder still runs.
#[derive(Debug)]
pub(crate) struct Owned(File);

impl Drop for Owned {
    fn drop(&mut self) {
        // As for a [`Lock`], closing may not be enough.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

impl Lock<'_> {
    /// Makes the lab's file; it must not exist.
    pub(crate) fn create(&self, lab: &str, record: &Record) -> Result<File, LabError> {
        let path = self.registry.path(lab);
        let mut options = File::options();
        // Every user who can open the file can lock it.
        options.read(true).write(true).create_new(true).mode(0o600);
        let mut file = options.open(&path).during_path("making", &path)?;
        self.write(&mut file, lab, record)?;
        Ok(file)
    }

    /// Replaces the file's contents, in place: a holder keeps this very file open.
    pub(crate) fn write(
        &self,
        file: &mut File,
        lab: &str,
        record: &Record,
    ) -> Result<(), LabError> {
        let path = self.registry.path(lab);
        let mut text = serde_json::to_string(record)
            .map_err(io::Error::from)
            .during_path("encoding", &path)?;
        text.push('\n');
        file.rewind().during_path("writing", &path)?;
        file.write_all(text.as_bytes()).during_path("writing", &path)?;
        file.set_len(text.len() as u64).during_path("writing", &path)
    }

    /// Removes the lab's files, if they exist.
    pub(crate) fn remove(&self, lab: &str) -> Result<(), LabError> {
        for path in [self.registry.use_path(lab), self.registry.path(lab)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() == NotFound => {}
                result => result.during_path("removing", &path)?,
            }
        }
        Ok(())
    }

    /// Path of root's note that it made the directory of namespaces.
    pub(crate) fn note_path(&self) -> PathBuf {
        self.registry.directory.join("netns-directory")
    }
}

impl Drop for Lock<'_> {
    fn drop(&mut self) {
        // These calls succeed only on empty directories, and the lock is held, so no record is
        // lost.
        let _ = fs::remove_dir(&self.registry.directory);
        let _ = self.registry.directory.parent().map(fs::remove_dir);
        // A child process that another thread is starting has the descriptor until it runs its program, so closing may
        // not be enough.
        let _ = flock(&self.directory, FlockOperation::Unlock);
    }
}

/// Returns the lab that a file of this path belongs to.
pub(crate) fn lab_of(path: &Path) -> Option<String> {
    let lab = path.file_name()?.to_str()?.strip_suffix(".json")?;
    validate_name(lab).ok().map(|()| lab.to_owned())
}

/// Returns an id that changes with every boot of the machine.
pub(crate) fn boot_id() -> Result<String, LabError> {
    let boot = polyrail_sys::interfaces::boot_id().during(|| "reading the boot's name".into())?;
    Ok(boot.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_ends_with_one_process_and_not_with_many_that_take_turns() {
        let begin = Instant::now();
        let mut patience = Patience::new(begin);
        for turn in 1..=100 {
            assert!(
                !patience.ends(Some(turn), begin + PATIENCE / 2 * turn.unsigned_abs()),
                "{turn}"
            );
        }
        let last = begin + PATIENCE * 50;
        assert!(!patience.ends(Some(100), last + PATIENCE));
        // An invisible holder may be the same process.
        assert!(patience.ends(None, last + PATIENCE * 2));
        assert!(patience.ends(Some(100), last + PATIENCE * 2));
    }

    fn registry(directory: &Path) -> Registry {
        Registry { directory: directory.join("polyrail/lab"), privileged: false }
    }

    fn record() -> Record {
        Record {
            schema_version: SCHEMA_VERSION,
            boot_id: boot_id().unwrap(),
            ready: false,
            rails: 2,
            nodes: None,
            network: Network::Subnet,
            queue_ms: 10,
            mtu: 1500,
            owner: ProcessId::own(),
            holder: None,
            namespaces: Some(vec![(4, 1), (4, 2)]),
        }
    }

    #[test]
    fn a_record_is_read_as_written_and_leaves_nothing_behind() {
        let temporary = tempfile::tempdir().unwrap();
        let registry = registry(temporary.path());
        assert!(!registry.is_locked());
        assert_eq!(registry.labs().unwrap(), [""; 0]);
        {
            let lock = registry.lock().unwrap();
            assert!(registry.is_locked());
            let mut file = lock.create("demo", &record()).unwrap();
            assert!(lock.create("demo", &record()).is_err(), "never over another lab's file");
            let ready = Record { ready: true, ..record() };
            lock.write(&mut file, "demo", &ready).unwrap();
            assert_eq!(registry.read("demo").unwrap(), Some(Entry::Record(ready)));
            assert_eq!(registry.labs().unwrap(), ["demo"]);
        }
        assert!(!registry.is_locked());
        {
            let lock = registry.lock().unwrap();
            lock.remove("demo").unwrap();
            lock.remove("demo").unwrap();
        }
        assert!(!temporary.path().join("polyrail").exists());
        assert_eq!(registry.read("demo").unwrap(), None);
    }

    #[test]
    fn nothing_is_read_in_a_directory_that_others_may_write_to() {
        let temporary = tempfile::tempdir().unwrap();
        let registry = registry(temporary.path());
        let lock = registry.lock().unwrap();
        lock.create("demo", &record()).unwrap();
        for mode in [0o777, 0o770, 0o701] {
            fs::set_permissions(&registry.directory, fs::Permissions::from_mode(mode)).unwrap();
            for refused in [
                registry.labs().map(drop),
                registry.read("demo").map(drop),
                registry.own("demo").map(drop),
            ] {
                let error = refused.unwrap_err().to_string();
                assert!(error.contains("which others may write to or own"), "{mode:o}: {error}");
            }
            assert!(!registry.is_owned("demo"));
        }
        fs::set_permissions(&registry.directory, fs::Permissions::from_mode(0o700)).unwrap();
        assert_eq!(registry.labs().unwrap(), ["demo"]);
        lock.remove("demo").unwrap();
    }

    #[test]
    fn one_process_uses_a_lab_alone_and_no_other_user_can_lock_it() {
        let temporary = tempfile::tempdir().unwrap();
        let registry = registry(temporary.path());
        let lock = registry.lock().unwrap();
        lock.create("demo", &record()).unwrap();
        let used = registry.use_alone("demo").unwrap().unwrap();
        let process = i32::try_from(std::process::id()).unwrap();
        assert_eq!(registry.use_alone("demo").unwrap().unwrap_err(), Some(process));
        drop(used);
        drop(registry.use_alone("demo").unwrap().unwrap());
        for path in [registry.use_path("demo"), registry.directory.clone()] {
            let mode = fs::metadata(&path).unwrap().mode();
            assert_eq!(mode & 0o077, 0, "{} {mode:o}", path.display());
        }
        lock.remove("demo").unwrap();
        drop(lock);
        assert!(!temporary.path().join("polyrail").exists());
    }

    #[test]
    fn a_lab_is_owned_until_its_owner_lets_go() {
        let temporary = tempfile::tempdir().unwrap();
        let registry = registry(temporary.path());
        let lock = registry.lock().unwrap();
        let _kept_by_a_holder = lock.create("demo", &record()).unwrap();
        assert!(!registry.is_owned("demo") && !registry.is_owned("other"));
        let owned = registry.own("demo").unwrap();
        assert!(registry.is_owned("demo"));
        drop(owned);
        assert!(!registry.is_owned("demo"));
    }

    #[test]
    fn a_lock_ends_though_a_program_that_is_being_started_has_its_descriptor() {
        let temporary = tempfile::tempdir().unwrap();
        let registry = registry(temporary.path());
        let lock = registry.lock().unwrap();
        lock.create("keeps-the-directory", &record()).unwrap();
        let inherited = lock.directory.try_clone().unwrap();
        drop(lock);
        assert!(!registry.is_locked());
        drop(inherited);
    }

    #[test]
    fn a_spoilt_or_foreign_record_is_seen_as_such() {
        let temporary = tempfile::tempdir().unwrap();
        let registry = registry(temporary.path());
        let lock = registry.lock().unwrap();
        let future = Record { schema_version: 99, ..record() };
        lock.create("future", &future).unwrap();
        assert_eq!(registry.read("future").unwrap(), Some(Entry::Unreadable));
        for (name, bytes) in [("empty", &b""[..]), ("cut", b"{\"schema"), ("bytes", b"\xff\xfe")] {
            fs::write(registry.path(name), bytes).unwrap();
            assert_eq!(registry.read(name).unwrap(), Some(Entry::Unreadable), "{name}");
        }
        fs::write(registry.directory.join("-bad-.json"), "").unwrap();
        fs::write(registry.directory.join("other.txt"), "").unwrap();
        let mut labs = registry.labs().unwrap();
        labs.sort_unstable();
        assert_eq!(labs, ["bytes", "cut", "empty", "future"]);
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let registry = registry(temporary.path());
        drop(registry.lock().unwrap());
        fs::create_dir_all(&registry.directory).unwrap();
        fs::set_permissions(&registry.directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(registry.lock().unwrap_err().to_string().contains("others may write"));
    }

    #[test]
    fn only_one_at_a_time_has_the_lock() {
        let temporary = tempfile::tempdir().unwrap();
        let registry = registry(temporary.path());
        let held = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _lock = registry.lock().unwrap();
                        let was = held.swap(true, std::sync::atomic::Ordering::SeqCst);
                        assert!(!was, "two at once");
                        held.store(false, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
