//! Files in the folder of a group. Other users may have put anything there.

use std::fs::File;
use std::io;
use std::sync::Arc;

use polyrail::{PublishedEngine, read_published_file};
use polyrail_sys::files::{Found as Name, OpenFolder};

use crate::member::{Found, engine_in};

/// Number, length and time of a file. Two files with the same name are equal only if all of them match.
pub(super) type State = (u64, i64, i64, u64);

/// Holder of a name.
pub(super) enum Holder {
    /// No living engine, or this engine.
    Nobody,
    /// Another engine that may live: the state of its file, and its name if known.
    Lives(State, Option<String>),
}

impl Holder {
    pub(super) fn of(folder: &OpenFolder, name: &str, own: &[u8]) -> Self {
        let Ok(state) = state_at(folder, name) else { return Self::Nobody };
        match published(folder, name) {
            Ok(Some((found, _))) if found.has_ended || found.metadata == own => Self::Nobody,
            Ok(None) => Self::Nobody,
            Ok(Some((found, _))) => Self::Lives(state, engine_in(&found.metadata)),
            Err(_) => Self::Lives(state, None),
        }
    }
}

/// Reads a member's file. Files of users other than the folder's owner are refused.
pub(super) fn read(folder: &OpenFolder, name: &str) -> Result<Found, String> {
    let read = open(folder, name).and_then(|file| {
        let (user, owner) = (Name::of(&file)?.owner(), folder.owner());
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

/// Returns an engine's published record with the open file, or `None` if there is no such file. Follows no links.
pub(super) fn published(
    folder: &OpenFolder,
    name: &str,
) -> io::Result<Option<(PublishedEngine, File)>> {
    match open(folder, name).and_then(|file| Ok((read_published_file(&file)?, file))) {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if the file is missing, or a lease on it is being given back.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock)
}

/// True if the file was written by a process of this host that has ended, or if there is no file.
pub(super) fn has_ended(folder: &OpenFolder, name: &str) -> bool {
    published(folder, name).is_ok_and(|found| found.is_none_or(|(found, _)| found.has_ended))
}

/// Removes a file of the group if it still has this state.
pub(super) fn remove(folder: &OpenFolder, name: &str, state: State) -> io::Result<()> {
    let found = Name::of(&folder.read(name)?)?;
    if found.version() == state {
        folder.remove(name, &found)?;
    }
    Ok(())
}

/// State of the file with this name, even if this process may not open it.
pub(super) fn state_at(folder: &OpenFolder, name: &str) -> io::Result<State> {
    match open(folder, name) {
        Ok(file) => Ok(Name::of(&file)?.version()),
        Err(_) => Ok(folder.find(name)?.ok_or(io::ErrorKind::NotFound)?.version()),
    }
}

/// Opens regular files for reading. Opening a named pipe would block until another process opens its other end, opening
/// some devices has side effects, and a link leads to a file that another user chose.
fn open(folder: &OpenFolder, name: &str) -> io::Result<File> {
    match folder.find(name)? {
        None => Err(io::ErrorKind::NotFound.into()),
        Some(found) if !found.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
        }
        // Another process may replace the file between the check and the open. The callers check the opened file.
        Some(_) => folder.read(name),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    use polyrail::{Config, Engine};

    use super::*;

    fn open_folder(folder: &tempfile::TempDir) -> OpenFolder {
        OpenFolder::open(folder.path()).unwrap()
    }

    #[test]
    fn a_file_is_judged_by_its_owner_as_it_was_opened_and_no_link_is_followed() {
        let folder = tempfile::tempdir().unwrap();
        let open = open_folder(&folder);
        let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
        let engine = Engine::builder().config(config).build().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        engine.publish(&real).unwrap();
        let metadata = published(&open, "real").unwrap().unwrap().0.metadata;
        assert!(read(&open, "real").is_ok() && metadata == engine.metadata());
        // The file behind the link has the right owner, so following the link would succeed.
        symlink(&real, &link).unwrap();
        assert!(read(&open, "link").is_err());
        assert!(published(&open, "link").is_err() && !has_ended(&open, "link"));
        let state = state_at(&open, "link").unwrap();
        assert_ne!(state, state_at(&open, "real").unwrap());
        assert!(remove(&open, "link", state).is_err() && link.is_symlink() && real.exists());
        assert_eq!(read(&open, "none").map(drop).unwrap_err(), "it is gone");
        if !rustix::process::geteuid().is_root() {
            return polyrail_skip::skip(
                "needs root",
                "sudo cargo test -p polyrail-rendezvous --lib",
            );
        }
        chown(&real, Some(65534), None).unwrap();
        let why = read(&open, "real").map(drop).unwrap_err();
        assert_eq!(why, "it belongs to user 65534, and the folder to user 0");
    }

    #[test]
    fn members_are_read_in_the_folder_that_was_judged_whatever_has_its_path_by_then() {
        let above = tempfile::tempdir().unwrap();
        let at = |name: &str| above.path().join(name);
        fs::create_dir_all(at("group")).unwrap();
        fs::create_dir_all(at("theirs")).unwrap();
        for (name, text) in [("group/f", "judged"), ("theirs/f", "another text")] {
            fs::write(at(name), text).unwrap();
        }
        let folder = OpenFolder::open(&at("group")).unwrap();
        let before = state_at(&folder, "f").unwrap();
        fs::rename(at("group"), at("away")).unwrap();
        symlink("theirs", at("group")).unwrap();
        assert_eq!(state_at(&folder, "f").unwrap(), before);
        remove(&folder, "f", before).unwrap();
        assert!(at("theirs/f").exists() && !at("away/f").exists());
    }

    #[test]
    fn a_file_that_has_changed_is_not_removed() {
        let folder = tempfile::tempdir().unwrap();
        let open = open_folder(&folder);
        let path = folder.path().join("f");
        fs::write(&path, "dead").unwrap();
        let state = state_at(&open, "f").unwrap();
        fs::write(&path, "another").unwrap();
        remove(&open, "f", state).unwrap();
        assert!(path.exists());
        remove(&open, "f", state_at(&open, "f").unwrap()).unwrap();
        assert!(!path.exists());
    }
}
