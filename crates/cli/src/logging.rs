//! Log records on standard error or in a file, as the settings choose.

use std::fs::OpenOptions;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;

use polyrail_config::{Config, LogLevel, Subsystems, expand_file_name};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

use crate::stdout::Harmless;

/// The log file can't be opened.
#[derive(Debug, thiserror::Error)]
#[error("log_file {} can't be opened: {source}", path.display())]
pub(crate) struct LogError {
    path: PathBuf,
    source: io::Error,
}

/// Starts writing the records that `log_level` and `log_subsystems` let through.
///
/// Only the first call of a process has an effect.
///
/// # Errors
/// `log_file` can't be opened. It is appended to, and `%h` and `%p` in it are filled in.
pub(crate) fn start(config: &Config) -> Result<(), LogError> {
    let level = level_filter(config.log_level);
    // The settings let only valid lists through.
    let subsystems = Subsystems::parse(&config.log_subsystems).unwrap_or(Subsystems::ALL);
    let allowed = filter_fn(move |record| {
        *record.level() <= level && is_allowed(subsystems, record.target())
    })
    .with_max_level_hint(level);
    let layer = if config.log_file.is_empty() {
        fmt::layer().with_writer(|| Harmless::new(io::stderr())).with_ansi(false).boxed()
    } else {
        let name = expand_file_name(&config.log_file, &crate::host::hostname(), std::process::id());
        let path = PathBuf::from(name);
        let file = OpenOptions::new().append(true).create(true).open(&path);
        let file = file.map_err(|source| LogError { path, source })?;
        fmt::layer().with_writer(Mutex::new(file)).with_ansi(false).boxed()
    };
    // A second subscriber can't be installed; tests that start several runs need no second one.
    let _ = registry().with(layer.with_filter(allowed)).try_init();
    Ok(())
}

fn level_filter(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Trace => LevelFilter::TRACE,
    }
}

/// Whether a record's target, such as `polyrail::rail`, belongs to an allowed subsystem. Records of
/// libraries, and ours without a subsystem, pass: only what is named can be left out.
fn is_allowed(subsystems: Subsystems, target: &str) -> bool {
    let Some(rest) = target.strip_prefix("polyrail::") else { return true };
    let name = rest.split("::").next().unwrap_or(rest);
    !polyrail_config::SUBSYSTEMS.contains(&name) || subsystems.allows(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_belongs_to_the_subsystem_its_target_names() {
        let some = Subsystems::parse("peer,rail").unwrap();
        assert!(is_allowed(some, "polyrail::peer"));
        assert!(is_allowed(some, "polyrail::rail::listener"));
        assert!(!is_allowed(some, "polyrail::flow"));
        assert!(is_allowed(some, "polyrail"), "records without a subsystem pass");
        assert!(is_allowed(some, "another_crate::flow"));
    }

    #[test]
    fn a_log_file_that_cannot_be_opened_is_named() {
        let config = Config::builder().set("log_file", "/nonexistent/dir/log").unwrap();
        let error = start(&config.build().unwrap()).unwrap_err();
        assert!(error.to_string().starts_with("log_file /nonexistent/dir/log can't be opened"));
    }
}
