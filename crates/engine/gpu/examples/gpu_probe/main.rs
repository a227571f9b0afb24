//! Tests the CUDA layer on the GPUs of this machine and measures it against the driver's own calls.
//!
//! ```text
//! cargo run --release -p polyrail-gpu --example gpu_probe -- --json probe.json
//! ```
//!
//! Exit codes: 0 all passed, 1 a check failed, 2 usage, 3 no GPU here (with the reason).

mod check;
mod gather;
mod ground;
mod measure;
mod raw;
mod scatter;
mod second;

use std::process::ExitCode;

use polyrail_gpu::cuda::Cuda;

use ground::{Ground, Outcome};

const HELP: &str = "\
Tests Polyrail's CUDA layer on the GPUs of this machine, and measures it

Usage: gpu_probe [OPTIONS]

Options:
      --device <INDEX>   The device whose queues copy [default: 0]
      --peer <INDEX>     The other device [default: 1, or the same if there is one only]
      --only <PART>      Only one of: check, share, measure, scatter, gather
      --json <FILE>      Write all figures there, too
  -h, --help             Print this
";

/// Parsed command line.
#[derive(Default)]
struct Arguments {
    device: Option<u32>,
    peer: Option<u32>,
    only: Option<String>,
    json: Option<String>,
    /// Number of a socket: if set, this is the second process of the tests.
    second: Option<i32>,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("error: {error}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(failed) => {
            eprintln!("{failed} checks failed");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(3)
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Arguments>, String> {
    let mut arguments = Arguments::default();
    while let Some(word) = words.next() {
        if matches!(word.as_str(), "-h" | "--help") {
            return Ok(None);
        }
        let value = words.next().ok_or_else(|| format!("{word} needs a value"))?;
        let number = || value.parse::<u32>().map_err(|_| format!("{word} {value}: not a number"));
        match word.as_str() {
            "--device" => arguments.device = Some(number()?),
            "--peer" => arguments.peer = Some(number()?),
            "--json" => arguments.json = Some(value),
            "--second" => arguments.second = Some(number()? as i32),
            "--only" => match value.as_str() {
                "check" | "share" | "measure" | "scatter" | "gather" => {
                    arguments.only = Some(value);
                }
                _ => {
                    let known = "check, share, measure, scatter or gather";
                    return Err(format!("--only {value}: not {known}"));
                }
            },
            _ => return Err(format!("{word} is no option")),
        }
    }
    Ok(Some(arguments))
}

/// Returns how many checks failed, or why none could be made.
fn run(arguments: &Arguments) -> Outcome<u32> {
    let cuda = Cuda::load()?;
    let device = arguments.device.unwrap_or(0);
    let peer = arguments.peer.unwrap_or_else(|| (device + 1) % cuda.count().max(1));
    if let Some(socket) = arguments.second {
        second::be(&cuda, device, socket)?;
        return Ok(0);
    }
    let is_wanted = |part: &str| arguments.only.as_deref().is_none_or(|only| only == part);
    let contexts = check::contexts(&cuda, device);
    let mut ground = Ground::new(cuda, device, peer)?;
    ground.check("contexts are made where they are needed only", contexts);
    if is_wanted("check") {
        check::all(&mut ground)?;
    }
    if is_wanted("share") {
        second::all(&mut ground)?;
    }
    if is_wanted("measure") {
        measure::all(&mut ground)?;
    }
    if is_wanted("scatter") {
        scatter::all(&mut ground)?;
    }
    if is_wanted("gather") {
        gather::all(&mut ground)?;
    }
    if let Some(path) = &arguments.json {
        std::fs::write(path, ground.json())?;
    }
    Ok(ground.failed())
}
