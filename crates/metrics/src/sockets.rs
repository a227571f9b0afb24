//! Listening, and the sockets in a folder: their names, and those that dead processes left.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use polyrail_sys::files::{set_mode, without_links};
use socket2::{Domain, SockAddr, SockRef, Socket, Type};

use crate::http::Listener;

const PREFIX: &str = "polyrail-";
const SUFFIX: &str = ".sock";
/// Who owns the file and their group may ask.
const MODE: u32 = 0o660;
/// Connections that the kernel holds until the server accepts them.
const BACKLOG: i32 = 1024;
/// Entries of a folder that are looked at.
const MOST_ENTRIES: usize = 4096;

/// A listener, and the file to remove at its end.
#[derive(Debug)]
pub(crate) struct Bound {
    pub(crate) listener: Listener,
    pub(crate) file: Option<SocketFile>,
}

/// The file of a socket, which is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

/// What became of an attempt to connect to a socket.
pub(crate) enum Called {
    Connected(Socket),
    /// Nobody listens there any more: its process is dead.
    Dead,
    /// It listens, and takes nobody: it hangs.
    Full,
    Failed(io::Error),
}

pub(crate) fn on_port(address: SocketAddr) -> io::Result<Bound> {
    let listener = TcpListener::bind(address)?;
    // The library asks for 128: where more come at once, the kernel drops them, and a scraper tries again after a second.
    SockRef::from(&listener).listen(BACKLOG)?;
    Ok(Bound { listener: Listener::Tcp(listener), file: None })
}

/// Listens at this path; a socket there that nobody listens on any more is replaced.
pub(crate) fn on_path(path: &Path) -> io::Result<Bound> {
    let name = path.file_name().ok_or(ErrorKind::InvalidInput)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = without_links(folder.unwrap_or(Path::new(".")))?;
    let path = &folder.join(name);
    if let Ok(found) = fs::symlink_metadata(path) {
        if !found.file_type().is_socket() {
            return Err(io::Error::new(ErrorKind::AlreadyExists, "it is there, and no socket"));
        }
        match call(path) {
            Called::Dead => fs::remove_file(path)?,
            Called::Connected(_) | Called::Full => {
                return Err(io::Error::new(ErrorKind::AddrInUse, "another process serves there"));
            }
            Called::Failed(error) => return Err(error),
        }
    }
    bind(&folder.join(format!(".{}", unique_name()?)), path)
}

/// Listens on a socket with a name of its own in this folder. Those of dead processes are removed.
pub(crate) fn in_folder(folder: &Path) -> io::Result<Bound> {
    let folder = &without_links(folder)?;
    if let Ok(found) = sockets_in(folder) {
        for (_, path) in found {
            if matches!(call(&path), Called::Dead) {
                remove_dead(&path);
            }
        }
    }
    let name = unique_name()?;
    bind(&folder.join(format!(".{name}")), &folder.join(name))
}

/// Listens under another name first: a socket under its own name always has a listener, so one that
/// has none is of a dead process.
fn bind(first: &Path, path: &Path) -> io::Result<Bound> {
    // The name of a file may be longer than one that can be connected to.
    SockAddr::unix(path)?;
    let listener = UnixListener::bind(first)?;
    let finish = || {
        set_mode(first, MODE)?;
        let inode = fs::symlink_metadata(first)?.ino();
        fs::rename(first, path)?;
        Ok(SocketFile { path: path.to_owned(), inode })
    };
    match finish() {
        Ok(file) => Ok(Bound { listener: Listener::Unix(listener), file: Some(file) }),
        Err(error) => {
            // Nobody knows of it yet.
            let _ = fs::remove_file(first);
            Err(error)
        }
    }
}

/// The process number, and what tells apart two processes that have the same one in two containers.
fn unique_name() -> io::Result<String> {
    let random = getrandom::u32().map_err(io::Error::other)?;
    Ok(format!("{PREFIX}{}-{random:08x}{SUFFIX}", std::process::id()))
}

/// The process number in the name of a socket.
pub(crate) fn pid_in(name: &str) -> Option<&str> {
    let (pid, _) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
    pid.parse::<u32>().is_ok().then_some(pid)
}

/// The sockets in a folder by name. Those that are not ready yet have a dot in front.
pub(crate) fn sockets_in(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)?.take(MOST_ENTRIES) {
        let entry = entry?;
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        let Ok(name) = entry.file_name().into_string() else { continue };
        if is_socket && !name.starts_with('.') {
            found.push((name, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
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

/// Removes a socket that nobody listens on; says whether it is gone.
pub(crate) fn remove_dead(path: &Path) -> bool {
    match fs::remove_file(path) {
        Ok(()) => true,
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if is_ours {
            // Whoever finds it later recognizes it as dead.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_socket_has_a_name_of_its_own_and_goes_with_its_process() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (in_folder(folder.path()).unwrap(), in_folder(folder.path()).unwrap());
        let names = sockets_in(folder.path()).unwrap();
        assert_eq!(names.len(), 2);
        let pid = std::process::id().to_string();
        assert!(names.iter().all(|(name, _)| pid_in(name) == Some(pid.as_str())), "{names:?}");
        let mode = fs::metadata(&names[0].1).unwrap().permissions().mode();
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
        assert_eq!(sockets_in(folder.path()).unwrap().len(), 2);
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
