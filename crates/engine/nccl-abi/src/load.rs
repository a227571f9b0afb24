//! Finds and loads a plugin the way NCCL does, and makes NCCL's first calls.

use std::fs;
use std::io;
use std::mem::ManuallyDrop;

use libloading::os::unix::{Library as System, RTLD_LOCAL, RTLD_NOW};
use thiserror::Error;

use crate::elf;
use crate::tables::text;
use crate::{NetV5, NetV6, NetV7, NetV8, NetV9, NetV10, NetV11, NetV12};

/// A release of NCCL or RCCL, and the interface versions that it looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// Name such as `NCCL 2.28, 2.29`.
    pub name: &'static str,
    /// Oldest version that it accepts.
    pub oldest: u32,
    /// Newest version, which it tries first.
    pub newest: u32,
}

/// Releases, with the versions that their `src/plugin/net.cc` looks for.
pub const NCCL_RELEASES: &[Release] = &[
    Release { name: "NCCL 2.18; RCCL of ROCm 6.0, 6.1", oldest: 4, newest: 6 },
    Release { name: "NCCL 2.19", oldest: 5, newest: 7 },
    Release { name: "NCCL 2.20 to 2.23; RCCL of ROCm 6.2 to 6.4", oldest: 5, newest: 8 },
    Release { name: "NCCL 2.24, 2.25", oldest: 5, newest: 9 },
    Release { name: "NCCL 2.26, 2.27; RCCL of ROCm 7.0 to 7.2", oldest: 6, newest: 10 },
    Release { name: "NCCL 2.28, 2.29", oldest: 6, newest: 11 },
    Release { name: "NCCL 2.30", oldest: 6, newest: 12 },
];

/// Reason why NCCL can't use a library as a plugin.
#[derive(Debug, Error)]
pub enum LoadError {
    /// No file with this name was found.
    #[error("there is no such library; tried: {}", tried.join(", "))]
    Missing {
        /// Files tried, in order.
        tried: Vec<String>,
    },
    /// The file is not a whole library for this machine.
    #[error("{name}: {fault}; allowed: a shared library")]
    File {
        /// The file.
        name: String,
        /// Fault as a sentence about the file.
        fault: String,
    },
    /// The dynamic loader refused it.
    #[error("{name}: {why}")]
    Open {
        /// The file.
        name: String,
        /// Error text of the loader.
        why: String,
    },
    /// The library exports none of the tables.
    #[error("{name} exports no ncclNetPlugin_v5 to _v12")]
    NoTable {
        /// The file.
        name: String,
    },
}

impl LoadError {
    /// Returns the fix.
    pub fn help(&self) -> String {
        match self {
            Self::Missing { .. } => "name it as NCCL_NET_PLUGIN does: a path, a file name, or what is between \
                 libnccl-net- and .so; what has no slash is sought in LD_LIBRARY_PATH and in the system's folders"
                .to_owned(),
            Self::File { .. } => {
                "name the plugin's own file, whole and built for this kind of machine".to_owned()
            }
            Self::Open { name, why } if why.ends_with("Permission denied") => {
                format!("let this user read {name} and enter the folders above it")
            }
            Self::Open { .. } => {
                "`ldd FILE` lists the libraries that it needs: install those that are not found, or name their \
                 folders in LD_LIBRARY_PATH"
                    .to_owned()
            }
            Self::NoTable { .. } => {
                "name a net plugin of NCCL; `nm -D FILE` lists what a library exports".to_owned()
            }
        }
    }
}

/// A loaded plugin. It stays loaded until the process ends.
pub struct Library {
    name: String,
    /// Never unloaded: plugins have threads, and only the plugin knows when they have ended.
    handle: ManuallyDrop<System>,
    versions: Vec<u32>,
}

/// A plugin's table, by version.
#[derive(Clone, Copy)]
#[expect(missing_docs, reason = "named as the tables are")]
pub enum Table {
    V5(&'static NetV5),
    V6(&'static NetV6),
    V7(&'static NetV7),
    V8(&'static NetV8),
    V9(&'static NetV9),
    V10(&'static NetV10),
    V11(&'static NetV11),
    V12(&'static NetV12),
}

impl Library {
    /// Loads the plugin that a value of `NCCL_NET_PLUGIN` names, like NCCL since 2.21: a path or a file name, or else
    /// the part between `libnccl-net-` and `.so`. Runs the library's code.
    pub fn open(name: &str) -> Result<Self, LoadError> {
        let (mut tried, mut refused) = (Vec::new(), None);
        for file in files(name) {
            match load(&file) {
                Ok(handle) => return Self::of(file, handle),
                Err(LoadError::Missing { .. }) => tried.push(file),
                // A folder or a program in LD_LIBRARY_PATH may have the plugin's short name.
                Err(_) if !file.contains('/') && !file.contains(".so") => tried.push(file),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        Err(refused.unwrap_or(LoadError::Missing { tried }))
    }

    fn of(name: String, handle: System) -> Result<Self, LoadError> {
        let has = |version: &u32| {
            let symbol = format!("ncclNetPlugin_v{version}\0");
            // SAFETY: only the address is taken.
            unsafe { handle.get::<*const u8>(symbol.as_bytes()) }.is_ok()
        };
        let versions: Vec<u32> = (5..=12).filter(has).collect();
        if versions.is_empty() {
            return Err(LoadError::NoTable { name });
        }
        Ok(Self { name, handle: ManuallyDrop::new(handle), versions })
    }

    /// File name as passed to the loader.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Exported versions of the interface, oldest first.
    pub fn versions(&self) -> &[u32] {
        &self.versions
    }

    /// Version and name of each table. NCCL needs the same name in all.
    pub fn tables(&self) -> Vec<(u32, String)> {
        self.versions.iter().map(|version| (*version, self.table_name(*version))).collect()
    }

    /// Returns the table of a version, if the plugin exports it.
    pub fn table(&self, version: u32) -> Option<Table> {
        macro_rules! table {
            ($variant:ident, $table:ty) => {{
                let symbol = format!("ncclNetPlugin_v{version}\0");
                // SAFETY: a symbol of this name is a table of this version.
                let symbol = unsafe { self.handle.get::<*const $table>(symbol.as_bytes()) };
                // SAFETY: as above; the library is never unloaded.
                symbol.ok().map(|table| Table::$variant(unsafe { &**table }))
            }};
        }
        match version {
            5 => table!(V5, NetV5),
            6 => table!(V6, NetV6),
            7 => table!(V7, NetV7),
            8 => table!(V8, NetV8),
            9 => table!(V9, NetV9),
            10 => table!(V10, NetV10),
            11 => table!(V11, NetV11),
            12 => table!(V12, NetV12),
            _ => None,
        }
    }

    fn table_name(&self, version: u32) -> String {
        self.table(version).map(|table| table.name()).unwrap_or_default()
    }
}

/// Files that a name may mean, in NCCL's order. A value that contains `.so` is a file name.
fn files(name: &str) -> Vec<String> {
    let is_file = name.contains('/') || name.contains(".so");
    let suffixed = (!is_file).then(|| format!("libnccl-net-{name}.so"));
    [name.to_owned()].into_iter().chain(suffixed).collect()
}

fn load(file: &str) -> Result<System, LoadError> {
    let is_path = file.contains('/');
    let missing = || LoadError::Missing { tried: vec![file.to_owned()] };
    let damaged = |fault| LoadError::File { name: file.to_owned(), fault };
    // The loader would block on a pipe, and crash the process with a truncated file. Without a slash only the loader
    // knows which file is meant.
    if is_path {
        if fs::metadata(file).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return Err(missing());
        }
        if let Some(fault) = fault(file) {
            return Err(damaged(fault));
        }
    }
    // SAFETY: loading runs the library's constructors, as the caller requested.
    let handle = unsafe { System::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
    handle.map_err(|error| {
        let why = std::error::Error::source(&error).unwrap_or(&error).to_string();
        // The loader's text begins with the file it is about, which may be a dependency of this one.
        let Some(about_it) = why.strip_prefix(&format!("{file}: ")) else {
            return LoadError::Open { name: file.to_owned(), why };
        };
        match about_it {
            // The loader's message for a file of another processor is the same.
            _ if about_it.ends_with("No such file or directory") => match is_path {
                true => damaged("it was built for another kind of processor".to_owned()),
                false => missing(),
            },
            _ if NO_LIBRARY.iter().any(|words| about_it.contains(words)) => {
                damaged(format!("the loader takes it for none ({about_it})"))
            }
            _ => LoadError::Open { name: file.to_owned(), why: about_it.to_owned() },
        }
    })
}

/// Parts of glibc's loader messages for files that aren't libraries for this machine.
const NO_LIBRARY: [&str; 5] =
    ["ELF", "file too short", "cannot read file data", "cannot dynamically load", "can be loaded"];

/// Fault of a file that can't be loaded. Leaves unreadable files to the loader, which gives the reason.
fn fault(file: &str) -> Option<String> {
    match fs::metadata(file).ok()?.is_file() {
        true => elf::damage(&fs::read(file).ok()?),
        false => Some("it is no regular file".to_owned()),
    }
}

/// Evaluates the same expression for each version.
macro_rules! of_each {
    ($table:expr, $name:ident => $value:expr) => {
        match $table {
            Table::V5($name) => $value,
            Table::V6($name) => $value,
            Table::V7($name) => $value,
            Table::V8($name) => $value,
            Table::V9($name) => $value,
            Table::V10($name) => $value,
            Table::V11($name) => $value,
            Table::V12($name) => $value,
        }
    };
}

impl Table {
    /// Name that the plugin reports.
    pub fn name(&self) -> String {
        text(of_each!(self, table => table.name)).unwrap_or_default()
    }

    /// Address of the table, which is unique in the process.
    pub(crate) fn address(&self) -> usize {
        of_each!(self, table => std::ptr::from_ref(*table).addr())
    }

    /// Version of the interface.
    pub fn version(&self) -> u32 {
        match self {
            Self::V5(_) => 5,
            Self::V6(_) => 6,
            Self::V7(_) => 7,
            Self::V8(_) => 8,
            Self::V9(_) => 9,
            Self::V10(_) => 10,
            Self::V11(_) => 11,
            Self::V12(_) => 12,
        }
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Table({}, {})", self.name(), self.version())
    }
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library({}, {:?})", self.name, self.versions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_plugin_is_told() {
        let missing = Library::open("no-such-plugin").err().unwrap().to_string();
        let tried =
            "there is no such library; tried: no-such-plugin, libnccl-net-no-such-plugin.so";
        assert_eq!(missing, tried);
        let missing = Library::open("/none/libnccl-net.so").err().unwrap().to_string();
        assert_eq!(missing, "there is no such library; tried: /none/libnccl-net.so");
        let other = Library::open("libc.so.6").err();
        assert!(matches!(other, Some(LoadError::NoTable { .. })), "a file name: {other:?}");
        let other = Library::open("/lib64/ld-linux-x86-64.so.2").err();
        assert!(matches!(other, Some(LoadError::NoTable { .. })), "{other:?}");
    }
}
