//! Options of the command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::faults::Kind;

pub(crate) const USAGE: &str = "\
scripts/chaos [--seconds N] [--seed S] [--fault NAME | --each] [--json FILE]

  --seconds N   how long operations run, 4 to 86400; default 600, with --each 10 for each fault
  --seed S      what decides operations and faults; default: from the clock, and printed
  --fault NAME  only this fault: calm, cut, flap, throttle, blackout, kill, stop, descriptors,
                memory, regions or stranger
  --each        each fault alone, one after the other, and a table
  --json FILE   also writes the report as JSON; with --each, one report per fault and line

Exit codes: 0 every byte was right, 1 an oracle failed, 2 usage, 3 the lab can't be built,
130 interrupted.
";

/// Role of this process.
pub(crate) enum Role {
    Help,
    Supervisor(Options),
    Worker { index: usize, generation: u32, seed: u64 },
    Stranger { seed: u64 },
}

#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) duration: Duration,
    pub(crate) seed: u64,
    /// Kind of faults. `None` for all kinds.
    pub(crate) fault: Option<Kind>,
    pub(crate) each: bool,
    pub(crate) json: Option<PathBuf>,
}

/// First argument of a child of the supervisor.
pub(crate) const WORKER: &str = "worker";
pub(crate) const STRANGER: &str = "stranger";

pub(crate) fn parse(arguments: &[String]) -> Result<Role, String> {
    match arguments.first().map(String::as_str) {
        Some(WORKER) => {
            let at = |at: usize| arguments.get(at).and_then(|text| text.parse::<u64>().ok());
            let (index, generation, seed) = (at(1), at(2), at(3));
            let (Some(index), Some(generation), Some(seed)) = (index, generation, seed) else {
                return Err("worker takes INDEX GENERATION SEED".into());
            };
            Ok(Role::Worker { index: index as usize, generation: generation as u32, seed })
        }
        Some(STRANGER) => {
            let seed = arguments.get(1).and_then(|text| text.parse().ok());
            Ok(Role::Stranger { seed: seed.ok_or("stranger takes SEED")? })
        }
        _ => supervisor(arguments),
    }
}

fn supervisor(arguments: &[String]) -> Result<Role, String> {
    let mut seconds = None;
    let mut options =
        Options { duration: Duration::ZERO, seed: clock(), fault: None, each: false, json: None };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "-h" | "--help" => return Ok(Role::Help),
            "--each" => options.each = true,
            "--json" => options.json = Some(PathBuf::from(value()?)),
            "--fault" => {
                let name = value()?;
                let known = || Kind::ALL.map(Kind::name).join(", ");
                let unknown = || format!("--fault is {name:?}, allowed is one of: {}", known());
                options.fault = Some(Kind::named(name).ok_or_else(unknown)?);
            }
            "--seed" => {
                let text = value()?;
                let number = match text.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16).ok(),
                    None => text.parse().ok(),
                };
                let wrong = || format!("--seed is {text:?}, allowed is 0 to {}", u64::MAX);
                options.seed = number.ok_or_else(wrong)?;
            }
            "--seconds" => {
                let text = value()?;
                let number = text.parse().ok().filter(|number| (4..=86_400).contains(number));
                let wrong = || format!("--seconds is {text:?}, allowed is 4 to 86400");
                seconds = Some(number.ok_or_else(wrong)?);
            }
            other => return Err(format!("{other:?} is no option")),
        }
    }
    if options.each && options.fault.is_some() {
        return Err("--each and --fault exclude each other".into());
    }
    let default = if options.each { 10 } else { 600 };
    options.duration = Duration::from_secs(seconds.unwrap_or(default));
    Ok(Role::Supervisor(options))
}

/// Returns a number that differs between runs.
fn clock() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_micros() as u64) % 1_000_000_007
}
