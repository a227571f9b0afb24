//! The folder of `install --folder`: links to NIXL's backends, and Polyrail's own.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use polyrail_report::exit;
use polyrail_sys::files::{Found, OpenFolder, make_folders};

use super::backend::Backend;
use super::environment::{Nixl, entries};
use super::{PLUGIN, unread};
use crate::fault::Fault;
use crate::files;
use crate::stdout::say;
use crate::unwritten::Unwritten;

/// File that lists the links that this command made: a path in the folder on each line.
const OWN: &str = ".made-by-polyrail-nixl";
/// Folder of the links to NIXL's libraries.
const LIBRARIES: &str = "nixl";
/// Folder below that one, for NIXL_PLUGIN_DIR.
const PLUGINS: &str = "plugins";

/// Maximum number of bytes of the list that are read.
const LIST_MAX: u64 = 1 << 20;

/// The links in the three folders, by their names.
#[derive(Default)]
struct Links([BTreeSet<String>; 3]);

/// Prefix of a name in the list, by folder.
const PREFIXES: [&str; 3] = ["nixl/plugins/", "nixl/", ""];

impl Links {
    /// Reads the list of a folder. `None`: the folder has none.
    fn read(folder: &OpenFolder) -> Result<Option<Self>, Fault> {
        let own = folder.path().join(OWN);
        if folder.find(OWN).map_err(|error| unread(&own, &error))?.is_none() {
            return Ok(None);
        }
        let mut text = String::new();
        let read = folder.read_trusted(OWN);
        let read = read.and_then(|file| file.take(LIST_MAX).read_to_string(&mut text));
        read.map_err(|error| unread(&own, &error))?;
        let mut links = Self::default();
        for line in text.lines() {
            let at = PREFIXES.iter().position(|prefix| line.starts_with(prefix));
            // A name is a single path component.
            if let Some(at) = at
                && let name = &line[PREFIXES[at].len()..]
                && !name.contains('/')
            {
                links.0[at].insert(name.to_owned());
            }
        }
        Ok(Some(links))
    }

    fn text(&self) -> String {
        let of = self.0.iter().zip(PREFIXES);
        of.flat_map(|(names, prefix)| names.iter().map(move |name| format!("{prefix}{name}\n")))
            .collect()
    }
}

/// Makes a folder of links to the backends of NIXL. Backends look for their libraries relative to their own place, so
/// the folders lie to each other as those of the package do. Returns the folder for NIXL_PLUGIN_DIR.
pub(super) fn mirror(nixl: &Nixl, folder: &Path) -> Result<PathBuf, Fault> {
    if !folder.join(OWN).exists() && !entries(folder).is_empty() {
        let text = format!("{} has other files", folder.display());
        return Err(
            Fault::new(exit::USAGE, text).with_help("name a folder that is empty or not there yet")
        );
    }
    make_folders(folder, 0o777).map_err(Unwritten::at(folder))?;
    // Agents may be started in another folder.
    let folder = fs::canonicalize(folder).map_err(|error| unread(folder, &error))?;
    let top = OpenFolder::open(&folder).map_err(Unwritten::at(&folder))?;
    let mut known = Links::read(&top)?.unwrap_or_default();
    let inside = |above: &OpenFolder, name: &str| {
        above.inside(name, true).map_err(Unwritten::at(&above.path().join(name)))
    };
    let libraries = inside(&top, LIBRARIES)?;
    let plugins = inside(&libraries, PLUGINS)?;
    let mut wanted: [Vec<(String, PathBuf)>; 3] = Default::default();
    for (at, from) in [(0, nixl.plugins()), (1, nixl.libraries.clone())] {
        let names =
            entries(&from).into_iter().filter(|name| name.contains(".so") && name != PLUGIN);
        wanted[at] = names.map(|name| (name.clone(), from.join(name))).collect();
    }
    let needed = nixl.needed();
    if let Some(name) = needed.file_name().filter(|_| needed.exists()) {
        wanted[2].push((name.to_string_lossy().into_owned(), needed.clone()));
    }
    for (known, wanted) in known.0.iter_mut().zip(&wanted) {
        let names = wanted.iter().map(|(name, _)| name.clone());
        // A list of lines can't hold such a name.
        known.extend(names.filter(|name| !name.contains('\n')));
    }
    // Write the list first, so that no link remains that is not in it.
    let own = folder.join(OWN);
    files::replace(&own, known.text()).map_err(Unwritten::at(&own))?;
    for (folder, wanted) in [&plugins, &libraries, &top].into_iter().zip(&wanted) {
        for (name, to) in wanted {
            let to = fs::canonicalize(to).map_err(|error| unread(to, &error))?;
            let at = folder.path().join(name);
            folder.put_link(name, to).map_err(Unwritten::at(&at))?;
        }
    }
    Ok(plugins.path().to_owned())
}

/// Removes a folder that [`mirror`] made: only its links and the backend.
pub(super) fn remove(path: &Path) -> Result<(), Fault> {
    let not_made = || {
        let text = format!("{} was not made by `polyrail nixl install --folder`", path.display());
        Fault::new(exit::USAGE, text).with_help("name the folder that was given there")
    };
    if !path.exists() {
        return Err(not_made());
    }
    let (above, name) = whole(path)?;
    let top = above.inside(&name, false).map_err(Unwritten::at(path))?;
    let links = Links::read(&top)?.ok_or_else(not_made)?;
    top.require_trusted().map_err(Unwritten::at(path))?;
    let inside = |above: &OpenFolder, name: &str| -> Result<Option<OpenFolder>, Fault> {
        let path = above.path().join(name);
        if above.find(name).map_err(|error| unread(&path, &error))?.is_none() {
            return Ok(None);
        }
        let folder = above.inside(name, false).map_err(Unwritten::at(&path))?;
        folder.require_trusted().map_err(Unwritten::at(&path))?;
        Ok(Some(folder))
    };
    let libraries = inside(&top, LIBRARIES)?;
    let plugins = match &libraries {
        Some(libraries) => inside(libraries, PLUGINS)?,
        None => None,
    };
    if let Some(plugins) = &plugins {
        remove_links(plugins, &links.0[0])?;
        remove_backend(plugins)?;
    }
    if let Some(libraries) = &libraries {
        remove_links(libraries, &links.0[1])?;
        if plugins.is_some() {
            remove_empty(libraries, PLUGINS.as_ref())?;
        }
    }
    remove_links(&top, &links.0[2])?;
    if libraries.is_some() {
        remove_empty(&top, LIBRARIES.as_ref())?;
    }
    let left = top.names(2).map_err(|error| unread(path, &error))?;
    if left == [OWN]
        && let Some(found) = top.find(OWN).map_err(Unwritten::at(path))?
    {
        top.remove(OWN, &found).map_err(Unwritten::at(&top.path().join(OWN)))?;
    }
    remove_empty(&above, &name)?;
    say!("removed {}", path.display());
    Ok(())
}

/// The open folder above and the name in it, also for a path such as `.`.
fn whole(path: &Path) -> Result<(OpenFolder, OsString), Fault> {
    let path = OpenFolder::open(path).and_then(|folder| fs::canonicalize(folder.path()));
    let path = path.map_err(|error| unread(Path::new("the folder"), &error))?;
    Ok(OpenFolder::of(&path).map_err(Unwritten::at(&path))?)
}

fn remove_links(folder: &OpenFolder, names: &BTreeSet<String>) -> Result<(), Fault> {
    for name in names {
        let path = folder.path().join(name);
        let found = folder.find(name).map_err(|error| unread(&path, &error))?;
        if let Some(found) = found.filter(|found| found.is_link()) {
            folder.remove(name, &found).map_err(Unwritten::at(&path))?;
        }
    }
    Ok(())
}

/// Removes the backend if it is Polyrail's. Returns whether it was. `None`: there was none.
pub(super) fn remove_backend(folder: &OpenFolder) -> Result<Option<bool>, Fault> {
    let path = folder.path().join(PLUGIN);
    let file = match folder.read(PLUGIN) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        // A link or a folder of this name is not from `install`.
        Err(error) if error.kind() != ErrorKind::PermissionDenied => return Ok(Some(false)),
        Err(error) => return Err(unread(&path, &error)),
    };
    let mut bytes = Vec::new();
    (&file).read_to_end(&mut bytes).map_err(|error| unread(&path, &error))?;
    if !Backend::in_bytes(&bytes).is_ours {
        return Ok(Some(false));
    }
    let found = Found::of(&file).map_err(|error| unread(&path, &error))?;
    Ok(Some(folder.remove(PLUGIN, &found).map_err(Unwritten::at(&path))?))
}

fn remove_empty(above: &OpenFolder, name: &OsStr) -> Result<(), Fault> {
    let path = above.path().join(name);
    match above.remove_folder(name) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => {
            say!("left {}, which has other files", path.display());
            Ok(())
        }
        result => Ok(result.map_err(Unwritten::at(&path))?),
    }
}
