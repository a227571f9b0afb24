//! Reads options of `bench` for commands that run it later, and runs nothing.

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

/// Checks these options of `bench`. Returns the settings that they give.
///
/// # Errors
/// The message that `bench` would end with, and its remedy in a line of its own.
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
