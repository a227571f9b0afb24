//! Files in the folder of a group: others may have put anything there.

use std::fs::File;
use std::io;
use std::sync::Arc;

use polyrail::{PublishedEngine, read_published_file};
use polyrail_sys::files::{Found as Name, OpenFolder};

use crate::member::{Found, engine_in};

/// The number, length and time of a file: it is another one if any of them differs.
pub(super) type State = (u64, i64, i64, u64);

/// Whose the file of a name is.
pub(super) enum Holder {
    /// Nobody's who lives, or this engine's.
    Nobody,
    /// Another engine's that may live, what the file was like, and what the engine is called if that is known.
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

/// What a file says, if it is of the folder's owner: others may have put one there.
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

/// What an engine published in a file, and the open file; `None` if it is not there. No link is followed.
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

/// The file is not there, or a lease on it is being given back.
fn is_gone(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock)
}

/// Whether the process of this host that wrote the file has ended.
pub(super) fn has_ended(folder: &OpenFolder, name: &str) -> bool {
    published(folder, name).is_ok_and(|found| found.is_none_or(|(found, _)| found.has_ended))
}

/// Removes a file of the group if it is still the one of this state.
pub(super) fn remove(folder: &OpenFolder, name: &str, state: State) -> io::Result<()> {
    let found = Name::of(&folder.read(name)?)?;
    if found.version() == state {
        folder.remove(name, &found)?;
    }
    Ok(())
}

/// Of whatever has the name, also if this process may not open it.
pub(super) fn state_at(folder: &OpenFolder, name: &str) -> io::Result<State> {
    match open(folder, name) {
        Ok(file) => Ok(Name::of(&file)?.version()),
        Err(_) => Ok(folder.find(name)?.ok_or(io::ErrorKind::NotFound)?.version()),
    }
}

/// Opens a regular file for reading, and nothing else: opening a named pipe would wait until another process opens its other
/// end, opening some devices does something, and a link leads to a file that another user chose.
fn open(folder: &OpenFolder, name: &str) -> io::Result<File> {
    match folder.find(name)? {
        None => Err(io::ErrorKind::NotFound.into()),
        Some(found) if !found.is_file() => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
        }
        // Another process may replace it just now, which is judged again.
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
        // The owner of the file behind the link is right, and so it was when the link was followed.
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
