//! The options that choose settings, the same in every subcommand.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use polyrail::Explain;
use polyrail_config::{Config, ConfigBuilder, ConfigError};
use polyrail_log::LogError;
use polyrail_report::exit;

use crate::stdout::{self, excerpt, tell};
use crate::values::{completed, file_to_read, presets, setting, setting_pair, setting_pairs};

/// Options that choose settings; flatten them into a subcommand's arguments.
#[derive(clap::Args, Clone, Debug, Default)]
#[command(next_help_heading = "Settings")]
pub(crate) struct ConfigArgs {
    /// Start from a named set of values: latency, throughput, cpu or balanced.
    #[arg(long, value_name = "NAME", hide_possible_values = true,
          value_parser = completed(setting("preset"), presets))]
    preset: Option<String>,

    /// Read settings from a YAML file.
    #[arg(long, value_name = "FILE", value_parser = file_to_read())]
    config: Option<PathBuf>,

    /// Give a setting a value; may be repeated.
    ///
    /// `polyrail config show` lists all settings.
    #[arg(long, value_name = "NAME=VALUE", hide_possible_values = true,
          value_parser = completed(setting_pair, setting_pairs))]
    set: Vec<String>,
}

impl ConfigArgs {
    /// Combines the file, the environment and these options; a subcommand may add its own values with `set`.
    pub(crate) fn builder(&self) -> Result<ConfigBuilder, ConfigError> {
        let mut builder = Config::builder().env();
        if let Some(path) = &self.config {
            builder = builder.file(path)?;
        }
        if let Some(preset) = &self.preset {
            builder = builder.set("preset", preset)?;
        }
        self.set.iter().try_fold(builder, |builder, pair| builder.set_pair(pair))
    }

    /// Returns these options as words, to pass to another process of this command.
    pub(crate) fn words(&self) -> Vec<String> {
        let preset = self.preset.iter().map(|preset| format!("--preset={preset}"));
        let file = self.config.iter().map(|file| format!("--config={}", file.display()));
        preset.chain(file).chain(self.set.iter().map(|pair| format!("--set={pair}"))).collect()
    }

    /// Resolves the settings in effect.
    pub(crate) fn resolve(&self) -> Result<Config, ConfigError> {
        self.builder()?.build()
    }
}

/// Options that set a setting: the command (empty for all commands), the option and the setting.
const OPTIONS: &[(&str, &str, &str)] = &[
    ("", "preset", "preset"),
    ("mesh", "rendezvous", "rendezvous"),
    ("bench", "rails", "rails"),
    ("bench", "path", "path"),
    ("bench", "verbose_bindings", "verbose_bindings"),
];

/// Describes the first setting to which a command line gives two values, of which only one would count.
pub(crate) fn given_twice(command: &Command, matches: &ArgMatches) -> Option<String> {
    if let Some((name, below)) = matches.subcommand() {
        return given_twice(command.find_subcommand(name)?, below);
    }
    let pairs: Vec<&String> = matches.try_get_many("set").ok()??.collect();
    let name_of = |pair: &str| pair.split('=').next().unwrap_or_default().trim().to_owned();
    pairs.iter().enumerate().find_map(|(place, pair)| {
        let name = name_of(pair);
        let is_given = |(of, id, setting): &&(&str, &str, &str)| {
            *setting == name
                && (of.is_empty() || *of == command.get_name())
                && matches.value_source(id) == Some(ValueSource::CommandLine)
        };
        let option = OPTIONS.iter().find(is_given).and_then(|(_, id, _)| {
            command.get_arguments().find(|argument| argument.get_id() == id)
        });
        let fault = match option {
            Some(option) => format!("gives `{name}` a value, as {option} does"),
            None if pairs[..place].iter().any(|other| name_of(other) == name) => {
                format!("gives `{name}` a second value")
            }
            None => return None,
        };
        let shown = excerpt(pair);
        Some(format!(
            "--set <NAME=VALUE> `{shown}`: {fault}; allowed: one value for each setting\n\
             help: leave one of them out"
        ))
    })
}

/// Prints the error and its help on standard error, and returns its exit code.
pub(crate) fn refuse(error: &ConfigError) -> ExitCode {
    stdout::refuse(error, error.help(), error.exit_code())
}

/// Exit code of a command that can't open the log that its settings name.
pub(crate) fn code_of_log(error: &LogError) -> u8 {
    match error {
        LogError::Open { source, .. } => exit::of_io(source),
        LogError::NotAFile { .. } => exit::USAGE,
        _ => exit::ENVIRONMENT,
    }
}

/// Prints the warnings about the settings on standard error.
pub(crate) fn print_warnings(config: &Config) {
    for warning in config.warnings() {
        tell!("polyrail: warning: {warning}");
    }
}

/// Returns settings for an engine whose log repeats the warnings only if the log is a file: on standard error they are
/// already [printed](print_warnings).
pub(crate) fn told(config: Config) -> Config {
    match config.log_file.is_empty() {
        true => config.without_warnings(),
        false => config,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_has_one_value_on_a_command_line() {
        let refused = |line: &str| {
            let mut command = crate::command();
            let words = std::iter::once("polyrail").chain(line.split(' '));
            let matches = command.try_get_matches_from_mut(words).unwrap();
            given_twice(&command, &matches)
        };
        for (line, fault) in [
            (
                "bench --set channels=1 --set channels=2",
                "`channels=2`: gives `channels` a second value;",
            ),
            ("bench --path tcp --set path=shared", "gives `path` a value, as --path <WAY> does;"),
            ("bench --rails lo --set rails=eth1", "as --rails <N|LIST|near> does;"),
            ("config show --preset cpu --set preset=latency", "as --preset <NAME> does;"),
            ("mesh --rendezvous slurm:// --set rendezvous=mpi://", "as --rendezvous <PLACE> does;"),
        ] {
            let told = refused(line).unwrap_or_default();
            assert!(
                told.starts_with("--set <NAME=VALUE> `") && told.contains(fault),
                "{line}: {told}"
            );
        }
        for line in [
            "bench --set channels=1 --set sockets=2 --path tcp",
            "collective all_reduce --channels 4 --set channels=2",
        ] {
            assert_eq!(refused(line), None, "{line}");
        }
    }

    /// Finds such options by their help, which names the setting.
    #[test]
    fn every_option_for_a_setting_is_known() {
        let command = crate::command();
        let bench = command.find_subcommand("bench").unwrap();
        for argument in bench.get_arguments() {
            let help = argument.get_long_help().or_else(|| argument.get_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            let named = help.split_once("(setting").map_or("", |(_, rest)| rest);
            let named = named.split(')').next().unwrap_or_default();
            for setting in named.split('`').skip(1).step_by(2) {
                let id = argument.get_id().as_str();
                assert!(OPTIONS.contains(&("bench", id, setting)), "{id}: {setting}");
            }
        }
    }
}
