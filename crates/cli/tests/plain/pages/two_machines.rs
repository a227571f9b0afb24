//! Tests the statements of `docs/two-machines.md` about ports, between two network namespaces.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use polyrail_lab::availability;
use serde_json::Value;

use crate::common::{PROGRAM, Process, polyrail};

const PORT: u16 = 5000;

/// A lab, removed on drop.
struct Lab(String);

impl Lab {
    fn up() -> Self {
        let lab = Self(format!("pages-{}", std::process::id()));
        let output = polyrail(["lab", "up", &lab.0, "--rails", "1gbit,1gbit"]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        lab
    }

    fn on(&self, side: &str, program: &str, words: &[&str]) -> Command {
        polyrail([&["lab", "exec", &self.0, side, "--", program], words].concat())
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // The panic of a failed test tells more than one from here.
        let _ = polyrail(["lab", "down", &self.0]).output();
    }
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Ports on which a side listens. The table has them in hexadecimal.
fn ports(lab: &Lab, side: &str) -> Vec<u16> {
    let table = text(&lab.on(side, "cat", &["/proc/net/tcp"]).output().unwrap());
    let rows = table.lines().skip(1).map(|row| row.split_whitespace().collect::<Vec<_>>());
    let listening = rows.filter(|row| row[3] == "0A");
    let port = |row: Vec<&str>| u16::from_str_radix(row[1].rsplit(':').next().unwrap(), 16);
    listening.map(|row| port(row).unwrap()).collect()
}

#[test]
fn one_port_at_both_ends_is_enough_and_there_are_no_others() {
    if let Err(missing) = availability() {
        let run = "sudo -E cargo test -p polyrail-cli --test plain pages::";
        return polyrail_skip::skip(missing.to_string(), run);
    }
    let lab = Lab::up();
    let mut listen = lab.on("b", PROGRAM, &["bench", "--listen", &format!("10.77.0.2:{PORT}")]);
    let child = listen.stdout(Stdio::piped()).spawn().unwrap();
    let mut listener = Process(child);
    let lines = BufReader::new(listener.0.stdout.take().unwrap()).lines();
    let mut lines = lines.map(|line| line.unwrap());
    let line = lines.find_map(|line| line.strip_prefix("elsewhere:").map(str::to_owned)).unwrap();
    let address = line.rsplit(' ').next().unwrap();
    assert_eq!(ports(&lab, "b"), [PORT, PORT], "one for each rail");

    let own = format!("listen_port={PORT}");
    let quick = ["--sizes", "8,64KiB", "--iters", "5", "--rounds", "2", "--warmup", "5ms"];
    let connect = ["bench", "--connect", address, "--set", &own, "--json", "-"];
    let report = text(&lab.on("a", PROGRAM, &[&connect[..], &quick].concat()).output().unwrap());
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["results"][1]["rails"].as_array().unwrap().len(), 2);
    assert_eq!(report["config"]["listen_port"]["value"], PORT);
    assert_eq!(report["peer"]["config"]["listen_port"]["value"], PORT);
}
