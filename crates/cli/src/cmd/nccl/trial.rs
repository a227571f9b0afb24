//! `polyrail nccl try`: tries a plugin in a separate process, so that nothing it does harms this one.

mod canary;
mod carried;
mod findings;
mod installed;
mod left;
mod pair;
mod watch;

use std::env;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use polyrail_report::exit;

use self::canary::{Event, Failure, Task};
use self::findings::{CloseFault, Fault, Findings, Verdict};
pub(in crate::cmd) use self::installed::installed;
use crate::crew::{Kept, Output, Worker, how};
use crate::fault;
use crate::lines::Lines;
use crate::stdout::say;
use crate::values::{library_name, time_within};

/// Arguments of the subcommand.
#[derive(clap::Args)]
pub(super) struct Args {
    /// The library, or a value for NCCL_NET_PLUGIN.
    #[arg(value_parser = library_name)]
    library: String,

    /// The version of its table [default: the newest].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(5..=12))]
    table: Option<u32>,

    /// Only these devices, by number [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    device: Vec<u16>,

    /// The longest that each call into the plugin may take, and each connection and round of messages, which are several calls.
    #[arg(long, value_name = "TIME", default_value = "20s",
        value_parser = time_within(Duration::from_millis(100), Duration::from_secs(3600), "100ms to 1h"))]
    timeout: Duration,

    /// Print JSON.
    #[arg(long)]
    json: bool,

    /// Be the process that the plugin is tried in.
    #[arg(long, hide = true)]
    canary: bool,

    /// Only load the plugin, and ask for its devices.
    #[arg(long, hide = true, requires = "canary")]
    look: bool,
}

/// Extra time beyond the limit of a call. A canary that is silent for longer is stopped, and can't report that itself.
const GRACE: Duration = Duration::from_secs(2);
/// Time limit for the end of a process.
const NEWS: Duration = Duration::from_secs(2);
/// Maximum number of lines kept of a plugin's output.
const SAID_MAX: usize = 20;
const LAST_WORDS: usize = 5;

pub(super) fn run(args: &Args) -> Result<(), fault::Fault> {
    let task = Task {
        library: args.library.clone(),
        version: args.table,
        devices: args.device.iter().copied().map(usize::from).collect(),
        timeout_ms: args.timeout.as_millis() as u64,
        is_look: args.look,
    };
    let failed = |error: io::Error| fault::Fault::environment(format!("trying a plugin: {error}"));
    if args.canary {
        return canary::work(&task).map_err(failed);
    }
    let Found { findings, help, .. } = find(&task).map_err(failed)?;
    if args.json {
        let text = serde_json::to_string_pretty(&findings).map_err(|error| failed(error.into()))?;
        say!("{text}");
    } else {
        findings.print();
    }
    match findings.verdict.exit_code() {
        exit::OK => Ok(()),
        code => {
            let text = findings.fault.map_or("it has no device".to_owned(), |fault| fault.text);
            let named = match text.starts_with(&args.library) {
                true => text,
                false => format!("{}: {text}", args.library),
            };
            let help = Some(help).filter(|help| !help.is_empty());
            Err(fault::Fault { help, ..fault::Fault::new(code, named) })
        }
    }
}

/// The result of a trial.
struct Found {
    findings: Findings,
    /// Fix for the fault, if one is known.
    help: String,
    /// Whether there is no library of this name.
    is_missing: bool,
}

/// Loads a plugin in a separate process, and asks for its devices.
fn look(library: &str) -> io::Result<Found> {
    let library = library.to_owned();
    find(&Task { library, version: None, devices: Vec::new(), timeout_ms: 20_000, is_look: true })
}

fn find(task: &Task) -> io::Result<Found> {
    let timeout = Duration::from_millis(task.timeout_ms);
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(env::current_exe()?);
    command.args(["nccl", "try", "--canary", &task.library]);
    command.args(task.is_look.then_some("--look"));
    command.arg("--timeout").arg(format!("{}ms", task.timeout_ms));
    command.args(task.version.map(|version| format!("--table={version}")));
    command.args(task.devices.iter().map(|device| format!("--device={device}")));
    let said = Kept::lines(SAID_MAX);
    let output = [Output::Kept(&said); 2];
    let mut canary = Worker::start_group(command, OwnedFd::from(theirs), output)?;
    let mut hearing = Hearing {
        findings: Findings::new(&task.library),
        call: "dlopen".to_owned(),
        words: Vec::new(),
        help: String::new(),
        is_missing: false,
    };
    ours.set_read_timeout(Some(timeout + GRACE))?;
    hearing.listen(ours, &mut canary, timeout)?;
    // This reads the rest of its output first.
    drop(canary);
    for line in said.text().lines() {
        keep(&mut hearing.findings.said, line.to_owned());
    }
    let Hearing { findings, help, is_missing, .. } = hearing;
    Ok(Found { findings, help, is_missing })
}

fn keep(lines: &mut Vec<String>, line: String) {
    if lines.len() < SAID_MAX && !line.trim().is_empty() && !lines.contains(&line) {
        lines.push(line);
    }
}

/// The canary's messages so far.
struct Hearing {
    findings: Findings,
    call: String,
    words: Vec<String>,
    /// Fix for the fault.
    help: String,
    is_missing: bool,
}

impl Hearing {
    fn listen(
        &mut self,
        from: UnixStream,
        child: &mut Worker,
        timeout: Duration,
    ) -> io::Result<()> {
        for line in Lines::of(from) {
            let line = match line {
                Ok(line) => line,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let text = format!("nothing came from its process any more in `{}`", self.call);
                    self.fault(Verdict::Fails, text);
                    return Ok(());
                }
                // The process ended before it had read everything.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => break,
                Err(error) => return Err(error),
            };
            match serde_json::from_str(&line) {
                Ok(event) => {
                    if self.hear(event) {
                        return self.last(child, timeout);
                    }
                }
                Err(_) => {
                    let text = format!("`{}` wrote to a descriptor that is not its own", self.call);
                    self.fault(Verdict::Fails, text);
                    return Ok(());
                }
            }
        }
        let text = match child.ended(NEWS)? {
            None => format!("`{}` closed a descriptor that is not its own", self.call),
            Some(status) => format!("`{}` {}", self.call, how(status)),
        };
        self.fault(Verdict::Fails, text);
        Ok(())
    }

    /// Takes an event. Returns whether it is the last one.
    fn hear(&mut self, event: Event) -> bool {
        let is_last = matches!(event, Event::Failed(_) | Event::Done);
        let found = &mut self.findings;
        match event {
            Event::Call(name) => self.call = name,
            Event::Tables(tables) => found.tables = tables,
            Event::Opened(version) => found.version = Some(version),
            Event::Devices(devices) => found.devices = devices,
            Event::Transfer(done) => found.transfers.push(done),
            Event::NotTried(what) => found.not_tried.push(what),
            Event::Untold(device) => {
                if let Some(device) = found.devices.get_mut(device) {
                    device.faults.push("does not tell the lengths of what it received".to_owned());
                }
            }
            Event::Left(left) => found.left = left,
            Event::NotClosed(fault) => found.close_faults.push(fault),
            Event::Log { is_warning, text } => {
                if is_warning {
                    keep(&mut found.said, text.clone());
                }
                self.words.push(text);
                let surplus = self.words.len().saturating_sub(LAST_WORDS);
                self.words.drain(..surplus);
            }
            Event::Failed(Failure::Missing(text, help)) => {
                self.is_missing = true;
                self.help = help;
                self.fault(Verdict::NoPlugin, text);
            }
            Event::Failed(Failure::Load(text, help)) => {
                self.help = help;
                self.fault(Verdict::NoPlugin, text);
            }
            Event::Failed(Failure::Call(text)) => self.fault(Verdict::Fails, text),
            Event::Failed(Failure::Data(text)) => self.fault(Verdict::WrongData, text),
            Event::Done => match found.close_faults.first() {
                None => found.judge(),
                Some(first) => {
                    self.call.clone_from(&first.call);
                    let all: Vec<String> =
                        found.close_faults.iter().map(CloseFault::words).collect();
                    self.fault(Verdict::Fails, all.join("; "));
                }
            },
        }
        is_last
    }

    /// Waits for the end of the canary, which has nothing else to do.
    fn last(&mut self, child: &mut Worker, timeout: Duration) -> io::Result<()> {
        if self.findings.fault.is_some() {
            return Ok(());
        }
        let ended = child.ended(timeout)?;
        let text = match ended {
            Some(status) if status.success() => return Ok(()),
            Some(status) => {
                format!("the end of its process, after everything was closed, {}", how(status))
            }
            None => format!("its process did not end in {timeout:?} after everything was closed"),
        };
        self.call = "exit".to_owned();
        self.fault(Verdict::Fails, text);
        Ok(())
    }

    fn fault(&mut self, verdict: Verdict, text: String) {
        let last_words = std::mem::take(&mut self.words);
        self.findings.fault = Some(Fault { call: self.call.clone(), text, last_words });
        self.findings.verdict = verdict;
    }
}
