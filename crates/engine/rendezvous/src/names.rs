//! Names of groups and members.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const LONGEST: usize = 63;

/// Name of a group or a member: 1 to 63 letters, digits, `.`, `_` and `-`, of which the first is a letter or a digit.
/// Names need no escaping in file names and keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

/// Error for a text that is not a valid [`Name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` {fault}; allowed: {}", shown(got), Name::ALLOWED)]
pub struct NameError {
    got: String,
    fault: &'static str,
}

impl NameError {
    /// Returns the fault as a phrase that follows the value.
    pub fn fault(&self) -> &'static str {
        self.fault
    }
}

impl Name {
    /// Description of valid names, for messages.
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

/// Beginning of the value, in one line.
fn shown(text: &str) -> String {
    polyrail_config::shortened(text, 64)
}

/// Group and name under which an engine joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    pub(crate) group: Name,
    pub(crate) name: Option<Name>,
    pub(crate) timeout: Duration,
}

impl Membership {
    /// Creates a membership of this group. The default name is `rank-N` for ranks, and otherwise the engine's instance
    /// number.
    ///
    /// # Errors
    /// `group` is not a valid [`Name`].
    pub fn new(group: &str) -> Result<Self, NameError> {
        Ok(Self { group: group.parse()?, name: None, timeout: Duration::from_secs(60) })
    }

    /// Sets the name. The name of a living engine is refused. That of a dead engine becomes free when its lease ends,
    /// and joining waits for that.
    ///
    /// # Errors
    /// `name` is not a valid [`Name`].
    pub fn name(self, name: &str) -> Result<Self, NameError> {
        Ok(Self { name: Some(name.parse()?), ..self })
    }

    /// Sets the maximum time of joining. Rank 0 may start later, and an engine that had the name may have died less
    /// than a lease ago. The default is 60 s.
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
