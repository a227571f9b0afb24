//! Names of groups and members.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const LONGEST: usize = 63;

/// The name of a group or a member: 1 to 63 letters, digits, `.`, `_` and `-`, of which the first is a
/// letter or a digit. So it is the name of a file and part of a key as it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// A text that is no [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` {fault}; allowed: {}", shown(got), Name::ALLOWED)]
pub struct NameError {
    got: String,
    fault: &'static str,
}

impl NameError {
    /// What is wrong, as a phrase that follows the value.
    pub fn fault(&self) -> &'static str {
        self.fault
    }
}

impl Name {
    /// What a name is, for people.
    pub const ALLOWED: &str =
        "1 to 63 letters, digits, `.`, `_` and `-`, first a letter or a digit";

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let is_known = |one: u8| one.is_ascii_alphanumeric() || b"._-".contains(&one);
        let fault = match text.as_bytes() {
            [] => "is empty",
            bytes if bytes.len() > LONGEST => "is too long",
            bytes if !bytes.iter().copied().all(is_known) => "has other characters than names have",
            [first, ..] if !first.is_ascii_alphanumeric() => "begins with another character",
            _ => return Ok(Self(text.to_owned())),
        };
        Err(NameError { got: text.to_owned(), fault })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The beginning of what was given, in one line.
fn shown(text: &str) -> String {
    polyrail_config::shortened(text, 64)
}

/// Under which name an engine joins which group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    pub(crate) group: Name,
    pub(crate) name: Option<Name>,
    pub(crate) timeout: Duration,
}

impl Membership {
    /// A member of this group. Without a name of its own it is called `rank-3` among ranks, and else by
    /// the engine's instance number.
    ///
    /// # Errors
    /// It is no [`Name`].
    pub fn new(group: &str) -> Result<Self, NameError> {
        Ok(Self { group: group.parse()?, name: None, timeout: Duration::from_secs(60) })
    }

    /// With this name. A name that somebody has who lives is refused; that of a dead engine is free as
    /// soon as its lease is over, and joining waits for that.
    ///
    /// # Errors
    /// It is no [`Name`].
    pub fn name(self, name: &str) -> Result<Self, NameError> {
        Ok(Self { name: Some(name.parse()?), ..self })
    }

    /// How long joining may take: rank 0 may start later, an engine that had the name may have died less
    /// than a lease ago. 60 s if not given.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_what_files_and_keys_can_be_called() {
        for text in ["a", "rank-3", "0", "node1.example.org_7", &"x".repeat(63)] {
            assert_eq!(text.parse::<Name>().unwrap().as_str(), text);
        }
        for (text, fault) in [
            ("", "is empty"),
            ("../up", "has other characters"),
            (".hidden", "begins with another"),
            ("-5", "begins with another"),
            ("a b", "has other characters"),
            ("ä", "has other characters"),
            ("a\n", "has other characters"),
            (&"x".repeat(64), "is too long"),
        ] {
            let error = text.parse::<Name>().unwrap_err().to_string();
            assert!(error.contains(fault) && error.contains("; allowed: "), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
