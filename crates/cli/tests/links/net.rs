//! Networks like those of real hosts, unlike the rails of a lab: `ip` builds them from namespaces. Needs root and
//! iproute2.
//! iproute2.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{DEADLINE, PROGRAM};
use crate::lab::running_as_root;

const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Options of a run just long enough to see every rail carry. Its rate is that of the rails, not the machine's limit.
const SHORT: &str =
    "--sizes 256KiB --iters 32 --depth 8 --warmup 50ms --rounds 1 --verify sample --json -";

/// Namespaces of one test, removed on drop.
pub(crate) struct Net {
    prefix: String,
    nodes: Vec<String>,
    ports: usize,
}

/// Set once a test has called `ip netns`, which leaves its directory behind.
pub(crate) static WAS_USED: AtomicBool = AtomicBool::new(false);

/// Both ends of a `bench` between two nodes.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) listening: End,
    pub(crate) connecting: End,
}

/// Exit code and output of one command.
#[derive(Debug, Default)]
pub(crate) struct End {
    /// `None` if the command was killed, as the listening end is once the other has ended.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command that runs in a namespace.
pub(crate) struct Running {
    child: Child,
    lines: Receiver<String>,
    stdout: String,
    stderr: Option<thread::JoinHandle<String>>,
}

impl Net {
    /// A network with these nodes, without any interface but `lo`. The test is skipped if it can't be built.
    pub(crate) fn new(test: &str, nodes: &[&str]) -> Option<Self> {
        WAS_USED.store(true, Ordering::Relaxed);
        let missing = if !running_as_root() {
            Some("not root")
        } else if Command::new("ip").arg("-V").output().is_err() {
            Some("the `ip` program is missing (iproute2)")
        } else {
            None
        };
        if let Some(why) = missing {
            polyrail_skip::skip(why, "sudo -E cargo test -p polyrail-cli --test links");
            return None;
        }
        let prefix = format!("pr{}-{test}", std::process::id());
        let mut net = Self { prefix, nodes: Vec::new(), ports: 0 };
        for node in nodes {
            net.add_node(node);
        }
        Some(net)
    }

    /// Returns whether firewall rules can be set here; skips the test otherwise.
    pub(crate) fn has_firewall() -> bool {
        let found = Command::new("nft").arg("--version").output();
        if found.is_ok_and(|output| output.status.success()) {
            return true;
        }
        let command = "sudo apt install nftables; sudo -E cargo test -p polyrail-cli --test links";
        polyrail_skip::skip("the `nft` program is missing (nftables)", command);
        false
    }

    fn add_node(&mut self, node: &str) {
        let name = self.namespace(node);
        self.nodes.push(node.to_owned());
        shell(&["ip", "netns", "add", &name]);
        // Addresses skip duplicate detection unless a test wants it.
        self.sysctl(node, "net.ipv6.conf.all.accept_dad=0");
        self.sysctl(node, "net.ipv6.conf.default.accept_dad=0");
        self.ip(node, "link set lo up");
    }

    fn namespace(&self, node: &str) -> String {
        format!("{}-{node}", self.prefix)
    }

    /// Runs `ip` in a node's namespace; it must succeed.
    pub(crate) fn ip(&self, node: &str, arguments: &str) -> String {
        let namespace = self.namespace(node);
        let mut words = vec!["ip", "-n", &namespace];
        words.extend(arguments.split_whitespace());
        shell(&words)
    }

    /// Runs any program in a node's namespace; it must succeed.
    pub(crate) fn exec(&self, node: &str, line: &str) -> String {
        let namespace = self.namespace(node);
        let mut words = vec!["ip", "netns", "exec", &namespace];
        words.extend(line.split_whitespace());
        shell(&words)
    }

    pub(crate) fn sysctl(&self, node: &str, setting: &str) {
        self.exec(node, &format!("sysctl -qw {setting}"));
    }

    /// Adds a rule of nftables for packets that come in at a node, such as `tcp dport 22 drop`.
    pub(crate) fn firewall(&self, node: &str, rule: &str) {
        self.exec(node, "nft add table inet t");
        let chain = "{ type filter hook input priority 0 ; }";
        self.exec(node, &format!("nft add chain inet t in {chain}"));
        self.exec(node, &format!("nft add rule inet t in {rule}"));
    }

    /// Adds a NIC with these addresses at the Ethernet switch `lan`, which is made if it is missing. Returns the
    /// switch's port.
    pub(crate) fn nic(&mut self, node: &str, name: &str, lan: &str, addresses: &[&str]) -> String {
        if !self.nodes.iter().any(|node| node == "switch") {
            self.add_node("switch");
        }
        if !self.ip("switch", "-br link").lines().any(|line| line.starts_with(&format!("{lan} "))) {
            self.ip("switch", &format!("link add {lan} type bridge"));
            self.ip("switch", &format!("link set {lan} up"));
        }
        let port = self.wire(("switch", None), (node, name), addresses);
        self.ip("switch", &format!("link set {port} master {lan}"));
        port
    }

    /// Adds a link to the node `router`, which forwards. `near` is the node's address and `far` the router's, with
    /// prefixes.
    pub(crate) fn routed(&mut self, node: &str, name: &str, near: &str, far: &str) {
        if !self.nodes.iter().any(|node| node == "router") {
            self.add_node("router");
            self.sysctl("router", "net.ipv4.ip_forward=1");
            self.sysctl("router", "net.ipv6.conf.all.forwarding=1");
        }
        let port = self.wire(("router", None), (node, name), &[near]);
        self.address("router", &port, far);
    }

    /// Adds a veth pair whose second end has these addresses. A first end without a name gets one. Returns that name.
    pub(crate) fn wire(
        &mut self,
        first: (&str, Option<&str>),
        second: (&str, &str),
        addresses: &[&str],
    ) -> String {
        self.ports += 1;
        let port = first.1.map_or_else(|| format!("p{}", self.ports), str::to_owned);
        let ((node, _), (other, name)) = (first, second);
        let namespace = self.namespace(other);
        self.ip(node, &format!("link add {port} type veth peer name {name} netns {namespace}"));
        for address in addresses {
            self.address(other, name, address);
        }
        self.ip(node, &format!("link set {port} up"));
        self.ip(other, &format!("link set {name} up"));
        port
    }

    pub(crate) fn address(&self, node: &str, name: &str, address: &str) {
        let nodad = if address.contains(':') { "nodad" } else { "" };
        self.ip(node, &format!("addr add {address} dev {name} {nodad}"));
    }

    /// Limits the rate at which an interface sends.
    pub(crate) fn limit(&self, node: &str, name: &str, mbit: u32) {
        let bucket = format!("tbf rate {mbit}mbit burst 64k latency 20ms");
        self.exec(node, &format!("tc qdisc add dev {name} root {bucket}"));
    }

    /// Waits until the kernel has seen that the nodes' links have a carrier, which takes up to a second, and their
    /// addresses can be used.
    pub(crate) fn settle(&self) {
        let begin = Instant::now();
        for node in self.nodes.iter().filter(|node| *node != "switch" && *node != "router") {
            loop {
                let links = json(&self.ip(node, "-d -j addr show up"));
                let waits = |link: &&Value| {
                    let is_veth = link["linkinfo"]["info_kind"] == "veth";
                    let tentative = |address: &Value| address["tentative"] == true;
                    let addresses = link["addr_info"].as_array();
                    is_veth && link["operstate"] != "UP"
                        || addresses.is_some_and(|all| all.iter().any(tentative))
                };
                let Some(waiting) = links.as_array().unwrap().iter().find(waits) else { break };
                assert!(begin.elapsed() < DEADLINE, "{node}: {waiting}");
                // Polls: the kernel does not report that it has looked at a link.
                thread::sleep(LOOK_EVERY);
            }
        }
    }

    /// Runs `polyrail` on a node until it ends.
    pub(crate) fn polyrail(&self, node: &str, arguments: &str) -> End {
        self.start(node, arguments).end(Instant::now() + DEADLINE)
    }

    /// Starts `polyrail` on a node.
    pub(crate) fn start(&self, node: &str, arguments: &str) -> Running {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(node), PROGRAM]);
        command.args(arguments.split_whitespace());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (send, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        thread::spawn(move || {
            stdout.lines().map_while(Result::ok).try_for_each(|line| send.send(line))
        });
        let mut told = child.stderr.take().unwrap();
        let stderr = Some(thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = told.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        }));
        Running { child, lines, stdout: String::new(), stderr }
    }

    /// Runs `bench --listen` on one node and `bench --connect` on another, each with its options.
    pub(crate) fn bench(&self, listening: (&str, &str), connecting: (&str, &str)) -> Run {
        self.bench_while(listening, (connecting.0, &format!("{SHORT} {}", connecting.1)), || {})
    }

    /// Like [`Self::bench`] with all options given; calls `meanwhile` once both ends run.
    pub(crate) fn bench_while(
        &self,
        listening: (&str, &str),
        connecting: (&str, &str),
        meanwhile: impl FnOnce(),
    ) -> Run {
        let mut server = self.start(listening.0, &format!("bench --listen {}", listening.1));
        let line = server.wait_for_line("elsewhere:");
        let Some(target) =
            line.and_then(|line| line.rsplit_once(' ').map(|(_, key)| key.to_owned()))
        else {
            return Run {
                listening: server.end(Instant::now() + DEADLINE),
                connecting: End::default(),
            };
        };
        let client =
            self.start(connecting.0, &format!("bench --connect {target} {}", connecting.1));
        meanwhile();
        let connecting = client.end(Instant::now() + DEADLINE);
        Run { listening: server.end(Instant::now()), connecting }
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for node in &self.nodes {
            let _ = Command::new("ip").args(["netns", "del", &self.namespace(node)]).output();
        }
    }
}

impl Running {
    /// The first line that starts with `begins`; `None` if the output ends without one.
    pub(crate) fn wait_for_line(&mut self, begins: &str) -> Option<String> {
        let until = Instant::now() + DEADLINE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => {
                    let _ = writeln!(self.stdout, "{line}");
                    if line.starts_with(begins) {
                        return Some(line);
                    }
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return None,
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    panic!("no line `{begins}…`: {}", self.stdout)
                }
            }
        }
    }

    /// Waits for the command until `until`, then kills it. Returns its output.
    pub(crate) fn end(mut self, until: Instant) -> End {
        let status: Option<ExitStatus> = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if Instant::now() >= until => break None,
                // Polls: only a signal would report that the child has ended.
                None => thread::sleep(LOOK_EVERY),
            }
        };
        if status.is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        for line in self.lines.iter() {
            let _ = writeln!(self.stdout, "{line}");
        }
        let stderr = self.stderr.take().map(|reading| reading.join().unwrap());
        let code = status.and_then(|status| status.code());
        End { code, stdout: std::mem::take(&mut self.stdout), stderr: stderr.unwrap_or_default() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Run {
    /// Bytes that each rail of the connecting end carried. That end must have exited with 0.
    pub(crate) fn carried(&self) -> Vec<(String, u64)> {
        assert_eq!(self.connecting.code, Some(0), "{self}");
        let report = json(&self.connecting.stdout);
        let rails = report["results"][0]["rails"].as_array().cloned().unwrap_or_default();
        let read = |rail: &Value| {
            (rail["name"].as_str().unwrap().to_owned(), rail["bytes"].as_u64().unwrap())
        };
        rails.iter().map(read).collect()
    }

    /// GB/s of the run.
    pub(crate) fn rate(&self) -> f64 {
        json(&self.connecting.stdout)["results"][0]["gb_per_s"].as_f64().unwrap()
    }

    /// Checks that exactly these rails carried anything, and each more than an eighth of an equal share.
    #[track_caller]
    pub(crate) fn assert_carry(&self, wanted: &[&str]) {
        let carried = self.carried();
        let mut names: Vec<&str> =
            carried.iter().filter(|(_, bytes)| *bytes > 0).map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(names, wanted, "{carried:?}\n{self}");
        let all = carried.iter().map(|(_, bytes)| bytes).sum::<u64>();
        let least = all / (wanted.len() as u64 * 8);
        assert!(
            carried.iter().all(|(_, bytes)| *bytes == 0 || *bytes > least),
            "{carried:?}\n{self}"
        );
    }

    /// Checks that each end says all of these words, in upper or lower case.
    #[track_caller]
    pub(crate) fn assert_both_say(&self, words: &[&str]) {
        for end in [&self.listening, &self.connecting] {
            end.assert_says(words);
        }
    }
}

impl End {
    /// All text that the command wrote for people: of a report in JSON, only the notes and the error.
    pub(crate) fn said(&self) -> String {
        match serde_json::from_str::<Value>(&self.stdout) {
            Ok(report) => format!("{}\n{}\n{}", report["notes"], report["error"], self.stderr),
            Err(_) => format!("{}\n{}", self.stdout, self.stderr),
        }
    }

    /// Checks that the command says all of these words, in upper or lower case.
    #[track_caller]
    pub(crate) fn assert_says(&self, words: &[&str]) {
        let said = self.said().to_lowercase();
        for word in words {
            assert!(said.contains(&word.to_lowercase()), "`{word}` is not said by {self:?}");
        }
    }
}

impl std::fmt::Display for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { listening, connecting } = self;
        writeln!(f, "listening ({:?}): {}", listening.code, listening.said())?;
        write!(f, "connecting ({:?}): {}", connecting.code, connecting.said())
    }
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn shell(words: &[&str]) -> String {
    let output = Command::new(words[0]).args(&words[1..]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {told}", words.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
