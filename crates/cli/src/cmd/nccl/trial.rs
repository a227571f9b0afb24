//! `polyrail nccl try`: tries a plugin in a process of its own, so that nothing it does harms this one.

mod canary;
mod carried;
mod findings;
mod left;
mod pair;
mod watch;

use std::env;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use polyrail_report::exit;
use rustix::process::{Pid, Signal, kill_process_group};

use self::canary::{Event, Failure, Task};
use self::findings::{CloseFault, Fault, Findings, Verdict};
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
}

/// How much longer than a call may take the canary may be silent: then it is stopped, and can't tell so itself.
const GRACE: Duration = Duration::from_secs(2);
/// How long the end of a process and of its output may take.
const NEWS: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);
/// What is kept of what a plugin says.
const SAID_MAX: usize = 20;
const LAST_WORDS: usize = 5;

pub(super) fn run(args: &Args) -> Result<(), fault::Fault> {
    let task = Task {
        library: args.library.clone(),
        version: args.table,
        devices: args.device.iter().copied().map(usize::from).collect(),
        timeout_ms: args.timeout.as_millis() as u64,
    };
    let failed = |error: io::Error| fault::Fault::environment(format!("trying a plugin: {error}"));
    if args.canary {
        return canary::work(&task).map_err(failed);
    }
    let (findings, help) = find(args, task).map_err(failed)?;
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

/// What was found, and what helps, if that is known.
fn find(args: &Args, task: Task) -> io::Result<(Findings, String)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(env::current_exe()?);
    command.args(["nccl", "try", "--canary", &args.library]);
    command.arg("--timeout").arg(format!("{}ms", task.timeout_ms));
    command.args(args.table.map(|version| format!("--table={version}")));
    command.args(task.devices.iter().map(|device| format!("--device={device}")));
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Its children end with it.
    let mut child = Canary(command.process_group(0).spawn()?);
    // It holds the other end of the socket.
    drop(command);
    let said: Arc<Mutex<Vec<String>>> = Arc::default();
    let (over, outputs) = channel();
    let pipes: [Option<Box<dyn Read + Send>>; 2] = [
        child.0.stdout.take().map(|pipe| Box::new(pipe) as _),
        child.0.stderr.take().map(|pipe| Box::new(pipe) as _),
    ];
    for pipe in pipes.into_iter().flatten() {
        let (said, over) = (Arc::clone(&said), over.clone());
        let listen = move || {
            for line in Lines::of(pipe).map_while(Result::ok) {
                keep(&mut said.lock(), line);
            }
            // Nobody waits for it any more if this fails.
            let _ = over.send(());
        };
        thread::Builder::new().spawn(listen)?;
    }
    let mut hearing = Hearing {
        findings: Findings::new(&args.library),
        call: "dlopen".to_owned(),
        words: Vec::new(),
        help: String::new(),
    };
    ours.set_read_timeout(Some(args.timeout + GRACE))?;
    hearing.listen(ours, &mut child, args.timeout)?;
    child.end();
    wait_for(&outputs, NEWS);
    for line in said.lock().drain(..) {
        keep(&mut hearing.findings.said, line);
    }
    Ok((hearing.findings, hearing.help))
}

fn keep(lines: &mut Vec<String>, line: String) {
    if lines.len() < SAID_MAX && !line.trim().is_empty() && !lines.contains(&line) {
        lines.push(line);
    }
}

/// Until both outputs have ended. A process that the plugin has started may hold them for ever.
fn wait_for(outputs: &Receiver<()>, limit: Duration) {
    let until = Instant::now() + limit;
    for _ in 0..2 {
        if outputs.recv_timeout(until.saturating_duration_since(Instant::now())).is_err() {
            return;
        }
    }
}

/// Ends with this value, and with it what it has started.
struct Canary(Child);

impl Canary {
    fn end(&mut self) {
        // All of this fails only where it is gone already.
        if let Some(group) = Pid::from_raw(self.0.id() as i32) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// How it ended, if it does so in time.
    fn ended(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + limit;
        loop {
            // Nobody tells of the end of a process but this.
            match self.0.try_wait()? {
                None if Instant::now() < until => thread::sleep(LOOK),
                ended => return Ok(ended),
            }
        }
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the canary has said so far.
struct Hearing {
    findings: Findings,
    call: String,
    words: Vec<String>,
    /// What to do about a fault.
    help: String,
}

impl Hearing {
    fn listen(
        &mut self,
        from: UnixStream,
        child: &mut Canary,
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
                // The end of a process that has not read everything.
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

    /// Whether the canary says no more.
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

    /// The canary has only to end now.
    fn last(&mut self, child: &mut Canary, timeout: Duration) -> io::Result<()> {
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

/// What a function did that did not return.
pub(in crate::cmd) fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended the process with exit code {code}"),
        (_, Some(signal)) => format!("ended the process by signal {signal} ({})", name(signal)),
        _ => "ended the process".to_owned(),
    }
}

fn name(signal: i32) -> &'static str {
    match signal {
        4 => "illegal instruction",
        6 => "abort",
        7 => "bus error",
        8 => "arithmetic error",
        9 => "killed",
        11 => "segmentation fault",
        13 => "broken pipe",
        15 => "terminated",
        _ => "of some other cause",
    }
}
