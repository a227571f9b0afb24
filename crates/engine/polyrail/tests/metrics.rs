//! Metrics of engines, as Prometheus reads them.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use common::*;
use polyrail::{Engine, EngineError, Explain, Peer, Region};
use polyrail_metrics::families::engine as families;
use polyrail_skip::HeldPort;

/// A page by name and labels.
type Page = BTreeMap<String, f64>;

fn read(mut stream: impl Read + Write) -> Page {
    stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let samples = body.lines().filter(|line| !line.starts_with('#'));
    let pairs = samples.map(|line| line.rsplit_once(' ').unwrap());
    pairs.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

fn page(path: &Path) -> Page {
    read(UnixStream::connect(path).unwrap())
}

/// Returns the sum of all samples with that name and all these labels.
fn sum(page: &Page, name: &str, labels: &[(&str, &str)]) -> f64 {
    let has = |series: &str, (label, value): &(&str, &str)| {
        let at = series.find(&format!("{label}=\"{value}\""));
        at.is_some_and(|at| series[..at].ends_with(['{', ',']))
    };
    let is_it = |series: &str| {
        series.split('{').next() == Some(name) && labels.iter().all(|label| has(series, label))
    };
    page.iter().filter(|(series, _)| is_it(series)).map(|(_, value)| value).sum()
}

/// Makes an engine that serves its metrics at this socket.
fn served(path: &Path, name: &str) -> Engine {
    let listen = format!("unix:{}", path.display());
    let config = config(&[("metrics_listen", &listen)]);
    builder().config(config).name(name).build().unwrap()
}

struct Pair {
    a: Engine,
    to_b: Peer,
    b: Engine,
    from: Region,
    to: Region,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn served_pair() -> Pair {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let a = served(&path, "a");
    let b = builder().config(config(&[])).name("b").build().unwrap();
    let to_b = a.add_peer(&b.metadata()).unwrap();
    b.add_peer(&a.metadata()).unwrap();
    let (from, to) = (filled(&a, 4 << 20, 5), zeroed(&b, 4 << 20));
    Pair { a, to_b, b, from, to, path, _folder: folder }
}

#[test]
fn what_answers_polyrail_top_has_another_name_than_what_metrics_listen_asked_for() {
    let _pair = served_pair();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: PathBuf| std::fs::read_to_string(task.join("comm")).unwrap_or_default();
    let names: Vec<String> = tasks.map(|task| name(task.unwrap().path())).collect();
    for wanted in ["pr-metrics\n", "pr-top\n"] {
        assert!(names.iter().any(|name| name == wanted), "{wanted}: {names:?}");
    }
}

#[test]
fn transfers_are_counted_by_operation_path_and_peer_and_timed_by_size() {
    let pair = served_pair();
    let there = remote(&pair.b, &pair.to);
    for bytes in [100, 4 << 20, 4 << 20] {
        let (from, to) = (pair.from.slice(0, bytes).unwrap(), there.slice(0, bytes).unwrap());
        finished(&pair.a.write(&pair.to_b, &from, &to).unwrap());
    }
    finished(&pair.a.read(&pair.to_b, &pair.from.all(), &there.all()).unwrap());
    let page = page(&pair.path);
    let write = [("engine", "a"), ("peer", "b"), ("kind", "write"), ("path", "tcp")];
    assert_eq!(sum(&page, "polyrail_transfers_total", &write), 3.0, "{page:#?}");
    let bytes = sum(&page, "polyrail_transfer_bytes_total", &write);
    assert_eq!(bytes, f64::from((8 << 20) + 100));
    let large = [("path", "tcp"), ("size", "16MiB"), ("le", "+Inf")];
    assert_eq!(sum(&page, "polyrail_transfer_duration_seconds_bucket", &large), 3.0);
    let count = "polyrail_transfer_duration_seconds_count";
    assert_eq!(sum(&page, count, &[("size", "4KiB")]), 1.0);
    assert!(sum(&page, "polyrail_transfer_duration_seconds_sum", &[]) > 0.0);
    let rails = [("peer", "b")];
    assert!(sum(&page, "polyrail_rail_sent_bytes_total", &rails) >= bytes);
    assert!(sum(&page, "polyrail_rail_received_bytes_total", &rails) >= f64::from(4 << 20));
    assert!(sum(&page, "polyrail_rail_flows", &[("state", "up")]) > 0.0);
    assert_eq!(sum(&page, "polyrail_operations", &[]), 0.0);
    assert_eq!(sum(&page, "polyrail_peers", &[("engine", "a")]), 1.0);
    let about = [("auth", "on"), ("payload", "none"), ("version", env!("CARGO_PKG_VERSION"))];
    assert_eq!(sum(&page, "polyrail_engine_info", &about), 1.0);
}

#[test]
fn failures_are_counted_by_reason() {
    let pair = served_pair();
    let receive = pair.a.receive(&pair.to_b, 1, &pair.from.all()).unwrap();
    receive.cancel();
    assert!(receive.ended().is_err());
    let there = remote(&pair.b, &pair.to);
    pair.to.end();
    let write = pair.a.write(&pair.to_b, &pair.from.all(), &there.all()).unwrap();
    assert!(write.ended().is_err());
    let page = page(&pair.path);
    let failures = |reason| {
        sum(&page, "polyrail_transfer_failures_total", &[("peer", "b"), ("reason", reason)])
    };
    assert_eq!(failures("cancelled"), 1.0, "{page:#?}");
    assert_eq!(failures("refused_region_dropped") + failures("refused_stale_key"), 1.0);
    assert_eq!(sum(&page, "polyrail_transfer_failures_total", &[]), 2.0);
}

#[test]
fn every_metric_of_the_table_is_there() {
    let pair = served_pair();
    let there = remote(&pair.b, &pair.to);
    finished(&pair.a.write(&pair.to_b, &pair.from.all(), &there.all()).unwrap());
    let receive = pair.a.receive(&pair.to_b, 1, &pair.from.all()).unwrap();
    receive.cancel();
    assert!(receive.ended().is_err());
    let page = page(&pair.path);
    for family in families::ALL {
        let name = family.full_name();
        // Only drivers of real links report it.
        if name == "polyrail_rail_speed_bytes_per_second" {
            continue;
        }
        assert!(page.keys().any(|series| series.starts_with(&name)), "{name} in {page:#?}");
    }
}

#[test]
fn peers_beyond_the_limit_are_summed_up_and_the_sum_never_shrinks() {
    const PEERS: usize = 70;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let small = [("rails", "127.0.0.1"), ("progress", "caller")];
    let listen = format!("unix:{}", path.display());
    let settings = [("rails", "127.0.0.1"), ("metrics_listen", &listen)];
    let a = builder().config(config(&settings)).name("a").build().unwrap();
    let others: Vec<(Engine, Peer)> = (0..PEERS)
        .map(|_| {
            let b = builder().config(config(&small)).name("twin").build().unwrap();
            let to_b = a.add_peer(&b.metadata()).unwrap();
            (b, to_b)
        })
        .collect();
    let mut labels = HashMap::new();
    for series in page(&path).keys().filter(|it| it.starts_with("polyrail_quota_refusals_total")) {
        *labels.entry(series.clone()).or_insert(0) += 1;
    }
    assert_eq!(labels.len(), 65, "64 peers and the others: {labels:#?}");
    assert_eq!(sum(&page(&path), "polyrail_peers_unlisted", &[]), 6.0);
    let count = || {
        others.iter().for_each(|(b, to_b)| {
            let transfer = a.notify(to_b, b"x").unwrap();
            wait_for("the notification to arrive", || {
                b.progress();
                transfer.is_over()
            });
        });
    };
    count();
    let of_others = || sum(&page(&path), "polyrail_transfers_total", &[("peer", "other")]);
    wait_for("the sum", || of_others() == 6.0);
    for (_, to_b) in &others {
        a.remove_peer(to_b);
    }
    wait_for("the peers to be gone", || sum(&page(&path), "polyrail_peers", &[]) == 0.0);
    assert_eq!(of_others(), 6.0);
}

#[test]
fn scrapers_that_are_stuck_delay_no_transfer() {
    let pair = served_pair();
    let there = remote(&pair.b, &pair.to);
    let ask = |_| {
        let mut stream = UnixStream::connect(&pair.path).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        stream
    };
    let stuck: Vec<UnixStream> = (0..200).map(ask).collect();
    for _ in 0..20 {
        finished(&pair.a.write(&pair.to_b, &pair.from.all(), &there.all()).unwrap());
    }
    assert_eq!(bytes(&pair.to), bytes(&pair.from));
    let sent = || sum(&page(&pair.path), "polyrail_rail_sent_bytes_total", &[]);
    // A text is reused for a moment.
    wait_for("a new text", || sent() > 0.0);
    drop(stuck);
}

#[test]
fn an_engine_that_is_gone_is_served_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    let (one, two) = (served(&path, "one"), served(&path, "two"));
    assert_eq!(sum(&page(&path), "polyrail_engine_info", &[]), 2.0);
    drop(one);
    wait_for("the first to be gone", || sum(&page(&path), "polyrail_engine_info", &[]) == 1.0);
    drop(two);
    assert!(!path.exists());
}

#[test]
fn a_port_in_use_is_an_error_of_the_engine_with_a_remedy() {
    let port = HeldPort::new();
    let taken = TcpListener::bind(port.address()).unwrap();
    let address = port.address().to_string();
    let config = config(&[("metrics_listen", &address)]);
    let error = Engine::builder().config(config.clone()).build().unwrap_err();
    assert!(matches!(&error, EngineError::Metrics { value, .. } if *value == address), "{error}");
    let text = error.to_string();
    let origin = config.origin("metrics_listen").unwrap().place().to_string();
    assert!(text.starts_with(&format!("metrics_listen = `{address}` ({origin}): can't")), "{text}");
    assert!(text.contains("; allowed: "), "{text}");
    assert!(error.help().unwrap().contains("dir:FOLDER"));
    drop(taken);
    let engine = Engine::builder().config(config).build().unwrap();
    let page = read(TcpStream::connect(&address).unwrap());
    assert_eq!(sum(&page, "polyrail_engine_info", &[]), 1.0);
    drop(engine);
}
