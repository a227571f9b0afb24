//! Everything that the command writes for people: results on standard output, the rest on standard
//! error.

use std::io::{self, Write};
use std::process::ExitCode;

use polyrail_report::exit;

/// Writes a line to standard error, made [`harmless`]. `eprintln!` would panic where standard error is
/// full or closed, and that must not end a run.
macro_rules! tell {
    ($($part:tt)*) => {
        $crate::stdout::tell_line(&format!($($part)*))
    };
}
pub(crate) use tell;

/// Use [`tell`].
pub(crate) fn tell_line(line: &str) {
    // Nobody reads standard error, so nobody can learn that writing failed.
    let _ = writeln!(io::stderr(), "{}", harmless(line));
}

/// Escapes what would steer the terminal: control characters except newline and tab, and the
/// characters that reverse the direction of writing.
///
/// Names and values come from files, devices and peers, and any of them may hold such characters. The
/// form is that of JSON (`\u001b`), so the result stays valid where the text is JSON.
pub(crate) fn harmless(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for one in text.chars() {
        let steers = match one {
            '\n' | '\t' => false,
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
            _ => one.is_control(),
        };
        match steers {
            true => shown.push_str(&format!("\\u{:04x}", u32::from(one))),
            false => shown.push(one),
        }
    }
    shown
}

/// Writes a result to standard output, made [`harmless`], and ends with `code`.
pub(crate) fn print(text: &str, code: u8) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(harmless(text).as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::from(code),
        // A reader that closes the pipe early, like `head`, has what it wants.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(code),
        Err(error) => {
            tell!("polyrail: can't write to standard output: {error}");
            ExitCode::from(exit::ENVIRONMENT)
        }
    }
}

/// Writes a message and its remedy to standard error.
pub(crate) fn complain(message: &str, help: Option<&str>) {
    tell!("polyrail: {message}");
    if let Some(help) = help {
        tell!("help: {help}");
    }
}

/// As [`complain`], for an error; ends with `code`.
pub(crate) fn refuse(error: &impl std::error::Error, help: Option<String>, code: u8) -> ExitCode {
    complain(&error.to_string(), help.as_deref());
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_escaped_and_the_rest_stays() {
        assert_eq!(harmless("Wörter × 2\n\tend"), "Wörter × 2\n\tend");
        assert_eq!(harmless("\u{1b}]0;x\u{7}\r\u{9b}2J"), "\\u001b]0;x\\u0007\\u000d\\u009b2J");
        assert_eq!(harmless("a\u{202e}b"), "a\\u202eb");
        let json = harmless(&serde_json::json!("\u{1b}\u{9b}\u{202e}").to_string());
        let back: String = serde_json::from_str(&json).unwrap();
        assert_eq!(back, "\u{1b}\u{9b}\u{202e}");
    }
}
