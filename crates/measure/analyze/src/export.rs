//! Inputs for simulators, from measured links.
//!
//! Simulators with two parameters per link get the line with the least relative error over all
//! sizes; the files state that error.

mod astra;
mod chakra;
mod simai;
mod vidur;

use polyrail_profile::PathKind;

use crate::analysis::Analysis;
use crate::error::AnalyzeError;
use crate::fit::Point;
use crate::links::{AlphaBeta, Link, alpha_beta};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Network files of ASTRA-sim's analytical backends.
    AstraSim,
    /// Execution traces, one per rank.
    Chakra,
    /// Topology and table of latencies.
    SimAi,
    /// Profile of `send_recv` that Vidur trains on.
    Vidur,
}

/// A file of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// File name, without a folder.
    pub name: String,
    /// Content of the file.
    pub bytes: Vec<u8>,
}

/// Creates the files for a simulator.
///
/// # Errors
/// If the profile has several paths, or a part that the simulator can't represent.
pub fn export(analysis: &Analysis, target: Target) -> Result<Vec<File>, AnalyzeError> {
    match target {
        Target::AstraSim => astra::export(analysis),
        Target::Chakra => chakra::export(analysis),
        Target::SimAi => simai::export(analysis),
        Target::Vidur => vidur::export(analysis),
    }
}

impl File {
    fn text(name: &str, text: String) -> Self {
        Self { name: name.to_owned(), bytes: text.into_bytes() }
    }
}

/// All links of the single path, merged into one.
struct Common<'a> {
    path: PathKind,
    links: Vec<&'a Link>,
    line: AlphaBeta,
    gb_per_s: f64,
}

/// Returns the data for a simulator with one kind of link, or why it does not fit.
fn common<'a>(analysis: &'a Analysis, target: &'static str) -> Result<Common<'a>, AnalyzeError> {
    let path = analysis.one_path("this export")?;
    let links: Vec<&Link> = analysis.links.iter().filter(|link| link.path == path).collect();
    let fault = |why: &str| AnalyzeError::Export { target, why: why.to_owned() };
    let points: Vec<Point> = analysis
        .configurations
        .iter()
        .filter(|one| one.load == polyrail_profile::Load::None)
        .map(|one| Point { size_bytes: one.size_bytes, time_ns: one.median_ns })
        .collect();
    let line = alpha_beta(&points);
    let line = line.ok_or_else(|| fault("it needs two sizes, and the profile has one"))?;
    let gb_per_s = line.gb_per_s.ok_or_else(|| {
        fault("times do not grow with size, so there is no rate; larger sizes are needed")
    })?;
    Ok(Common { path, links, line, gb_per_s })
}
