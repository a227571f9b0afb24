//! Files of the copy of a machine, which may come from anywhere: a link in it leads to a place in the copy.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, openat, openat2, readlinkat,
};
use rustix::io::Errno;

use super::walk::{FOLDER, LOOK, Place, Purpose, Walk};
use super::{NULL_DEVICE, refused};

/// A file or folder below a root.
#[derive(Debug)]
pub struct Below {
    place: Place,
    found: Stat,
}

impl Below {
    /// Looks at `absolute` as a process would whose root is `root`: links, also absolute ones, stay below it. Opens nothing.
    ///
    /// # Errors
    /// Of the system.
    pub fn find(root: &Path, absolute: &Path) -> io::Result<Self> {
        Self::of(root, absolute, true)
    }

    /// As [`Self::find`], and a link that is the last part is not followed.
    ///
    /// # Errors
    /// Of the system.
    pub fn find_link(root: &Path, absolute: &Path) -> io::Result<Self> {
        Self::of(root, absolute, false)
    }

    /// The path below the root that `absolute` leads to, without links.
    ///
    /// # Errors
    /// Of the system.
    pub fn resolve(root: &Path, absolute: &Path) -> io::Result<PathBuf> {
        Ok(Self::part_by_part(root, absolute, true)?.place.path)
    }

    fn of(root: &Path, absolute: &Path, follows_last: bool) -> io::Result<Self> {
        if let Some(found) = Self::at_once(root, absolute, follows_last)? {
            return Ok(found);
        }
        Self::part_by_part(root, absolute, follows_last)
    }

    fn part_by_part(root: &Path, absolute: &Path, follows_last: bool) -> io::Result<Self> {
        let walk = Walk { purpose: Purpose::Below, root, makes_folders: None, follows_last };
        let place = walk.to(&Path::new("/").join(absolute))?;
        match place.found {
            Some(found) => Ok(Self { place, found }),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Asks the kernel for the folder in a single call. `None` if the name in it is a link to follow, or if the kernel
    /// has no such call (before Linux 5.6): walking there finds it as well, in three calls for each part.
    fn at_once(root: &Path, absolute: &Path, follows_last: bool) -> io::Result<Option<Self>> {
        let absolute = Path::new("/").join(absolute);
        let (Some(above), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Ok(None);
        };
        let root = openat(CWD, root, FOLDER, Mode::empty())?;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let folder = match openat2(&root, above, FOLDER, Mode::empty(), within) {
            // The kernel gives up where something is renamed meanwhile; a container may refuse the call.
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => return Ok(None),
            folder => folder?,
        };
        let found = fstat(openat(&folder, name, LOOK, Mode::empty())?)?;
        if follows_last && FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            return Ok(None);
        }
        let place = Place {
            folder_stat: fstat(&folder)?,
            folder,
            name: name.to_owned(),
            found: Some(found),
            path: absolute.clone(),
            is_of_kernel: false,
        };
        Ok(Some(Self { place, found }))
    }

    /// Whether it is a folder.
    pub fn is_folder(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// The permissions, owner's first, as in `chmod`.
    pub fn mode(&self) -> u32 {
        self.found.st_mode & 0o7777
    }

    /// The text of a link.
    ///
    /// # Errors
    /// Of the system, also if it is no link.
    pub fn link(&self) -> io::Result<PathBuf> {
        let target = readlinkat(&self.place.folder, &self.place.name, Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Of the system; [`io::ErrorKind::InvalidData`] for a pipe, a socket or a device, except `/dev/null`.
    pub fn open(&self) -> io::Result<File> {
        // Containers hide files behind `/dev/null`. The system itself refuses to read a folder.
        let can_be_read = self.is_file() || self.is_folder() || self.found.st_rdev == NULL_DEVICE;
        if !can_be_read {
            return Err(refused("it is a pipe, a socket or a device; allowed: a file".to_owned()));
        }
        let file = self.place.open(OFlags::RDONLY | OFlags::NONBLOCK)?;
        self.same(file)
    }

    /// Opens a file for writing; with `to_empty` its text is gone. It must be a regular file with one name, so that it is a
    /// file of the copy and of nothing else.
    ///
    /// # Errors
    /// Of the system; [`io::ErrorKind::InvalidData`] for another file, with the reason.
    pub fn open_to_write(&self, to_empty: bool) -> io::Result<File> {
        let shown = self.place.path.display();
        if !self.is_file() || self.found.st_nlink != 1 {
            let fault = "is a link, a second name of a file, or no regular file";
            return Err(refused(format!(
                "{shown} {fault}; allowed below a copy of a machine: a file of one name"
            )));
        }
        let file = self.same(self.place.open(OFlags::WRONLY | OFlags::NONBLOCK)?)?;
        if to_empty {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// The names in a folder.
    ///
    /// # Errors
    /// Of the system.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let folder = self.place.open(OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut names = Vec::new();
        for entry in Dir::read_from(folder)? {
            let name = OsString::from_vec(entry?.file_name().to_bytes().to_vec());
            if name != "." && name != ".." {
                names.push(name);
            }
        }
        Ok(names)
    }

    /// The opened file, unless another one took its name since it was looked at.
    fn same(&self, file: File) -> io::Result<File> {
        let now = fstat(&file)?;
        match (now.st_dev, now.st_ino) == (self.found.st_dev, self.found.st_ino) {
            true => Ok(file),
            false => Err(refused(format!("{} was replaced just now", self.place.path.display()))),
        }
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.found.st_mode)
    }
}

impl Place {
    fn open(&self, how: OFlags) -> io::Result<File> {
        let flags = how | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(File::from(openat(&self.folder, &self.name, flags, Mode::empty())?))
    }
}

/// Checks that no part of `absolute` that is there below `root` is a link, so that a file made there is one of the copy.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] names the link; or of the system.
pub fn refuse_links(root: &Path, absolute: &Path) -> io::Result<()> {
    let walk =
        Walk { purpose: Purpose::BelowWithoutLinks, root, makes_folders: None, follows_last: true };
    match walk.to(absolute) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        walked => walked.map(drop),
    }
}
