//! Parser of `bench` options for commands that run `bench` later. It runs nothing.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

use super::args::Args;
use crate::usage;

/// A command line with nothing but `bench`.
#[derive(Parser)]
#[command(name = "polyrail")]
struct Line {
    #[command(subcommand)]
    command: Only,
}

#[derive(Subcommand)]
enum Only {
    Bench(Box<Args>),
}

/// Checks these options of `bench`. Returns the names of the settings that they set.
///
/// # Errors
/// The message that `bench` would print, with its help on a separate line.
pub(crate) fn check_options<'a>(
    words: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<&'static str>, String> {
    let words: Vec<OsString> = std::iter::once("bench").chain(words).map(OsString::from).collect();
    match usage::read::<Line>(&words) {
        Ok(Line { command: Only::Bench(args) }) => {
            args.given().map_err(|fault| match &fault.help {
                Some(help) => format!("{fault}\nhelp: {help}"),
                None => fault.message,
            })
        }
        Err(refused) => Err(refused.message),
    }
}
