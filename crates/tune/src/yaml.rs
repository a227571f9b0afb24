//! A small part of YAML, with the place of each value: mappings, lists and plain text.

use saphyr_parser::{Event, Marker, Parser, StrInput};

use crate::error::TuneError;

/// A value and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) at: Place,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    List(Vec<Node>),
    /// Keys with their own places, in the file's order; none comes twice.
    Map(Vec<(String, Place, Node)>),
}

/// A place in the file, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: usize,
    pub(crate) column: usize,
}

/// No file that people write comes near.
pub(crate) const FILE_LIMIT_BYTES: usize = 1 << 20;
const DEPTH_LIMIT: usize = 8;

/// Reads one document. `file` is for errors.
pub(crate) fn parse(text: &str, file: &str) -> Result<Node, TuneError> {
    let start = Place { line: 1, column: 1 };
    if text.len() > FILE_LIMIT_BYTES {
        return Err(error(file, start, "is larger than 1 MiB"));
    }
    let mut reader = Reader { events: Parser::new_from_str(text), file };
    loop {
        let (event, at) = reader.next()?;
        match event {
            Event::StreamStart | Event::DocumentStart(_) => {}
            Event::StreamEnd => return Err(error(file, start, "is empty")),
            event => {
                let node = reader.node(event, at, 0)?;
                return reader.end().map(|()| node);
            }
        }
    }
}

pub(crate) fn error(file: &str, at: Place, fault: impl Into<String>) -> TuneError {
    let Place { line, column } = at;
    TuneError::Yaml { file: file.to_owned(), line, column, fault: fault.into() }
}

impl Node {
    pub(crate) fn text(&self, file: &str, what: &str) -> Result<&str, TuneError> {
        match &self.value {
            Value::Text(text) => Ok(text),
            _ => Err(error(file, self.at, format!("{what} must be one value"))),
        }
    }

    pub(crate) fn map(
        &self,
        file: &str,
        what: &str,
    ) -> Result<&[(String, Place, Self)], TuneError> {
        match &self.value {
            Value::Map(entries) => Ok(entries),
            _ => Err(error(file, self.at, format!("{what} must be `name: value` lines"))),
        }
    }

    pub(crate) fn list(&self, file: &str, what: &str) -> Result<&[Self], TuneError> {
        match &self.value {
            Value::List(entries) => Ok(entries),
            _ => Err(error(file, self.at, format!("{what} must be a list"))),
        }
    }
}

struct Reader<'a> {
    events: Parser<'a, StrInput<'a>>,
    file: &'a str,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Place), TuneError> {
        match self.events.next() {
            Some(Ok((Event::Nothing, _))) => self.next(),
            Some(Ok((event, span))) => Ok((event, place(&span.start))),
            Some(Err(fault)) => {
                Err(error(self.file, place(fault.marker()), fault.info().to_owned()))
            }
            None => Ok((Event::StreamEnd, Place { line: 1, column: 1 })),
        }
    }

    fn node(&mut self, event: Event<'a>, at: Place, depth: usize) -> Result<Node, TuneError> {
        if depth > DEPTH_LIMIT {
            return Err(error(self.file, at, "is nested too deeply"));
        }
        let value = match event {
            Event::Scalar(text, _, 0, None) => Value::Text(text.into_owned()),
            Event::SequenceStart(0, None) => {
                let mut list = Vec::new();
                loop {
                    let (event, at) = self.next()?;
                    if matches!(event, Event::SequenceEnd) {
                        break Value::List(list);
                    }
                    list.push(self.node(event, at, depth + 1)?);
                }
            }
            Event::MappingStart(0, None) => self.mapping(depth)?,
            _ => return Err(error(self.file, at, "has an anchor, an alias or a tag")),
        };
        Ok(Node { value, at })
    }

    fn mapping(&mut self, depth: usize) -> Result<Value, TuneError> {
        let mut map: Vec<(String, Place, Node)> = Vec::new();
        loop {
            let (event, at) = self.next()?;
            if matches!(event, Event::MappingEnd) {
                return Ok(Value::Map(map));
            }
            let key = self.node(event, at, depth + 1)?;
            let name = key.text(self.file, "a name")?.to_owned();
            if map.iter().any(|(known, ..)| *known == name) {
                return Err(error(self.file, at, format!("`{}` is there twice", short(&name))));
            }
            let (event, value_at) = self.next()?;
            let value = self.node(event, value_at, depth + 1)?;
            map.push((name, at, value));
        }
    }

    fn end(&mut self) -> Result<(), TuneError> {
        loop {
            match self.next()? {
                (Event::DocumentEnd, _) => {}
                (Event::StreamEnd, _) => return Ok(()),
                (_, at) => return Err(error(self.file, at, "has a second document")),
            }
        }
    }
}

/// Text that is safe to put into a message.
pub(crate) fn short(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_debug).collect()
}

fn place(marker: &Marker) -> Place {
    Place { line: marker.line(), column: marker.col() + 1 }
}
