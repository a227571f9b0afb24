//! The guest's root file system as the kernel reads it: a `cpio` archive.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An archive in the `newc` format.
#[derive(Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    folders: BTreeSet<PathBuf>,
    entries: u32,
}

const FOLDER: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;

impl Archive {
    /// Adds an executable file, and the folders above it.
    pub(crate) fn add(&mut self, path: &str, content: &[u8]) {
        let path = Path::new(path.trim_start_matches('/'));
        let above: Vec<_> = path.ancestors().skip(1).collect();
        for folder in above.into_iter().rev().filter(|folder| *folder != Path::new("")) {
            if self.folders.insert(folder.to_owned()) {
                self.entry(folder, FOLDER, &[]);
            }
        }
        self.entry(path, PROGRAM, content);
    }

    /// Adds an empty folder.
    pub(crate) fn add_folder(&mut self, path: &str) {
        self.folders.insert(path.into());
        self.entry(Path::new(path), FOLDER, &[]);
    }

    /// Adds a program of this machine without its debug information, and the libraries that it loads.
    pub(crate) fn add_program(&mut self, path: &str, program: &Path) {
        let stripped = std::env::temp_dir().join(format!("polyrail-vm-{}", std::process::id()));
        let strip = Command::new("strip").arg("-o").arg(&stripped).arg(program).status();
        let content = match strip {
            Ok(status) if status.success() => fs::read(&stripped),
            // Without binutils the program is only larger.
            _ => fs::read(program),
        };
        let _ = fs::remove_file(&stripped);
        self.add(path, &content.unwrap());
        let listed = Command::new("ldd").arg(program).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        for library in listed.split_whitespace().filter(|word| word.starts_with('/')) {
            if self.folders.insert(PathBuf::from(library)) {
                self.add(library, &fs::read(library).unwrap());
            }
        }
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(Path::new("TRAILER!!!"), 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &Path, mode: u32, content: &[u8]) {
        let name = path.to_str().unwrap();
        self.entries += 1;
        let fields = [
            self.entries,
            mode,
            0,
            0,
            1,
            0,
            content.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
