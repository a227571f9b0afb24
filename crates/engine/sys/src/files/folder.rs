//! A folder that stays open, so that renaming it or replacing it by a link has no effect on later calls.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, renameat, statat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::privilege::is_privileged;
use super::refused;
use super::walk::{FOLDER, LOOK, Place, judge_trusted};
use super::write::{self, Opening, draft_of, find};

/// An open folder. Names in it are single path parts. Links with such names are never followed.
#[derive(Debug)]
pub struct OpenFolder {
    fd: OwnedFd,
    stat: Stat,
    path: PathBuf,
}

/// State of a name in an [`OpenFolder`] when it was looked up.
#[derive(Clone, Copy, Debug)]
pub struct Found(Stat);

impl Found {
    /// State of an open file.
    ///
    /// # Errors
    /// System errors.
    pub fn of(file: &File) -> io::Result<Self> {
        Ok(Self(fstat(file)?))
    }

    /// True for a symbolic link.
    pub fn is_link(&self) -> bool {
        self.kind() == FileType::Symlink
    }

    /// True for a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// True for a socket.
    pub fn is_socket(&self) -> bool {
        self.kind() == FileType::Socket
    }

    /// Owner of the file.
    pub fn owner(&self) -> u32 {
        self.0.st_uid
    }

    /// Inode number, length and modification time (s, ns). They differ if the file is another one, or was written
    /// since.
    pub fn version(&self) -> (u64, i64, i64, u64) {
        (self.0.st_ino, self.0.st_size, self.0.st_mtime, self.0.st_mtime_nsec)
    }

    /// True if both are the same file.
    pub fn is(&self, other: &Self) -> bool {
        let file = |stat: &Stat| (stat.st_dev, stat.st_ino, stat.st_mode & FILE_TYPE);
        file(&self.0) == file(&other.0)
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.0.st_mode)
    }
}

/// The bits of a mode that hold the file type.
const FILE_TYPE: u32 = 0o170_000;

impl OpenFolder {
    /// Opens a folder. Follows links as [`super::open_to_write`] does.
    ///
    /// # Errors
    /// As [`super::open_to_write`], and if there is no folder with that name.
    pub fn open(path: &Path) -> io::Result<Self> {
        let place = find(path)?;
        match (place.name == ".", place.found) {
            (true, _) if place.path.as_os_str().is_empty() => {
                Ok(Self { fd: place.folder, stat: place.folder_stat, path: PathBuf::from(".") })
            }
            (true, _) => Ok(Self { fd: place.folder, stat: place.folder_stat, path: place.path }),
            (false, None) => Err(Errno::NOENT.into()),
            (false, Some(_)) => Err(Errno::NOTDIR.into()),
        }
    }

    /// Opens the folder of a file, and returns it with the name of the file.
    ///
    /// # Errors
    /// As [`Self::open`]; [`io::ErrorKind::InvalidInput`] if the path does not end with a name.
    pub fn of(path: &Path) -> io::Result<(Self, OsString)> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        Ok((Self::open(folder.unwrap_or(Path::new(".")))?, name.to_owned()))
    }

    /// Opens a folder in this one. `to_make` creates it if it is missing.
    ///
    /// # Errors
    /// System errors, also if the name is a link.
    pub fn inside(&self, name: impl AsRef<OsStr>, to_make: bool) -> io::Result<Self> {
        let name = name.as_ref();
        if to_make {
            match mkdirat(&self.fd, name, Mode::from_raw_mode(0o777)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        let fd = openat(&self.fd, name, FOLDER | OFlags::NOFOLLOW, Mode::empty())?;
        Ok(Self { stat: fstat(&fd)?, fd, path: self.path.join(name) })
    }

    /// Checks that no other user can change the contents of this folder. Folders such as `/tmp` pass, because others
    /// can't rename files there that aren't theirs. Processes without privileges always pass.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] with the owner or the mode.
    pub fn require_trusted(&self) -> io::Result<()> {
        if is_privileged() { judge_trusted(&self.stat, &self.path) } else { Ok(()) }
    }

    /// Owner of the folder.
    pub fn owner(&self) -> u32 {
        self.stat.st_uid
    }

    /// Path of the folder when it was opened, without links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path to a name in this folder by its descriptor, for calls that take paths only. Valid while the folder is open,
    /// and if `/proc` is mounted.
    pub fn path_by_descriptor(&self, name: impl AsRef<OsStr>) -> PathBuf {
        Path::new(&format!("/proc/self/fd/{}", self.fd.as_raw_fd())).join(name.as_ref())
    }

    /// Lists at most `most` names, in any order.
    ///
    /// # Errors
    /// System errors.
    pub fn names(&self, most: usize) -> io::Result<Vec<OsString>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let entries = Dir::new(openat(&self.fd, ".", flags, Mode::empty())?)?;
        let names =
            entries.map(|entry| Ok(OsString::from_vec(entry?.file_name().to_bytes().to_vec())));
        let is_name = |name: &io::Result<OsString>| {
            !name.as_ref().is_ok_and(|name| name == "." || name == "..")
        };
        names.filter(is_name).take(most).collect()
    }

    /// Looks a name up. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// System errors.
    pub fn find(&self, name: impl AsRef<OsStr>) -> io::Result<Option<Found>> {
        match statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(Found(stat))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Opens a regular file for reading. Does not block on pipes.
    ///
    /// # Errors
    /// System errors; [`io::ErrorKind::InvalidInput`] for anything but a regular file.
    pub fn read(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        regular(self.open_file(name.as_ref(), flags, Mode::empty())?)
    }

    /// Like [`Self::read`]. If this process [has privileges](is_privileged), also checks that no other user can have
    /// written the file.
    ///
    /// # Errors
    /// As [`Self::read`]; [`io::ErrorKind::InvalidData`] with the owner or the mode.
    pub fn read_trusted(&self, name: impl AsRef<OsStr>) -> io::Result<File> {
        let file = self.read(name.as_ref())?;
        if is_privileged() {
            judge_trusted(&fstat(&file)?, &self.path.join(name.as_ref()))?;
        }
        Ok(file)
    }

    /// Creates a file for writing. Fails if the name exists.
    ///
    /// # Errors
    /// System errors.
    pub fn create(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        Ok(self.open_file(name.as_ref(), flags, Mode::from_raw_mode(mode))?)
    }

    /// Opens a regular file for appending. Creates it with this mode if it is missing. Does not block on pipes.
    ///
    /// # Errors
    /// As [`super::open_to_write`]; [`io::ErrorKind::InvalidInput`] for links and all other kinds of files.
    pub fn append(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        loop {
            let found = self.find(name.as_ref())?;
            if found.is_some_and(|found| !found.is_file()) {
                return Err(irregular());
            }
            let place = Place {
                folder: self.fd.try_clone()?,
                folder_stat: self.stat,
                name: name.as_ref().to_owned(),
                found: found.map(|found| found.0),
                path: self.path.join(name.as_ref()),
                is_of_kernel: false,
            };
            match write::open(&place, Opening::Append, mode) {
                // Another process has just created the file: look it up again.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                opened => return regular(opened?),
            }
        }
    }

    fn open_file(&self, name: &OsStr, how: OFlags, mode: Mode) -> Result<File, Errno> {
        let flags = how | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.fd, name, flags, mode)?))
    }

    /// Removes a name if it still has this state. Returns true if the name is gone.
    ///
    /// # Errors
    /// System errors.
    pub fn remove(&self, name: impl AsRef<OsStr>, found: &Found) -> io::Result<bool> {
        let name = name.as_ref();
        match self.find(name)? {
            None => return Ok(true),
            Some(now) if !now.is(found) => return Ok(false),
            Some(_) => {}
        }
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes an empty folder in this one.
    ///
    /// # Errors
    /// System errors.
    pub fn remove_folder(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name.as_ref(), AtFlags::REMOVEDIR)?)
    }

    /// Renames an entry of this folder. Replaces the target.
    ///
    /// # Errors
    /// System errors.
    pub fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(renameat(&self.fd, from.as_ref(), &self.fd, to.as_ref())?)
    }

    /// Creates a link. Replaces an older link.
    ///
    /// # Errors
    /// System errors; [`io::ErrorKind::AlreadyExists`] if the name is taken by anything but a link.
    pub fn put_link(&self, name: impl AsRef<OsStr>, to: impl AsRef<Path>) -> io::Result<()> {
        let name = name.as_ref();
        if self.find(name)?.is_some_and(|found| !found.is_link()) {
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is there, and no link"));
        }
        let draft = draft_of(name);
        symlinkat(to.as_ref(), &self.fd, &draft)?;
        self.rename(&draft, name).inspect_err(|_| {
            // The rename error is returned.
            let _ = unlinkat(&self.fd, &draft, AtFlags::empty());
        })
    }

    /// Sets the permissions of a socket that this process has just created, and returns its state.
    ///
    /// # Errors
    /// System errors, also if `/proc` is not mounted; [`io::ErrorKind::InvalidData`] if another user has replaced the
    /// socket.
    pub fn set_mode_of_socket(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<Found> {
        let name = name.as_ref();
        let file = openat(&self.fd, name, LOOK, Mode::empty())?;
        let found = Found(fstat(&file)?);
        let is_own = found.0.st_uid == geteuid().as_raw() && found.0.st_nlink == 1;
        if !found.is_socket() || !is_own {
            let shown = self.path.join(name);
            let shown = shown.display();
            return Err(refused(format!(
                "{shown} was replaced just now by what another user chose"
            )));
        }
        // The descriptor refers to the checked file, even if another file has the name now.
        let opened = format!("/proc/self/fd/{}", file.as_raw_fd());
        std::fs::set_permissions(opened, Permissions::from_mode(mode))?;
        Ok(found)
    }
}

/// Removes the name of a file that this process has opened, unless another file has the name by now. Follows links like
/// [`super::open_to_write`].
///
/// # Errors
/// As [`OpenFolder::open`].
pub fn remove_opened(path: &Path, file: &File) -> io::Result<bool> {
    let place = find(path)?;
    let folder = OpenFolder { fd: place.folder, stat: place.folder_stat, path: place.path };
    folder.remove(&place.name, &Found::of(file)?)
}

/// Removes an empty folder. Follows links in the path like [`super::open_to_write`].
///
/// # Errors
/// As [`OpenFolder::open`], and if the folder is not empty.
pub fn remove_empty(path: &Path) -> io::Result<()> {
    let (above, name) = OpenFolder::of(path)?;
    above.remove_folder(name)
}

fn regular(file: File) -> io::Result<File> {
    if file.metadata()?.is_file() { Ok(file) } else { Err(irregular()) }
}

fn irregular() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file")
}
