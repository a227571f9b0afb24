//! Values of files: an invalid one counts as unknown, and never stops a tool.

use std::cell::RefCell;
use std::str::FromStr;

use crate::cpuset::CpuSet;
use crate::sysroot::{ReadError, Sysroot, short};

/// Most invalid values that one line lists.
const LISTED: usize = 4;

/// Reads the values of devices. A value that is damaged or can't be read is `None`, and its path is kept for
/// [`Values::unread`]. A file that is missing, or that is empty when [`Values::parsed`] reads it, is also `None`, but
/// its path is not kept.
#[derive(Debug)]
pub struct Values<'a> {
    root: &'a Sysroot,
    odd: RefCell<Vec<String>>,
}

impl<'a> Values<'a> {
    /// Creates a reader of the files below `root`.
    pub fn of(root: &'a Sysroot) -> Self {
        Self { root, odd: RefCell::default() }
    }

    /// Returns the root of the files.
    pub fn root(&self) -> &'a Sysroot {
        self.root
    }

    /// Returns the text of a file.
    pub fn text(&self, path: impl AsRef<str>) -> Option<String> {
        self.keep(self.root.read_optional(path.as_ref())).flatten()
    }

    /// Returns a number, or another type that can be parsed. Copies of `/sys` have empty files where the kernel
    /// answered with an error, so an empty file has no value.
    pub fn parsed<T: FromStr>(&self, path: impl AsRef<str>) -> Option<T> {
        let text = self.text(path.as_ref()).filter(|text| !text.is_empty())?;
        let value = text.trim().parse();
        self.keep(value.map_err(|_| {
            self.root.content(path.as_ref(), format!("has `{}`, which is no value", short(&text)))
        }))
    }

    /// Returns a list of CPUs.
    pub fn cpus(&self, path: impl AsRef<str>) -> Option<CpuSet> {
        let set = CpuSet::parse_list(&self.text(path.as_ref())?);
        self.keep(set.map_err(|error| self.root.content(path.as_ref(), error.to_string())))
    }

    /// Returns the names in a folder.
    pub fn names(&self, path: impl AsRef<str>) -> Vec<String> {
        self.keep(self.root.list_optional(path.as_ref())).unwrap_or_default()
    }

    /// Returns the value of a result; keeps the error for [`Self::unread`].
    pub fn keep<T>(&self, result: Result<T, ReadError>) -> Option<T> {
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error.to_string(),
        };
        // Drop the root, so that a copy and its machine give the same paths.
        let folder = self.root.root().display().to_string();
        let path = error.strip_prefix(folder.trim_end_matches('/')).unwrap_or(&error).to_owned();
        let mut odd = self.odd.borrow_mut();
        if !odd.contains(&path) {
            odd.push(path);
        }
        None
    }

    /// Returns one line about the values that could not be read; `None` if there are none.
    pub fn unread(&self) -> Option<String> {
        let odd = self.odd.borrow();
        let mut line = odd.iter().take(LISTED).cloned().collect::<Vec<_>>().join("; ");
        if odd.len() > LISTED {
            line.push_str(&format!("; and {} more", odd.len() - LISTED));
        }
        (!odd.is_empty()).then(|| format!("values that count as unknown: {line}"))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_odd_value_is_unknown_and_listed_with_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let root = Sysroot::at(folder.path());
        for (name, bytes) in [
            ("empty", &b""[..]),
            ("nul", b"100\n\0"),
            ("latin", b"\xff\xfe\n"),
            ("huge", b"99999999999999999999\n"),
            ("negative", b"-1\n"),
        ] {
            fs::write(folder.path().join(name), bytes).unwrap();
        }
        fs::create_dir(folder.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("loop", folder.path().join("loop")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("dangling")).unwrap();
        let values = Values::of(&root);
        let number = |name: &str| values.parsed::<u32>(format!("/{name}"));
        assert_eq!(number("nul"), Some(100));
        for name in ["empty", "missing", "dangling"] {
            assert_eq!(number(name), None, "{name}");
        }
        assert_eq!(values.unread(), None, "what is not there is no oddity");
        for name in ["latin", "huge", "negative", "folder", "loop"] {
            assert_eq!(number(name), None, "{name}");
        }
        assert!(values.names("/huge").is_empty() && values.cpus("/latin").is_none());
        let line = values.unread().unwrap();
        assert!(line.contains("/huge has `99999999999999999999`, which is no value"), "{line}");
        assert!(!line.contains(&folder.path().display().to_string()), "{line}");
        assert!(line.ends_with("; and 2 more"), "{line}");
    }
}
