//! Ownership of the process's log: the first start decides its settings.

use std::path::PathBuf;

use parking_lot::Mutex;
use polyrail_config::{Config, LogFormat, LogLevel, Origin, Subsystems, expand_file_name};
use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt, registry};

use crate::json::Json;
use crate::limit::Bounded;
use crate::output::{LogError, Output, ToStderr, to_stderr};

/// Values of the settings `log_*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// File name with placeholders. Empty for standard error.
    pub file: String,
    /// True if the log falls back to standard error when the file can't be opened, as NCCL does with `NCCL_DEBUG_FILE`.
    pub is_optional: bool,
    /// Format of records.
    pub format: LogFormat,
    /// Minimum severity.
    pub level: LogLevel,
    pub subsystems: Subsystems,
}

/// Settings with which this process's log was started.
static OWNED: Mutex<Option<Settings>> = Mutex::new(None);

impl Settings {
    /// Returns the settings of a configuration.
    pub fn of(config: &Config) -> Self {
        Self {
            file: config.log_file.clone(),
            is_optional: config.origin("log_file").is_some_and(Origin::is_foreign),
            format: config.log_format,
            level: config.log_level,
            // The configuration accepts only valid lists.
            subsystems: Subsystems::parse(&config.log_subsystems).unwrap_or(Subsystems::ALL),
        }
    }

    /// Returns a layer that writes records according to these settings.
    ///
    /// # Errors
    /// The file can't be opened.
    pub fn layer<S>(&self) -> Result<impl Layer<S> + Send + Sync, LogError>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        self.layer_to(to_stderr)
    }

    fn layer_to<S>(&self, write: ToStderr) -> Result<impl Layer<S> + Send + Sync, LogError>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
    {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let output = match self.file.as_str() {
            "" => Output::Stderr(write),
            file => {
                let name = expand_file_name(file, &host, std::process::id());
                match Output::append_to(PathBuf::from(name)) {
                    Err(error) if self.is_optional => {
                        write(&format!(
                            "polyrail: warning: NCCL_DEBUG_FILE is ignored, and the log goes to standard error: {error}\n"
                        ));
                        Output::Stderr(write)
                    }
                    output => output?,
                }
            }
        };
        let lines = fmt::layer().with_ansi(false).log_internal_errors(false).with_writer(output);
        let lines: Box<dyn Layer<S> + Send + Sync> = match self.format {
            LogFormat::Text => lines.boxed(),
            LogFormat::Json => lines.event_format(Json { host }).boxed(),
        };
        Ok(Bounded::new(lines, self.filter(), self.subsystems))
    }

    fn filter(&self) -> LevelFilter {
        match self.level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }

    /// Returns the first setting that differs: its name, its value here, and the other's.
    fn difference(&self, other: &Self) -> Option<(&'static str, String, String)> {
        let rows = [
            ("log_file", self.file.clone(), other.file.clone()),
            ("log_format", self.format.to_string(), other.format.to_string()),
            ("log_level", self.level.to_string(), other.level.to_string()),
            ("log_subsystems", self.subsystems.to_string(), other.subsystems.to_string()),
        ];
        rows.into_iter().find(|(_, here, there)| here != there)
    }
}

/// Starts the log of this process, in the file or on standard error.
///
/// The first call decides. Later calls with the same settings have no effect and succeed.
///
/// # Errors
/// The file can't be opened, the log was started with other settings, or the program has another subscriber. The log
/// then stays unchanged.
pub fn start(settings: &Settings) -> Result<(), LogError> {
    start_to(settings, to_stderr)
}

/// Like [`start`], for a process that draws on the terminal. Without a file, `write` prints each line to standard
/// error. Threads of the engine call it, too, concurrently.
///
/// # Errors
/// As [`start`].
pub fn start_to(settings: &Settings, write: ToStderr) -> Result<(), LogError> {
    begin(settings, || Ok(registry().with(settings.layer_to(write)?)))
}

/// Like [`start`], and also passes the records to `other`. Without a file only `other` gets them.
///
/// # Errors
/// As [`start`].
pub fn start_beside<L>(settings: &Settings, other: L) -> Result<(), LogError>
where
    L: Layer<Registry> + Send + Sync,
{
    begin(settings, || {
        let file = (!settings.file.is_empty()).then(|| settings.layer()).transpose()?;
        Ok(registry().with(other).with(file))
    })
}

fn begin<S>(
    settings: &Settings,
    subscriber: impl FnOnce() -> Result<S, LogError>,
) -> Result<(), LogError>
where
    S: Subscriber + Send + Sync + 'static,
{
    let mut owned = OWNED.lock();
    if let Some(first) = &*owned {
        return match settings.difference(first) {
            None => Ok(()),
            Some((name, value, kept)) => Err(LogError::Taken { name, value, kept }),
        };
    }
    let foreign = || LogError::Foreign { file: settings.file.clone() };
    // Checked before a file is created.
    if tracing::dispatcher::has_been_set() {
        return Err(foreign());
    }
    subscriber()?.try_init().map_err(|_| foreign())?;
    *owned = Some(settings.clone());
    Ok(())
}
