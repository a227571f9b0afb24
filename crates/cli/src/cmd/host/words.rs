//! Errors for arguments that are valid individually but not together.

use polyrail_report::exit;

use crate::fault::Fault;
use crate::stdout::excerpt;
use crate::values::Refusal;

/// Name in messages of the values after the first word.
const VALUE: &str = "[VALUE]...";

/// Error for a wrong value.
pub(super) fn refused(value: &str, refusal: &Refusal) -> Fault {
    let fault = Fault::new(exit::USAGE, format!("{VALUE} `{}`: {refusal}", excerpt(value)));
    match refusal.help() {
        Some(help) => fault.with_help(help),
        None => fault,
    }
}

/// Error for a value where none may follow.
pub(super) fn excess(value: &str, allowed: &str) -> Fault {
    refused(value, &Refusal::new("is one value too many", allowed))
}

/// Error for a missing value.
pub(super) fn missing(allowed: &str) -> Fault {
    Fault::new(exit::USAGE, format!("{VALUE}: is missing; allowed: {allowed}"))
}

/// Error for two arguments that exclude each other.
pub(super) fn conflict(one: &str, other: &str) -> Fault {
    let message = format!("{one}: cannot be used with {other}; allowed: one of them");
    Fault::new(exit::USAGE, message).with_help("leave one of them out")
}

/// Refuses an option that `what` does not read.
pub(super) fn refuse_others(what: &str, given: &[&str], read: &[&str]) -> Result<(), Fault> {
    let Some(other) = given.iter().find(|option| !read.contains(option)) else { return Ok(()) };
    let allowed = match read {
        [] => format!("`{what}` without it"),
        _ => read.join(", "),
    };
    let message = format!("{other}: cannot be used with `{what}`; allowed: {allowed}");
    Err(Fault::new(exit::USAGE, message).with_help(format!("leave {other} out")))
}

/// Returns the options that the user gave.
pub(super) fn given<'a>(options: &[(&'a str, bool)]) -> Vec<&'a str> {
    options.iter().filter(|(_, is_given)| *is_given).map(|(option, _)| *option).collect()
}
