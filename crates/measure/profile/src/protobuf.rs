//! The wire format of Protocol Buffers, as far as the small schemas of Perfetto and Chakra need it.

use std::fmt;

/// A message being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a number, flag or enumeration.
    pub fn uint(&mut self, field: u32, value: u64) -> &mut Self {
        self.key(field, 0);
        self.varint(value);
        self
    }

    /// Appends a signed number of type `int32` or `int64`.
    pub fn int(&mut self, field: u32, value: i64) -> &mut Self {
        // The format uses two's complement.
        self.uint(field, value.cast_unsigned())
    }

    pub fn double(&mut self, field: u32, value: f64) -> &mut Self {
        self.fixed64(field, value.to_bits())
    }

    pub fn fixed64(&mut self, field: u32, value: u64) -> &mut Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn text(&mut self, field: u32, text: &str) -> &mut Self {
        self.bytes(field, text.as_bytes())
    }

    pub fn message(&mut self, field: u32, inner: &Self) -> &mut Self {
        self.bytes(field, &inner.0)
    }

    /// Writes the message after its length, as in streams of messages.
    pub fn write_delimited(&self, out: &mut Vec<u8>) {
        let mut length = Self::new();
        length.varint(self.0.len() as u64);
        out.extend(length.0);
        out.extend(&self.0);
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) -> &mut Self {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
        self
    }

    fn key(&mut self, field: u32, kind: u64) {
        self.varint(u64::from(field) << 3 | kind);
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// A field of a message being read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// A number, flag or enumeration.
    Varint(u64),
    /// Eight bytes, such as a `double`.
    Fixed64(u64),
    /// Text, bytes or a message.
    Bytes(&'a [u8]),
    Fixed32(u32),
}

/// Error for bytes that are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Offset of the error, from 0.
    pub at: usize,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} is not of a protobuf message", self.at)
    }
}

impl std::error::Error for Malformed {}

/// Returns the fields of a message, in the order of the bytes.
///
/// # Errors
/// If the bytes are not a valid message.
pub fn fields(bytes: &[u8]) -> Result<Vec<(u32, Value<'_>)>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    let mut fields = Vec::new();
    while reader.at < bytes.len() {
        let start = reader.at;
        let key = reader.varint()?;
        let value = match key & 7 {
            0 => Value::Varint(reader.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(reader.array()?)),
            2 => Value::Bytes(reader.delimited()?),
            5 => Value::Fixed32(u32::from_le_bytes(reader.array()?)),
            _ => return Err(Malformed { at: start }),
        };
        let field = u32::try_from(key >> 3).map_err(|_| Malformed { at: start })?;
        fields.push((field, value));
    }
    Ok(fields)
}

/// Returns the messages of a stream, in which each follows its length.
///
/// # Errors
/// If the stream ends within a message.
pub fn delimited(bytes: &[u8]) -> Result<Vec<&[u8]>, Malformed> {
    let mut reader = Reader { bytes, at: 0 };
    let mut messages = Vec::new();
    while reader.at < bytes.len() {
        messages.push(reader.delimited()?);
    }
    Ok(messages)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, Malformed> {
        let start = self.at;
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed { at: start })
    }

    fn delimited(&mut self) -> Result<&'a [u8], Malformed> {
        let start = self.at;
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed { at: start })?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or(Malformed { at: start })?;
        let inner = &self.bytes[self.at..end];
        self.at = end;
        Ok(inner)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let bytes = self.bytes.get(self.at..self.at + N).and_then(|bytes| bytes.try_into().ok());
        let bytes = bytes.ok_or(Malformed { at: self.at })?;
        self.at += N;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_specification() {
        // The two examples of the encoding guide: field 1 = 150, field 2 = "testing".
        let mut message = Message::new();
        message.uint(1, 150).text(2, "testing");
        let expected = [0x08, 0x96, 0x01, 0x12, 0x07, b't', b'e', b's', b't', b'i', b'n', b'g'];
        assert_eq!(message.as_bytes(), expected);
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut inner = Message::new();
        inner.int(3, -2).double(4, 0.5);
        let mut outer = Message::new();
        outer.message(1, &inner).uint(2, u64::MAX);
        let mut stream = Vec::new();
        outer.write_delimited(&mut stream);
        outer.write_delimited(&mut stream);
        let messages = delimited(&stream).unwrap();
        assert_eq!(messages.len(), 2);
        let found = fields(messages[1]).unwrap();
        let Value::Bytes(bytes) = found[0].1 else { panic!("{found:?}") };
        let negative = Value::Varint((-2_i64).cast_unsigned());
        let half = Value::Fixed64(0.5_f64.to_bits());
        assert_eq!(fields(bytes).unwrap(), [(3, negative), (4, half)]);
        assert_eq!(found[1], (2, Value::Varint(u64::MAX)));
    }

    proptest::proptest! {
        #[test]
        fn what_any_bytes_are_read_as_reads_the_same_when_it_is_written(bytes: Vec<u8>) {
            match fields(&bytes) {
                Ok(found) => {
                    let mut again = Message::new();
                    for (field, value) in &found {
                        match *value {
                            Value::Varint(value) => drop(again.uint(*field, value)),
                            Value::Fixed64(value) => drop(again.fixed64(*field, value)),
                            Value::Bytes(bytes) => drop(again.bytes(*field, bytes)),
                            Value::Fixed32(value) => {
                                again.key(*field, 5);
                                again.0.extend(value.to_le_bytes());
                            }
                        }
                    }
                    proptest::prop_assert_eq!(fields(again.as_bytes()), Ok(found));
                }
                Err(error) => proptest::prop_assert!(error.at <= bytes.len(), "{}", error),
            }
            if let Ok(messages) = delimited(&bytes) {
                let carried: usize = messages.iter().map(|message| message.len() + 1).sum();
                proptest::prop_assert!(carried <= bytes.len(), "{:?}", messages);
            }
        }
    }
}
