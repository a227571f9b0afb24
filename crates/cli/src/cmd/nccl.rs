//! `polyrail nccl`: the plugin for NCCL and RCCL, and plugins of others.

mod trial;
mod tune;
mod variables;

use std::fs;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use polyrail_host::{Sysroot, Topology};
use polyrail_nccl_abi::{Library, LoadError, damage};
use polyrail_report::exit;
use polyrail_sys::files::{OpenFolder, make_folders};

use crate::fault::Fault;
use crate::files;
use crate::libraries::{
    BUILT, INSTALL, build_folders, listed, near_folders, quoted, refuse_of_others,
};
use crate::stdout::{excerpt, print, say, tell};
use crate::unwritten::Unwritten;
use crate::values::{file_to_read, folder_to_read, folder_to_write};
pub(super) use trial::installed;

/// Names under which NCCL and RCCL look for the plugin.
const FOR_NCCL: &str = "libnccl-net-polyrail.so";
const FOR_RCCL: &str = "librccl-net-polyrail.so";

/// Maximum number of GPUs whose buffers, with messages of 512 KiB, fit together into the last cache of a machine.
const FEW_GPUS: usize = 2;

/// Settings of NCCL that suit the plugin on a machine with this number of GPUs, and why. docs/nccl.md
/// has the measurements.
fn settings(gpus: usize) -> [(&'static str, &'static str, &'static str); 4] {
    let chunk = if gpus <= FEW_GPUS {
        ("524288", "send, receive, alltoall: messages of 512 KiB, as for up to 2 GPUs")
    } else {
        ("262144", "send, receive, alltoall: messages of 256 KiB, as for more than 2 GPUs")
    };
    [
        ("NCCL_MIN_NCHANNELS", "8", "large collectives: messages on 8 connections at a time"),
        ("NCCL_P2P_NET_CHUNKSIZE", chunk.0, chunk.1),
        ("NCCL_NCHANNELS_PER_NET_PEER", "8", "send, receive, alltoall: 8 connections to a peer"),
        ("NCCL_NET_PLUGIN_REF_COUNT", "1", "NCCL 2.28 forgets a plugin that it unloads"),
    ]
}

const NO_FALL_BACK: &str = "no silent fall-back to NCCL's own transport";

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print what to set for NCCL, for a shell or for NCCL's own file.
    Env {
        /// Folder of the library [default: where `polyrail nccl install` put it, if that is beside this
        /// program, in ../lib or in ~/.local/lib; else the dynamic loader finds it].
        #[arg(long, value_name = "DIR", value_parser = folder_to_read())]
        folder: Option<PathBuf>,

        /// As NCCL reads it from ~/.nccl.conf and /etc/nccl.conf: jobs then need no variables.
        #[arg(long)]
        conf: bool,

        /// GPUs of the machine that will run the job [default: those of this machine; if it has none, more than 2].
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
        gpus: Option<u16>,
    },
    /// Copy the plugin to a folder under the names that NCCL and RCCL look for.
    Install {
        /// The folder; made if it is not there.
        #[arg(value_parser = folder_to_write())]
        folder: PathBuf,

        /// The library that cargo built [default: the first one beside this program, in ../lib, in
        /// ~/.local/lib, in LD_LIBRARY_PATH or in target/release of the repository around].
        #[arg(long, value_name = "FILE", value_parser = file_to_read())]
        from: Option<PathBuf>,
    },
    /// Try a plugin that others made, in a process of its own: load it, connect each device to itself, send
    /// messages of many sizes and compare them, and tell what it leaves behind.
    Try(trial::Args),
    /// Find the variables of NCCL and of the plugin that make a job better.
    Tune(Box<tune::TuneArgs>),
    /// List the variables by which NCCL and RCCL are tuned: versions, defaults, values.
    Variables {
        /// Print the page docs/nccl-variables.md, which also says what each one does.
        #[arg(long)]
        markdown: bool,
    },
}

pub(crate) fn run(args: Args) -> ExitCode {
    let done = match args.command {
        Command::Env { folder, conf, gpus } => env(folder.as_deref(), conf, gpus),
        Command::Install { folder, from } => install(&folder, from),
        Command::Try(args) => trial::run(&args),
        Command::Tune(args) => return tune::run(&args),
        Command::Variables { markdown: true } => return print(&variables::markdown(), exit::OK),
        Command::Variables { markdown: false } => return print(&variables::text(), exit::OK),
    };
    match done {
        Ok(()) => exit::OK.into(),
        Err(fault) => fault.refuse(),
    }
}

fn env(folder: Option<&Path>, conf: bool, gpus: Option<u16>) -> Result<(), Fault> {
    if let Some(folder) = folder
        && !folder.join(FOR_NCCL).exists()
    {
        let text = format!(
            "--folder `{}`: holds no {FOR_NCCL}; allowed: a folder where it is installed",
            folder.display()
        );
        let help = "install it with `polyrail nccl install FOLDER`";
        return Err(Fault::new(exit::USAGE, text).with_help(help));
    }
    let installed = || near_folders().into_iter().find(|folder| folder.join(FOR_NCCL).exists());
    let is_found = folder.is_none();
    let folder = folder.map(Path::to_owned).or_else(installed);
    if let (true, Some(found)) = (is_found, &folder) {
        refuse_of_others(&found.join(FOR_NCCL))?;
    }
    // A job may be started in another folder.
    let folder = folder.map(|folder| fs::canonicalize(&folder).unwrap_or(folder));
    let gpus = gpus.map_or_else(gpus_here, usize::from);
    if gpus == usize::MAX {
        tell!(
            "polyrail: this machine shows no GPU, so this is for one with more than {FEW_GPUS}; --gpus N says how many"
        );
    }
    if conf {
        print_conf(folder.as_deref(), gpus)?;
    } else {
        print_exports(folder.as_deref(), gpus);
    }
    if folder.is_none() && !is_found_by_loader() {
        let text = "no plugin is installed here: a job with NCCL_NET=Polyrail fails";
        return Err(Fault::environment(text).with_help(format!("install it: {INSTALL}")));
    }
    Ok(())
}

/// Makes `eval "$(polyrail nccl env)"` fail if this process does: shells ignore the exit code of a command in an
/// argument.
pub(crate) fn fail_eval(code: ExitCode) {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let is_for_shell = words.starts_with(&["nccl".into(), "env".into()])
        && !words.iter().any(|word| word == "--conf")
        && !io::stdout().is_terminal();
    if is_for_shell && code != ExitCode::SUCCESS {
        say!("false");
    }
}

/// Whether the dynamic loader finds an installed plugin. A file in `LD_LIBRARY_PATH` is not loaded, as it may be another
/// user's; the loader's other folders are root's.
fn is_found_by_loader() -> bool {
    let paths = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(FOR_NCCL).exists())
        || !matches!(Library::open(FOR_NCCL), Err(LoadError::Missing { .. }))
}

/// Number of GPUs that the system's files show. If they show none, assumes many: users also prepare jobs on machines
/// without GPUs.
fn gpus_here() -> usize {
    let seen = Topology::read(&Sysroot::live()).map_or(0, |topology| topology.gpus.len());
    if seen > 0 { seen } else { usize::MAX }
}

fn print_exports(folder: Option<&Path>, gpus: usize) {
    if let Some(folder) = folder {
        let folder = quoted(folder);
        say!("export LD_LIBRARY_PATH={folder}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}");
    }
    say!("export NCCL_NET_PLUGIN=polyrail");
    say!("export NCCL_NET=Polyrail  # {NO_FALL_BACK}");
    for (name, value, why) in settings(gpus) {
        say!("export {name}={value}  # {why}");
    }
}

/// Prints the form that `setEnvFile` reads (`src/misc/param.cc` of NCCL 2.18 to 2.30). A line that begins with # is a
/// comment. Everything after the first = is the value, of which 1023 bytes count.
fn print_conf(folder: Option<&Path>, gpus: usize) -> Result<(), Fault> {
    let library = folder.map_or("polyrail".into(), |folder| folder.join(FOR_NCCL));
    let Some(library) = library.to_str().filter(|path| !path.contains('\n') && path.len() < 1024)
    else {
        let text = format!("NCCL's file can't hold the path {}", library.display());
        return Err(Fault::new(exit::USAGE, text)
            .with_help("install the plugin where the path is plain text"));
    };
    say!("# For ~/.nccl.conf, /etc/nccl.conf, or the file that NCCL_CONF_FILE names (since 2.23).");
    say!("# What the environment says goes before.");
    if folder.is_some() {
        say!("# NCCL before 2.21 takes no path: polyrail here, and the folder in LD_LIBRARY_PATH.");
    }
    say!("NCCL_NET_PLUGIN={library}\n# {NO_FALL_BACK}\nNCCL_NET=Polyrail");
    for (name, value, why) in settings(gpus) {
        say!("# {why}\n{name}={value}");
    }
    Ok(())
}

fn install(folder: &Path, from: Option<PathBuf>) -> Result<(), Fault> {
    let help = "build it with `cargo build --release -p polyrail-nccl` in the repository and run this \
                there, or name it with --from";
    let from = match from {
        Some(from) if from.exists() => from,
        Some(from) => {
            return Err(Fault::new(
                exit::USAGE,
                format!("--from {} does not exist", from.display()),
            )
            .with_help(help));
        }
        None => {
            let mut folders = near_folders();
            let paths = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
            folders
                .extend(std::env::split_paths(&paths).filter(|path| !path.as_os_str().is_empty()));
            folders.extend(build_folders());
            let built = folders.iter().map(|folder| folder.join(BUILT)).find(|path| path.exists());
            let found = built.ok_or_else(|| {
                Fault::new(exit::USAGE, format!("there is no {BUILT} in {}", listed(&folders)))
                    .with_help(help)
            })?;
            refuse_of_others(&found)?;
            found
        }
    };
    refuse_no_plugin(&from, help)?;
    make_folders(folder, 0o777).map_err(Unwritten::at(folder))?;
    let opened = OpenFolder::open(folder).map_err(Unwritten::at(folder))?;
    let (nccl, rccl) = (folder.join(FOR_NCCL), folder.join(FOR_RCCL));
    // A running job may have the old file mapped, so replace the file instead of writing into it.
    let copied = fs::read(&from).and_then(|bytes| files::replace(&nccl, bytes));
    copied.map_err(Unwritten::at(&nccl))?;
    opened.put_link(FOR_RCCL, FOR_NCCL).map_err(Unwritten::at(&rccl))?;
    say!("{}\n{} -> {FOR_NCCL}", nccl.display(), rccl.display());
    say!("now: eval \"$(polyrail nccl env --folder {})\"", quoted(folder));
    Ok(())
}

/// Refuses a file in which NCCL would find no plugin. Does not load it: that would run its code, and need its
/// libraries, which may be on other machines only.
fn refuse_no_plugin(from: &Path, help: &str) -> Result<(), Fault> {
    let shown = || excerpt(&from.to_string_lossy());
    let bytes = fs::read(from).map_err(|error| {
        let text = format!("--from `{}`: can't be read: {error}; allowed: the plugin", shown());
        Fault::new(exit::of_io(&error), text).with_help(help)
    })?;
    let has_table = || bytes.windows(TABLE.len()).any(|name| name == TABLE);
    let fault = damage(&bytes)
        .or_else(|| (!has_table()).then(|| "it has no table ncclNetPlugin_v5 to v12".to_owned()));
    fault.map_or(Ok(()), |fault| {
        let text = format!("--from `{}`: is no plugin: {fault}; allowed: a net plugin", shown());
        Err(Fault::new(exit::USAGE, text).with_help(help))
    })
}

/// Beginning of the names that a net plugin exports.
const TABLE: &[u8] = b"ncclNetPlugin_v";
