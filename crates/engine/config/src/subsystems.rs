//! Parts of Polyrail that write log records.

use std::fmt;

use polyrail_yaml::excerpt;

use crate::invalid::Invalid;
use crate::suggest;

/// Parts of Polyrail that a log record can belong to.
pub const SUBSYSTEMS: &[&str] = &[
    "config",
    "engine",
    "peer",
    "rail",
    "flow",
    "proxy",
    "staging",
    "share",
    "carrier",
    "gpu",
    "host",
    "nccl",
    "profile",
    "rendezvous",
];

/// A set of [`SUBSYSTEMS`], in the spelling of the setting `log_subsystems`.
///
/// Written `all`, or a list like `peer,rail`, or with a leading `^` everything but the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subsystems {
    /// Bit `i` stands for `SUBSYSTEMS[i]`.
    bits: u16,
}

impl Subsystems {
    /// All of them.
    pub const ALL: Self = Self { bits: (1 << SUBSYSTEMS.len()) - 1 };

    /// Reads a set that the setting has checked; `None` for a text that is not one.
    pub fn parse(text: &str) -> Option<Self> {
        parse(text).ok()
    }

    /// Returns whether records of this subsystem are written; false for a name that is not a subsystem.
    pub fn allows(self, subsystem: &str) -> bool {
        bit(subsystem).is_some_and(|bit| self.bits & bit != 0)
    }
}

/// Writes the shortest text that reads back as the same set.
impl fmt::Display for Subsystems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::ALL {
            return f.write_str("all");
        }
        let names: Vec<_> = SUBSYSTEMS.iter().copied().filter(|name| self.allows(name)).collect();
        if names.is_empty() { f.write_str("^all") } else { f.write_str(&names.join(",")) }
    }
}

pub(crate) fn parse(text: &str) -> Result<Subsystems, Invalid> {
    let text = text.trim();
    let (negated, list) = match text.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let mut bits = 0;
    for item in list.split(',') {
        let name = item.trim().to_ascii_lowercase();
        bits |= match name.as_str() {
            "" => return Err(Invalid::because("has an empty item in the list")),
            "all" => Subsystems::ALL.bits,
            name => bit(name).ok_or_else(|| unknown(name))?,
        };
    }
    Ok(Subsystems { bits: if negated { Subsystems::ALL.bits & !bits } else { bits } })
}

fn bit(name: &str) -> Option<u16> {
    SUBSYSTEMS.iter().position(|known| *known == name).map(|index| 1 << index)
}

fn unknown(name: &str) -> Invalid {
    let shown = excerpt(name);
    let invalid = Invalid::because(format!("has the unknown subsystem `{shown}`"));
    if name.starts_with('^') {
        return invalid.help("one `^` in front turns the whole list around");
    }
    match suggest::closest(name, SUBSYSTEMS.iter().copied()) {
        Some(near) => invalid.help(format!("did you mean `{near}`?")),
        None => invalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_allows_what_it_names() {
        let set = Subsystems::parse("peer, RAIL").unwrap();
        assert!(set.allows("peer") && set.allows("rail"));
        assert!(!set.allows("flow") && !set.allows("nonsense"));
        assert_eq!(set.to_string(), "peer,rail");
    }

    #[test]
    fn a_caret_turns_the_whole_list_around() {
        let set = Subsystems::parse("^flow,proxy").unwrap();
        assert!(set.allows("peer") && !set.allows("flow") && !set.allows("proxy"));
        assert_eq!(Subsystems::parse("^all").unwrap().to_string(), "^all");
    }

    #[test]
    fn all_is_every_subsystem() {
        let set = Subsystems::parse("all").unwrap();
        assert!(SUBSYSTEMS.iter().all(|name| set.allows(name)));
        assert_eq!(Subsystems::parse(&SUBSYSTEMS.join(",")), Some(Subsystems::ALL));
    }

    #[test]
    fn an_unknown_subsystem_is_refused_with_a_suggestion() {
        let error = parse("peer,proxi").unwrap_err();
        assert_eq!(error.reason, "has the unknown subsystem `proxi`");
        assert_eq!(error.help.as_deref(), Some("did you mean `proxy`?"));
        assert_eq!(parse("peer,").unwrap_err().reason, "has an empty item in the list");
        assert!(parse("peer,^rail").unwrap_err().help.unwrap().contains("whole list"));
    }
}
