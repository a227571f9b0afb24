#[path = "idle_rail_tests.rs"]
mod idle_rails;

use polyrail::Config;
use polyrail_report::Spread;
use polyrail_sample::{Hot, Work};

use super::super::causes::{Test, untested};
use super::super::evidence::{BesideRails, Deeper, Line};
use super::super::machine::{Copies, CopyRate};
use super::super::suspects::{Knob, Scene, suspects};
use super::*;
use crate::cmd::bench::talk::{DownRail, Load, OneNic, OwnCpus, Program, Throttled, WhyDown};

/// Two machines with nothing to do.
fn idle() -> Evidence {
    let load = Load { process_cpus: 0.1, cpus_allowed: 8, ..Load::default() };
    Evidence {
        has_resent: false,
        is_mixed: false,
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
    CopyRate { gb_per_s, copies, threads: 8, cpus: "0-7".into(), footprint_bytes: 256 << 20 }
}

fn verdict(change: impl FnOnce(&mut Evidence)) -> (LimitKind, String) {
    let mut evidence = idle();
    change(&mut evidence);
    let Limit { verdict, because } = judge(&evidence).limit;
    (verdict, because)
}

#[test]
fn an_idle_run_names_the_nearest_limit_and_says_that_it_is_not_reached() {
    let (_, because) = verdict(|_| ());
    assert!(because.starts_with("no limit is reached; the nearest: "), "{because}");
}

#[test]
fn rails_near_their_line_rate_are_the_limit() {
    let (kind, because) = verdict(|e| e.gb_per_s = 9.4);
    assert_eq!(kind, LimitKind::Network);
    assert_eq!(because, "9.40 GB/s one way are 94 % of the 10.0 GB/s of 4 rails in the lab");
    let (kind, _) = verdict(|e| (e.gb_per_s, e.ways) = (9.4, 2));
    assert_ne!(kind, LimitKind::Network, "two directions have a line each");
}

#[test]
fn a_transfer_is_held_against_what_copying_reaches_that_uses_memory_as_it_does() {
    let (kind, because) = verdict(|e| {
        (e.gb_per_s, e.same_host, e.line) = (9.0, true, None);
        e.copy = Some(copy(Copies::Twice, 10.0));
        e.local.process_cpus = 8.0;
    });
    assert_eq!(kind, LimitKind::Memory);
    let text = "9.00 GB/s are 90 % of the 10.0 GB/s that two copies per byte reach by 8 threads on CPUs \
                0-7 over 256MiB of memory";
    assert_eq!(because, text);
    let (_, because) = verdict(|e| (e.gb_per_s, e.line) = (9.0, None));
    assert!(
        because.contains(
            "no limit is reached; the nearest: 9.00 GB/s are 45 % of the 20.0 GB/s that one"
        ),
        "{because}"
    );
}

#[test]
fn what_is_exceeded_is_no_limit_and_said_to_be_none() {
    // 80 GB/s of copies where 38 were thought to be possible, by nearly idle processes.
    let (kind, because) = verdict(|e| {
        (e.gb_per_s, e.same_host, e.line) = (40.0, true, None);
        e.copy = Some(copy(Copies::Twice, 17.0));
        e.window_full_share = 0.1;
    });
    assert_ne!(kind, LimitKind::Memory, "{because}");
    assert!(
        because.contains("; memory is not the limit: 40.0 GB/s are 235 % of the 17.0"),
        "{because}"
    );
    let (kind, because) = verdict(|e| (e.gb_per_s, e.copy) = (12.0, None));
    assert_ne!(kind, LimitKind::Network);
    assert!(
        because.contains("; network is not the limit: 12.0 GB/s one way are 120 %"),
        "{because}"
    );
    // Clocks of CPUs and walls differ by a little.
    let (kind, because) = verdict(|e| e.local.busiest_thread = Some(("tx-0".into(), 1.03)));
    assert_eq!((kind, because.contains("not the limit")), (LimitKind::Cpu, false));
}

#[test]
fn busy_cpus_or_one_busy_thread_are_the_limit() {
    let (kind, because) = verdict(|e| e.local.process_cpus = 7.5);
    assert_eq!(
        (kind, because.as_str()),
        (LimitKind::Cpu, "this process used 7.50 of 8 CPUs (94 %)")
    );
    let (kind, because) = verdict(|e| {
        e.same_host = true;
        (e.local.process_cpus, e.peer.process_cpus) = (4.0, 3.5);
    });
    assert_eq!((kind, because.starts_with("both processes")), (LimitKind::Cpu, true));
    let (kind, because) =
        verdict(|e| (e.local.machine_busy, e.local.process_cpus) = (Some(0.97), 4.0));
    assert_eq!((kind, because.contains("97 % busy")), (LimitKind::Cpu, true));
    let (_, because) = verdict(|e| e.local.machine_busy = Some(0.97));
    assert!(because.starts_with("no limit is reached"), "others are busy: {because}");
    let (kind, because) = verdict(|e| e.local.busiest_thread = Some(("tx-0".into(), 0.99)));
    assert_eq!((kind, because.contains("tx-0 here used 99 %")), (LimitKind::Cpu, true));
}

#[test]
fn with_samples_the_busiest_cpu_is_named_with_its_work() {
    let hot = Hot {
        cpu: 22,
        work: Work::ReceiveCopy { thread: "pr-rx0".into() },
        busy_percent: 98.0,
        user_percent: 0.0,
        system_percent: 37.0,
        softirq_percent: 61.0,
        steal_percent: 0.0,
        rwnd_limited_percent: None,
    };
    let text = "receive copy on CPU 22: softirq 61 %, system 37 %";
    let (kind, because) = verdict(|e| e.peer.hot = Some(hot.clone()));
    assert_eq!((kind, because), (LimitKind::Peer, format!("at the other side, {text}")));
    let (kind, because) = verdict(|e| e.local.hot = Some(hot.clone()));
    assert_eq!((kind, because), (LimitKind::Cpu, format!("here, {text}")));
    let (_, because) = verdict(|e| {
        (e.local.process_cpus, e.local.hot) = (7.9, Some(hot.clone()));
    });
    assert!(because.ends_with(&format!("; the busiest: {text}")), "{because}");
    let (_, because) = verdict(|e| e.peer.hot = Some(Hot { busy_percent: 60.0, ..hot.clone() }));
    assert!(because.starts_with("no limit is reached"), "{because}");
}

#[test]
fn a_busy_other_side_is_the_limit() {
    let (kind, _) = verdict(|e| e.peer.process_cpus = 7.9);
    assert_eq!(kind, LimitKind::Peer);
    let (kind, _) = verdict(|e| {
        e.same_host = true;
        e.peer.busiest_thread = Some(("rx-0".into(), 0.98));
    });
    assert_eq!(kind, LimitKind::Peer);
}

#[test]
fn a_side_that_does_not_run_or_does_not_read_is_the_limit() {
    let (kind, because) = verdict(|e| (e.peer.away_share, e.window_full_share) = (0.5, 0.9));
    let text = "the process at the other side did not run for 50 % of the time: it was stopped, or had no \
                CPU";
    assert_eq!((kind, because.as_str()), (LimitKind::Peer, text));
    assert_eq!(verdict(|e| (e.local.away_share, e.same_host) = (0.2, true)).0, LimitKind::Cpu);
    assert_eq!(verdict(|e| (e.peer.away_share, e.same_host) = (0.2, true)).0, LimitKind::Peer);
    let (kind, _) = verdict(|e| (e.local.away_share, e.peer.away_share) = (0.2, 0.4));
    assert_eq!(kind, LimitKind::Peer, "both wait for CPUs, and the other one waits longer");

    let (kind, because) = verdict(|e| {
        (e.local.no_room_share, e.peer.busiest_thread) = (0.6, Some(("rx-0".into(), 0.1)));
    });
    let text = "the receive windows of the other side held the flows up for 60 % of the time, and its busiest thread \
                used 10 % of a CPU";
    assert_eq!((kind, because.as_str()), (LimitKind::Peer, text));
    // A reader that does what it can is no fault of the reader's program.
    let (_, because) = verdict(|e| {
        (e.local.no_room_share, e.peer.busiest_thread) = (0.6, Some(("rx-0".into(), 0.9)));
    });
    assert!(because.starts_with("no limit is reached"), "{because}");
}

#[test]
fn packets_that_are_lost_are_the_limit_and_their_rail_is_named() {
    let (kind, because) = verdict(|e| e.lost = Some(("rail1".into(), 0.023)));
    let text = "rail1 sent at least 2.3 % of its bytes again";
    assert_eq!((kind, because.as_str()), (LimitKind::Network, text));
    let (_, because) = verdict(|e| e.lost = Some(("rail1".into(), 0.002)));
    assert!(because.starts_with("no limit is reached"), "{because}");
}

#[test]
fn bytes_that_devices_copied_are_limited_by_the_devices_or_the_thread_that_posts() {
    let copied = |e: &mut Evidence| {
        let path = BesideRails { name: "peer copy".into(), by_devices: true };
        (e.gb_per_s, e.beside_rails) = (390.0, Some(path));
        (e.depth, e.size, e.p50_us) = (1, 1 << 30, Some(2_750.0));
    };
    let (kind, because) = verdict(copied);
    assert_eq!(kind, LimitKind::Device);
    assert!(because.starts_with("390 GB/s by peer copy, 1 outstanding, 1GiB"), "{because}");
    let (kind, _) = verdict(|e| {
        copied(e);
        e.local.posting_share = Some(0.99);
    });
    assert_eq!(kind, LimitKind::Posting);
}

#[test]
fn bytes_that_cpus_copied_beside_the_rails_are_limited_by_no_device_and_no_rail() {
    let copied = |e: &mut Evidence| {
        let path = BesideRails { name: "single copy".into(), by_devices: false };
        (e.gb_per_s, e.beside_rails, e.same_host) = (18.0, Some(path), true);
        (e.copy, e.lost) = (Some(copy(Copies::Once, 20.0)), Some(("rail1".into(), 0.5)));
        e.window_full_share = 1.0;
    };
    let (kind, because) = verdict(copied);
    let text = "18.0 GB/s are 90 % of the 20.0 GB/s that one copy per byte reaches by 8 threads on CPUs \
                0-7 over 256MiB of memory";
    assert_eq!((kind, because.as_str()), (LimitKind::Memory, text));
    let (kind, _) = verdict(|e| {
        copied(e);
        let ratio = Spread { median: 1.5, min: 1.4, max: 1.6 };
        e.deeper = Some(Deeper { depth: 4, ratio });
    });
    assert_eq!(kind, LimitKind::Depth);
    let (kind, because) = verdict(|e| {
        copied(e);
        e.gb_per_s = 9.0;
    });
    assert_eq!(kind, LimitKind::Memory);
    assert!(because.starts_with("no limit is reached; the nearest: 9.00 GB/s"), "{because}");
}

#[test]
fn a_full_window_is_the_limit() {
    let (kind, because) = verdict(|e| e.window_full_share = 0.7);
    assert_eq!((kind, because.contains("70 % of the time")), (LimitKind::Window, true));
}

#[test]
fn too_few_outstanding_transfers_are_the_limit_by_what_they_leave_without_work() {
    let few = |depth: u64, size: u64| {
        move |e: &mut Evidence| (e.depth, e.size, e.p50_us) = (depth, size, Some(9.5))
    };
    let (kind, because) = verdict(few(1, 8));
    let text = "depth 1 is bound by the latency of a transfer of 8B, each taking 9.50us";
    assert_eq!((kind, because.as_str()), (LimitKind::Depth, text));
    let (kind, because) = verdict(few(4, 1 << 20));
    let text = "depth 4 has 4MiB outstanding, each taking 9.50us; the window has room for 32MiB";
    assert_eq!((kind, because.as_str()), (LimitKind::Depth, text));
    // The lab: 64 KiB writes on two of four rails.
    let (kind, because) = verdict(|e| {
        few(16, 64 << 10)(e);
        (e.gb_per_s, e.rails) = (4.8, rails([0.5, 0.5, 0.0, 0.0]));
    });
    let text = "depth 16 of 64KiB keeps 2 of 4 rails busy, 0.48 of the sum of 4 rails in the lab, each taking 9.50us";
    assert_eq!((kind, because.as_str()), (LimitKind::Depth, text));
    // A slow rail has little to carry, and is busy with it.
    let (_, because) = verdict(|e| {
        few(16, 64 << 10)(e);
        e.line = Some(Line { rails: rails([7.0, 2.8, 0.1, 0.1]), source: "x".into() });
        e.rails = rails([0.7, 0.28, 0.01, 0.01]);
    });
    assert!(because.starts_with("depth 16 has 1MiB outstanding"), "{because}");
}

#[test]
fn a_thread_that_does_nothing_but_post_is_the_limit() {
    let (kind, because) = verdict(|e| {
        (e.local.posting_share, e.size, e.gb_per_s) = (Some(0.97), 64 << 10, 0.65536);
    });
    let text = "the thread that posts did so for 97 % of the time, 10.0k transfers/s";
    assert_eq!((kind, because.as_str()), (LimitKind::Posting, text));
}

#[test]
fn transfers_as_frequent_as_those_of_8_bytes_are_limited_by_their_number() {
    let small = |most: f64| {
        verdict(move |e| {
            (e.size, e.gb_per_s, e.depth, e.messages_per_s) = (4 << 10, 0.4096, 16, Some(most));
        })
    };
    let (kind, because) = small(110e3);
    let text = "100k transfers/s are 91 % of the 110k/s that 8B reach at depth 16, so that the size costs \
                next to nothing";
    assert_eq!((kind, because.as_str()), (LimitKind::MessageRate, text));
    assert_eq!(small(200e3).0, LimitKind::Depth, "the size costs something");
}

#[test]
fn a_ping_pong_is_bound_by_its_latency_however_busy_who_waits_is() {
    let (kind, because) = verdict(|e| {
        (e.ping_pong, e.depth, e.size, e.p50_us) = (true, 1, 8, Some(4.8));
        (e.local.process_cpus, e.peer.process_cpus, e.same_host) = (4.0, 4.0, true);
    });
    let text = "one message of 8B at a time is bound by its latency, each taking 4.80us one way";
    assert_eq!((kind, because.as_str()), (LimitKind::Depth, text));
}

#[test]
fn threads_that_wait_for_cpus_which_others_have_are_the_limit() {
    let crowd = |load: &mut Load, share: f64, busy: f64| {
        load.queued_thread = Some(("pr-tx0".into(), share));
        (load.machine_busy, load.machine_cpus) = (Some(busy), 8);
    };
    let (kind, because) = verdict(|e| crowd(&mut e.local, 0.4, 1.0));
    assert_eq!(kind, LimitKind::Cpu);
    let words = "other programs and softirqs used 7.90 of the 8 CPUs of this machine, and thread pr-tx0 waited for one 40 % of the time";
    assert_eq!(because, words);
    let (kind, because) = verdict(|e| crowd(&mut e.peer, 0.4, 1.0));
    assert_eq!(kind, LimitKind::Peer);
    assert!(because.contains("CPUs of the machine there"), "{because}");
    // On one machine the thread may be at either end.
    let (kind, _) = verdict(|e| {
        e.same_host = true;
        crowd(&mut e.local, 0.1, 1.0);
        crowd(&mut e.peer, 0.4, 1.0);
    });
    assert_eq!(kind, LimitKind::Cpu);
    for (share, busy) in [(0.2, 1.0), (0.4, 0.02)] {
        let (kind, because) = verdict(|e| crowd(&mut e.local, share, busy));
        assert!(kind != LimitKind::Cpu || because.contains("no limit is reached"), "{because}");
    }
}

#[test]
fn a_process_that_may_use_some_cpus_is_crowded_out_on_these_alone() {
    let crowd = |load: &mut Load, busy: f64| {
        load.queued_thread = Some(("pr-tx0".into(), 0.5));
        (load.machine_busy, load.machine_cpus, load.process_cpus) = (Some(0.2), 16, 0.5);
        (load.cpus_allowed, load.own_cpus) = (2, Some(OwnCpus { count: 2, busy }));
        load.programs = vec![Program { pid: 7, name: "hog".into(), cpus: 1.5 }];
    };
    let (kind, because) = verdict(|e| crowd(&mut e.local, 1.0));
    assert_eq!(kind, LimitKind::Cpu);
    let words = "other programs and softirqs used 1.50 of the 2 CPUs of this machine that it may use, and thread pr-tx0 waited for \
                 one 50 % of the time; other programs: hog (process 7) used 1.50";
    assert_eq!(because, words);
    let (_, because) = verdict(|e| {
        crowd(&mut e.local, 1.0);
        (e.local.process_cpus, e.local.queued_thread) = (1.0, None);
    });
    let words = "the CPUs of this machine that it may use were 100 % busy, softirqs included";
    assert!(because.starts_with(words), "{because}");
    let (_, because) = verdict(|e| crowd(&mut e.local, 0.4));
    assert!(!because.starts_with("other programs"), "who fills other CPUs takes none: {because}");
}

#[test]
fn a_queue_that_drops_packets_is_the_limit_and_its_rail_is_named() {
    let drops = |share: f64| Some(("rail2".to_owned(), share));
    let (kind, because) = verdict(|e| e.local.dropped = drops(0.05));
    assert_eq!(kind, LimitKind::Network);
    assert_eq!(because, "the queue of rail2 here dropped 5.0 % of its packets");
    let (_, because) = verdict(|e| e.peer.dropped = drops(0.05));
    assert!(because.starts_with("the queue of rail2 at the other side"), "{because}");
    let (_, because) = verdict(|e| e.local.dropped = drops(0.004));
    assert!(!because.starts_with("the queue"), "{because}");
}

fn tried(ratio: f64) -> Option<Deeper> {
    let ratio = Spread { median: ratio, min: ratio, max: ratio };
    Some(Deeper { depth: 256, ratio })
}

#[test]
fn depth_that_was_tried_and_helped_is_the_limit_whatever_else_is_busy() {
    let busy = |e: &mut Evidence| e.local.busiest_thread = Some(("pr-tx0".into(), 0.97));
    let (kind, because) = verdict(|e| (busy(e), e.deeper = tried(1.8)).1);
    assert_eq!(kind, LimitKind::Depth);
    assert!(because.ends_with("; tried: depth 256 makes it 1.80 x"), "{because}");
    let (kind, _) = verdict(|e| (busy(e), e.deeper = tried(1.1)).1);
    assert_eq!(kind, LimitKind::Cpu, "a little is no proof");
    let (kind, _) = verdict(|e| {
        (e.deeper, e.local.away_share) = (tried(1.8), 0.5);
    });
    assert_eq!(kind, LimitKind::Cpu, "the trial may have met a time in which the process ran");
}

#[test]
fn depth_that_was_tried_in_vain_is_no_limit_and_the_verdict_says_so() {
    let little = |e: &mut Evidence| (e.depth, e.size) = (16, 4 << 10);
    assert_eq!(verdict(little).0, LimitKind::Depth);
    let (kind, because) = verdict(|e| (little(e), e.deeper = tried(1.01)).1);
    assert_ne!(kind, LimitKind::Depth);
    let text = "no limit is reached; depth 256 makes it 1.01 x; the nearest: ";
    assert!(because.starts_with(text), "{because}");
    let (kind, _) = verdict(|e| (little(e), e.deeper = tried(1.1)).1);
    assert_eq!(kind, LimitKind::Depth, "it helps a little");
}

#[test]
fn messages_of_8_bytes_that_more_of_them_do_not_speed_up_are_the_limit() {
    let (kind, because) = verdict(|e| (e.depth, e.size, e.deeper) = (64, 8, tried(1.01)));
    assert_eq!(kind, LimitKind::MessageRate);
    assert!(
        because.contains("of which the bytes cost nothing: depth 256 makes it 1.01 x"),
        "{because}"
    );
    let (kind, _) = verdict(|e| (e.depth, e.size, e.deeper) = (64, 8, tried(2.0)));
    assert_eq!(kind, LimitKind::Depth);
}

#[test]
fn a_quota_that_ran_out_is_named_with_what_it_grants() {
    let throttled = |share| Some(Throttled { cpus: 0.2, periods_share: share });
    let (kind, because) = verdict(|e| {
        (e.peer.throttled, e.peer.away_share) = (throttled(0.9), 0.7);
    });
    assert_eq!(kind, LimitKind::Peer);
    let text = "the process at the other side did not run for a part of 90 % of its control group's periods: the CPU \
                quota of 0.20 CPUs had run out";
    assert_eq!(because, text);
    let (kind, because) = verdict(|e| e.local.throttled = throttled(0.9));
    assert!(kind == LimitKind::Cpu && because.starts_with("this process"), "{because}");
    let (_, because) = verdict(|e| e.local.throttled = throttled(0.1));
    assert!(because.starts_with("no limit is reached; "), "{because}");
}

#[test]
fn a_rail_that_is_much_slower_than_others_is_named() {
    let (_, because) = verdict(|e| {
        e.gb_per_s = 2.9;
        e.line = Some(Line { rails: rails([1.0, 1.0, 0.05, 1.0]), source: "the lab".into() });
    });
    assert!(because.ends_with("of the lab; rail2 has 0.050 of them, others 1.00"), "{because}");
}

#[test]
fn programs_that_keep_the_cpus_busy_are_named_and_the_ends_are_not() {
    let program = |pid, name: &str, cpus| Program { pid, name: name.into(), cpus };
    let crowd = |e: &mut Evidence| {
        e.same_host = true;
        (e.local.pid, e.peer.pid) = (1, 2);
        (e.local.machine_cpus, e.local.cpus_allowed) = (2, 2);
        (e.local.machine_busy, e.local.process_cpus) = (Some(1.0), 1.0);
        let ends = [program(1, "polyrail", 0.5), program(2, "polyrail", 0.5)];
        e.local.programs = [&ends[..], &[program(7, "hog", 0.6), program(8, "hog", 0.38)]].concat();
    };
    let (kind, because) = verdict(crowd);
    assert_eq!(kind, LimitKind::Cpu);
    let end = "both processes used 1.10 of 2; other programs: hog (2 processes) used 0.98";
    assert!(because.ends_with(end), "{because}");
    let (_, because) = verdict(|e| {
        crowd(e);
        (e.local.away_share, e.local.nice) = (0.4, 19);
    });
    assert!(because.contains("its nice value is 19") && because.contains("hog"), "{because}");
    for (there, verdict_is) in [(0.5, LimitKind::Peer), (0.29, LimitKind::Cpu)] {
        let (kind, because) = verdict(|e| {
            crowd(e);
            (e.local.away_share, e.peer.away_share) = (0.2, there);
        });
        assert_eq!(kind, verdict_is, "they keep both ends from running: {because}");
    }
    let (_, because) = verdict(|e| {
        crowd(e);
        e.local.programs.truncate(2);
    });
    assert!(!because.contains("other programs"), "{because}");
}

#[test]
fn protection_is_named_where_work_is_the_limit() {
    let (_, because) = verdict(|e| {
        e.local.process_cpus = 8.0;
        e.payload = Some("aead".into());
    });
    assert!(because.contains("payload=aead takes CPU time"), "{because}");
    let (_, because) = verdict(|e| {
        e.gb_per_s = 9.4;
        e.payload = Some("aead".into());
    });
    assert!(!because.contains("payload"), "the links are full: {because}");
}

/// Numbers of a run whose verdict names this cause.
fn plant(cause: Cause, e: &mut Evidence) {
    let silent = |why| DownRail {
        name: "rail3".into(),
        interface: "eth3".into(),
        why,
        because: None,
        receives: false,
        went: false,
    };
    let hot = Hot {
        cpu: 22,
        work: Work::ReceiveCopy { thread: "pr-rx0".into() },
        busy_percent: 98.0,
        user_percent: 0.0,
        system_percent: 37.0,
        softirq_percent: 61.0,
        steal_percent: 0.0,
        rwnd_limited_percent: None,
    };
    match cause {
        Cause::Depth => e.depth = 4,
        Cause::OneMessage => e.ping_pong = true,
        Cause::FullLinks => e.gb_per_s = 9.4,
        Cause::SlowRail => {
            e.gb_per_s = 2.9;
            e.line = Some(Line { rails: rails([1.0, 1.0, 0.05, 1.0]), source: "the lab".into() });
        }
        Cause::Memory => (e.gb_per_s, e.line) = (19.0, None),
        Cause::Posting => e.local.posting_share = Some(0.97),
        Cause::MessageRate => (e.depth, e.size, e.deeper) = (64, 8, tried(1.01)),
        Cause::Device => {
            let path = BesideRails { name: "peer copy".into(), by_devices: true };
            e.beside_rails = Some(path);
        }
        Cause::Away => e.local.away_share = 0.5,
        Cause::Quota => e.local.throttled = Some(Throttled { cpus: 0.2, periods_share: 0.9 }),
        Cause::BusyCpus => e.local.process_cpus = 7.9,
        Cause::OtherPrograms => {
            e.local.queued_thread = Some(("pr-tx0".into(), 0.4));
            (e.local.machine_busy, e.local.machine_cpus) = (Some(1.0), 8);
        }
        Cause::HotCpu => e.local.hot = Some(hot),
        Cause::BusyThread => e.local.busiest_thread = Some(("pr-tx0".into(), 0.99)),
        Cause::NoRoom => e.local.no_room_share = 0.5,
        Cause::Lost => e.lost = Some(("rail1".into(), 0.05)),
        Cause::ShortQueue => e.local.dropped = Some(("rail1".into(), 0.05)),
        Cause::RailDown => e.local.down = vec![silent(WhyDown::Disconnected)],
        Cause::NoChannel => {
            e.local.down = vec![silent(WhyDown::NoChannel { channels: 3, rails: 4 })];
        }
        Cause::NoPartner => e.peer.down = vec![silent(WhyDown::NoPartner)],
        Cause::OneNic => {
            let (rails, interface) = (vec!["rail2".into(), "rail3".into()], "eth2".into());
            e.peer.one_nic = Some(OneNic { rails, interface, share: 1.0 });
        }
        Cause::Window => e.window_full_share = 0.9,
        Cause::Protection => {
            (e.local.process_cpus, e.payload) = (7.9, Some("crc32c".into()));
        }
    }
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
