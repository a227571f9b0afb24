use std::time::Duration;

use super::*;
use crate::cmd::top::look::ThreadLook;
use crate::cmd::top::unseen::Unseen;

/// A process whose one engine has these rails towards the peer `b`.
fn process(at: Instant, run: &str, rails: &[(&str, RailLook)]) -> ProcessLook {
    let rails = rails.iter().map(|(name, look)| (((*name).into(), "b".into()), look.clone()));
    let engine =
        EngineLook { run: run.into(), peers: 1, rails: rails.collect(), ..EngineLook::default() };
    let threads = [(9, ThreadLook { name: "pr-tx0".into(), cpu_ns: 0 })];
    ProcessLook {
        at,
        name: "bench".into(),
        engines: [("a".to_owned(), engine)].into(),
        threads: threads.into(),
    }
}

fn look(at: Instant, process: Option<ProcessLook>) -> Look {
    let found = process.map(|process| (std::process::id(), Ok(process)));
    Look::new(at, found.into_iter().collect(), 0)
}

fn up(sent_bytes: u64) -> RailLook {
    RailLook { sent_bytes, flows_up: 2, round_trip_s: 5e-5, ..RailLook::default() }
}

#[test]
fn rates_are_of_the_time_between_the_looks_and_threads_are_in_percent_of_a_cpu() {
    let begin = Instant::now();
    let later = begin + Duration::from_secs(2);
    let mut watch = Watch::begin(look(begin, Some(process(begin, "1", &[("eth1", up(1_000))]))));
    let mut now = process(later, "1", &[("eth1", up(4_000_001_000)), ("eth2", up(500))]);
    now.threads.get_mut(&9).unwrap().cpu_ns = 500_000_000;
    let engine = now.engines.get_mut("a").unwrap();
    engine.copied_bytes.insert("b".into(), 6_000_000_000);
    let interval = watch.next(look(later, Some(now)));
    assert_eq!(interval.events, []);
    let [process] = &interval.processes[..] else { panic!("{interval:?}") };
    assert_eq!((process.seconds, process.threads[0].cpu_percent), (2.0, 25.0));
    let engine = &process.engines[0];
    assert_eq!((engine.copied_gb_per_s, engine.shared_gb_per_s), (3.0, 0.0));
    let rail = &engine.rails[0];
    assert_eq!((rail.sent_bytes, rail.sent_gb_per_s), (4_000_000_000, 2.0));
    assert_eq!((rail.flows_up, rail.round_trip_us), (2, Some(50.0)));
    assert_eq!(engine.rails[1].sent_bytes, 500, "what was not there before began at 0");
}

#[test]
fn a_counter_that_began_anew_counts_from_zero() {
    assert_eq!([grown(Some(5), 7), grown(Some(5), 3), grown(None, 4)], [2, 3, 4]);
}

#[test]
fn a_rail_that_is_cut_comes_back_and_sends_again_is_named() {
    let begin = Instant::now();
    let mut watch = Watch::begin(look(begin, Some(process(begin, "1", &[("eth1", up(1))]))));
    let cut = RailLook {
        flows_up: 0,
        flows_down: 2,
        lost_flows: 2,
        resent_chunks: 5,
        round_trip_s: 0.0,
        ..up(1)
    };
    let mut then = |rail: &RailLook| {
        let now = process(Instant::now(), "1", &[("eth1", rail.clone())]);
        watch.next(look(begin, Some(now)))
    };
    let interval = then(&cut);
    let seen: Vec<_> = interval.events.iter().map(|it| (it.event, it.count)).collect();
    let expected =
        [(What::RailCut, None), (What::FlowsLost, Some(2)), (What::ChunksResent, Some(5))];
    assert_eq!(seen, expected);
    let first = &interval.events[0];
    assert_eq!((first.rail.as_deref(), &first.peers[..]), (Some("eth1"), &["b".to_owned()][..]));
    assert_eq!(interval.processes[0].engines[0].rails[0].round_trip_us, None);
    assert_eq!(then(&cut).events, []);
    let back = RailLook { flows_up: 2, flows_down: 0, ..cut };
    assert_eq!(then(&back).events[0].event, What::RailBack);
    let mut watch =
        Watch::begin(look(begin, Some(process(begin, "1", &[("eth1", RailLook::default())]))));
    let now = process(Instant::now(), "1", &[("eth1", up(1))]);
    assert_eq!(watch.next(look(begin, Some(now))).events, [], "it connects for the first time");
}

#[test]
fn an_engine_that_was_late_at_the_first_look_is_not_new_at_the_next() {
    let begin = Instant::now();
    let one = || process(Instant::now(), "1", &[("eth1", up(1))]);
    let late = [(std::process::id(), Err(Unseen::Late))];
    let mut watch = Watch::begin(Look::new(begin, late.into(), 0));
    assert_eq!(watch.next(look(begin, Some(one()))).events, []);
    let mut watch = Watch::begin(look(begin, None));
    let seen: Vec<_> = watch.next(look(begin, Some(one()))).events;
    assert_eq!(seen[0].event, What::EngineBegan);
}

#[test]
fn an_engine_that_ends_is_told_and_one_that_is_late_is_not_taken_for_one() {
    let begin = Instant::now();
    let one = |run| process(Instant::now(), run, &[("eth1", up(1))]);
    let mut watch = Watch::begin(look(begin, Some(one("1"))));
    let late = [(std::process::id(), Err(Unseen::Late))];
    let interval = watch.next(Look::new(begin, late.into(), 0));
    assert_eq!(interval.events, []);
    assert_eq!(interval.unseen[0].why, "does not answer");
    assert!(!watch.is_empty());
    // Another engine of the same name took its place.
    let interval = watch.next(look(begin, Some(one("2"))));
    let seen: Vec<_> = interval.events.iter().map(|it| it.event).collect();
    assert_eq!(seen, [What::EngineEnded, What::EngineBegan]);
    assert!(interval.processes[0].engines.is_empty(), "there is nothing to hold it against");
    let interval = watch.next(look(begin, None));
    assert_eq!(interval.events[0].event, What::EngineEnded);
    assert!(watch.is_empty());
}
