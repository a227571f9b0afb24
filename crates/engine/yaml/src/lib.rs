//! A small part of YAML, with the position of each value: mappings, lists and text.
//!
//! [`parse`] reads one document. It refuses anchors, aliases and tags, and values nested deeper than
//! people write. The caller knows what the values mean, and reports a wrong one with [`Fault::new`].
#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::collections::HashMap;
use std::fmt;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, StrInput};

pub use polyrail_text::{
    cell, debug_as_text, harmless, json_in_markup, markdown_line, markup, shortened, steers,
};

/// A value and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The value itself.
    pub value: Value,
    /// Position of its first character.
    pub at: Position,
}

/// Kinds of values in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text, which may be meant as a number.
    Text {
        /// Without quotes.
        text: String,
        /// Set if it was written without quotes.
        is_plain: bool,
    },
    /// A list.
    List(Vec<Node>),
    /// A mapping, in the file's order; no name comes twice.
    Map(Vec<Entry>),
}

/// A name in a mapping, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Without quotes.
    pub name: String,
    /// Position of the name.
    pub at: Position,
    /// Value of the name.
    pub node: Node,
}

/// A place in a file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// The line.
    pub line: usize,
    /// The character in the line.
    pub column: usize,
}

/// A fault of a file, and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Position of the fault.
    pub at: Position,
    /// The value that is wrong, such as `endpoints[2].rank`; empty for the file as a whole.
    pub path: String,
    /// The fault itself: a phrase that follows the path.
    pub kind: FaultKind,
}

/// Kinds of faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultKind {
    /// The text is not YAML.
    #[error("is not YAML: {0}")]
    Syntax(String),
    /// Mappings and lists nested too deep.
    #[error("is nested too deeply")]
    TooDeep,
    /// Anchors, aliases and tags: few people know them, and they let a small file become a large one.
    #[error("has an anchor, an alias or a tag")]
    Marked,
    /// A list, such as `list`, where the name of something is expected.
    #[error("has a {0} where a name must be")]
    NoName(&'static str),
    /// A name that the mapping has already.
    #[error("is there twice")]
    Twice {
        /// The name.
        name: String,
        /// The line of the first.
        first_line: usize,
    },
    /// More than one document.
    #[error("has a second document")]
    SecondDocument,
    /// A fault that the caller found.
    #[error("{0}")]
    Other(String),
}

/// Maximum depth of nested values.
pub const DEPTH_MAX: usize = 32;

/// The longest excerpt of a text in a message.
const EXCERPT_CHARS: usize = 80;

/// Reads one document; `None` if it has only comments. The caller limits the size of the
/// text.
///
/// # Errors
/// The first [`Fault`].
pub fn parse(text: &str) -> Result<Option<Node>, Fault> {
    let mut reader = Reader { events: Parser::new_from_str(text), path: String::new() };
    let Some((event, at)) = reader.content()? else { return Ok(None) };
    let node = reader.node(event, at, 0)?;
    match reader.content()? {
        None => Ok(Some(node)),
        Some((_, at)) => Err(reader.fault(at, FaultKind::SecondDocument)),
    }
}

/// Shortens and escapes a text from outside for a message.
pub fn excerpt(text: &str) -> String {
    shortened(text, EXCERPT_CHARS)
}

impl Node {
    /// Returns the text of this node.
    ///
    /// # Errors
    /// `what` must be one value.
    pub fn text(&self, what: &str) -> Result<&str, Fault> {
        match &self.value {
            Value::Text { text, .. } => Ok(text),
            _ => Err(Fault::new(self.at, format!("{what} must be one value"))),
        }
    }

    /// Returns the entries of this node's mapping.
    ///
    /// # Errors
    /// `what` must be a mapping.
    pub fn map(&self, what: &str) -> Result<&[Entry], Fault> {
        match &self.value {
            Value::Map(entries) => Ok(entries),
            _ => Err(Fault::new(
                self.at,
                format!("{what} has no names with values; allowed: `name: value` lines"),
            )),
        }
    }

    /// Returns the items of this node's list.
    ///
    /// # Errors
    /// `what` must be a list.
    pub fn list(&self, what: &str) -> Result<&[Self], Fault> {
        match &self.value {
            Value::List(items) => Ok(items),
            _ => Err(Fault::new(self.at, format!("{what} must be a list"))),
        }
    }
}

impl Position {
    /// The beginning of a file.
    pub const START: Self = Self { line: 1, column: 1 };
}

impl From<&Marker> for Position {
    fn from(marker: &Marker) -> Self {
        Self { line: marker.line(), column: marker.col() + 1 }
    }
}

impl Fault {
    /// A fault that the caller found at this place.
    pub fn new(at: Position, fault: impl Into<String>) -> Self {
        Self { at, path: String::new(), kind: FaultKind::Other(fault.into()) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "`{}` ", excerpt(&self.path))?;
        }
        self.kind.fmt(f)
    }
}

impl std::error::Error for Fault {}

/// The parser hands out one event at a time, and the first wrong one ends the reading. So neither the
/// depth nor the size of the text costs more than the text itself.
struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    /// Path of the value that is being read, as [`Fault::path`].
    path: String,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Position), Fault> {
        match self.events.next() {
            Some(Ok((Event::Nothing, _))) => self.next(),
            Some(Ok((event, span))) => Ok((event, Position::from(&span.start))),
            Some(Err(error)) => {
                let kind = FaultKind::Syntax(error.info().to_owned());
                Err(self.fault(error.marker().into(), kind))
            }
            // The parser ends with StreamEnd; ending without it is the end, too.
            None => Ok((Event::StreamEnd, Position::START)),
        }
    }

    /// The first event with content; `None` at the end of the file.
    fn content(&mut self) -> Result<Option<(Event<'a>, Position)>, Fault> {
        loop {
            match self.next()? {
                (Event::StreamEnd, _) => return Ok(None),
                (Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd, _) => {}
                // `---` and nothing after it.
                (Event::Scalar(text, ScalarStyle::Plain, 0, None), _) if text.is_empty() => {}
                other => return Ok(Some(other)),
            }
        }
    }

    fn node(&mut self, event: Event<'a>, at: Position, depth: usize) -> Result<Node, Fault> {
        if depth > DEPTH_MAX {
            return Err(self.fault(at, FaultKind::TooDeep));
        }
        let value = match event {
            Event::Scalar(text, style, 0, None) => {
                let is_plain = style == ScalarStyle::Plain;
                Value::Text { text: text.into_owned(), is_plain }
            }
            Event::SequenceStart(0, None) => self.list(depth)?,
            Event::MappingStart(0, None) => self.map(depth)?,
            Event::StreamEnd => {
                return Err(self.fault(at, FaultKind::Syntax("it ends too early".to_owned())));
            }
            _ => return Err(self.fault(at, FaultKind::Marked)),
        };
        Ok(Node { value, at })
    }

    fn list(&mut self, depth: usize) -> Result<Value, Fault> {
        let outer = self.path.len();
        let mut items = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                return Ok(Value::List(items));
            }
            self.path.push_str(&format!("[{}]", items.len()));
            items.push(self.node(event, at, depth + 1)?);
            self.path.truncate(outer);
        }
    }

    fn map(&mut self, depth: usize) -> Result<Value, Fault> {
        let outer = self.path.len();
        let mut entries = Vec::new();
        let mut lines: HashMap<String, usize> = HashMap::new();
        loop {
            let (event, at) = self.next()?;
            let name = match event {
                Event::MappingEnd => return Ok(Value::Map(entries)),
                Event::Scalar(text, _, 0, None) => text.into_owned(),
                Event::SequenceStart(0, None) => {
                    return Err(self.fault(at, FaultKind::NoName("list")));
                }
                Event::MappingStart(0, None) => {
                    return Err(self.fault(at, FaultKind::NoName("mapping")));
                }
                _ => return Err(self.fault(at, FaultKind::Marked)),
            };
            if outer > 0 {
                self.path.push('.');
            }
            self.path.push_str(&name);
            if let Some(first_line) = lines.insert(name.clone(), at.line) {
                return Err(self.fault(at, FaultKind::Twice { name, first_line }));
            }
            let (event, value_at) = self.next()?;
            let node = self.node(event, value_at, depth + 1)?;
            self.path.truncate(outer);
            entries.push(Entry { name, at, node });
        }
    }

    fn fault(&self, at: Position, kind: FaultKind) -> Fault {
        Fault { at, path: self.path.clone(), kind }
    }
}

/// Makes the program in the README a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
