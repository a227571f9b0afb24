//! Results of a sweep, in its journal. The journal's first line is the plan. Each further line is a block, or a pair of
//! the best cell and the default.
//!
//! A search with the same results at the same times takes the same way. So to go on, it starts from the beginning, and
//! takes results from the journal until none is left. An incomplete block is measured again.

use std::collections::VecDeque;
use std::time::Instant;

use polyrail_experiment::Plan;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::args::Wanted;
use crate::cmd::study::journal::{Journal, Wording};
use crate::fault::Fault;
use crate::host;
use crate::stdout::{excerpt, tell};

const SCHEMA_VERSION: u32 = 1;

/// A measured cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    cell: usize,
    /// Beginning of the measurement, in seconds since the sweep began, without breaks.
    at_s: f64,
    /// The result, or the message of the measurement's fault.
    figure: Result<f64, String>,
}

#[derive(Serialize, Deserialize)]
struct Block {
    block: Vec<Entry>,
    ended_s: f64,
}

/// The clock and the memory of a sweep.
pub(super) struct Replay {
    journal: Option<Journal<Block>>,
    /// Entries of the journal that the search has not reached.
    left: VecDeque<Entry>,
    /// Entries of the block under way.
    begun: Vec<Entry>,
    begin: Instant,
    /// Time of earlier runs.
    before_s: f64,
}

impl Replay {
    /// Creates the journal, or reads it to go on with it.
    pub(super) fn open(wanted: &Wanted, plan: &Plan) -> Result<Self, Fault> {
        let mut replay = Self {
            journal: None,
            left: VecDeque::new(),
            begun: Vec::new(),
            begin: Instant::now(),
            before_s: 0.0,
        };
        let Some(path) = &wanted.journal else { return Ok(replay) };
        let wording = Wording {
            place: path,
            noun: "file",
            run: "sweep",
            elsewhere: "name another file with --journal",
            repair: "take the lines from there out; they are measured again",
        };
        let first = first_line(wanted, plan);
        let (journal, blocks) =
            Journal::open(path, &wording, &first, &|found: &str| differs(found, &first))?;
        replay.journal = Some(journal);
        for Block { block, ended_s } in blocks {
            replay.left.extend(block);
            replay.before_s = ended_s;
        }
        let count = replay.left.len();
        if count > 0 {
            tell!("polyrail: goes on with {count} figures of {}", path.display());
        }
        replay.begin = Instant::now();
        Ok(replay)
    }

    /// Seconds since the sweep began, without breaks. Until the journal ends, the time of its next entry, so that a
    /// search decides as in the run before.
    pub(super) fn now_s(&self) -> f64 {
        match self.left.front() {
            Some(next) => next.at_s,
            None => self.before_s + self.begin.elapsed().as_secs_f64(),
        }
    }

    /// Returns the result of the next cell: that of the journal, or else of `measure`.
    pub(super) fn figure(
        &mut self,
        cell: usize,
        measure: impl FnOnce() -> Result<f64, Fault>,
    ) -> Result<f64, Fault> {
        match self.left.pop_front() {
            Some(next) if next.cell == cell => return next.figure.map_err(Fault::environment),
            // The order has changed: the rest of the journal belongs to another search.
            Some(_) => self.left.clear(),
            None => {}
        }
        let at_s = self.now_s();
        let figure = measure();
        if figure.as_ref().is_err_and(Fault::is_interrupted) {
            return figure;
        }
        let kept = figure.as_ref().map(|figure| *figure).map_err(|fault| fault.message.clone());
        self.begun.push(Entry { cell, at_s, figure: kept });
        figure
    }

    /// Adds the block that has ended.
    pub(super) fn end_block(&mut self) -> Result<(), Fault> {
        let (block, ended_s) = (std::mem::take(&mut self.begun), self.now_s());
        match &mut self.journal {
            Some(journal) if !block.is_empty() => journal.add(&Block { block, ended_s }),
            _ => Ok(()),
        }
    }
}

/// Properties that a resumed sweep must share with the one before. Its time may differ.
fn first_line(wanted: &Wanted, plan: &Plan) -> Value {
    let about = host::describe();
    json!({
        "sweep_journal": SCHEMA_VERSION,
        "command": wanted.name,
        "version": env!("CARGO_PKG_VERSION"),
        "host": about.hostname,
        "cpus": about.cpus,
        "bench": wanted.shown_bench().join(" "),
        "cells": (0..plan.cells.len()).map(|cell| plan.label(cell)).collect::<Vec<_>>().join("; "),
        "rounds": wanted.rounds,
        "with_budget": wanted.budget.is_some(),
    })
}

/// The reason why a sweep can't go on after a first line, with a fix.
fn differs(found: &str, now: &Value) -> Option<(String, &'static str)> {
    let then = serde_json::from_str::<Value>(found).ok();
    let Some(then) = then.filter(|first| first["sweep_journal"].is_u64()) else {
        return Some(("is no journal of a sweep".to_owned(), "name another file with --journal"));
    };
    let help = "give the options that it was begun with, or name another file with --journal";
    Some((format!("is of another sweep: {}", difference(&then, now)?), help))
}

/// The first difference, as text.
fn difference(then: &Value, now: &Value) -> Option<String> {
    let now = now.as_object()?;
    let (name, now) = now.iter().find(|(name, value)| then[name.as_str()] != **value)?;
    let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
    let (then, now) = (text(&then[name.as_str()]), text(now));
    // Skip the common beginning of long lists, which says nothing.
    let alike = then.bytes().zip(now.bytes()).take_while(|(then, now)| then == now).count();
    let from = then[..then.floor_char_boundary(alike)].rfind("; ").map_or(0, |at| at + 2);
    let shown = |text: &str| {
        let dots = if from > 0 { "… " } else { "" };
        format!("{dots}{}", excerpt(&text[from..]))
    };
    Some(format!("{name} was `{}`, and is `{}` now", shown(&then), shown(&now)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_cell_has_no_entry_and_one_that_failed_has() {
        let mut replay = Replay {
            journal: None,
            left: VecDeque::new(),
            begun: Vec::new(),
            begin: Instant::now(),
            before_s: 0.0,
        };
        replay.figure(1, || Err(Fault::environment("no luck"))).unwrap_err();
        replay.figure(2, || Err(Fault::interrupted())).unwrap_err();
        let kept: Vec<_> = replay.begun.iter().map(|one| (one.cell, &one.figure)).collect();
        assert_eq!(kept, [(1, &Err("no luck".to_owned()))]);
    }
}
