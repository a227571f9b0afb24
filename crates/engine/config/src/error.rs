//! Faults of a configuration.

use std::fmt;
use std::io::ErrorKind;

use polyrail_yaml::{debug_as_text, excerpt};

use crate::alias::ENV_PREFIX;
use crate::config::Origin;
use crate::{renamed, suggest};

/// A configuration that can't be used; nothing of it takes effect.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// Two values that each are allowed, but not together.
    #[error(transparent)]
    Conflict(Box<Conflict>),
    /// A setting given twice in one file.
    #[error(
        "setting `{name}` is given twice (file {path}:{line}:{column}), first in line {first_line}; allowed: once"
    )]
    Duplicate {
        /// The setting.
        name: String,
        /// The file.
        path: String,
        /// Line of the second one, counted from 1.
        line: usize,
        /// Column of the second one, counted from 1.
        column: usize,
        /// Line of the first one.
        first_line: usize,
    },
    /// A text of `--set` without `=`.
    #[error("`{text}` has no `=`; allowed: NAME=VALUE")]
    NotAPair {
        /// The text.
        text: String,
    },
    /// An environment variable whose value is not UTF-8.
    #[error("the environment variable {name} is not UTF-8 text: `{value}`; allowed: UTF-8")]
    NotText {
        /// The variable.
        name: String,
        /// The value; what is not plain ASCII is shown as bytes, `\xff`.
        value: String,
    },
    /// A file that can't be read.
    #[error(
        "can't read the config file {path}: {reason}; allowed: a regular file of UTF-8 text that this user may read"
    )]
    Read {
        /// The file.
        path: String,
        /// Kind of the error; see [`is_wrong_path`].
        kind: ErrorKind,
        /// The system's error.
        reason: String,
    },
    /// A setting of an earlier version.
    #[error(
        "setting `{name}`{} is of an earlier version; allowed: those that `polyrail config show` lists",
        origin.as_ref().map_or(String::new(), in_brackets)
    )]
    Renamed {
        /// The name, as given.
        name: String,
        /// The place where it was given. `None` if the caller only asked about the name.
        origin: Option<Origin>,
        /// Advice: the setting to use instead.
        now: &'static str,
    },
    /// A file that isn't a flat mapping from settings to values.
    #[error("{reason} (file {path}:{line}:{column}); allowed: one `name: value` for each setting")]
    Syntax {
        /// The file.
        path: String,
        /// Line, counted from 1.
        line: usize,
        /// Column, counted from 1.
        column: usize,
        /// The fault at this place.
        reason: String,
        /// Advice on how to write it.
        remedy: Option<String>,
    },
    /// A file beyond [`crate::FILE_LIMIT_BYTES`].
    #[error("the config file {path} is too large; allowed: {limit_bytes} bytes")]
    TooLarge {
        /// The file.
        path: String,
        /// The maximum size of a file.
        limit_bytes: usize,
    },
    /// A name that isn't a setting.
    #[error(
        "unknown setting `{name}`{}; allowed: those that `polyrail config show` lists",
        origin.as_ref().map_or(String::new(), in_brackets)
    )]
    Unknown {
        /// The name, as given.
        name: String,
        /// The place where it was given. `None` if the caller only asked about the name.
        origin: Option<Origin>,
        /// The name that was probably meant.
        suggestion: Option<String>,
    },
    /// A value that its setting does not take.
    #[error(transparent)]
    Value(Box<BadValue>),
}

impl ConfigError {
    /// The error for a name that is not a setting now: renamed or unknown. `near`: candidates for a suggestion.
    pub(crate) fn no_setting<'a>(
        name: &str,
        origin: Option<Origin>,
        near: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let setting = name.strip_prefix(ENV_PREFIX).map(str::to_lowercase);
        if let Some(now) = renamed::instead_of(setting.as_deref().unwrap_or(name)) {
            return Self::Renamed { name: name.to_owned(), origin, now };
        }
        let suggestion = suggest::closest(name, near).map(str::to_owned);
        Self::Unknown { name: excerpt(name), origin, suggestion }
    }

    /// Returns advice on a fix, where the message alone does not give it.
    pub fn help(&self) -> Option<String> {
        match self {
            Self::Conflict(conflict) => Some(conflict.remedy.to_owned()),
            Self::Duplicate { .. } => Some("keep one of the two".to_owned()),
            Self::NotAPair { .. } => Some("write it like chunk_bytes=1MiB".to_owned()),
            Self::NotText { name, .. } => Some(format!("set it anew, or unset it: unset {name}")),
            Self::Read { .. } => Some(
                "name a file of text that this user may read; POLYRAIL_CONFIG= with nothing behind it reads none"
                    .to_owned(),
            ),
            Self::Renamed { now, .. } => Some((*now).to_owned()),
            Self::Syntax { remedy, .. } => remedy.clone(),
            Self::TooLarge { .. } => Some("a config file has one line per setting".to_owned()),
            Self::Unknown { suggestion: Some(suggestion), .. } => {
                Some(format!("did you mean `{suggestion}`?"))
            }
            Self::Unknown { origin, .. } => {
                let explains = "`polyrail config docs` explains all settings".to_owned();
                Some(explains + &of_another(origin.as_ref()))
            }
            Self::Value(bad) => {
                let explains = || format!("`polyrail config help {}` explains it", bad.name);
                let help = bad.remedy.clone().unwrap_or_else(explains);
                // Kubernetes sets such values, and so do other programs that name a service.
                let is_service = bad.value.contains("://") && bad.name.ends_with("_port");
                Some(if is_service { help + &of_another(Some(&bad.origin)) } else { help })
            }
        }
    }
}

/// Returns whether this error means that the path can't be the right one for any user. Otherwise this user or this
/// machine lacks something: a permission, room, a disk that works.
pub fn is_wrong_path(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::AlreadyExists
            | ErrorKind::NotADirectory
            | ErrorKind::IsADirectory
            | ErrorKind::DirectoryNotEmpty
            | ErrorKind::InvalidFilename
            | ErrorKind::InvalidInput
            | ErrorKind::InvalidData
    )
}

/// A value that its setting does not take.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{name} = `{value}` ({}) {reason}; allowed: {allowed}", origin.place())]
pub struct BadValue {
    /// The setting.
    pub name: &'static str,
    /// The value, as given; cut short where it is long.
    pub value: String,
    /// Origin of the value.
    pub origin: Origin,
    /// The fault: a phrase that follows the value.
    pub reason: String,
    /// The allowed values.
    pub allowed: String,
    /// Advice on how to write it.
    pub remedy: Option<String>,
}

/// Two values that each are allowed, but not together.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{first} conflicts with {second}: {why}; allowed: all but where {when}")]
pub struct Conflict {
    /// One of the two.
    pub first: Party,
    /// The other.
    pub second: Party,
    /// Values that conflict.
    pub when: &'static str,
    /// Reason of the conflict.
    pub why: &'static str,
    /// Advice on how to resolve it.
    pub remedy: &'static str,
}

/// One side of a conflict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Party {
    /// The setting.
    pub name: &'static str,
    /// The setting's value as text.
    pub value: String,
    /// Origin of the value.
    pub origin: Origin,
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = `{}` ({})", self.name, excerpt(&self.value), self.origin.place())
    }
}

debug_as_text!(ConfigError, |error| error.help());
debug_as_text!(BadValue, |error| error.remedy.clone());
debug_as_text!(Conflict, |error| Some(error.remedy.to_owned()));

/// Returns the note that other programs set variables with the names of settings.
fn of_another(origin: Option<&Origin>) -> String {
    let Some(Origin::Env { name }) = origin else { return String::new() };
    format!(
        "; if it is meant for another program, `unset {name}`; in a pod, a Service whose name begins with polyrail sets such \
         variables, unless the pod has `enableServiceLinks: false`"
    )
}

fn in_brackets(origin: &Origin) -> String {
    format!(" ({})", origin.place())
}
