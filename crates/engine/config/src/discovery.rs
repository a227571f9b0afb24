//! Finds the file of settings that applies if the user names none.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use polyrail_sys::files::open_trusted;

/// Variable that names the file; an empty value means that there is none.
pub(crate) const VARIABLE: &str = "POLYRAIL_CONFIG";

/// File of the host.
pub(crate) const OF_HOST: &str = "/etc/polyrail/config.yml";

/// File of the user, below their configuration folder.
const OF_USER: &str = "polyrail/config.yml";

/// Result of the search.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Path of the file. The file itself is set unless only the path was given by the user.
    pub(crate) file: Option<(PathBuf, Option<io::Result<File>>)>,
    pub(crate) warnings: Vec<String>,
}

/// Returns the first file that exists. A file that the user names need not exist yet: reading it then reports that.
pub(crate) fn find(variable: &dyn Fn(&str) -> Option<OsString>, of_host: &Path) -> Found {
    if let Some(named) = variable(VARIABLE) {
        let file = (!named.is_empty()).then(|| (PathBuf::from(named), None));
        return Found { file, warnings: Vec::new() };
    }
    let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let of_user = folder("XDG_CONFIG_HOME").or_else(|| Some(folder("HOME")?.join(".config")));
    let mut found = Found::default();
    for path in of_user.map(|folder| folder.join(OF_USER)).into_iter().chain([of_host.to_owned()]) {
        let shown = path.display();
        match open_trusted(&path, false) {
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            // `sudo` may keep the HOME of the user who calls it. Root must not obey settings that another user can
            // write.
            Err(error) if error.kind() == ErrorKind::InvalidData => {
                found.warnings.push(format!("{shown} is ignored: {error}"));
            }
            // A service may run with the HOME of another user.
            Err(error) if fs::metadata(&path).is_err() => {
                found.warnings.push(format!("{shown} can't be looked at and is ignored: {error}"));
            }
            opened => {
                found.file = Some((path, Some(opened)));
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_file_comes_first_then_the_users_then_that_of_the_host() {
        let host = Path::new("/proc/version");
        let of = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, OsString)> = pairs
                .iter()
                .map(|(name, value)| (name.to_string(), OsString::from(value)))
                .collect();
            let get = move |wanted: &str| {
                pairs.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.clone())
            };
            find(&get, host).file.map(|(path, _)| path)
        };
        assert_eq!(of(&[]), Some(host.to_owned()));
        assert_eq!(of(&[("HOME", "/no/such/home")]), Some(host.to_owned()));
        assert_eq!(of(&[("POLYRAIL_CONFIG", "/not/there")]), Some(PathBuf::from("/not/there")));
        assert_eq!(of(&[("POLYRAIL_CONFIG", "")]), None);
        let none = find(&|_| None, Path::new("/no/such/file"));
        assert!(none.file.is_none() && none.warnings.is_empty(), "{none:?}");
    }
}
