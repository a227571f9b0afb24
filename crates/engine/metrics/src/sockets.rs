//! Listening, and the sockets in a folder: their names, and those that dead processes left.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;

use polyrail_sys::files::{Found, OpenFolder};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::http::Listener;

const PREFIX: &str = "polyrail-";
const SUFFIX: &str = ".sock";
/// The file's owner and its group may ask.
const MODE: u32 = 0o660;
/// Number of connections that the kernel holds until the server accepts them.
const BACKLOG: i32 = 1024;
/// Maximum number of entries of a folder to look at.
const MOST_ENTRIES: usize = 65_536;

/// A listener, and the file to remove at its end.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listener: Listener,
    pub(crate) file: Option<SocketFile>,
}

/// The file of a socket, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    folder: OpenFolder,
    name: OsString,
    found: Found,
}

/// Result of an attempt to connect to a socket.
pub(crate) enum Called {
    Connected(Socket),
    /// No process listens there any more: its process is dead.
    Dead,
    /// A process listens but accepts no connection: it hangs.
    Full,
    Failed(io::Error),
}

pub(crate) fn on_port(address: SocketAddr) -> io::Result<Bound> {
    let listener = TcpListener::bind(address)?;
    // The library sets 128. Where more connect at once, the kernel drops them, and a scraper tries again after a
    // second.
    SockRef::from(&listener).listen(BACKLOG)?;
    Ok(Bound { listener: Listener::Tcp(listener), file: None })
}

/// Listens at this path. Replaces a socket there that no process listens on any more.
pub(crate) fn on_path(path: &Path) -> io::Result<Bound> {
    let (folder, name) = OpenFolder::of(path)?;
    if let Some(found) = folder.find(&name)? {
        if !found.is_socket() {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "it is there, and no socket"));
        }
        match call(&folder.path_by_descriptor(&name)) {
            Called::Dead => drop(folder.remove(&name, &found)?),
            Called::Connected(_) | Called::Full => {
                return Err(io::Error::new(ErrorKind::AddrInUse, "another process serves there"));
            }
            Called::Failed(error) => return Err(error),
        }
    }
    bind(folder, name)
}

/// Listens on a socket with a unique name in this folder. Removes those of dead processes.
pub(crate) fn in_folder(folder: &Path) -> io::Result<Bound> {
    let folder = OpenFolder::open(folder)?;
    for (name, found) in sockets_in(&folder).unwrap_or_default() {
        if matches!(call(&folder.path_by_descriptor(&name)), Called::Dead) {
            remove_dead(&folder, &name, &found);
        }
    }
    let name = unique_name()?.into();
    bind(folder, name)
}

/// Listens under a temporary name first. A socket under its final name always has a listener, so one without belongs to
/// a dead process.
fn bind(folder: OpenFolder, name: OsString) -> io::Result<Bound> {
    // A file name may be longer than one that can be connected to.
    SockAddr::unix(folder.path().join(&name))?;
    let first = format!(".{}", unique_name()?);
    let listener = UnixListener::bind(folder.path_by_descriptor(&first))?;
    match finish(&folder, first.as_ref(), &name) {
        Ok(found) => {
            let file = Some(SocketFile { folder, name, found });
            Ok(Bound { listener: Listener::Unix(listener), file })
        }
        Err(error) => {
            // No client knows of it yet.
            if let Ok(Some(found)) = folder.find(&first)
                && found.is_socket()
            {
                let _ = folder.remove(&first, &found);
            }
            Err(error)
        }
    }
}

fn finish(folder: &OpenFolder, first: &OsStr, name: &OsStr) -> io::Result<Found> {
    let found = folder.set_mode_of_socket(first, MODE)?;
    folder.rename(first, name)?;
    Ok(found)
}

/// The process number, and a random part that tells apart two processes with the same one in two containers.
fn unique_name() -> io::Result<String> {
    let random = getrandom::u32().map_err(io::Error::other)?;
    Ok(format!("{PREFIX}{}-{random:08x}{SUFFIX}", std::process::id()))
}

/// Process number in the name of a socket.
pub(crate) fn pid_in(name: &str) -> Option<&str> {
    let (pid, _) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
    pid.parse::<u32>().is_ok().then_some(pid)
}

/// Sockets in a folder by name. Those that are not ready yet begin with a dot and are left out.
pub(crate) fn sockets_in(folder: &OpenFolder) -> io::Result<Vec<(String, Found)>> {
    let names = folder.names(MOST_ENTRIES)?.into_iter();
    let names = names.filter_map(|name| name.into_string().ok());
    let found = names.filter(|name| !name.starts_with('.')).filter_map(|name| {
        let found = folder.find(&name).ok().flatten().filter(Found::is_socket)?;
        Some((name, found))
    });
    let mut found: Vec<_> = found.collect();
    found.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
    Ok(found)
}

/// Sorts by name, with the first of each user before the second of any, so that no user's sockets keep out another's.
pub(crate) fn in_turn<T>(all: BTreeMap<String, T>, user: impl Fn(&T) -> u32) -> Vec<(String, T)> {
    let mut turns: BTreeMap<u32, usize> = BTreeMap::new();
    let mut found: Vec<_> = all
        .into_iter()
        .map(|(name, one)| {
            let turn = turns.entry(user(&one)).or_default();
            *turn += 1;
            (*turn, (name, one))
        })
        .collect();
    found.sort_by_key(|(turn, _)| *turn);
    found.into_iter().map(|(_, one)| one).collect()
}

/// Connects without waiting. A path that begins with a zero byte is an abstract name.
pub(crate) fn call(path: &Path) -> Called {
    let connect = || -> io::Result<Socket> {
        let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.connect(&SockAddr::unix(path)?)?;
        Ok(socket)
    };
    match connect() {
        Ok(socket) => Called::Connected(socket),
        Err(error) => match error.kind() {
            ErrorKind::ConnectionRefused => Called::Dead,
            ErrorKind::WouldBlock => Called::Full,
            _ => Called::Failed(error),
        },
    }
}

/// Removes a socket without a listener if its name is one that only Polyrail gives. Returns whether it was removed.
pub(crate) fn remove_dead(folder: &OpenFolder, name: &str, found: &Found) -> bool {
    pid_in(name).is_some() && folder.remove(name, found).unwrap_or(false)
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A process that finds it later recognizes it as dead.
        let _ = self.folder.remove(&self.name, &self.found);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn sockets_of_one_user_keep_out_none_of_another() {
        let of = |user: u32| move |number: u32| (format!("polyrail-{user}-{number:03}.sock"), user);
        let all = (0..300).map(of(1000)).chain((0..2).map(of(1001))).collect();
        let order: Vec<u32> =
            in_turn(all, |user| *user).into_iter().map(|(_, user)| user).collect();
        assert_eq!(order[..5], [1000, 1001, 1000, 1001, 1000]);
        let one = (0..9).map(of(7)).collect::<BTreeMap<_, _>>();
        let names: Vec<String> = one.keys().cloned().collect();
        let in_turn = in_turn(one, |user| *user);
        assert_eq!(in_turn.into_iter().map(|(name, _)| name).collect::<Vec<_>>(), names);
    }

    #[test]
    fn a_socket_has_a_name_of_its_own_and_goes_with_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (in_folder(folder.path()).unwrap(), in_folder(folder.path()).unwrap());
        let names = sockets_in(&OpenFolder::open(folder.path()).unwrap()).unwrap();
        assert_eq!(names.len(), 2);
        let pid = std::process::id().to_string();
        assert!(names.iter().all(|(name, _)| pid_in(name) == Some(pid.as_str())), "{names:?}");
        let mode = fs::metadata(folder.path().join(&names[0].0)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, MODE);
        drop((one, two));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_socket_of_a_dead_process_is_removed_and_a_live_one_stays() {
        let folder = tempfile::tempdir().unwrap();
        let stale = folder.path().join("polyrail-1-0.sock");
        drop(UnixListener::bind(&stale).unwrap());
        let live = in_folder(folder.path()).unwrap();
        assert!(!stale.exists());
        let second = in_folder(folder.path()).unwrap();
        assert_eq!(sockets_in(&OpenFolder::open(folder.path()).unwrap()).unwrap().len(), 2);
        drop((live, second));
    }

    #[test]
    fn a_path_is_taken_only_if_nobody_serves_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.sock");
        drop(UnixListener::bind(&path).unwrap());
        let bound = on_path(&path).unwrap();
        let error = on_path(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
        drop(bound);
        assert!(!path.exists());
        fs::write(&path, "mine").unwrap();
        assert_eq!(on_path(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn root_listens_in_no_folder_that_a_link_of_another_user_leads_to() {
        if !rustix::process::geteuid().is_root() {
            return polyrail_skip::skip(
                "needs root",
                "sudo cargo test -p polyrail-metrics sockets",
            );
        }
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        drop((in_folder(&link).unwrap(), on_path(&link.join("metrics.sock")).unwrap()));
        std::os::unix::fs::lchown(&link, Some(65534), Some(65534)).unwrap();
        for result in [in_folder(&link), on_path(&link.join("metrics.sock"))] {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidData);
        }
        assert_eq!(fs::read_dir(&real).unwrap().count(), 0);
    }

    #[test]
    fn a_dead_socket_is_removed_from_the_folder_that_was_opened_and_by_its_name_only() {
        let folder = tempfile::tempdir().unwrap();
        let (real, victim) = (folder.path().join("real"), folder.path().join("victim"));
        for path in [&real, &victim] {
            fs::create_dir(path).unwrap();
            for name in ["polyrail-1-0.sock", "other.sock"] {
                drop(UnixListener::bind(path.join(name)).unwrap());
            }
        }
        let open = OpenFolder::open(&real).unwrap();
        let listed = sockets_in(&open).unwrap();
        fs::rename(&real, folder.path().join("away")).unwrap();
        std::os::unix::fs::symlink(&victim, &real).unwrap();
        let removed: Vec<bool> =
            listed.iter().map(|(name, found)| remove_dead(&open, name, found)).collect();
        assert_eq!(removed, [false, true], "{listed:?}");
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 2);
        // A file took the socket's name.
        let (name, found) = &listed[1];
        fs::write(folder.path().join("away").join(name), "keep").unwrap();
        assert!(!remove_dead(&open, name, found));
    }

    #[test]
    fn a_file_that_another_put_in_its_place_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.sock");
        let bound = on_path(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "another").unwrap();
        drop(bound);
        assert!(path.exists());
    }

    #[test]
    fn the_process_number_is_read_from_names_of_that_form_only() {
        assert_eq!(pid_in("polyrail-4711-00ff.sock"), Some("4711"));
        for name in ["polyrail-x-1.sock", "polyrail-4711.sock", "other-1-2.sock", "polyrail-1-2"] {
            assert_eq!(pid_in(name), None, "{name}");
        }
    }
}
