//! Machines built by code: a folder with the `/proc` and `/sys` of such a machine.
//!
//! Used by tests, here and in the crates above (feature `fixtures`). Dropping the [`Fixture`] removes the folder.

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

/// All machines of this module, by name.
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
    /// Returns the root to read from.
    pub fn root(&self) -> Sysroot {
        Sysroot::at(self.folder.path())
    }

    /// Returns the folder with the files.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Replaces a file, or adds one with its folders. This lets a test change one detail.
    pub fn write(&self, absolute: &str, text: &str) {
        machine::write(self.folder.path(), absolute, text);
    }
}
