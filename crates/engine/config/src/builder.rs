//! Collects values from all layers and resolves them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use polyrail_sys::process::has_rights_of_its_file;
use polyrail_yaml::{Position, excerpt, harmless};

use crate::alias::{Alias, ENV_PREFIX, Variables, WITHOUT_COUNTERPART};
use crate::choices::Preset;
use crate::config::{Config, Origin};
use crate::conflict;
use crate::discovery;
use crate::error::{BadValue, ConfigError};
use crate::invalid::Invalid;
use crate::preset;
use crate::service_links;
use crate::table::{self, Settings, Spec, TABLE, index_of, names};
use crate::value::Value;
use crate::yaml::{self, FILE_LIMIT_BYTES};

/// Variables with Polyrail's prefix that are not settings: they stand for options of commands.
const NOT_SETTINGS: &[&str] = &["POLYRAIL_STATE_DIR", discovery::VARIABLE];

/// Collects values; [`ConfigBuilder::build`] resolves them.
///
/// The order of calls matters only between values of one layer: a later file wins over an earlier
/// one, a later `set` over an earlier one.
#[derive(Clone, Debug, Default)]
pub struct ConfigBuilder {
    given: Vec<Given>,
    proposals: Vec<Given>,
    /// First error in the environment; [`ConfigBuilder::build`] reports it.
    deferred: Option<ConfigError>,
    warnings: Vec<String>,
    /// Facts for troubleshooting.
    notes: Vec<String>,
}

/// A value from one of the layers.
#[derive(Clone, Debug)]
struct Given {
    /// Row of the setting in the table.
    index: usize,
    layer: Layer,
    origin: Origin,
    value: Result<Value, ConfigError>,
}

/// Sources of values, lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    Proposal,
    FoundFile,
    File,
    AliasEnv,
    OwnEnv,
    Set,
}

impl Config {
    /// Starts from the defaults and no other layer.
    pub fn builder() -> ConfigBuilder {
        ConfigBuilder::default()
    }
}

impl ConfigBuilder {
    /// Chooses a preset; like `set("preset", ...)`.
    pub fn preset(mut self, preset: Preset) -> Self {
        if let Some(index) = index_of("preset") {
            let value = Ok(Value::Text(preset.name().to_owned()));
            self.given.push(Given { index, layer: Layer::Set, origin: Origin::Set, value });
        }
        self
    }

    /// Reads a YAML file.
    ///
    /// # Errors
    /// The file can't be read, is larger than [`FILE_LIMIT_BYTES`], or is refused by
    /// [`ConfigBuilder::yaml`].
    pub fn file(self, path: &Path) -> Result<Self, ConfigError> {
        self.opened_file(path, open(path))
    }

    fn opened_file(self, path: &Path, opened: io::Result<File>) -> Result<Self, ConfigError> {
        let name = harmless(&path.display().to_string(), &[]);
        let unreadable = |error: io::Error| {
            let (kind, reason) = (error.kind(), error.to_string());
            ConfigError::Read { path: name.clone(), kind, reason }
        };
        let bytes = opened.and_then(read_limited).map_err(unreadable)?;
        if bytes.len() > FILE_LIMIT_BYTES {
            return Err(ConfigError::TooLarge { path: name, limit_bytes: FILE_LIMIT_BYTES });
        }
        let text = String::from_utf8(bytes).map_err(|error| {
            let why = format!("byte {} is not UTF-8 text", error.utf8_error().valid_up_to());
            unreadable(io::Error::new(io::ErrorKind::InvalidData, why))
        })?;
        self.yaml(&text, &name)
    }

    /// Reads the text of a YAML file; `path` is its name in messages and origins.
    ///
    /// # Errors
    /// The text is not a flat mapping, or a name, or a value in it is wrong; line and column are in
    /// the message.
    pub fn yaml(mut self, text: &str, path: &str) -> Result<Self, ConfigError> {
        for item in yaml::parse(text, path)? {
            let at = |place: Position| Origin::File {
                path: path.to_owned(),
                line: place.line,
                column: place.column,
            };
            let index =
                index_of(&item.name).ok_or_else(|| unknown(&item.name, at(item.name_at)))?;
            let origin = at(item.value_at);
            let value = Ok(parse(&TABLE[index], &item.value, &origin)?);
            self.given.push(Given { index, layer: Layer::File, origin, value });
        }
        Ok(self)
    }

    /// Reads the environment of the process: `POLYRAIL_*` and the aliases; and the file of settings that
    /// `POLYRAIL_CONFIG` names, else `~/.config/polyrail/config.yml`, else `/etc/polyrail/config.yml`, below the files
    /// that are read by name. [`ConfigBuilder::build`] reports their errors.
    ///
    /// A set-user-ID program, or one with file capabilities, reads only `/etc/polyrail/config.yml`: everything else is
    /// under its caller's control.
    pub fn env(mut self) -> Self {
        if has_rights_of_its_file() {
            let of_host = discovery::OF_HOST;
            self.warn(format!(
                "environment variables and settings below HOME are ignored: the program's file gives it rights that its \
                 caller may not have (AT_SECURE); {of_host} holds"
            ));
            return self.found_file(&|_| None);
        }
        self.found_file(&|name| std::env::var_os(name)).env_variables()
    }

    /// Reads the file that applies if the user names none.
    fn found_file(mut self, variable: &dyn Fn(&str) -> Option<OsString>) -> Self {
        let found = discovery::find(variable, Path::new(discovery::OF_HOST));
        for warning in found.warnings {
            self.warn(warning);
        }
        let Some((path, opened)) = found.file else { return self };
        let opened = opened.unwrap_or_else(|| open(&path));
        match self.clone().opened_file(&path, opened) {
            Ok(mut with_file) => {
                for given in &mut with_file.given[self.given.len()..] {
                    given.layer = Layer::FoundFile;
                }
                with_file
            }
            Err(error) => {
                self.defer(error);
                self
            }
        }
    }

    fn env_variables(mut self) -> Self {
        let mut variables = Vec::new();
        for (name, value) in std::env::vars_os() {
            // Variables of other programs need not be UTF-8, and a non-UTF-8 one with Polyrail's prefix counts as
            // unknown.
            let name = name.into_string().unwrap_or_else(|name| bytes_shown(&name));
            if !name.starts_with(ENV_PREFIX) && !table::is_known(&name) {
                continue;
            }
            match value.into_string() {
                Ok(value) => variables.push((name, value)),
                Err(value) => {
                    let value = excerpt(&bytes_shown(&value));
                    match name.starts_with(ENV_PREFIX) {
                        true => self.defer(ConfigError::NotText { value, name }),
                        false => {
                            self.warn(format!("{name}={value} is not UTF-8 text and is ignored"))
                        }
                    }
                }
            }
        }
        self.env_from(variables)
    }

    /// Same as [`ConfigBuilder::env`], from the variables given; those of other programs are ignored.
    pub fn env_from(mut self, variables: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut variables: Variables = variables.into_iter().collect();
        self.set_links_aside(&mut variables);
        for (index, spec) in TABLE.iter().enumerate() {
            self.alias_env(index, spec, &variables);
            let name = spec.env_name();
            if let Some(text) = variables.get(&name) {
                let origin = Origin::Env { name };
                let value = parse(spec, text, &origin);
                self.given.push(Given { index, layer: Layer::OwnEnv, origin, value });
            }
        }
        for (name, why) in WITHOUT_COUNTERPART {
            if let Some(value) = variables.get(*name) {
                let value = excerpt(value);
                self.warn(format!("{name}={value} is read but has no counterpart yet: {why}"));
            }
        }
        for name in variables.keys() {
            let is_ours = name.starts_with(ENV_PREFIX);
            if is_ours && !is_setting(name) && !NOT_SETTINGS.contains(&name.as_str()) {
                let origin = Origin::Env { name: excerpt(name) };
                let own: Vec<_> = TABLE.iter().map(Spec::env_name).collect();
                let own = own.iter().map(String::as_str);
                self.defer(ConfigError::no_setting(name, Some(origin), own));
            }
        }
        self
    }

    /// Takes Kubernetes' service links out of the variables.
    fn set_links_aside(&mut self, variables: &mut Variables) {
        let is_link = |name: &str, value: &str| {
            name.starts_with(ENV_PREFIX) && service_links::is_link(name, value)
        };
        let links = variables.iter().filter(|(name, value)| is_link(name, value));
        let links: Vec<String> = links.map(|(name, _)| name.clone()).collect();
        if !links.is_empty() {
            let names = links.join(", ");
            self.notes
                .push(format!("service links of Kubernetes are no settings: ignored {names}"));
        }
        links.iter().for_each(|name| drop(variables.remove(name)));
    }

    /// Gives a setting a value that wins over all other layers.
    ///
    /// # Errors
    /// The name is not a setting, or the value is not valid for it.
    pub fn set(mut self, name: &str, value: &str) -> Result<Self, ConfigError> {
        let origin = Origin::Set;
        let index = index_of(name).ok_or_else(|| unknown(name, origin.clone()))?;
        let value = Ok(parse(&TABLE[index], value, &origin)?);
        self.given.push(Given { index, layer: Layer::Set, origin, value });
        Ok(self)
    }

    /// Proposes a value that overrides only the default; every other layer overrides it. A program uses this when it
    /// knows the machine, or the engine's purpose. `because` is shown with the value.
    ///
    /// # Errors
    /// As [`ConfigBuilder::set`].
    pub fn propose(mut self, name: &str, value: &str, because: &str) -> Result<Self, ConfigError> {
        let origin = Origin::Proposal { because: because.to_owned() };
        let index = index_of(name).ok_or_else(|| unknown(name, origin.clone()))?;
        let value = Ok(parse(&TABLE[index], value, &origin)?);
        self.proposals.push(Given { index, layer: Layer::Proposal, origin, value });
        Ok(self)
    }

    /// Same as [`ConfigBuilder::set`], from `name=value` as on the command line.
    ///
    /// # Errors
    /// Same as [`ConfigBuilder::set`], and [`ConfigError`] if there is no `=`.
    pub fn set_pair(self, pair: &str) -> Result<Self, ConfigError> {
        let (name, value) =
            pair.split_once('=').ok_or_else(|| ConfigError::NotAPair { text: excerpt(pair) })?;
        self.set(name.trim(), value)
    }

    /// Resolves the layers and checks the values against each other.
    ///
    /// # Errors
    /// The first error in the environment, or a conflict between two values.
    pub fn build(mut self) -> Result<Config, ConfigError> {
        if let Some(error) = self.deferred.take() {
            return Err(error);
        }
        // A stable sort, so that the order of calls remains within a layer.
        self.given.sort_by_key(|given| given.layer);
        loop {
            let resolved = self.resolved()?;
            match conflict::check(&resolved.settings, &resolved.origins) {
                Ok(()) => {
                    let Resolved { settings, origins } = resolved;
                    return Ok(Config::new(settings, origins, self.warnings, self.notes));
                }
                Err(conflict) => self.drop_foreign(&conflict).ok_or(conflict)?,
            }
        }
    }

    fn resolved(&mut self) -> Result<Resolved, ConfigError> {
        let mut resolved = Resolved::default();
        if let Some(preset) = index_of("preset") {
            resolved.take(self, preset)?;
        }
        for proposal in self.proposals.clone() {
            resolved.put(proposal.index, proposal.value?, proposal.origin)?;
        }
        resolved.take_preset()?;
        for index in 0..TABLE.len() {
            resolved.take(self, index)?;
        }
        Ok(resolved)
    }

    /// Drops another tool's value that conflicts with another setting, with a warning. Returns `None` if there is no
    /// such value.
    fn drop_foreign(&mut self, error: &ConfigError) -> Option<()> {
        let ConfigError::Conflict(conflict) = error else { return None };
        let parties = [&conflict.second, &conflict.first];
        let (at, party) = parties.into_iter().find_map(|party| {
            let at = self.given.iter().position(|given| {
                given.layer == Layer::AliasEnv
                    && TABLE[given.index].name == party.name
                    && given.origin == party.origin
            });
            Some((at?, party))
        })?;
        let Origin::Env { name } = &party.origin else { return None };
        self.given.remove(at);
        self.warn(format!("{name} is ignored: {conflict}"));
        Some(())
    }

    fn alias_env(&mut self, index: usize, spec: &Spec, variables: &Variables) {
        let given: Vec<_> = spec
            .aliases
            .iter()
            .filter_map(|alias| Some((alias, variables.get(alias.env)?)))
            .collect();
        // The first alias of the table wins, so it is applied last.
        for (alias, text) in given.into_iter().rev() {
            if text.trim().is_empty() {
                self.warn(format!("{} is empty and ignored", alias.env));
                continue;
            }
            let reading = (alias.read)(text, variables);
            for warning in reading.warnings {
                self.warn(format!("{}={} {warning}", alias.env, excerpt(text)));
            }
            let Some(ours) = reading.value else { continue };
            let origin = Origin::Env { name: alias.env.to_owned() };
            let value = match alias.is_strict() {
                true => parse(spec, &ours, &origin),
                false => match self.lenient(spec, alias, (text, &ours)) {
                    Some(value) => Ok(value),
                    None => continue,
                },
            };
            self.given.push(Given { index, layer: Layer::AliasEnv, origin, value });
        }
    }

    /// Reads a value of another tool as leniently as that tool does: a number out of range becomes the nearest one, and
    /// any other invalid value is ignored.
    fn lenient(
        &mut self,
        spec: &Spec,
        alias: &Alias,
        (given, ours): (&str, &str),
    ) -> Option<Value> {
        let invalid = match spec.kind.parse(ours) {
            Ok(value) => return Some(value),
            Err(invalid) => invalid,
        };
        let nearest = spec.kind.nearest(ours);
        let (name, range) = (spec.name, spec.kind.range());
        let taken = match &nearest {
            Some(value) => format!("is read as {}", spec.kind.show(value)),
            None => format!("{} and is ignored", invalid.reason),
        };
        self.warn(format!("{}={} {taken}; allowed for {name}: {range}", alias.env, excerpt(given)));
        nearest
    }

    /// Keeps each warning once: when the builder drops a value, it resolves all values again.
    fn warn(&mut self, warning: String) {
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// Keeps the first error.
    fn defer(&mut self, error: ConfigError) {
        self.deferred.get_or_insert(error);
    }
}

/// Settings and origins while the layers are applied.
struct Resolved {
    settings: Settings,
    origins: Vec<Origin>,
}

impl Default for Resolved {
    fn default() -> Self {
        Self { settings: Settings::default(), origins: vec![Origin::Default; TABLE.len()] }
    }
}

impl Resolved {
    /// Takes the highest value given for a setting, if any, and warns about the values that it overrides.
    fn take(&mut self, builder: &mut ConfigBuilder, index: usize) -> Result<(), ConfigError> {
        let given: Vec<_> =
            builder.given.iter().filter(|given| given.index == index).cloned().collect();
        let Some((winner, hidden)) = given.split_last() else {
            return Ok(());
        };
        for loser in hidden {
            if let Some(warning) = about_hidden(winner, loser)? {
                builder.warn(warning);
            }
        }
        self.put(index, winner.value.clone()?, winner.origin.clone())
    }

    fn take_preset(&mut self) -> Result<(), ConfigError> {
        let preset = self.settings.preset;
        for value in preset::values(preset) {
            let origin = Origin::Preset(preset);
            let index = index_of(value.name).ok_or_else(|| unknown(value.name, origin.clone()))?;
            let parsed = parse(&TABLE[index], value.value, &origin)?;
            self.put(index, parsed, origin)?;
        }
        Ok(())
    }

    fn put(&mut self, index: usize, value: Value, origin: Origin) -> Result<(), ConfigError> {
        let spec = &TABLE[index];
        let text = spec.kind.show(&value);
        spec.store(&mut self.settings, value)
            .map_err(|invalid| invalid_value(spec, &text, &origin, invalid, spec.kind.range()))?;
        self.origins[index] = origin;
        Ok(())
    }
}

/// Returns the warning about a value that another one overrides.
fn about_hidden(winner: &Given, loser: &Given) -> Result<Option<String>, ConfigError> {
    let name = TABLE[loser.index].name;
    match &loser.value {
        Err(error) => Err(error.clone()),
        Ok(value) => {
            let are_both_env = loser.layer == Layer::AliasEnv
                && matches!(winner.layer, Layer::AliasEnv | Layer::OwnEnv);
            let differ = winner.value.as_ref() != Ok(value);
            Ok((are_both_env && differ).then(|| {
                format!(
                    "{name}: {} says `{}` and hides {}, which says `{}`",
                    winner.origin,
                    shown(winner),
                    loser.origin,
                    shown(loser),
                )
            }))
        }
    }
}

fn shown(given: &Given) -> String {
    match &given.value {
        Ok(value) => excerpt(&TABLE[given.index].kind.show(value)),
        Err(_) => String::new(),
    }
}

fn is_setting(env: &str) -> bool {
    table::is_known(env) || TABLE.iter().any(|spec| spec.env_name() == env)
}

fn parse(spec: &Spec, text: &str, origin: &Origin) -> Result<Value, ConfigError> {
    spec.kind
        .parse(text)
        .map_err(|invalid| invalid_value(spec, text, origin, invalid, spec.kind.range()))
}

fn invalid_value(
    spec: &Spec,
    text: &str,
    origin: &Origin,
    invalid: Invalid,
    allowed: String,
) -> ConfigError {
    let is_empty_variable = text.trim().is_empty() && matches!(origin, Origin::Env { .. });
    let unset = || is_empty_variable.then(|| "unset the variable to keep the default".to_owned());
    ConfigError::Value(Box::new(BadValue {
        name: spec.name,
        value: excerpt(text),
        origin: origin.clone(),
        reason: invalid.reason,
        allowed,
        remedy: invalid.help.or_else(unset),
    }))
}

fn unknown(name: &str, origin: Origin) -> ConfigError {
    ConfigError::no_setting(name, Some(origin), names())
}

/// Opens a regular file: a named pipe would wait until another process writes. `/dev/null` is allowed, which people
/// name for an empty file.
fn open(path: &Path) -> io::Result<File> {
    let kind = fs::metadata(path)?.file_type();
    if !kind.is_file() && path != Path::new("/dev/null") {
        let what = match kind {
            kind if kind.is_dir() => "a folder",
            kind if kind.is_fifo() => "a pipe",
            kind if kind.is_socket() => "a socket",
            _ => "a device",
        };
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("it is {what}")));
    }
    File::open(path)
}

/// Reads no more than the limit and one byte.
fn read_limited(file: File) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(FILE_LIMIT_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Formats bytes that are not text as `\xff`.
fn bytes_shown(text: &OsStr) -> String {
    text.as_encoded_bytes().escape_ascii().to_string()
}
