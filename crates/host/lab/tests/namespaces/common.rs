//! Helpers of the privileged tests: skipping, names, and traffic through a lab.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use polyrail_lab::{Lab, LabGuard, LabSpec, Node, Privilege, RailEnd, Side, availability};

/// Timeout: long enough for the busiest machine, and short where nothing arrives.
pub(crate) const PATIENCE: Duration = Duration::from_millis(2500);

/// Waits for this test's turn, so that measured rates do not mix with other tests on a machine of
/// two cores.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static CORES: Mutex<()> = Mutex::new(());
    CORES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a turn if labs can be made with root's rights; else reports the skipped test and
/// returns `None`.
pub(crate) fn root_turn() -> Option<MutexGuard<'static, ()>> {
    let reason = match availability() {
        Ok(Privilege::Root) => return Some(turn()),
        Ok(Privilege::UserNamespace) => "not root".to_owned(),
        Err(error) => error.to_string(),
    };
    skipped(&reason);
    None
}

pub(crate) fn skipped(reason: &str) {
    polyrail_skip::skip(reason, "sudo -E cargo test -p polyrail-lab --test namespaces");
}

pub(crate) fn spec(name: &str, rails: &str) -> LabSpec {
    let name = format!("{name}-{}", std::process::id());
    LabSpec::new(name, LabSpec::parse_rails(rails).unwrap())
}

pub(crate) fn lab(name: &str, rails: &str) -> LabGuard {
    Lab::up(&spec(name, rails)).unwrap().guard()
}

pub(crate) fn v4(end: &RailEnd) -> IpAddr {
    end.ipv4.into()
}

pub(crate) fn v6(end: &RailEnd) -> IpAddr {
    end.ipv6.expect("this machine runs IPv6").into()
}

/// Runs `work` in its own thread on `node`.
pub(crate) fn on<T: Send>(lab: &Lab, node: impl Into<Node>, work: impl FnOnce() -> T + Send) -> T {
    let node = node.into();
    let enter = || {
        lab.enter_thread(node).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(enter).join()).unwrap()
}

/// Opens a listener on side b of a rail; it stays in b's namespace, whichever thread calls accept.
pub(crate) fn listen(lab: &Lab, rail: usize, address: fn(&RailEnd) -> IpAddr) -> TcpListener {
    let address = SocketAddr::new(address(lab.rails()[rail].end(Side::B)), 0);
    on(lab, Side::B, || TcpListener::bind(address).unwrap())
}

/// Connects from a to `listener`.
pub(crate) fn connect(lab: &Lab, listener: &TcpListener) -> io::Result<TcpStream> {
    let address = listener.local_addr()?;
    let stream = on(lab, Side::A, || TcpStream::connect_timeout(&address, PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Sends bytes there and back over a new connection, and compares them.
pub(crate) fn round_trip(
    lab: &Lab,
    rail: usize,
    address: fn(&RailEnd) -> IpAddr,
) -> io::Result<()> {
    let listener = listen(lab, rail, address);
    let near = connect(lab, &listener)?;
    let (mut far, peer) = listener.accept()?;
    assert_eq!(peer.ip(), address(lab.rails()[rail].end(Side::A)), "the rail's own source address");
    let sent = (0..200_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8);
    let sent = sent.collect::<Vec<_>>();
    let mut back = vec![0; sent.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| io::copy(&mut far.try_clone().unwrap(), &mut far));
        scope.spawn(|| near.try_clone().unwrap().write_all(&sent));
        near.try_clone()?.read_exact(&mut back)?;
        near.shutdown(std::net::Shutdown::Both)
    })?;
    assert!(sent == back, "other bytes came back");
    Ok(())
}

/// Payload bits per second of one stream that `sender` fills, measured at the receiver.
pub(crate) fn stream_rate(sender: TcpStream, receiver: TcpStream, window: Duration) -> f64 {
    std::thread::scope(|scope| {
        let filling = scope.spawn(move || {
            let block = vec![0x5a; 1 << 20];
            while (&sender).write_all(&block).is_ok() {}
        });
        let rate = receive_rate(&receiver, window);
        receiver.shutdown(std::net::Shutdown::Both).unwrap();
        drop(receiver);
        filling.join().unwrap();
        rate
    })
}

/// Payload bits per second that arrive, after a short warm-up.
pub(crate) fn receive_rate(mut stream: &TcpStream, window: Duration) -> f64 {
    let mut buffer = vec![0; 1 << 20];
    let mut receive = |window: Duration| {
        let (start, mut bytes) = (Instant::now(), 0);
        while start.elapsed() < window {
            bytes += stream.read(&mut buffer).unwrap();
        }
        bytes as f64 * 8.0 / start.elapsed().as_secs_f64()
    };
    receive(Duration::from_millis(300));
    receive(window)
}

/// Compares a measured rate with a nominal one. No measurement may be faster; as other programs may
/// slow a measurement down, the best of a few counts.
pub(crate) fn assert_reaches(nominal: f64, mut measure: impl FnMut() -> f64) {
    let mut shares = Vec::new();
    for _ in 0..6 {
        let share = measure() / nominal;
        shares.push(share);
        assert!(share <= 1.05, "{share:.3} of {nominal:.0} bit/s: faster than the rail");
        if share >= 0.85 {
            return;
        }
    }
    panic!("never came near {nominal:.0} bit/s, but to these shares of it: {shares:.3?}");
}

/// Returns a program's output on `node`.
pub(crate) fn output(lab: &Lab, node: impl Into<Node>, program: &[&str]) -> String {
    let output = lab.command(node, program[0]).args(&program[1..]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}
