//! Engines that can't start, peers that can't be reached, and the errors for that.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use common::stranger::metadata_of;
use common::*;
use polyrail::{
    ConnectReason, Engine, EngineError, Explain, Flows, LostReason, PeerError, RefusedCode,
    TransferError,
};
use polyrail_config::Origin;
use polyrail_skip::HeldPort;
use socket2::{Domain, Socket, Type};

fn try_build(settings: &[(&str, &str)]) -> Result<Engine, EngineError> {
    builder().config(config(settings)).build()
}

#[test]
fn a_port_in_use_is_named_with_its_rail_and_address() {
    // On the first rail the port is reserved for this test.
    let (_held, taken) = std::iter::repeat_with(HeldPort::new)
        .find_map(|held| TcpListener::bind(("127.0.0.2", held.number())).ok().map(|it| (held, it)))
        .unwrap();
    let address = taken.local_addr().unwrap();
    let port = address.port().to_string();
    let error = try_build(&[("rails", "127.0.0.1,127.0.0.2"), ("listen_port", &port)]).unwrap_err();
    match &error {
        EngineError::Listen { rail, address: at, source } => {
            assert_eq!((rail.as_str(), *at), ("lo@127.0.0.2", address));
            assert_eq!(source.kind(), ErrorKind::AddrInUse);
        }
        other => panic!("{other}"),
    }
    let text = error.to_string();
    assert!(text.contains("lo@127.0.0.2") && text.contains(&address.to_string()), "{text}");
}

#[test]
fn engines_of_a_machine_share_a_range_of_ports_until_all_are_taken() {
    let held = HeldPort::new();
    let (first, count) = (held.number(), 40.min(u16::MAX - held.number() + 1));
    let range = format!("{first}-{}", first + (count - 1));
    let settings = [("listen_port", range.as_str()), ("rails", "127.0.0.1")];
    let mut engines = Vec::new();
    let error = loop {
        match try_build(&settings) {
            Ok(engine) => engines.push(engine),
            Err(error) => break error,
        }
    };
    let ports: Vec<u16> = engines.iter().map(|one| one.addresses()[0].port()).collect();
    assert_eq!(ports[0], first, "{ports:?}");
    // Other programs may use one of them, so some are left out.
    assert!(ports.is_sorted_by(|one, next| one < next), "{ports:?}");
    assert!(ports.iter().all(|port| port - first < count), "{ports:?}");
    assert!(ports.len() * 2 > usize::from(count), "{ports:?}");
    match &error {
        EngineError::Listen { address, source, .. } => {
            assert_eq!((address.port(), source.kind()), (first + count - 1, ErrorKind::AddrInUse));
        }
        other => panic!("{other}"),
    }
    assert!(error.help().unwrap().contains("a longer range"), "{:?}", error.help());
}

#[test]
fn without_a_port_each_rail_has_one_that_the_documents_name_and_engines_begin_apart() {
    let docs = std::fs::read_to_string("../../../docs/config.md").unwrap();
    assert!(docs.contains("0 (a free one of 29200 to 29999)"));
    let engine = || try_build(&[("rails", "127.0.0.1,127.0.0.2")]).unwrap();
    let engines = [engine(), engine(), engine()];
    let ports = engines.iter().flat_map(|one| one.addresses());
    let ports: Vec<u16> = ports.map(|address| address.port()).collect();
    assert!(ports.iter().all(|port| (29200..=29999).contains(port)), "{ports:?}");
    // With a probability of 1 in 640,000, all three begin at the same one.
    assert!(ports.iter().any(|port| *port != ports[0]), "{ports:?}");
}

#[test]
fn where_all_ports_are_taken_the_error_says_which_others_to_choose() {
    // No other test uses this address, so the ports of tests in parallel stay free.
    let address =
        format!("127.77.{}.{}", std::process::id() >> 8 & 0xff, std::process::id() & 0xff);
    let taken: Vec<TcpListener> =
        (29200..=29999).map(|port| TcpListener::bind((address.as_str(), port)).unwrap()).collect();
    assert_eq!(taken.len(), 800);
    let error = try_build(&[("rails", &address)]).unwrap_err();
    match &error {
        EngineError::Listen { source, .. } => assert_eq!(source.kind(), ErrorKind::AddrInUse),
        other => panic!("{other}"),
    }
    assert!(error.help().unwrap().contains("a longer range"), "{:?}", error.help());
    drop(taken);
    try_build(&[("rails", &address)]).unwrap();
}

#[test]
fn an_unknown_interface_is_told_with_those_that_could_be_named() {
    for (spec, part, code) in
        [("eth77", "eth77", 2), ("10.255.255.254", "10.255.255.254", 2), ("^l,e,i,d", "", 3)]
    {
        let error = try_build(&[("rails", spec)]).unwrap_err();
        assert_eq!(error.exit_code(), code, "{error}");
        match error {
            EngineError::Rails { spec: got, origin, why, allowed, .. } => {
                assert_eq!((got.as_str(), *origin), (spec, Origin::Set));
                assert!(why.contains(part), "{why}");
                assert!(allowed.contains("lo (127.0.0.1)"), "{allowed}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn rails_of_different_families_can_never_meet_and_both_are_named() {
    let own = engine(&[]);
    let mut metadata = metadata_of(&engine(&[]));
    for (index, rail) in metadata.card.rails.iter_mut().enumerate() {
        rail.name = format!("eth{index}");
        rail.address = format!("[fd00::{index}]:7000").parse().unwrap();
        rail.prefix_len = 64;
    }
    let error = own.add_peer(&metadata.encode()).unwrap_err();
    assert!(matches!(error, PeerError::NoRailPair { .. }), "{error}");
    let text = error.to_string();
    for part in [
        "lo@127.0.0.3 127.0.0.3",
        "eth2 [fd00::2]:7000",
        "no rail of the end opposite has an IPv4 address; an interface that has both gives its rail the one that \
         `address_family` there says, or IPv4",
    ] {
        assert!(text.contains(part), "{part} is missing in: {text}");
    }
    assert_eq!(own.peers(), []);
}

/// An address without a listener while this value lives: its socket has the port and does not listen.
struct ClosedPort {
    address: SocketAddr,
    _socket: Socket,
}

impl ClosedPort {
    fn new(ip: &str) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(ip.parse().unwrap(), 0).into()).unwrap();
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        Self { address, _socket: socket }
    }
}

#[test]
fn a_rail_that_can_never_be_reached_is_named_while_the_others_carry_all() {
    let (a, b) = (engine(&[]), engine(&[]));
    let mut metadata = metadata_of(&b);
    let port = ClosedPort::new("127.0.0.2");
    let closed = port.address;
    metadata.card.rails[1].address = closed;
    let to_b = a.add_peer(&metadata.encode()).unwrap();
    for round in 0..3 {
        let (source, target) = (filled(&a, 8 << 20, round), zeroed(&b, 8 << 20));
        let there = remote(&a, &target);
        a.write(&to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
        assert!(bytes(&target) == pattern(8 << 20, round));
    }
    wait_for("the other flows", || to_b.flows() == Flows { up: 3, total: 4 });
    let rails = &a.stats().peers[0].rails;
    assert_eq!((rails[1].name.as_str(), rails[1].tx_bytes), ("lo@127.0.0.2", 0));
    assert!(rails[1].flows.iter().all(|flow| !flow.up), "{rails:?}");
    assert!(rails.iter().all(|rail| !rail.hosted), "{rails:?}");
    let dump = a.dump();
    let pair = format!("rail lo@127.0.0.2 (127.0.0.2 to {closed}): Connection refused");
    assert!(dump.contains(&pair), "{dump}");
}

#[test]
fn a_pair_that_does_not_come_up_is_replaced_by_one_with_a_rail_that_is_free() {
    for own in ["127.0.0.1,127.0.0.2", "127.0.0.1"] {
        let (a, b) =
            (engine(&[("rails", own)]), engine(&[("rails", "127.0.0.1,127.0.0.2,127.0.0.3")]));
        let mut metadata = metadata_of(&b);
        let last = own.split(',').count() - 1;
        let port = ClosedPort::new(&format!("127.0.0.{}", last + 1));
        metadata.card.rails[last].address = port.address;
        let to_b = a.add_peer(&metadata.encode()).unwrap();
        let (source, target) = (filled(&a, 1 << 20, 1), zeroed(&b, 1 << 20));
        let there = remote(&a, &target);
        wait_for("all flows", || to_b.flows().up == to_b.flows().total);
        a.write(&to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
        assert!(bytes(&target) == pattern(1 << 20, 1));
        let rails = &a.stats().peers[0].rails;
        let partner = rails[last].partner.as_deref().unwrap();
        assert_ne!(partner, format!("lo@127.0.0.{}", last + 1), "{rails:?}");
        assert!(rails.iter().all(|rail| rail.idle_because.is_none()), "{rails:?}");
        // The other end reports the pair in use.
        let theirs = &b.stats().peers[0].rails;
        let used = theirs.iter().find(|rail| rail.name == partner).unwrap();
        assert_eq!(used.idle_because, None, "{theirs:?}");
    }
}

#[test]
fn a_rail_that_carries_nothing_says_why_at_both_ends() {
    let (a, b) = (engine(&[]), engine(&[("rails", "127.0.0.1,127.0.0.2,127.0.0.3")]));
    let mut metadata = metadata_of(&b);
    let port = ClosedPort::new("127.0.0.2");
    metadata.card.rails[1].address = port.address;
    metadata.card.rails[2].address = metadata.card.rails[0].address;
    let to_b = a.add_peer(&metadata.encode()).unwrap();
    wait_for("the other flows", || to_b.flows() == Flows { up: 3, total: 4 });
    let why =
        |engine: &Engine, rail: usize| engine.stats().peers[0].rails[rail].idle_because.clone();
    wait_for("the reason", || why(&a, 1).is_some());
    let text = why(&a, 1).unwrap();
    assert!(text.contains("Connection refused") && text.contains("127.0.0.2"), "{text}");
    assert_eq!((why(&a, 0), why(&a, 2), why(&a, 3)), (None, None, None));
    let text = why(&b, 2).unwrap();
    assert!(text.starts_with("no connection of the end opposite arrived"), "{text}");
}

#[test]
fn an_address_that_leads_to_another_engine_costs_its_rail_and_not_the_peer() {
    let (a, b, stranger) = (engine(&[]), engine(&[]), engine(&[]));
    let mut metadata = metadata_of(&b);
    metadata.card.rails[0].address = stranger.addresses()[0];
    let to_b = a.add_peer(&metadata.encode()).unwrap();
    wait_for("the other flows", || to_b.flows() == Flows { up: 3, total: 4 });
    let (source, target) = (filled(&a, 8 << 20, 1), zeroed(&b, 8 << 20));
    let there = remote(&a, &target);
    a.write(&to_b, &source.all(), &there.all()).unwrap().ended().unwrap();
    assert!(bytes(&target) == pattern(8 << 20, 1));
    let pair = format!("rail lo@127.0.0.1 (127.0.0.1 to {})", stranger.addresses()[0]);
    wait_for("the reason in the dump", || a.dump().contains(&pair));
    assert!(a.dump().contains("another engine listens there"), "{}", a.dump());
    // If all rails lead elsewhere, the peer was started again, and that is known without a wait.
    for (rail, address) in metadata.card.rails.iter_mut().zip(stranger.addresses()) {
        rail.address = address;
    }
    metadata.card.instance.0 ^= 1;
    let nobody = a.add_peer(&metadata.encode()).unwrap();
    wait_for("the peer to be given up", || nobody.lost().is_some());
    let LostReason::Refused(why) = nobody.lost().unwrap() else { panic!("not refused") };
    assert_eq!(why.code, RefusedCode::Unproven);
    assert!(why.text.contains("started again"), "{why}");
}

#[test]
fn a_peer_that_no_rail_reaches_is_lost_with_a_pair_and_the_reason() {
    let a = engine(&[("peer_timeout_ms", "1000")]);
    let mut metadata = metadata_of(&engine(&[]));
    let ips = metadata.card.rails.iter().map(|rail| rail.address.ip().to_string());
    let ports: Vec<ClosedPort> = ips.map(|ip| ClosedPort::new(&ip)).collect();
    for (rail, port) in metadata.card.rails.iter_mut().zip(&ports) {
        rail.address = port.address;
    }
    let peer = a.add_peer(&metadata.encode()).unwrap();
    let error = a.notify(&peer, b"anybody?").unwrap().ended().unwrap_err();
    let TransferError::PeerLost { why, .. } = &error else { panic!("{error}") };
    // On a busy machine it is noticed later, and the text says so.
    let LostReason::Unreachable { silence, .. } = why else { panic!("{why}") };
    assert!(*silence >= Duration::from_secs(1), "{why}");
    let why = why.to_string();
    assert!(
        why.starts_with("no rail reached it for ") && why.contains(" s; last problem: "),
        "{why}"
    );
    assert!(why.contains("rail lo@127.0.0.") && why.contains("(127.0.0."), "{why}");
    assert!(why.contains("Connection refused (os error 111)"), "{why}");
    assert!(error.help().is_some());
}

#[test]
fn connecting_to_nobody_fails_with_address_and_reason() {
    let engine = engine(&[("connect_timeout_ms", "300")]);
    let port = ClosedPort::new("127.0.0.1");
    let closed = port.address;
    let error = engine.connect(closed).join().unwrap_err().to_string();
    assert!(error.contains(&closed.to_string()) && error.contains("refused"), "{error}");
    // This listener never sends anything.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let error = engine.connect(silent.local_addr().unwrap()).join().unwrap_err().to_string();
    assert!(error.contains("300 ms") || error.contains("timed out"), "{error}");
    let error = engine.connect("[::1]:9".parse().unwrap()).join().unwrap_err().to_string();
    assert!(error.contains("no rail here has an address of that family"), "{error}");
    assert!(matches!(engine.connect(engine.addresses()[0]).join(), Err(PeerError::Myself)));
}

#[test]
fn the_first_of_several_addresses_that_answers_counts() {
    let (a, b) = (engine(&[("connect_timeout_ms", "20000")]), engine(&[]));
    let (closed, mute) = (ClosedPort::new("127.0.0.1"), TcpListener::bind("127.0.0.1:0").unwrap());
    let mute = mute.local_addr().unwrap();
    let begin = std::time::Instant::now();
    let addresses = [mute, closed.address, b.addresses()[0], b.addresses()[1]];
    let peer = a.connect_any(&addresses, Some(&b.invitation())).join().unwrap();
    assert_eq!(peer.instance(), b.instance());
    // The wait for the first two ends when the third answers.
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
    let c = engine(&[("connect_timeout_ms", "300")]);
    let error = c.connect_any(&[mute, closed.address], None).join().unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&closed.address.to_string()) && text.contains("a firewall"), "{text}");
    // However many fail at once.
    let addresses = [vec![closed.address; 2000], vec![b.addresses()[0]]].concat();
    let d = engine(&[("connect_timeout_ms", "20000")]);
    let peer = d.connect_any(&addresses, Some(&b.invitation())).join().unwrap();
    assert_eq!(peer.instance(), b.instance());
    // An engine's refusal has precedence.
    let addresses = [closed.address, b.addresses()[0]];
    let error = c.connect_any(&addresses, Some(&a.invitation())).join().unwrap_err();
    assert!(error.to_string().contains(&b.addresses()[0].to_string()), "{error}");
    let error = c.connect_any(&[], None).join().unwrap_err();
    assert!(matches!(error, PeerError::Connect { why: ConnectReason::NoAnswer, .. }), "{error}");
}

#[test]
fn a_peer_that_is_given_up_is_told_why_on_the_connections_that_are_left() {
    let a = engine(&[]);
    let b = engine(&[("peer_timeout_ms", "1000")]);
    // As behind a firewall: only one of the two can connect to the other.
    let mut metadata = metadata_of(&a);
    let ips = metadata.card.rails.iter().map(|rail| rail.address.ip().to_string());
    let ports: Vec<ClosedPort> = ips.map(|ip| ClosedPort::new(&ip)).collect();
    for (rail, port) in metadata.card.rails.iter_mut().zip(&ports) {
        rail.address = port.address;
    }
    let to_a = b.add_peer(&metadata.encode()).unwrap();
    let to_b = a.add_peer(&b.metadata()).unwrap();
    wait_for("the flows that can come up", || to_b.flows().are_all_up());
    wait_for("the peer to be given up", || to_a.lost().is_some() && to_b.lost().is_some());
    let LostReason::Unreachable { .. } = to_a.lost().unwrap() else { panic!("{to_a:?}") };
    let why = to_b.lost().unwrap();
    let LostReason::GivenUp { says } = &why else { panic!("{why}") };
    assert!(says.starts_with("none of its connections to this engine came up for "), "{says}");
    assert!(says.contains("Connection refused") && says.contains(": rail lo@127.0.0."), "{says}");
    assert!(why.to_string().starts_with("it gave this engine up: none of"), "{why}");
}

/// Returns why an engine does not connect to this address, and the help.
fn not_connected(engine: &Engine, address: SocketAddr) -> (String, String) {
    let error = engine.connect(address).join().unwrap_err();
    (error.to_string(), error.help().expect("a remedy"))
}

#[test]
fn who_connects_to_what_is_no_engine_is_told_what_helps() {
    let engine = engine(&[("connect_timeout_ms", "500"), ("peer_timeout_ms", "1000")]);
    let (text, help) = not_connected(&engine, ClosedPort::new("127.0.0.1").address);
    assert!(text.contains("Connection refused") && help.contains("nobody listens there"), "{help}");

    // A listener that accepts and sends nothing.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let (text, help) = not_connected(&engine, mute.local_addr().unwrap());
    assert!(text.contains("timed out waiting for the other side's first words"), "{text}");
    assert!(
        text.contains("TCP connected and nothing answered: the process there may be stopped"),
        "{text}"
    );
    assert!(help.contains("an engine listens there") && !help.contains("firewall"), "{help}");

    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr().unwrap();
    let web = std::thread::spawn(move || {
        let (mut socket, _) = server.accept().unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // Until the engine hangs up.
        let _ = socket.read_to_end(&mut Vec::new());
    });
    let (text, help) = not_connected(&engine, address);
    assert!(text.contains("it speaks HTTP, and is no Polyrail"), "{text}");
    assert!(help.contains("give an address that the engine there listens on"), "{help}");
    web.join().unwrap();
}

#[test]
fn each_refusal_of_the_system_has_a_help_of_its_own() {
    let address = "10.0.0.1:7000".parse().unwrap();
    let connect = |kind: ErrorKind| {
        let why = ConnectReason::System { kind, text: kind.to_string() };
        PeerError::Connect { address, why }.help()
    };
    for (kind, part) in [
        (ErrorKind::TimedOut, "firewalls of both hosts"),
        (ErrorKind::HostUnreachable, "firewalls of both hosts"),
        (ErrorKind::PermissionDenied, "of this host forbids the connection"),
        (ErrorKind::ConnectionReset, "the engine's log says why"),
    ] {
        let help = connect(kind).unwrap();
        assert!(help.contains(part), "{kind}: {help}");
    }
    assert_eq!(connect(ErrorKind::OutOfMemory), None, "nothing is made up");
    let listen = |kind: ErrorKind| {
        let (rail, source) = ("eth0".to_owned(), kind.into());
        EngineError::Listen { rail, address, source }.help().unwrap()
    };
    let help = listen(ErrorKind::PermissionDenied);
    assert!(help.contains("ports below 1024 are for root"), "{help}");
    let help = listen(ErrorKind::AddrNotAvailable);
    assert!(help.contains("rails that have an address now"), "{help}");
    assert!(listen(ErrorKind::AddrInUse).contains("another `listen_port`"));
    let source = ErrorKind::PermissionDenied.into();
    let help = PeerError::File { path: "peer".into(), source }.help().unwrap();
    assert!(help.contains("run both engines as one user"), "{help}");
}
