//! An engine in a process of its own, which is this program once more: so what it costs is not mixed
//! with what its peers cost.

use std::env;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};

use polyrail::Config;
use polyrail_config::ConfigBuilder;

pub(crate) type Failure = Box<dyn Error + Send + Sync>;

/// The argument that tells a process to be the engine.
const ENGINE: &str = "engine";

/// The process; it ends with its input.
pub(crate) struct Apart {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
}

/// Whether this process is to be the engine.
pub(crate) fn is_engine() -> bool {
    env::args().nth(1).is_some_and(|argument| argument == ENGINE)
}

/// The two numbers that this program is called with.
pub(crate) fn numbers(defaults: [u64; 2]) -> Result<[u64; 2], Failure> {
    let mut numbers = defaults;
    for (number, argument) in numbers.iter_mut().zip(env::args().skip(1)) {
        *number = argument.parse()?;
    }
    Ok(numbers)
}

/// How engines at both ends are set up, with these settings beside.
pub(crate) fn config(settings: &[(&str, &str)]) -> Result<Config, Failure> {
    let builder = Config::builder().env().set("rails", "127.0.0.1")?;
    let set = |builder: ConfigBuilder, pair: &(&str, &str)| builder.set(pair.0, pair.1);
    Ok(settings.iter().try_fold(builder, set)?.build()?)
}

impl Apart {
    pub(crate) fn start() -> Result<Self, Failure> {
        let mut command = Command::new(env::current_exe()?);
        let command = command.arg(ENGINE).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let output = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Self { child, output })
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        // It may be gone already.
        let _ = self.child.wait();
    }
}
