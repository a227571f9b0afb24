//! The results folder. `cells.jsonl` begins with the experiment. Each further line is a measured cell, an end of the
//! run between two looks, or a resumption.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use polyrail_experiment::{Experiment, Measured, Plan, Report, SCHEMA_VERSION, whole_blocks};
use polyrail_sys::files::{make_folders, remove_empty};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::page;
use crate::cmd::study::journal::{Journal, Wording};
use crate::fault::Fault;
use crate::files::replace;
use crate::host;
use crate::unwritten::Unwritten;

const CELLS: &str = "cells.jsonl";
/// Beginning of its [first line](first_line), whose fields are sorted.
const BEGIN: &str = "{\"cells\":[";

/// A line after the first.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Cell(Measured),
    End {
        ended_after_blocks: usize,
    },
    /// A resumption. An incomplete block before this line is measured again after it.
    Resumed {
        resumed_unix_ms: u64,
    },
}

/// An open results folder. No other run writes to it meanwhile.
pub(super) struct Folder {
    path: PathBuf,
    cells: Journal<Line>,
    /// All cells measured so far.
    pub(super) measured: Vec<Measured>,
    /// Number of times that a run ended between two looks.
    pub(super) ends: usize,
}

impl Folder {
    /// Makes the folder, or reads it if `resume` is set.
    pub(super) fn open(
        path: &Path,
        experiment: &Experiment,
        plan: &Plan,
        resume: bool,
    ) -> Result<Self, Fault> {
        let has_results = has_results(path);
        if has_results && !resume {
            let help = "add --resume to go on with them, or name another folder with --out";
            return Err(wording(path).fault("has results", help));
        }
        if resume && !has_results {
            let help = "leave --resume out, or name the folder with --out";
            return Err(wording(path).fault("has no results to go on with", help));
        }
        let is_new = !path.exists();
        make_folders(path, 0o777).map_err(Unwritten::at(path))?;
        let first = first_line(experiment, plan);
        let wanted = first.to_string();
        let differs = |found: &str| {
            let why = "is of another experiment: its factors, measure, blocks or cells are not those of the file";
            let help = "name another folder with --out, or change the file back";
            (found != wanted).then(|| (why.to_owned(), help))
        };
        let opened = Journal::open(&path.join(CELLS), &wording(path), &first, &differs);
        let (cells, lines) = opened.inspect_err(|_| {
            if is_new {
                let _ = remove_empty(path);
            }
        })?;
        let mut folder = Self { path: path.to_owned(), cells, measured: Vec::new(), ends: 0 };
        for line in lines {
            match line {
                Line::Cell(cell) => folder.measured.push(cell),
                Line::End { .. } => folder.ends += 1,
                Line::Resumed { .. } => folder.keep_whole_blocks(plan.cells.len()),
            }
        }
        folder.keep_whole_blocks(plan.cells.len());
        if has_results {
            folder.cells.add(&Line::Resumed { resumed_unix_ms: host::unix_ms() })?;
        }
        Ok(folder)
    }

    /// Drops the cells of an incomplete block, which are measured again later.
    fn keep_whole_blocks(&mut self, cells: usize) {
        let whole = whole_blocks(&self.measured, cells).len() as u64;
        self.measured.retain(|one| one.block < whole);
    }

    /// Adds a measured cell.
    pub(super) fn add(&mut self, one: Measured) -> Result<(), Fault> {
        self.cells.add(&Line::Cell(one.clone()))?;
        self.measured.push(one);
        Ok(())
    }

    /// Records that the run ended between two looks and showed its results.
    pub(super) fn end(&mut self, blocks: usize) -> Result<(), Fault> {
        self.cells.add(&Line::End { ended_after_blocks: blocks })
    }

    /// Writes the report in all its forms.
    pub(super) fn write(&self, report: &Report) -> Result<(), Fault> {
        let page = page::page_of(report);
        for (name, text) in
            [("report.json", json(report)), ("report.md", report.markdown()), ("report.html", page)]
        {
            let path = self.path.join(name);
            replace(&path, text).map_err(Unwritten::at(&path))?;
        }
        Ok(())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Returns whether an experiment has run in a folder.
pub(super) fn has_results(path: &Path) -> bool {
    path.join(CELLS).exists()
}

/// Refuses a folder without results: "nothing to undo" may be untrue of the folder that the user meant.
pub(super) fn refuse_without_results(path: &Path) -> Result<(), Fault> {
    match has_results(path) {
        true => Ok(()),
        false => Err(wording(path).fault(
            "has no results of an experiment",
            "name the folder that the experiment had: NAME-results, or what --out named",
        )),
    }
}

/// Refuses a folder that a run uses: its changes to the host are not leftovers.
pub(super) fn refuse_if_in_use(path: &Path) -> Result<(), Fault> {
    // Without the file there is no run. Opening a pipe of that name would block.
    let file = path.join(CELLS);
    let opened = file.is_file().then(|| File::open(&file));
    let Some(Ok(cells)) = opened else { return Ok(()) };
    let mut begin = Vec::new();
    // A file that can't be read is refused later, when the folder is opened.
    let _ = (&cells).take(BEGIN.len() as u64).read_to_end(&mut begin);
    // Locking takes permissions away from other users. Leave a file of another program alone.
    match BEGIN.as_bytes().starts_with(&begin) {
        true => wording(path).lock(&file, &cells),
        false => Ok(()),
    }
}

/// Words for messages about a results folder.
pub(super) fn wording(path: &Path) -> Wording<'_> {
    Wording {
        place: path,
        noun: "results folder",
        run: "experiment",
        elsewhere: "name another folder with --out",
        repair: "take the line out; its block is measured again",
    }
}

/// Properties that a resumed run must share with the run before. The time and the description may change.
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
