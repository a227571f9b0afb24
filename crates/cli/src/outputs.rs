//! Files that a command writes. No command may overwrite a file that it reads or another file that it writes.

use std::any::TypeId;
use std::env;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command, FromArgMatches, ValueHint};
use polyrail_config::{Config, Origin};

use crate::config_args::ConfigArgs;
use crate::files::{LAST_REPORT, NO_FILE, OutFile, are_one, state_folder};
use crate::machine_args::MachineCopy;
use crate::stdout::excerpt;

/// Whether the values of an argument are files that the command writes.
pub(crate) fn are_written(argument: &Arg) -> bool {
    argument.get_value_parser().type_id() == TypeId::of::<OutFile>()
}

/// Lets shells complete the values of such arguments as paths.
pub(crate) fn hinted(argument: Arg) -> Arg {
    if are_written(&argument) { argument.value_hint(ValueHint::AnyPath) } else { argument }
}

/// Describes the first file of a command line that would be written over another one of the same command line.
pub(crate) fn written_over(command: &Command, matches: &ArgMatches) -> Option<String> {
    let files = files_of(command, command, matches);
    files.iter().enumerate().find_map(|(place, written)| {
        // The later of two written files is refused.
        let is_before = |(other, file): &(usize, &Given)| !file.is_written || *other < place;
        let mut others = files.iter().enumerate().filter(is_before).map(|(_, file)| file);
        // The configuration decides which settings may share a file.
        let is_apart = |other: &&Given| !(is_setting(written) && is_setting(other));
        let other = others.find(|other| {
            written.is_written && is_apart(other) && are_one(&written.path, &other.path)
        })?;
        let does = if other.is_written { "writes" } else { "reads" };
        let shown = excerpt(&written.path.to_string_lossy());
        Some(format!(
            "{} `{shown}`: is the file that {} {does}; allowed: a file of its own\n\
             help: give one of them another name",
            written.name, other.name
        ))
    })
}

/// File of a command line, with the name of the argument.
struct Given {
    name: String,
    path: PathBuf,
    is_written: bool,
}

/// Environment variable that names a file of settings if no option does.
const CONFIG: &str = "POLYRAIL_CONFIG";

/// Settings that name files: those that an engine reads, and those that it writes.
const SETTINGS: [(&[&str], bool); 2] = [
    (&["secret_file", "certificate_file", "certificate_key_file", "trust_file"], false),
    (&["trace_file", "log_file"], true),
];

fn is_setting(file: &Given) -> bool {
    file.is_written && SETTINGS[1].0.contains(&file.name.as_str())
}

fn files_of(root: &Command, mut command: &Command, mut matches: &ArgMatches) -> Vec<Given> {
    let mut files = Vec::new();
    loop {
        let is_bench = command.get_name() == "bench";
        for argument in command.get_arguments() {
            let name = argument.to_string();
            let is_written = are_written(argument);
            let takes_none = is_bench && argument.get_id() == "json";
            // `-` is standard output.
            let is_file = |path: &PathBuf| {
                path != Path::new("-") && !(takes_none && path == Path::new(NO_FILE))
            };
            let paths = paths_of(argument, matches).into_iter().filter(is_file);
            files.extend(paths.map(|path| Given { name: name.clone(), path, is_written }));
        }
        let has = |id: &str| command.get_arguments().any(|argument| argument.get_id() == id);
        if ["config", "preset", "set"].iter().all(|id| has(id)) {
            of_settings(matches, &mut files);
        }
        if is_bench && !matches.contains_id("json") {
            let report = state_folder().map(|folder| folder.join(LAST_REPORT));
            let name = "a bench without --json".to_owned();
            files.extend(report.map(|path| Given { name, path, is_written: true }));
        }
        if let Some(mut bench) = root.find_subcommand("bench").filter(|_| has("bench")).cloned()
            && let Some(words) = matches.get_raw("bench").and_then(|mut words| words.next())
        {
            let words = words.to_string_lossy();
            let words = std::iter::once("bench").chain(words.split_whitespace());
            // The code that reads the option reports errors in these words.
            if let Ok(matches) = bench.try_get_matches_from_mut(words) {
                files.extend(files_of(root, &bench, &matches));
            }
        }
        let below = matches.subcommand();
        let below = below.and_then(|(name, below)| Some((command.find_subcommand(name)?, below)));
        let Some(below) = below else { return files };
        (command, matches) = below;
    }
}

/// Returns the files and folders that an argument names.
fn paths_of(argument: &Arg, matches: &ArgMatches) -> Vec<PathBuf> {
    let id = argument.get_id().as_str();
    if let Ok(Some(given)) = matches.try_get_many::<OutFile>(id) {
        return given.cloned().map(PathBuf::from).collect();
    }
    if let Ok(Some(given)) = matches.try_get_many::<MachineCopy>(id) {
        return given.map(|copy| copy.path.clone()).collect();
    }
    let given = matches.try_get_many::<PathBuf>(id).ok().flatten();
    given.into_iter().flatten().cloned().collect()
}

/// Adds the files that settings name, and the files that settings come from if no option names one. The code that needs
/// the settings reports errors in them.
fn of_settings(matches: &ArgMatches, files: &mut Vec<Given>) {
    if matches.value_source("config").is_none()
        && let Some(path) = env::var_os(CONFIG)
    {
        files.push(Given { name: CONFIG.into(), path: path.into(), is_written: false });
    }
    let config = ConfigArgs::from_arg_matches(matches).map(|args| args.resolve());
    let Ok(Ok(config)) = config else { return };
    files.extend(file_of(&config));
    let rows = config.rows();
    for (names, is_written) in SETTINGS {
        let given = rows.iter().filter(|row| names.contains(&row.name) && !row.value.is_empty());
        files.extend(given.map(|row| Given {
            name: row.name.to_owned(),
            path: PathBuf::from(&row.value),
            is_written,
        }));
    }
}

/// Returns the file that values come from.
fn file_of(config: &Config) -> Option<Given> {
    let path = config.rows().into_iter().find_map(|row| match row.origin {
        Origin::File { path, .. } => Some(PathBuf::from(path)),
        _ => None,
    })?;
    Some(Given { name: "the search for settings".to_owned(), path, is_written: false })
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
        let (same, other) = (at("same"), at("other"));
        fs::write(&same, "").unwrap();
        let secret = format!("secret_file={same}");
        let machine = polyrail_host::fixtures::mlx5_four_nodes();
        let root = polyrail_host::Sysroot::at(machine.path());
        let (archive, file) = (at("archive"), fs::File::create(at("archive")).unwrap());
        polyrail_host::snapshot::write(&root, "x", &Default::default(), file).unwrap();
        for words in [
            vec!["sample", "--sysroot", &archive, "--out"],
            vec!["host", "plan", "irq", "--sysroot", &archive, "--output"],
            vec!["host", "--sysroot", &archive, "plan", "tune", "throughput", "--output"],
            vec!["bench", "--set", &secret, "--json"],
            vec!["mesh", "--lab", "x", "--set", &secret, "--html"],
            vec![
                "experiment",
                "sweep",
                "--bench",
                &format!("--sizes 8 --config {same}"),
                "--output",
            ],
            vec![
                "experiment",
                "autotune",
                "--bench",
                &format!("--sizes 8 --set {secret}"),
                "--journal",
            ],
            vec!["bench", "--config", &same, "--json"],
            vec!["bench", "--config", &same, "--sample"],
            vec!["mesh", "--lab", "x", "--config", &same, "--html"],
            vec!["analyze", ".", "--predictions", &same, "--html"],
            vec!["host", "plan", "tune", "--profile-file", &same, "--output"],
        ] {
            let with = |last| [&words[..], &[last]].concat();
            let alias =
                if words.contains(&archive.as_str()) { at("./archive") } else { at("./same") };
            let text = refused(&with(&alias)).unwrap_or_default();
            let does = ["is the file that --", "is the file that secret_file "];
            assert!(does.iter().any(|does| text.contains(does)), "{words:?}: {text}");
            assert!(text.contains(" reads; allowed: a file of its own\nhelp: "), "{text}");
            assert_eq!(refused(&with(other.as_str())), None, "{words:?}");
        }
    }
}
