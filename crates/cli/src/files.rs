//! Files that a command writes where its user said.

use std::fs;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use polyrail_sys::files::{is_privileged, open_trusted};

/// A file that a command writes, of a type of its own to tell it from those that it reads.
#[derive(Clone, Debug)]
pub(crate) struct OutFile(PathBuf);

impl From<PathBuf> for OutFile {
    fn from(path: PathBuf) -> Self {
        Self(path)
    }
}

impl From<OutFile> for PathBuf {
    fn from(file: OutFile) -> Self {
        file.0
    }
}

impl Deref for OutFile {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for OutFile {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

/// The name that stands for no file.
pub(crate) const NO_FILE: &str = "none";

/// The report of the last `bench`, in the folder of this user.
pub(crate) const LAST_REPORT: &str = "bench.json";

/// This user's folder for what a run leaves behind: `polyrail` in `XDG_STATE_HOME` or `~/.local/state`.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let of_user = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    Some(of_user?.join("polyrail"))
}

/// The most bytes of a file that people or this command wrote: none of them comes near it.
const TEXT_MAX: u64 = 16 << 20;

/// The text of a file that people or this command wrote.
///
/// # Errors
/// Of the system; a file larger than 16 MiB, or one that is no UTF-8 text.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    text_of(polyrail_sys::files::read_limited(path, TEXT_MAX)?)
}

/// As [`read_text`], of a file that only root and this user can change, where this process has privileges.
///
/// # Errors
/// As [`read_text`]; [`io::ErrorKind::InvalidData`] names who can change the file.
pub(crate) fn read_trusted_text(path: &Path) -> io::Result<String> {
    if !is_privileged() {
        return read_text(path);
    }
    let mut bytes = Vec::new();
    let size = open_trusted(path, false)?.take(TEXT_MAX + 1).read_to_end(&mut bytes)?;
    if size as u64 > TEXT_MAX {
        let fault = format!("it is larger than {} MiB, the most that is read", TEXT_MAX >> 20);
        return Err(io::Error::new(io::ErrorKind::InvalidData, fault));
    }
    text_of(bytes)
}

fn text_of(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, "stream did not contain valid UTF-8")
    })
}

/// Writes a whole file instead of an older one, as [`polyrail_sys::files::replace`] does.
///
/// # Errors
/// Of the system. Nothing is left of the new file then, unless only its folder can't be written.
pub(crate) fn replace(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    polyrail_sys::files::replace(path, bytes.as_ref())
}

/// Whether both name the same file, which may not be there yet.
pub(crate) fn are_one(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        fs::canonicalize(path).ok().or_else(|| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
            Some(folder.join(path.file_name()?))
        })
    };
    // A device takes both: `/dev/null`, a terminal.
    let is_device = fs::metadata(one).is_ok_and(|found| !found.is_file());
    !is_device && place(one).is_some_and(|one| place(other) == Some(one))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_large_file_is_refused_by_its_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        fs::File::create(&path).unwrap().set_len(10 << 30).unwrap();
        let error = read_text(&path).unwrap_err();
        assert_eq!(error.to_string(), "it is larger than 16 MiB, the most that is read");
    }

    #[test]
    fn a_file_is_replaced_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("report.json");
        replace(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let link = folder.path().join("link");
        symlink("report.json", &link).unwrap();
        replace(&link, "new").unwrap();
        assert!(link.is_symlink(), "it stays a link");
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        // The draft can't take its place.
        let taken = folder.path().join("folder");
        fs::create_dir_all(taken.join("full")).unwrap();
        assert!(replace(&taken, "x").is_err());
        let names: Vec<_> =
            fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
    }

    #[test]
    fn what_is_open_elsewhere_stays_the_same_file() {
        use std::io::Read;
        use std::os::fd::AsRawFd;
        let mut file = tempfile::tempfile().unwrap();
        replace(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())), "text").unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
    }

    #[test]
    fn two_names_of_a_file_are_found_out() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert!(are_one(&at("a"), &at("./a")), "neither is there");
        assert!(!are_one(&at("a"), &at("b")));
        fs::write(at("a"), "").unwrap();
        symlink("a", at("link")).unwrap();
        assert!(are_one(&at("a"), &at("link")));
        assert!(!are_one(Path::new("/dev/null"), Path::new("/dev/null")));
    }
}
