//! Writing results to standard output.

use std::io::{self, Write};
use std::process::ExitCode;

use polyrail_report::exit;

/// As `eprintln!`, which panics where standard error is full or gone: that is no reason to end what is
/// under way.
macro_rules! tell {
    ($($part:tt)*) => {{
        use std::io::Write as _;
        // There is nobody left to be told.
        let _ = writeln!(std::io::stderr(), $($part)*);
    }};
}
pub(crate) use tell;

/// Prints a result and ends with `code`. A reader that has seen enough, like `head`, is no failure.
pub(crate) fn print(text: &str, code: u8) -> ExitCode {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => ExitCode::from(code),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::from(code),
        Err(error) => {
            tell!("polyrail: can't write to standard output: {error}");
            ExitCode::from(exit::ENVIRONMENT)
        }
    }
}

/// Says on standard error what is wrong and how to mend it.
pub(crate) fn refuse(error: &impl std::error::Error, help: Option<String>, code: u8) -> ExitCode {
    tell!("polyrail: {error}");
    if let Some(help) = help {
        tell!("help: {help}");
    }
    ExitCode::from(code)
}
