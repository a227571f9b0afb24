//! `polyrail nixl`: the backend for NIXL's agents.

mod agent;
mod backend;
mod environment;
mod folder;

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use polyrail_report::exit;
use polyrail_sys::files::OpenFolder;

use crate::fault::Fault;
use crate::files;
use crate::libraries::{build_folders, listed, near_folders, quoted, refuse_of_others};
use crate::stdout::say;
use crate::unwritten::Unwritten;
use crate::values::{file_to_read, folder_to_read, folder_to_write};
pub(crate) use agent::installed;
use backend::Backend;
use environment::Nixl;

/// File that an agent loads for the backend POLYRAIL.
const PLUGIN: &str = "libplugin_POLYRAIL.so";

/// Sources of a file that can be installed.
const GOOD: &str =
    "`polyrail nixl install` takes it from Polyrail's package, or from `make -C integrations/nixl`";

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

/// A Python with NIXL.
#[derive(clap::Args)]
struct Environment {
    /// The Python environment that has NIXL, or its site-packages [default: the active environment].
    #[arg(value_name = "ENVIRONMENT", env = "VIRTUAL_ENV", hide_env = true, value_parser = folder_to_read())]
    environment: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Put the backend beside those that came with NIXL, or into a folder of its own with links to those.
    Install {
        #[command(flatten)]
        environment: Environment,

        /// Leave the environment as it is, and make this folder, which NIXL_PLUGIN_DIR is to name; with --undo,
        /// remove it.
        #[arg(long, value_name = "DIR", value_parser = folder_to_write())]
        folder: Option<PathBuf>,

        /// The backend that `make -C integrations/nixl` built [default: the first one beside this program, in
        /// ../lib, in ~/.local/lib or in target/nixl of the repository around].
        #[arg(long, value_name = "FILE", value_parser = file_to_read())]
        from: Option<PathBuf>,

        /// Remove what an earlier `install` put there, and nothing else.
        #[arg(long, conflicts_with = "from")]
        undo: bool,
    },
}

pub(crate) fn run(args: Args) -> ExitCode {
    let done = match args.command {
        Command::Install { folder: Some(folder), undo: true, .. } => folder::remove(&folder),
        Command::Install { environment, folder, from, undo } => {
            nixl(&environment).and_then(|nixl| match undo {
                true => uninstall(&nixl),
                false => install(&nixl, folder.as_deref(), from),
            })
        }
    };
    match done {
        Ok(()) => exit::OK.into(),
        Err(fault) => fault.refuse(),
    }
}

fn nixl(environment: &Environment) -> Result<Nixl, Fault> {
    let help = "name the folder of a Python environment in which `pip install nixl-cu12` was done";
    let Some(folder) = &environment.environment else {
        return Err(Fault::new(
            exit::USAGE,
            "no Python environment is named or active; allowed: one with NIXL",
        )
        .with_help(help));
    };
    Nixl::find(folder).ok_or_else(|| {
        Fault::new(
            exit::USAGE,
            format!("{} has no NIXL; allowed: a Python environment with it", folder.display()),
        )
        .with_help(help)
    })
}

fn unread(path: &Path, error: &std::io::Error) -> Fault {
    let allowed = match error.kind() {
        // Another user may have put the file there. The error says itself what is allowed.
        ErrorKind::InvalidData => "",
        _ => "; allowed: what this user may read",
    };
    let text = format!("can't read {}: {error}{allowed}", path.display());
    Fault::new(exit::of_io(error), text).with_help("run it as a user who can")
}

/// Examines a file. `None`: the file does not exist.
fn backend(file: &Path) -> Result<Option<Backend>, Fault> {
    Backend::of(file).map_err(|error| unread(file, &error))
}

/// Help for replacing a file that can't be the backend by a good one.
fn replace(installed: &Path) -> String {
    format!("remove it (rm {}), and then install a good one: {GOOD}", quoted(installed))
}

fn install(nixl: &Nixl, folder: Option<&Path>, from: Option<PathBuf>) -> Result<(), Fault> {
    let from = built(from)?;
    let plugins = match folder {
        Some(folder) => folder::mirror(nixl, folder)?,
        None => nixl.plugins(),
    };
    let installed = plugins.join(PLUGIN);
    if let Some(there) = backend(&installed)?.filter(|there| !there.is_ours) {
        let fault = there.fault().unwrap_or_default();
        let text = format!("{} is there, and it {fault}", installed.display());
        return Err(Fault::new(exit::USAGE, text).with_help(replace(&installed)));
    }
    // A running agent may have the old file mapped, so replace the file instead of writing into it.
    let copied = fs::read(&from).and_then(|bytes| files::replace(&installed, bytes));
    copied.map_err(Unwritten::at(&installed))?;
    say!("{}", installed.display());
    match folder {
        Some(_) => say!("now: export NIXL_PLUGIN_DIR={}", quoted(&plugins)),
        None => say!(
            "NIXL {} finds it there, unless NIXL_PLUGIN_DIR names another folder",
            nixl.version
        ),
    }
    Ok(())
}

/// Finds the file to install.
fn built(from: Option<PathBuf>) -> Result<PathBuf, Fault> {
    let help = "build it with `make -C integrations/nixl`, and name it with --from";
    let file = match from {
        Some(file) => file,
        None => {
            let of_build = build_folders()
                .into_iter()
                .filter_map(|release| Some(release.parent()?.join("nixl")));
            // Packages have a separate folder for it, as only NIXL's agents open it.
            let of_packages = near_folders().into_iter().filter(|folder| folder.ends_with("lib"));
            let of_packages = of_packages.map(|folder| folder.join("polyrail"));
            let folders: Vec<PathBuf> =
                near_folders().into_iter().chain(of_packages).chain(of_build).collect();
            let found = folders.iter().map(|folder| folder.join(PLUGIN)).find(|file| file.exists());
            let found = found.ok_or_else(|| {
                Fault::new(exit::USAGE, format!("there is no {PLUGIN} in {}", listed(&folders)))
                    .with_help(help)
            })?;
            refuse_of_others(&found)?;
            found
        }
    };
    match backend(&file)?.unwrap_or_default().fault() {
        None => Ok(file),
        Some(fault) => {
            Err(Fault::new(exit::USAGE, format!("{} {fault}", file.display())).with_help(help))
        }
    }
}

fn uninstall(nixl: &Nixl) -> Result<(), Fault> {
    let plugins = nixl.plugins();
    let installed = plugins.join(PLUGIN);
    let opened = OpenFolder::open(&plugins).map_err(|error| unread(&plugins, &error))?;
    match folder::remove_backend(&opened)? {
        None => say!("nothing to do: there is no {}", installed.display()),
        Some(true) => say!("removed {}", installed.display()),
        Some(false) => {
            let text = format!("{} is not Polyrail's", installed.display());
            return Err(
                Fault::new(exit::USAGE, text).with_help("remove it by hand if you don't need it")
            );
        }
    }
    Ok(())
}
