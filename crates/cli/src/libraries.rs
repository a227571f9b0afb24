//! Places of the libraries that Polyrail brings for other programs.

use std::ffi::OsStr;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use polyrail_nccl_abi::{Library, LoadError};
use polyrail_report::exit;
use polyrail_sys::files::{is_privileged, require_trusted, require_trusted_code};

use crate::fault::Fault;

/// The name that cargo gives the plugin for NCCL.
pub(crate) const BUILT: &str = "libnccl_net_polyrail.so";

/// Loads the plugin as NCCL would, or an installed one that the dynamic loader does not find.
fn load(name: &str) -> Result<Library, Fault> {
    let fault = match Library::open(name) {
        Ok(library) => return Ok(library),
        Err(fault) => fault,
    };
    let file = format!("libnccl-net-{name}.so");
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

/// The library that NCCL would load by this name. For `polyrail` also the one that was built in the
/// repository around.
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

/// Returns the folders of an installation: beside this program, in `../lib` and in `~/.local/lib`.
pub(crate) fn near_folders() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let bin = program.as_deref().and_then(Path::parent);
    let lib = bin.and_then(Path::parent).map(|parent| parent.join("lib"));
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let of_user = home.map(|home| PathBuf::from(home).join(".local/lib"));
    // For a program in ~/.local/bin it is the same folder.
    let of_user = of_user.filter(|folder| lib.as_ref() != Some(folder));
    bin.map(Path::to_owned).into_iter().chain(lib).chain(of_user).collect()
}

/// Returns the folders of cargo's builds in the repository around the current folder: `cargo
/// install` installs programs, and no libraries.
pub(crate) fn build_folders() -> Vec<PathBuf> {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    if let Some(folder) = chosen {
        return vec![PathBuf::from(folder).join("release")];
    }
    let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
    let repository = here.ancestors().find(|folder| folder.join("Cargo.lock").exists());
    vec![repository.unwrap_or(&here).join("target/release")]
}

/// Refuses a library that was found and not named, where another user can change it: who loads it runs its code.
pub(crate) fn refuse_of_others(found: &Path) -> Result<(), Fault> {
    require_trusted_code(found).map_err(|error| {
        let text = format!("{} is not used: {error}", found.display());
        Fault::new(exit::of_io(&error), text)
            .with_help("if you trust it, name it: by --from, or by its whole path")
    })
}

/// Refuses a library of a bare name in a process with privileges, if others than root and this user can change a file
/// of these names that the dynamic loader would take, or lay one, in a folder of LD_LIBRARY_PATH. The loader's other
/// folders are root's.
pub(crate) fn refuse_bare_of_others(names: &[&str]) -> Result<(), Fault> {
    if !is_privileged() || names.iter().any(|name| name.contains('/')) {
        return Ok(());
    }
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let is_separator = |byte: &u8| matches!(byte, b':' | b';');
    let folders = path.as_bytes().split(is_separator).filter(|_| !path.is_empty());
    for folder in folders {
        // The loader takes an empty part for the current folder.
        let folder = if folder.is_empty() { b"." } else { folder };
        let folder = Path::new(OsStr::from_bytes(folder));
        // The loader passes over what is no folder.
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

/// For a shell.
pub(crate) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
