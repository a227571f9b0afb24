//! The exporter with hostile processes.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{LONG, body, get, status};
use polyrail_config::MetricsListen;
use polyrail_metrics::families::engine as families;
use polyrail_metrics::{
    Exporter, Registration, Samples, Source, ask_folder, serve, serve_local, set_rank,
};
use polyrail_skip::skip;

struct Engine;

impl Source for Engine {
    fn name(&self) -> String {
        "an engine with a \"name\"\n".to_owned()
    }

    fn collect(&self, samples: &mut Samples) {
        samples.info(&families::INFO, &["1", "2", "on", "none", "auto", "proxy"]);
        samples.count(&families::OPERATIONS, &[], 7);
        let buckets = vec![(0.5, 1), (1.0, 2), (f64::INFINITY, 3)];
        samples.histogram(&families::TRANSFER_DURATION, &["tcp", "4KiB"], 8.5, buckets);
        samples.number(&families::PROXY_CPU, &["pr-tx0"], 0.25);
    }
}

fn engine_in(folder: &Path) -> Registration {
    let place = MetricsListen::Folder(folder.display().to_string());
    serve(&place, "host", Arc::new(Engine)).unwrap()
}

fn exporter(folder: &Path) -> Exporter {
    Exporter::start("127.0.0.1:0".parse().unwrap(), Some(folder), "test").unwrap()
}

fn scrape(exporter: &Exporter, accept: &str) -> String {
    let stream = TcpStream::connect(exporter.address()).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    let answer = get(stream, accept);
    assert_eq!(status(&answer), 200, "{answer}");
    body(&answer).to_owned()
}

/// A process that accepts every connection, and calls `act` with each.
fn bad_process(path: &Path, act: impl Fn(UnixStream) + Send + 'static) {
    let listener = UnixListener::bind(path).unwrap();
    thread::spawn(move || listener.incoming().flatten().for_each(act));
}

/// Reads the request and answers with this text.
fn say(path: &Path, text: &'static str) {
    bad_process(path, move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(text.as_bytes());
    });
}

#[test]
fn what_processes_say_is_merged_with_their_labels() {
    let folder = tempfile::tempdir().unwrap();
    set_rank(3);
    let _engine = engine_in(folder.path());
    let page = scrape(&exporter(folder.path()), "application/openmetrics-text");
    let pid = std::process::id();
    let labels =
        format!("pid=\"{pid}\",engine=\"an engine with a \\\"name\\\"\\\\u000a\",rank=\"3\"");
    for line in [
        format!("polyrail_operations{{{labels}}} 7\n"),
        format!("polyrail_proxy_cpu_seconds_total{{{labels},proxy=\"pr-tx0\"}} 0.25\n"),
        format!("polyrail_up{{pid=\"{pid}\",socket=\"polyrail-{pid}-"),
        "polyrail_exporter_processes 1\n".to_owned(),
        "polyrail_exporter_info{version=\"test\"} 1\n".to_owned(),
        format!(
            "polyrail_transfer_duration_seconds_count{{{labels},path=\"tcp\",size=\"4KiB\"}} 6\n"
        ),
        "# UNIT polyrail_transfer_duration_seconds seconds\n".to_owned(),
    ] {
        assert!(page.contains(&line), "{line} in\n{page}");
    }
}

#[test]
fn without_a_folder_it_asks_the_processes_of_this_user() {
    let engine = serve_local(Arc::new(Engine)).unwrap();
    let exporter = Exporter::start("127.0.0.1:0".parse().unwrap(), None, "test").unwrap();
    let page = scrape(&exporter, "application/openmetrics-text");
    let pid = std::process::id();
    let up = format!("polyrail_up{{pid=\"{pid}\",socket=\"@polyrail-top-{pid}-");
    assert!(page.contains(&up), "{page}");
    assert!(page.contains(&format!("polyrail_operations{{pid=\"{pid}\",engine=")), "{page}");
    assert!(page.contains("polyrail_exporter_folder_readable 1\n"), "{page}");
    drop(engine);
}

#[test]
fn a_process_in_a_folder_is_the_one_that_the_kernel_names() {
    let folder = tempfile::tempdir().unwrap();
    let _engine = engine_in(folder.path());
    let own = std::process::id();
    let socket = fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
    fs::rename(socket, folder.path().join("polyrail-1-0.sock")).unwrap();
    let answers = ask_folder(folder.path(), None).unwrap();
    assert_eq!((answers.answers.len(), answers.not_asked), (1, 0));
    let answer = &answers.answers[0];
    assert_eq!(answer.process, Some(own));
    let figures = answer.figures.as_ref().unwrap();
    assert!(figures.iter().any(|figure| figure.name == "polyrail_operations"), "{figures:?}");
    assert!(ask_folder(folder.path(), Some(own + 1)).unwrap().answers.is_empty());
    assert!(ask_folder(&folder.path().join("none"), None).is_err());
}

#[test]
fn a_name_that_steers_a_terminal_is_escaped_and_two_that_look_alike_then_are_one() {
    let folder = tempfile::tempdir().unwrap();
    let names =
        ["polyrail-1-\u{1b}[2J\u{202e}.sock", "polyrail-1-\\u001b[2J\\u202e.sock", "\n.sock"];
    for name in names {
        say(&folder.path().join(name), "garbage");
    }
    let page = scrape(&exporter(folder.path()), "application/openmetrics-text");
    assert!(
        !page.contains(|one: char| one.is_control() && one != '\n' || one == '\u{202e}'),
        "{page:?}"
    );
    // A backslash is written twice in a label.
    let line = "polyrail_up{pid=\"1\",socket=\"polyrail-1-\\\\u001b[2J\\\\u202e.sock\"} 0\n";
    assert_eq!(page.matches(line).count(), 1, "{page}");
    assert!(page.contains("polyrail_up{pid=\"\",socket=\"\\\\u000a.sock\"} 0\n"), "{page}");
    assert!(page.contains("polyrail_exporter_sockets_ignored 1\n"), "{page}");
}

#[test]
fn bad_processes_cost_their_deadline_and_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // The process listens, but accepts nothing.
    let _hangs = UnixListener::bind(at("polyrail-1-a.sock")).unwrap();
    say(&at("polyrail-2-a.sock"), "HTTP/1.1 200 OK\r\n\r\nhello\n");
    say(&at("polyrail-3-a.sock"), "garbage");
    say(&at("polyrail-4-a.sock"), "HTTP/1.1 500 Oh\r\n\r\n# EOF\n");
    let stolen = "HTTP/1.1 200 OK\r\n\r\n# TYPE polyrail_up gauge\npolyrail_up 1\n# EOF\n";
    say(&at("polyrail-5-a.sock"), stolen);
    bad_process(&at("polyrail-6-a.sock"), |mut stream| {
        // The answer never stops.
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    fs::write(at("polyrail-8-a.sock"), "no socket").unwrap();
    let _engine = engine_in(folder.path());
    // An engine that starts later would remove it.
    drop(UnixListener::bind(at("polyrail-7-a.sock")).unwrap());
    let exporter = exporter(folder.path());
    let start = Instant::now();
    let page = scrape(&exporter, "");
    let took = start.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    for (pid, up) in [(1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0), (std::process::id(), 1)] {
        let line =
            page.lines().find(|line| line.starts_with(&format!("polyrail_up{{pid=\"{pid}\"")));
        assert!(line.is_some_and(|line| line.ends_with(&format!(" {up}"))), "{pid}: {page}");
    }
    for line in [
        "polyrail_exporter_failures_total{reason=\"timeout\"} 1\n",
        "polyrail_exporter_failures_total{reason=\"garbage\"} 4\n",
        "polyrail_exporter_failures_total{reason=\"too_large\"} 1\n",
        "polyrail_exporter_sockets_removed_total 1\n",
        "polyrail_operations{",
    ] {
        assert!(page.contains(line), "{line} in\n{page}");
    }
    assert!(!at("polyrail-7-a.sock").exists(), "the socket of a dead process stays");
    assert!(at("polyrail-8-a.sock").exists(), "what is no socket was removed");
}

#[test]
fn a_folder_that_is_exchanged_while_a_process_answers_has_nothing_removed_elsewhere() {
    let root = tempfile::tempdir().unwrap();
    let at = |name: &str| root.path().join(name);
    for folder in ["sockets", "victim"] {
        fs::create_dir(at(folder)).unwrap();
    }
    fs::write(at("victim/polyrail-2-a.sock"), "keep").unwrap();
    drop(UnixListener::bind(at("sockets/polyrail-2-a.sock")).unwrap());
    drop(UnixListener::bind(at("sockets/other.sock")).unwrap());
    let (sockets, victim, away) = (at("sockets"), at("victim"), at("away"));
    bad_process(&at("sockets/polyrail-1-a.sock"), move |mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        fs::rename(&sockets, &away).unwrap();
        std::os::unix::fs::symlink(&victim, &sockets).unwrap();
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n# EOF\n");
    });
    let page = scrape(&exporter(&at("sockets")), "");
    assert!(at("sockets").is_symlink(), "{page}");
    assert_eq!(fs::read_to_string(at("victim/polyrail-2-a.sock")).unwrap(), "keep");
    assert!(!at("away/polyrail-2-a.sock").exists(), "{page}");
    assert!(at("away/other.sock").exists(), "a name that Polyrail gives no socket");
    assert!(page.contains("polyrail_exporter_sockets_removed_total 1\n"), "{page}");
}

#[test]
fn a_process_with_a_full_queue_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("polyrail-1-a.sock");
    let _hangs = UnixListener::bind(&path).unwrap();
    let mut callers = Vec::new();
    loop {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None);
        let socket = socket.unwrap();
        socket.set_nonblocking(true).unwrap();
        let is_full = socket.connect(&socket2::SockAddr::unix(&path).unwrap()).is_err();
        callers.push(socket);
        if is_full {
            break;
        }
    }
    let page = scrape(&exporter(folder.path()), "");
    assert!(page.contains("polyrail_up{pid=\"1\",socket=\"polyrail-1-a.sock\"} 0\n"), "{page}");
}

#[test]
fn a_folder_that_goes_away_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let exporter = exporter(&folder.path().join("gone"));
    let page = scrape(&exporter, "");
    assert!(page.contains("polyrail_exporter_folder_readable 0\n"), "{page}");
}

#[test]
fn more_sockets_than_the_limit_are_counted_and_not_asked() {
    let folder = tempfile::tempdir().unwrap();
    for number in 0..260 {
        let path = folder.path().join(format!("polyrail-{number}-a.sock"));
        say(&path, "HTTP/1.1 200 OK\r\n\r\n# EOF\n");
    }
    let page = scrape(&exporter(folder.path()), "");
    assert!(page.contains("polyrail_exporter_sockets_ignored 4\n"), "{page}");
    assert_eq!(page.matches("polyrail_up{").count(), 256);
}

#[test]
fn two_containers_with_the_same_process_number_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let text =
        "HTTP/1.1 200 OK\r\n\r\n# TYPE polyrail_operations gauge\npolyrail_operations 1\n# EOF\n";
    say(&folder.path().join("polyrail-1-a.sock"), text);
    say(&folder.path().join("polyrail-1-b.sock"), text);
    let page = scrape(&exporter(folder.path()), "");
    assert!(page.contains("polyrail_operations{pid=\"1\"} 1\n"), "{page}");
    let second = "polyrail_operations{pid=\"1\",socket=\"polyrail-1-b.sock\"} 1\n";
    assert!(page.contains(second), "{page}");
}

#[test]
fn a_port_in_use_is_refused_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let first = exporter(folder.path());
    let error = Exporter::start(first.address(), Some(folder.path()), "test").unwrap_err();
    assert!(error.to_string().starts_with("--listen `127.0.0.1:"), "{error}");
    assert!(error.to_string().contains("; allowed: "), "{error}");
    assert!(error.help().contains("another port"), "{}", error.help());
}

#[test]
fn promtool_finds_nothing_wrong_with_the_classic_format() {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    promtool.stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut promtool) = promtool.spawn() else {
        let run = "sudo apt-get install prometheus && cargo test -p polyrail-metrics";
        return skip("the `promtool` program is missing (prometheus)", run);
    };
    let folder = tempfile::tempdir().unwrap();
    let _engine = engine_in(folder.path());
    let page = scrape(&exporter(folder.path()), "text/plain");
    let mut stdin = promtool.stdin.take().unwrap();
    stdin.write_all(page.as_bytes()).unwrap();
    drop(stdin);
    let output = promtool.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{told}\n{page}");
    assert!(told.is_empty(), "{told}\n{page}");
}
