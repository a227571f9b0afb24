//! Both ends of the baseline in one process.

use std::io::{Read, Write};
use std::iter::once;

use polyrail_report::exit;

use super::*;
use crate::fault::Cause;
use crate::together::tests::{is_alone, without_more_threads};

fn spec(to_us: bool, ping_pong: bool) -> RawSpec {
    RawSpec {
        flows: 3,
        piece: 10_000,
        area: 50_000,
        to_peer: true,
        to_us,
        ping_pong,
        congestion: String::new(),
        send_buffer: 0,
        recv_buffer: 0,
        seed: 3,
    }
}

/// Runs both ends in one process, without an engine between them.
fn play(spec: &RawSpec, pieces: u64) -> (RawServer, Vec<Flow>) {
    let local: IpAddr = [127, 0, 0, 1].into();
    let mut server = RawServer::open(spec.clone(), once(("lo".to_owned(), local))).unwrap();
    let address = server.addresses().unwrap()[0].1;
    let mut flows: Vec<Flow> = spec
        .traffic()
        .map(|(index, traffic)| Flow::connect(spec, traffic, index, local, address).unwrap())
        .collect();
    server.accept(&Interrupt::default()).unwrap();
    server.begin(pieces).unwrap();
    thread::scope(|scope| {
        for flow in &mut flows {
            let pieces = spec.part(flow.index, pieces);
            scope.spawn(move || flow.client_round(spec.piece, pieces).unwrap());
        }
    });
    assert!(server.end().unwrap() >= 0.0);
    (server, flows)
}

#[test]
fn both_directions_arrive_whole_and_in_place() {
    let spec = spec(true, false);
    let (server, flows) = play(&spec, 17);
    server.verify().unwrap();
    flows.iter().for_each(|flow| flow.verify(&spec).unwrap());
    assert_eq!(flows.iter().map(Flow::landed_pieces).sum::<u64>(), 17);
    assert_eq!(server.flows.iter().map(Flow::landed_pieces).sum::<u64>(), 17);
}

#[test]
fn a_stranger_on_the_port_holds_up_nothing() {
    let spec = spec(true, false);
    let local: IpAddr = [127, 0, 0, 1].into();
    let mut server = RawServer::open(spec.clone(), once(("lo".to_owned(), local))).unwrap();
    let address = server.addresses().unwrap()[0].1;
    let silent = TcpStream::connect(address).unwrap();
    let mut wrong = TcpStream::connect(address).unwrap();
    wrong.write_all(&[1; 64]).unwrap();
    drop(TcpStream::connect(address).unwrap());
    let connect = |(index, traffic)| Flow::connect(&spec, traffic, index, local, address);
    let flows: Vec<_> = spec.traffic().map(|it| connect(it).unwrap()).collect();
    let began = Instant::now();
    server.accept(&Interrupt::default()).unwrap();
    assert!(began.elapsed() < ACCEPT_MAX && server.flows.len() == flows.len());
    drop(silent);
}

#[test]
fn only_flows_that_were_asked_for_are_taken_and_each_once() {
    let spec = RawSpec { flows: 2, piece: 1, ..spec(true, true) };
    let local: IpAddr = [127, 0, 0, 1].into();
    let mut server = RawServer::open(spec.clone(), once(("lo".to_owned(), local))).unwrap();
    let address = server.addresses().unwrap()[0].1;
    let greet = |index, traffic| Flow::connect(&spec, traffic, index, local, address).unwrap();
    let came = [
        greet(0, Traffic::ToServer),
        greet(1, Traffic::ToClient),
        greet(2, Traffic::PingPong),
        greet(0, Traffic::PingPong),
        greet(0, Traffic::PingPong),
        greet(1, Traffic::PingPong),
    ];
    server.accept(&Interrupt::default()).unwrap();
    let indices: Vec<usize> = server.flows.iter().map(|flow| flow.index).collect();
    assert_eq!(indices, [0, 1]);
    let bytes: usize = server.flows.iter_mut().map(|flow| flow.area_mut().len()).sum();
    assert_eq!((bytes as u64, spec.memory_bytes()), (4, 4));
    // A second accept takes no more of them.
    server.accept(&Interrupt::default()).unwrap();
    assert_eq!(server.flows.len(), 2);
    drop(came);
}

#[test]
fn a_second_round_waits_for_the_first_and_the_end_of_the_server_ends_both() {
    let spec = RawSpec { flows: 1, ..spec(false, false) };
    let local: IpAddr = [127, 0, 0, 1].into();
    let mut server = RawServer::open(spec.clone(), once(("lo".to_owned(), local))).unwrap();
    let address = server.addresses().unwrap()[0].1;
    let flow = Flow::connect(&spec, Traffic::ToServer, 0, local, address).unwrap();
    server.accept(&Interrupt::default()).unwrap();
    server.begin(1).unwrap();
    let text = server.begin(1).unwrap_err().to_string();
    assert!(text.contains("0 of 1 connections are there and idle"), "{text}");
    drop(server);
    let end = (&*flow.stream()).read(&mut [0]);
    assert!(matches!(end, Ok(0)), "{end:?}");
}

#[test]
fn a_round_that_cannot_have_its_threads_is_refused() {
    let test = "cmd::bench::rivals::raw::tests::a_round_that_cannot_have_its_threads_is_refused";
    if is_alone(test) {
        refuse_a_round_without_threads();
    }
}

fn refuse_a_round_without_threads() {
    let spec = spec(false, false);
    let local: IpAddr = [127, 0, 0, 1].into();
    let mut server = RawServer::open(spec.clone(), once(("lo".to_owned(), local))).unwrap();
    let address = server.addresses().unwrap()[0].1;
    let connect = |(index, traffic)| Flow::connect(&spec, traffic, index, local, address);
    let mut flows: Vec<Flow> = spec.traffic().map(|it| connect(it).unwrap()).collect();
    server.accept(&Interrupt::default()).unwrap();
    let text = without_more_threads(|| server.begin(1)).unwrap_err().to_string();
    assert!(text.starts_with("starting the threads of the raw baseline failed"), "{text}");
    assert!(!server.is_in_round() && server.begin(1).is_err());
    let interrupt = Interrupt::default();
    let ran = without_more_threads(|| run_all(&mut flows, &spec, 1, &interrupt));
    assert!(ran.is_err());
}

#[test]
fn hundreds_of_silent_strangers_displace_no_connection_of_the_measuring_end() {
    let spec = spec(true, false);
    let local: IpAddr = [127, 0, 0, 1].into();
    let mut server = RawServer::open(spec.clone(), once(("lo".to_owned(), local))).unwrap();
    let address = server.addresses().unwrap()[0].1;
    let connect = |(index, traffic)| Flow::connect(&spec, traffic, index, local, address).unwrap();
    // The first connection precedes the foreign ones, and the others follow them.
    let mut traffic = spec.traffic();
    let mut flows: Vec<Flow> = traffic.next().map(connect).into_iter().collect();
    let silent: Vec<TcpStream> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
    flows.extend(traffic.map(connect));
    server.accept(&Interrupt::default()).unwrap();
    assert_eq!((server.flows.len(), silent.len()), (flows.len(), 300));
}

#[test]
fn a_wrong_byte_is_found() {
    let spec = spec(false, false);
    let (mut server, _flows) = play(&spec, 30);
    server.flows[1].area_mut()[12_345] ^= 1;
    match server.verify().unwrap_err().cause {
        Cause::Mismatch(mismatch) => assert_eq!(mismatch.offset, 12_345),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_ping_pong_times_each_round_trip() {
    let spec = RawSpec { flows: 1, area: 10_000, ..spec(false, true) };
    let (server, flows) = play(&spec, 9);
    server.verify().unwrap();
    flows[0].verify(&spec).unwrap();
    assert_eq!((flows[0].landed_pieces(), server.flows[0].landed_pieces()), (9, 9));
}

#[test]
fn pieces_are_dealt_out_without_loss() {
    let spec = spec(false, false);
    for pieces in 0..20 {
        assert_eq!((0..3).map(|index| spec.part(index, pieces)).sum::<u64>(), pieces);
    }
}

#[test]
fn an_end_of_the_other_side_is_no_lack_of_this_machine() {
    let spec = RawSpec { flows: 1, ..spec(false, false) };
    let local: IpAddr = [127, 0, 0, 1].into();
    let mut server = RawServer::open(spec.clone(), once(("lo".to_owned(), local))).unwrap();
    let address = server.addresses().unwrap()[0].1;
    let connect = || Flow::connect(&spec, Traffic::ToServer, 0, local, address);
    let flow = connect().unwrap();
    server.accept(&Interrupt::default()).unwrap();
    server.begin(1).unwrap();
    drop(flow);
    assert_eq!(server.end().unwrap_err().code, exit::PEER);
    drop(server);
    assert_eq!(connect().err().map(|fault| fault.code), Some(exit::PEER));
}
