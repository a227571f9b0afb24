//! The results folder. `cells.jsonl` begins with the experiment; each further line is a measured cell, or an end of the
//! run between two looks, or the place where it went on.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use polyrail_experiment::{Experiment, Measured, Plan, Report, SCHEMA_VERSION, whole_blocks};
use polyrail_sys::files::{
    Opening, lock, make_folders, open_to_write, remove_empty, remove_opened,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::cmd::study::{unread, unusable};
use crate::fault::Fault;
use crate::files::replace;
use crate::host;
use crate::unwritten::Unwritten;

const CELLS: &str = "cells.jsonl";

/// A line behind the first.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Cell(Measured),
    End {
        ended_after_blocks: usize,
    },
    /// A block that was not whole before is measured again behind this.
    Resumed {
        resumed_unix_ms: u64,
    },
}

/// An open folder; nobody else writes to it meanwhile.
pub(super) struct Folder {
    path: PathBuf,
    cells: File,
    /// What was measured before.
    pub(super) measured: Vec<Measured>,
    /// How often the run ended between two looks.
    pub(super) ends: usize,
}

impl Folder {
    /// Makes the folder, or with `resume` reads it.
    pub(super) fn open(
        path: &Path,
        experiment: &Experiment,
        plan: &Plan,
        resume: bool,
    ) -> Result<Self, Fault> {
        let fault = |fault: &str, help: &str| unusable(path, fault, help);
        let file = path.join(CELLS);
        let has_results = file.exists();
        if has_results && !resume {
            return Err(fault(
                "has results",
                "add --resume to go on with them, or name another folder with --out",
            ));
        }
        if resume && !has_results {
            return Err(fault(
                "has no results to go on with",
                "leave --resume out, or name the folder with --out",
            ));
        }
        let is_new = !path.exists();
        make_folders(path, 0o777).map_err(Unwritten::at(path))?;
        let cells =
            open_to_write(&file, Opening::ReadAppend, 0o600).map_err(Unwritten::at(&file))?;
        lock(&cells).map_err(|_| in_use(path))?;
        let mut folder = Self { path: path.to_owned(), cells, measured: Vec::new(), ends: 0 };
        let first = first_line(experiment, plan);
        if has_results {
            folder.read(&file, &first, plan.cells.len())?;
            folder.line(&json!(Line::Resumed { resumed_unix_ms: host::unix_ms() }))?;
        } else {
            let begun = folder.line(&first);
            begun.inspect_err(|_| {
                // A file without its first line is of no experiment, so it could not be resumed.
                let _ = remove_opened(&file, &folder.cells);
                if is_new {
                    let _ = remove_empty(path);
                }
            })?;
        }
        Ok(folder)
    }

    fn read(&mut self, file: &Path, first: &Value, cells: usize) -> Result<(), Fault> {
        let mut text = String::new();
        self.cells.read_to_string(&mut text).map_err(unread(file))?;
        let path = self.path.clone();
        let fault = |fault: String, help: &str| unusable(&path, &fault, help);
        let mut lines = text.lines().enumerate();
        if lines.next().map(|(_, line)| line) != Some(&first.to_string()) {
            let what = "is of another experiment: its factors, measure, blocks or cells are not those of the file";
            return Err(fault(
                what.to_owned(),
                "name another folder with --out, or change the file back",
            ));
        }
        let whole = text.ends_with('\n');
        let count = text.lines().count();
        for (at, line) in lines {
            match serde_json::from_str(line) {
                Ok(Line::Cell(cell)) => self.measured.push(cell),
                Ok(Line::End { .. }) => self.ends += 1,
                Ok(Line::Resumed { .. }) => self.keep_whole_blocks(cells),
                // The run was killed while it wrote the line.
                Err(_) if at + 1 == count && !whole => {}
                Err(error) => {
                    let what = format!(
                        "has a line in {CELLS} that can't be read: line {}: {error}",
                        at + 1
                    );
                    return Err(fault(what, "take the line out; its block is measured again"));
                }
            }
        }
        self.keep_whole_blocks(cells);
        if !whole {
            // What follows must not run into the torn line.
            let kept = text.rfind('\n').map_or(0, |at| at + 1);
            self.cells.set_len(kept as u64).map_err(Unwritten::at(file))?;
        }
        Ok(())
    }

    /// The cells of half a block stood another moment than those that are measured in their place.
    fn keep_whole_blocks(&mut self, cells: usize) {
        let whole = whole_blocks(&self.measured, cells).len() as u64;
        self.measured.retain(|one| one.block < whole);
    }

    /// Keeps a measured cell.
    pub(super) fn add(&mut self, one: Measured) -> Result<(), Fault> {
        self.line(&json!(one))?;
        self.measured.push(one);
        Ok(())
    }

    /// Keeps that the run ends here, and that somebody sees its results.
    pub(super) fn end(&mut self, blocks: usize) -> Result<(), Fault> {
        self.line(&json!(Line::End { ended_after_blocks: blocks }))
    }

    /// Writes the report in all its forms.
    pub(super) fn write(&self, report: &Report) -> Result<(), Fault> {
        let html = report.html(polyrail_analyze::STYLE);
        for (name, text) in
            [("report.json", json(report)), ("report.md", report.markdown()), ("report.html", html)]
        {
            let path = self.path.join(name);
            replace(&path, text).map_err(Unwritten::at(&path))?;
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn line(&mut self, value: &Value) -> Result<(), Fault> {
        let written = |cells: &mut File| -> io::Result<()> {
            cells.write_all(format!("{value}\n").as_bytes())?;
            cells.sync_data()
        };
        let path = self.path.join(CELLS);
        Ok(written(&mut self.cells).map_err(Unwritten::at(&path))?)
    }
}

/// Whether an experiment has run in a folder.
pub(super) fn has_results(path: &Path) -> bool {
    path.join(CELLS).exists()
}

/// Refuses a folder in which no experiment has run: "nothing to undo" would not be true of the one that was meant.
pub(super) fn refuse_without_results(path: &Path) -> Result<(), Fault> {
    match has_results(path) {
        true => Ok(()),
        false => Err(unusable(
            path,
            "has no results of an experiment",
            "name the folder that the experiment had: NAME-results, or what --out named",
        )),
    }
}

/// Refuses a folder whose run is under way: what it changed on the host is no remainder.
pub(super) fn refuse_if_in_use(path: &Path) -> Result<(), Fault> {
    // Without the file nothing runs there. A pipe of its name would be waited for.
    let file = path.join(CELLS);
    let opened = file.is_file().then(|| File::open(file));
    let Some(Ok(cells)) = opened else { return Ok(()) };
    lock(&cells).map_err(|_| in_use(path))
}

fn in_use(path: &Path) -> Fault {
    let help = "wait for its end, or name another folder with --out";
    unusable(path, "is in use by another experiment", help)
}

/// What a run that goes on must share with the one before. More time may be given.
fn first_line(experiment: &Experiment, plan: &Plan) -> Value {
    let mut experiment = json!(experiment);
    if let Some(map) = experiment.as_object_mut() {
        map.remove("time");
        map.remove("about");
    }
    let cells: Vec<String> = (0..plan.cells.len()).map(|cell| plan.label(cell)).collect();
    json!({ "schema_version": SCHEMA_VERSION, "experiment": experiment, "cells": cells })
}

/// The report as JSON.
pub(super) fn json(report: &Report) -> String {
    // Numbers and text of a report always have a JSON form.
    serde_json::to_string_pretty(report).unwrap_or_default() + "\n"
}
