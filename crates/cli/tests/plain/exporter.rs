//! `polyrail exporter` with two engines, scraped by a real Prometheus that answers every query of the dashboard.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::time::Instant;
use std::{env, fs};

use polyrail::{Config, Engine, Memory, Peer, Region, RemoteRegion};
use polyrail_skip::{HeldPort, skip};
use rustix::process::Signal;
use serde_json::Value;

use crate::common::{DEADLINE, Process, polyrail, repository, wait_until};

/// If set, the test binary plays the second engine.
const FOLDER: &str = "POLYRAIL_TEST_EXPORTER";
const MARK: &str = "@@ ";
const BYTES: u64 = 1 << 20;

fn engine(name: &str, folder: &Path) -> Engine {
    let listen = format!("dir:{}", folder.display());
    let config = Config::builder().set("rails", "127.0.0.1").unwrap();
    let config = config.set("path", "device").unwrap();
    let config = config.set("metrics_listen", &listen).unwrap().build().unwrap();
    Engine::builder().config(config).name(name).build().unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|two| u8::from_str_radix(str::from_utf8(two).unwrap(), 16).unwrap()).collect()
}

/// In the child, plays the second engine until its input ends. In the test itself, does nothing.
fn play() {
    let Some(folder) = env::var_os(FOLDER) else { return };
    let engine = engine("second", Path::new(&folder));
    let region = engine.register(Memory::from(vec![7; BYTES as usize])).unwrap();
    println!("{MARK}{} {}", hex(&engine.metadata()), hex(&region.describe()));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(engine);
    std::process::exit(0);
}

/// Two engines in two processes, with something to count.
struct Engines {
    first: Engine,
    peer: Peer,
    here: Region,
    there: RemoteRegion,
    _second: Process,
}

impl Engines {
    fn start(test: &str, folder: &Path) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let second = Process(child);
        let mut lines = output.lines().map_while(Result::ok);
        let said = lines.find_map(|line| Some(line.split_once(MARK)?.1.to_owned()));
        let (metadata, region) = said.as_deref().and_then(|said| said.split_once(' ')).unwrap();
        let first = engine("first", folder);
        let peer = first.add_peer(&unhex(metadata)).unwrap();
        let there = first.import(&unhex(region)).unwrap();
        let here = first.register(Memory::from(vec![0; BYTES as usize])).unwrap();
        Self { first, peer, here, there, _second: second }
    }

    /// Writes and reads three sizes, and cancels one receive.
    fn work(&self) {
        for bytes in [100, 10_000, BYTES] {
            let (here, there) = (self.here.slice(0, bytes), self.there.slice(0, bytes));
            let (here, there) = (here.unwrap(), there.unwrap());
            self.first.write(&self.peer, &here, &there).unwrap().join().unwrap();
            self.first.read(&self.peer, &here, &there).unwrap().join().unwrap();
        }
        let receive = self.first.receive(&self.peer, 1, &self.here.all()).unwrap();
        receive.cancel();
        assert!(receive.join().is_err());
    }
}

/// Starts the exporter on any port and waits until it prints its address.
fn exporter(folder: &Path) -> (Process, SocketAddr) {
    let (process, address, _) = exporter_that_tells(Some(folder));
    (process, address)
}

/// Like [`exporter`], and also returns the rest of its standard error.
fn exporter_that_tells(folder: Option<&Path>) -> (Process, SocketAddr, BufReader<ChildStderr>) {
    let mut child = polyrail(["exporter", "--listen", "127.0.0.1:0"])
        .args(folder.into_iter().flat_map(|folder| [OsStr::new("--dir"), folder.as_os_str()]))
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut told = BufReader::new(child.stderr.take().unwrap());
    told.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("metrics are at http://").unwrap_or_default();
    let address = address.strip_suffix("/metrics").unwrap_or_default().parse();
    (Process(child), address.unwrap_or_else(|_| panic!("it said {line}")), told)
}

/// The body of the answer, if its status is 200.
fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    // HTTP/1.0 has no chunked answers.
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.split(' ').nth(1).filter(|status| *status == "200")?;
    Some(body.to_owned())
}

fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric();
    let one = |byte: u8| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}

/// Result of a query to Prometheus.
fn found(prometheus: SocketAddr, query: &str) -> Result<Vec<Value>, String> {
    let path = format!("/api/v1/query?query={}", quoted(query));
    let body = get(prometheus, &path).ok_or_else(|| format!("refused: {query}"))?;
    let answer: Value = serde_json::from_str(&body).map_err(|error| error.to_string())?;
    Ok(answer["data"]["result"].as_array().cloned().unwrap_or_default())
}

fn dashboard() -> Value {
    let path = repository().join("deploy/grafana/polyrail.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Every query of the dashboard, with its variables filled in.
fn queries() -> Vec<String> {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().into_iter().flatten());
    let queries = targets.map(|target| {
        let query = target["expr"].as_str().unwrap();
        let query = ["$job", "$instance", "$engine"]
            .iter()
            .fold(query.to_owned(), |query, name| query.replace(name, ".*"));
        query.replace("$__rate_interval", "5s")
    });
    queries.collect()
}

/// A Prometheus that scrapes the exporter five times a second; `None` if the program is missing.
fn prometheus(exporter: SocketAddr, folder: &Path) -> Option<(Process, HeldPort)> {
    let config = format!(
        "global:\n  scrape_interval: 200ms\n  scrape_timeout: 200ms\nscrape_configs:\n  \
         - job_name: polyrail\n    static_configs:\n      - targets: ['{exporter}']\n"
    );
    let file = folder.join("prometheus.yml");
    fs::write(&file, config).unwrap();
    let port = HeldPort::new();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", file.display()))
        .arg(format!("--storage.tsdb.path={}", folder.join("data").display()))
        .arg(format!("--web.listen-address={}", port.address()))
        .arg("--log.level=error")
        .stdout(Stdio::null())
        .spawn()
        .ok()?;
    Some((Process(child), port))
}

#[test]
fn prometheus_answers_every_query_of_the_dashboard() {
    play();
    let (sockets, scratch) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let engines =
        Engines::start("exporter::prometheus_answers_every_query_of_the_dashboard", sockets.path());
    let (_exporter, exported) = exporter(sockets.path());
    let Some((_prometheus, port)) = prometheus(exported, scratch.path()) else {
        let run =
            "sudo apt-get install prometheus && cargo test -p polyrail-cli --test plain exporter::";
        return skip("the `prometheus` program is missing", run);
    };
    let prometheus = port.address();
    wait_until("prometheus", || get(prometheus, "/-/ready").is_some());
    let queries = queries();
    assert!(queries.len() > 25, "{queries:?}");
    let mut left: Vec<&String> = queries.iter().collect();
    let since = Instant::now();
    while !left.is_empty() {
        assert!(since.elapsed() < DEADLINE, "no data for {left:#?}");
        // Rates need ongoing work.
        engines.work();
        left.retain(|query| {
            let data = found(prometheus, query).unwrap_or_else(|error| panic!("{error}"));
            // Queries without data give NaN.
            !data.iter().any(|one| one["value"][1].as_str().is_some_and(|it| it != "NaN"))
        });
    }
    let page = fs::read_to_string(repository().join("docs/metrics.md")).unwrap();
    let questions = page.split("```promql\n").nth(1).unwrap().split("```").next().unwrap();
    for question in questions.lines().map(|line| line.split('#').next().unwrap().trim()) {
        found(prometheus, question).unwrap_or_else(|error| panic!("{error}"));
    }
    let up = found(prometheus, "polyrail_up == 1").unwrap();
    let pids: BTreeSet<_> = up.iter().map(|one| one["metric"]["pid"].to_string()).collect();
    assert_eq!(pids.len(), 2, "{up:?}");
    let engines_up = found(prometheus, "polyrail_engine_info").unwrap();
    let names: BTreeSet<_> =
        engines_up.iter().filter_map(|one| one["metric"]["engine"].as_str()).collect();
    assert_eq!(names, BTreeSet::from(["first", "second"]));
    // On a loaded machine some scrapes are late, but not all.
    wait_until("a scrape without an error", || {
        let targets = get(prometheus, "/api/v1/targets").unwrap();
        let targets: Value = serde_json::from_str(&targets).unwrap();
        let target = &targets["data"]["activeTargets"][0];
        target["health"] == "up" && target["lastError"] == ""
    });
}

#[test]
fn the_dashboard_asks_for_metrics_that_there_are() {
    let known: BTreeSet<String> = polyrail_metrics::families::all()
        .map(polyrail_metrics::families::Family::full_name)
        .collect();
    let mut asked = BTreeSet::new();
    for query in queries() {
        let words = query.split(|one: char| !one.is_ascii_alphanumeric() && one != '_');
        for word in words.filter(|word| word.starts_with("polyrail_")) {
            let name = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(known.contains(name), "{name} in {query}");
            asked.insert(name.to_owned());
        }
    }
    assert!(asked.len() > 20, "{asked:?}");
    let dashboard = dashboard();
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let query = variable["query"]["query"].as_str().unwrap_or("label_values(polyrail_up, job)");
        assert!(query.starts_with("label_values(polyrail_"), "{query}");
    }
    // Grafana 10.
    assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 38));
}

#[test]
fn it_ends_at_a_signal_and_a_killed_engine_goes_from_its_page() {
    play();
    let sockets = tempfile::tempdir().unwrap();
    let test = "exporter::it_ends_at_a_signal_and_a_killed_engine_goes_from_its_page";
    let mut engines = Engines::start(test, sockets.path());
    let (mut exporter, address) = exporter(sockets.path());
    let page = || get(address, "/metrics").unwrap();
    for engine in ["engine=\"first\"", "engine=\"second\""] {
        assert!(page().contains(engine), "{}", page());
    }
    engines._second.0.kill().unwrap();
    engines._second.0.wait().unwrap();
    wait_until("the engine to go from the page", || !page().contains("engine=\"second\""));
    assert!(page().contains("polyrail_exporter_sockets_removed_total 1\n"), "{}", page());
    let left: Vec<PathBuf> =
        fs::read_dir(sockets.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(left.len(), 1, "{left:?}");
    exporter.signal(Signal::TERM);
    assert_eq!(exporter.0.wait().unwrap().code(), Some(0));
    drop(engines);
    assert_eq!(fs::read_dir(sockets.path()).unwrap().count(), 0, "the first left its socket");
}

#[test]
fn without_a_folder_it_shows_the_engines_of_this_user() {
    if Path::new("/run/polyrail").exists() {
        return skip("/run/polyrail is there, and the exporter reads it", "rmdir /run/polyrail");
    }
    let config = Config::builder().set("rails", "127.0.0.1").unwrap().build().unwrap();
    let engine = Engine::builder().config(config).name("without a folder").build().unwrap();
    let (_exporter, address, mut told) = exporter_that_tells(None);
    let mut line = String::new();
    told.read_line(&mut line).unwrap();
    assert!(line.contains("this user's engines") && line.contains("--dir FOLDER"), "{line}");
    let pid = format!("pid=\"{}\",engine=\"without a folder\"", std::process::id());
    wait_until("the engine", || get(address, "/metrics").is_some_and(|page| page.contains(&pid)));
    drop(engine);
}

#[test]
fn a_port_in_use_is_refused_in_the_form_of_the_house() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = polyrail(["exporter", "--dir", "/", "--listen", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    let told = String::from_utf8(output.stderr).unwrap();
    let start = format!("polyrail: --listen `{address}`: can't listen: ");
    assert!(told.starts_with(&start) && told.contains("; allowed: "), "{told}");
    assert!(told.lines().nth(1).is_some_and(|line| line.starts_with("help: ")), "{told}");
}

#[test]
fn a_folder_that_goes_is_told_once_and_so_is_its_return() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("sockets");
    fs::create_dir(&folder).unwrap();
    let (exporter, address, mut told) = exporter_that_tells(Some(&folder));
    let is_readable = |readable: u32| {
        let says = format!("polyrail_exporter_folder_readable {readable}\n");
        // The exporter caches a page for a moment.
        wait_until(&says, || get(address, "/metrics").is_some_and(|page| page.contains(&says)));
    };
    is_readable(1);
    fs::remove_dir(&folder).unwrap();
    is_readable(0);
    fs::create_dir(&folder).unwrap();
    is_readable(1);
    drop(exporter);
    let mut text = String::new();
    told.read_to_string(&mut text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(
        lines[0].contains("the folder can't be read") && lines[0].contains("os error 2"),
        "{text}"
    );
    assert!(lines[1].contains("the folder can be read again"), "{text}");
}

#[test]
fn a_folder_that_is_not_there_is_refused_with_how_to_make_one() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("sockets");
    let output =
        polyrail(["exporter", "--listen", "127.0.0.1:0", "--dir"]).arg(&missing).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(told.contains(missing.to_str().unwrap()) && told.contains("does not exist"), "{told}");
    assert!(told.contains("help: make one that the programs may write to, `mkdir"), "{told}");
    assert!(told.contains("metrics_listen=dir:FOLDER"), "{told}");
}
