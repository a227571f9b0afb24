//! Follows a path part by part. Each part is opened relative to the folder before it, so renames by another user have
//! no effect on the walk.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    CWD, FileType, Mode, OFlags, PROC_SUPER_MAGIC, Stat, fstat, fstatfs, mkdirat, openat,
    readlinkat,
};
use rustix::io::Errno;

use super::privilege::{is_privileged, is_trusted};
use super::refused;

/// Maximum number of links in a path, as in the kernel.
const LINKS_MAX: usize = 40;

/// Purpose for which a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The process will obey the file.
    Trust,
    /// The process will run the file, which the user did not name.
    Run,
    /// The process will write there.
    Write,
    /// The file belongs to a copy of a machine. Links stay below the root.
    Below,
    /// Like [`Self::Below`], and links are refused.
    BelowWithoutLinks,
}

/// End of a path: a name in an open folder. The name is not a link, unless the caller asked for links.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) folder: OwnedFd,
    pub(super) folder_stat: Stat,
    /// A single part, or `.` for the folder itself.
    pub(super) name: OsString,
    /// `None` if the name does not exist.
    pub(super) found: Option<Stat>,
    /// Path as seen from the root, without links.
    pub(super) path: PathBuf,
    /// True if the name is a link of `/proc`, which only the kernel can follow.
    pub(super) is_of_kernel: bool,
}

/// Parameters of a walk.
pub(super) struct Walk<'a> {
    pub(super) purpose: Purpose,
    /// Start of absolute paths and links.
    pub(super) root: &'a Path,
    /// Mode for creating missing folders; `None` to create none.
    pub(super) makes_folders: Option<u32>,
    /// True to follow a link that is the last part.
    pub(super) follows_last: bool,
}

struct Folder {
    fd: OwnedFd,
    stat: Stat,
    path: PathBuf,
}

impl Walk<'_> {
    /// Follows `path` to its end.
    pub(super) fn to(&self, path: &Path) -> io::Result<Place> {
        let mut ahead = Vec::new();
        push_parts(&mut ahead, path);
        let start = if path.is_absolute() { self.root } else { Path::new(".") };
        let shown = if path.is_absolute() { "/" } else { "" };
        let mut way = vec![self.open(start, PathBuf::from(shown))?];
        let mut links = 0;
        loop {
            let Some(folder) = way.last() else { return Err(Errno::NOENT.into()) };
            let Some(part) = ahead.pop() else { return Ok(self.whole(way)) };
            if part == "/" {
                way = vec![self.open(self.root, PathBuf::from("/"))?];
                continue;
            }
            if part == ".." {
                if way.len() > 1 {
                    way.pop();
                } else if folder.path != Path::new("/") {
                    let above = openat(&folder.fd, "..", FOLDER, Mode::empty())?;
                    let stat = fstat(&above)?;
                    way = vec![self.judged(above, stat, folder.path.join(".."))?];
                }
                continue;
            }
            let is_last = ahead.is_empty();
            let path = folder.path.join(&part);
            let opened = openat(&folder.fd, &part, LOOK, Mode::empty());
            let fd = match (opened, self.makes_folders) {
                (Err(Errno::NOENT), Some(mode)) => {
                    match mkdirat(&folder.fd, &part, Mode::from_raw_mode(mode)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                    openat(&folder.fd, &part, LOOK, Mode::empty())?
                }
                (Err(Errno::NOENT), None) if is_last => return Ok(end(way, part, None, path)),
                (opened, _) => opened?,
            };
            let stat = fstat(&fd)?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => {
                    way.push(self.judged(fd, stat, path)?);
                }
                FileType::Symlink if is_last && !self.follows_last => {
                    return Ok(end(way, part, Some(stat), path));
                }
                FileType::Symlink => {
                    if is_last && !self.is_below() && is_of_proc(&folder.fd)? {
                        let place = end(way, part, Some(stat), path);
                        return Ok(Place { is_of_kernel: true, ..place });
                    }
                    self.judge_link(&stat, &folder.stat, &path)?;
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(Errno::LOOP.into());
                    }
                    let target = readlinkat(&fd, "", Vec::new())?.into_bytes();
                    push_parts(&mut ahead, Path::new(&OsString::from_vec(target)));
                }
                _ if is_last => return Ok(end(way, part, Some(stat), path)),
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
    }

    fn is_below(&self) -> bool {
        matches!(self.purpose, Purpose::Below | Purpose::BelowWithoutLinks)
    }

    fn open(&self, path: &Path, shown: PathBuf) -> io::Result<Folder> {
        let fd = openat(CWD, path, FOLDER, Mode::empty())?;
        let stat = fstat(&fd)?;
        self.judged(fd, stat, shown)
    }

    /// Checks a folder for the purpose of the walk.
    fn judged(&self, fd: OwnedFd, stat: Stat, path: PathBuf) -> io::Result<Folder> {
        match self.purpose {
            Purpose::Run => judge_code(&stat, &path)?,
            Purpose::Trust if is_privileged() => judge_trusted(&stat, &path)?,
            _ => {}
        }
        Ok(Folder { fd, stat, path })
    }

    fn judge_link(&self, link: &Stat, folder: &Stat, path: &Path) -> io::Result<()> {
        let is_good = match self.purpose {
            Purpose::Below => true,
            Purpose::BelowWithoutLinks => {
                return Err(refused(format!(
                    "{} is a link; allowed: no links below a copy of a machine",
                    path.display()
                )));
            }
            Purpose::Run => is_trusted(link.st_uid),
            Purpose::Trust | Purpose::Write if is_privileged() => is_trusted(link.st_uid),
            Purpose::Trust | Purpose::Write => {
                let is_shared = is_sticky(folder) && folder.st_mode & 0o002 != 0;
                !is_shared || is_trusted(link.st_uid) || link.st_uid == folder.st_uid
            }
        };
        match is_good {
            true => Ok(()),
            false => Err(refused(format!(
                "the link {} belongs to user {}; allowed: links of root and of this user",
                path.display(),
                link.st_uid
            ))),
        }
    }

    /// The folder at the end of the walk.
    fn whole(&self, way: Vec<Folder>) -> Place {
        let found = way.last().map(|folder| folder.stat);
        let path = way.last().map(|folder| folder.path.clone()).unwrap_or_default();
        end(way, OsString::from("."), found, path)
    }
}

/// Refuses a file or folder that others than root and this user can change.
pub(super) fn judge_trusted(stat: &Stat, path: &Path) -> io::Result<()> {
    judge(stat, path, 0o022)
}

/// Like [`judge_trusted`] for code and its folders, in any process. Without privileges the group may write, because a
/// user who works with such files trusts the group.
pub(super) fn judge_code(stat: &Stat, path: &Path) -> io::Result<()> {
    judge(stat, path, if is_privileged() { 0o022 } else { 0o002 })
}

fn judge(stat: &Stat, path: &Path, others: u32) -> io::Result<()> {
    if !is_trusted(stat.st_uid) {
        return Err(refused(format!(
            "{} belongs to user {}; allowed: root and this user",
            path.display(),
            stat.st_uid
        )));
    }
    // In a folder such as /tmp, others can't rename files that aren't theirs. The next part is checked itself.
    let is_shared = FileType::from_raw_mode(stat.st_mode) == FileType::Directory && is_sticky(stat);
    if stat.st_mode & others != 0 && !is_shared {
        return Err(refused(format!(
            "{} has mode {:04o}, which lets others change it; allowed: a mode that lets only its owner write",
            path.display(),
            stat.st_mode & 0o7777
        )));
    }
    Ok(())
}

/// True if only owners may rename and remove entries of a folder.
fn is_sticky(folder: &Stat) -> bool {
    folder.st_mode & 0o1000 != 0
}

/// Opens only the name itself.
pub(super) const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub(super) const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn end(mut way: Vec<Folder>, name: OsString, found: Option<Stat>, path: PathBuf) -> Place {
    // `way` is never empty: `to` checks for the last folder before it continues.
    let last = way.pop().expect("a way has a folder");
    Place { folder: last.fd, folder_stat: last.stat, name, found, path, is_of_kernel: false }
}

fn is_of_proc(folder: impl AsFd) -> io::Result<bool> {
    Ok(fstatfs(folder)?.f_type == PROC_SUPER_MAGIC)
}

/// Pushes the parts of a path, with the first part on top.
fn push_parts(ahead: &mut Vec<OsString>, path: &Path) {
    let parts = path.components().filter_map(|part| match part {
        Component::RootDir => Some(OsStr::new("/")),
        Component::ParentDir => Some(OsStr::new("..")),
        Component::Normal(name) => Some(name),
        Component::CurDir | Component::Prefix(_) => None,
    });
    let at = ahead.len();
    ahead.extend(parts.map(OsStr::to_owned));
    ahead[at..].reverse();
}
