//! One cell: its command, its result, and its settings read back.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use polyrail_experiment::{Experiment, Kind, Measure, Plan, Verified};
use polyrail_host::bindings::{self, Options, Suggestion};
use polyrail_host::{Sysroot, Topology};
use polyrail_report::exit;
use serde_json::Value;

use super::this_program;
use crate::cmd::bench::check_options;
use crate::crew::{Kept, Output, Worker};
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::stdout::excerpt;

/// Minimum time limit of a command, however short the experiment is.
const LIMIT_LEAST: Duration = Duration::from_secs(60);
/// Time for a command to end after SIGTERM.
const TERM_PATIENCE: Duration = Duration::from_secs(5);
/// Maximum output to keep, more than any report has. Output beyond it is read and dropped, so that the command can end.
const OUTPUT_MAX: usize = 16 << 20;

/// The result of a cell's command.
pub(crate) struct Outcome {
    pub(crate) figure: f64,
    /// User and system CPU time of the command and of all processes that it waited for.
    pub(crate) cpu_seconds: Option<f64>,
    pub(crate) verified: Verified,
    /// Reason why the cell is not what its name says, though its command succeeded.
    pub(crate) note: Option<String>,
}

/// Makes the commands of cells.
pub(crate) struct Runner<'a> {
    experiment: &'a Experiment,
    plan: &'a Plan,
    program: PathBuf,
    /// Bindings for the level `matched`.
    matched: Option<Suggestion>,
}

/// Refuses unknown options of `bench` before anything runs.
pub(crate) fn check_command(experiment: &Experiment, plan: &Plan) -> Result<(), Fault> {
    let Measure::Bench(_) = &experiment.measure else { return Ok(()) };
    let fault = |fault: String, help: Option<String>| Fault {
        help,
        ..Fault::new(exit::USAGE, format!("{}: {fault}", experiment.file))
    };
    for cell in 0..plan.cells.len() {
        let words = experiment.words_of(plan, cell);
        if let Some(word) = words.iter().find(|word| OURS.iter().any(|own| is_option(word, own))) {
            let allowed = "options of `polyrail bench` but --json, --csv, --listen and --why";
            return Err(fault(format!("bench = `{}`; allowed: {allowed}", excerpt(word)), None));
        }
        let given = check_options(words.iter().map(String::as_str)).map_err(|message| {
            let (first, help) = message.split_once("\nhelp: ").unwrap_or((&message, ""));
            let help = (!help.is_empty()).then(|| help.to_owned());
            fault(format!("bench of the cell {}: {first}", plan.label(cell)), help)
        })?;
        // Users could not tell which of the two counts.
        let is_varied = |name: &&&str| {
            experiment.factors.iter().any(|factor| match factor.kind {
                Kind::Setting => factor.name == **name,
                Kind::Bindings => name.ends_with("_bindings"),
                _ => false,
            })
        };
        if let Some(name) = given.iter().find(is_varied) {
            let what =
                format!("bench gives `{name}`, which is varied as well; allowed: one of them");
            return Err(fault(what, Some(format!("take `{name}` out of the options of bench"))));
        }
        let is_of_all =
            |name: &&&str| experiment.settings.iter().any(|(of_all, _)| of_all == **name);
        if let Some(name) = given.iter().find(is_of_all) {
            let what = format!("bench gives `{name}`, as `settings` does; allowed: one of them");
            return Err(fault(what, Some(format!("take `{name}` out of the options of bench"))));
        }
    }
    Ok(())
}

/// Options that a cell may not have: the first two are added here.
pub(crate) const OURS: &[&str] = &["--json", "--no-limits", "--csv", "--listen", "--why"];

fn is_option(word: &str, option: &str) -> bool {
    word.strip_prefix(option).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
}

impl<'a> Runner<'a> {
    pub(crate) fn new(experiment: &'a Experiment, plan: &'a Plan) -> Result<Self, Fault> {
        let program = this_program()?;
        let matched = matched_bindings(experiment)?;
        Ok(Self { experiment, plan, program, matched })
    }

    /// Runs a cell's command and reads its result.
    pub(crate) fn measure(&self, cell: usize, interrupt: &Interrupt) -> Result<Outcome, Fault> {
        let command = self.command(cell);
        let name = command.get_program().to_string_lossy().into_owned();
        let before = cpu_of_children();
        let said = run(command, self.limit(), interrupt).map_err(|error| {
            let help = "write the program as a shell would find it, or with its path";
            let message = format!("`{}` can't be started: {error}", excerpt(&name));
            Fault::environment(message).with_help(help)
        })?;
        let Some(said) = said else { return Err(Fault::interrupted()) };
        if said.timed_out {
            let limit = self.limit().as_secs_f64();
            let message = format!("its command was still running after {limit:.0} s");
            return Err(Fault::environment(message));
        }
        if !said.status.success() {
            return Err(self.refused(&said));
        }
        let figure = self.experiment.figure.find(&said.stdout).map_err(Fault::environment)?;
        let verified = self.verify(cell, &said.stdout).map_err(Fault::environment)?;
        let cpu_seconds = before.zip(cpu_of_children()).map(|(before, after)| after - before);
        Ok(Outcome { figure, cpu_seconds, verified, note: self.idle_bindings(cell, &said.stdout) })
    }

    /// Time limit of a command, which hangs if it takes longer.
    fn limit(&self) -> Duration {
        self.experiment.time.max(LIMIT_LEAST)
    }

    fn command(&self, cell: usize) -> Command {
        let words = self.experiment.words_of(self.plan, cell);
        let mut settings = self.experiment.settings_of(self.plan, cell);
        let bindings = self.bindings(cell);
        // Bindings win over settings that are given for every cell, as factors do.
        settings.retain(|(name, _)| !bindings.iter().any(|(bound, _)| bound == name));
        match &self.experiment.measure {
            Measure::Bench(_) => {
                let mut command = Command::new(&self.program);
                command.arg("bench").args(&words).args(["--no-limits", "--json", "-"]);
                for (name, value) in settings.iter().chain(&bindings) {
                    command.arg("--set").arg(format!("{name}={value}"));
                }
                if self.has_bindings() && bindings.is_empty() {
                    // Otherwise bench places threads itself.
                    command.args(["--place", "none"]);
                }
                command
            }
            Measure::Command(_) => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                for (name, value) in settings.iter().chain(&bindings) {
                    command.env(format!("POLYRAIL_{}", name.to_uppercase()), value);
                }
                command.envs(self.variables(cell));
                command
            }
        }
    }

    /// Variables that the cell changes.
    fn variables(&self, cell: usize) -> impl Iterator<Item = (&str, &str)> {
        let factors = self.experiment.factors.iter().zip(&self.plan.cells[cell]);
        let changed = factors
            .filter(|(factor, level)| factor.kind == Kind::Variable && **level != factor.baseline);
        changed.map(|(factor, level)| (factor.name.as_str(), factor.levels[*level].as_str()))
    }

    fn has_bindings(&self) -> bool {
        self.experiment.factors.iter().any(|factor| factor.kind == Kind::Bindings)
    }

    /// Settings for the level of bindings; none for the level `none`.
    fn bindings(&self, cell: usize) -> Vec<(String, String)> {
        let factors = self.experiment.factors.iter().zip(&self.plan.cells[cell]);
        let level = factors.clone().find(|(factor, _)| factor.kind == Kind::Bindings);
        let Some((factor, level)) = level else { return Vec::new() };
        let (tx, rx) = match (factor.levels[*level].as_str(), &self.matched) {
            ("none", _) => return Vec::new(),
            ("matched", Some(matched)) => (matched.tx.to_string(), matched.rx.to_string()),
            (text, _) => (text.to_owned(), text.to_owned()),
        };
        vec![("tx_bindings".to_owned(), tx), ("rx_bindings".to_owned(), rx)]
    }

    /// Compares the settings that the command reports with those that it should have had.
    fn verify(&self, cell: usize, output: &str) -> Result<Verified, String> {
        let mut expected = self.experiment.expected(self.plan, cell);
        expected.extend(
            self.bindings(cell).into_iter().map(|(name, value)| (name, Value::from(value))),
        );
        let report: Option<Value> = serde_json::from_str(output).ok();
        let mut all_reported = true;
        for (name, wanted) in &expected {
            let at = |side: &str| {
                let report = report.as_ref()?;
                report.pointer(&format!("{side}/config/{name}/value"))
            };
            match at("") {
                None => all_reported = false,
                Some(found) if found == wanted => {}
                Some(found) => {
                    return Err(format!("its command ran with {name} = `{found}`, not `{wanted}`"));
                }
            }
        }
        if let Some(report) = &report
            && !self.bindings(cell).is_empty()
        {
            check_threads(report)?;
        }
        let is_silent = |kind| matches!(kind, Kind::Word | Kind::Variable);
        let has_silent = self.experiment.factors.iter().any(|factor| is_silent(factor.kind));
        Ok(if all_reported && !has_silent { Verified::ReadBack } else { Verified::NotReported })
    }

    /// Note on bindings that name none of the rails' interfaces, and so bind nothing.
    fn idle_bindings(&self, cell: usize, output: &str) -> Option<String> {
        let bindings = self.bindings(cell);
        let (_, text) = bindings.first()?;
        let report: Value = serde_json::from_str(output).ok()?;
        let threads = report.pointer("/placement/threads")?.as_array()?;
        let is_bound =
            |thread: &Value| thread["expected"].as_str().is_some_and(|on| !on.is_empty());
        let has_none = !threads.is_empty() && !threads.iter().any(is_bound);
        let text = excerpt(text);
        has_none
            .then(|| format!("the bindings {text} bind no thread: they name no rail of this bench"))
    }

    fn refused(&self, said: &Said) -> Fault {
        let lines = || said.stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        let remedy = lines().filter_map(|line| line.strip_prefix("help: ")).next_back();
        let mut message = lines().rfind(|line| !line.starts_with("help: ")).unwrap_or_default();
        message = message.strip_prefix("polyrail: ").unwrap_or(message);
        let end = match (said.status.code(), said.status.signal()) {
            (Some(code), _) => format!("ended with exit code {code}"),
            (None, Some(signal)) => format!("was ended by signal {signal}"),
            (None, None) => "ended".to_owned(),
        };
        let said_what = if message.is_empty() {
            "it said nothing".to_owned()
        } else {
            format!("it said: {message}")
        };
        let code = match (&self.experiment.measure, said.status.code()) {
            (Measure::Bench(_), Some(code @ 2..=5)) => code as u8,
            _ => exit::ENVIRONMENT,
        };
        let help = remedy.map(str::to_owned);
        Fault { help, ..Fault::new(code, format!("its command {end}; {said_what}")) }
    }
}

/// Checks that each bound thread runs where it should.
fn check_threads(report: &Value) -> Result<(), String> {
    let threads = report.pointer("/placement/threads").and_then(Value::as_array);
    for thread in threads.into_iter().flatten() {
        let text = |key: &str| thread[key].as_str().unwrap_or_default();
        let (expected, actual) = (text("expected"), text("actual"));
        if !expected.is_empty() && !actual.is_empty() && expected != actual {
            return Err(format!(
                "its thread {} runs on CPUs {actual}, not {expected}",
                excerpt(text("name"))
            ));
        }
    }
    Ok(())
}

fn matched_bindings(experiment: &Experiment) -> Result<Option<Suggestion>, Fault> {
    let wants = |factor: &&polyrail_experiment::Factor| {
        factor.kind == Kind::Bindings && factor.levels.iter().any(|level| level == "matched")
    };
    let Some(factor) = experiment.factors.iter().find(wants) else { return Ok(None) };
    let topology = Topology::read(&Sysroot::live()).map_err(polyrail_tune::TuneError::from)?;
    let options = Options { interfaces: experiment.nics.clone(), ..Options::default() };
    let suggestion = bindings::suggest(&topology, &options);
    if suggestion.tx.is_empty() {
        let (factor, reason) = (&factor.name, suggestion.notes.join("; "));
        let message = format!("the level {factor}=matched can't be applied: {reason}");
        let help = "take the level out, or choose another one";
        return Err(Fault::new(exit::USAGE, message).with_help(help));
    }
    Ok(Some(suggestion))
}

/// The end of a command, and its output.
struct Said {
    status: ExitStatus,
    stdout: String,
    stderr: String,
    timed_out: bool,
}

/// CPU time of the processes that this one has waited for, and of those that they have waited for; `None` without a
/// `/proc`.
fn cpu_of_children() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Skip the name, which may contain anything. cutime and cstime are fields 16 and 17 of all.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks = fields.split_whitespace().skip(13).take(2).map(|field| field.parse::<f64>().ok());
    let ticks = ticks.sum::<Option<f64>>()?;
    Some(ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// Runs a command to its end. `None` after an interrupt, which ends the command, too.
fn run(command: Command, limit: Duration, interrupt: &Interrupt) -> io::Result<Option<Said>> {
    let (stdout, stderr) = (Kept::bytes(OUTPUT_MAX), Kept::bytes(OUTPUT_MAX));
    let output = [Output::Kept(&stdout), Output::Kept(&stderr)];
    let mut worker = Worker::start_group(command, Stdio::null(), output)?;
    let ended = worker.ended_unless(limit, interrupt)?;
    let timed_out = ended.is_none() && !interrupt.is_raised();
    let status = ended.map_or_else(|| worker.terminate(TERM_PATIENCE), Ok)?;
    // This also ends processes that the command left behind.
    drop(worker);
    // A signal to the terminal's group may have ended the command before this process noticed it.
    let is_stopped = interrupt.is_raised() && (ended.is_none() || !status.success());
    let said = Said { status, stdout: stdout.text(), stderr: stderr.text(), timed_out };
    Ok((timed_out || !is_stopped).then_some(said))
}
