//! Reads files that hold one value each: `plan.json`, `run.yml`, `metadata_rank_N.yml`. The version is checked first: a
//! newer version may have other fields, which are then not errors.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::error::Category;

use crate::error::{NEWER, ProfileError, VERSION, shown_path};
use crate::fault::told;
use crate::yaml::{self, Lines};

/// Content of such a file.
pub(crate) trait Document: DeserializeOwned {
    /// Version of the file's format, if it has one.
    const VERSION: Option<u32>;

    /// Checks constraints that the types can't express.
    fn check(&self) -> Result<(), ProfileError>;
}

pub(crate) fn read_yaml<D: Document>(text: &str, path: &Path) -> Result<D, ProfileError> {
    let (value, lines) = yaml::read(text, path)?;
    refuse_other::<D>(value.get(VERSION), lines.of(VERSION), path)?;
    let document: D = typed(value, &lines, path)?;
    let place = |error| in_file(path, |field| lines.of(field), error);
    document.check().map_err(place)?;
    Ok(document)
}

pub(crate) fn read_json<D: Document>(text: &str, path: &Path) -> Result<D, ProfileError> {
    #[derive(Deserialize)]
    struct Versioned {
        schema_version: Option<Value>,
    }

    // JSON is YAML, and the YAML reader knows all lines. It is slower, so it runs only to locate faults.
    let line_of = |field: &str| yaml::read(text, path).map_or(0, |(_, lines)| lines.of(field));
    let wrong = |error: &serde_json::Error, field: &str| {
        let fault = match error.classify() {
            Category::Data => told(&error.to_string()),
            _ if !field.is_empty() => {
                "is no word; allowed: a word that docs/profile-format.md lists".into()
            }
            _ => format!("is not JSON ({error}); allowed: JSON as `polyrail profile` writes it"),
        };
        fault_at(path, error.line() as u64, field, fault)
    };
    let seen: Versioned = serde_json::from_str(text).map_err(|error| wrong(&error, ""))?;
    refuse_other::<D>(seen.schema_version.as_ref(), line_of(VERSION), path)?;
    let mut json = serde_json::Deserializer::from_str(text);
    let document: D = serde_path_to_error::deserialize(&mut json)
        .map_err(|error| wrong(error.inner(), &error.path().to_string()))?;
    document.check().map_err(|error| in_file(path, line_of, error))?;
    Ok(document)
}

/// Converts a value to the type; `lines` are those of the file.
pub(crate) fn typed<T: DeserializeOwned>(
    value: Value,
    lines: &Lines,
    path: &Path,
) -> Result<T, ProfileError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let field = error.path().to_string();
        fault_at(path, lines.of(&field), &field, told(&error.inner().to_string()))
    })
}

fn refuse_other<D: Document>(
    found: Option<&Value>,
    line: u64,
    path: &Path,
) -> Result<(), ProfileError> {
    let (Some(known), Some(found)) = (D::VERSION, found.and_then(Value::as_u64)) else {
        // A value that is not a number is refused like a wrong value of any other field.
        return Ok(());
    };
    let fault = match found {
        _ if found == u64::from(known) => return Ok(()),
        _ if found > u64::from(known) => format!("`{found}` {NEWER}; allowed: {known}"),
        _ => format!("`{found}`; allowed: {known}"),
    };
    Err(fault_at(path, line, VERSION, fault))
}

/// Adds the file and the line to a fault.
pub(crate) fn in_file(
    path: &Path,
    line_of: impl Fn(&str) -> u64,
    error: ProfileError,
) -> ProfileError {
    match error {
        ProfileError::Value { field, value, allowed } => {
            fault_at(path, line_of(&field), &field, format!("`{value}`; allowed: {allowed}"))
        }
        ProfileError::Clock { clock, fault } => {
            let (file, fault) = (shown_path(path), format!("clock {clock}: {fault}"));
            ProfileError::Line { file, line: 0, fault }
        }
        other => other,
    }
}

pub(crate) fn fault_at(path: &Path, line: u64, field: &str, fault: String) -> ProfileError {
    let (file, field) = (shown_path(path), polyrail_yaml::excerpt(field));
    ProfileError::Field { file, line, field, fault }
}
