//! Reading and writing fields of variable-length structures. Little-endian; lists and texts carry
//! their length; every length is checked against a limit before anything is allocated.

use thiserror::Error;

use crate::id::RegionKey;

/// Bytes that can't be decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The bytes end inside a field.
    #[error("{what} ends inside field {field}")]
    Truncated {
        /// Name of the structure.
        what: &'static str,
        /// The field.
        field: &'static str,
    },
    /// A field has a value that is not allowed.
    #[error("field {field} of {what} is {got}, allowed is {allowed}")]
    Field {
        /// Name of the structure.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// The value.
        got: u64,
        /// The allowed values.
        allowed: &'static str,
    },
    /// A text is not UTF-8, or has characters that steer a terminal.
    #[error("field {field} of {what} is not readable text")]
    Text {
        /// Name of the structure.
        what: &'static str,
        /// The field.
        field: &'static str,
    },
    /// Bytes are left over.
    #[error("{what} is followed by {bytes} unexpected bytes")]
    Trailing {
        /// Name of the structure.
        what: &'static str,
        /// Number of bytes left over.
        bytes: usize,
    },
}

pub(crate) struct Reader<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    pub(crate) fn bytes<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let Some((head, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(DecodeError::Truncated { what: self.what, field });
        };
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.bytes(field)?))
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.bytes(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.bytes(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.bytes(field)?))
    }

    pub(crate) fn u128(&mut self, field: &'static str) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.bytes(field)?))
    }

    /// A count of things that follow, at most `max`.
    pub(crate) fn count(
        &mut self,
        field: &'static str,
        max: usize,
        allowed: &'static str,
    ) -> Result<usize, DecodeError> {
        let got = self.u16(field)?;
        if usize::from(got) > max {
            return Err(self.field(field, got.into(), allowed));
        }
        Ok(got.into())
    }

    pub(crate) fn slice(
        &mut self,
        field: &'static str,
        len: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let Some((head, rest)) = self.rest.split_at_checked(len) else {
            return Err(DecodeError::Truncated { what: self.what, field });
        };
        self.rest = rest;
        Ok(head)
    }

    pub(crate) fn text(&mut self, field: &'static str, max: usize) -> Result<String, DecodeError> {
        let len = self.count(field, max, "a shorter text")?;
        match std::str::from_utf8(self.slice(field, len)?) {
            Ok(text) if !text.contains(polyrail_text::steers) => Ok(text.to_owned()),
            _ => Err(DecodeError::Text { what: self.what, field }),
        }
    }

    pub(crate) fn field(
        &self,
        field: &'static str,
        got: u64,
        allowed: &'static str,
    ) -> DecodeError {
        DecodeError::Field { what: self.what, field, got, allowed }
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            bytes => Err(DecodeError::Trailing { what: self.what, bytes }),
        }
    }
}

impl RegionKey {
    pub(crate) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (slot, generation) = (from.u32("slot")?, from.u32("generation")?);
        Ok(Self { slot, generation, nonce: from.u64("nonce")? })
    }
}

/// Appends a text of at most `max` bytes; cuts a longer one at a character's boundary. Characters
/// that steer a terminal, which no reader takes, become spaces: an error that holds a line break still arrives.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str, max: usize) {
    let text = text.replace(polyrail_text::steers, " ");
    let mut end = text.len().min(max).min(usize::from(u16::MAX));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // The line above keeps it at or below u16::MAX.
    out.extend_from_slice(&(end as u16).to_le_bytes());
    out.extend_from_slice(&text.as_bytes()[..end]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_is_too_long_ends_before_the_character_that_does_not_fit() {
        for (max, wanted) in
            [(0, ""), (1, "a"), (2, "a"), (3, "aä"), (4, "aä"), (5, "aä"), (6, "aä€"), (9, "aä€")]
        {
            let mut out = Vec::new();
            put_text(&mut out, "aä€", max);
            assert_eq!(usize::from(u16::from_le_bytes([out[0], out[1]])), wanted.len(), "{max}");
            assert_eq!(&out[2..], wanted.as_bytes(), "{max}");
        }
        let mut out = Vec::new();
        put_text(&mut out, &"a".repeat(70_000), 80_000);
        assert_eq!((out.len(), &out[..2]), (2 + 65_535, &[0xff, 0xff][..]));
    }
}
