//! Files that the process writes, perhaps in a folder where others may write.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, renameat, unlinkat};
use rustix::io::Errno;

use super::privilege::{is_privileged, is_trusted};
use super::refused;
use super::walk::{Place, Purpose, Walk};

/// Mode of opening a file for writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// Creates the file and fails if it exists. Appends.
    New,
    /// Creates the file if it is missing. Truncates it.
    Truncate,
    /// Creates the file if it is missing. Keeps its content.
    Write,
    /// Like [`Self::Write`], and readable.
    Keep,
    /// Creates the file if it is missing. Appends. Does not block on pipes.
    Append,
    /// Like [`Self::Append`], and readable.
    ReadAppend,
}

/// Opens a file for writing; `mode` is for a new one.
///
/// Links of other users are not followed anywhere in the path. In a process [with privileges](is_privileged) these are
/// refused, too: files and pipes of other users, and files with several names in a folder where others may create
/// names.
///
/// # Errors
/// System errors; [`io::ErrorKind::InvalidData`] for refused files, with the reason.
pub fn open_to_write(path: &Path, opening: Opening, mode: u32) -> io::Result<File> {
    loop {
        match open(&find(path)?, opening, mode) {
            // Another process has just created the file: look it up again.
            Err(error)
                if error.kind() == io::ErrorKind::AlreadyExists && opening != Opening::New => {}
            opened => return opened,
        }
    }
}

/// Replaces a file atomically: if the disk is full or this process is killed, the older file stays, and no reader sees
/// a part of either. Devices and pipes are written to. Follows links and refuses files like [`open_to_write`], but
/// replaces a file of another user in a folder of that user, because nothing is written to that file. The new file
/// keeps the older one's permissions, except those that another user chose.
///
/// # Errors
/// As [`open_to_write`]. Then nothing of the new file is left.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let place = find(path)?;
    let is_regular = |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if place.is_of_kernel || place.found.as_ref().is_some_and(|found| !is_regular(found)) {
        return open(&place, Opening::Truncate, 0o666)?.write_all(bytes);
    }
    judge_replaced(&place)?;
    let draft = draft_of(&place.name);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = match openat(&place.folder, &draft, flags, Mode::from_raw_mode(0o666)) {
        Ok(file) => File::from(file),
        Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => return Err(errno.into()),
        // The folder allows no new files, so write to the file itself.
        Err(_) => return open(&place, Opening::Truncate, 0o666)?.write_all(bytes),
    };
    let kept = place.found.as_ref().and_then(|old| mode_to_keep(&place, old));
    let keep_mode = |file: &File| match kept {
        Some(mode) => file.set_permissions(Permissions::from_mode(mode)),
        None => Ok(()),
    };
    let rename = || Ok(renameat(&place.folder, &draft, &place.folder, &place.name)?);
    let written = file.write_all(bytes).and_then(|()| keep_mode(&file)).and_then(|()| rename());
    if written.is_err() {
        // The first error is returned.
        let _ = unlinkat(&place.folder, &draft, AtFlags::empty());
    }
    written
}

/// Checks that [`replace`] would not refuse this path. Creates nothing. A missing folder is fine.
///
/// # Errors
/// As [`replace`].
pub fn require_replaceable(path: &Path) -> io::Result<()> {
    match find(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        found => judge_replaced(&found?),
    }
}

fn judge_replaced(place: &Place) -> io::Result<()> {
    let Some(found) = &place.found else { return Ok(()) };
    let kind = FileType::from_raw_mode(found.st_mode);
    let is_at_home = kind == FileType::RegularFile && found.st_uid == place.folder_stat.st_uid;
    if is_at_home && !is_trusted(found.st_uid) { Ok(()) } else { judge(place, found) }
}

/// Permissions of the older file that the new one keeps. `None` for those of a new file. In a process with privileges,
/// the new file is not writable by others if they could have set the older permissions.
fn mode_to_keep(place: &Place, old: &Stat) -> Option<u32> {
    let mode = old.st_mode & 0o777;
    match is_privileged() {
        true if !is_trusted(old.st_uid) => None,
        true if is_shared(&place.folder_stat) => Some(mode & !0o022),
        _ => Some(mode),
    }
}

/// Creates a folder and its missing parents. Follows links like [`open_to_write`].
///
/// # Errors
/// As [`open_to_write`], and if the name is taken by anything but a folder.
pub fn make_folders(path: &Path, mode: u32) -> io::Result<()> {
    match walk(Some(mode)).to(path)?.name == "." {
        true => Ok(()),
        false => Err(Errno::NOTDIR.into()),
    }
}

pub(super) fn find(path: &Path) -> io::Result<Place> {
    walk(None).to(path)
}

fn walk(makes_folders: Option<u32>) -> Walk<'static> {
    Walk { purpose: Purpose::Write, root: Path::new("/"), makes_folders, follows_last: true }
}

/// Opens the end of a path, and checks the opened file.
pub(super) fn open(place: &Place, opening: Opening, mode: u32) -> io::Result<File> {
    use OFlags as O;
    if let Some(found) = &place.found {
        if opening == Opening::New {
            return Err(Errno::EXIST.into());
        }
        judge(place, found)?;
    }
    let how = match opening {
        Opening::New => O::WRONLY | O::CREATE | O::EXCL | O::APPEND,
        // Truncated after the check.
        Opening::Truncate => O::WRONLY | O::CREATE,
        Opening::Write => O::WRONLY | O::CREATE,
        Opening::Keep => O::RDWR | O::CREATE,
        Opening::Append => O::WRONLY | O::APPEND | O::CREATE | O::NONBLOCK,
        Opening::ReadAppend => O::RDWR | O::APPEND | O::CREATE | O::NONBLOCK,
    };
    // A new file must be new. Otherwise it may be a link or file that another user has just planted.
    let how = if place.found.is_none() && how.contains(O::CREATE) { how | O::EXCL } else { how };
    let how = if place.is_of_kernel { how & !O::CREATE } else { how | O::NOFOLLOW };
    let flags = how | O::NOCTTY | O::CLOEXEC;
    let file = openat(&place.folder, &place.name, flags, Mode::from_raw_mode(mode))?;
    if let Some(found) = place.found.as_ref().filter(|_| !place.is_of_kernel) {
        let now = fstat(&file)?;
        if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino) {
            judge(place, &now)?;
        }
    }
    let file = File::from(file);
    if opening == Opening::Truncate && file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Refuses files that another user may have planted for this process to write to.
fn judge(place: &Place, found: &Stat) -> io::Result<()> {
    let kind = FileType::from_raw_mode(found.st_mode);
    let can_be_laid = matches!(kind, FileType::RegularFile | FileType::Fifo);
    if !is_privileged() || place.is_of_kernel || !can_be_laid {
        return Ok(());
    }
    let (folder, shown) = (&place.folder_stat, place.path.display());
    if !is_trusted(found.st_uid) {
        return Err(refused(format!(
            "{shown} belongs to user {}; allowed: files of root and of this user",
            found.st_uid
        )));
    }
    match is_shared(folder) && found.st_nlink > 1 {
        false => Ok(()),
        true => Err(refused(format!(
            "{shown} is one of {} names of a file, in a folder where others may make names; allowed: a file of one name",
            found.st_nlink
        ))),
    }
}

/// True if other users may create names in a folder.
fn is_shared(folder: &Stat) -> bool {
    !is_trusted(folder.st_uid) || folder.st_mode & 0o022 != 0
}

/// Temporary name of a file that is renamed to `name` when it is complete.
pub(super) fn draft_of(name: &OsStr) -> OsString {
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let mut draft = name.to_owned();
    draft.push(format!(".{}.{number}.draft", std::process::id()));
    draft
}
