//! Bytes in text messages.

/// Formats each byte as two hexadecimal digits.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses bytes of two hexadecimal digits each. Returns `None` for other text.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok()?;
        u8::from_str_radix(pair, 16).ok()
    };
    digits.len().is_multiple_of(2).then(|| digits.chunks(2).map(byte).collect())?
}
