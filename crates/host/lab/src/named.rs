//! Namespaces made by root: they live as bind mounts in `/run/netns`, which `ip netns` uses, too.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{
    MountPropagationFlags, OpenTreeFlags, UnmountFlags, mount_bind, mount_bind_recursive,
    mount_change, open_tree, unmount,
};

use crate::error::{During, LabError};
use crate::namespaces::{self, Namespaces, on_own_thread};
use crate::node::Form;
use crate::os;
use crate::spec::validate_name;

const DIRECTORY: &str = "/run/netns";
const PREFIX: &str = "polyrail-";

pub(crate) fn path(lab: &str, form: Form, seat: usize) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{PREFIX}{lab}-{}", form.suffix(seat)))
}

/// Makes all namespaces, each with its name.
pub(crate) fn create(lab: &str, form: Form) -> Result<Namespaces, LabError> {
    let make = |seat| create_one(&path(lab, form, seat));
    Ok(Namespaces { user: None, net: (0..form.seats()).map(make).collect::<Result<_, _>>()? })
}

/// Opens the named namespaces of a lab, by seat; `None` where the name does not exist.
pub(crate) fn open(lab: &str, form: Form) -> Result<Vec<Option<OwnedFd>>, LabError> {
    (0..form.seats()).map(|seat| namespaces::open(&path(lab, form, seat))).collect()
}

/// Derives the form of a lab from its names, for a lab without a readable record.
pub(crate) fn form(lab: &str) -> Result<Form, LabError> {
    let names = names()?;
    let own = names.iter().filter_map(|name| split(name).filter(|(of, _)| *of == lab));
    Ok(Form::of_suffixes(own.map(|(_, suffix)| suffix)))
}

/// Removes the name of one namespace, whether it is mounted, only a file, or missing.
pub(crate) fn remove(lab: &str, form: Form, seat: usize) -> Result<(), LabError> {
    let path = path(lab, form, seat);
    // A crash between two attempts may have left several mounts on top of each other.
    loop {
        match unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(errno) => return Err(errno).during_path("unmounting", &path),
        }
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).during_path("removing", &path)
        }
        _ => Ok(()),
    }
}

/// Lists the labs that have a name in the directory, complete or not.
pub(crate) fn labs() -> Result<Vec<String>, LabError> {
    let names = names()?;
    let labs = names.iter().filter_map(|name| split(name)).map(|(lab, _)| lab);
    Ok(labs.filter(|lab| validate_name(lab).is_ok()).map(str::to_owned).collect())
}

/// Returns an error if this process may not bind-mount, without changing anything.
pub(crate) fn may_mount() -> Result<(), Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match open_tree(CWD, namespaces::OWN_NETWORK, flags) {
        Err(errno @ (Errno::PERM | Errno::ACCESS)) => Err(errno),
        // Kernels before 5.2 lack this call; on those, the mount itself fails.
        _ => Ok(()),
    }
}

/// Makes the directory as `ip netns` would, and writes a note of the changes.
///
/// The directory must be its own mount point. Otherwise the first `ip netns add` turns it into one,
/// with copies of all mounts below, and the namespaces underneath can't be reached to be removed.
pub(crate) fn prepare_directory(note: &Path) -> Result<(), LabError> {
    let directory = Path::new(DIRECTORY);
    // The note is written first, so that a crash in between leaves no change without a note. A note
    // left by such a crash stays, because it records more than can be found now.
    let write_note = |text| match note.exists() {
        true => Ok(()),
        false => fs::write(note, text).during_path("writing", note),
    };
    if !directory.exists() {
        write_note(NOTE_DIRECTORY)?;
        fs::create_dir(directory).during_path("making", directory)?;
    }
    let share =
        || mount_change(directory, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match share() {
        Err(Errno::INVAL) => {
            write_note(NOTE_MOUNT)?;
            mount_bind_recursive(directory, directory).during_path("mounting", directory)?;
            share().during_path("sharing", directory)
        }
        result => result.during_path("sharing", directory),
    }
}

/// Undoes [`prepare_directory`] if it changed something and no other program uses the directory.
///
/// If another program uses the directory, with its own namespace or by reading it, the note stays and the next cleanup
/// tries again.
pub(crate) fn release_directory(note: &Path) -> Result<(), LabError> {
    let Ok(made) = fs::read_to_string(note) else { return Ok(()) };
    let directory = Path::new(DIRECTORY);
    let in_use = || fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
    // If another program uses the directory between these calls, they fail and change nothing. A program that only
    // lists the directory is usually done within a moment.
    let mut looks = 0..50;
    while !in_use() && unmount(directory, UnmountFlags::NOFOLLOW) == Err(Errno::BUSY) {
        if looks.next().is_none() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let is_kept =
        || fs::remove_dir(directory).is_err_and(|it| it.kind() != io::ErrorKind::NotFound);
    if in_use() || made == NOTE_DIRECTORY && is_kept() {
        return Ok(());
    }
    fs::remove_file(note).during_path("removing", note)
}

/// Contents of the note: this crate made the directory and its mount, or only the mount.
const NOTE_DIRECTORY: &str = "directory\n";
const NOTE_MOUNT: &str = "mount\n";

/// Lists every name in the directory, also those that belong to no lab.
fn names() -> Result<Vec<String>, LabError> {
    let directory = Path::new(DIRECTORY);
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.during_path("reading", directory)?,
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.during_path("reading", directory)?.file_name().into_string());
    }
    Ok(names)
}

/// Splits a name into the lab and the suffix.
fn split(name: &str) -> Option<(&str, &str)> {
    let (lab, suffix) = name.strip_prefix(PREFIX)?.rsplit_once('-')?;
    Form::is_suffix(suffix).then_some((lab, suffix))
}

fn create_one(path: &Path) -> Result<OwnedFd, LabError> {
    fs::File::create_new(path).during_path("making", path)?;
    on_own_thread(|| {
        os::unshare_network()?;
        mount_bind(namespaces::OWN_NETWORK, path)
    })
    .during(|| format!("making the network namespace {}", path.display()))?;
    namespaces::open(path)?
        .ok_or_else(|| LabError::system(format!("opening {}", path.display()), Errno::NOENT))
}
