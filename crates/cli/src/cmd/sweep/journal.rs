//! What a sweep has measured so far, in a file. Its first line is the plan; each further line is a block, or a pair of
//! the best cell and the default.
//!
//! A search takes the same way through the same figures at the same times. So to go on, it begins anew, and a block of
//! the journal takes the place of measuring one, until there is none left. What was not whole when the run ended is
//! measured again.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use polyrail_experiment::Plan;
use polyrail_sys::files::{Opening, lock, open_to_write};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::args::Wanted;
use crate::cmd::study::{unread, unusable};
use crate::fault::Fault;
use crate::host;
use crate::stdout::tell;
use crate::unwritten::Unwritten;

const SCHEMA_VERSION: u32 = 1;

/// A cell that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) cell: usize,
    /// Seconds from the sweep's beginning to the measurement's, without breaks.
    pub(super) at_s: f64,
    /// The figure, or why there is none.
    pub(super) figure: Result<f64, String>,
}

#[derive(Serialize, Deserialize)]
struct Block {
    block: Vec<Entry>,
    ended_s: f64,
}

/// The clock and the memory of a sweep.
pub(super) struct Journal {
    file: Option<(PathBuf, File)>,
    /// What is still to be taken from the file.
    left: VecDeque<Entry>,
    /// Of the block under way.
    begun: Vec<Entry>,
    begin: Instant,
    /// Time of earlier runs.
    before_s: f64,
}

impl Journal {
    /// Makes the file, or reads it to go on with it.
    pub(super) fn open(wanted: &Wanted, plan: &Plan) -> Result<Self, Fault> {
        let mut journal = Self {
            file: None,
            left: VecDeque::new(),
            begun: Vec::new(),
            begin: Instant::now(),
            before_s: 0.0,
        };
        let Some(path) = &wanted.journal else { return Ok(journal) };
        let fault = |fault: String, help| unusable(path, &fault, help);
        let has_figures = fs::metadata(path).is_ok_and(|found| found.len() > 0);
        if has_figures && !first_of(path).is_some_and(|first| is_journal(&first)) {
            let help = "name another file with --journal";
            return Err(fault("is no journal of a sweep".to_owned(), help));
        }
        let file = open_to_write(path, Opening::ReadAppend, 0o600).map_err(Unwritten::at(path))?;
        lock(&file).map_err(|_| {
            fault(
                "is in use by another sweep".to_owned(),
                "wait for its end, or name another file with --journal",
            )
        })?;
        let plan = first_line(wanted, plan);
        if has_figures {
            journal.read(path, &file, &plan)?;
            let count = journal.left.len();
            if count > 0 {
                tell!("polyrail: goes on with {count} figures of {}", path.display());
            }
        }
        journal.file = Some((path.clone(), file));
        if !has_figures {
            journal.line(&plan)?;
        }
        journal.begin = Instant::now();
        Ok(journal)
    }

    fn read(&mut self, path: &Path, file: &File, plan: &Value) -> Result<(), Fault> {
        let fault = |fault: String, help| unusable(path, &fault, help);
        let mut text = String::new();
        let mut reader = file;
        reader.read_to_string(&mut text).map_err(unread(path))?;
        let whole = text.rfind('\n').map_or(0, |at| at + 1);
        let mut lines = text[..whole].lines().enumerate();
        let first = lines.next().and_then(|(_, line)| serde_json::from_str::<Value>(line).ok());
        let first = first.filter(is_journal);
        let Some(first) = first else {
            return Err(fault(
                "is no journal of a sweep".to_owned(),
                "name another file with --journal",
            ));
        };
        if let Some(difference) = difference(&first, plan) {
            let help =
                "give the options that it was begun with, or name another file with --journal";
            return Err(fault(format!("is of another sweep: {difference}"), help));
        }
        for (at, line) in lines {
            let block: Block = serde_json::from_str(line).map_err(|error| {
                let help = "take the lines from there out; they are measured again";
                fault(format!("has a line that can't be read: line {}: {error}", at + 1), help)
            })?;
            self.left.extend(block.block);
            self.before_s = block.ended_s;
        }
        // The run was killed while it wrote a line.
        Ok(file.set_len(whole as u64).map_err(Unwritten::at(path))?)
    }

    /// Seconds since the sweep began, without breaks. Until the journal ends, the time of its next entry: so whoever asks
    /// decides as in the run before.
    pub(super) fn now_s(&self) -> f64 {
        match self.left.front() {
            Some(next) => next.at_s,
            None => self.before_s + self.begin.elapsed().as_secs_f64(),
        }
    }

    /// What the journal has of this cell, which is to be measured now.
    pub(super) fn recall(&mut self, cell: usize) -> Option<Result<f64, String>> {
        if self.left.front()?.cell != cell {
            // Another order than then: what follows belongs to a search that this one is not.
            self.left.clear();
            return None;
        }
        self.left.pop_front().map(|entry| entry.figure)
    }

    /// Keeps a figure until its block is whole.
    pub(super) fn add(&mut self, entry: Entry) {
        self.begun.push(entry);
    }

    pub(super) fn end_block(&mut self) -> Result<(), Fault> {
        let block = std::mem::take(&mut self.begun);
        match block.is_empty() {
            true => Ok(()),
            false => self.line(&json!(Block { block, ended_s: self.now_s() })),
        }
    }

    fn line(&mut self, value: &Value) -> Result<(), Fault> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        let written = |file: &mut File| -> io::Result<()> {
            file.write_all(format!("{value}\n").as_bytes())?;
            file.sync_data()
        };
        Ok(written(file).map_err(Unwritten::at(path))?)
    }
}

/// What a run that goes on must share with the one before. More time may be given.
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

/// The first line of a file, if it is JSON.
fn first_of(path: &Path) -> Option<Value> {
    let mut line = String::new();
    BufReader::new(File::open(path).ok()?).take(LINE_MAX).read_line(&mut line).ok()?;
    serde_json::from_str(&line).ok()
}

/// More than the names of all cells take.
const LINE_MAX: u64 = 4 << 20;

fn is_journal(first: &Value) -> bool {
    first["sweep_journal"].is_u64()
}

/// The first thing that differs, for people.
fn difference(then: &Value, now: &Value) -> Option<String> {
    let now = now.as_object()?;
    let (name, now) = now.iter().find(|(name, value)| then[name.as_str()] != **value)?;
    let text = |value: &Value| value.as_str().map_or(value.to_string(), str::to_owned);
    let (then, now) = (text(&then[name.as_str()]), text(now));
    // Of long lists that begin alike the beginnings say nothing.
    let alike = then.bytes().zip(now.bytes()).take_while(|(then, now)| then == now).count();
    let from = then[..then.floor_char_boundary(alike)].rfind("; ").map_or(0, |at| at + 2);
    let shown = |text: &str| {
        let dots = if from > 0 { "… " } else { "" };
        format!("{dots}{}", crate::stdout::excerpt(&text[from..]))
    };
    Some(format!("{name} was `{}`, and is `{}` now", shown(&then), shown(&now)))
}
