//! Files that the process trusts: journals that it undoes, settings that it obeys.

use std::env;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat};

use super::privilege::is_privileged;
use super::walk::{Place, Purpose, Walk, judge_code, judge_trusted};
use super::{NULL_DEVICE, refused};

/// Opens a regular file that decides what this process does, for reading, or with `to_append` also for appending.
///
/// If the process [has privileges](is_privileged), the file, every folder in its path and every link must belong to
/// root or to this user, and be writable by no other; folders such as `/tmp` in the path are allowed. The check uses
/// the opened file, so others can't replace it in between. Does not block on pipes. `/dev/null` can be read, and so can
/// a trusted user's file or pipe by its descriptor, such as `/dev/stdin`.
///
/// # Errors
/// System errors; [`io::ErrorKind::InvalidData`] for an untrusted file, with the reason;
/// [`io::ErrorKind::InvalidInput`] for a pipe, a socket, a folder or a device.
pub fn open_trusted(path: &Path, to_append: bool) -> io::Result<File> {
    let place = find(path)?;
    let Some(found) = &place.found else { return Err(io::ErrorKind::NotFound.into()) };
    if found.st_rdev == NULL_DEVICE && !to_append {
        return File::open("/dev/null");
    }
    if place.is_of_kernel && !to_append {
        return open_descriptor(&place, path);
    }
    require_regular(found)?;
    let access = if to_append { OFlags::RDWR | OFlags::APPEND } else { OFlags::RDONLY };
    let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(&place.folder, &place.name, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    require_regular(&stat)?;
    if is_privileged() {
        judge_trusted(&stat, path)?;
    }
    if to_append && stat.st_nlink > 1 {
        let fault = format!(
            "{} is one of {} names of a file; allowed: a file of one name",
            path.display(),
            stat.st_nlink
        );
        return Err(refused(fault));
    }
    Ok(File::from(file))
}

/// Refuses code at a path that the user did not name if others than root and this user can change it: its file, every
/// folder in its path and every link. The group may write it if this process has no [privileges](is_privileged). Code
/// that passes can be loaded by its path afterwards: no other user can replace it in between.
///
/// # Errors
/// As [`open_trusted`].
pub fn require_trusted_code(path: &Path) -> io::Result<()> {
    let place = walk_to(path, Purpose::Run)?;
    let Some(found) = &place.found else { return Err(io::ErrorKind::NotFound.into()) };
    require_regular(found)?;
    judge_code(found, path)
}

/// Opens the target of a link of `/proc`.
fn open_descriptor(place: &Place, path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(&place.folder, &place.name, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Fifo {
        require_regular(&stat)?;
    }
    if is_privileged() {
        judge_trusted(&stat, path)?;
    }
    Ok(File::from(file))
}

/// Checks that only root and this user can change the contents of a folder, or create it if it is missing. Processes
/// without privileges always pass.
///
/// # Errors
/// As [`open_trusted`].
pub fn require_trusted(folder: &Path) -> io::Result<()> {
    let mut folder = absolute(folder)?;
    if !is_privileged() {
        return Ok(());
    }
    let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    loop {
        match find(&folder) {
            Ok(place) => match &place.found {
                Some(stat) => return judge_trusted(stat, &folder),
                // The walk has checked its parent folder.
                None => return Ok(()),
            },
            Err(error) if is_missing(&error) && folder.pop() => {}
            Err(error) => return Err(error),
        }
    }
}

fn find(path: &Path) -> io::Result<Place> {
    walk_to(path, Purpose::Trust)
}

fn walk_to(path: &Path, purpose: Purpose) -> io::Result<Place> {
    let walk = Walk { purpose, root: Path::new("/"), makes_folders: None, follows_last: true };
    walk.to(&absolute(path)?)
}

/// Makes the path absolute, so that every folder above is checked. `..` stays, because it may lead through a link.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    match path.is_absolute() {
        true => Ok(path.to_owned()),
        false => Ok(env::current_dir()?.join(path)),
    }
}

fn require_regular(found: &Stat) -> io::Result<()> {
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")),
    }
}
