//! Config file: a flat YAML mapping from settings to values.

use polyrail_yaml::{Entry, Fault, FaultKind, Node, Position, Value, excerpt};

use crate::error::ConfigError;

/// Maximum size of a config file; every setting fits many times.
pub const FILE_LIMIT_BYTES: usize = 1 << 20;

/// A setting in the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) value: String,
    /// Position of the name.
    pub(crate) name_at: Position,
    /// Position of the value.
    pub(crate) value_at: Position,
}

/// Reads a file's text into its items, in their order. The names are not checked, except that none occurs twice.
pub(crate) fn parse(text: &str, path: &str) -> Result<Vec<Item>, ConfigError> {
    if text.len() > FILE_LIMIT_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_owned(), limit_bytes: FILE_LIMIT_BYTES });
    }
    let file = File { path };
    match polyrail_yaml::parse(text).map_err(|fault| file.refusal(fault))? {
        None => Ok(Vec::new()),
        Some(Node { value: Value::Map(entries), .. }) => file.settings(entries),
        Some(node) => {
            let found = match node.value {
                Value::Text { .. } => "a single text",
                _ => "a list of items",
            };
            let reason = format!("a list of `name: value` is expected, not {found}");
            Err(file.syntax(node.at, reason, None))
        }
    }
}

/// Key that may hold all settings, so that a file shows which program it belongs to.
const WRAPPER: &str = "polyrail";

struct File<'a> {
    path: &'a str,
}

impl File<'_> {
    /// Returns all settings, which may be below [`WRAPPER`] if that is the only key.
    fn settings(&self, entries: Vec<Entry>) -> Result<Vec<Item>, ConfigError> {
        let is_wrapper =
            |entry: &Entry| entry.name == WRAPPER && matches!(entry.node.value, Value::Map(_));
        match entries.iter().position(is_wrapper) {
            None => entries.into_iter().map(|entry| self.item(entry)).collect(),
            Some(0) => {
                let mut entries = entries.into_iter();
                let inner = match entries.next().map(|entry| entry.node.value) {
                    Some(Value::Map(inner)) => inner,
                    _ => Vec::new(),
                };
                let items = inner.into_iter().map(|entry| self.item(entry)).collect();
                match entries.next() {
                    None => items,
                    Some(other) => Err(self.syntax(
                        other.at,
                        "something stands beside `polyrail:`".to_owned(),
                        Some("indent all settings below `polyrail:`"),
                    )),
                }
            }
            Some(at) => Err(self.syntax(
                entries[at].at,
                "`polyrail:` stands beside settings".to_owned(),
                None,
            )),
        }
    }

    /// Reads one setting, whose value is one text.
    fn item(&self, entry: Entry) -> Result<Item, ConfigError> {
        let what = format!("the value of `{}`", excerpt(&entry.name));
        let at = entry.node.at;
        let (value, is_plain) = match entry.node.value {
            Value::Text { text, is_plain } => (text, is_plain),
            Value::List(_) => return Err(self.not_a_text(at, &what, "list")),
            Value::Map(_) => return Err(self.not_a_text(at, &what, "mapping")),
        };
        if is_plain && matches!(value.as_str(), "" | "~" | "null" | "Null" | "NULL") {
            let remedy = "leave the line out to keep the default, or write \"\" for an empty text";
            return Err(self.syntax(at, format!("{what} is missing"), Some(remedy)));
        }
        Ok(Item { name: entry.name, value, name_at: entry.at, value_at: at })
    }

    fn not_a_text(&self, at: Position, what: &str, found: &str) -> ConfigError {
        let remedy = match found {
            "list" => "write a list as one text, like `rails: eth1,eth2`",
            _ => "write one `name: value` per line, all with the same indentation",
        };
        self.syntax(at, format!("{what} is a {found}"), Some(remedy))
    }

    /// Rewords the errors of any YAML file for this one.
    fn refusal(&self, fault: Fault) -> ConfigError {
        let Fault { at, path, kind } = fault;
        let what = match path.strip_prefix("polyrail.").unwrap_or(&path) {
            "" => "the file".to_owned(),
            name => format!("the value of `{}`", excerpt(name)),
        };
        match kind {
            FaultKind::Twice { name, first_line } => ConfigError::Duplicate {
                first_line,
                path: self.path.to_owned(),
                line: at.line,
                column: at.column,
                name: excerpt(&name),
            },
            FaultKind::Syntax(info) => {
                let remedy = info
                    .contains("unexpected character")
                    .then_some("put quotes around a text that starts with a special character");
                self.syntax(at, format!("not YAML: {info}"), remedy)
            }
            FaultKind::Marked => {
                let remedy = "put quotes around a text that starts with &, * or !";
                self.syntax(at, format!("{what} {kind}"), Some(remedy))
            }
            FaultKind::NoName(found) => self.not_a_text(at, "the name of a setting", found),
            FaultKind::SecondDocument => {
                self.syntax(at, "a second document starts".to_owned(), None)
            }
            FaultKind::TooDeep | FaultKind::Other(_) => {
                self.syntax(at, format!("{what} {kind}"), None)
            }
        }
    }

    fn syntax(&self, at: Position, reason: String, remedy: Option<&str>) -> ConfigError {
        ConfigError::Syntax {
            path: self.path.to_owned(),
            line: at.line,
            column: at.column,
            reason,
            remedy: remedy.map(str::to_owned),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text, "f").unwrap().into_iter().map(|item| (item.name, item.value)).collect()
    }

    /// Returns the error without the allowed values, which are always the same.
    fn fault(text: &str) -> String {
        let text = parse(text, "f").unwrap_err().to_string();
        text.strip_suffix("; allowed: one `name: value` for each setting")
            .unwrap_or(&text)
            .to_owned()
    }

    #[test]
    fn a_flat_mapping_and_one_below_polyrail_read_alike() {
        let flat = "# ours\nrails: '^docker'\nlog_file: \"\"\ntx_bindings: 8-21,112-125 # node 0\n";
        let wrapped: String = "polyrail:\n".to_owned()
            + &flat.lines().map(|l| format!("  {l}\n")).collect::<String>();
        assert_eq!(pairs(flat).len(), 3);
        assert_eq!(pairs(flat)[0], ("rails".to_owned(), "^docker".to_owned()));
        assert_eq!(pairs(flat)[2].1, "8-21,112-125");
        assert_eq!(pairs(&wrapped), pairs(flat));
        assert_eq!(pairs("{rails: eth1, sockets: 2}").len(), 2);
        assert_eq!(pairs("\u{feff}sockets: 2\r\nrails: eth1\r\n").len(), 2);
    }

    #[test]
    fn places_count_from_one() {
        let items = parse("polyrail:\n  sockets:  2\n", "f").unwrap();
        assert_eq!(items[0].name_at, Position { line: 2, column: 3 });
        assert_eq!(items[0].value_at, Position { line: 2, column: 13 });
    }

    #[test]
    fn an_empty_file_holds_nothing() {
        for text in ["", "\n\n", "# only a comment\n", "---\n", "---\n...\n"] {
            assert_eq!(pairs(text), [], "{text:?}");
        }
        assert_eq!(pairs("polyrail: {}"), []);
    }

    #[test]
    fn what_is_not_flat_is_refused_with_its_place() {
        for (text, expected) in [
            ("rails: [eth1, eth2]", "the value of `rails` is a list (file f:1:8)"),
            ("rails:\n  - eth1\n", "the value of `rails` is a list (file f:2:3)"),
            ("rails:\n  eth1: 3\n", "the value of `rails` is a mapping (file f:2:3)"),
            (
                "polyrail:\n  polyrail:\n    sockets: 1\n",
                "the value of `polyrail` is a mapping (file f:3:5)",
            ),
            (
                "polyrail:\n  sockets: 1\nrails: eth1\n",
                "something stands beside `polyrail:` (file f:3:1)",
            ),
            (
                "rails: eth1\npolyrail:\n  sockets: 1\n",
                "`polyrail:` stands beside settings (file f:2:1)",
            ),
            ("[1]: 2", "the name of a setting is a list (file f:1:1)"),
            ("- sockets", "a list of `name: value` is expected, not a list of items (file f:1:1)"),
            ("sockets", "a list of `name: value` is expected, not a single text (file f:1:1)"),
            ("sockets: 1\n---\nsockets: 2\n", "a second document starts (file f:3:1)"),
            ("sockets:\n", "the value of `sockets` is missing (file f:1:8)"),
            ("sockets: ~\n", "the value of `sockets` is missing (file f:1:10)"),
            ("a: &x 1\nb: *x\n", "the value of `a` has an anchor, an alias or a tag (file f:1:4)"),
            ("a: !!int 1\n", "the value of `a` has an anchor, an alias or a tag (file f:1:4)"),
        ] {
            assert_eq!(fault(text), expected, "{text:?}");
        }
        assert!(fault("trace_file: %h").contains("(file f:1:13)"), "{}", fault("trace_file: %h"));
        assert!(fault("a: 'open").starts_with("not YAML: "));
    }

    #[test]
    fn a_setting_given_twice_is_refused_with_both_lines() {
        let expected = "setting `a` is given twice (file f:3:1), first in line 1; allowed: once";
        assert_eq!(fault("a: 1\nb: 2\na: 1\n"), expected);
    }

    #[test]
    fn a_huge_file_is_refused_before_it_is_read() {
        let refused = parse(&" ".repeat(FILE_LIMIT_BYTES + 1), "f");
        assert!(matches!(refused, Err(ConfigError::TooLarge { .. })));
    }
}
