//! One rule of a profile.

use polyrail_host::CpuSet;
use polyrail_nic::Setting;
use polyrail_yaml::{Entry, Fault, Node, Position, excerpt};

use crate::plan::check_path;
use crate::target::Target;

/// The wanted value for one kind of setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub subject: Subject,
    /// The index of the number to change, for a value of several numbers, counted from 0; `None` if
    /// there is one.
    pub field: Option<usize>,
    pub aim: Aim,
    pub why: String,
    pub source: String,
}

/// The setting that a rule is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A file; `{nic}` stands for each interface, and one `*` for a number.
    File(String),
    /// A setting of each interface.
    Ethtool(String),
}

/// The wanted value. A better one is left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Aim {
    AtLeast(u64),
    AtMost(u64),
    Equals(String),
    /// The maximum of the device.
    Maximum,
    /// A mask of no CPUs.
    NoCpus,
    /// A mask of this queue's share of the CPUs near the interface.
    NearQueue,
}

impl Subject {
    /// The group of settings, for messages.
    pub fn group(&self) -> &str {
        match self {
            Self::File(path) if path.starts_with("/proc/sys/") => "sysctl",
            Self::File(path) if path.contains("cpufreq") => "governor",
            Self::File(path) if path.contains("xps_cpus") => "xps",
            Self::File(path) if path.contains("rps_cpus") => "rps",
            Self::File(_) => "file",
            Self::Ethtool(setting) => setting.split('.').next().unwrap_or(setting),
        }
    }

    /// Whether the setting exists for each interface.
    pub(super) fn is_of_nics(&self) -> bool {
        match self {
            Self::File(path) => path.contains("{nic}"),
            Self::Ethtool(_) => true,
        }
    }

    /// Returns a target that stands for a missing value.
    pub(super) fn as_target(&self) -> Target {
        match self {
            Self::File(path) => Target::File { path: path.clone() },
            Self::Ethtool(setting) => {
                Target::Ethtool { nic: "*".to_owned(), setting: setting.clone() }
            }
        }
    }
}

impl Aim {
    /// Returns the aim as written in a profile.
    pub(super) fn as_written(&self) -> String {
        match self {
            Self::AtLeast(least) => format!("at_least: {least}"),
            Self::AtMost(most) => format!("at_most: {most}"),
            Self::Equals(value) => format!("equals: {}", excerpt(value)),
            Self::Maximum => "at_least: max".to_owned(),
            Self::NoCpus => "cpus: none".to_owned(),
            Self::NearQueue => "cpus: near".to_owned(),
        }
    }
}

impl Rule {
    pub(super) fn parse(node: &Node) -> Result<Self, Fault> {
        let (mut subject, mut field, mut aim, mut why, mut source) = (None, None, None, None, None);
        for Entry { name, at, node: value } in node.map("a setting")? {
            let text = value.text("this")?;
            let number = || {
                let fault = || Fault::new(value.at, "is not a whole number");
                text.parse::<u64>().map_err(|_| fault())
            };
            match name.as_str() {
                "file" | "ethtool" if subject.is_some() => {
                    return Err(Fault::new(
                        *at,
                        "names a second setting; allowed: one of `file` and `ethtool`",
                    ));
                }
                "file" => subject = Some(Subject::File(checked_path(text, value.at)?)),
                "ethtool" if Setting::parse(text).is_some() => {
                    subject = Some(Subject::Ethtool(text.to_owned()));
                }
                "ethtool" => {
                    let fault = format!("`{}` is not a setting like rings.rx", excerpt(text));
                    return Err(Fault::new(value.at, fault));
                }
                "field" => field = Some(number()? as usize),
                "at_least" | "at_most" | "equals" | "cpus" if aim.is_some() => {
                    let before = aim.as_ref().map(Aim::as_written).unwrap_or_default();
                    let fault = format!(
                        "`{name}: {}` comes after `{before}`; allowed: one of `at_least`, `at_most`, `equals` and `cpus`",
                        excerpt(text)
                    );
                    return Err(Fault::new(*at, fault));
                }
                "at_least" if text == "max" => aim = Some(Aim::Maximum),
                "at_least" => aim = Some(Aim::AtLeast(number()?)),
                "at_most" => aim = Some(Aim::AtMost(number()?)),
                "equals" => aim = Some(Aim::Equals(text.to_owned())),
                "cpus" if text == "none" => aim = Some(Aim::NoCpus),
                "cpus" if text == "near" => aim = Some(Aim::NearQueue),
                "cpus" => return Err(Fault::new(value.at, "must be none or near")),
                "why" => why = Some(text.trim().to_owned()),
                "source" => source = Some(text.trim().to_owned()),
                other => {
                    let fault = format!(
                        "`{}` is not known; allowed: file, ethtool, field, at_least, at_most, \
                         equals, cpus, why, source",
                        excerpt(other)
                    );
                    return Err(Fault::new(*at, fault));
                }
            }
        }
        let missing = |what: &str| Fault::new(node.at, format!("a setting needs {what}"));
        Ok(Self {
            subject: subject.ok_or_else(|| missing("`file` or `ethtool`"))?,
            field,
            aim: aim.ok_or_else(|| missing("`at_least`, `at_most`, `equals` or `cpus`"))?,
            why: why.ok_or_else(|| missing("`why`"))?,
            source: source.ok_or_else(|| missing("`source`"))?,
        })
    }

    /// Returns the whole new value; `None` if the old one is as good or better.
    ///
    /// # Errors
    /// The reason why the value can't be computed, as text for messages.
    pub fn wanted(
        &self,
        old: &str,
        max: Option<u32>,
        mask: Option<(&str, &CpuSet)>,
    ) -> Result<Option<String>, String> {
        let words: Vec<&str> = old.split_whitespace().collect();
        let at = self.field.unwrap_or(0);
        let now = match self.field {
            Some(field) => words.get(field).copied(),
            None => Some(old),
        };
        let now = now.ok_or_else(|| format!("has no field {at}: `{}`", excerpt(old)))?;
        let number =
            || now.parse::<u64>().map_err(|_| format!("`{}` is not a number", excerpt(now)));
        let new = match &self.aim {
            Aim::AtLeast(least) => (number()? < *least).then(|| least.to_string()),
            Aim::AtMost(most) => (number()? > *most).then(|| most.to_string()),
            Aim::Equals(wanted) => (now != wanted).then(|| wanted.clone()),
            Aim::Maximum => {
                let max = max.ok_or("the device does not tell its maximum")?;
                (number()? < u64::from(max)).then(|| max.to_string())
            }
            Aim::NoCpus => {
                let cpus = CpuSet::parse_mask(now).map_err(|error| error.to_string())?;
                // Write zeros in as many digits as before.
                let zero = |c: char| if c == ',' { c } else { '0' };
                (!cpus.is_empty()).then(|| now.chars().map(zero).collect())
            }
            Aim::NearQueue => {
                let cpus = CpuSet::parse_mask(now).map_err(|error| error.to_string())?;
                let (mask, wanted) = mask.ok_or("is not a file of a queue")?;
                // A narrower mask was chosen on purpose, and it is no worse.
                let is_good = !cpus.is_empty() && cpus.is_subset(wanted);
                (!is_good).then(|| mask.to_owned())
            }
        };
        Ok(new.map(|new| match self.field {
            None => new,
            Some(field) => {
                let word = |(at, word): (usize, &&str)| match at == field {
                    true => new.clone(),
                    false => (*word).to_owned(),
                };
                words.iter().enumerate().map(word).collect::<Vec<_>>().join("\t")
            }
        }))
    }
}

fn checked_path(path: &str, at: Position) -> Result<String, Fault> {
    let is_plain = path.starts_with('/') && !path.split('/').any(|part| part == "..");
    let stars = path.matches('*').count();
    if !is_plain || stars > 1 {
        return Err(Fault::new(at, "must be a path from `/` with one `*` at most"));
    }
    check_path(path).map_err(|fault| Fault::new(at, format!("names {fault}")))?;
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(aim: Aim, field: Option<usize>) -> Rule {
        let subject = Subject::File("/proc/sys/x".to_owned());
        Rule { subject, field, aim, why: "w".to_owned(), source: "s".to_owned() }
    }

    #[test]
    fn a_value_that_is_better_already_is_left_alone() {
        let least = rule(Aim::AtLeast(100), None);
        assert_eq!(least.wanted("99", None, None), Ok(Some("100".to_owned())));
        assert_eq!(least.wanted("100", None, None), Ok(None));
        assert_eq!(least.wanted("5000", None, None), Ok(None));
        let most = rule(Aim::AtMost(3), None);
        assert_eq!(most.wanted("0", None, None), Ok(None));
        assert_eq!(most.wanted("4", None, None), Ok(Some("3".to_owned())));
    }

    #[test]
    fn one_number_of_several_is_changed_and_the_others_stay() {
        let rule = rule(Aim::AtLeast(33_554_432), Some(2));
        let new = rule.wanted("4096\t131072\t6291456", None, None).unwrap().unwrap();
        assert_eq!(new, "4096\t131072\t33554432");
        assert!(rule.wanted("4096", None, None).is_err());
        assert!(rule.wanted("a b c", None, None).is_err());
    }

    #[test]
    fn masks_are_compared_as_sets_and_a_narrower_one_is_kept() {
        assert_eq!(rule(Aim::NoCpus, None).wanted("00000000,0000", None, None), Ok(None));
        let zero = rule(Aim::NoCpus, None).wanted("00000001,0003", None, None).unwrap();
        assert_eq!(zero.unwrap(), "00000000,0000");
        let near = CpuSet::range(0, 3);
        let wish = rule(Aim::NearQueue, None);
        assert_eq!(wish.wanted("0002", None, Some(("000f", &near))), Ok(None));
        assert_eq!(wish.wanted("0000", None, Some(("000f", &near))), Ok(Some("000f".into())));
        assert_eq!(wish.wanted("0010", None, Some(("000f", &near))), Ok(Some("000f".into())));
    }
}
