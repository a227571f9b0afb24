//! Files that a command writes. None of them takes the place of a file that it reads, or of another one that it writes.

use std::any::TypeId;
use std::env;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, ValueHint};

use crate::files::are_one;
use crate::stdout::excerpt;

/// A file that a command writes, of a type of its own to tell it from those that it reads.
#[derive(Clone, Debug)]
pub(crate) struct OutFile(PathBuf);

impl From<PathBuf> for OutFile {
    fn from(path: PathBuf) -> Self {
        Self(path)
    }
}

impl From<OutFile> for PathBuf {
    fn from(file: OutFile) -> Self {
        file.0
    }
}

impl Deref for OutFile {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for OutFile {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

/// Whether the values of an argument are such files.
pub(crate) fn are_written(argument: &Arg) -> bool {
    argument.get_value_parser().type_id() == TypeId::of::<OutFile>()
}

/// A shell completes them as it does paths.
pub(crate) fn hinted(argument: Arg) -> Arg {
    if are_written(&argument) { argument.value_hint(ValueHint::AnyPath) } else { argument }
}

/// What is wrong with the first file of a command line that would be written over another one of it.
pub(crate) fn written_over(command: &Command, matches: &ArgMatches) -> Option<String> {
    let config = env::var_os(CONFIG).map(PathBuf::from);
    let files = files_of(command, matches, config.as_deref());
    files.iter().enumerate().find_map(|(place, written)| {
        // Of two that are written the later one is refused.
        let is_before = |(other, file): &(usize, &Given)| !file.is_written || *other < place;
        let mut others = files.iter().enumerate().filter(is_before).map(|(_, file)| file);
        let other =
            others.find(|other| written.is_written && are_one(&written.path, &other.path))?;
        let does = if other.is_written { "writes" } else { "reads" };
        let shown = excerpt(&written.path.to_string_lossy());
        Some(format!(
            "{} `{shown}`: is the file that {} {does}; allowed: a file of its own\n\
             help: give one of them another name",
            written.name, other.name
        ))
    })
}

/// A file of a command line, and the argument that names it.
struct Given {
    name: String,
    path: PathBuf,
    is_written: bool,
}

/// The variable that names a file of settings where no option does.
const CONFIG: &str = "POLYRAIL_CONFIG";

fn files_of(mut command: &Command, mut matches: &ArgMatches, config: Option<&Path>) -> Vec<Given> {
    let mut files = Vec::new();
    loop {
        for argument in command.get_arguments() {
            let (id, name) = (argument.get_id().as_str(), argument.to_string());
            let is_written = are_written(argument);
            let paths: Vec<PathBuf> = if is_written {
                let given = matches.try_get_many::<OutFile>(id).ok().flatten();
                given.into_iter().flatten().map(|file| file.0.clone()).collect()
            } else {
                let given = matches.try_get_many::<PathBuf>(id).ok().flatten();
                given.into_iter().flatten().cloned().collect()
            };
            if id == "config" && paths.is_empty() {
                let path = config.map(Path::to_owned);
                files.extend(path.map(|path| Given { name: CONFIG.into(), path, is_written }));
            }
            // `-` is standard output.
            let paths = paths.into_iter().filter(|path| path != Path::new("-"));
            files.extend(paths.map(|path| Given { name: name.clone(), path, is_written }));
        }
        let below = matches.subcommand();
        let below = below.and_then(|(name, below)| Some((command.find_subcommand(name)?, below)));
        let Some(below) = below else { return files };
        (command, matches) = below;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refused(words: &[&str]) -> Option<String> {
        let mut command = crate::command();
        let words = std::iter::once(&"polyrail").chain(words);
        let matches = command.try_get_matches_from_mut(words).unwrap();
        written_over(&command, &matches)
    }

    #[test]
    fn no_command_writes_over_what_it_reads() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (same, other, alias) = (at("same"), at("other"), at("./same"));
        fs::write(&same, "").unwrap();
        for words in [
            vec!["bench", "--config", &same, "--json"],
            vec!["bench", "--config", &same, "--sample"],
            vec!["mesh", "--lab", "x", "--config", &same, "--html"],
            vec!["analyze", ".", "--predictions", &same, "--html"],
            vec!["tune", "plan", "--profile-file", &same, "--output"],
        ] {
            let with = |last| [&words[..], &[last]].concat();
            let text = refused(&with(alias.as_str())).unwrap_or_default();
            assert!(text.contains("is the file that --"), "{words:?}: {text}");
            assert!(text.contains(" reads; allowed: a file of its own\nhelp: "), "{text}");
            assert_eq!(refused(&with(other.as_str())), None, "{words:?}");
        }
    }
}
