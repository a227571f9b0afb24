//! The root of the file tree to read: this machine's, or a copy of another's.

pub(crate) mod tree;

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use polyrail_sys::files::Below;
use tree::Tree;

/// Longest file to read, in bytes. Files of `/proc` and `/sys` are short; longer ones are not the kernel's.
const LONGEST_FILE_BYTES: u64 = 64 << 20;
/// Device number of `/dev/null`.
const NULL_DEVICE: u64 = 0x103;

/// Location of `/proc` and `/sys`. Cheap to clone, and safe to share between threads.
#[derive(Clone, Debug)]
pub struct Sysroot {
    root: PathBuf,
    /// Files of an archive, held in memory.
    archive: Option<Arc<Tree>>,
}

/// A file or folder can't be read, or has unexpected content.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    #[error("{} can't be read: {source}", path.display())]
    Io {
        /// Path with the root in front.
        path: PathBuf,
        source: io::Error,
    },
    /// The content is not in the kernel's format.
    #[error("{} {fault}", path.display())]
    Content {
        /// Path with the root in front.
        path: PathBuf,
        /// Phrase that follows the path.
        fault: String,
    },
}

impl Default for Sysroot {
    fn default() -> Self {
        Self::live()
    }
}

impl Sysroot {
    /// Returns the root of the machine that the program runs on.
    pub fn live() -> Self {
        Self::at("/")
    }

    /// Uses a folder that holds copies of `/proc` and `/sys`. This is not verified.
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self { root: folder.into(), archive: None }
    }

    /// Reads the files of an archive once, into memory. `path` names the archive in messages.
    ///
    /// # Errors
    /// Those of the archive reader, or if the archive is not a copy of a machine.
    pub(crate) fn in_archive(path: &Path, archive: impl io::Read) -> io::Result<Self> {
        Ok(Self { root: path.to_owned(), archive: Some(Arc::new(Tree::read(archive)?)) })
    }

    /// Whether this is the running machine, where sockets and system calls also work.
    pub fn is_live(&self) -> bool {
        self.archive.is_none() && self.root == Path::new("/")
    }

    /// Returns the folder or archive that stands for `/`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of `absolute`, such as `/proc/stat`, for messages. It can be opened only if the root is a
    /// folder: see [`Self::on_disk`]. `..` in it never leads out of the root.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let mut path = self.root.clone();
        for component in absolute.as_ref().components() {
            if let Component::Normal(name) = component {
                path.push(name);
            }
        }
        path
    }

    /// Returns a path of `absolute` that can be opened if something is there. For an archive, the first call writes all
    /// files to a temporary folder, which lives until the last clone of the root is dropped.
    ///
    /// # Errors
    /// Those of the system, when that folder can't be made.
    pub fn on_disk(&self, absolute: impl AsRef<Path>) -> io::Result<PathBuf> {
        match &self.archive {
            None => Ok(self.path(absolute)),
            Some(archive) => Ok(Self::at(archive.on_disk()?).path(absolute)),
        }
    }

    /// Opens a file to read. In a copy, links lead to places in the copy. A pipe is refused, because opening it could
    /// block.
    ///
    /// # Errors
    /// Those of the system; [`io::ErrorKind::InvalidData`] for a pipe, a socket or a device.
    pub fn open(&self, absolute: impl AsRef<Path>) -> io::Result<fs::File> {
        match &self.archive {
            None if self.is_live() => open_live(&self.path(absolute)),
            None => self.below(absolute)?.open(),
            Some(archive) => Below::find(archive.on_disk()?, absolute.as_ref())?.open(),
        }
    }

    fn below(&self, absolute: impl AsRef<Path>) -> io::Result<Below> {
        Below::find(&self.root, absolute.as_ref())
    }

    /// Whether anything exists at `absolute`.
    pub fn exists(&self, absolute: impl AsRef<Path>) -> bool {
        match &self.archive {
            None if self.is_live() => self.path(absolute).exists(),
            None => self.below(absolute).is_ok(),
            Some(archive) => archive.is_folder(absolute.as_ref()).is_some(),
        }
    }

    /// Whether there is a folder at `absolute`.
    pub fn is_folder(&self, absolute: impl AsRef<Path>) -> bool {
        match &self.archive {
            None if self.is_live() => self.path(absolute).is_dir(),
            None => self.below(absolute).is_ok_and(|found| found.is_folder()),
            Some(archive) => archive.is_folder(absolute.as_ref()) == Some(true),
        }
    }

    /// Whether the mode of the file at `absolute` allows no user to write it. `false` in an archive, which does not
    /// record it.
    pub fn is_read_only(&self, absolute: impl AsRef<Path>) -> bool {
        match &self.archive {
            None => self.below(absolute).is_ok_and(|found| found.mode() & 0o222 == 0),
            Some(_) => false,
        }
    }

    /// Returns the text of a file, without trailing newlines, spaces and the NULs of some copies. Bytes that are not
    /// text become U+FFFD, so the rest of a table stays readable.
    ///
    /// # Errors
    /// [`ReadError`] with the path: missing, not allowed, or above 64 MiB.
    pub fn read(&self, absolute: impl AsRef<Path>) -> Result<String, ReadError> {
        let text = match &self.archive {
            None => self.open(&absolute).and_then(read_text),
            Some(archive) => {
                archive.content(absolute.as_ref()).map(|bytes| text_of(bytes.to_vec()))
            }
        };
        let mut text =
            text.map_err(|source| ReadError::Io { path: self.path(absolute), source })?;
        text.truncate(text.trim_end_matches(|c: char| c.is_whitespace() || c == '\0').len());
        Ok(text)
    }

    /// Reads like [`Self::read`]; returns `None` if the file is missing or has no value: some files of `/sys` answer a
    /// read with an error when their device lacks the property.
    ///
    /// # Errors
    /// As [`Self::read`], for every other reason.
    pub fn read_optional(&self, absolute: impl AsRef<Path>) -> Result<Option<String>, ReadError> {
        match self.read(absolute) {
            Ok(text) => Ok(Some(text)),
            Err(ReadError::Io { source, .. }) if is_absent(&source) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns a file's text as a number or another type that can be parsed; `None` as in [`Self::read_optional`].
    ///
    /// # Errors
    /// As [`Self::read`], and [`ReadError::Content`] if the text does not parse.
    pub fn read_parsed<T: std::str::FromStr>(
        &self,
        absolute: impl AsRef<Path>,
    ) -> Result<Option<T>, ReadError> {
        let Some(text) = self.read_optional(absolute.as_ref())? else { return Ok(None) };
        let wanted = std::any::type_name::<T>().rsplit("::").next().unwrap_or_default();
        match text.trim().parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.content(absolute, format!("has `{}`, not {wanted}", short(&text)))),
        }
    }

    /// Returns the names in a folder, sorted with numbers by value: `cpu2` before `cpu10`.
    ///
    /// # Errors
    /// [`ReadError`] with the path. Names that are not text are left out: the kernel makes none.
    pub fn list(&self, absolute: impl AsRef<Path>) -> Result<Vec<String>, ReadError> {
        let names = match &self.archive {
            None if self.is_live() => names_on_disk(&self.path(&absolute)),
            None => self.below(&absolute).and_then(|found| found.names()).map(only_text),
            Some(archive) => archive.names(absolute.as_ref()).map(|names| names.cloned().collect()),
        };
        let mut names =
            names.map_err(|source| ReadError::Io { path: self.path(absolute), source })?;
        names.sort_by_cached_key(|name| natural_key(name));
        Ok(names)
    }

    /// Lists like [`Self::list`]; empty if the folder is missing.
    ///
    /// # Errors
    /// As [`Self::list`], for every other reason.
    pub fn list_optional(&self, absolute: impl AsRef<Path>) -> Result<Vec<String>, ReadError> {
        match self.list(absolute) {
            Err(ReadError::Io { source, .. }) if is_absent(&source) => Ok(Vec::new()),
            result => result,
        }
    }

    /// Follows all links and returns a path below the root, such as `/sys/devices/pci0000:00/0000:00:03.0` for
    /// `/sys/class/net/eth0/device`; `None` if it leads nowhere. In a copy, no link leads out of the root.
    pub fn resolve(&self, absolute: impl AsRef<Path>) -> Option<PathBuf> {
        if let Some(archive) = &self.archive {
            return archive.resolve(absolute.as_ref());
        }
        match self.is_live() {
            true => self.path(absolute).canonicalize().ok(),
            false => Below::resolve(&self.root, absolute.as_ref()).ok(),
        }
    }

    /// Returns the last part of a link's target, such as `gve` for `device/driver`. The target itself may be missing.
    pub fn link_name(&self, absolute: impl AsRef<Path>) -> Option<String> {
        Some(self.link(absolute)?.file_name()?.to_str()?.to_owned())
    }

    /// Returns the target of a link; `None` if it is not a link.
    pub(crate) fn link(&self, absolute: impl AsRef<Path>) -> Option<PathBuf> {
        match &self.archive {
            None if self.is_live() => fs::read_link(self.path(absolute)).ok(),
            None => Below::find_link(&self.root, absolute.as_ref()).ok()?.link().ok(),
            Some(archive) => archive.link(absolute.as_ref()).map(Path::to_owned),
        }
    }

    /// Returns the content of a file that is not a link; `None` for anything else, or if it can't be read.
    pub(crate) fn content_of_file(&self, absolute: impl AsRef<Path>) -> Option<Vec<u8>> {
        match &self.archive {
            None if self.is_live() => {
                let path = self.path(absolute);
                path.symlink_metadata().ok().filter(fs::Metadata::is_file)?;
                fs::read(path).ok()
            }
            None => {
                let found = Below::find_link(&self.root, absolute.as_ref()).ok()?;
                let mut bytes = Vec::new();
                let mut file = found.is_file().then(|| found.open().ok())??;
                file.read_to_end(&mut bytes).ok()?;
                Some(bytes)
            }
            Some(archive) => {
                let path = absolute.as_ref();
                let is_link = archive.link(path).is_some();
                archive.content(path).ok().filter(|_| !is_link).map(<[u8]>::to_vec)
            }
        }
    }

    /// Returns the name that the kernel gave to this boot of the machine.
    ///
    /// # Errors
    /// As [`Self::read`]; copies of a machine may lack the file.
    pub fn boot_id(&self) -> Result<String, ReadError> {
        self.read("/proc/sys/kernel/random/boot_id")
    }

    /// Returns the machine's name.
    ///
    /// # Errors
    /// As [`Self::boot_id`].
    pub fn hostname(&self) -> Result<String, ReadError> {
        self.read("/proc/sys/kernel/hostname")
    }

    /// Returns the kernel's release.
    ///
    /// # Errors
    /// As [`Self::boot_id`].
    pub fn kernel(&self) -> Result<String, ReadError> {
        self.read("/proc/sys/kernel/osrelease")
    }

    /// Creates an error about the content of a file; `fault` is a phrase that follows its path.
    pub fn content(&self, absolute: impl AsRef<Path>, fault: impl Into<String>) -> ReadError {
        ReadError::Content { path: self.path(absolute), fault: fault.into() }
    }
}

impl ReadError {
    /// Whether the file or folder does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Io { source, .. } if is_absent(source))
    }

    /// Whether this process lacks the right to read it.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Returns the path with the root in front.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. } | Self::Content { path, .. } => path,
        }
    }

    /// Returns a suggestion on how to resolve the error, if there is one.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                Some("run as root, or with the capability that this file asks for".to_owned())
            }
            Self::Io { source, .. } if is_absent(source) => Some(
                "with --sysroot, the folder must hold copies of /proc and /sys; in a container, \
                 mount them"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// Makes a text safe to put into a message: at most 40 characters, without control characters.
pub(crate) fn short(text: &str) -> String {
    polyrail_config::shortened(text.trim(), 40)
}

fn read_text(file: fs::File) -> io::Result<String> {
    let mut bytes = Vec::new();
    // /proc and /sys report wrong sizes, so limit the bytes read.
    let mut limited = file.take(LONGEST_FILE_BYTES + 1);
    limited.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LONGEST_FILE_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than 64 MiB"));
    }
    Ok(text_of(bytes))
}

fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Opens a file of this machine for reading.
///
/// # Errors
/// Those of the system; [`io::ErrorKind::InvalidData`] for a pipe, a socket or a device.
fn open_live(path: &Path) -> io::Result<fs::File> {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(path)?;
    // The system itself refuses to read a folder. Containers hide files behind /dev/null.
    if found.is_file() || found.is_dir() || found.rdev() == NULL_DEVICE {
        return fs::File::open(path);
    }
    let fault = "it is a pipe, a socket or a device; allowed: a file";
    Err(io::Error::new(io::ErrorKind::InvalidData, fault))
}

/// Lists the names in a folder, except those that are not text.
fn names_on_disk(folder: &Path) -> io::Result<Vec<String>> {
    let names = fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name()));
    Ok(only_text(names.collect::<io::Result<Vec<_>>>()?))
}

fn only_text(names: Vec<OsString>) -> Vec<String> {
    names.into_iter().filter_map(|name| name.into_string().ok()).collect()
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, NotADirectory, NotFound, Unsupported};
    // `speed` of a network interface that is down gives EINVAL; other files give EOPNOTSUPP. Devices that go away
    // during the read give ENODEV (19) or ENXIO (6).
    matches!(error.kind(), NotFound | NotADirectory | InvalidInput | Unsupported)
        || matches!(error.raw_os_error(), Some(6 | 19))
}

/// Splits a name into pairs of text and number, so that sorting compares the numbers by value.
fn natural_key(name: &str) -> Vec<(String, u64)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits_at = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let (text, tail) = rest.split_at(digits_at);
        let end = tail.find(|c: char| !c.is_ascii_digit()).unwrap_or(tail.len());
        let (digits, tail) = tail.split_at(end);
        key.push((text.to_owned(), digits.parse().unwrap_or(u64::MAX)));
        rest = tail;
    }
    key
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn tree() -> (tempfile::TempDir, Sysroot) {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        fs::create_dir_all(root.path("/sys/devices/d1")).unwrap();
        fs::create_dir_all(root.path("/sys/class")).unwrap();
        fs::write(root.path("/sys/devices/d1/speed"), "100000\n").unwrap();
        symlink("../devices/d1", root.path("/sys/class/it")).unwrap();
        (folder, root)
    }

    #[test]
    fn a_pipe_in_place_of_a_file_is_not_waited_for() {
        let (_folder, root) = tree();
        let pipe = root.path("/sys/pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let error = root.read("/sys/pipe").unwrap_err();
        assert!(error.to_string().contains("it is a pipe, a socket or a device; allowed: a file"));
        assert!(!error.is_absent());
        assert!(
            open_live(Path::new("/dev/null")).is_ok() && open_live(Path::new("/dev/zero")).is_err()
        );
    }

    #[test]
    fn files_are_read_below_the_root_and_links_are_followed_inside_it() {
        let (_folder, root) = tree();
        assert_eq!(root.read("/sys/class/it/speed").unwrap(), "100000");
        assert_eq!(root.read_parsed::<u32>("/sys/class/it/speed").unwrap(), Some(100_000));
        assert_eq!(root.resolve("/sys/class/it").unwrap(), Path::new("/sys/devices/d1"));
        assert_eq!(root.link_name("/sys/class/it").as_deref(), Some("d1"));
        assert!(root.exists("/sys/class/it") && !root.exists("/sys/class/other"));
        assert!(!root.is_live() && Sysroot::live().is_live());
    }

    #[test]
    fn dots_do_not_lead_out_and_neither_do_links() {
        let (folder, root) = tree();
        assert_eq!(root.path("/../../etc"), folder.path().join("etc"));
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(outside.path().join("sub")).unwrap();
        fs::write(outside.path().join("file"), "secret").unwrap();
        let names = ["out", "file", "root"];
        for (name, to) in
            names.iter().zip([outside.path(), &outside.path().join("file"), Path::new("/")])
        {
            symlink(to, root.path("/sys/class").join(name)).unwrap();
        }
        assert!(root.read("/sys/class/file").is_err() && root.read("/sys/class/out/file").is_err());
        assert!(root.list("/sys/class/out").is_err() && !root.exists("/sys/class/out"));
        assert!(!root.is_folder("/sys/class/out") && root.open("/sys/class/file").is_err());
        assert_eq!(root.content_of_file("/sys/class/file"), None);
        assert_eq!(root.resolve("/sys/class/out"), None);
        // An absolute link starts at the root of the copy.
        assert_eq!(root.resolve("/sys/class/root/sys/class"), Some(PathBuf::from("/sys/class")));
        assert_eq!(root.list("/sys/class/root").unwrap(), ["sys"]);
    }

    #[test]
    fn what_is_missing_is_none_and_what_is_wrong_names_the_path() {
        let (_folder, root) = tree();
        assert_eq!(root.read_optional("/sys/devices/d1/none").unwrap(), None);
        assert!(root.list_optional("/sys/none").unwrap().is_empty());
        let error = root.read("/sys/none").unwrap_err();
        assert!(error.is_absent() && error.help().is_some());
        assert!(error.to_string().contains("/sys/none can't be read"), "{error}");
        fs::write(root.path("/sys/devices/d1/speed"), "fast\u{7}\n").unwrap();
        let error = root.read_parsed::<u32>("/sys/devices/d1/speed").unwrap_err();
        assert!(error.to_string().ends_with("d1/speed has `fast\\u0007`, not u32"), "{error}");
    }

    #[test]
    fn names_are_sorted_by_the_numbers_in_them() {
        let (_folder, root) = tree();
        for name in ["cpu10", "cpu2", "cpufreq", "cpu0"] {
            fs::create_dir_all(root.path("/sys/cpu").join(name)).unwrap();
        }
        assert_eq!(root.list("/sys/cpu").unwrap(), ["cpu0", "cpu2", "cpu10", "cpufreq"]);
    }
}
