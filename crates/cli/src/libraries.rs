//! Locations of the libraries that Polyrail provides for other programs.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use polyrail_nccl_abi::{Library, LoadError};
use polyrail_report::exit;
use polyrail_sys::files::{is_privileged, require_trusted, require_trusted_code};

use crate::fault::Fault;

/// File name that cargo gives the plugin for NCCL.
pub(crate) const BUILT: &str = "libnccl_net_polyrail.so";

/// Environment variable that passes NCCL the name of a plugin.
pub(crate) const VARIABLE: &str = "NCCL_NET_PLUGIN";

/// Shell command that builds and installs the plugin for NCCL, to be run in the repository.
pub(crate) const INSTALL: &str =
    "cargo build --release -p polyrail-nccl && polyrail nccl install ~/.local/lib";

/// Loads the plugin as NCCL would. Falls back to an installed one that the dynamic loader does not find.
fn load(name: &str) -> Result<Library, Fault> {
    let fault = match Library::open(name) {
        Ok(library) => return Ok(library),
        Err(fault) => fault,
    };
    let file = file_name(name);
    let folders = near_folders();
    let installed = folders.iter().find(|folder| folder.join(&file).exists());
    let refused =
        |fault: &LoadError, help: &str| Fault::environment(fault.to_string()).with_help(help);
    if !matches!(fault, LoadError::Missing { .. }) {
        return Err(refused(&fault, &fault.help()));
    }
    if let Some(folder) = installed {
        let path = folder.join(&file);
        refuse_of_others(&path)?;
        let library = Library::open(&path.display().to_string());
        return library.map_err(|error| refused(&error, &error.help()));
    }
    let help = format!(
        "install it with `polyrail nccl install FOLDER`, and name the folder in LD_LIBRARY_PATH; sought \
         where the dynamic loader looks ({}), in {}",
        match std::env::var("LD_LIBRARY_PATH") {
            Ok(path) if !path.is_empty() => format!("LD_LIBRARY_PATH={path}"),
            _ => "LD_LIBRARY_PATH is empty".to_owned(),
        },
        listed(&folders)
    );
    Err(refused(&fault, &help))
}

/// Loads the library that NCCL would load by this name. For `polyrail`, falls back to the one built in the surrounding
/// repository.
pub(crate) fn find(name: &str) -> Result<Library, Fault> {
    let refusal = match load(name) {
        Ok(library) => return Ok(library),
        Err(refusal) => refusal,
    };
    let built = build_folders().into_iter().map(|folder| folder.join(BUILT));
    let path = built.filter(|_| name == "polyrail").find(|path| path.exists());
    if let Some(path) = &path {
        refuse_of_others(path)?;
    }
    match path.as_deref().and_then(Path::to_str).map(Library::open) {
        Some(Ok(library)) => Ok(library),
        _ => Err(refusal),
    }
}

/// Returns the first plugin of [`VARIABLE`], which may be a list.
pub(crate) fn named() -> Option<String> {
    let value = std::env::var(VARIABLE).ok()?;
    value.split(',').map(str::trim).find(|name| !name.is_empty()).map(str::to_owned)
}

/// Whether no library exists that [`find`] would load or refuse.
pub(crate) fn is_missing(name: &str) -> bool {
    let installed = near_folders().into_iter().map(|folder| folder.join(file_name(name)));
    let built = build_folders().into_iter().map(|folder| folder.join(BUILT));
    matches!(Library::open(name), Err(LoadError::Missing { .. }))
        && !installed.chain(built).any(|path| path.exists())
}

/// Returns the file name of an installed plugin.
fn file_name(name: &str) -> String {
    format!("libnccl-net-{name}.so")
}

/// Returns the folders of an installation: this program's folder, `../lib` and `~/.local/lib`.
pub(crate) fn near_folders() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let bin = program.as_deref().and_then(Path::parent);
    let lib = bin.and_then(Path::parent).map(|parent| parent.join("lib"));
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let of_user = home.map(|home| PathBuf::from(home).join(".local/lib"));
    // A program in `~/.local/bin` has the same folder as `../lib`.
    let of_user = of_user.filter(|folder| lib.as_ref() != Some(folder));
    bin.map(Path::to_owned).into_iter().chain(lib).chain(of_user).collect()
}

/// Returns the folders of cargo's builds in the repository around the current folder. `cargo install` installs programs
/// only, no libraries.
pub(crate) fn build_folders() -> Vec<PathBuf> {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    if let Some(folder) = chosen {
        return vec![PathBuf::from(folder).join("release")];
    }
    let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
    let repository = here.ancestors().find(|folder| folder.join("Cargo.lock").exists());
    vec![repository.unwrap_or(&here).join("target/release")]
}

/// Refuses a library that was found rather than named, if another user can change it: loading it runs its code.
pub(crate) fn refuse_of_others(found: &Path) -> Result<(), Fault> {
    require_trusted_code(found).map_err(|error| {
        let text = format!("{} is not used: {error}", found.display());
        Fault::new(exit::of_io(&error), text)
            .with_help("if you trust it, name it: by --from, or by its whole path")
    })
}

/// Refuses to load a library by its bare name in a process with privileges, if users other than root and this one can
/// change or add a file with one of these names in a folder of LD_LIBRARY_PATH. The loader's other folders belong to
/// root.
pub(crate) fn refuse_bare_of_others(names: &[&str]) -> Result<(), Fault> {
    if !is_privileged() || names.iter().any(|name| name.contains('/')) {
        return Ok(());
    }
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let is_separator = |byte: &u8| matches!(byte, b':' | b';');
    let folders = path.as_bytes().split(is_separator).filter(|_| !path.is_empty());
    for folder in folders {
        // The loader reads an empty part as the current folder.
        let folder = if folder.is_empty() { b"." } else { folder };
        let folder = Path::new(OsStr::from_bytes(folder));
        // The loader skips entries that are not folders.
        match require_trusted(folder) {
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                let text = format!("no library of LD_LIBRARY_PATH is loaded: {error}");
                return Err(Fault::new(exit::of_io(&error), text));
            }
            _ => {}
        }
        let files = names.iter().map(|name| folder.join(name)).filter(|file| file.exists());
        for file in files {
            refuse_of_others(&file)?;
        }
    }
    Ok(())
}

pub(crate) fn listed(folders: &[PathBuf]) -> String {
    let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    folders.join(", ")
}

/// Quotes the path for a shell.
pub(crate) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
