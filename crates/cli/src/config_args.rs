//! The options that choose settings, alike in every subcommand.

use std::path::PathBuf;
use std::process::ExitCode;

use polyrail::Explain;
use polyrail_config::{Config, ConfigBuilder, ConfigError};
use polyrail_log::LogError;
use polyrail_report::exit;

use crate::stdout::{self, tell};
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

    /// Give a setting a value; may be repeated. `polyrail config show` lists all settings.
    #[arg(long, value_name = "NAME=VALUE", hide_possible_values = true,
          value_parser = completed(setting_pair, setting_pairs))]
    set: Vec<String>,
}

impl ConfigArgs {
    /// The file, the environment and these options; a subcommand may add its own with `set`.
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

    /// The options again, for another process of this command.
    pub(crate) fn words(&self) -> Vec<String> {
        let preset = self.preset.iter().map(|preset| format!("--preset={preset}"));
        let file = self.config.iter().map(|file| format!("--config={}", file.display()));
        preset.chain(file).chain(self.set.iter().map(|pair| format!("--set={pair}"))).collect()
    }

    /// The settings in effect.
    pub(crate) fn resolve(&self) -> Result<Config, ConfigError> {
        self.builder()?.build()
    }
}

/// Says on standard error what is wrong, and how to mend it.
pub(crate) fn refuse(error: &ConfigError) -> ExitCode {
    stdout::refuse(error, error.help(), error.exit_code())
}

/// What a command ends with whose log can't be what the settings want.
pub(crate) fn code_of_log(error: &LogError) -> u8 {
    match error {
        LogError::Open { source, .. } => exit::of_io(source),
        LogError::NotAFile { .. } => exit::USAGE,
        _ => exit::ENVIRONMENT,
    }
}

/// Says on standard error what the user should know about the settings.
pub(crate) fn print_warnings(config: &Config) {
    for warning in config.warnings() {
        tell!("polyrail: warning: {warning}");
    }
}

/// The settings for an engine, which says what the user should know about them in its log: that has been
/// [printed](print_warnings), so it says it only where the log is a file.
pub(crate) fn told(config: Config) -> Config {
    match config.log_file.is_empty() {
        true => config.without_warnings(),
        false => config,
    }
}
