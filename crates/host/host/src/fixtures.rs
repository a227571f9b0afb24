//! Machines built by code: a folder with the `/proc` and `/sys` that such a machine has.
//!
//! For tests, here and in the crates above (feature `fixtures`). The folder goes away with the
//! [`Fixture`].

mod kinds;
mod machine;
mod machines;

use std::path::Path;

use tempfile::TempDir;

pub use kinds::{Kind, kind, kinds};
pub use machine::{Chip, Device, Machine};
pub use machines::{
    a3_high, container, cpu_holes, cpus_512, laptop, mlx5_four_nodes, no_nics, unknown_nodes,
};

use crate::sysroot::Sysroot;

pub type Build = fn() -> Fixture;

/// Every machine here, by name.
pub const ALL: &[(&str, Build)] = &[
    ("a3-high", a3_high),
    ("container", container),
    ("cpu-holes", cpu_holes),
    ("cpus-512", cpus_512),
    ("laptop", laptop),
    ("mlx5-four-nodes", mlx5_four_nodes),
    ("no-nics", no_nics),
    ("unknown-nodes", unknown_nodes),
];

#[derive(Debug)]
pub struct Fixture {
    folder: TempDir,
}

impl Fixture {
    /// The root to read from.
    pub fn root(&self) -> Sysroot {
        Sysroot::at(self.folder.path())
    }

    /// Where the files are.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Replaces a file, or adds one with its folders, so that a test can change one detail.
    pub fn write(&self, absolute: &str, text: &str) {
        machine::write(self.folder.path(), absolute, text);
    }
}
