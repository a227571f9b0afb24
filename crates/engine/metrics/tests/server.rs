//! The server with hostile scrapers.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{LONG, body, get, status, wait_for};
use polyrail_config::MetricsListen;
use polyrail_metrics::families::engine as families;
use polyrail_metrics::{Registration, Samples, ServeError, Source, serve};
use polyrail_skip::HeldPort;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

/// Maximum number of connections that the server holds.
const PLACES: usize = 64;

/// A source that counts how often it was asked.
#[derive(Default)]
struct Counting {
    asked: AtomicU64,
    /// Number of further rows.
    rows: usize,
}

impl Source for Counting {
    fn name(&self) -> String {
        "engine".to_owned()
    }

    fn collect(&self, samples: &mut Samples) {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        samples.count(&families::REGIONS, &[], asked);
        for row in 0..self.rows {
            let peer = format!("peer {row}");
            samples.count(&families::QUOTA_REFUSALS, &[&peer], 1);
        }
    }
}

fn serving(rows: usize) -> (Arc<Counting>, Served, SocketAddr) {
    let port = HeldPort::new();
    let source = Arc::new(Counting { rows, ..Counting::default() });
    let served = serve(&MetricsListen::Tcp(port.address()), "host", source.clone()).unwrap();
    let address = port.address();
    (source, (served, port), address)
}

/// A server's registration, and its port.
type Served = (Registration, HeldPort);

fn at(path: &Path) -> MetricsListen {
    MetricsListen::Unix(path.display().to_string())
}

#[test]
fn a_scraper_gets_the_format_that_it_asks_for() {
    let (_source, _served, address) = serving(0);
    let open = get(TcpStream::connect(address).unwrap(), "application/openmetrics-text");
    assert_eq!(status(&open), 200);
    assert!(open.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{open}");
    assert!(body(&open).contains("\npolyrail_regions{engine=\"engine\"} "), "{open}");
    assert!(open.ends_with("# EOF\n"), "{open}");
    let classic = get(TcpStream::connect(address).unwrap(), "text/plain");
    assert!(classic.contains("Content-Type: text/plain; version=0.0.4"), "{classic}");
    assert!(!classic.contains("# EOF"), "{classic}");
}

#[test]
fn garbage_gets_an_error_and_harms_nobody() {
    let (_source, _served, address) = serving(0);
    for (request, expected) in [
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n".to_vec(), 400),
        (b"POST /metrics HTTP/1.1\r\n\r\n".to_vec(), 405),
        (b"GET /secrets HTTP/1.1\r\n\r\n".to_vec(), 404),
        ([b"GET / HTTP/1.1\r\nx: ".to_vec(), vec![b'x'; 9 << 10]].concat(), 431),
    ] {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&request).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        assert_eq!(status(&String::from_utf8_lossy(&answer)), expected);
    }
    assert_eq!(status(&get(TcpStream::connect(address).unwrap(), "")), 200);
}

#[test]
fn a_thousand_connections_that_say_nothing_keep_nobody_waiting() {
    // Many systems begin with 1024, and other tests need some, too.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let (_source, _served, address) = serving(0);
    let idle: Vec<TcpStream> = (0..1000).map(|_| TcpStream::connect(address).unwrap()).collect();
    let start = Instant::now();
    assert_eq!(status(&get(TcpStream::connect(address).unwrap(), "")), 200);
    // Takes milliseconds, and more on a machine that stood still.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let is_open = |stream: &&TcpStream| {
        stream.set_nonblocking(true).unwrap();
        stream.peek(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    let open = idle.iter().filter(is_open).count();
    assert!(open <= PLACES, "{open} connections are open");
}

#[test]
fn a_newcomer_takes_the_place_of_the_one_that_has_been_silent_for_longest() {
    let (_source, _served, address) = serving(0);
    let _idle: Vec<TcpStream> = (0..PLACES).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut slow = TcpStream::connect(address).unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    // When this one is answered, the server has accepted all that came before.
    assert_eq!(status(&get(TcpStream::connect(address).unwrap(), "")), 200);
    slow.write_all(b"\r\n").unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), 200);
}

/// Holds `count` silent connections, and reconnects each whenever the server drops it.
fn hold_idle(address: SocketAddr, count: usize, stop: &Arc<AtomicBool>) -> Vec<JoinHandle<()>> {
    let idle = move |stop: &AtomicBool| {
        while !stop.load(Ordering::Relaxed) {
            let Ok(mut stream) = TcpStream::connect(address) else { continue };
            let _ = stream.set_read_timeout(Some(Duration::from_millis(100)));
            while !stop.load(Ordering::Relaxed)
                && stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
            {
            }
        }
    };
    (0..count)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || idle(&stop))
        })
        .collect()
}

#[test]
fn idle_connections_that_come_again_leave_a_distant_scraper_its_place() {
    let (_source, _served, address) = serving(0);
    let stop = Arc::new(AtomicBool::new(false));
    let idle = hold_idle(address, 60, &stop);
    let answers = (0..20).map(|_| {
        let mut stream = TcpStream::connect(address).unwrap();
        // The request of a distant scraper comes a round trip later: this time is what is tested.
        std::thread::sleep(Duration::from_millis(10));
        let mut answer = String::new();
        let asked = stream.write_all(b"GET / HTTP/1.1\r\n\r\n");
        asked.and_then(|()| stream.read_to_string(&mut answer)).is_ok() && status(&answer) == 200
    });
    let answered = answers.filter(|is_answered| *is_answered).count();
    stop.store(true, Ordering::Relaxed);
    idle.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(answered, 20, "of 20 scrapes");
}

#[test]
fn a_flood_from_one_address_takes_no_place_of_another() {
    let (_source, _served, address) = serving(0);
    let mut scraper = from("127.0.0.2", address);
    scraper.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let _idle: Vec<TcpStream> = (0..500).map(|_| from("127.0.0.1", address)).collect();
    // When this one is answered, the server has accepted all that came before.
    assert_eq!(status(&get(from("127.0.0.3", address), "")), 200);
    scraper.write_all(b"\r\n").unwrap();
    let mut answer = String::new();
    scraper.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), 200);
}

fn from(own: &str, address: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::new(own.parse().unwrap(), 0).into()).unwrap();
    socket.connect(&address.into()).unwrap();
    socket.into()
}

#[test]
fn a_request_that_never_ends_is_dropped_soon() {
    let (_source, _served, address) = serving(0);
    let mut slow = TcpStream::connect(address).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let start = Instant::now();
    slow.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    // A header line with each read that times out, as in a slowloris attack.
    while slow.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
        let _ = slow.write_all(b"a: b\r\n");
        assert!(start.elapsed() < Duration::from_secs(8), "it is still open");
    }
}

#[test]
fn scrapers_that_stop_reading_keep_nobody_waiting() {
    // More than sockets hold.
    let (source, _served, address) = serving(100_000);
    let stuck: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            stream
        })
        .collect();
    wait_for("a stuck scraper to be answered", || source.asked.load(Ordering::Relaxed) > 0);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(status(&answer), 200);
    drop(stuck);
}

#[test]
fn many_scrapes_ask_the_engine_a_few_times_a_second() {
    let (source, _served, address) = serving(0);
    let start = Instant::now();
    for _ in 0..200 {
        assert_eq!(status(&get(TcpStream::connect(address).unwrap(), "")), 200);
    }
    let (asked, most) = (source.asked.load(Ordering::Relaxed), start.elapsed().as_millis() / 100);
    assert!(u128::from(asked) <= most + 1, "{asked} times in {:?}", start.elapsed());
}

#[test]
fn engines_share_a_socket_and_have_labels_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.sock");
    let first = serve(&at(&path), "host", Arc::new(Counting::default())).unwrap();
    let second = serve(&at(&path), "host", Arc::new(Counting::default())).unwrap();
    let page = get(UnixStream::connect(&path).unwrap(), "");
    for engine in ["engine", "engine #2"] {
        assert!(page.contains(&format!("polyrail_regions{{engine=\"{engine}\"}} 1")), "{page}");
    }
    drop(first);
    wait_for("the first to be gone", || {
        let page = get(UnixStream::connect(&path).unwrap(), "");
        page.contains("engine=\"engine #2\"") && !page.contains("engine=\"engine\"")
    });
    drop(second);
    assert!(!path.exists(), "the last one takes the socket with it");
}

#[test]
fn a_place_that_can_not_be_had_is_refused_with_value_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let missing = MetricsListen::Folder(folder.path().join("missing").display().to_string());
    let error = serve(&missing, "host", Arc::new(Counting::default())).unwrap_err();
    assert!(error.to_string().starts_with("metrics_listen = `dir:/"), "{error}");
    assert!(error.to_string().contains("; allowed: a folder that exists"), "{error}");
    assert!(error.help().contains("mkdir -p"), "{}", error.help());

    // No user can write there.
    let proc = MetricsListen::Folder("/proc".to_owned());
    let error = serve(&proc, "host", Arc::new(Counting::default())).unwrap_err();
    assert!(error.to_string().contains("metrics_listen = `dir:/proc`"), "{error}");

    let port = HeldPort::new();
    let taken = TcpListener::bind(port.address()).unwrap();
    let place = MetricsListen::Tcp(port.address());
    let error = serve(&place, "host", Arc::new(Counting::default())).unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    assert!(error.help().contains("dir:FOLDER"), "{}", error.help());
    drop(taken);
    // The refusal has left nothing behind.
    drop(serve(&place, "host", Arc::new(Counting::default())).unwrap());

    // Root may use every port.
    let denied = |value: &str| {
        let (value, source) = (value.to_owned(), ErrorKind::PermissionDenied.into());
        ServeError { value, allowed: "", source }.help()
    };
    assert!(denied("127.0.0.1:80").contains("from 1024 on"));
    assert!(denied("dir:/root").contains("name a folder"));

    let long = folder.path().join("x".repeat(200));
    let error = serve(&at(&long), "host", Arc::new(Counting::default())).unwrap_err();
    assert!(error.to_string().contains("107 bytes"), "{error}");
}

#[test]
fn a_scraper_that_hangs_up_in_the_middle_harms_nobody() {
    let (_source, _served, address) = serving(10_000);
    for _ in 0..30 {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    }
    assert_eq!(status(&get(TcpStream::connect(address).unwrap(), "")), 200);
}
