//! Files of metadata, by which engines find each other.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use polyrail_proto::published::{EXTRA_MAX, Published};

use super::{Found, OpenFolder, regular_file};
use crate::without_write_signals;

/// Maximum bytes of a file that is read. No engine writes more.
const FILE_MAX: u64 = EXTRA_MAX as u64 + (1 << 20);

/// Writes the file atomically: readers see it whole or not at all. Only its owner may read it. Links in the path of its
/// folder are followed according to [`crate::files`].
pub fn write(path: &Path, published: &Published) -> io::Result<()> {
    let got = published.extra.len();
    if got > EXTRA_MAX {
        let why = format!("extra has {got} bytes, allowed is 0 to {EXTRA_MAX}");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let (folder, name) = OpenFolder::of(path)?;
    // Each writer has its own draft, as threads of one process may write the same file.
    static DRAFTS: AtomicU64 = AtomicU64::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let mut draft = name.clone();
    draft.push(format!(".{}.{number}", std::process::id()));
    // A leftover of a process with the same number may have other permissions.
    if let Some(left) = folder.find(&draft)? {
        folder.remove(&draft, &left)?;
    }
    let mut file = folder.create(&draft, 0o600)?;
    // Removed here on failure: no later call uses this name.
    without_write_signals(|| file.write_all(&published.encode()))
        .and_then(|()| folder.rename(&draft, &name))
        .inspect_err(|_| {
            let _ = Found::of(&file).and_then(|found| folder.remove(&draft, &found));
        })
}

/// Reads the file, or returns `None` if it does not exist yet. Never blocks, whatever kind of file it is.
pub fn read(path: &Path) -> io::Result<Option<Published>> {
    use io::ErrorKind::{NotFound, WouldBlock};
    match regular_file::open(path).and_then(|file| bytes_in(&file)) {
        Ok(bytes) => Published::decode(bytes).map(Some).map_err(invalid),
        // Opening a file that has a lease asks the lease holder to give it up, which happens soon.
        Err(error) if matches!(error.kind(), NotFound | WouldBlock) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads an open file.
pub fn read_open(file: &File) -> io::Result<Published> {
    regular_file::require(file)?;
    Published::decode(bytes_in(file)?).map_err(invalid)
}

fn bytes_in(file: &File) -> io::Result<Vec<u8>> {
    // A writer of this file controls which engine the reader connects to.
    regular_file::refuse_if_others_may_write(file)?;
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(invalid(format!("it has more than {FILE_MAX} bytes")));
    }
    Ok(bytes)
}

/// Error for a file with invalid content.
pub fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    use rustix::fs::{CWD, Mode, mkfifoat};

    use super::*;

    fn published(extra: &[u8]) -> Published {
        Published { process: None, metadata: b"metadata".to_vec(), extra: extra.to_vec() }
    }

    #[test]
    fn no_more_is_written_than_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0");
        let largest = published(&vec![7; EXTRA_MAX]);
        write(&path, &largest).unwrap();
        assert!(read(&path).unwrap() == Some(largest), "it is another one");
        let error = write(&path, &published(&vec![7; EXTRA_MAX + 1])).unwrap_err().to_string();
        assert_eq!(error, "extra has 16777217 bytes, allowed is 0 to 16777216");
        fs::File::options().write(true).open(&path).unwrap().set_len(FILE_MAX + 1).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("more than"));
    }

    #[test]
    fn a_file_that_others_may_write_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank0");
        write(&path, &published(b"")).unwrap();
        for mode in [0o622, 0o666, 0o620, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = read(&path).unwrap_err().to_string();
            assert!(error.starts_with(&format!("mode {mode:04o} lets others write")), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(read(&path).unwrap().is_some());
    }

    #[test]
    fn root_publishes_through_no_link_of_another_user() {
        if !rustix::process::geteuid().is_root() {
            return polyrail_skip::skip(
                "needs root",
                "sudo cargo test -p polyrail-sys metadata_file",
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write(&link.join("rank0"), &published(b"")).unwrap();
        std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).unwrap();
        let error = write(&link.join("rank1"), &published(b"")).unwrap_err().to_string();
        assert!(error.contains("belongs to user 65534"), "{error}");
        assert_eq!(fs::read_dir(&real).unwrap().count(), 1);
    }

    #[test]
    fn a_draft_that_can_not_take_its_place_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("folder");
        fs::create_dir(&path).unwrap();
        assert!(write(&path, &published(b"")).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn only_regular_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |name: &str| folder.path().join(name);
        let (fifo, socket) = (in_folder("fifo"), in_folder("socket"));
        mkfifoat(CWD, &fifo, Mode::RWXU).unwrap();
        let _listener = UnixListener::bind(&socket).unwrap();
        let others: [(PathBuf, &str); 4] = [
            (fifo, "a named pipe"),
            (socket, "a socket"),
            (folder.path().to_owned(), "a directory"),
            ("/dev/zero".into(), "a device"),
        ];
        for (path, what) in others {
            let error = read(&path).unwrap_err().to_string();
            assert_eq!(error, format!("it is {what}; allowed: a regular file"));
        }
        assert!(read(&in_folder("none")).unwrap().is_none());
    }
}
