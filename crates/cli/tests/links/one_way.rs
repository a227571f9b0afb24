//! Paths between two hosts that let some packets pass and drop others, and the errors that both ends print.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::common::PROGRAM;

/// Network namespaces, removed on drop.
struct Spaces(Vec<String>);

impl Spaces {
    fn new(test: &str, names: &[&str]) -> Self {
        let spaces: Vec<String> =
            names.iter().map(|name| format!("pr{test}{name}{}", std::process::id())).collect();
        for space in &spaces {
            crate::net::WAS_USED.store(true, Ordering::Relaxed);
            ip(&["netns", "add", space]);
            ip(&["-n", space, "link", "set", "lo", "up"]);
        }
        Self(spaces)
    }

    /// Links interfaces of two namespaces, with an address each.
    fn link(&self, [a, b]: [(usize, &str, &str); 2]) {
        let (one, other) = (&self.0[a.0], &self.0[b.0]);
        ip(&["link", "add", a.1, "netns", one, "type", "veth", "peer", b.1, "netns", other]);
        for ((space, name, address), namespace) in [(a, one), (b, other)] {
            debug_assert_eq!(self.0[space], *namespace);
            ip(&["-n", namespace, "addr", "add", address, "dev", name]);
            ip(&["-n", namespace, "link", "set", name, "up"]);
        }
    }

    fn run(&self, space: usize, words: &str) {
        let words: Vec<&str> = words.split(' ').collect();
        let done = Command::new("ip").args(["netns", "exec", &self.0[space]]).args(words).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    fn bench(&self, space: usize, args: &[&str]) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[space], PROGRAM, "bench"]);
        command.args(args).args(["--set", "rails==eth1", "--set", "peer_timeout_ms=2000"]);
        command
    }

    /// Standard error of a `bench` that fails to connect from space 1 to `listen` in space 0.
    fn refused(&self, listen: &str) -> String {
        let mut listener = self.bench(0, &["--listen", listen]);
        let child = listener.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut listener = Ending(child);
        let lines = BufReader::new(listener.0.stdout.take().unwrap()).lines();
        let mut lines = lines.map(|line| line.unwrap());
        let line = lines.find(|line| line.starts_with("elsewhere:")).unwrap();
        let there = line.rsplit(' ').next().unwrap();
        let quick = ["--connect", there, "--sizes", "1MiB", "--iters", "5", "--rounds", "1"];
        let connect = self.bench(1, &quick).stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
        let mut connect = Ending(connect.unwrap());
        let mut told = String::new();
        connect.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
        assert_eq!(connect.0.wait().unwrap().code(), Some(4), "{told}");
        told
    }
}

impl Drop for Spaces {
    fn drop(&mut self) {
        self.0.iter().for_each(|space| ip(&["netns", "del", space]));
    }
}

struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ip(args: &[&str]) {
    let done = Command::new("ip").args(args).output().unwrap();
    assert!(done.status.success(), "{args:?}: {done:?}");
}

/// Waits until the rails are up: a carrier takes a moment.
fn until_up(spaces: &Spaces) {
    let end = Instant::now() + Duration::from_secs(20);
    for space in &spaces.0[..2] {
        let shown = || Command::new("ip").args(["-n", space, "link", "show", "eth1"]).output();
        while !String::from_utf8_lossy(&shown().unwrap().stdout).contains("state UP") {
            assert!(Instant::now() < end, "eth1 of {space} is not up");
            // Polls: the kernel brings the carrier up.
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Returns whether the test can run, as root and with a firewall to set; skips it otherwise.
fn can_run() -> bool {
    let has_firewall =
        || Command::new("iptables").arg("-S").output().is_ok_and(|o| o.status.success());
    let why = match polyrail_lab::availability() {
        Ok(polyrail_lab::Privilege::Root) if has_firewall() => return true,
        Ok(polyrail_lab::Privilege::Root) => "iptables can't be used".to_owned(),
        Ok(_) => "namespaces with names are root's".to_owned(),
        Err(error) => error.to_string(),
    };
    polyrail_skip::skip(why, "sudo -E cargo test -p polyrail-cli --test links one_way");
    false
}

#[test]
fn a_firewall_that_lets_connections_in_one_way_is_named_at_the_end_behind_it() {
    if !can_run() {
        return;
    }
    let spaces = Spaces::new("fw", &["a", "b"]);
    spaces.link([(0, "eth1", "10.0.0.1/24"), (1, "eth1", "10.0.0.2/24")]);
    until_up(&spaces);
    spaces.run(1, "iptables -A INPUT -i eth1 -p tcp --syn -j DROP");
    let told = spaces.refused("10.0.0.1:5000");
    assert!(told.contains("it gave this engine up: none of its connections"), "{told}");
    assert!(told.contains("(10.0.0.1 to 10.0.0.2:") && told.contains("a firewall drops"), "{told}");
}

#[test]
fn a_way_with_a_smaller_mtu_that_drops_icmp_is_named_at_both_ends() {
    if !can_run() {
        return;
    }
    let spaces = Spaces::new("mtu", &["a", "b", "r", "s"]);
    spaces.link([(0, "eth1", "10.1.0.1/24"), (2, "ra", "10.1.0.254/24")]);
    spaces.link([(2, "mid", "10.9.0.1/24"), (3, "mid", "10.9.0.2/24")]);
    spaces.link([(3, "sb", "10.2.0.254/24"), (1, "eth1", "10.2.0.2/24")]);
    spaces.run(0, "ip route add default via 10.1.0.254");
    spaces.run(1, "ip route add default via 10.2.0.254");
    spaces.run(2, "ip route add 10.2.0.0/24 via 10.9.0.2");
    spaces.run(3, "ip route add 10.1.0.0/24 via 10.9.0.1");
    for router in [2, 3] {
        spaces.run(router, "ip link set mid mtu 1200");
        spaces.run(router, "sysctl -qw net.ipv4.ip_forward=1");
    }
    until_up(&spaces);
    for router in [2, 3] {
        spaces.run(router, "iptables -A OUTPUT -p icmp -j DROP");
    }
    let told = spaces.refused("10.1.0.1:5000");
    assert!(
        told.contains("bytes are not acknowledged, smaller ones were: a smaller MTU"),
        "{told}"
    );
}
