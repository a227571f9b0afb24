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

/// Checks these options of `bench`.
///
/// # Errors
/// The message that `bench` would end with, and its remedy in a line of its own.
pub(crate) fn check_options<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<(), String> {
    let words: Vec<OsString> = std::iter::once("bench").chain(words).map(OsString::from).collect();
    match usage::read::<Line>(&words) {
        Ok(Line { command: Only::Bench(_) }) => Ok(()),
        Err(refused) => Err(refused.message),
    }
}
