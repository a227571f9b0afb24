//! The report of a search for something better than the default. Sweep, autotune and nccl tune print it.

use std::path::Path;
use std::process::ExitCode;

use polyrail_config::steers;
use polyrail_experiment::{Better, Effect, Experiment};
use polyrail_report::{Host, exit};
use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::files;
use crate::stdout::{print, tell, wrapped_sentences};
use crate::unwritten::Unwritten;

/// The common part of these reports.
#[derive(Serialize, Deserialize)]
pub(crate) struct Comparison {
    pub(crate) schema_version: u32,
    pub(crate) version: String,
    pub(crate) host: Host,
    /// Place of the result in the output of the command.
    pub(crate) figure: String,
    /// Direction in which judged results are better.
    pub(crate) better: Better,
    pub(crate) blocks: usize,
    pub(crate) elapsed_s: f64,
    pub(crate) keep_default: bool,
    pub(crate) interrupted: bool,
    pub(crate) notes: Vec<String>,
}

impl Comparison {
    /// A comparison without findings, in a report of this version.
    pub(crate) fn of(schema_version: u32, experiment: &Experiment, better: Better) -> Self {
        Self {
            schema_version,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: crate::host::describe(),
            figure: experiment.figure.text().to_owned(),
            better,
            blocks: 0,
            elapsed_s: 0.0,
            keep_default: true,
            interrupted: false,
            notes: Vec::new(),
        }
    }

    /// The notes as the end of a text.
    pub(crate) fn notes(&self) -> String {
        self.notes.iter().map(|note| wrapped_sentences(&format!("note: {note}\n"))).collect()
    }

    /// Comments on the machine, the workload and the proof, for a file with the best configuration.
    pub(crate) fn comments(
        &self,
        command: &str,
        workload: &str,
        against: &str,
        proof: &Effect,
    ) -> String {
        let Self { version, host, .. } = self;
        format!(
            "# Found by polyrail {command} {version} on {}: Linux {}, {} CPUs.\n# {}\n# Against the {against}: {}.\n",
            line(&host.hostname),
            line(&host.kernel),
            host.cpus,
            line(workload),
            proof.words
        )
    }
}

/// Replaces characters that could end a comment.
fn line(text: &str) -> String {
    text.replace(steers, " ")
}

/// A report with a [`Comparison`].
pub(crate) trait ComparisonReport: Serialize {
    fn comparison(&self) -> &Comparison;

    fn text(&self) -> String;

    /// The file with the best configuration; `None` to keep the default.
    fn file(&self) -> Option<String>;
}

/// Writes the best configuration to `output`, and prints the report. `readers` names the programs that read the file.
pub(crate) fn finish(
    found: &impl ComparisonReport,
    output: Option<&Path>,
    readers: &str,
    as_json: bool,
) -> Result<ExitCode, Fault> {
    let code = if found.comparison().interrupted { exit::INTERRUPTED } else { exit::OK };
    if let (Some(path), Some(text)) = (output, found.file()) {
        files::replace(path, text).map_err(Unwritten::at(path))?;
        tell!("polyrail: wrote {}; {readers}", path.display());
    }
    let text = match as_json {
        // Numbers and text of a report always have a JSON form.
        true => serde_json::to_string_pretty(found).unwrap_or_default() + "\n",
        false => found.text(),
    };
    Ok(print(&text, code))
}
