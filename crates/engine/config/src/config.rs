//! Resolved configuration: every value, with its origin.

use std::fmt;
use std::ops::Deref;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::alias::ENV_PREFIX;
use crate::choices::Preset;
use crate::table::{Settings, TABLE, index_of};
use crate::value::Value;

/// Origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// The table.
    Default,
    /// A proposal of the program, based on the machine.
    Proposal {
        /// Reason, as a lower-case fragment.
        because: String,
    },
    /// A preset.
    Preset(Preset),
    /// A file.
    File {
        /// Path of the file as given.
        path: String,
        /// Line, counted from 1.
        line: usize,
        /// Column in characters, counted from 1.
        column: usize,
    },
    /// An environment variable, Polyrail's own or another tool's.
    Env {
        /// Name of the variable.
        name: String,
    },
    /// The program or the command line.
    Set,
}

impl Origin {
    /// Returns whether the user gave this very value: it is not from the table, the program or a preset.
    pub fn is_explicit(&self) -> bool {
        !matches!(self, Self::Default | Self::Proposal { .. } | Self::Preset(_))
    }

    /// Returns whether a variable of another tool gave the value, such as `NCCL_SOCKET_IFNAME`. That tool continues if
    /// the value does not fit the machine.
    pub fn is_foreign(&self) -> bool {
        matches!(self, Self::Env { name } if !name.starts_with(ENV_PREFIX))
    }

    /// Returns the text of [`fmt::Display`] for messages: with the column, and a phrase instead of `set`.
    pub fn place(&self) -> String {
        match self {
            Self::File { path, line, column } => format!("file {path}:{line}:{column}"),
            Self::Set => "from an option or the program".to_owned(),
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Proposal { because } => write!(f, "proposal: {because}"),
            Self::Preset(preset) => write!(f, "preset {preset}"),
            Self::File { path, line, .. } => write!(f, "file {path}:{line}"),
            Self::Env { name } => write!(f, "env {name}"),
            Self::Set => f.write_str("set"),
        }
    }
}

/// Serializes as the text of [`fmt::Display`].
impl Serialize for Origin {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A checked set of settings with the origin of each value.
///
/// Immutable; cheap to share behind a reference, and `Send + Sync`. As JSON it is a map from each
/// name to `{value, origin}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    settings: Settings,
    /// One origin per row of the table, in its order.
    origins: Vec<Origin>,
    warnings: Vec<String>,
    notes: Vec<String>,
}

/// One setting for people and for JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Row {
    /// Name of the setting.
    pub name: &'static str,
    /// Heading that it stands under in the documentation.
    pub group: &'static str,
    /// Value as text that reads back, with its unit if it has a suffix: `512KiB`.
    #[serde(skip)]
    pub value: String,
    /// Value as a number, flag or text.
    #[serde(rename = "value")]
    pub raw: Value,
    /// Meaning of a value that is not obvious, like `auto` for 0; otherwise empty.
    #[serde(skip)]
    pub meaning: &'static str,
    /// Unit of the number, or empty.
    pub unit: &'static str,
    /// Origin of the value.
    pub origin: Origin,
    /// Default, in the form of [`Row::value`].
    #[serde(skip)]
    pub default: String,
    /// Default, in the form of [`Row::raw`].
    #[serde(rename = "default")]
    pub raw_default: Value,
    /// All allowed values, as text.
    pub range: String,
    /// Description of the setting.
    pub help: String,
}

impl Row {
    /// Returns whether the value differs from the default, whatever its origin.
    pub fn is_changed(&self) -> bool {
        self.raw != self.raw_default
    }
}

impl Config {
    /// Returns the values.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the origin of a setting's value; `None` for a name that is not a setting.
    pub fn origin(&self, name: &str) -> Option<&Origin> {
        self.origins.get(index_of(name)?)
    }

    /// Returns every setting, in the order of the documentation.
    pub fn rows(&self) -> Vec<Row> {
        let defaults = Settings::default();
        TABLE
            .iter()
            .zip(&self.origins)
            .map(|(spec, origin)| {
                let (raw, raw_default) = (spec.value(&self.settings), spec.value(&defaults));
                Row {
                    name: spec.name,
                    group: spec.group,
                    value: spec.kind.show(&raw),
                    meaning: spec.kind.meaning(&raw),
                    raw,
                    unit: spec.kind.unit(),
                    origin: origin.clone(),
                    default: spec.kind.show(&raw_default),
                    raw_default,
                    range: spec.kind.range(),
                    help: spec.help(),
                }
            })
            .collect()
    }

    /// Returns warnings that are not errors: one sentence each, without a full stop.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns facts for troubleshooting, such as variables that look like settings and are ignored: one sentence each,
    /// without a full stop.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the same settings without [`Config::warnings`], for a program that has shown them.
    pub fn without_warnings(self) -> Self {
        Self { warnings: Vec::new(), ..self }
    }

    /// Makes a configuration. Only for the builder, which has checked everything.
    pub(crate) fn new(
        settings: Settings,
        origins: Vec<Origin>,
        warnings: Vec<String>,
        notes: Vec<String>,
    ) -> Self {
        Self { settings, origins, warnings, notes }
    }
}

/// Returns the defaults, without reading the environment.
impl Default for Config {
    fn default() -> Self {
        Self::new(Settings::default(), vec![Origin::Default; TABLE.len()], Vec::new(), Vec::new())
    }
}

impl Deref for Config {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.settings
    }
}

/// Serializes as a map from each name to `{value, origin}`, as reports embed it.
impl Serialize for Config {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Entry<'a> {
            value: Value,
            origin: &'a Origin,
        }

        let mut map = serializer.serialize_map(Some(TABLE.len()))?;
        for (spec, origin) in TABLE.iter().zip(&self.origins) {
            map.serialize_entry(spec.name, &Entry { value: spec.value(&self.settings), origin })?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_what_an_empty_builder_builds() {
        assert_eq!(Config::builder().build(), Ok(Config::default()));
        assert_eq!(Config::default().preset, Preset::Balanced);
        assert!(Config::default().rows().iter().all(|row| !row.is_changed()));
    }

    #[test]
    fn rails_are_named_unless_the_engine_chooses() {
        for (rails, are_named) in [
            ("auto", false),
            (" auto ", false),
            ("^docker,lo", false),
            (" ^=eth0", false),
            ("eth", true),
            ("=eth0,10.0.0.5", true),
            ("plugin:/opt/libnccl-net.so", true),
        ] {
            let config = Config::builder().set("rails", rails).unwrap().build().unwrap();
            assert_eq!(config.names_rails(), are_named, "{rails:?}");
        }
    }

    #[test]
    fn json_has_numbers_as_numbers_and_origins_as_text() {
        let config = Config::builder().set("chunk_bytes", "1MiB").unwrap().build().unwrap();
        let json = serde_json::to_value(&config).unwrap();
        assert_eq!(json["chunk_bytes"]["value"], 1 << 20);
        assert_eq!(json["chunk_bytes"]["origin"], "set");
        assert_eq!(json["progress"]["value"], "proxy");
        assert_eq!(json["verbose_bindings"]["value"], false);
        let row = config.rows().into_iter().find(|row| row.name == "chunk_bytes").unwrap();
        assert!(row.is_changed());
        assert_eq!((row.value.as_str(), row.default.as_str()), ("1MiB", "512KiB"));
        let json = serde_json::to_value(&row).unwrap();
        assert_eq!((&json["value"], &json["default"]), (&(1 << 20).into(), &(512 << 10).into()));
        assert_eq!(json["unit"], "bytes");
    }
}
