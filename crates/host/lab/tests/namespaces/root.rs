//! Tests of labs made by root.

use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::{
    self, assert_reaches, connect, lab, listen, on, output, receive_rate, root_turn, round_trip,
    spec, stream_rate, v4, v6,
};
use polyrail_lab::{Lab, LabError, LabSpec, LabState, Rate, Side};
use socket2::SockRef;

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

/// Addresses and routes of both sides, without counters.
fn network(lab: &Lab) -> String {
    let mut lines = Vec::new();
    for side in Side::BOTH {
        for file in ["route", "fib_trie", "if_inet6", "ipv6_route"] {
            let text = output(lab, side, &["cat", &format!("/proc/net/{file}")]);
            for line in text.lines() {
                let fields = line.split_whitespace().collect::<Vec<_>>();
                match file {
                    // Link-local entries appear only after the kernel's duplicate address
                    // detection.
                    "if_inet6" | "ipv6_route" if !line.contains("fd10") => continue,
                    "ipv6_route" => lines.push(format!("{side} {}", fields[..5].join(" "))),
                    _ => lines.push(format!("{side} {}", fields.join(" "))),
                }
            }
        }
    }
    lines.sort();
    lines.join("\n")
}

#[test]
fn every_rail_carries_bytes_over_ipv4_and_ipv6_as_soon_as_the_lab_is_up() {
    let Some(_turn) = root_turn() else { return };
    let lab = lab("carry", "1gbit,4gbit,unlimited");
    for rail in 0..3 {
        round_trip(&lab, rail, v6).unwrap();
        round_trip(&lab, rail, v4).unwrap();
    }
    lab.down().unwrap();
}

#[test]
fn one_stream_reaches_the_rate_of_its_rail_in_both_directions() {
    let Some(_turn) = root_turn() else { return };
    let lab = lab("rate", "1gbit");
    for from in Side::BOTH {
        assert_reaches(1e9, || {
            let listener = listen(&lab, 0, v4);
            let near = connect(&lab, &listener).unwrap();
            let (far, _) = listener.accept().unwrap();
            let (sender, receiver) = if from == Side::A { (near, far) } else { (far, near) };
            stream_rate(sender, receiver, Duration::from_secs(1))
        });
    }
}

#[test]
fn a_rate_set_under_traffic_takes_effect() {
    let Some(_turn) = root_turn() else { return };
    let lab = lab("setrate", "1gbit");
    let listener = listen(&lab, 0, v4);
    let near = connect(&lab, &listener).unwrap();
    let (far, _) = listener.accept().unwrap();
    let filling = std::thread::spawn(move || {
        let block = vec![0x5a; 1 << 18];
        while (&near).write_all(&block).is_ok() {}
    });
    let window = Duration::from_millis(700);
    assert_reaches(1e9, || receive_rate(&far, window));
    for (text, bits) in [("2gbit", 2e9), ("200mbit", 200e6)] {
        lab.set_rate(0, rate(text)).unwrap();
        assert_eq!(lab.observe().unwrap()[0].rate, rate(text));
        assert_reaches(bits, || receive_rate(&far, window));
    }
    lab.set_rate(0, Rate::UNLIMITED).unwrap();
    lab.set_rate(0, Rate::UNLIMITED).unwrap();
    assert_eq!(lab.observe().unwrap()[0].rate, Rate::UNLIMITED);
    let faster = (0..6).any(|_| receive_rate(&far, window) > 400e6);
    assert!(faster, "no faster than the last bucket let it");
    far.shutdown(std::net::Shutdown::Both).unwrap();
    drop(far);
    filling.join().unwrap();
    assert_eq!(lab.rails()[0].rate, rate("1gbit"), "as it was when the lab came up");
}

#[test]
fn a_cut_rail_carries_nothing_and_a_mended_one_has_all_addresses_and_routes_again() {
    let Some(_turn) = root_turn() else { return };
    let lab = lab("cut", "2x1gbit");
    let before = network(&lab);
    assert!(before.contains("fd10") && before.contains("10.77.1.2"), "{before}");
    for cut in Side::BOTH {
        for _ in 0..3 {
            lab.cut_at(0, cut).unwrap();
            let seen = lab.observe().unwrap();
            assert!(!seen[0].up && !seen[0].end(cut).up && seen[0].end(cut.other()).up);
            assert!(seen[1].up);
            lab.set_link(0, true).unwrap();
        }
        lab.cut_at(0, cut).unwrap();
        round_trip(&lab, 0, v4).expect_err("a cut rail carried bytes");
        round_trip(&lab, 1, v6).expect("the other rail does not mind");
        assert_ne!(network(&lab), before, "the link's routes are still there");

        lab.set_link(0, true).unwrap();
        round_trip(&lab, 0, v4).unwrap();
        round_trip(&lab, 0, v6).unwrap();
        assert_eq!(network(&lab), before);
        assert!(lab.observe().unwrap()[0].up);
    }
}

#[test]
fn a_connection_under_way_survives_a_short_cut() {
    let Some(_turn) = root_turn() else { return };
    let lab = lab("survive", "1gbit");
    let listener = listen(&lab, 0, v6);
    let mut near = connect(&lab, &listener).unwrap();
    let (mut far, _) = listener.accept().unwrap();
    lab.set_link(0, false).unwrap();
    near.write_all(b"in the dark").unwrap();
    // The duration of the cut.
    std::thread::sleep(Duration::from_millis(100));
    lab.set_link(0, true).unwrap();
    far.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    let mut got = [0; 11];
    far.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"in the dark");
}

#[test]
fn two_labs_at_once_do_not_meet() {
    let Some(_turn) = root_turn() else { return };
    let (one, two) = (lab("one", "1gbit"), lab("two", "1gbit,1gbit"));
    let listener = listen(&one, 0, v4);
    let address = listener.local_addr().unwrap();
    let same_address = || std::net::TcpStream::connect_timeout(&address, common::PATIENCE);
    assert!(on(&two, Side::A, same_address).is_err(), "reached the other lab");
    round_trip(&one, 0, v4).unwrap();
    round_trip(&two, 1, v6).unwrap();
    one.down().unwrap();
    round_trip(&two, 0, v4).unwrap();
}

#[test]
fn a_second_lab_of_the_same_name_is_refused_and_the_first_lives_on() {
    let Some(_turn) = root_turn() else { return };
    let spec = spec("twice", "1gbit");
    let first = Lab::up(&spec).unwrap().guard();
    let error = Lab::up(&spec).unwrap_err();
    assert!(matches!(error, LabError::AlreadyUp { .. }), "{error}");
    assert!(error.help().unwrap().contains("polyrail lab down twice-"));
    round_trip(&first, 0, v4).unwrap();
    round_trip(&Lab::open(&spec.name).unwrap(), 0, v4).unwrap();
}

#[test]
fn bad_values_are_refused_before_anything_is_touched() {
    let Some(_turn) = root_turn() else { return };
    let mut wrong = spec("bad", "1gbit");
    wrong.mtu = 68;
    assert!(matches!(Lab::up(&wrong), Err(LabError::BadValue { field: "mtu", .. })));
    assert!(matches!(Lab::open(&wrong.name), Err(LabError::UnknownLab { .. })));
    assert!(matches!(Lab::remove(&wrong.name), Err(LabError::UnknownLab { .. })));
    assert!(matches!(Lab::open("../x"), Err(LabError::BadValue { field: "name", .. })));

    let lab = lab("bad", "1gbit,1gbit");
    let error = lab.set_rate(2, Rate::UNLIMITED).unwrap_err().to_string();
    assert!(
        error.contains("rail `2` is not in lab") && error.contains("rail0 to rail1"),
        "{error}"
    );
    assert!(lab.set_link(2, true).is_err() && lab.cut_at(16, Side::A).is_err());
    assert!(lab.rail("rail1").is_ok() && lab.rail("rail2").is_err() && lab.rail("eth0").is_err());
}

#[test]
fn a_guard_removes_its_lab_when_a_test_panics() {
    let Some(_turn) = root_turn() else { return };
    let spec = spec("panic", "1gbit");
    let panicking = spec.clone();
    let result = std::panic::catch_unwind(move || {
        let _lab = Lab::up(&panicking).unwrap().guard();
        panic!("as planned");
    });
    assert!(result.is_err());
    assert!(matches!(Lab::open(&spec.name), Err(LabError::UnknownLab { .. })));
    assert!(!Path::new(&format!("/run/netns/polyrail-{}-a", spec.name)).exists());
}

#[test]
fn only_the_thread_that_enters_moves() {
    let Some(_turn) = root_turn() else { return };
    let lab = lab("thread", "1gbit");
    let here = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
    let home = here();
    let (a, b) = (on(&lab, Side::A, here), on(&lab, Side::B, here));
    assert!(a != home && b != home && a != b);
    assert_eq!(here(), home);
    assert_eq!(std::fs::read_link("/proc/self/ns/net").unwrap(), home, "the process stays");
    let child = output(&lab, Side::B, &["readlink", "/proc/self/ns/net"]);
    assert_eq!(Path::new(child.trim()), b);
}

#[test]
fn a_command_ends_with_the_status_or_signal_of_its_program() {
    let Some(_turn) = root_turn() else { return };
    let lab = lab("status", "1gbit");
    let status = |script: &str| lab.command(Side::A, "sh").args(["-c", script]).status().unwrap();
    assert_eq!(status("exit 7").code(), Some(7));
    assert_eq!(status("kill -KILL $$").signal(), Some(9));
    let missing = lab.command(Side::A, "/no/such/program").status().unwrap_err();
    assert_eq!(missing.kind(), std::io::ErrorKind::NotFound);
}

#[test]
fn the_mtu_is_what_was_asked_for() {
    let Some(_turn) = root_turn() else { return };
    let mut spec = spec("mtu", "1gbit");
    spec.mtu = 9000;
    let lab = Lab::up(&spec).unwrap().guard();
    let listener = listen(&lab, 0, v4);
    let stream = connect(&lab, &listener).unwrap();
    // 20 bytes each for IP and TCP, 12 for timestamps.
    assert_eq!(SockRef::from(&stream).tcp_mss().unwrap(), 9000 - 52);
}

#[test]
fn removing_a_lab_ends_the_processes_inside_but_not_those_that_visit() {
    let Some(_turn) = root_turn() else { return };
    let lab = lab("procs", "1gbit");
    let name = lab.name().to_owned();
    let mut polite = lab.command(Side::A, "sleep").arg("100").spawn().unwrap();
    let stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let mut stubborn = lab
        .command(Side::B, "sh")
        .args(["-c", stubborn])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    stubborn.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
    let info = Lab::list().unwrap().into_iter().find(|info| info.name == name).unwrap();
    assert_eq!(info.state, LabState::Ready);
    assert!((2..=3).contains(&info.processes), "{}", info.processes);

    // A thread of this process is inside, and the process must survive.
    let start = Instant::now();
    on(&lab, Side::A, || Lab::remove(&name)).unwrap();
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    assert_eq!(polite.wait().unwrap().signal(), Some(15));
    assert_eq!(stubborn.wait().unwrap().signal(), Some(9));
    assert!(lab.observe().unwrap().is_empty(), "links go even while the namespaces are held");
}

/// Simulates the view of a process with its own PIDs, like one in a container.
#[test]
fn a_lab_lives_as_long_as_its_maker_also_where_nobody_sees_that_process() {
    let Some(_turn) = root_turn() else { return };
    let mut spec = spec("unseen", "1gbit");
    spec.ends_with_process = true;
    let _cleanup = RemoveAtEnd(&spec.name);
    let lab = Lab::up(&spec).unwrap();
    let record = format!("/run/polyrail-labs/lab/{}.json", spec.name);
    let text = std::fs::read_to_string(&record).unwrap();
    let unseen = i32::MAX;
    let pid = |pid| format!("\"owner\":{{\"pid\":{pid},");
    std::fs::write(&record, text.replace(&pid(std::process::id() as i32), &pid(unseen))).unwrap();
    let state = || {
        let labs = Lab::list().unwrap();
        labs.into_iter().find(|lab| lab.name == spec.name).unwrap().state.to_string()
    };
    assert_eq!(state(), "ready");
    let other = LabSpec { name: format!("{}-other", spec.name), ..spec.clone() };
    let other = Lab::up(&other).unwrap().guard();
    assert!(!other.abandoned().contains(&spec.name));
    other.down().unwrap();
    // The lab's namespaces may be invisible, too.
    unmount(&format!("/run/netns/polyrail-{}-b", spec.name));
    assert_eq!(state(), "in use by a process that can't be seen from here, in a container, say");
    for error in [Lab::up(&spec).unwrap_err(), Lab::remove(&spec.name).unwrap_err()] {
        assert!(matches!(error, LabError::InUse { process: None, .. }), "{error}");
    }

    drop(lab);
    let lab = Lab::up(&spec).unwrap();
    assert_eq!(lab.replaced(), Some("a namespace is missing"));
    lab.down().unwrap();
}

#[test]
fn what_a_reboot_or_crash_leaves_is_listed_explained_and_replaced() {
    let Some(_turn) = root_turn() else { return };
    let spec = spec("stale", "1gbit");
    let _cleanup = RemoveAtEnd(&spec.name);
    let record = format!("/run/polyrail-labs/lab/{}.json", spec.name);
    let names = ["a", "b"].map(|side| format!("/run/netns/polyrail-{}-{side}", spec.name));
    let state = || {
        let labs = Lab::list().unwrap();
        labs.into_iter().find(|lab| lab.name == spec.name).unwrap().state.to_string()
    };
    let damages: [(&str, &dyn Fn()); 5] = [
        ("building it was interrupted", &|| {
            let text = std::fs::read_to_string(&record).unwrap();
            std::fs::write(&record, text.replace("\"ready\":true", "\"ready\":false")).unwrap();
        }),
        ("its record cannot be read", &|| std::fs::write(&record, "{\"sch").unwrap()),
        ("its record is missing", &|| std::fs::remove_file(&record).unwrap()),
        ("a namespace is missing", &|| unmount(&names[1])),
        ("the machine was booted since", &|| {
            names.iter().for_each(|name| unmount(name));
            let text = std::fs::read_to_string(&record).unwrap();
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
            std::fs::write(&record, text.replace(boot.trim(), "another-boot")).unwrap();
        }),
    ];
    for (because, damage) in damages {
        Lab::up(&spec).unwrap();
        damage();
        assert_eq!(state(), format!("broken: {because}"));
        let error = Lab::open(&spec.name).unwrap_err();
        assert!(error.to_string().contains(because), "{error}");
        assert!(error.help().unwrap().contains("polyrail lab down"));

        let lab = Lab::up(&spec).unwrap();
        assert_eq!(lab.replaced(), Some(because));
        round_trip(&lab, 0, v4).unwrap();
        damage();
        Lab::remove(&spec.name).unwrap();
        assert!(!names.iter().chain([&record]).any(|path| Path::new(path).exists()));
    }
}

/// Removes at the end of the test a lab that is built several times.
struct RemoveAtEnd<'a>(&'a str);

impl Drop for RemoveAtEnd<'_> {
    fn drop(&mut self) {
        let _ = Lab::remove(self.0);
    }
}

fn unmount(path: &str) {
    rustix::mount::unmount(path, rustix::mount::UnmountFlags::DETACH).unwrap();
}

#[test]
fn a_lab_that_lost_a_rail_is_called_broken() {
    let Some(_turn) = root_turn() else { return };
    let lab = lab("lost", "2x1gbit");
    // Removing one rail takes the `ip` program; only this test needs it, not the lab.
    let removed = lab.command(Side::A, "ip").args(["link", "del", "rail1"]).status();
    if !removed.is_ok_and(|status| status.success()) {
        return common::skipped("the `ip` program is missing (iproute2)");
    }
    let info = Lab::list().unwrap().into_iter().find(|info| info.name == lab.name()).unwrap();
    assert_eq!(info.state.to_string(), "broken: 1 of its 2 rails are there");
    assert!(matches!(Lab::open(lab.name()), Err(LabError::Broken { .. })));
}

#[test]
fn a_name_that_stands_for_a_namespace_in_use_does_no_harm_when_removed() {
    let Some(_turn) = root_turn() else { return };
    // This lab keeps the directory from being removed.
    let _other = lab("other", "1gbit");
    let name = format!("foreign-{}", std::process::id());
    let path = format!("/run/netns/polyrail-{name}-a");
    std::fs::write(&path, "").unwrap();
    rustix::mount::mount_bind("/proc/self/ns/net", path.as_str()).unwrap();
    // An unrelated process in the machine's own namespace.
    let mut bystander = Command::new("sleep").arg("100").spawn().unwrap();
    Lab::remove(&name).unwrap();
    assert!(!Path::new(&path).exists());
    assert!(bystander.try_wait().unwrap().is_none(), "the bystander was ended");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}
