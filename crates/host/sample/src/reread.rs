//! A file that is read repeatedly: opened once, so that a sample resolves no paths.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use polyrail_host::Sysroot;

/// A file of `/proc` or `/sys`, held open.
#[derive(Debug)]
pub(crate) struct Reread {
    file: File,
    path: PathBuf,
}

impl Reread {
    pub(crate) fn open(root: &Sysroot, absolute: impl AsRef<Path>) -> io::Result<Self> {
        let path = root.path(&absolute);
        Ok(Self { file: root.open(absolute)?, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Fills `buffer` with the current contents. The kernel generates them again for a read from
    /// the start.
    pub(crate) fn read(&self, buffer: &mut Vec<u8>) -> io::Result<()> {
        let mut len = 0;
        loop {
            if buffer.len() - len < SPARE_BYTES {
                buffer.resize((buffer.len() * 2).max(len + SPARE_BYTES), 0);
            }
            match self.file.read_at(&mut buffer[len..], len as u64) {
                Ok(0) => break,
                Ok(more) => len += more,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if len > LONGEST_BYTES {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, "more than 64 MiB"));
            }
        }
        buffer.truncate(len);
        Ok(())
    }
}

/// Minimum room for each read call; files of `/proc` return a page or more at a time.
const SPARE_BYTES: usize = 4096;
const LONGEST_BYTES: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_kernel_says_something_new_each_time() {
        let file = Reread::open(&Sysroot::live(), "/proc/uptime").unwrap();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        file.read(&mut first).unwrap();
        // The file's resolution is a hundredth of a second.
        let begin = std::time::Instant::now();
        while second.is_empty() || second == first {
            assert!(begin.elapsed().as_secs() < 10, "it says the same for ten seconds: {first:?}");
            file.read(&mut second).unwrap();
        }
        assert!(first.ends_with(b"\n") && second.ends_with(b"\n"));
    }

    #[test]
    fn a_file_that_shrank_leaves_nothing_of_its_old_self() {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        std::fs::write(root.path("/f"), vec![b'x'; 10_000]).unwrap();
        let file = Reread::open(&root, "/f").unwrap();
        let mut buffer = Vec::new();
        file.read(&mut buffer).unwrap();
        assert_eq!(buffer.len(), 10_000);
        std::fs::write(root.path("/f"), "short").unwrap();
        file.read(&mut buffer).unwrap();
        assert_eq!(buffer, b"short");
    }
}
