//! Members in separate processes, and etcd.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Condvar, Mutex, Once};
use std::time::{Duration, Instant};

use polyrail::{Config, Engine};
use polyrail_skip::HeldPort;
use rustix::process::{Pid, Signal, kill_process};

/// Much longer than any step takes, even on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A process that is killed at the end of the test.
pub(crate) struct Process {
    pub(crate) child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (sender, lines) = channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { stdin: child.stdin.take(), child, lines }
    }

    /// Reads until a line contains this text. Returns all lines read.
    pub(crate) fn until(&self, line: &str) -> Vec<String> {
        let until = Instant::now() + DEADLINE;
        let mut before = Vec::new();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(found) => {
                    before.push(found);
                    if before.last().is_some_and(|found| found.contains(line)) {
                        return before;
                    }
                }
                Err(error) => panic!("`{line}` did not come ({error}), but {before:?}"),
            }
        }
    }

    /// Returns the process's standard input, which closes when dropped.
    pub(crate) fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.stdin.take()
    }

    /// Waits for the process to end.
    pub(crate) fn wait(&mut self, timeout: Duration) -> ExitStatus {
        drop(self.stdin.take());
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < timeout, "it does not end");
            // The end of a child is signalled only by SIGCHLD, so poll.
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts a member that stays after it has found `count` members.
pub(crate) fn member(place: &str, group: &str, name: &str, count: usize) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rendezvous-member"));
    command.args([group, name, &count.to_string(), "stay"]).env("POLYRAIL_RENDEZVOUS", place);
    Process::start(&mut command)
}

pub(crate) fn config(place: &str) -> Config {
    let config = Config::builder().set("rails", "127.0.0.1").unwrap();
    config.set("rendezvous", place).unwrap().build().unwrap()
}

pub(crate) fn engine(place: &str) -> Engine {
    Engine::builder().config(config(place)).build().unwrap()
}

/// etcd on loopback. Its data outlive its process.
pub(crate) struct Etcd {
    process: Option<Process>,
    port: HeldPort,
    peer_port: HeldPort,
    folder: tempfile::TempDir,
}

impl Etcd {
    /// Starts etcd. Returns `None` and reports the test as skipped if etcd is not installed.
    pub(crate) fn start() -> Option<Self> {
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            polyrail_skip::skip(
                "the `etcd` program is missing (Debian: etcd-server)",
                "sudo apt-get install etcd-server && cargo test -p polyrail-rendezvous",
            );
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let [port, peer_port] = [(); 2].map(|()| HeldPort::new());
        let mut etcd = Self { process: None, port, peer_port, folder };
        etcd.run();
        Some(etcd)
    }

    /// Starts the process, also again with the same data, and waits until it answers.
    pub(crate) fn run(&mut self) {
        let [client, peers] =
            [&self.port, &self.peer_port].map(|port| format!("http://{}", port.address()));
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.folder.path().join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("default={peers}"), "--log-level", "error"]);
        command.stderr(Stdio::null());
        self.process = Some(Process::start(&mut command));
        let begin = Instant::now();
        while !self.answers() {
            assert!(begin.elapsed() < DEADLINE, "etcd does not answer");
            // etcd does not signal that it is ready, so poll.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn kill(&mut self) {
        self.process.take().unwrap().kill();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let child = &self.process.as_ref().unwrap().child;
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    pub(crate) fn forget(&self) {
        std::fs::remove_dir_all(self.folder.path().join("data")).unwrap();
    }

    pub(crate) fn place(&self, rest: &str) -> String {
        format!("etcd://{}{rest}", self.address())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Sends a request like any program. Returns the answer with its head.
    pub(crate) fn ask(&self, path: &str, body: &str) -> Option<String> {
        use std::io::Read;
        let mut socket = TcpStream::connect(self.address()).ok()?;
        socket.set_read_timeout(Some(DEADLINE)).ok()?;
        let length = body.len();
        let head = format!("POST {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n");
        socket.write_all(format!("{head}{body}").as_bytes()).ok()?;
        let mut answer = String::new();
        socket.read_to_string(&mut answer).ok()?;
        Some(answer)
    }

    fn answers(&self) -> bool {
        let answer = self.ask("/v3/kv/range", "{\"key\": \"AA==\"}");
        answer.is_some_and(|answer| answer.contains(" 200 ") && answer.contains("revision"))
    }
}

/// True if a folder has exactly `count` files.
pub(crate) fn has_files(folder: &Path, count: usize) -> bool {
    std::fs::read_dir(folder).is_ok_and(|files| files.count() == count)
}

/// Log of all tests of this process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());
static WRITTEN: Condvar = Condvar::new();

struct Log;

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap().extend_from_slice(bytes);
        WRITTEN.notify_all();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Log lines that contain `part`. The first call starts the log.
pub(crate) fn logged(part: &str) -> Vec<String> {
    static BEGIN: Once = Once::new();
    BEGIN.call_once(|| tracing_subscriber::fmt().with_writer(|| Log).with_ansi(false).init());
    let text = String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned();
    text.lines().filter(|line| line.contains(part)).map(str::to_owned).collect()
}

/// Waits until the log contains `part`.
pub(crate) fn wait_for_log(part: &str) {
    let has_not = |log: &mut Vec<u8>| !String::from_utf8_lossy(log).contains(part);
    let waited = WRITTEN.wait_timeout_while(LOG.lock().unwrap(), DEADLINE, has_not).unwrap();
    assert!(!waited.1.timed_out(), "the log never has {part}");
}
