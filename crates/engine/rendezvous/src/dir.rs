//! Engines find each other by files in a folder: `FOLDER/GROUP/NAME.polyrail`, as
//! [`Engine::publish`] writes them.
//!
//! A member touches its file three times per lease. Readers compare the file's time with the one they saw before and
//! measure by their own clock, so clocks of hosts may differ. On the same host the end of a process is noticed at once.
//! Members remove the files of processes that are certainly dead.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use polyrail::Engine;
use polyrail_sys::files::{OpenFolder, make_folders};

use self::files::{Holder, State, has_ended, published, read, state_at};
use crate::backend::{Backend, News, Own};
use crate::error::RendezvousError;
use crate::member::Found;
use crate::names::Name;
use crate::stop::Stop;

// Contents and owners of the files in the folder.
mod files;

/// Suffix of file names.
const ENDING: &str = ".polyrail";
/// A group's lock file, which protects changes of names.
const LOCK: &str = ".lock";

/// Interval between looks at the folder. Larger groups look less often, which bounds the share of a processor that
/// looking takes.
const LOOK_EVERY: Duration = Duration::from_millis(200);
const LOOK_EVERY_PER_MEMBER: Duration = Duration::from_millis(1);

/// Leases after which an untouched file counts as abandoned: other hosts and containers don't report their dead.
const LEASES_KEPT: u32 = 10;

/// Maximum time to wait for the lock of a group. Members hold it only while they join.
const LOCK_DEADLINE: Duration = Duration::from_secs(10);
const LOCK_AGAIN: Duration = Duration::from_millis(20);

/// The folder of a group.
pub(crate) struct Dir {
    folder: PathBuf,
    group: Name,
    lease: Duration,
    own: Option<(Own, Engine)>,
    /// State of each file.
    seen: HashMap<String, Seen>,
    /// Files of dead members, in the state last seen.
    dead: Vec<(String, State)>,
    /// True if the next look is due at once.
    is_new: bool,
    /// True if another engine has this engine's name and a warning was logged.
    is_taken: bool,
    touched: Option<Instant>,
    looked: Option<Instant>,
}

/// A file as of the last look.
struct Seen {
    state: State,
    /// Time at which this state was first seen.
    since: Instant,
    found: Result<Found, String>,
}

impl Dir {
    pub(crate) fn new(
        folder: &str,
        group: &Name,
        lease: Duration,
        own: Option<(Own, Engine)>,
    ) -> Self {
        Self {
            folder: Path::new(folder).join(group.as_str()),
            group: group.clone(),
            lease,
            own,
            seen: HashMap::new(),
            dead: Vec::new(),
            is_new: true,
            is_taken: false,
            touched: None,
            looked: None,
        }
    }

    fn path_of(&self, name: &str) -> PathBuf {
        self.folder.join(file_of(name))
    }

    /// Opens the folder as it is now. Files in it are read and removed through this handle, so a later change of its
    /// path has no effect.
    fn open(&self) -> Result<OpenFolder, RendezvousError> {
        let failed = |source| unusable("folder of the group", &self.folder, source);
        OpenFolder::open(&self.folder).map_err(failed)
    }

    /// Creates missing parts of the folder's path, for this user only.
    fn make_folder(&mut self) -> Result<(), RendezvousError> {
        let made = make_folders(&self.folder, 0o700).and_then(|()| OpenFolder::open(&self.folder));
        let made =
            made.map_err(|source| unusable("folder of the rendezvous", &self.folder, source))?;
        // The path without links, because files are published by path.
        self.folder = made.path().to_owned();
        Ok(())
    }

    /// Prevents two members from joining under one name at the same time. The lock ends with the process.
    fn lock(&self, folder: &OpenFolder, stop: &Stop) -> Result<File, RendezvousError> {
        let failed = |source| unusable("lock file of the group", &self.folder.join(LOCK), source);
        let file = folder.append(LOCK, 0o600).map_err(failed)?;
        let begin = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::Error(source)) => return Err(failed(source)),
                Err(TryLockError::WouldBlock)
                    if stop.is_over() || begin.elapsed() > LOCK_DEADLINE =>
                {
                    let why = format!("another process has held it for {:.1?}", begin.elapsed());
                    return Err(failed(io::Error::new(io::ErrorKind::TimedOut, why)));
                }
                // Waiting for a lock without polling has no time limit, so poll. Leaving waits here, too.
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_AGAIN),
            }
        }
    }

    /// Writes this engine's file, unless a living engine has the name.
    fn publish(&mut self, stop: &Stop) -> Result<(), RendezvousError> {
        let Some((own, engine)) = self.own.clone() else { return Ok(()) };
        let (path, file) = (self.path_of(own.name.as_str()), file_of(own.name.as_str()));
        let begin = Instant::now();
        let mut first = None;
        loop {
            let folder = self.open()?;
            let lock = self.lock(&folder, stop)?;
            let Holder::Lives(state, who) = Holder::of(&folder, &file, &own.metadata) else {
                return self.write(&engine, &path);
            };
            // A holder on another host shows that it lives only by a touch.
            let waited = begin.elapsed();
            if *first.get_or_insert(state) != state || stop.is_set() {
                return Err(self.taken(&own, who, waited));
            }
            if waited >= self.lease {
                return self.write(&engine, &path);
            }
            drop(lock);
            stop.sleep(LOOK_EVERY);
        }
    }

    fn taken(&self, own: &Own, who: Option<String>, waited: Duration) -> RendezvousError {
        let (group, name) = (self.group.to_string(), own.name.to_string());
        let holder = match who {
            Some(who) => format!("the engine `{who}` (its lease is {:?})", self.lease),
            None => "somebody whose file can't be read".to_owned(),
        };
        RendezvousError::Taken { group, name, holder, waited }
    }

    /// Writes this engine's file again after it was removed. Tries once: another engine that has the name keeps it
    /// while it lives. This engine still sees the other members.
    fn publish_again(&mut self) -> Result<(), RendezvousError> {
        let Some((own, engine)) = self.own.clone() else { return Ok(()) };
        let begin = Instant::now();
        self.make_folder()?;
        let failed = |source| unusable("lock file of the group", &self.folder.join(LOCK), source);
        let folder = self.open()?;
        let lock = folder.append(LOCK, 0o600).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            // Another member is joining or tidying up. The next poll tries again.
            Err(TryLockError::WouldBlock) => return Ok(()),
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        let (path, file) = (self.path_of(own.name.as_str()), file_of(own.name.as_str()));
        if let Holder::Lives(state, who) = Holder::of(&folder, &file, &own.metadata)
            && !self.is_silent(own.name.as_str(), state)
        {
            if !self.is_taken {
                let error = self.taken(&own, who, begin.elapsed());
                tracing::warn!(target: "polyrail::rendezvous", "{error}; it is tried again");
            }
            self.is_taken = true;
            return Ok(());
        }
        self.write(&engine, &path)
    }

    /// True if the file has not changed for a lease.
    fn is_silent(&self, name: &str, state: State) -> bool {
        let seen = self.seen.get(name).filter(|one| one.state == state);
        seen.is_some_and(|one| one.since.elapsed() >= self.lease)
    }

    fn write(&mut self, engine: &Engine, path: &Path) -> Result<(), RendezvousError> {
        engine.publish(path).map_err(|source| unusable("file of this engine", path, source))?;
        self.touched = Some(Instant::now());
        self.is_taken = false;
        Ok(())
    }

    /// Shows the other members that this engine lives.
    fn touch(&mut self) -> Result<(), RendezvousError> {
        let Some((own, _)) = &self.own else { return Ok(()) };
        if self.touched.is_some_and(|touched| touched.elapsed() < self.lease / 3) {
            return Ok(());
        }
        let path = self.path_of(own.name.as_str());
        let failed = |source| unusable("file of this engine", &path, source);
        let folder = OpenFolder::open(&self.folder);
        match folder.and_then(|folder| published(&folder, &file_of(own.name.as_str()))) {
            Ok(Some((found, file))) if *found.metadata == *own.metadata => {
                file.set_modified(SystemTime::now()).map_err(failed)?;
                self.touched = Some(Instant::now());
                Ok(())
            }
            Err(error)
                if !matches!(
                    error.kind(),
                    io::ErrorKind::InvalidData
                        | io::ErrorKind::InvalidInput
                        | io::ErrorKind::NotFound
                ) =>
            {
                Err(failed(error))
            }
            // The file was removed or replaced, or another engine took the name after this engine was silent for too
            // long.
            _ => self.publish_again(),
        }
    }

    /// Members whose files show that they live.
    fn look(&mut self) -> Result<BTreeMap<String, Found>, RendezvousError> {
        let now = Instant::now();
        // After a long pause between looks, silence during the pause can't be judged.
        let was_away = self.looked.is_none_or(|looked| now - looked > self.lease / 3);
        let failed = |source| unusable("folder of the group", &self.folder, source);
        let mut seen = HashMap::new();
        let mut all = BTreeMap::new();
        self.dead.clear();
        let folder = match OpenFolder::open(&self.folder) {
            Ok(folder) => folder,
            // No member has joined yet. A folder that existed before and is missing now counts as unreachable.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound
                    && self.own.is_none()
                    && self.seen.is_empty() =>
            {
                return Ok(all);
            }
            Err(error) => return Err(failed(error)),
        };
        for file in folder.names(usize::MAX).map_err(failed)? {
            let Some(file) = file.to_str() else { continue };
            let Some(name) = file.strip_suffix(ENDING) else { continue };
            if name.parse::<Name>().is_err() {
                continue;
            }
            // Opening makes a file server return the file's current time. A plain stat may not.
            let Ok(state) = state_at(&folder, file) else { continue };
            let before = self.seen.remove(name);
            let mut one = match before {
                Some(one) if one.state == state => one,
                before => {
                    let found = read(&folder, file);
                    let known = before.and_then(|one| one.found.err());
                    if let Err(why) = &found
                        && known.as_ref() != Some(why)
                    {
                        let path = self.path_of(name);
                        let path = path.display();
                        tracing::warn!(target: "polyrail::rendezvous", "{path} is left out: {why}");
                    }
                    Seen { state, since: now, found }
                }
            };
            if was_away {
                one.since = now;
            }
            if let Ok(found) = &one.found {
                let (has_ended, silent) = (has_ended(&folder, file), now - one.since);
                if !has_ended && silent < self.lease {
                    all.insert(name.to_owned(), found.clone());
                }
                if has_ended || silent >= self.lease * LEASES_KEPT {
                    self.dead.push((name.to_owned(), one.state));
                }
            }
            seen.insert(name.to_owned(), one);
        }
        self.seen = seen;
        self.looked = Some(Instant::now());
        Ok(all)
    }

    /// Removes the files of dead members. A living member that was taken for dead writes its file again.
    fn tidy(&mut self) {
        let dead = std::mem::take(&mut self.dead);
        if dead.is_empty() || self.own.is_none() {
            return;
        }
        // Another member is joining or tidying up. The next look tries again.
        let Ok(folder) = self.open() else { return };
        let Ok(_lock) =
            folder.append(LOCK, 0o600).and_then(|file| Ok(file.try_lock().map(|()| file)?))
        else {
            return;
        };
        for (name, state) in dead {
            // The name may have a new holder by now.
            if let Err(error) = files::remove(&folder, &file_of(&name), state) {
                let path = self.path_of(&name);
                let path = path.display();
                tracing::debug!(target: "polyrail::rendezvous", "{path} stays: {error}");
            }
        }
    }
}

impl Backend for Dir {
    fn enter(&mut self, stop: &Stop) -> Result<(), RendezvousError> {
        if self.own.is_none() {
            return self.look().map(drop);
        }
        self.make_folder()?;
        self.publish(stop)
    }

    fn poll(&mut self, stop: &Stop) -> Result<News, RendezvousError> {
        if !std::mem::take(&mut self.is_new) {
            let members = u32::try_from(self.seen.len()).unwrap_or(u32::MAX);
            stop.sleep(LOOK_EVERY.max(LOOK_EVERY_PER_MEMBER * members).min(self.lease / 6));
        }
        self.touch()?;
        let all = self.look()?;
        self.tidy();
        Ok(News::All(all))
    }

    fn leave(&mut self, stop: &Stop) {
        let Some((own, _)) = self.own.clone() else { return };
        let (path, file) = (self.path_of(own.name.as_str()), file_of(own.name.as_str()));
        // Another engine may have taken the name after this engine was silent for too long.
        if let Ok(folder) = self.open()
            && let Ok(_lock) = self.lock(&folder, stop)
            && let Ok(state) = state_at(&folder, &file)
            && published(&folder, &file)
                .is_ok_and(|it| it.is_some_and(|(it, _)| *it.metadata == *own.metadata))
            && let Err(error) = files::remove(&folder, &file, state)
        {
            let path = path.display();
            tracing::warn!(target: "polyrail::rendezvous", "{path} can't be removed: {error}");
        }
    }

    fn grace(&self) -> Duration {
        self.lease
    }
}

fn file_of(name: &str) -> String {
    format!("{name}{ENDING}")
}

fn unusable(what: &'static str, path: &Path, source: io::Error) -> RendezvousError {
    RendezvousError::File { what, path: path.display().to_string(), source }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use polyrail::Config;

    use super::*;

    #[test]
    fn a_member_removes_the_file_of_who_is_long_silent_and_who_only_looks_does_not() {
        let place = tempfile::tempdir().unwrap();
        let engine = || {
            let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
            Engine::builder().config(config).build().unwrap()
        };
        let (mine, theirs) = (engine(), engine());
        let own = Own { name: "a".parse().unwrap(), metadata: Arc::from(mine.metadata()) };
        let (folder, group) = (place.path().to_str().unwrap(), "g".parse().unwrap());
        let lease = Duration::from_secs(60);
        let mut dir = Dir::new(folder, &group, lease, Some((own, mine)));
        dir.enter(&Stop::default()).unwrap();
        let path = dir.path_of("b");
        theirs.publish(&path).unwrap();
        assert_eq!(dir.look().unwrap().len(), 2);
        let look_later = |dir: &mut Dir, leases: u32| {
            let silent = dir.seen.get_mut("b").unwrap();
            silent.since =
                silent.since.checked_sub(lease * leases).expect("the host is up for long");
            let names = dir.look().unwrap();
            assert_eq!(names.keys().collect::<Vec<_>>(), ["a"]);
        };
        look_later(&mut dir, 1);
        dir.tidy();
        assert!(path.exists(), "it may be back");

        look_later(&mut dir, LEASES_KEPT);
        let own = dir.own.take();
        dir.tidy();
        assert!(path.exists(), "it only looks");
        dir.own = own;
        dir.look().unwrap();
        theirs.publish(&path).unwrap();
        dir.tidy();
        assert!(path.exists(), "the file is another one by now");

        dir.look().unwrap();
        look_later(&mut dir, LEASES_KEPT);
        dir.tidy();
        assert!(!path.exists() && dir.path_of("a").exists());
    }
}
