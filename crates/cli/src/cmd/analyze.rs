//! `polyrail analyze`: what a profile says.

mod render;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::ValueEnum;
use polyrail_analyze::export::{Target, export};
use polyrail_analyze::{Analysis, Comparison, Judgement, Options, Verdict, html, read_predictions};
use polyrail_profile::{Folder, Metric, PathKind, Word, shown_path};
use polyrail_report::exit;
use polyrail_sys::files::make_folders;

use crate::cmd::profile::Way;
use crate::fault::Fault;
use crate::files;
use crate::files::OutFile;
use crate::progress::Progress;
use crate::stdout::{complain, print, tell};
use crate::unwritten::Unwritten;
use crate::values::{Refusal, file_or_stdout, file_to_read, folder_to_read, folder_to_write};

/// Arguments of the subcommand.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder that `polyrail profile --out DIR` wrote, also while it is being filled.
    #[arg(value_name = "DIR", value_parser = folder_to_read())]
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

docs/analyze.md (in packages: /usr/share/doc/polyrail/docs) explains every figure.";

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

fn is_stdout(args: &Args) -> bool {
    args.html.as_deref() == Some(Path::new("-"))
}

/// An older report may lie there, too.
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
        // Everything is made before anything is written.
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

/// A path by the word of `profile --paths` or by that of tables and files.
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
