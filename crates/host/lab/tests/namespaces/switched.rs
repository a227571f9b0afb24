//! Tests of labs with a switch, made by root.

use std::io::Write;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::time::Duration;

use crate::common::{PATIENCE, assert_reaches, on, output, receive_rate, root_turn, spec};
use polyrail_lab::{Lab, LabError, LabGuard, LabState, Node, Rate, Side};

fn node(index: usize) -> Node {
    Node::new(index).unwrap()
}

fn switched(name: &str, nodes: usize, rails: &str) -> LabGuard {
    let mut spec = spec(name, rails);
    spec.nodes = Some(nodes);
    Lab::up(&spec).unwrap().guard()
}

/// Opens a stream from one node to another over a rail.
fn stream(lab: &Lab, rail: usize, from: Node, to: Node, ipv6: bool) -> [TcpStream; 2] {
    let end = lab.rails()[rail].end(to);
    let ip = if ipv6 { end.ipv6.expect("this machine runs IPv6").into() } else { end.ipv4.into() };
    let listener = on(lab, to, || TcpListener::bind(SocketAddr::new(ip, 0)).unwrap());
    let address = listener.local_addr().unwrap();
    let near = on(lab, from, || TcpStream::connect_timeout(&address, PATIENCE).unwrap());
    let (far, peer) = listener.accept().unwrap();
    let source = lab.rails()[rail].end(from);
    let own: IpAddr = if ipv6 { source.ipv6.unwrap().into() } else { source.ipv4.into() };
    assert_eq!(peer.ip(), own, "the rail's own source address");
    [near, far]
}

/// Payload bits per second at each receiver while all senders send at once.
fn rates(streams: Vec<[TcpStream; 2]>, window: Duration) -> Vec<f64> {
    let (senders, receivers): (Vec<_>, Vec<_>) =
        streams.into_iter().map(|[near, far]| (near, far)).unzip();
    std::thread::scope(|scope| {
        for sender in senders {
            scope.spawn(move || {
                let block = vec![0x5a; 1 << 18];
                while (&sender).write_all(&block).is_ok() {}
            });
        }
        let read = |far| scope.spawn(move || receive_rate(far, window));
        let reading = receivers.iter().map(read).collect::<Vec<_>>();
        let rates = reading.into_iter().map(|one| one.join().unwrap()).collect();
        for far in &receivers {
            far.shutdown(Shutdown::Both).unwrap();
        }
        rates
    })
}

#[test]
fn every_node_reaches_every_other_on_every_rail_as_soon_as_the_lab_is_up() {
    let Some(_turn) = root_turn() else { return };
    let lab = switched("star", 4, "1gbit,unlimited");
    assert_eq!((lab.nodes(), lab.is_switched(), lab.rails().len()), (4, true, 2));
    for rail in 0..2 {
        for from in 0..4 {
            for to in (0..4).filter(|to| *to != from) {
                stream(&lab, rail, node(from), node(to), false);
                stream(&lab, rail, node(from), node(to), true);
            }
        }
    }
    let info = &lab.rails()[1];
    assert_eq!(info.end(node(3)).ipv4.to_string(), "10.77.1.4");
    assert_eq!(info.end(node(3)).port_rate, Some(Rate::UNLIMITED));
    assert_eq!(lab.rails()[0].end(Side::B).port_rate.unwrap().to_string(), "1gbit");
    assert_eq!(lab.rails()[0].rate.to_string(), "1gbit");
    // A node sees its own rails only, and the switch has no address of the lab.
    let seen = output(&lab, node(2), &["cat", "/proc/net/dev"]);
    assert!(seen.contains("rail1:") && !seen.contains("rail0-"), "{seen}");
    lab.down().unwrap();
}

#[test]
fn a_port_has_the_rate_of_its_rail_in_both_directions() {
    let Some(_turn) = root_turn() else { return };
    let lab = switched("port", 3, "500mbit");
    for (from, to) in [(2, 0), (0, 2)] {
        assert_reaches(500e6, || {
            let one = stream(&lab, 0, node(from), node(to), false);
            rates(vec![one], Duration::from_secs(1))[0]
        });
    }
    lab.set_rate(0, "200mbit".parse().unwrap()).unwrap();
    let end = lab.observe().unwrap()[0].end(node(1)).clone();
    assert_eq!(
        (end.rate.to_string(), end.port_rate.unwrap().to_string()),
        ("200mbit".into(), "200mbit".into())
    );
    assert_reaches(200e6, || {
        let one = stream(&lab, 0, node(1), node(2), false);
        rates(vec![one], Duration::from_secs(1))[0]
    });
}

#[test]
fn incast_gets_no_more_than_the_port_of_the_receiver_and_leaves_other_ports_alone() {
    let Some(_turn) = root_turn() else { return };
    let lab = switched("incast", 6, "300mbit");
    // Three nodes send to node 0: without a limit at the port that would be 900 Mbit/s. Packets from node 4 to node 5,
    // and their acknowledgements, do not wait in the queue in front of node 0.
    let (mut into_one, mut aside) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let mut streams = Vec::new();
        for (from, to) in [(1, 0), (2, 0), (3, 0), (4, 5)] {
            streams.push(stream(&lab, 0, node(from), node(to), false));
        }
        let got = rates(streams, Duration::from_secs(1));
        let (one, other) = (got[..3].iter().sum::<f64>() / 300e6, got[3] / 300e6);
        into_one.push(one);
        aside.push(other);
        assert!(one < 1.1 && other < 1.1, "{into_one:?} {aside:?}: faster than a port");
        if one > 0.8 && other > 0.7 {
            break;
        }
    }
    let is_filled = into_one.last() > Some(&0.8) && aside.last() > Some(&0.7);
    assert!(
        is_filled,
        "shares of 300 Mbit/s: {into_one:.3?} into one port, {aside:.3?} into another"
    );
}

#[test]
fn a_node_that_is_cut_off_leaves_the_others_joined_and_comes_back() {
    let Some(_turn) = root_turn() else { return };
    let lab = switched("cutone", 3, "2x1gbit");
    lab.cut_at(0, node(2)).unwrap();
    let seen = lab.observe().unwrap();
    assert!(!seen[0].up && !seen[0].end(node(2)).up && seen[0].end(node(1)).up && seen[1].up);
    stream(&lab, 0, node(0), node(1), false);
    stream(&lab, 1, node(0), node(2), true);
    let to = SocketAddr::from((lab.rails()[0].end(node(0)).ipv4, 9));
    on(&lab, node(2), || TcpStream::connect_timeout(&to, PATIENCE)).unwrap_err();
    lab.set_link(0, true).unwrap();
    stream(&lab, 0, node(2), node(0), false);
    stream(&lab, 0, node(1), node(2), true);
}

#[test]
fn nodes_that_the_lab_has_not_are_refused() {
    let Some(_turn) = root_turn() else { return };
    let lab = switched("refuse", 3, "1gbit");
    for error in [
        lab.node(node(3)).unwrap_err(),
        lab.cut_at(0, node(3)).unwrap_err(),
        lab.enter_thread(node(31)).unwrap_err(),
    ] {
        assert!(matches!(error, LabError::UnknownNode { last: 2, .. }), "{error}");
        assert!(error.help().unwrap().contains("polyrail lab ls"));
    }
    // The switch is the namespace after the last node, and `node(4)` is not a node of the lab.
    lab.command(node(4), "true").status().unwrap_err();
    for nodes in [0, 1, 33] {
        let mut wrong = spec("refuse-too", "1gbit");
        wrong.nodes = Some(nodes);
        assert!(matches!(Lab::up(&wrong), Err(LabError::BadValue { field: "nodes", .. })));
        assert!(matches!(Lab::open(&wrong.name), Err(LabError::UnknownLab { .. })));
    }
}

#[test]
fn what_a_crash_leaves_of_a_switched_lab_is_listed_explained_and_removed() {
    let Some(_turn) = root_turn() else { return };
    let mut spec = spec("starstale", "2x1gbit");
    spec.nodes = Some(3);
    let record = format!("/run/polyrail-labs/lab/{}.json", spec.name);
    let name = |suffix: &str| format!("/run/netns/polyrail-{}-{suffix}", spec.name);
    let names = ["node0", "node1", "node2", "switch"].map(name);
    let unmount = |path: &str| {
        rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).unwrap();
    };
    let damages: [(&str, &dyn Fn()); 4] = [
        ("its record is missing", &|| std::fs::remove_file(&record).unwrap()),
        ("its record cannot be read", &|| std::fs::write(&record, "{").unwrap()),
        ("a namespace is missing", &|| unmount(&names[3])),
        ("a namespace is missing", &|| unmount(&names[1])),
    ];
    for (because, damage) in damages {
        let lab = Lab::up(&spec).unwrap().guard();
        assert!(names.iter().all(|path| Path::new(path).exists()));
        damage();
        let info = Lab::list().unwrap().into_iter().find(|info| info.name == spec.name).unwrap();
        assert_eq!(info.state, LabState::Broken { because: because.into() });
        assert!(info.is_switched && info.namespaces.len() == 3, "{info:?}");
        Lab::remove(&spec.name).unwrap();
        assert!(!names.iter().chain([&record]).any(|path| Path::new(path).exists()), "{because}");
        drop(lab);
    }
}
