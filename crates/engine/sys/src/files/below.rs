//! Files in a copy of a machine's file system. The copy may come from anywhere, and its links lead to places in the
//! copy.

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
    /// Looks `absolute` up as a process would whose root is `root`: links, including absolute ones, stay below it.
    /// Opens nothing.
    ///
    /// # Errors
    /// System errors.
    pub fn find(root: &Path, absolute: &Path) -> io::Result<Self> {
        Self::of(root, absolute, true)
    }

    /// Like [`Self::find`], but does not follow a link that is the last part.
    ///
    /// # Errors
    /// System errors.
    pub fn find_link(root: &Path, absolute: &Path) -> io::Result<Self> {
        Self::of(root, absolute, false)
    }

    /// Resolves `absolute` to a path below the root, without links.
    ///
    /// # Errors
    /// System errors.
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

    /// Opens the folder in a single system call. Returns `None` if the name in it is a link to follow, or if the kernel
    /// has no such call (before Linux 5.6). The slower walk, with three calls for each part, handles these cases.
    fn at_once(root: &Path, absolute: &Path, follows_last: bool) -> io::Result<Option<Self>> {
        let absolute = Path::new("/").join(absolute);
        let (Some(above), Some(name)) = (absolute.parent(), absolute.file_name()) else {
            return Ok(None);
        };
        let root = openat(CWD, root, FOLDER, Mode::empty())?;
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let folder = match openat2(&root, above, FOLDER, Mode::empty(), within) {
            // The kernel gives up if a rename happens at the same time. A container may refuse the call.
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

    /// True for a folder.
    pub fn is_folder(&self) -> bool {
        self.kind() == FileType::Directory
    }

    /// True for a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileType::RegularFile
    }

    /// Permissions as in `chmod`.
    pub fn mode(&self) -> u32 {
        self.found.st_mode & 0o7777
    }

    /// Target of a link.
    ///
    /// # Errors
    /// System errors, also for a file that is not a link.
    pub fn link(&self) -> io::Result<PathBuf> {
        let target = readlinkat(&self.place.folder, &self.place.name, Vec::new())?;
        Ok(PathBuf::from(OsString::from_vec(target.into_bytes())))
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// System errors; [`io::ErrorKind::InvalidData`] for a pipe, a socket or a device, except `/dev/null`.
    pub fn open(&self) -> io::Result<File> {
        // Containers hide files behind `/dev/null`. Reading a folder fails in the system.
        let can_be_read = self.is_file() || self.is_folder() || self.found.st_rdev == NULL_DEVICE;
        if !can_be_read {
            return Err(refused("it is a pipe, a socket or a device; allowed: a file".to_owned()));
        }
        let file = self.place.open(OFlags::RDONLY | OFlags::NONBLOCK)?;
        self.same(file)
    }

    /// Opens a file for writing; `to_empty` truncates it. It must be a regular file with one name, so that it belongs
    /// to the copy only.
    ///
    /// # Errors
    /// System errors; [`io::ErrorKind::InvalidData`] for another file, with the reason.
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
    /// System errors.
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

    /// Returns the opened file, unless another file took its name since the lookup.
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

/// Checks that `absolute` has no links in the part that exists below `root`, so that a file made there belongs to the
/// copy.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] names the link; system errors.
pub fn refuse_links(root: &Path, absolute: &Path) -> io::Result<()> {
    let walk =
        Walk { purpose: Purpose::BelowWithoutLinks, root, makes_folders: None, follows_last: true };
    match walk.to(absolute) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        walked => walked.map(drop),
    }
}
