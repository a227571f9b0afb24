//! Reads the file of an experiment.

use std::time::Duration;

use polyrail_config::{Config, ConfigError, parse_bindings};
use polyrail_report::counted;
use polyrail_yaml::{Entry, Fault, FaultKind, Node, Position, Value, excerpt};

use super::{Experiment, Measure};
use crate::effect::Better;
use crate::error::ExperimentError;
use crate::figure::Figure;
use crate::plan::{Design, Factor, Kind};
use crate::ranks::DIFFERENCES_MAX;

/// All keys that a file may have.
const KEYS: &[&str] = &[
    "name",
    "about",
    "bench",
    "command",
    "figure",
    "better",
    "factors",
    "baseline",
    "settings",
    "nics",
    "design",
    "blocks",
    "time",
    "precision",
    "seed",
];

/// Factors that are not settings.
const SPECIAL: &[(&str, Kind)] =
    &[("bindings", Kind::Bindings), ("irq", Kind::Irq), ("host_profile", Kind::HostProfile)];

/// Levels of the factor `irq`: the policies of `polyrail host plan irq`, and others.
const IRQ_LEVELS: &[&str] =
    &["default", "matched", "split", "colocate", "numa", "spread", "single"];

const BYTES_MAX: usize = 1 << 20;
/// Default measurement of a cell: one size, for a second.
const BENCH: &[&str] = &["--sizes", "16MiB", "--time", "1s"];
const BLOCKS: usize = 64;
const TIME: Duration = Duration::from_secs(600);
const PRECISION: f64 = 0.02;

/// A fault with its fix.
struct Wrong(Fault, Option<String>);

impl From<Fault> for Wrong {
    fn from(fault: Fault) -> Self {
        Self(fault, None)
    }
}

fn wrong(at: Position, fault: impl Into<String>) -> Wrong {
    Fault::new(at, fault).into()
}

pub(super) fn experiment(text: &str, file: &str) -> Result<Experiment, ExperimentError> {
    read(text, file).map_err(|Wrong(fault, help)| ExperimentError::File {
        file: file.to_owned(),
        line: fault.at.line,
        column: fault.at.column,
        fault: match &fault.kind {
            FaultKind::Other(words) => words.clone(),
            _ if fault.path.is_empty() => format!("the file {}", fault.kind),
            _ => fault.to_string(),
        },
        help,
    })
}

fn read(text: &str, file: &str) -> Result<Experiment, Wrong> {
    if text.len() > BYTES_MAX {
        return Err(wrong(Position::START, format!("the file is longer than {BYTES_MAX} bytes")));
    }
    let Some(root) = polyrail_yaml::parse(text)? else {
        return Err(wrong(Position::START, "the file is empty; it must have `factors`"));
    };
    let entries = root.map("an experiment")?;
    if let Some(entry) = entries.iter().find(|entry| !KEYS.contains(&entry.name.as_str())) {
        let fault =
            format!("`{}` is not known; allowed: {}", excerpt(&entry.name), KEYS.join(", "));
        return Err(Wrong(Fault::new(entry.at, fault), meant(&entry.name, KEYS.iter().copied())));
    }
    let of = |name: &str| entries.iter().find(|entry| entry.name == name);
    let text_of = |name: &str| {
        of(name).map(|one| Ok::<_, Wrong>((one.node.text(name)?, one.node.at))).transpose()
    };

    let measure = measure(of("bench"), of("command"))?;
    let Some(listed) = of("factors") else {
        return Err(wrong(Position::START, "`factors` is missing: what is to be varied"));
    };
    let mut factors = Vec::new();
    for entry in listed.node.map("factors")? {
        factors.push(factor(entry, &measure)?);
    }
    if factors.is_empty() {
        return Err(wrong(listed.at, "`factors` has no factor; at least one is needed"));
    }
    check_words(
        &measure,
        &factors,
        of("command").or(of("bench")).map_or(Position::START, |one| one.node.at),
    )?;
    if let Some(entry) = of("baseline") {
        for one in entry.node.map("baseline")? {
            set_baseline(one, &mut factors)?;
        }
    }
    let (figure, better) = figure(of("figure"), of("better"), &measure)?;
    let mut settings = Vec::new();
    if let Some(entry) = of("settings") {
        for one in entry.node.map("settings")? {
            let value = one.node.text("a setting")?;
            if factors.iter().any(|factor| factor.name == one.name) {
                let fault = format!(
                    "`{}` is a factor as well; allowed: settings that no factor varies",
                    excerpt(&one.name)
                );
                return Err(wrong(one.at, fault));
            }
            check_setting(&one.name, one.at, value, one.node.at)?;
            settings.push((one.name.clone(), value.to_owned()));
        }
    }
    let design = match text_of("design")? {
        None | Some(("grid", _)) => Design::Grid,
        Some(("one-at-a-time", _)) => Design::OneAtATime,
        Some((other, at)) => {
            let fault = format!("design = `{}`; allowed: grid, one-at-a-time", excerpt(other));
            return Err(wrong(at, fault));
        }
    };
    let blocks = text_of("blocks")?.map_or(Ok(BLOCKS), |(text, at)| {
        let number = text.parse().ok().filter(|number| (1..=DIFFERENCES_MAX).contains(number));
        number.ok_or_else(|| {
            wrong(at, format!("blocks = `{}`; allowed: 1 to {DIFFERENCES_MAX}", excerpt(text)))
        })
    })?;
    let time = text_of("time")?.map_or(Ok(TIME), |(text, at)| {
        polyrail_report::parse_duration(text).map_err(|bad| {
            Wrong(Fault::new(at, format!("time = `{}` {bad}", excerpt(text))), bad.help())
        })
    })?;
    let precision =
        text_of("precision")?.map_or(Ok(PRECISION), |(text, at)| precision(text, at))?;
    let seed = text_of("seed")?.map_or(Ok(42), |(text, at)| {
        text.parse().map_err(|_| {
            wrong(at, format!("seed = `{}`; allowed: 0 to {}", excerpt(text), u64::MAX))
        })
    })?;
    let nics = text_of("nics")?.map_or_else(Vec::new, |(text, _)| {
        text.split(',').map(|nic| nic.trim().to_owned()).filter(|nic| !nic.is_empty()).collect()
    });
    if let Some(one) = of("nics").filter(|_| !factors.iter().any(|one| one.kind.is_of_host())) {
        let fault = "`nics` changes nothing here; allowed: with a factor irq or host_profile";
        return Err(wrong(one.at, fault));
    }
    Ok(Experiment {
        file: file.to_owned(),
        name: text_of("name")?.map_or_else(|| name_of(file), |(text, _)| text.to_owned()),
        about: text_of("about")?.map_or("", |(text, _)| text).trim().to_owned(),
        measure,
        figure,
        better,
        factors,
        settings,
        nics,
        design,
        blocks,
        time,
        precision,
        seed,
    })
}

/// Returns the file's name without folder and extension.
fn name_of(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    let name = name.rsplit_once('.').map_or(name, |(name, _)| name);
    name.to_owned()
}

fn measure(bench: Option<&Entry>, command: Option<&Entry>) -> Result<Measure, Wrong> {
    match (bench, command) {
        (Some(_), Some(command)) => {
            Err(wrong(command.at, "`command` stands beside `bench`; allowed: one of the two"))
        }
        (None, None) => Ok(Measure::Bench(BENCH.iter().map(ToString::to_string).collect())),
        (Some(bench), None) => Ok(Measure::Bench(words(&bench.node, "bench")?)),
        (None, Some(command)) => {
            let words = words(&command.node, "command")?;
            if words.is_empty() {
                return Err(wrong(
                    command.node.at,
                    "`command` is empty; allowed: a program and its arguments",
                ));
            }
            Ok(Measure::Command(words))
        }
    }
}

/// Reads a list of words, or a text that is split at spaces.
fn words(node: &Node, what: &str) -> Result<Vec<String>, Fault> {
    match &node.value {
        Value::Text { text, .. } => Ok(text.split_whitespace().map(str::to_owned).collect()),
        Value::List(items) => items.iter().map(|item| Ok(item.text(what)?.to_owned())).collect(),
        Value::Map(_) => {
            Err(Fault::new(node.at, format!("{what} must be a text or a list of words")))
        }
    }
}

fn factor(entry: &Entry, measure: &Measure) -> Result<Factor, Wrong> {
    let name = &entry.name;
    let special = SPECIAL.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind);
    let is_setting = polyrail_config::names().any(|known| known == name);
    let placeholder = format!("{{{name}}}");
    let kind = match special {
        Some(kind) => kind,
        None if is_setting => Kind::Setting,
        None if measure.words().iter().any(|word| word.contains(&placeholder)) => Kind::Word,
        None => {
            let fault = format!(
                "the factor `{}` is not known; allowed: a setting, irq, bindings, host_profile, or a name that \
                 the command has as `{{{}}}`",
                excerpt(name),
                excerpt(name),
            );
            let known = polyrail_config::names().chain(SPECIAL.iter().map(|(name, _)| *name));
            let help = match polyrail_config::help(name) {
                Err(error @ ConfigError::Renamed { .. }) => error.help(),
                _ => meant(name, known),
            };
            return Err(Wrong(Fault::new(entry.at, fault), help));
        }
    };
    let mut levels: Vec<String> = Vec::new();
    for item in entry.node.list(&format!("the levels of `{}`", excerpt(name)))? {
        let level = item.text("a level")?;
        check_level(name, kind, level, item.at)?;
        if levels.iter().any(|other| other == level) {
            return Err(wrong(
                item.at,
                format!("the factor `{name}` has the level `{}` twice", excerpt(level)),
            ));
        }
        levels.push(level.to_owned());
    }
    if levels.len() < 2 {
        let fault = format!(
            "the factor `{}` has {}; at least 2 are needed",
            excerpt(name),
            counted(levels.len() as u64, "level"),
        );
        return Err(wrong(entry.node.at, fault));
    }
    Ok(Factor { name: name.clone(), kind, levels, baseline: 0 })
}

fn check_level(name: &str, kind: Kind, level: &str, at: Position) -> Result<(), Wrong> {
    let fault = |allowed: &str, help: Option<String>| {
        let fault =
            format!("the factor `{name}` has no level `{}`; allowed: {allowed}", excerpt(level));
        Err(Wrong(Fault::new(at, fault), help))
    };
    match kind {
        Kind::Setting => check_setting(name, at, level, at),
        Kind::Irq
            if IRQ_LEVELS.contains(&level)
                || level.strip_prefix("map:").is_some_and(|file| !file.is_empty()) =>
        {
            Ok(())
        }
        Kind::Irq => {
            let allowed = format!("{}, map:FILE", IRQ_LEVELS.join(", "));
            fault(&allowed, meant(level, IRQ_LEVELS.iter().copied()))
        }
        Kind::Bindings if matches!(level, "none" | "matched") => Ok(()),
        Kind::Bindings => match parse_bindings(level) {
            Ok(_) if !level.is_empty() => Ok(()),
            Ok(_) => fault("none, matched, or bindings such as eth1:8-21;eth2:22-35", None),
            Err(error) => fault(
                &format!("none, matched, or bindings such as eth1:8-21;eth2:22-35 ({error})"),
                meant(level, ["none", "matched"]),
            ),
        },
        Kind::HostProfile if level.is_empty() => {
            fault("none, or a profile of `polyrail host show profiles`", None)
        }
        Kind::HostProfile | Kind::Word | Kind::Variable => Ok(()),
    }
}

fn check_setting(
    name: &str,
    name_at: Position,
    value: &str,
    value_at: Position,
) -> Result<(), Wrong> {
    let refused = |error: polyrail_config::ConfigError| match &error {
        polyrail_config::ConfigError::Value(bad) => {
            let fault =
                format!("{name} = `{}` {}; allowed: {}", bad.value, bad.reason, bad.allowed);
            Wrong(Fault::new(value_at, fault), error.help())
        }
        polyrail_config::ConfigError::Unknown { .. }
        | polyrail_config::ConfigError::Renamed { .. } => {
            let fault = format!("`{}` is no setting", excerpt(name));
            Wrong(Fault::new(name_at, fault), error.help())
        }
        other => Wrong(Fault::new(value_at, other.to_string()), other.help()),
    };
    Config::builder().set(name, value).map(drop).map_err(refused)
}

/// Checks that every `{word}` of the command is a factor: a misspelt one would reach the command unchanged.
fn check_words(measure: &Measure, factors: &[Factor], at: Position) -> Result<(), Wrong> {
    for word in measure.words() {
        let mut rest = word.as_str();
        while let Some((_, behind)) = rest.split_once('{') {
            let Some((name, after)) = behind.split_once('}') else { break };
            let is_name =
                !name.is_empty() && name.chars().all(|one| one.is_alphanumeric() || one == '_');
            if is_name && !factors.iter().any(|factor| factor.name == name) {
                let names: Vec<&str> = factors.iter().map(|factor| factor.name.as_str()).collect();
                let fault = format!(
                    "the command has `{{{}}}`, which is no factor; allowed: {}",
                    excerpt(name),
                    names.join(", ")
                );
                return Err(Wrong(Fault::new(at, fault), meant(name, names)));
            }
            rest = after;
        }
    }
    Ok(())
}

fn set_baseline(entry: &Entry, factors: &mut [Factor]) -> Result<(), Wrong> {
    let names: Vec<String> = factors.iter().map(|factor| factor.name.clone()).collect();
    let Some(factor) = factors.iter_mut().find(|factor| factor.name == entry.name) else {
        let fault = format!(
            "the baseline names `{}`, which is no factor; allowed: {}",
            excerpt(&entry.name),
            names.join(", ")
        );
        return Err(Wrong(
            Fault::new(entry.at, fault),
            meant(&entry.name, names.iter().map(String::as_str)),
        ));
    };
    let level = entry.node.text("the baseline of a factor")?;
    match factor.levels.iter().position(|one| one == level) {
        Some(at) => factor.baseline = at,
        None => {
            let fault = format!(
                "the baseline of `{}` is `{}`, which is no level of it; allowed: {}",
                factor.name,
                excerpt(level),
                factor.levels.join(", ")
            );
            return Err(wrong(entry.node.at, fault));
        }
    }
    Ok(())
}

fn figure(
    figure: Option<&Entry>,
    better: Option<&Entry>,
    measure: &Measure,
) -> Result<(Figure, Better), Wrong> {
    let better = match better {
        None => None,
        Some(entry) => Some(match entry.node.text("better")? {
            "higher" => Better::Higher,
            "lower" => Better::Lower,
            other => {
                let fault = format!("better = `{}`; allowed: higher, lower", excerpt(other));
                return Err(wrong(entry.node.at, fault));
            }
        }),
    };
    match (figure, measure) {
        (None, Measure::Bench(_)) => Ok((Figure::of_bench(), better.unwrap_or(Better::Higher))),
        (None, Measure::Command(_)) => Err(wrong(
            Position::START,
            "`figure` is missing: where the figure is in what the command prints, as a JSON pointer such as \
             /rate, or a pattern with one group such as 'rate: ([0-9.]+)'",
        )),
        (Some(entry), _) => {
            let text = entry.node.text("figure")?;
            let figure = Figure::parse(text).map_err(|fault| {
                wrong(entry.node.at, format!("figure = `{}` {fault}", excerpt(text)))
            })?;
            let Some(better) = better else {
                return Err(wrong(
                    entry.at,
                    "`better` is missing: which figures are good, higher or lower",
                ));
            };
            Ok((figure, better))
        }
    }
}

/// Parses `2 %`, or `2%`, into a share.
fn precision(text: &str, at: Position) -> Result<f64, Wrong> {
    let percent = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    percent
        .filter(|percent| (0.01..=50.0).contains(percent))
        .map(|percent| percent / 100.0)
        .ok_or_else(|| {
            wrong(
                at,
                format!(
                    "precision = `{}`; allowed: 0.01 % to 50 %, written like 2 %",
                    excerpt(text)
                ),
            )
        })
}

/// Suggests the name that was probably meant.
fn meant<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    if name.is_empty() || name.len() > 64 {
        return None;
    }
    let near = known.into_iter().map(|one| (strsim::damerau_levenshtein(name, one), one));
    let (edits, one) = near.min_by_key(|(edits, _)| *edits)?;
    (edits <= (name.chars().count() / 3).max(1)).then(|| format!("did you mean `{one}`?"))
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
