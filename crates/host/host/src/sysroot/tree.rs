//! Files of an archive, held in memory: writing ten thousand files to a disk takes longer than reading everything from
//! memory.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use tempfile::TempDir;

/// Folders, files and links of an archive. Links lead to the same places as on a disk, but never out of the tree.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    top: Folder,
    /// A copy on a disk, for callers that need one, or the reason why it could not be made.
    on_disk: OnceLock<Result<TempDir, String>>,
}

type Folder = BTreeMap<String, Node>;

#[derive(Debug)]
enum Node {
    Folder(Folder),
    File(Vec<u8>),
    Link(PathBuf),
}

/// A node that was found, and its path without any link.
struct Found<'a> {
    node: Spot<'a>,
    path: PathBuf,
}

#[derive(Clone, Copy)]
enum Spot<'a> {
    Folder(&'a Folder),
    File(&'a [u8]),
}

/// Most links in one path, as in the kernel.
const LINKS_LIMIT: usize = 40;
/// Most bytes for all files together. The largest machines need some ten MiB.
const BYTES_LIMIT: u64 = 1 << 30;

impl Tree {
    /// Reads an archive. The top of the tree is the folder that holds `sys`: the archive's root, or the first such
    /// folder in it.
    ///
    /// # Errors
    /// If it is not an archive, has a file below a link or a file, is larger than 1 GiB, or has no such folder.
    pub(crate) fn read(archive: impl Read) -> io::Result<Self> {
        let mut all = Folder::new();
        let mut bytes = 0;
        for entry in tar::Archive::new(archive).entries().map_err(unreadable)? {
            let mut entry = entry.map_err(unreadable)?;
            let kind = entry.header().entry_type();
            let path = entry.path().map_err(unreadable)?.into_owned();
            // Skip paths that lead up or are not text. Our own archives have none.
            let Some(names) = names_of(&path) else { continue };
            let node = if kind.is_dir() {
                Node::Folder(Folder::new())
            } else if kind.is_symlink() {
                Node::Link(entry.link_name().map_err(unreadable)?.unwrap_or_default().into_owned())
            } else if kind.is_file() {
                bytes += entry.size();
                if bytes > BYTES_LIMIT {
                    return Err(invalid("more than 1 GiB of files are in it"));
                }
                let mut content = Vec::new();
                entry.read_to_end(&mut content).map_err(unreadable)?;
                Node::File(content)
            } else {
                continue;
            };
            insert(&mut all, &names, node)?;
        }
        let names: Vec<String> = all.keys().cloned().collect();
        let mut tree = Self { top: all, on_disk: OnceLock::new() };
        let holds_sys = |folder: &str| tree.is_folder(&Path::new(folder).join("sys")) == Some(true);
        if holds_sys("") {
            return Ok(tree);
        }
        let top = names.iter().find(|name| holds_sys(name));
        match top.and_then(|name| tree.top.remove(name)) {
            Some(Node::Folder(top)) => Ok(Self { top, on_disk: OnceLock::new() }),
            _ => Err(invalid("no folder in it holds sys")),
        }
    }

    /// Returns the content of a file.
    pub(crate) fn content(&self, path: &Path) -> io::Result<&[u8]> {
        match self.find(path)?.node {
            Spot::File(content) => Ok(content),
            Spot::Folder(_) => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    /// Returns the names in a folder.
    pub(crate) fn names(&self, path: &Path) -> io::Result<impl Iterator<Item = &String>> {
        match self.find(path)?.node {
            Spot::Folder(folder) => Ok(folder.keys()),
            Spot::File(_) => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    /// Returns whether the path is a folder; `None` if it does not exist.
    pub(crate) fn is_folder(&self, path: &Path) -> Option<bool> {
        self.find(path).ok().map(|found| matches!(found.node, Spot::Folder(_)))
    }

    /// Returns where a path leads after following all links.
    pub(crate) fn resolve(&self, path: &Path) -> Option<PathBuf> {
        Some(Path::new("/").join(self.find(path).ok()?.path))
    }

    /// Returns the target of a link; `None` if it is not a link.
    pub(crate) fn link(&self, path: &Path) -> Option<&Path> {
        let Found { node: Spot::Folder(folder), .. } = self.find(path.parent()?).ok()? else {
            return None;
        };
        match folder.get(path.file_name()?.to_str()?)? {
            Node::Link(target) => Some(target),
            Node::Folder(_) | Node::File(_) => None,
        }
    }

    /// Returns a folder on the disk with the whole tree. The first call makes it; dropping the tree removes it.
    pub(crate) fn on_disk(&self) -> io::Result<&Path> {
        let made = self.on_disk.get_or_init(|| {
            let folder = new_folder().map_err(|error| error.to_string())?;
            write(&self.top, folder.path(), 0).map_err(|error| error.to_string())?;
            Ok(folder)
        });
        made.as_ref().map(TempDir::path).map_err(|error| io::Error::other(error.clone()))
    }

    fn find(&self, path: impl AsRef<Path>) -> io::Result<Found<'_>> {
        let absent = || io::Error::from(io::ErrorKind::NotFound);
        // The components still to walk, the next one last.
        let mut ahead: Vec<String> = names_of(path.as_ref()).ok_or_else(absent)?;
        ahead.reverse();
        let mut above = vec![&self.top];
        let mut walked = PathBuf::new();
        let mut links = 0;
        while let Some(name) = ahead.pop() {
            let Some(here) = above.last() else { return Err(absent()) };
            if name == ".." {
                above.pop();
                walked.pop();
                continue;
            }
            match here.get(&name).ok_or_else(absent)? {
                Node::Folder(folder) => {
                    above.push(folder);
                    walked.push(&name);
                }
                Node::File(content) if ahead.is_empty() => {
                    walked.push(&name);
                    return Ok(Found { node: Spot::File(content), path: walked });
                }
                Node::File(_) => return Err(io::ErrorKind::NotADirectory.into()),
                Node::Link(target) => {
                    links += 1;
                    // Absolute links lead to the host's own files, which are not here.
                    if links > LINKS_LIMIT || target.is_absolute() {
                        return Err(absent());
                    }
                    for component in target.components().rev() {
                        match component {
                            Component::Normal(name) => {
                                ahead.push(name.to_str().ok_or_else(absent)?.to_owned());
                            }
                            Component::ParentDir => ahead.push("..".to_owned()),
                            _ => {}
                        }
                    }
                }
            }
        }
        let folder = above.last().ok_or_else(absent)?;
        Ok(Found { node: Spot::Folder(folder), path: walked })
    }
}

/// Makes a temporary folder, in memory if there is room: some disks take seconds for ten thousand files.
pub(crate) fn new_folder() -> io::Result<TempDir> {
    const MEMORY: &str = "/dev/shm";
    const ROOM_BYTES: u64 = 256 << 20;
    match rustix::fs::statvfs(MEMORY) {
        Ok(room) if room.f_bavail.saturating_mul(room.f_frsize) >= ROOM_BYTES => {
            tempfile::tempdir_in(MEMORY).or_else(|_| tempfile::tempdir())
        }
        _ => tempfile::tempdir(),
    }
}

/// Writes a folder that is `depth` folders below the top.
fn write(folder: &Folder, path: &Path, depth: usize) -> io::Result<()> {
    for (name, node) in folder {
        let path = path.join(name);
        match node {
            Node::Folder(inner) => {
                fs::create_dir(&path)?;
                write(inner, &path, depth + 1)?;
            }
            Node::File(content) => fs::write(&path, content)?,
            Node::Link(target) if stays_inside(target, depth) => symlink(target, &path)?,
            Node::Link(_) => {}
        }
    }
    Ok(())
}

/// Whether a link stays inside the tree, as every kernel link does: it goes up only at its beginning, and no further
/// than the top. A link that leaves the tree would lead readers to this machine's files.
fn stays_inside(target: &Path, depth: usize) -> bool {
    let is_up = |part: &Component<'_>| *part == Component::ParentDir;
    let ups = target.components().take_while(is_up).count();
    let is_name = |part: Component<'_>| matches!(part, Component::Normal(_));
    ups <= depth && target.components().skip(ups).all(is_name)
}

/// Returns the names in a path; `None` if it leads up, or is not text.
fn names_of(path: &Path) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => names.push(name.to_str()?.to_owned()),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => return None,
        }
    }
    Some(names)
}

/// Puts a node at its path, and adds the folders above it. A later entry replaces an earlier one, as on a disk.
fn insert(top: &mut Folder, names: &[String], node: Node) -> io::Result<()> {
    let Some((name, above)) = names.split_last() else { return Ok(()) };
    let mut folder = top;
    for part in above {
        let next = folder.entry(part.clone()).or_insert_with(|| Node::Folder(Folder::new()));
        match next {
            Node::Folder(next) => folder = next,
            Node::File(_) | Node::Link(_) => {
                return Err(invalid("it has files below something that is not a folder"));
            }
        }
    }
    let is_there = matches!(folder.get(name), Some(Node::Folder(_)));
    if !(is_there && matches!(node, Node::Folder(_))) {
        folder.insert(name.clone(), node);
    }
    Ok(())
}

/// Replaces errors of the archive reader, which quotes content that it can't parse: that may be any file of this host.
fn unreadable(error: io::Error) -> io::Error {
    if error.raw_os_error().is_some() { error } else { invalid("it is not a whole tar archive") }
}

fn invalid(fault: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(tar: &mut tar::Builder<Vec<u8>>, path: &str, text: &str) {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, path, text.as_bytes()).unwrap();
    }

    fn link(tar: &mut tar::Builder<Vec<u8>>, path: &str, target: &str) {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::Symlink);
        header.set_size(0);
        tar.append_link(&mut header, path, target).unwrap();
    }

    fn tree(fill: impl Fn(&mut tar::Builder<Vec<u8>>)) -> io::Result<Tree> {
        let mut tar = tar::Builder::new(Vec::new());
        fill(&mut tar);
        Tree::read(tar.into_inner().unwrap().as_slice())
    }

    fn small() -> Tree {
        tree(|tar| {
            add(tar, "m/sys/devices/d1/speed", "100\n");
            add(tar, "m/proc/stat", "cpu 1\n");
            link(tar, "m/sys/class/it", "../devices/d1");
            link(tar, "m/sys/class/again", "it");
            link(tar, "m/sys/class/out", "../../../../etc");
            link(tar, "m/sys/class/host", "/etc");
            link(tar, "m/sys/class/round", "round");
        })
        .unwrap()
    }

    #[test]
    fn files_are_found_through_links_and_links_never_lead_out() {
        let tree = small();
        let content = |path: &str| tree.content(Path::new(path)).ok();
        assert_eq!(content("/proc/stat"), Some(b"cpu 1\n".as_slice()));
        for path in ["/sys/class/it/speed", "/sys/class/again/speed", "/sys/devices/d1/speed"] {
            assert_eq!(content(path), Some(b"100\n".as_slice()), "{path}");
        }
        let resolved = tree.resolve(Path::new("/sys/class/again"));
        assert_eq!(resolved.as_deref(), Some(Path::new("/sys/devices/d1")));
        assert_eq!(tree.link(Path::new("/sys/class/it")), Some(Path::new("../devices/d1")));
        assert_eq!(tree.link(Path::new("/sys/class")), None);
        for path in ["out", "out/passwd", "host", "host/passwd", "round", "none"] {
            let path = Path::new("/sys/class").join(path);
            assert_eq!(tree.is_folder(&path), None, "{}", path.display());
        }
        assert_eq!(content("/sys/class/../../etc/passwd"), None);
        assert_eq!(tree.is_folder(Path::new("/sys/class/it")), Some(true));
        assert_eq!(tree.is_folder(Path::new("/proc/stat")), Some(false));
        assert!(tree.content(Path::new("/proc")).is_err() && content("/proc/stat/x").is_none());
        let names: Vec<_> = tree.names(Path::new("/sys/devices")).unwrap().collect();
        assert_eq!(names, ["d1"]);
    }

    #[test]
    fn a_disk_gets_the_same_but_for_links_to_the_host() {
        let tree = small();
        let folder = tree.on_disk().unwrap().to_owned();
        assert_eq!(fs::read_to_string(folder.join("sys/class/again/speed")).unwrap(), "100\n");
        for name in ["host", "out"] {
            assert!(folder.join("sys/class").join(name).symlink_metadata().is_err(), "{name}");
        }
        assert!(!stays_inside(Path::new("it/../../../x"), 2) && stays_inside(Path::new("x"), 0));
        assert_eq!(tree.on_disk().unwrap(), folder, "once is enough");
        drop(tree);
        assert!(!folder.exists());
    }

    #[test]
    fn what_is_no_tree_of_a_machine_is_refused() {
        for (name, fill) in [
            ("nothing", (|_| {}) as fn(&mut tar::Builder<Vec<u8>>)),
            ("no sys", |tar| add(tar, "m/proc/stat", "")),
            ("sys is a file", |tar| add(tar, "m/sys", "")),
            ("below a link", |tar| {
                link(tar, "m/sys", "/tmp");
                add(tar, "m/sys/planted", "evil");
            }),
            ("below a file", |tar| {
                add(tar, "m/sys/a", "");
                add(tar, "m/sys/a/b", "");
            }),
        ] {
            assert!(tree(fill).is_err(), "{name}");
        }
        assert!(
            Tree::read(b"no archive, but long enough for a header ".repeat(30).as_slice()).is_err()
        );
    }

    #[test]
    fn a_folder_around_all_may_be_missing() {
        for before in ["", "./"] {
            let tree = tree(|tar| {
                add(tar, &format!("{before}proc/sys/kernel/osrelease"), "6.1\n");
                add(tar, &format!("{before}sys/devices/a"), "a");
            });
            let tree = tree.unwrap();
            let content = |path: &str| tree.content(Path::new(path)).map(<[u8]>::len).ok();
            assert_eq!(
                [content("/proc/sys/kernel/osrelease"), content("/sys/devices/a")],
                [Some(4), Some(1)]
            );
        }
    }

    #[test]
    fn a_file_that_comes_twice_is_the_later_one() {
        let tree = tree(|tar| {
            add(tar, "m/sys/a", "old");
            add(tar, "m/sys/a", "new");
        });
        assert_eq!(tree.unwrap().content(Path::new("/sys/a")).unwrap(), b"new");
    }
}
