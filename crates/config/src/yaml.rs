//! The config file: a flat YAML mapping from settings to values.

use std::collections::HashMap;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span};

use crate::error::{ConfigError, excerpt};

/// The largest config file; every setting fits many times.
pub const FILE_LIMIT_BYTES: usize = 1 << 20;

/// A setting as the file has it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Item {
    pub(crate) name: String,
    pub(crate) value: String,
    /// Where the name stands.
    pub(crate) name_at: Place,
    /// Where the value stands.
    pub(crate) value_at: Place,
}

/// A place in the file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl From<&Marker> for Place {
    fn from(marker: &Marker) -> Self {
        Self { line: marker.line(), column: marker.col() + 1 }
    }
}

/// Reads a file's text into its items, in their order; the names are not looked at, except that
/// none comes twice.
///
/// The parser hands out one event at a time, and the first that is out of place ends the reading:
/// neither depth nor size of the text costs more than the text itself.
pub(crate) fn parse(text: &str, path: &str) -> Result<Vec<Item>, ConfigError> {
    if text.len() > FILE_LIMIT_BYTES {
        return Err(ConfigError::TooLarge { path: path.to_owned(), limit_bytes: FILE_LIMIT_BYTES });
    }
    let mut reader = Reader { events: Parser::new_from_str(text), path, lines: HashMap::new() };
    let mut items = Vec::new();
    match reader.skip_to_content()? {
        None => return Ok(items),
        Some((Event::MappingStart(0, None), _)) => {}
        Some((event, place)) => {
            let reason = format!("a list of `name: value` is expected, not {}", describe(&event));
            return Err(reader.syntax(place, reason));
        }
    }
    reader.mapping(&mut items, true)?;
    reader.expect_end()?;
    Ok(items)
}

/// The key that may hold all settings, so that a file says whose it is.
const WRAPPER: &str = "polyrail";

struct Reader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    path: &'a str,
    /// Where each name stands.
    lines: HashMap<String, usize>,
}

impl<'a> Reader<'a> {
    /// Reads `name: value` up to the end of the mapping whose start was just read.
    fn mapping(&mut self, items: &mut Vec<Item>, is_top: bool) -> Result<(), ConfigError> {
        loop {
            let (name, name_at) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(()),
                (event, place) => (self.scalar(event, place, "the name of a setting")?.0, place),
            };
            let (event, place) = self.next()?;
            if is_top && name == WRAPPER && matches!(event, Event::MappingStart(0, None)) {
                return self.wrapped(items, name_at);
            }
            let what = format!("the value of `{}`", excerpt(&name));
            let (value, is_plain) = self.scalar(event, place, &what)?;
            if is_plain && matches!(value.as_str(), "" | "~" | "null" | "Null" | "NULL") {
                let remedy =
                    "leave the line out to keep the default, or write \"\" for an empty text";
                return Err(self.syntax_with(place, format!("{what} is missing"), Some(remedy)));
            }
            if let Some(first_line) = self.lines.insert(name.clone(), name_at.line) {
                return Err(ConfigError::Duplicate {
                    first_line,
                    path: self.path.to_owned(),
                    line: name_at.line,
                    column: name_at.column,
                    name: excerpt(&name),
                });
            }
            items.push(Item { name, value, name_at, value_at: place });
        }
    }

    /// Reads the settings under `polyrail:`, which stands alone.
    fn wrapped(&mut self, items: &mut Vec<Item>, at: Place) -> Result<(), ConfigError> {
        if !items.is_empty() {
            return Err(self.syntax(at, "`polyrail:` stands beside settings".to_owned()));
        }
        self.mapping(items, false)?;
        match self.next()? {
            (Event::MappingEnd, _) => Ok(()),
            (_, place) => Err(self.syntax_with(
                place,
                "something stands beside `polyrail:`".to_owned(),
                Some("indent all settings below `polyrail:`"),
            )),
        }
    }

    /// The text of a scalar without anchor and tag, and whether it was written without quotes.
    fn scalar(
        &self,
        event: Event<'_>,
        place: Place,
        what: &str,
    ) -> Result<(String, bool), ConfigError> {
        match event {
            Event::Scalar(text, style, 0, None) => {
                Ok((text.into_owned(), style == ScalarStyle::Plain))
            }
            Event::SequenceStart(..) => Err(self.syntax_with(
                place,
                format!("{what} is a list"),
                Some("write a list as one text, like `rails: eth1,eth2`"),
            )),
            Event::MappingStart(..) => Err(self.syntax_with(
                place,
                format!("{what} is a mapping"),
                Some("write one `name: value` per line, all with the same indentation"),
            )),
            Event::Alias(..) | Event::Scalar(..) => Err(self.syntax_with(
                place,
                format!("{what} has an anchor, an alias or a tag"),
                Some("put quotes around a text that starts with &, * or !"),
            )),
            other => Err(self.syntax(place, format!("{what} is {}", describe(&other)))),
        }
    }

    /// The first event with content; `None` for a file of comments only.
    fn skip_to_content(&mut self) -> Result<Option<(Event<'a>, Place)>, ConfigError> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(None),
                (Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd, _) => {}
                // `---` and nothing behind it.
                (Event::Scalar(text, ScalarStyle::Plain, 0, None), _) if text.is_empty() => {}
                other => return Ok(Some(other)),
            }
        }
    }

    fn expect_end(&mut self) -> Result<(), ConfigError> {
        match self.skip_to_content()? {
            None => Ok(()),
            Some((_, place)) => Err(self.syntax(place, "a second document starts".to_owned())),
        }
    }

    fn next(&mut self) -> Result<(Event<'a>, Place), ConfigError> {
        match self.events.next() {
            Some(Ok((event, Span { start, .. }))) => Ok((event, Place::from(&start))),
            Some(Err(error)) => {
                let place = Place::from(error.marker());
                let remedy = error
                    .info()
                    .contains("unexpected character")
                    .then_some("put quotes around a text that starts with a special character");
                Err(self.syntax_with(place, format!("not YAML: {}", error.info()), remedy))
            }
            // The parser ends with StreamEnd; ending without it is the end, too.
            None => Ok((Event::StreamEnd, Place { line: 1, column: 1 })),
        }
    }

    fn syntax(&self, place: Place, reason: String) -> ConfigError {
        self.syntax_with(place, reason, None)
    }

    fn syntax_with(&self, place: Place, reason: String, remedy: Option<&str>) -> ConfigError {
        ConfigError::Syntax {
            path: self.path.to_owned(),
            line: place.line,
            column: place.column,
            reason,
            remedy: remedy.map(str::to_owned),
        }
    }
}

fn describe(event: &Event<'_>) -> &'static str {
    match event {
        Event::Scalar(..) => "a single text",
        Event::SequenceStart(..) => "a list of items",
        Event::Alias(_) => "an alias",
        Event::MappingStart(..) => "a mapping with an anchor or a tag",
        _ => "the end of the file",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(text: &str) -> Vec<(String, String)> {
        parse(text, "f").unwrap().into_iter().map(|item| (item.name, item.value)).collect()
    }

    fn fault(text: &str) -> String {
        parse(text, "f").unwrap_err().to_string()
    }

    #[test]
    fn a_flat_mapping_and_one_below_polyrail_read_alike() {
        let flat = "# ours\nrails: '^docker'\nlog_file: \"\"\ntx_cpus: 8-21,112-125 # node 0\n";
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
        assert_eq!(items[0].name_at, Place { line: 2, column: 3 });
        assert_eq!(items[0].value_at, Place { line: 2, column: 13 });
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
        assert!(fault("dump_file: %h").contains("(file f:1:12)"), "{}", fault("dump_file: %h"));
        assert!(fault("a: 'open").starts_with("not YAML: "));
    }

    #[test]
    fn a_setting_given_twice_is_refused_with_both_lines() {
        let expected = "setting `a` is given twice (file f:3:1); first in line 1";
        assert_eq!(fault("a: 1\nb: 2\na: 1\n"), expected);
    }

    #[test]
    fn a_huge_or_deep_file_is_refused_at_once() {
        let started = std::time::Instant::now();
        assert!(matches!(
            parse(&" ".repeat(FILE_LIMIT_BYTES + 1), "f"),
            Err(ConfigError::TooLarge { .. })
        ));
        let start = "a: ".to_owned();
        for piece in ["[", "{", "[a,", "- ", "? ", "{a: ", "a:\n ", "\"", "&a ", "!"] {
            let count = (FILE_LIMIT_BYTES - start.len()) / piece.len();
            for text in [piece.repeat(count), start.clone() + &piece.repeat(count)] {
                assert!(parse(&text, "f").is_err(), "{piece}");
            }
        }
        let names: String = (0..).map(|i| format!("n{i}: \n")).take(80_000).collect();
        assert!(parse(&names.replace(": ", ": v"), "f").is_ok());
        // Far above what it takes, far below what a quadratic reader would.
        assert!(started.elapsed().as_secs() < 30);
    }
}
