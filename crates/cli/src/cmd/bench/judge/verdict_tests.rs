#[path = "../../../../tests/common/golden.rs"]
mod golden;
#[path = "idle_rail_tests.rs"]
mod idle_rails;

use polyrail::Config;
use polyrail_report::LimitKind::{
    Cpu, Depth, Device, Memory, MessageRate, Network, Peer, Posting, Window,
};
use polyrail_report::Spread;
use polyrail_sample::{Hot, Work};

use super::super::causes::{Test, untested};
use super::super::evidence::{BesideRails, Deeper, Line};
use super::super::machine::{Copies, CopyRate};
use super::super::suspects::{Knob, Scene, suspects};
use super::*;
use crate::cmd::bench::talk::{DownRail, Load, OneNic, OwnCpus, Program, Throttled, WhyDown};

/// Returns the evidence of two machines with nothing to do.
fn idle() -> Evidence {
    let load = Load { process_cpus: 0.1, cpus_allowed: 8, ..Load::default() };
    Evidence {
        has_resent: false,
        down_in_some: false,
        down_elsewhen: Default::default(),
        gb_per_s: 1.0,
        ways: 1,
        local: load.clone(),
        peer: load,
        same_host: false,
        copy: Some(copy(Copies::Out, 20.0)),
        messages_per_s: None,
        beside_rails: None,
        line: Some(Line {
            rails: rails([4.0, 2.0, 2.0, 2.0]),
            source: "4 rails in the lab".into(),
        }),
        peer_line: None,
        rails: rails([0.4, 0.2, 0.2, 0.2]),
        lost: None,
        payload: None,
        ping_pong: false,
        window_full_share: 0.0,
        depth: 64,
        size: 1 << 20,
        window_bytes: 32 << 20,
        deeper: None,
        p50_us: Some(900.0),
    }
}

fn rails(numbers: [f64; 4]) -> Vec<(String, f64)> {
    numbers.into_iter().enumerate().map(|(rail, number)| (format!("rail{rail}"), number)).collect()
}

fn copy(copies: Copies, gb_per_s: f64) -> CopyRate {
    let cpus = "0-7".into();
    CopyRate { gb_per_s, copies, threads: 8, cpus, footprint_bytes: 256 << 20, age: None }
}

/// Name of the case, its limit, and the difference of the run from [`idle`]. The sentence of each verdict is in
/// `tests/golden`.
type Case = (&'static str, LimitKind, fn(&mut Evidence));

#[track_caller]
fn check(golden: &str, cases: &[Case]) {
    let judged = cases.iter().map(|(name, wanted, change)| {
        let mut evidence = idle();
        change(&mut evidence);
        let Limit { verdict, because } = judge(&evidence).limit;
        let line = format!("{name}: {}\n", because.replace('\n', " | "));
        let is_wrong = verdict != *wanted;
        (line.clone(), is_wrong.then(|| format!("{verdict:?} and not {wanted:?}: {line}")))
    });
    let (lines, wrong): (String, Vec<Option<String>>) = judged.unzip();
    let wrong: String = wrong.into_iter().flatten().collect();
    assert!(wrong.is_empty(), "{wrong}");
    golden::assert_golden(golden, &lines);
}

fn hot(busy_percent: f64) -> Option<Hot> {
    Some(Hot {
        cpu: 22,
        work: Work::ReceiveCopy { thread: "pr-rx0".into() },
        busy_percent,
        user_percent: 0.0,
        system_percent: 37.0,
        softirq_percent: 61.0,
        steal_percent: 0.0,
        rwnd_limited_percent: None,
    })
}

fn thread(name: &str, share: f64) -> Option<(String, f64)> {
    Some((name.into(), share))
}

/// Returns a rail whose flows carry nothing.
fn down(name: &str, why: WhyDown) -> DownRail {
    let (name, interface) = (name.to_owned(), name.replace("rail", "eth"));
    DownRail { name, interface, why, because: None, receives: false, went: false }
}

/// Recorded on two nodes with two NICs each on one Ethernet, and the kernel's defaults.
fn one_nic() -> Option<OneNic> {
    let (rails, interface) = (vec!["eth1".into(), "eth2".into()], "eth1".into());
    Some(OneNic { rails, interface, share: 0.996 })
}

fn tried(ratio: f64) -> Option<Deeper> {
    let ratio = Spread { median: ratio, min: ratio, max: ratio };
    Some(Deeper { depth: 256, ratio })
}

fn few(e: &mut Evidence, depth: u64, size: u64) {
    (e.depth, e.size, e.p50_us) = (depth, size, Some(9.5));
}

/// Other programs have the CPUs of a machine, and a thread waits for one.
fn crowd(load: &mut Load, share: f64, busy: f64) {
    load.queued_thread = thread("pr-tx0", share);
    (load.machine_busy, load.machine_cpus) = (Some(busy), 8);
}

/// Other programs have the two CPUs that this process may use.
fn crowd_on_own(load: &mut Load, busy: f64) {
    load.queued_thread = thread("pr-tx0", 0.5);
    (load.machine_busy, load.machine_cpus, load.process_cpus) = (Some(0.2), 16, 0.5);
    (load.cpus_allowed, load.own_cpus) = (2, Some(OwnCpus { count: 2, busy }));
    load.programs = vec![program(7, "hog", 1.5)];
}

fn program(pid: u32, name: &str, cpus: f64) -> Program {
    Program { pid, name: name.into(), cpus }
}

/// Both ends and two other processes fill the CPUs of one machine.
fn hogs(e: &mut Evidence) {
    e.same_host = true;
    (e.local.pid, e.peer.pid) = (1, 2);
    (e.local.machine_cpus, e.local.cpus_allowed) = (2, 2);
    (e.local.machine_busy, e.local.process_cpus) = (Some(1.0), 1.0);
    let ends = [program(1, "polyrail", 0.5), program(2, "polyrail", 0.5)];
    e.local.programs = [&ends[..], &[program(7, "hog", 0.6), program(8, "hog", 0.38)]].concat();
}

fn by_devices(e: &mut Evidence) {
    let path = BesideRails { name: "peer copy".into(), by_devices: true };
    (e.gb_per_s, e.beside_rails) = (390.0, Some(path));
    (e.depth, e.size, e.p50_us) = (1, 1 << 30, Some(2_750.0));
}

/// CPUs copied the bytes, without rails.
fn beside_rails(e: &mut Evidence) {
    let path = BesideRails { name: "single copy".into(), by_devices: false };
    (e.gb_per_s, e.beside_rails, e.same_host) = (18.0, Some(path), true);
    (e.copy, e.lost) = (Some(copy(Copies::Once, 20.0)), thread("rail1", 0.5));
    e.window_full_share = 1.0;
}

fn with_slow_rail(e: &mut Evidence, gb_per_s: f64) {
    (e.gb_per_s, e.depth) = (gb_per_s, 4);
    e.line = Some(Line { rails: rails([1.0, 1.0, 0.05, 1.0]), source: "the lab".into() });
}

fn as_frequent_as_8_bytes(e: &mut Evidence, most: f64) {
    (e.size, e.gb_per_s, e.depth, e.messages_per_s) = (4 << 10, 0.4096, 16, Some(most));
}

const CASES: &[Case] = &[
    ("nothing is reached", Network, |_| ()),
    // Rates compared with those of links and memory.
    ("full links", Network, |e| e.gb_per_s = 9.4),
    ("as much in two directions, which have a line each", Memory, |e| {
        (e.gb_per_s, e.ways) = (9.4, 2)
    }),
    ("two copies for each byte", Memory, |e| {
        (e.gb_per_s, e.same_host, e.line) = (9.0, true, None);
        (e.copy, e.local.process_cpus) = (Some(copy(Copies::Twice, 10.0)), 8.0);
    }),
    ("half of what copies reach", Memory, |e| (e.gb_per_s, e.line) = (9.0, None)),
    // A run reached 80 GB/s of copies although 38 had been measured as the limit, and its processes were nearly idle.
    ("more than copies reach is no limit", Window, |e| {
        (e.gb_per_s, e.same_host, e.line) = (40.0, true, None);
        (e.copy, e.window_full_share) = (Some(copy(Copies::Twice, 17.0)), 0.1);
    }),
    ("more than the line rate is no limit", Peer, |e| (e.gb_per_s, e.copy) = (12.0, None)),
    ("CPUs copied, nothing else counts", Memory, beside_rails),
    ("CPUs copied, and depth helps", Depth, |e| (beside_rails(e), e.deeper = tried(1.5)).1),
    ("CPUs copied slowly", Memory, |e| (beside_rails(e), e.gb_per_s = 9.0).1),
    ("devices copied", Device, by_devices),
    ("devices copied as the thread posts", Posting, |e| {
        by_devices(e);
        e.local.posting_share = Some(0.99);
    }),
    // CPUs.
    ("busy process", Cpu, |e| e.local.process_cpus = 7.5),
    ("both processes of one host", Cpu, |e| {
        (e.same_host, e.local.process_cpus, e.peer.process_cpus) = (true, 4.0, 3.5);
    }),
    ("busy machine", Cpu, |e| (e.local.machine_busy, e.local.process_cpus) = (Some(0.97), 4.0)),
    ("others keep the machine busy", Network, |e| e.local.machine_busy = Some(0.97)),
    ("busy thread", Cpu, |e| e.local.busiest_thread = thread("tx-0", 0.99)),
    ("clocks of CPUs and walls differ by a little", Cpu, |e| {
        e.local.busiest_thread = thread("tx-0", 1.03);
    }),
    ("busy peer", Peer, |e| e.peer.process_cpus = 7.9),
    ("busy thread of a peer on this host", Peer, |e| {
        (e.same_host, e.peer.busiest_thread) = (true, thread("rx-0", 0.98));
    }),
    ("hot CPU there", Peer, |e| e.peer.hot = hot(98.0)),
    ("hot CPU here", Cpu, |e| e.local.hot = hot(98.0)),
    ("hot CPU and busy process", Cpu, |e| (e.local.process_cpus, e.local.hot) = (7.9, hot(98.0))),
    ("CPU that is not hot", Peer, |e| e.peer.hot = hot(60.0)),
    ("protection takes CPU time", Cpu, |e| {
        (e.local.process_cpus, e.payload) = (8.0, Some("aead".into()));
    }),
    ("protection where links are full", Network, |e| {
        (e.gb_per_s, e.payload) = (9.4, Some("aead".into()));
    }),
    // Ends that don't run or don't read.
    ("stopped peer", Peer, |e| (e.peer.away_share, e.window_full_share) = (0.5, 0.9)),
    ("stopped process of one host", Cpu, |e| (e.local.away_share, e.same_host) = (0.2, true)),
    ("stopped peer of one host", Peer, |e| (e.peer.away_share, e.same_host) = (0.2, true)),
    ("both wait for CPUs, the peer longer", Peer, |e| {
        (e.local.away_share, e.peer.away_share) = (0.2, 0.4);
    }),
    ("slow reader", Peer, |e| {
        (e.local.no_room_share, e.peer.busiest_thread) = (0.6, thread("rx-0", 0.1));
    }),
    ("reader that does what it can", Peer, |e| {
        (e.local.no_room_share, e.peer.busiest_thread) = (0.6, thread("rx-0", 0.9));
    }),
    ("quota there", Peer, |e| {
        e.peer.throttled = Some(Throttled { cpus: 0.2, periods_share: 0.9 });
        e.peer.away_share = 0.7;
    }),
    ("quota here", Cpu, |e| e.local.throttled = Some(Throttled { cpus: 0.2, periods_share: 0.9 })),
    ("quota that ran out now and then", Cpu, |e| {
        e.local.throttled = Some(Throttled { cpus: 0.2, periods_share: 0.1 });
    }),
    // Other programs.
    ("others have the CPUs here", Cpu, |e| crowd(&mut e.local, 0.4, 1.0)),
    ("others have the CPUs there", Peer, |e| crowd(&mut e.peer, 0.4, 1.0)),
    ("on one machine the thread may be at either end", Cpu, |e| {
        e.same_host = true;
        crowd(&mut e.local, 0.1, 1.0);
        crowd(&mut e.peer, 0.4, 1.0);
    }),
    ("a thread that waited a little", Cpu, |e| crowd(&mut e.local, 0.2, 1.0)),
    ("a thread that waited on an idle machine", Network, |e| crowd(&mut e.local, 0.4, 0.02)),
    ("others have the CPUs that it may use", Cpu, |e| crowd_on_own(&mut e.local, 1.0)),
    ("it has half of them", Cpu, |e| {
        crowd_on_own(&mut e.local, 1.0);
        (e.local.process_cpus, e.local.queued_thread) = (1.0, None);
    }),
    ("others have CPUs that it may not use", Cpu, |e| crowd_on_own(&mut e.local, 0.4)),
    ("programs of one name are counted together, and the ends are not named", Cpu, hogs),
    ("they keep a nice process from running", Cpu, |e| {
        hogs(e);
        (e.local.away_share, e.local.nice) = (0.4, 19);
    }),
    ("they keep the peer from running", Peer, |e| {
        hogs(e);
        (e.local.away_share, e.peer.away_share) = (0.2, 0.5);
    }),
    ("they keep both ends from running", Cpu, |e| {
        hogs(e);
        (e.local.away_share, e.peer.away_share) = (0.2, 0.29);
    }),
    ("no others", Cpu, |e| (hogs(e), e.local.programs.truncate(2)).1),
    // Packets.
    ("lost packets", Network, |e| e.lost = thread("rail1", 0.023)),
    ("few lost packets", Network, |e| e.lost = thread("rail1", 0.002)),
    ("drops here", Network, |e| e.local.dropped = thread("rail2", 0.05)),
    ("drops there", Network, |e| e.peer.dropped = thread("rail2", 0.05)),
    ("few drops", Network, |e| e.local.dropped = thread("rail2", 0.004)),
    ("slow rail", Network, |e| with_slow_rail(e, 2.9)),
    ("slow rail that holds up few transfers", Depth, |e| with_slow_rail(e, 1.0)),
    // Windows, depth, messages.
    ("full window", Window, |e| e.window_full_share = 0.7),
    ("one small transfer at a time", Depth, |e| few(e, 1, 8)),
    ("less than the window", Depth, |e| few(e, 4, 1 << 20)),
    ("two of four rails, as in the lab", Depth, |e| {
        few(e, 16, 64 << 10);
        (e.gb_per_s, e.rails) = (4.8, rails([0.5, 0.5, 0.0, 0.0]));
    }),
    ("a slow rail has little to carry, and is busy with it", Depth, |e| {
        few(e, 16, 64 << 10);
        e.line = Some(Line { rails: rails([7.0, 2.8, 0.1, 0.1]), source: "x".into() });
        e.rails = rails([0.7, 0.28, 0.01, 0.01]);
    }),
    ("ping-pong, however busy the ends are", Depth, |e| {
        (e.ping_pong, e.depth, e.size, e.p50_us) = (true, 1, 8, Some(4.8));
        (e.local.process_cpus, e.peer.process_cpus, e.same_host) = (4.0, 4.0, true);
    }),
    ("depth helps, whatever else is busy", Depth, |e| {
        (e.local.busiest_thread, e.deeper) = (thread("pr-tx0", 0.97), tried(1.8));
    }),
    ("depth helps too little to prove anything", Cpu, |e| {
        (e.local.busiest_thread, e.deeper) = (thread("pr-tx0", 0.97), tried(1.1));
    }),
    ("depth was tried when the process ran", Cpu, |e| {
        (e.deeper, e.local.away_share) = (tried(1.8), 0.5);
    }),
    ("little depth, not tried", Depth, |e| (e.depth, e.size) = (16, 4 << 10)),
    ("little depth, tried in vain", Network, |e| {
        (e.depth, e.size, e.deeper) = (16, 4 << 10, tried(1.01));
    }),
    ("little depth, more helps a little", Depth, |e| {
        (e.depth, e.size, e.deeper) = (16, 4 << 10, tried(1.1));
    }),
    ("8 bytes, depth tried in vain", MessageRate, |e| (e.size, e.deeper) = (8, tried(1.01))),
    ("8 bytes, depth helps", Depth, |e| (e.size, e.deeper) = (8, tried(2.0))),
    ("as frequent as 8 bytes", MessageRate, |e| as_frequent_as_8_bytes(e, 110e3)),
    ("less frequent than 8 bytes", Depth, |e| as_frequent_as_8_bytes(e, 200e3)),
    ("a thread that does nothing but post", Posting, |e| {
        (e.local.posting_share, e.size, e.gb_per_s) = (Some(0.97), 64 << 10, 0.65536);
    }),
];

#[test]
fn each_run_has_its_limit_and_its_sentence() {
    check("bench/verdicts", CASES);
}

/// Changes the evidence so that its verdict names this cause.
fn plant(cause: Cause, e: &mut Evidence) {
    match cause {
        Cause::Depth => e.depth = 4,
        Cause::OneMessage => e.ping_pong = true,
        Cause::FullLinks => e.gb_per_s = 9.4,
        Cause::SlowRail => with_slow_rail(e, 2.9),
        Cause::Memory => (e.gb_per_s, e.line) = (19.0, None),
        Cause::Posting => e.local.posting_share = Some(0.97),
        Cause::MessageRate => (e.depth, e.size, e.deeper) = (64, 8, tried(1.01)),
        Cause::Device => by_devices(e),
        Cause::Away => e.local.away_share = 0.5,
        Cause::Quota => e.local.throttled = Some(Throttled { cpus: 0.2, periods_share: 0.9 }),
        Cause::BusyCpus => e.local.process_cpus = 7.9,
        Cause::OtherPrograms => crowd(&mut e.local, 0.4, 1.0),
        Cause::HotCpu => e.local.hot = hot(98.0),
        Cause::BusyThread => e.local.busiest_thread = thread("pr-tx0", 0.99),
        Cause::NoRoom => e.local.no_room_share = 0.5,
        Cause::Lost => e.lost = thread("rail1", 0.05),
        Cause::ShortQueue => e.local.dropped = thread("rail1", 0.05),
        Cause::RailDown => e.local.down = vec![down("rail3", WhyDown::Disconnected)],
        Cause::NoChannel => {
            e.local.down = vec![down("rail3", WhyDown::NoChannel { channels: 3, rails: 4 })];
        }
        Cause::NoPartner => e.peer.down = vec![down("rail3", WhyDown::NoPartner)],
        Cause::OneNic => e.peer.one_nic = one_nic(),
        Cause::Window => e.window_full_share = 0.9,
        Cause::Protection => {
            (e.local.process_cpus, e.payload) = (7.9, Some("crc32c".into()));
        }
    }
}

#[test]
fn more_depth_is_tried_only_where_no_limit_is_reached_that_it_would_not_change() {
    type Plant = fn(&mut Evidence);
    let open = |plant: Plant| {
        let mut evidence = idle();
        plant(&mut evidence);
        is_open(&evidence)
    };
    let cases: [(&str, bool, Plant); 12] = [
        ("nothing to do", true, |_| {}),
        ("a full window", true, |e| e.window_full_share = 0.9),
        ("lost packets", true, |e| e.lost = thread("rail1", 0.05)),
        ("a rail that is down", true, |e| {
            e.local.down = vec![down("rail3", WhyDown::Disconnected)]
        }),
        ("a rate above what was measured", true, |e| (e.gb_per_s, e.line) = (30.0, None)),
        ("beside the rails", false, beside_rails),
        ("full links", false, |e| e.gb_per_s = 9.5),
        ("memory", false, |e| (e.gb_per_s, e.line) = (19.0, None)),
        ("a thread that posts", false, |e| e.local.posting_share = Some(0.97)),
        ("busy CPUs", false, |e| e.local.process_cpus = 7.9),
        ("a busy thread there", false, |e| e.peer.busiest_thread = thread("pr-rx0", 0.99)),
        ("a stopped process", false, |e| e.local.away_share = 0.5),
    ];
    for (name, expected, plant) in cases {
        assert_eq!(open(plant), expected, "{name}");
    }
}

#[test]
fn a_rate_of_an_earlier_run_has_its_age() {
    let mut evidence = idle();
    (evidence.gb_per_s, evidence.line) = (19.0, None);
    evidence.copy.as_mut().unwrap().age = Some(std::time::Duration::from_secs(840));
    let because = judge(&evidence).limit.because;
    assert!(because.ends_with("over 256MiB of memory (measured 14 min ago)"), "{because}");
}

#[test]
fn every_cause_that_a_verdict_names_is_tested_by_why_or_has_a_reason_why_it_cannot_be() {
    assert_eq!(Cause::ALL.len(), Cause::Protection as usize + 1, "a cause is missing in the list");
    for cause in Cause::ALL {
        let mut evidence = idle();
        plant(cause, &mut evidence);
        let causes = judge(&evidence).causes;
        assert!(causes.contains(&cause), "{cause:?} is not among {causes:?}");
        let few = Config::builder().set("channels", "3").unwrap().build().unwrap();
        let config = if cause == Cause::NoChannel { few } else { Config::default() };
        let scene = Scene {
            config: &config,
            rails: evidence.rails.iter().map(|(name, _)| name.clone()).collect(),
            channels: 8,
            congestion: Some("cubic".into()),
            congestions: vec!["reno".into(), "cubic".into()],
            size: evidence.size,
            depth: evidence.depth,
            ping_pong: evidence.ping_pong,
            on_device: false,
            protected: evidence.payload.is_some(),
        };
        match cause.test() {
            Test::By(knobs) => {
                let all = suspects(&scene);
                let is_tried = |knob: &Knob| knob.changes(&scene).iter().any(|it| all.contains(it));
                assert!(!knobs.is_empty() && knobs.iter().all(is_tried), "{cause:?}: {all:?}");
                assert!(untested(&[cause], &scene).is_empty());
            }
            Test::Not(reason) => assert_eq!(untested(&[cause, cause], &scene), [reason]),
        }
    }
}
