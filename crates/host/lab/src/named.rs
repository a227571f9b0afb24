//! Namespaces that root makes: they live as bind mounts in `/run/netns`, where `ip netns` looks.

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

/// Makes all namespaces and their names.
pub(crate) fn create(lab: &str, form: Form) -> Result<Namespaces, LabError> {
    let make = |seat| create_one(&path(lab, form, seat));
    Ok(Namespaces { user: None, net: (0..form.seats()).map(make).collect::<Result<_, _>>()? })
}

/// Which names of a lab exist, by seat.
pub(crate) fn open(lab: &str, form: Form) -> Result<Vec<Option<OwnedFd>>, LabError> {
    (0..form.seats()).map(|seat| namespaces::open(&path(lab, form, seat))).collect()
}

/// The form that the names of a lab tell, where its record does not.
pub(crate) fn form(lab: &str) -> Result<Form, LabError> {
    let names = names()?;
    let own = names.iter().filter_map(|name| split(name).filter(|(of, _)| *of == lab));
    Ok(Form::of_suffixes(own.map(|(_, suffix)| suffix)))
}

/// Removes the name of one namespace, mounted or not, there or not.
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

/// The labs that have a name in the directory, whole or not.
pub(crate) fn labs() -> Result<Vec<String>, LabError> {
    let names = names()?;
    let labs = names.iter().filter_map(|name| split(name)).map(|(lab, _)| lab);
    Ok(labs.filter(|lab| validate_name(lab).is_ok()).map(str::to_owned).collect())
}

/// Whether this process may bind-mount, found out without changing anything.
pub(crate) fn may_mount() -> Result<(), Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    match open_tree(CWD, namespaces::OWN_NETWORK, flags) {
        Err(errno @ (Errno::PERM | Errno::ACCESS)) => Err(errno),
        // Kernels before 5.2 lack this call; there the mount itself will fail.
        _ => Ok(()),
    }
}

/// Makes the directory as `ip netns` would, and a note of what was made.
///
/// It has to be a mount point of its own: else the first `ip netns add` turns it into one, with
/// copies of all mounts below, and the namespaces underneath can't be reached to be removed.
pub(crate) fn prepare_directory(note: &Path) -> Result<(), LabError> {
    let directory = Path::new(DIRECTORY);
    // The note comes first, so that a crash in between leaves nothing without a note;
    // one that such a crash left says more than what is found now.
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

/// Undoes [`prepare_directory`] if it did something and nobody else uses the directory.
///
/// Where somebody keeps it, with a namespace of his own or by looking at it, the note stays, so that the next one to
/// tidy up tries again.
pub(crate) fn release_directory(note: &Path) -> Result<(), LabError> {
    let Ok(made) = fs::read_to_string(note) else { return Ok(()) };
    let directory = Path::new(DIRECTORY);
    let in_use = || fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some());
    // If another program uses the directory between these calls, they fail and change nothing of its.
    // One that only lists it just now is mostly done in a moment.
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

/// What the note says: the directory is ours with its mount, or only the mount is.
const NOTE_DIRECTORY: &str = "directory\n";
const NOTE_MOUNT: &str = "mount\n";

/// Every name in the directory, of a lab or not.
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

/// The lab and the suffix of a name.
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
