//! Files whose word counts: journals that are undone, settings that are obeyed.

use std::env;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat};

use super::privilege::is_privileged;
use super::walk::{Place, Purpose, Walk, judge_code, judge_trusted};
use super::{NULL_DEVICE, refused};

/// Opens a regular file that decides what this process does, for reading, or with `to_append` for appending too.
///
/// Where the process [has privileges](is_privileged), the file, every folder on its way and every link must belong to root
/// or to this user, and nobody else may write them; a folder such as `/tmp` may be on the way. What was opened is
/// judged, so others can't replace it in between. Never waits for a pipe. `/dev/null` can be read, and so can a file or
/// pipe of such a user by its descriptor, such as `/dev/stdin`.
///
/// # Errors
/// Of the system; [`io::ErrorKind::InvalidData`] for a file that is not trusted, with what is wrong;
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

/// Refuses code that was found and not named, if others than root and this user can change it: its file, every folder
/// on its way and every link. The group may write it where this process has no [privileges](is_privileged). It may be judged
/// and then loaded by its path: nobody else can replace it in between.
///
/// # Errors
/// As [`open_trusted`].
pub fn require_trusted_code(path: &Path) -> io::Result<()> {
    let place = walk_to(path, Purpose::Run)?;
    let Some(found) = &place.found else { return Err(io::ErrorKind::NotFound.into()) };
    require_regular(found)?;
    judge_code(found, path)
}

/// Opens what a link of `/proc` leads to.
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

/// Checks that nobody but root and this user can change what is in a folder, or lay one of its name if it is not there
/// yet. Always so for a process without privileges.
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
                // Its folder was judged on the way.
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

/// The path from the root, so that every folder above is judged. `..` stays: it may lead through a link.
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
