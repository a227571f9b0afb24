//! `polyrail nccl`: the plugin for NCCL and RCCL, and plugins of others.

mod trial;
mod tune;
mod variables;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use polyrail_host::{Sysroot, Topology};
use polyrail_nccl_abi::{Library, LoadError, NCCL_RELEASES, Net, NetError, Properties, damage};
use polyrail_report::{Align, Table, exit};
use polyrail_sys::files::{OpenFolder, make_folders, require_trusted_code};

use crate::fault::Fault;
use crate::files;
use crate::stdout::{excerpt, fitted, print, say, tell};
use crate::unwritten::Unwritten;
use crate::values::{file_to_read, folder_to_read, folder_to_write, library_name};
pub(super) use trial::how;

/// What cargo calls the library, and what NCCL and RCCL look for.
const BUILT: &str = "libnccl_net_polyrail.so";
const FOR_NCCL: &str = "libnccl-net-polyrail.so";
const FOR_RCCL: &str = "librccl-net-polyrail.so";

/// GPUs of a machine whose buffers fit into its last cache beside each other with messages of 512 KiB.
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
    /// Load the plugin as NCCL does, and tell what NCCL will find.
    Check {
        /// The library, or a value for NCCL_NET_PLUGIN [default: that variable's value, else
        /// `polyrail`].
        #[arg(value_parser = library_name)]
        library: Option<String>,
    },
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
        Command::Check { library } => check(library),
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

fn check(library: Option<String>) -> Result<(), Fault> {
    let name = library.or_else(plugin_of_environment).unwrap_or_else(|| "polyrail".to_owned());
    let (library, hidden) = load(&name)?;
    say!("{} is a plugin; its tables:", library.name());
    let mut tables = Table::default().column("version", Align::Right).column("name", Align::Left);
    for (version, name) in library.tables() {
        tables.row([version.to_string(), name]);
    }
    say!("{}", tables.to_string().trim_end());
    let mut releases =
        Table::default().column("release", Align::Left).column("takes version", Align::Right);
    for release in NCCL_RELEASES {
        let version = library.version_for(*release);
        let text = version.map_or("none".to_owned(), |version| version.to_string());
        releases.row([release.name.to_owned(), text]);
    }
    say!("\n{}", releases.to_string().trim_end());
    let devices = devices(&library).map_err(|error| {
        Fault::environment(error.to_string()).with_help("the lines above say why")
    })?;
    let mut table = Table::default()
        .column("device", Align::Left)
        .column("Mbit/s", Align::Right)
        .column("latency", Align::Right)
        .column("PCI", Align::Left);
    for device in &devices {
        let pci = device.pci_path.as_ref().map_or("none".into(), |path| path.display().to_string());
        table.row([
            device.name.clone(),
            device.speed_mbps.to_string(),
            format!("{} us", device.latency_us),
            pci,
        ]);
    }
    say!("\n{}", fitted(&table).trim_end());
    if devices.is_empty() {
        return Err(Fault::new(exit::VERDICT, "NCCL will find no device"));
    }
    match hidden {
        Some(folder) => {
            let folder = quoted(&folder);
            let text = format!("NCCL will not find the plugin: LD_LIBRARY_PATH lacks {folder}");
            Err(Fault::new(exit::VERDICT, text)
                .with_help(format!("eval \"$(polyrail nccl env --folder {folder})\"")))
        }
        None => Ok(()),
    }
}

/// The first plugin of `NCCL_NET_PLUGIN`, which may be a list. `none` keeps NCCL from loading any.
fn plugin_of_environment() -> Option<String> {
    let value = std::env::var("NCCL_NET_PLUGIN").ok()?;
    let name = value.split(',').map(str::trim).find(|name| !name.is_empty())?;
    if name.eq_ignore_ascii_case("none") {
        tell!(
            "polyrail: warning: NCCL_NET_PLUGIN={name} keeps NCCL from loading a plugin; this checks `polyrail`, which \
             NCCL loads once the variable is unset or names it"
        );
        return None;
    }
    Some(name.to_owned())
}

/// What the newest table tells.
fn devices(library: &Library) -> Result<Vec<Properties>, NetError> {
    let net = Net::open(library, None, None)?;
    (0..net.devices()?).map(|device| net.properties(device)).collect()
}

/// Loads the plugin as NCCL would. Where the dynamic loader does not find it, loads an installed one,
/// and returns its folder, too.
fn load(name: &str) -> Result<(Library, Option<PathBuf>), Fault> {
    let fault = match Library::open(name) {
        Ok(library) => return Ok((library, None)),
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
        let library = library.map_err(|error| refused(&error, &error.help()))?;
        return Ok((library, Some(folder.clone())));
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
pub(super) fn find(name: &str) -> Result<Library, Fault> {
    let refusal = match load(name) {
        Ok((library, _)) => return Ok(library),
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

/// Where an installation puts libraries: beside this program, in `../lib` and in `~/.local/lib`.
pub(super) fn near_folders() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let bin = program.as_deref().and_then(Path::parent);
    let lib = bin.and_then(Path::parent).map(|parent| parent.join("lib"));
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty());
    let of_user = home.map(|home| PathBuf::from(home).join(".local/lib"));
    // For a program in ~/.local/bin it is the same folder.
    let of_user = of_user.filter(|folder| lib.as_ref() != Some(folder));
    bin.map(Path::to_owned).into_iter().chain(lib).chain(of_user).collect()
}

/// Where cargo puts what it builds in the repository that this process is somewhere in: `cargo
/// install` installs programs, and no libraries.
pub(super) fn build_folders() -> Vec<PathBuf> {
    let chosen = std::env::var_os("CARGO_TARGET_DIR").filter(|folder| !folder.is_empty());
    if let Some(folder) = chosen {
        return vec![PathBuf::from(folder).join("release")];
    }
    let here = std::env::current_dir().unwrap_or_else(|_| ".".into());
    let repository = here.ancestors().find(|folder| folder.join("Cargo.lock").exists());
    vec![repository.unwrap_or(&here).join("target/release")]
}

/// Refuses a library that was found and not named, where another user can change it: who loads it runs its code.
pub(super) fn refuse_of_others(found: &Path) -> Result<(), Fault> {
    require_trusted_code(found).map_err(|error| {
        let text = format!("{} is not used: {error}", found.display());
        Fault::new(exit::of_io(&error), text)
            .with_help("if you trust it, name it: by --from, or by its whole path")
    })
}

pub(super) fn listed(folders: &[PathBuf]) -> String {
    let folders: Vec<String> = folders.iter().map(|folder| folder.display().to_string()).collect();
    folders.join(", ")
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
    // A job may be started from elsewhere.
    let folder = folder.map(|folder| fs::canonicalize(&folder).unwrap_or(folder));
    let gpus = gpus.map_or_else(gpus_here, usize::from);
    if gpus == usize::MAX {
        tell!(
            "polyrail: this machine shows no GPU, so this is for one with more than {FEW_GPUS}; --gpus N says how many"
        );
    }
    if conf {
        return print_conf(folder.as_deref(), gpus);
    }
    print_exports(folder.as_deref(), gpus);
    Ok(())
}

/// GPUs that the system's files show. If they show none, assumes many: people also prepare jobs on
/// machines without GPUs.
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

/// The form of `setEnvFile` (`src/misc/param.cc` of NCCL 2.18 to 2.30): a line is a comment if it
/// begins with #, and all behind the first = is the value, of which 1023 bytes count.
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

/// Refuses a file in which NCCL would find no plugin. It is not loaded: that runs its code, and needs what it is linked
/// to, which may be on other machines only.
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

/// How the names begin of what a net plugin exports.
const TABLE: &[u8] = b"ncclNetPlugin_v";

pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}
