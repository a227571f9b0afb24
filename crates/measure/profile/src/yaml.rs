//! `run.yml` and `metadata_rank_N.yml`: plain YAML, written from JSON values and read into them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;

use polyrail_yaml::{Fault, Node, Position, Value as Yaml};
use serde::Serialize;
use serde_json::Value;

use crate::document::fault_at;
use crate::error::ProfileError;

/// Writes a value that has a JSON form.
pub(crate) fn write(value: &impl Serialize) -> serde_json::Result<String> {
    let mut out = String::new();
    block(&serde_json::to_value(value)?, 0, &mut out);
    Ok(out)
}

/// Line of each field, by the path that errors name.
#[derive(Debug, Default)]
pub(crate) struct Lines(HashMap<String, usize>);

impl Lines {
    /// Returns the line number from 1; 0 if the file has no such field.
    pub(crate) fn of(&self, field: &str) -> u64 {
        let root = if field == "." { "" } else { field };
        self.0.get(root).copied().unwrap_or(0) as u64
    }
}

pub(crate) fn read(text: &str, path: &Path) -> Result<(Value, Lines), ProfileError> {
    let node = polyrail_yaml::parse(text)
        .and_then(|node| node.ok_or_else(|| Fault::new(Position::START, "the file is empty")))
        .map_err(|found| {
            let fault = format!("{}; allowed: YAML as `polyrail profile` writes it", found.kind);
            fault_at(path, found.at.line as u64, &found.path, fault)
        })?;
    let mut lines = Lines::default();
    let value = json(&node, String::new(), &mut lines.0);
    Ok((value, lines))
}

/// Converts the value to JSON.
fn json(node: &Node, path: String, lines: &mut HashMap<String, usize>) -> Value {
    let value = match &node.value {
        Yaml::Text { text, is_plain: true } => plain(text),
        Yaml::Text { text, .. } => Value::String(text.clone()),
        Yaml::List(items) => {
            let item = |(at, item)| json(item, format!("{path}[{at}]"), lines);
            Value::Array(items.iter().enumerate().map(item).collect())
        }
        Yaml::Map(entries) => {
            let dot = if path.is_empty() { "" } else { "." };
            let entry = |entry: &polyrail_yaml::Entry| {
                let name = entry.name.clone();
                let value = json(&entry.node, format!("{path}{dot}{name}"), lines);
                (name, value)
            };
            Value::Object(entries.iter().map(entry).collect())
        }
    };
    lines.insert(path, node.at.line);
    value
}

fn block(value: &Value, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                let _ = write!(out, "{indent}{}:", scalar(&Value::String(name.clone())));
                nested(value, depth, out);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for value in list {
                let _ = write!(out, "{indent}-");
                nested(value, depth, out);
            }
        }
        value => {
            let _ = writeln!(out, "{indent}{}", scalar(value));
        }
    }
}

/// Writes the value after `name:` or `-`.
fn nested(value: &Value, depth: usize, out: &mut String) {
    let is_block = match value {
        Value::Object(map) => !map.is_empty(),
        Value::Array(list) => !list.is_empty(),
        _ => false,
    };
    if is_block {
        out.push('\n');
        block(value, depth + 1, out);
    } else {
        let _ = writeln!(out, " {}", scalar(value));
    }
}

/// Writes a scalar. Text is unquoted only if every reader takes it for text. JSON's quotes mean the same in YAML.
fn scalar(value: &Value) -> String {
    let Value::String(text) = value else { return value.to_string() };
    let is_word = text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|one| one.is_ascii_alphanumeric() || one == '_' || one == '-')
        && !RESERVED.contains(&text.to_ascii_lowercase().as_str());
    if is_word { text.clone() } else { value.to_string() }
}

const RESERVED: [&str; 10] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n", "nan"];

/// Interprets unquoted text by YAML 1.2's core schema.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" => Value::Null,
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        _ if text.starts_with(|first: char| first.is_ascii_digit() || first == '-') => {
            serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
        }
        _ => Value::String(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::*;
    use crate::document::typed;

    fn parse<T: DeserializeOwned>(text: &str) -> Result<T, ProfileError> {
        let path = Path::new("run.yml");
        let (value, lines) = read(text, path)?;
        typed(value, &lines, path)
    }

    #[test]
    fn what_is_written_reads_back() {
        let value = json!({
            "name": "a b", "no": "no", "empty": {}, "none": null, "list": [1, -2.5, "x", [], [3]],
            "deep": {"er": [{"a": 1, "b": "1"}, {"c": true}]}, "odd: key": "line\nfeed \"q\" é #",
            "big": u64::MAX, "text": "", "dash": "- x", "0": "0x1f",
        });
        let text = write(&value).unwrap();
        assert_eq!(parse::<Value>(&text).unwrap(), value, "{text}");
    }

    #[test]
    fn people_may_write_comments_and_bare_words() {
        let value: Value = parse("# note\nname: node 1 # here\nranks: [0, 1]\n").unwrap();
        assert_eq!(value, json!({"name": "node 1", "ranks": [0, 1]}));
    }

    #[test]
    fn faults_name_the_line_and_the_field() {
        #[derive(Debug, serde::Deserialize)]
        #[expect(dead_code, reason = "only whether it reads is of interest")]
        struct Inner {
            rank: u32,
        }
        let fault =
            |text: &str| parse::<HashMap<String, Vec<Inner>>>(text).unwrap_err().to_string();
        let wrong = fault("a:\n  - rank: 1\n  - rank: x\n");
        assert!(
            wrong.starts_with("run.yml:3, field a[1].rank: `x`; allowed: a whole number, 0 to "),
            "{wrong}"
        );
        assert!(fault("a: 1\na: 2\n").contains("run.yml:2, field a: is there twice"));
        assert!(fault("a: &x 1\n").contains("anchor"));
        assert!(fault("").contains("empty"));
        assert!(fault("a: [1,\n").starts_with("run.yml:"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_value_or_an_error(text in "[-a:\\[\\]{}&* \n\"']{0,40}") {
            match parse::<Value>(&text) {
                Ok(value) => {
                    let again = parse::<Value>(&write(&value).unwrap());
                    proptest::prop_assert_eq!(again.unwrap(), value);
                }
                Err(error) => {
                    let error = error.to_string();
                    proptest::prop_assert!(error.starts_with("run.yml:"), "{}", error);
                }
            }
        }
    }
}
