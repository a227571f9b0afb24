//! Nodes on hosts that `ssh` reaches.
//!
//! Each host is asked for its version first, so that nothing is started before all of them answer. Then each worker
//! there has a separate connection. The worker sends its engine's metadata as its first line ([`super::meet`]). It ends
//! with the connection, which closes its standard input.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use polyrail_config::steers;
use polyrail_report::exit;

use crate::crew::{Kept, Output, Worker};
use crate::fault::Fault;
use crate::interrupt::Interrupt;
use crate::progress::{Progress, show_time};
use crate::stdout::excerpt;
use crate::values::Refusal;

/// Name of a host that is this one: `ssh` is not needed.
const HERE: &str = "localhost";

/// Hosts by their names for `ssh`, one for each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts(pub(crate) Vec<String>);

/// Hosts, and the options for starting programs on them.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) hosts: Vec<String>,
    /// Command `polyrail` on the hosts.
    pub(crate) program: String,
    /// A file for `ssh -F`.
    pub(crate) ssh_config: Option<PathBuf>,
    pub(crate) own: PathBuf,
    /// Time limit for a host to answer.
    pub(crate) timeout: Duration,
}

const HOSTS: &str = "2 to 256 different names for `ssh`, like a,b or root@10.0.0.1,root@10.0.0.2";
const HOSTS_MAX: usize = 256;

/// Parses `a,b`. Refuses a name that `ssh` would take for an option, or a shell for more than a word.
pub(crate) fn hosts(text: &str) -> Result<Hosts, Refusal> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
    let is_good = |one: char| one.is_ascii_alphanumeric() || "._@:/[]%-".contains(one);
    for (at, name) in names.iter().enumerate() {
        if name.is_empty() || name.starts_with('-') || !name.chars().all(is_good) {
            return Err(Refusal::new(format!("has `{}`, which is no host", excerpt(name)), HOSTS));
        }
        if names[..at].contains(name) {
            return Err(Refusal::new(format!("has `{name}` twice"), HOSTS));
        }
    }
    match names.len() {
        2..=HOSTS_MAX => Ok(Hosts(names)),
        1 => Err(Refusal::new("is one host", HOSTS)),
        _ => Err(Refusal::new("are too many hosts", HOSTS)),
    }
}

/// Maximum length of a path.
const PROGRAM_MAX: usize = 4096;

/// Parses the command `polyrail` of another host: one word for its shell.
pub(crate) fn program(text: &str) -> Result<String, Refusal> {
    let allowed =
        "a command or a path without control characters, such as /opt/polyrail/bin/polyrail";
    let is_bad = text.starts_with('-') || text.contains(steers);
    if text.is_empty() || text.len() > PROGRAM_MAX || is_bad {
        return Err(Refusal::new("is no command", allowed));
    }
    Ok(text.to_owned())
}

impl Remote {
    /// Command that runs `polyrail` with these arguments on the host of a node. Its standard input must stay open as
    /// long as the program is to run.
    pub(crate) fn command(&self, node: usize, words: &[String]) -> Command {
        let host = &self.hosts[node];
        if host == HERE {
            let mut command = Command::new(&self.own);
            command.args(words);
            return command;
        }
        let mut command = Command::new("ssh");
        // `ssh` asks no question, and gets no terminal and no forwarded ports that another connection may have. It
        // makes a separate connection, with which everything there ends. Keepalives notice a host that is cut off.
        let seconds = self.timeout.as_secs().max(1);
        let connect = format!("ConnectTimeout={seconds}");
        for option in [
            "BatchMode=yes",
            &connect,
            "ControlPath=none",
            "ClearAllForwardings=yes",
            "ServerAliveInterval=5",
        ] {
            command.args(["-o", option]);
        }
        if let Some(file) = &self.ssh_config {
            command.arg("-F").arg(file);
        }
        // The shell there gets one text. `exec` replaces the shell, which would outlive the program.
        let all = [&self.program].into_iter().chain(words).map(|word| quoted(word));
        let text = format!("exec {}", all.collect::<Vec<_>>().join(" "));
        command.args(["-T", "--", host, &text]);
        command
    }

    /// Asks every host for its version, all at once.
    pub(crate) fn check(&self, interrupt: &Interrupt) -> Result<(), Fault> {
        let version = ["--version".to_owned()];
        let mut asked = Vec::new();
        for node in 0..self.hosts.len() {
            let command = self.command(node, &version);
            let step = format!("starting `{}`", Path::new(command.get_program()).display());
            let asking = Asked::start(command);
            asked.push(asking.map_err(|source| Fault::system(step, source))?);
        }
        // `ssh` may wait for longer than its own limit, as for a host that accepts a connection and sends nothing.
        let patience = self.timeout + CONNECTED;
        let until = Instant::now() + patience;
        let asking = |host: &str| format!("asking {host} which polyrail it has");
        let progress = Progress::waiting(&asking(&self.hosts[0]));
        progress.plan_time(patience);
        progress.bound("at most");
        for (asked, host) in asked.into_iter().zip(&self.hosts) {
            progress.say(asking(host));
            let trouble = match asked.answer(until, interrupt)? {
                Some(answer) => answer.trouble(&self.program),
                None => Some((Trouble::Away, format!("no answer for {}", show_time(patience)))),
            };
            if let Some((trouble, why)) = trouble {
                return Err(trouble.fault(host, &why));
            }
        }
        Ok(())
    }
}

/// Time for a signal to reach all processes of this run.
const SIGNALLED: Duration = Duration::from_millis(100);

/// Extra time after connecting, for the login and the program.
const CONNECTED: Duration = Duration::from_secs(5);

/// A fault of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// `ssh` can't reach the host.
    Away,
    /// The host has no program that answers.
    NoProgram,
    /// The program on the host is another version or build.
    OtherVersion,
}

impl Trouble {
    fn fault(self, host: &str, why: &str) -> Fault {
        let (words, help) = match self {
            Self::Away => {
                let help = "works, or give --ssh-config";
                let help = format!("see that `ssh -o BatchMode=yes {host} true` {help}");
                ("can't be reached", help)
            }
            Self::NoProgram => {
                let help = "install polyrail there, or give its path by --remote-program";
                ("has no polyrail", help.to_owned())
            }
            Self::OtherVersion => {
                let help =
                    "install the same build there, or give the path of one by --remote-program";
                ("has another polyrail", help.to_owned())
            }
        };
        Fault::new(exit::PEER, format!("host `{host}` {words}: {why}")).with_help(help)
    }
}

/// A question to a host.
struct Asked {
    worker: Worker,
    stdout: Kept,
    stderr: Kept,
}

struct Answer {
    status: ExitStatus,
    stdout: String,
    stderr: String,
}

impl Asked {
    fn start(command: Command) -> io::Result<Self> {
        let (stdout, stderr) = (Kept::bytes(ANSWER_MAX), Kept::bytes(ANSWER_MAX));
        let output = [Output::Kept(&stdout), Output::Kept(&stderr)];
        let worker = Worker::start(command, Stdio::null(), output)?;
        Ok(Self { worker, stdout, stderr })
    }

    /// Returns `None` if there is no answer in time.
    fn answer(self, until: Instant, interrupt: &Interrupt) -> Result<Option<Answer>, Fault> {
        let Self { mut worker, stdout, stderr } = self;
        let left = until.saturating_duration_since(Instant::now());
        let ended = worker.ended_unless(left, interrupt);
        let ended = ended.map_err(|source| Fault::system("waiting for ssh", source))?;
        // Ctrl-C ends `ssh`, too, maybe before this process notices it.
        let soon = Instant::now() + SIGNALLED;
        while ended.is_none_or(|status| !status.success()) && Instant::now() < soon {
            if interrupt.is_raised() {
                return Err(Fault::interrupted());
            }
            thread::sleep(Duration::from_millis(5));
        }
        // This reads the rest of its output first.
        drop(worker);
        Ok(ended.map(|status| Answer { status, stdout: stdout.text(), stderr: stderr.text() }))
    }
}

const ANSWER_MAX: usize = 1 << 16;

impl Answer {
    fn trouble(&self, program: &str) -> Option<(Trouble, String)> {
        let last =
            |text: &str| text.lines().map(str::trim).rfind(|line| !line.is_empty()).map(excerpt);
        // A shell there may have printed a greeting first.
        let theirs =
            self.stdout.lines().filter_map(|line| line.strip_prefix("polyrail ")).next_back();
        let version = theirs.map(|line| excerpt(&crate::version::build_of(line.trim_end())));
        let ours = crate::version::build();
        match (self.status.code(), version) {
            // A signal ended `ssh`, so nothing is known about the host.
            (None, _) => Some((Trouble::Away, format!("who asked it was ended ({})", self.status))),
            (Some(0), Some(version)) if version == ours => None,
            (Some(0), Some(version)) => {
                let why = format!("its polyrail is {version}, and this one is {ours}");
                Some((Trouble::OtherVersion, why))
            }
            (Some(SSH_FAILED), _) => {
                Some((Trouble::Away, last(&self.stderr).unwrap_or_else(|| "ssh failed".into())))
            }
            _ => {
                let said = last(&self.stderr).or_else(|| last(&self.stdout));
                let said = said.map_or(String::new(), |said| format!(": {said}"));
                Some((
                    Trouble::NoProgram,
                    format!("`{} --version` told no version{said}", excerpt(program)),
                ))
            }
        }
    }
}

/// Exit code of `ssh` when it fails itself. Otherwise it has the program's exit code.
const SSH_FAILED: i32 = 255;

/// Quotes any text as one word for a shell.
fn quoted(word: &str) -> String {
    let is_plain = |one: char| one.is_ascii_alphanumeric() || "/._-=+:,@".contains(one);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn what_ssh_or_a_shell_would_take_for_something_else_is_no_host() {
        assert_eq!(hosts("a, root@b.example").unwrap().0, ["a", "root@b.example"]);
        for wrong in ["a", "a,", "a,-oProxyCommand=x", "a,b c", "a,$(x)", "a,b,a", "a,b;x", ""] {
            assert!(hosts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_shell_gives_back_every_word_as_it_was() {
        let words = [
            "",
            "a b",
            "it's",
            "$(touch /tmp/x)",
            "`x`",
            "a\\'b",
            "*",
            "~",
            "\n",
            "ä;&|<>\"",
            "plain/1",
        ];
        let line = words.map(quoted).join(" ");
        let script = format!("for word in {line}; do printf '%s\\0' \"$word\"; done");
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        let back = String::from_utf8(output.stdout).unwrap();
        assert_eq!(back.split_terminator('\0').collect::<Vec<_>>(), words);
    }

    #[test]
    fn each_fault_of_a_host_is_told_apart() {
        let answer = |code, stdout: &str, stderr: &str| {
            let (stdout, stderr) = (stdout.to_owned(), stderr.to_owned());
            Answer { status: ExitStatus::from_raw(code << 8), stdout, stderr }.trouble("p")
        };
        let own = format!("welcome\npolyrail {}\n", crate::version::VERSION);
        assert_eq!(answer(0, &own, ""), None);
        let other_target = own.replace(env!("BUILT_TARGET"), "aarch64-unknown-linux-musl");
        assert_eq!(answer(0, &other_target, ""), None);
        let other_commit = own.replace(env!("BUILT_COMMIT"), "0123456789ab");
        for other in ["polyrail 9.9.9\n", &other_commit] {
            let (fault, why) = answer(0, other, "").unwrap();
            assert_eq!(fault, Trouble::OtherVersion, "{why}");
            assert!(
                why.ends_with(&format!(", and this one is {}", crate::version::build())),
                "{why}"
            );
        }
        let (fault, why) = answer(255, "", "x\nssh: connect: refused\n").unwrap();
        assert_eq!((fault, &*why), (Trouble::Away, "ssh: connect: refused"));
        let (fault, why) = answer(127, "", "sh: p: not found\n").unwrap();
        assert_eq!(fault, Trouble::NoProgram);
        assert_eq!(why, "`p --version` told no version: sh: p: not found");
        let (stdout, stderr) = (String::new(), String::new());
        let killed = Answer { status: ExitStatus::from_raw(9), stdout, stderr };
        let (fault, why) = killed.trouble("p").unwrap();
        assert_eq!((fault, &*why), (Trouble::Away, "who asked it was ended (signal: 9 (SIGKILL))"));
    }
}
