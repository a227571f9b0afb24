//! `polyrail analyze`: analyses a profile, and makes pages of the JSON reports of other commands.

mod bench;
mod render;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::TypedValueParser;
use clap::{Arg, Command, ValueEnum};
use polyrail_analyze::export::{Target, export};
use polyrail_analyze::{Analysis, Comparison, Judgement, Options, Verdict, html, read_predictions};
use polyrail_profile::{Folder, Metric, PathKind, Word, shown_path};
use polyrail_report::{exit, show_memory};
use polyrail_sys::files::make_folders;
use serde_json::Value;

use crate::cmd::profile::Way;
use crate::cmd::{collective, experiment, mesh, sweep};
use crate::fault::Fault;
use crate::files::{self, OutFile, TEXT_MAX};
use crate::progress::Progress;
use crate::stdout::{complain, print, tell};
use crate::unwritten::Unwritten;
use crate::values::{Refusal, file_or_stdout, file_to_read, folder_to_read, folder_to_write};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder that `polyrail profile --out DIR` wrote, also while it is being filled; or the JSON of
    /// bench, mesh, collective, experiment or sweep, of which --html makes a page.
    #[arg(value_name = "DIR|FILE", value_parser = Source)]
    dir: PathBuf,

    /// Compare with an older profile: same, faster, slower or unclear.
    #[arg(long, value_name = "DIR", value_parser = folder_to_read())]
    compare: Option<PathBuf>,

    /// Judge a simulator: a table with src, dst, size_bytes and predicted_time_ns.
    #[arg(long, value_name = "FILE", value_parser = file_to_read())]
    predictions: Option<PathBuf>,

    /// End with 1 if the mean error of the predictions is larger, in percent.
    #[arg(long, value_name = "PERCENT", requires = "predictions", value_parser = percent)]
    max_error: Option<f64>,

    /// Write inputs for a simulator; may be given several times.
    #[arg(long, value_name = "SIMULATOR", value_enum)]
    export: Vec<Simulator>,

    /// Where exports go, each in a folder of its own [default: DIR/export].
    #[arg(long, value_name = "DIR", requires = "export", value_parser = folder_to_write())]
    out: Option<PathBuf>,

    /// Only this path, as in `profile --paths` or as tables name it: peer (copy_engine), peer-kernel
    /// (kernel), nccl, tcp, host (host_memory), shared_memory, host_staged.
    #[arg(long, value_name = "PATH", value_parser = path)]
    path: Option<PathKind>,

    /// The time to look at: t_gpu, t_oneway, t_rtt2, t_host [default: the best each path has].
    #[arg(long, value_name = "METRIC", value_parser = time)]
    metric: Option<Metric>,

    /// Write the report, one file that needs no network; `-` is standard output, in place of tables.
    #[arg(long, value_name = "FILE", value_parser = file_or_stdout())]
    html: Option<OutFile>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  polyrail analyze run1 --html report.html
  polyrail analyze run2 --compare run1
  polyrail analyze run1 --path nccl --predictions astra.csv --max-error 10
  polyrail analyze run1 --path peer --export astra-sim --export chakra --out simulators
  polyrail analyze bench.json --html bench.html

docs/analyze.md (in packages: /usr/share/doc/polyrail/docs) explains every figure.";

/// Parser of an argument that is a folder or a file.
#[derive(Clone)]
struct Source;

impl TypedValueParser for Source {
    type Value = PathBuf;

    fn parse_ref(
        &self,
        command: &Command,
        argument: Option<&Arg>,
        value: &OsStr,
    ) -> Result<PathBuf, clap::Error> {
        match is_file(Path::new(value)) {
            true => file_to_read().parse_ref(command, argument, value),
            false => folder_to_read().parse_ref(command, argument, value),
        }
    }
}

/// Pipes and devices count as files: the parser of files says why it refuses them.
fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| !found.is_dir())
}

/// Whose inputs to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Simulator {
    /// Network files of the analytical backends.
    AstraSim,
    /// Execution traces, one per rank.
    Chakra,
    /// A topology and measured send latencies.
    Simai,
    /// The profile of send_recv.
    Vidur,
}

impl Simulator {
    fn target(self) -> (Target, &'static str) {
        match self {
            Self::AstraSim => (Target::AstraSim, "astra-sim"),
            Self::Chakra => (Target::Chakra, "chakra"),
            Self::Simai => (Target::SimAi, "simai"),
            Self::Vidur => (Target::Vidur, "vidur"),
        }
    }
}

pub(crate) fn run(args: &Args) -> ExitCode {
    if is_file(&args.dir) {
        return page_of_report(args).unwrap_or_else(Fault::refuse);
    }
    if let Some(path) = args.html.as_deref().filter(|path| is_of_profile(path, &args.dir)) {
        let fault = "is a file of the profile; allowed: another file, such as report.html";
        let help = "the report would take the place of what was measured";
        complain(&format!("--html <FILE> `{}`: {fault}", shown_path(path)), Some(help));
        return ExitCode::from(exit::USAGE);
    }
    let is_to_stdout = is_stdout(args);
    if is_to_stdout && args.json {
        let fault = "is standard output, where --json writes; allowed: a file, such as report.html";
        complain(&format!("--html <FILE> `-`: {fault}"), Some("leave --json out, or name a file"));
        return ExitCode::from(exit::USAGE);
    }
    match execute(args) {
        Ok((analysis, code)) if is_to_stdout => print(&html(&analysis), code),
        Ok((analysis, code)) => {
            let text = if args.json { json(&analysis) } else { render::text(&analysis) };
            print(&text, code)
        }
        Err(fault) => fault.refuse(),
    }
}

/// A function that makes the page of a JSON document.
type PageOf = fn(&str) -> serde_json::Result<String>;

/// Kinds of JSON that have pages: a field that no other kind has, and the function that makes the page.
const KINDS: [(&str, PageOf); 5] = [
    ("results", bench::page),
    ("layouts", mesh::page),
    ("plugins", collective::page),
    ("effects", experiment::page),
    ("heat_maps", sweep::page),
];

/// Returns the page of a JSON document, or the reason why there is none.
fn page_of_json(json: &str) -> Result<String, String> {
    let document: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let of = KINDS.iter().find(|(field, _)| document.get(field).is_some());
    let (_, page) = of.ok_or("the command that wrote it is unknown")?;
    check_numbers(&document, "")?;
    page(json).map_err(|error| error.to_string())
}

/// Refuses numbers so large or small that the arithmetic of a page would overflow or underflow.
fn check_numbers(value: &Value, name: &str) -> Result<(), String> {
    match value {
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::INFINITY);
            let is_allowed = number == 0.0 || (LEAST_NUMBER..=MOST_NUMBER).contains(&number.abs());
            let fault = || {
                format!(
                    "{name} is {number:e}; allowed: 0, and {LEAST_NUMBER:e} to {MOST_NUMBER:e} with either sign"
                )
            };
            is_allowed.then_some(()).ok_or_else(fault)
        }
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(at, item)| check_numbers(item, &format!("{name}[{at}]")))
        }
        Value::Object(fields) => fields.iter().try_for_each(|(field, value)| {
            let name = if name.is_empty() { field.clone() } else { format!("{name}.{field}") };
            check_numbers(value, &name)
        }),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

/// Limits far beyond every measurement, whose squares are still finite and not 0.
const LEAST_NUMBER: f64 = 1e-100;
const MOST_NUMBER: f64 = 1e100;

const HELP_FILE: &str = "give the folder of `polyrail profile`, or the JSON of `polyrail bench`, `mesh`, `collective`, \
                         `experiment run`, `experiment sweep` or `experiment autotune`";

/// Writes the page of a JSON report of another command.
fn page_of_report(args: &Args) -> Result<ExitCode, Fault> {
    let name = shown_path(&args.dir);
    let others = [
        ("--compare", args.compare.is_some()),
        ("--predictions", args.predictions.is_some()),
        ("--export", !args.export.is_empty()),
        ("--path", args.path.is_some()),
        ("--metric", args.metric.is_some()),
        ("--json", args.json),
    ];
    if let Some((option, _)) = others.iter().find(|(_, is_given)| *is_given) {
        let text = format!("{option} goes with the folder of a profile, and `{name}` is a file");
        let help = format!("polyrail analyze {name} --html report.html");
        return Err(Fault::new(exit::USAGE, text).with_help(help));
    }
    let Some(path) = &args.html else {
        let text = format!(
            "`{name}` is a file, of which only a page can be made: --html <FILE> is missing"
        );
        let help = format!("polyrail analyze {name} --html report.html");
        return Err(Fault::new(exit::USAGE, text).with_help(help));
    };
    let size = fs::metadata(&args.dir).map_or(0, |found| found.len());
    if size > TEXT_MAX {
        let [size, most] = [size, TEXT_MAX].map(show_memory);
        let text = format!("`{name}` has {size}; allowed: a report of at most {most}");
        return Err(Fault::new(exit::USAGE, text).with_help(HELP_FILE));
    }
    let json = files::read_text(&args.dir).map_err(|source| Fault::system(&name, source))?;
    let page = page_of_json(&json).map_err(|why| {
        let text = format!("no page can be made of `{name}`: {why}");
        Fault::new(exit::USAGE, text).with_help(HELP_FILE)
    })?;
    if is_stdout(args) {
        return Ok(print(&page, exit::OK));
    }
    files::replace(path, page).map_err(Unwritten::at(path))?;
    tell!("{}", shown_path(path));
    Ok(ExitCode::from(exit::OK))
}

fn is_stdout(args: &Args) -> bool {
    args.html.as_deref() == Some(Path::new("-"))
}

/// Returns whether `path` is a file of the profile in `dir`. HTML files don't count: an older report may lie there.
fn is_of_profile(path: &Path, dir: &Path) -> bool {
    let (Ok(path), Ok(dir)) = (fs::canonicalize(path), fs::canonicalize(dir)) else { return false };
    path.parent() == Some(&dir) && path.extension().is_none_or(|extension| extension != "html")
}

fn execute(args: &Args) -> Result<(Analysis, u8), Fault> {
    let options = Options { metric: args.metric, path: args.path };
    let waiting = Progress::waiting("analysing the profile");
    let folder = Folder::open(&args.dir)?;
    let mut analysis = Analysis::of(&folder, options)?;
    if let Some(base) = &args.compare {
        waiting.say("analysing the other profile");
        let base = Analysis::of(&Folder::open(base)?, options)?;
        analysis.comparison = Some(Comparison::of(&analysis, &base)?);
    }
    if let Some(file) = &args.predictions {
        let predictions = read_predictions(file)?;
        let judgement = Judgement::of(&analysis, file, &predictions)?;
        analysis.conclusions.extend(judgement.too_noisy());
        analysis.predictions = Some(judgement);
    }
    drop(waiting);
    let out = args.out.clone().unwrap_or_else(|| args.dir.join("export"));
    for simulator in &args.export {
        let (target, name) = simulator.target();
        let dir = out.join(name);
        // Make all files before writing any.
        let files = export(&analysis, target)?;
        make_folders(&dir, 0o777).map_err(Unwritten::at(&dir))?;
        for file in files {
            let path = dir.join(&file.name);
            files::replace(&path, &file.bytes).map_err(Unwritten::at(&path))?;
            tell!("{}", shown_path(&path));
        }
    }
    if let Some(path) = args.html.as_ref().filter(|_| !is_stdout(args)) {
        files::replace(path, html(&analysis)).map_err(Unwritten::at(path))?;
        tell!("{}", shown_path(path));
    }
    let code = verdict(&analysis, args.max_error);
    Ok((analysis, code))
}

fn verdict(analysis: &Analysis, max_error: Option<f64>) -> u8 {
    let is_slower = analysis.comparison.as_ref().is_some_and(|one| one.verdict == Verdict::Slower);
    let is_wrong = analysis
        .predictions
        .as_ref()
        .zip(max_error)
        .is_some_and(|(one, limit)| one.total.mape_percent > limit);
    if analysis.counts.verify_failed > 0 {
        exit::DATA
    } else if is_slower || is_wrong {
        exit::VERDICT
    } else {
        exit::OK
    }
}

fn json(analysis: &Analysis) -> String {
    // Numbers and text of an analysis always have a JSON form.
    serde_json::to_string_pretty(analysis).unwrap_or_default() + "\n"
}

/// Parses a path: a word of `profile --paths`, or of tables and files.
fn path(text: &str) -> Result<PathKind, Refusal> {
    let way = Way::from_str(text, false).map(Way::kind);
    way.ok().or_else(|| PathKind::from_word(text)).ok_or_else(|| {
        let allowed = "peer (copy_engine), peer-kernel (kernel), nccl, tcp, host (host_memory), \
                       shared_memory, host_staged";
        Refusal::new("is not one of these", allowed)
    })
}

fn time(text: &str) -> Result<Metric, Refusal> {
    match Metric::from_word(text) {
        Some(metric) if metric != Metric::Bandwidth => Ok(metric),
        _ => Err(Refusal::new("is not a time", "t_gpu, t_oneway, t_rtt2, t_host")),
    }
}

fn percent(text: &str) -> Result<f64, Refusal> {
    match text.parse() {
        Ok(percent) if (0.0..=1e6).contains(&percent) => Ok(percent),
        _ => Err(Refusal::new("is not such a number", "a number of percent from 0 to 1e6")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_no_page_can_draw_is_named_with_its_place() {
        let fault = |json: &str| check_numbers(&serde_json::from_str(json).unwrap(), "").err();
        for json in
            ["0", "[-1e100, 1e-100, 18446744073709551615, -1]", "{\"a\": [null, true, \"x\"]}"]
        {
            assert_eq!(fault(json), None, "{json}");
        }
        let allowed = "allowed: 0, and 1e-100 to 1e100 with either sign";
        let told = fault("{\"results\": [{}, {\"gb_per_s\": [1, -1e308]}]}").unwrap();
        assert_eq!(told, format!("results[1].gb_per_s[1] is -1e308; {allowed}"));
        let told = fault("{\"a\": {\"b\": 5e-324}}").unwrap();
        assert_eq!(told, format!("a.b is 5e-324; {allowed}"));
    }
}
