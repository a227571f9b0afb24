//! Bounded reader for output of other processes. A process that never ends a line, or never stops, can't fill the
//! memory.

use std::io::{self, BufRead, BufReader, ErrorKind, Read};

/// Maximum number of bytes to keep of a line that another process writes: more than such a line needs.
pub(crate) const LINE_MAX: usize = 1 << 20;
/// Maximum number of queued lines of another process. At this number the process has to wait.
pub(crate) const QUEUED_MAX: usize = 16;

/// Iterator over lines, without their line breaks.
pub(crate) struct Lines<R> {
    pipe: BufReader<R>,
    most: usize,
}

impl<R: Read> Lines<R> {
    /// Keeps the first [`LINE_MAX`] bytes of each line.
    pub(crate) fn of(pipe: R) -> Self {
        Self::up_to(LINE_MAX, pipe)
    }

    /// Keeps the first `most` bytes of each line.
    pub(crate) fn up_to(most: usize, pipe: R) -> Self {
        Self { pipe: BufReader::new(pipe), most }
    }
}

impl<R: Read> Iterator for Lines<R> {
    type Item = io::Result<String>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut line, mut is_there) = (Vec::new(), false);
        loop {
            let bytes = match self.pipe.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Some(Err(error)),
            };
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            is_there |= !bytes.is_empty();
            line.extend_from_slice(&part[..part.len().min(self.most - line.len())]);
            let (is_over, read) = (bytes.is_empty(), part.len() + usize::from(end.is_some()));
            self.pipe.consume(read);
            if is_over || end.is_some() {
                return is_there.then(|| Ok(String::from_utf8_lossy(&line).into_owned()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(most: usize, pipe: impl Read) -> Vec<String> {
        Lines::up_to(most, pipe).map(Result::unwrap).collect()
    }

    #[test]
    fn a_line_is_cut_and_the_next_one_is_whole() {
        let text = b"short\n\nmuch too long\nlast".as_slice();
        assert_eq!(lines(5, text), ["short", "", "much ", "last"]);
        assert_eq!(lines(5, b"short\n".as_slice()), ["short"]);
        assert!(lines(5, b"".as_slice()).is_empty());
    }

    #[test]
    fn an_endless_line_takes_no_more_memory_than_it_may() {
        let endless = io::repeat(b'x').take(64 << 20).chain(b"\nnext\n".as_slice());
        let lines = lines(LINE_MAX, endless);
        assert_eq!((lines[0].len(), lines[1].as_str(), lines.len()), (LINE_MAX, "next", 2));
        assert!(lines[0].capacity() <= 2 * LINE_MAX, "{}", lines[0].capacity());
    }
}
