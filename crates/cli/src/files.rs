//! Files that a command writes to paths that its user chose.

use std::fs;
use std::io::{self, Read};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use polyrail_sys::files::{is_privileged, open_trusted};

/// File that a command writes: a separate type, to distinguish it from files that the command reads.
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

/// File name that stands for no file.
pub(crate) const NO_FILE: &str = "none";

/// File name of the last `bench` report in this user's folder.
pub(crate) const LAST_REPORT: &str = "bench.json";

/// Returns this user's folder for the files that a run leaves behind: `polyrail` in `XDG_STATE_HOME` or
/// `~/.local/state`.
pub(crate) fn state_folder() -> Option<PathBuf> {
    let folder = |name: &str| {
        let path = PathBuf::from(std::env::var_os(name)?);
        path.is_absolute().then_some(path)
    };
    let of_user = folder("XDG_STATE_HOME").or_else(|| Some(folder("HOME")?.join(".local/state")));
    Some(of_user?.join("polyrail"))
}

/// Maximum size in bytes of a file that people or this command wrote. Real ones are far smaller.
pub(crate) const TEXT_MAX: u64 = 16 << 20;

/// Reads a text file that people or this command wrote.
///
/// # Errors
/// The system's error; a file larger than 16 MiB; a file that is not UTF-8.
pub(crate) fn read_text(path: &Path) -> io::Result<String> {
    text_of(polyrail_sys::files::read_limited(path, TEXT_MAX)?)
}

/// Works like [`read_text`]. In a process with privileges, only root and this user may be able to change the file.
///
/// # Errors
/// The errors of [`read_text`]; [`io::ErrorKind::InvalidData`] names the others who can change the file.
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

/// Replaces a file as a whole, with [`polyrail_sys::files::replace`].
///
/// # Errors
/// The system's error. Nothing of the new file is left then, unless the folder allows no new files and the file was
/// written in place.
pub(crate) fn replace(path: &Path, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    polyrail_sys::files::replace(path, bytes.as_ref())
}

/// Whether both paths name the same file, even if that file does not exist yet.
pub(crate) fn are_one(one: &Path, other: &Path) -> bool {
    let place = |path: &Path| {
        fs::canonicalize(path).ok().or_else(|| {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = fs::canonicalize(folder.unwrap_or(Path::new("."))).ok()?;
            Some(folder.join(path.file_name()?))
        })
    };
    // Two outputs can share a device, such as `/dev/null` or a terminal.
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
        // The draft can't replace a folder that is not empty.
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
