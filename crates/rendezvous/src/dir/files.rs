//! Files in the folder of a group: others may have put anything there.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use polyrail::{PublishedEngine, read_published_file};
use polyrail_sys::files::{self, OpenFolder};
use rustix::fs::OFlags;

use crate::member::{Found, engine_in};

/// The number, length and time of a file: it is another one if any of them differs.
pub(super) type State = (u64, u64, SystemTime);

/// Whose the file of a name is.
pub(super) enum Holder {
    /// Nobody's who lives, or this engine's.
    Nobody,
    /// Another engine's that may live, what the file was like, and what the engine is called if that is known.
    Lives(State, Option<String>),
}

impl Holder {
    pub(super) fn of(path: &Path, own: &[u8]) -> Self {
        let Ok(state) = state_at(path) else { return Self::Nobody };
        match published(path) {
            Ok(Some((found, _))) if found.has_ended || found.metadata == own => Self::Nobody,
            Ok(None) => Self::Nobody,
            Ok(Some((found, _))) => Self::Lives(state, engine_in(&found.metadata)),
            Err(_) => Self::Lives(state, None),
        }
    }
}

/// What a file says, if it is of whoever has the folder: others may have put one there.
pub(super) fn read(path: &Path, owner: u32) -> Result<Found, String> {
    let read = open(path).and_then(|file| {
        let user = file.metadata()?.uid();
        if user != owner {
            let why = format!("it belongs to user {user}, and the folder to user {owner}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        read_published_file(&file)
    });
    match read {
        Ok(found) => Ok(Found::Metadata(Arc::from(found.metadata))),
        Err(error) if is_gone(&error) => Err("it is gone".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// What an engine published in a file, and the open file; `None` if it is not there. No link is followed.
pub(super) fn published(path: &Path) -> io::Result<Option<(PublishedEngine, File)>> {
    match open(path).and_then(|file| Ok((read_published_file(&file)?, file))) {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The file is not there, or a lease on it is being given back.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock)
}

/// Whether the process of this host that wrote the file has ended.
pub(super) fn has_ended(path: &Path) -> bool {
    published(path).is_ok_and(|found| found.is_none_or(|(found, _)| found.has_ended))
}

/// Removes a file of the group if it is still the one of this state.
pub(super) fn remove(path: &Path, state: State) -> io::Result<()> {
    let (folder, name) = OpenFolder::of(path)?;
    let file = folder.read(&name)?;
    if state_in(&file.metadata()?)? == state {
        folder.remove(&name, &files::Found::of(&file)?)?;
    }
    Ok(())
}

/// Of whatever has the name, also if this process may not open it.
pub(super) fn state_at(path: &Path) -> io::Result<State> {
    match open(path) {
        Ok(file) => state_in(&file.metadata()?),
        Err(_) => state_in(&fs::symlink_metadata(path)?),
    }
}

/// Opens a regular file for reading, and nothing else: opening a named pipe would wait until another process opens its other
/// end, opening some devices does something, and a link leads to a file that another user chose.
fn open(path: &Path) -> io::Result<File> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Err(irregular());
    }
    // Another process may replace it just now.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)
}

fn state_in(metadata: &fs::Metadata) -> io::Result<State> {
    Ok((metadata.ino(), metadata.len(), metadata.modified()?))
}

/// The file whose lock keeps others from changing names, made if it is not there. No link in the folder is followed, and none of
/// another user on the way.
pub(super) fn lock(path: &Path) -> io::Result<File> {
    let (folder, name) = OpenFolder::of(path)?;
    folder.append(name, 0o600)
}

fn irregular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use polyrail::{Config, Engine};

    use super::*;

    #[test]
    fn a_file_is_judged_by_its_owner_as_it_was_opened_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let engine = Engine::builder().config(config).build().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        engine.publish(&real).unwrap();
        let owner = fs::metadata(&real).unwrap().uid();
        let metadata = published(&real).unwrap().unwrap().0.metadata;
        assert!(read(&real, owner).is_ok() && metadata == engine.metadata());
        // The owner of the file behind the link is right, and so it was when the link was followed.
        symlink(&real, &link).unwrap();
        assert!(read(&link, owner).is_err());
        assert!(published(&link).is_err() && !has_ended(&link));
        let state = state_at(&link).unwrap();
        assert_ne!(state, state_at(&real).unwrap());
        assert!(remove(&link, state).is_err() && link.is_symlink() && real.exists());
        let why = read(&real, owner + 1).map(drop).unwrap_err();
        assert!(why.starts_with(&format!("it belongs to user {owner}, and the folder")), "{why}");
        let gone = read(&folder.path().join("none"), owner).map(drop);
        assert_eq!(gone.unwrap_err(), "it is gone");
    }

    #[test]
    fn a_lock_is_made_through_no_link_of_another_user_and_no_file_of_one_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("real")).unwrap();
        symlink("real", at("way")).unwrap();
        // A link of this user leads to a folder, and none leads to the file.
        lock(&at("way/.lock")).unwrap();
        symlink("away", at("real/link")).unwrap();
        assert!(lock(&at("real/link")).is_err() && !at("real/away").exists());
        if !files::is_privileged() {
            return polyrail_skip::skip(
                "needs root",
                "sudo cargo test -p polyrail-rendezvous --lib",
            );
        }
        let give = |name| lchown(at(name), Some(65534), None).unwrap();
        give("way");
        fs::remove_file(at("real/.lock")).unwrap();
        let error = lock(&at("way/.lock")).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
        assert!(!at("real/.lock").exists());
        fs::write(at("real/.lock"), "").unwrap();
        give("real/.lock");
        let error = lock(&at("real/.lock")).unwrap_err().to_string();
        assert!(
            error.contains("belongs to user 65534; allowed: files of root and of this user"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_has_changed_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        fs::write(&path, "dead").unwrap();
        let state = state_at(&path).unwrap();
        fs::write(&path, "another").unwrap();
        remove(&path, state).unwrap();
        assert!(path.exists());
        remove(&path, state_at(&path).unwrap()).unwrap();
        assert!(!path.exists());
    }
}
