//! Files that another user may plant, and the results. The tests that need files of another user run as root.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, mkfifoat};

use super::*;

/// User whose files root must not trust.
const OTHER: u32 = 65534;

/// A new folder of this user, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("polyrail-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.at(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn mode(&self, name: &str, mode: u32) {
        fs::set_permissions(self.at(name), Permissions::from_mode(mode)).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn give(path: &Path) {
    std::os::unix::fs::lchown(path, Some(OTHER), Some(OTHER)).unwrap();
}

fn needs_root() {
    polyrail_skip::skip("needs root", "sudo cargo test -p polyrail-sys files");
}

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn root_trusts_its_own_file_and_none_that_others_can_change() {
    if !is_privileged() {
        return needs_root();
    }
    let folder = Folder::new("trust");
    let file = folder.file("of/f", "mine");
    let mut read = String::new();
    open_trusted(&file, false).unwrap().read_to_string(&mut read).unwrap();
    assert_eq!(read, "mine");
    let why = |path: &Path| {
        let error = open_trusted(path, false).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        error.to_string()
    };
    folder.mode("of/f", 0o664);
    assert!(why(&file).contains("has mode 0664"));
    folder.mode("of/f", 0o644);
    folder.mode("of", 0o777);
    assert!(why(&file).contains("has mode 0777"));
    // As in /tmp, others can't rename the file there.
    folder.mode("of", 0o1777);
    open_trusted(&file, false).unwrap();
    give(&file);
    assert!(why(&file).contains("belongs to user 65534"));
    chown(&file, Some(0), Some(0)).unwrap();
    give(&folder.at("of"));
    assert!(why(&file).contains("belongs to user 65534"));
    assert!(require_trusted(&folder.at("of/not/there")).is_err());
    require_trusted(&folder.at("not/there")).unwrap();
}

#[test]
fn a_file_that_is_locked_can_be_opened_by_its_owner_only() {
    let folder = Folder::new("lock");
    let path = folder.file("f", "");
    folder.mode("f", 0o664);
    let (first, second) = (fs::File::open(&path).unwrap(), fs::File::open(&path).unwrap());
    lock(&first).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(lock(&second).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(first);
    lock(&second).unwrap();
    // Devices are shared by all users.
    let null = fs::File::open("/dev/null").unwrap();
    let before = null.metadata().unwrap().mode();
    lock(&null).unwrap();
    assert_eq!(null.metadata().unwrap().mode(), before);
}

#[test]
fn code_that_others_can_change_is_refused_by_every_user() {
    let folder = Folder::new("code");
    let file = folder.file("target/release/f.so", "code");
    let is_refused = |fault: &str| {
        let error = require_trusted_code(&file).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
        assert!(error.to_string().contains(fault), "{error}");
    };
    require_trusted_code(&file).unwrap();
    for name in ["target/release/f.so", "target"] {
        folder.mode(name, 0o777);
        is_refused("has mode 0777");
        folder.mode(name, 0o775);
        match is_privileged() {
            true => is_refused("has mode 0775"),
            false => require_trusted_code(&file).unwrap(),
        }
        folder.mode(name, 0o755);
    }
    let missing = require_trusted_code(&folder.at("none")).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    if is_privileged() {
        for name in ["target/release/f.so", "target"] {
            give(&folder.at(name));
            is_refused("belongs to user 65534");
            chown(folder.at(name), Some(0), Some(0)).unwrap();
        }
    }
}

#[test]
fn a_link_of_another_user_leads_root_nowhere_and_one_of_root_does() {
    if !is_privileged() {
        return needs_root();
    }
    let folder = Folder::new("links");
    let file = folder.file("real/f", "old");
    for name in ["last", "middle"] {
        symlink(if name == "last" { "real/f" } else { "real" }, folder.at(name)).unwrap();
    }
    for path in [folder.at("last"), folder.at("middle/f"), folder.at("real/../middle/../real/f")] {
        open_trusted(&path, false).unwrap();
        replace(&path, b"new").unwrap();
        assert_eq!(text(&file), "new", "{}", path.display());
    }
    assert!(folder.at("last").is_symlink(), "it stays a link");
    assert_eq!(OpenFolder::open(&folder.at("middle")).unwrap().path(), folder.at("real"));
    give(&folder.at("last"));
    give(&folder.at("middle"));
    fs::write(&file, "old").unwrap();
    for path in [folder.at("last"), folder.at("middle/f"), folder.at("middle/g")] {
        let refused = [
            open_trusted(&path, false).err(),
            open_to_write(&path, Opening::Append, 0o600).err(),
            open_to_write(&path, Opening::Truncate, 0o600).err(),
            replace(&path, b"theirs").err(),
            require_replaceable(&path).err(),
            make_folders(&path.join("more"), 0o700).err(),
        ];
        for error in refused {
            let error = error.unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
            assert!(error.to_string().contains("belongs to user 65534"), "{error}");
        }
    }
    let error = OpenFolder::open(&folder.at("middle")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidData);
    assert_eq!(text(&file), "old");
    assert!(!folder.at("real/g").exists() && !folder.at("real/more").exists());
}

#[test]
fn root_writes_to_no_second_name_and_to_no_file_of_another_user() {
    if !is_privileged() {
        return needs_root();
    }
    let folder = Folder::new("names");
    let file = folder.file("secret", "old");
    fs::create_dir(folder.at("shared")).unwrap();
    folder.mode("shared", 0o1777);
    fs::hard_link(&file, folder.at("shared/log")).unwrap();
    let error = open_to_write(&folder.at("shared/log"), Opening::Append, 0o600).unwrap_err();
    assert!(error.to_string().contains("one of 2 names"), "{error}");
    let theirs = folder.file("shared/theirs", "");
    give(&theirs);
    assert!(open_to_write(&theirs, Opening::Append, 0o600).is_err());
    let pipe = folder.at("shared/pipe");
    mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    give(&pipe);
    // The open does not wait for a reader.
    assert!(open_to_write(&pipe, Opening::Truncate, 0o600).is_err());
    assert!(open_trusted(&pipe, false).is_err());
    // In that user's folder the name may get a new file, which leaves their file unchanged.
    assert!(require_replaceable(&theirs).is_err());
    give(&folder.at("shared"));
    for opening in [Opening::Append, Opening::Keep, Opening::Write, Opening::Truncate] {
        let error = open_to_write(&theirs, opening, 0o600).unwrap_err();
        assert!(error.to_string().contains("belongs to user 65534"), "{error}");
    }
    let mut held = fs::File::open(&theirs).unwrap();
    require_replaceable(&theirs).unwrap();
    replace(&theirs, b"new").unwrap();
    let mut read = String::new();
    held.read_to_string(&mut read).unwrap();
    assert_eq!((read.as_str(), text(&theirs).as_str(), text(&file).as_str()), ("", "new", "old"));
    // A pipe would be written to instead of replaced.
    assert!(require_replaceable(&pipe).is_err() && replace(&pipe, b"new").is_err());
}

#[test]
fn any_user_writes_where_the_system_allows_it() {
    let folder = Folder::new("any");
    let path = folder.at("a/b/f");
    make_folders(path.parent().unwrap(), 0o755).unwrap();
    let new = |opening| open_to_write(&path, opening, 0o640);
    write!(new(Opening::New).unwrap(), "one").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777 & !0o640, 0);
    assert_eq!(new(Opening::New).unwrap_err().kind(), ErrorKind::AlreadyExists);
    write!(new(Opening::Append).unwrap(), " two").unwrap();
    let mut read = String::new();
    new(Opening::ReadAppend).unwrap().read_to_string(&mut read).unwrap();
    assert_eq!(read, "one two");
    write!(new(Opening::Write).unwrap(), "ONE").unwrap();
    assert_eq!(text(&path), "ONE two");
    write!(new(Opening::Truncate).unwrap(), "3").unwrap();
    assert_eq!(text(&path), "3");
    folder.mode("a/b/f", 0o604);
    replace(&path, b"whole").unwrap();
    assert_eq!(
        (text(&path).as_str(), fs::metadata(&path).unwrap().mode() & 0o777),
        ("whole", 0o604)
    );
    assert_eq!(fs::read_dir(folder.at("a/b")).unwrap().count(), 1, "no draft is left");
    replace(Path::new("/dev/null"), b"gone").unwrap();
    assert!(make_folders(&path.join("g"), 0o755).is_err());
    let (mut reader, writer) = std::io::pipe().unwrap();
    let descriptor = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
    replace(Path::new(&descriptor), b"by number").unwrap();
    drop(writer);
    read.clear();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!(read, "by number");
}

#[test]
fn of_many_who_make_a_file_at_once_each_gets_it() {
    let folder = Folder::new("many");
    let threads = 8;
    let barrier = std::sync::Barrier::new(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for round in 0..100 {
                    barrier.wait();
                    let path = folder.at(&format!("log{round}"));
                    let mut file = open_to_write(&path, Opening::Append, 0o600).unwrap();
                    file.write_all(b"x").unwrap();
                }
            });
        }
    });
    assert!((0..100).all(|round| text(&folder.at(&format!("log{round}"))).len() == threads));
}

#[test]
fn no_link_leads_out_of_a_copy_of_a_machine() {
    let folder = Folder::new("below");
    let outside = folder.file("outside", "secret");
    folder.file("copy/sys/devices/d/speed", "10");
    let copy = folder.at("copy");
    fs::create_dir_all(copy.join("sys/class")).unwrap();
    symlink("../devices/d", copy.join("sys/class/relative")).unwrap();
    symlink("/sys/devices/d", copy.join("sys/class/absolute")).unwrap();
    symlink(&outside, copy.join("sys/out")).unwrap();
    symlink("../../../../../../outside", copy.join("sys/up")).unwrap();
    symlink("loop", copy.join("sys/loop")).unwrap();
    fs::hard_link(&outside, copy.join("sys/second")).unwrap();
    let find = |path: &str| Below::find(&copy, Path::new(path));
    for class in ["relative", "absolute"] {
        let path = format!("/sys/class/{class}/speed");
        let found = find(&path).unwrap();
        let resolved = Below::resolve(&copy, Path::new(&path)).unwrap();
        assert_eq!(resolved, Path::new("/sys/devices/d/speed"));
        write!(found.open_to_write(true).unwrap(), "20").unwrap();
        assert_eq!(text(&copy.join("sys/devices/d/speed")), "20");
    }
    for path in ["/sys/out", "/sys/up", "/../outside", "/sys/loop"] {
        assert!(find(path).is_err(), "{path}");
    }
    for path in ["/sys/out", "/sys/second", "/sys/class"] {
        let found = Below::find_link(&copy, Path::new(path)).unwrap();
        assert_eq!(found.open_to_write(true).unwrap_err().kind(), ErrorKind::InvalidData, "{path}");
    }
    assert_eq!(text(&outside), "secret");
    let links = |path: &str| refuse_links(&copy, Path::new(path));
    assert!(links("/sys/class/relative/speed").unwrap_err().to_string().contains("is a link"));
    links("/sys/devices/d/speed").unwrap();
    links("/sys/devices/not/there").unwrap();
}

#[test]
fn root_takes_over_no_file_and_no_mode_of_another_user() {
    if !is_privileged() {
        return needs_root();
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
    let folder = Folder::new("modes");
    let theirs = folder.file("shared/theirs", "old");
    let own = folder.file("shared/own", "old");
    folder.mode("shared/theirs", 0o666);
    folder.mode("shared/own", 0o666);
    give(&theirs);
    folder.mode("shared", 0o1777);
    let error = replace(&theirs, b"new").unwrap_err();
    assert!(error.to_string().contains("belongs to user 65534"), "{error}");
    assert_eq!((text(&theirs).as_str(), mode(&theirs)), ("old", 0o666));
    replace(&own, b"new").unwrap();
    assert_eq!((text(&own).as_str(), mode(&own)), ("new", 0o644));
    // In a folder that only root writes, root chose the mode.
    folder.mode("shared", 0o755);
    folder.mode("shared/own", 0o664);
    replace(&own, b"newer").unwrap();
    assert_eq!(mode(&own), 0o664);
    // In that user's folder root replaces the file, and the mode is that of a new file.
    give(&folder.at("shared"));
    replace(&theirs, b"new").unwrap();
    assert_eq!((text(&theirs).as_str(), mode(&theirs) & 0o022), ("new", 0));
}

#[test]
fn an_open_folder_stays_the_same_when_a_link_takes_its_place() {
    let folder = Folder::new("open");
    let victim = folder.file("victim/f", "keep");
    folder.file("of/f", "remove");
    let open = OpenFolder::open(&folder.at("of")).unwrap();
    let found = open.find("f").unwrap().unwrap();
    fs::rename(folder.at("of"), folder.at("away")).unwrap();
    symlink("victim", folder.at("of")).unwrap();
    assert!(open.remove("f", &found).unwrap());
    assert_eq!(text(&victim), "keep");
    assert!(!folder.at("away/f").exists());
    // Another file with that name stays, and so does a link.
    folder.file("away/f", "another");
    let other = open.find("f").unwrap().unwrap();
    fs::rename(folder.at("away/f"), folder.at("away/g")).unwrap();
    symlink("g", folder.at("away/f")).unwrap();
    assert!(!open.remove("f", &other).unwrap());
    assert!(open.read("f").is_err() && open.inside("f", false).is_err());
    open.put_link("f", "h").unwrap();
    assert_eq!(fs::read_link(folder.at("away/f")).unwrap(), Path::new("h"));
    assert_eq!(open.put_link("g", "h").unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(open.names(10).unwrap().len(), 2, "no draft is left");
    assert_eq!(open.names(1).unwrap().len(), 1);
}

#[test]
fn an_open_folder_appends_to_a_regular_file_of_its_own_and_to_nothing_that_was_laid() {
    let folder = Folder::new("append");
    let victim = folder.file("victim/f", "keep");
    fs::create_dir(folder.at("of")).unwrap();
    let open = OpenFolder::open(&folder.at("of")).unwrap();
    fs::rename(folder.at("of"), folder.at("away")).unwrap();
    symlink("victim", folder.at("of")).unwrap();
    for text in ["one", " two"] {
        write!(open.append("f", 0o600).unwrap(), "{text}").unwrap();
    }
    assert_eq!((text(&victim).as_str(), text(&folder.at("away/f")).as_str()), ("keep", "one two"));
    // Links to an existing file and to a missing one.
    symlink("f", folder.at("away/link")).unwrap();
    symlink("../victim/new", folder.at("away/new")).unwrap();
    mkfifoat(CWD, folder.at("away/pipe"), Mode::RWXU).unwrap();
    for name in ["link", "new", "pipe"] {
        let error = open.append(name, 0o600).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name}: {error}");
    }
    assert!(!folder.at("victim/new").exists());
    if !is_privileged() {
        return needs_root();
    }
    give(&folder.at("away/f"));
    let error = open.append("f", 0o600).unwrap_err();
    assert!(error.to_string().contains("belongs to user 65534"), "{error}");
}

#[test]
fn only_the_file_that_was_opened_is_removed() {
    let folder = Folder::new("opened");
    let path = folder.at("f");
    let file = open_to_write(&path, Opening::New, 0o600).unwrap();
    fs::rename(&path, folder.at("g")).unwrap();
    folder.file("f", "another");
    assert!(!remove_opened(&path, &file).unwrap());
    assert_eq!(text(&path), "another");
    assert!(remove_opened(&folder.at("g"), &file).unwrap());
    assert!(!folder.at("g").exists());
}

#[test]
fn the_mode_of_a_socket_is_set_and_of_nothing_that_takes_its_place() {
    use std::os::unix::net::UnixListener;
    let folder = Folder::new("socket-mode");
    let open = OpenFolder::open(&folder.0).unwrap();
    let _listener = UnixListener::bind(folder.at("s")).unwrap();
    assert!(open.set_mode_of_socket("s", 0o660).unwrap().is_socket());
    assert_eq!(fs::metadata(folder.at("s")).unwrap().mode() & 0o777, 0o660);
    fs::hard_link(folder.at("s"), folder.at("second")).unwrap();
    folder.file("file", "");
    symlink("s", folder.at("link")).unwrap();
    for name in ["second", "file", "link"] {
        let error = open.set_mode_of_socket(name, 0o666).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData, "{name}: {error}");
    }
}
