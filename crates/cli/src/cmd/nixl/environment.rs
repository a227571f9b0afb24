//! The folders of NIXL in a Python environment.

use std::fs;
use std::path::{Path, PathBuf};

/// NIXL, as installed by pip.
#[derive(Debug)]
pub(super) struct Nixl {
    /// The folder `site-packages`.
    pub(super) packages: PathBuf,
    /// Folder of the agent's library.
    pub(super) libraries: PathBuf,
    /// Name of the package, such as `nixl_cu12`.
    pub(super) name: String,
    /// Version in the package's metadata.
    pub(super) version: String,
    /// The interpreter of the environment, if it has one.
    pub(super) python: Option<PathBuf>,
}

/// Beginning and end of the name of the folder of a package's libraries.
const LIBRARIES: (&str, &str) = (".", ".mesonpy.libs");
/// Beginning of the names of packages that contain an agent.
const PACKAGE: &str = "nixl_cu";

impl Nixl {
    /// Finds NIXL in an environment, or in a folder of packages.
    pub(super) fn find(environment: &Path) -> Option<Self> {
        // Accept a link to a program that is gone, or that this user can't reach: running it shows the error.
        let is_there = |python: &PathBuf| match python.symlink_metadata() {
            Err(error) => !polyrail_config::is_wrong_path(error.kind()),
            Ok(_) => true,
        };
        let python = Some(environment.join("bin/python")).filter(is_there);
        let mut folders = vec![environment.to_owned()];
        for lib in ["lib", "lib64"] {
            for python in entries(&environment.join(lib)) {
                folders.push(environment.join(lib).join(&python).join("site-packages"));
                folders.push(environment.join(lib).join(&python).join("dist-packages"));
            }
        }
        folders.into_iter().find_map(|packages| Self::in_packages(&packages, python.clone()))
    }

    fn in_packages(packages: &Path, python: Option<PathBuf>) -> Option<Self> {
        let name = entries(packages).into_iter().find_map(|entry| {
            let name = entry.strip_prefix(LIBRARIES.0)?.strip_suffix(LIBRARIES.1)?;
            name.starts_with(PACKAGE).then(|| name.to_owned())
        })?;
        let about = format!("{name}-");
        let version = entries(packages).into_iter().find_map(|entry| {
            Some(entry.strip_prefix(&about)?.strip_suffix(".dist-info")?.to_owned())
        });
        let libraries = packages.join(format!("{}{name}{}", LIBRARIES.0, LIBRARIES.1));
        libraries.join("plugins").is_dir().then(|| Self {
            packages: packages.to_owned(),
            libraries,
            name,
            version: version.unwrap_or_else(|| "unknown".to_owned()),
            python,
        })
    }

    /// Folder in which the agent looks for backends unless NIXL_PLUGIN_DIR names another one.
    pub(super) fn plugins(&self) -> PathBuf {
        self.libraries.join("plugins")
    }

    /// Folder of more libraries that the package's backends need. They look for it beside the parent of their folder.
    pub(super) fn needed(&self) -> PathBuf {
        self.packages.join(format!("{}.libs", self.name))
    }
}

/// Sorted names in a folder; none if it can't be read.
pub(super) fn entries(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort_unstable();
    names
}
