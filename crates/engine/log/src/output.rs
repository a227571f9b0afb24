//! Destinations of records.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Once;

use parking_lot::Mutex;
use polyrail_config::harmless;
use polyrail_sys::files::{self, Opening};
use polyrail_sys::without_write_signals;
use tracing_subscriber::fmt::MakeWriter;

/// Reason why a log can't be set up as configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The file does not exist and can't be created, or is not writable.
    #[error(
        "log_file = `{}` can't be opened for writing: {source}; allowed: a file, or a device such as /dev/null",
        shown(path)
    )]
    Open {
        /// File name with its placeholders filled in.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The name is taken by something other than a file.
    #[error(
        "log_file = `{}` is {what}; allowed: a file, or a device such as /dev/null",
        shown(path)
    )]
    NotAFile {
        /// File name with its placeholders filled in.
        path: PathBuf,
        what: &'static str,
    },
    /// The log of this process was started with other settings.
    #[error("{name} = `{value}` comes too late: the log of this process began with `{kept}`")]
    Taken { name: &'static str, value: String, kept: String },
    /// The program has its own `tracing` subscriber, which gets the records.
    #[error("log_file = `{file}` has no effect: this program already takes the records itself")]
    Foreign { file: String },
}

impl LogError {
    /// Returns the fix.
    pub fn help(&self) -> &'static str {
        match self {
            Self::Open { .. } | Self::NotAFile { .. } => {
                "name a file in a folder that exists and that you may write; \
                 %h is the host's name, %p the process number"
            }
            Self::Taken { .. } => "one process has one log: give the same settings everywhere",
            Self::Foreign { .. } => "leave out log_file, or the program's own subscriber",
        }
    }
}

/// Formats a name for an error, in one line.
fn shown(path: &Path) -> String {
    harmless(&path.display().to_string(), &[])
}

/// Writes a line, including its line end, to standard error.
pub type ToStderr = fn(&str);

/// If standard error fails, the failure can't be reported anywhere.
pub(crate) fn to_stderr(line: &str) {
    let _ = without_write_signals(|| io::stderr().write_all(line.as_bytes()));
}

/// A file or standard error. Each record becomes one line, whatever external text it contains.
#[derive(Debug)]
pub(crate) enum Output {
    Stderr(ToStderr),
    File { path: PathBuf, state: Mutex<State>, failed: Once },
}

#[derive(Debug)]
pub(crate) struct State {
    file: File,
    /// True if the last line is incomplete, because the disk was full.
    is_torn: bool,
}

impl Output {
    /// Opens a file for appending.
    pub(crate) fn append_to(path: PathBuf) -> Result<Self, LogError> {
        // Does not block on a pipe, and is safe in folders where others may create files.
        let opened = files::open_to_write(&path, Opening::Append, 0o666);
        let kind = match &opened {
            Ok(file) => file.metadata(),
            Err(_) => std::fs::metadata(&path),
        };
        let what = kind.ok().map(|kind| kind.file_type()).and_then(|kind| match kind {
            kind if kind.is_dir() => Some("a folder"),
            kind if kind.is_fifo() => Some("a pipe"),
            kind if kind.is_socket() => Some("a socket"),
            kind if kind.is_block_device() => Some("a disk"),
            _ => None,
        });
        if let Some(what) = what {
            return Err(LogError::NotAFile { path, what });
        }
        match opened {
            Ok(file) => {
                let state = Mutex::new(State { file, is_torn: false });
                Ok(Self::File { path, state, failed: Once::new() })
            }
            Err(source) => Err(LogError::Open { path, source }),
        }
    }

    fn write_line(&self, line: &str) {
        let mut line = harmless(line.trim_end_matches('\n'), &['\t']);
        line.push('\n');
        match self {
            Self::Stderr(write) => write(&line),
            Self::File { path, state, failed } => {
                if let Err(error) = without_write_signals(|| state.lock().append(&line)) {
                    failed.call_once(|| {
                        to_stderr(&format!("polyrail: log_file {}: {error}\n", shown(path)));
                    });
                }
            }
        }
    }
}

impl State {
    /// Writes the line, or as much of it as fits.
    fn append(&mut self, line: &str) -> io::Result<()> {
        // Text after an incomplete line would corrupt that line further.
        let whole = if self.is_torn { format!("\n{line}") } else { line.to_owned() };
        let mut rest = whole.as_bytes();
        while !rest.is_empty() {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    rest = &rest[written..];
                    self.is_torn = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Output {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> &'a Self {
        self
    }
}

impl Write for &Output {
    /// `tracing-subscriber` passes one whole record per call.
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        self.write_line(&String::from_utf8_lossy(record));
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn what_follows_a_torn_line_is_on_a_line_of_its_own() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::io::ioctl_fionbio(&writer, true).unwrap();
        let mut state = State { file: File::from(OwnedFd::from(writer)), is_torn: false };
        // A pipe takes a partial line only if the line is longer than a page.
        let line = "x".repeat(9999) + "\n";
        let refused = (0..100_000).find_map(|_| state.append(&line).err()).unwrap();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(state.is_torn);
        reader.read_exact(&mut [0; 20_000]).unwrap();
        state.append("after\n").unwrap();
        drop(state);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        let last: Vec<&str> = rest.lines().rev().take(2).collect();
        assert_eq!(last[0], "after");
        assert!((1..9999).contains(&last[1].len()), "{}", last[1].len());
    }

    const LOG_FILE: &str = "POLYRAIL_TEST_LOG_FILE";

    /// Body of the test below, run in a child process whose files may have no bytes.
    #[test]
    fn in_a_limited_process() {
        let limited = std::env::var_os(LOG_FILE);
        let folder = tempfile::tempdir().unwrap();
        let path = limited.clone().map_or_else(|| folder.path().join("log"), PathBuf::from);
        Output::append_to(path.clone()).unwrap().write_line("a line");
        let written = std::fs::metadata(path).unwrap().len();
        assert_eq!(written, if limited.is_some() { 0 } else { 7 });
    }

    #[test]
    fn a_log_beyond_the_limit_of_file_sizes_is_an_error_and_ends_no_process() {
        let folder = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("sh");
        let script =
            "ulimit -f 0; exec \"$0\" --nocapture --exact output::tests::in_a_limited_process";
        child.args(["-c", script]).arg(std::env::current_exe().unwrap());
        let ended = child.env(LOG_FILE, folder.path().join("log")).output().unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success(), "{} {text}", ended.status);
        assert!(text.contains("log_file") && text.contains("File too large"), "{text}");
    }
}
