//! Durations of transfers over rails of different speed, in virtual time. `--nocapture` prints the share of the rails'
//! total rate that each case gets.

use std::time::Duration;

use polyrail_proto::Time;
use polyrail_testkit::race::{Cargo, Course, Race};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Bytes per second of 1 Gbit/s.
const GBIT: u64 = 125_000_000;
const UNEVEN: [&[u64]; 3] = [&[40, 20, 10, 10], &[4, 2, 1, 1], &[10, 1]];
const EVEN: [&[u64]; 2] = [&[10; 4], &[25; 4]];
const CHANNELS_PER_RAIL: [u32; 4] = [1, 2, 4, 8];

fn course(gbit: &[u64], channels_per_rail: u32) -> Course {
    Course {
        rates: gbit.iter().map(|rate| rate * GBIT).collect(),
        latency: Duration::from_micros(15),
        channels: gbit.len() as u32 * channels_per_rail,
        window_chunks: 16,
        chunk_bytes: 512 * KIB,
        socket_bytes: 4 * MIB,
        blind: false,
        peers: 1,
    }
}

fn cargo(bytes: u64, count: usize, depth: usize) -> Cargo {
    Cargo { bytes, count, depth }
}

/// Share of the rails' total rate that the cargo gets once the rates are known.
fn share(course: &Course, cargo: Cargo) -> f64 {
    share_after(Cargo { bytes: 64 * MIB, count: 2, depth: 1 }, course, cargo)
}

/// Like [`share`], after other cargo from which the rates are known.
fn share_after(before: Cargo, course: &Course, cargo: Cargo) -> f64 {
    let mut race = Race::new(course.clone());
    race.run(before);
    let (took, _) = race.run(cargo);
    let share = (cargo.bytes * (cargo.count * course.peers) as u64) as f64
        / course.rates.iter().sum::<u64>() as f64
        / took.as_secs_f64();
    let Course { rates, channels, peers, blind, .. } = course;
    let gbit: Vec<u64> = rates.iter().map(|rate| rate / GBIT).collect();
    println!(
        "{gbit:?} Gbit/s, {channels} channels, {peers} peers, blind {blind}, {cargo:?}: {share:.3}"
    );
    share
}

#[test]
fn a_transfer_takes_what_the_sum_of_the_rails_takes_however_many_channels() {
    for rails in UNEVEN.iter().chain(&EVEN) {
        for channels in CHANNELS_PER_RAIL {
            for (count, depth, least) in [(3, 1, 0.975), (6, 2, 0.99)] {
                let got = share(&course(rails, channels), cargo(256 * MIB, count, depth));
                assert!(got >= least, "{rails:?} Gbit/s, {channels} channels a rail: {got}");
            }
        }
    }
}

/// Result of these tests if the sender treated all rails as one.
#[test]
fn a_sender_that_takes_all_rails_for_one_waits_for_the_slowest() {
    let blind = Course { blind: true, ..course(UNEVEN[0], 4) };
    assert!(share(&blind, cargo(256 * MIB, 3, 1)) < 0.85);
    assert!(share(&blind, cargo(MIB, 1000, 8)) < 0.85);
}

#[test]
fn the_first_transfer_of_all_loses_little_by_not_knowing_the_rails() {
    for rails in UNEVEN.iter().chain(&EVEN) {
        let course = course(rails, 4);
        let (took, _) = Race::new(course.clone()).run(cargo(256 * MIB, 1, 1));
        let ideal = 256.0 * MIB as f64 / course.rates.iter().sum::<u64>() as f64;
        let got = ideal / took.as_secs_f64();
        println!("{rails:?} Gbit/s, the first: {got:.3}");
        assert!(got >= 0.95, "{rails:?} Gbit/s: {got}");
    }
}

/// One after another, each transfer costs a round trip.
#[test]
fn transfers_of_some_mebibytes_use_all_rails_as_far_as_the_way_allows() {
    for rails in UNEVEN.iter().chain(&EVEN) {
        for channels in CHANNELS_PER_RAIL {
            for bytes in [MIB, 4 * MIB, 16 * MIB] {
                let course = course(rails, channels);
                let got = share(&course, cargo(bytes, 60, 1));
                let sum = course.rates.iter().sum::<u64>() as f64;
                // The one-way delay, some threads that wake up one after another, and one small chunk.
                let rest = 60e-6
                    + 128.0 * KIB as f64 / course.rates.iter().min().map_or(0.0, |r| *r as f64);
                let ideal = bytes as f64 / sum;
                assert!(
                    got >= 0.97 * ideal / (ideal + rest),
                    "{rails:?} Gbit/s, {channels} channels a rail, {bytes} B: {got}"
                );
            }
        }
    }
}

#[test]
fn many_small_transfers_lose_nothing_by_it() {
    for rails in UNEVEN.iter().chain(&EVEN) {
        for channels in CHANNELS_PER_RAIL {
            for (bytes, depth) in [(64 * KIB, 256), (MIB, 16)] {
                let course = course(rails, channels);
                let cargo = cargo(bytes, (256 * MIB / bytes) as usize, depth);
                let got = share(&course, cargo);
                let blind = share(&Course { blind: true, ..course }, cargo);
                assert!(got >= 0.98 && got >= blind * 0.99, "{rails:?} Gbit/s: {got}, was {blind}");
            }
        }
    }
}

#[test]
fn several_peers_that_share_the_rails_lose_nothing_by_it() {
    for rails in UNEVEN.iter().chain(&EVEN) {
        for (bytes, count, depth) in [(64 * MIB, 6, 1), (MIB, 300, 4), (64 * KIB, 2000, 32)] {
            let course = Course { peers: 4, ..course(rails, 2) };
            let cargo = cargo(bytes, count, depth);
            let got = share(&course, cargo);
            let blind = share(&Course { blind: true, ..course }, cargo);
            assert!(got >= 0.95 && got >= blind * 0.99, "{rails:?} Gbit/s: {got}, was {blind}");
        }
    }
}

#[test]
fn a_rail_that_becomes_slow_and_fast_again_costs_a_tenth_of_a_second_of_what_is_there() {
    const MS: u64 = 1_000_000;
    for channels in CHANNELS_PER_RAIL {
        for (bytes, depth) in [(MIB, 16), (16 * MIB, 4), (256 * MIB, 1)] {
            let mut race = Race::new(course(&[10, 10], channels));
            race.change_rate(Duration::from_millis(1000), 0, GBIT);
            race.change_rate(Duration::from_millis(2000), 0, 10 * GBIT);
            let (_, done) = race.run(cargo(bytes, (6400 * MIB / bytes) as usize, depth));
            // From the first transfer that ends in a span to the last one.
            let rate = |from: u64, to: u64| {
                let within = |(at, _): &&(Time, u64)| (from * MS..to * MS).contains(&at.0);
                let of_span: Vec<_> = done.iter().filter(within).collect();
                let (first, last) = (of_span[0].0, of_span[of_span.len() - 1].0);
                let bytes: u64 = of_span[1..].iter().map(|(_, bytes)| bytes).sum();
                bytes as f64 / last.since(first).as_secs_f64() / GBIT as f64
            };
            for (from, to, sum) in [(100, 1000, 20.0), (1100, 2000, 11.0), (2100, 2900, 20.0)] {
                let got = rate(from, to) / sum;
                println!("{channels} channels, {} KiB, {from} to {to} ms: {got:.3}", bytes / KIB);
                assert!(got >= 0.9, "{channels} channels, {bytes} B, {from} to {to} ms: {got}");
            }
        }
    }
}

/// The rail is tried at times, because it may have become fast. The cost of that is bounded.
#[test]
fn a_rail_a_hundred_times_slower_holds_up_few_transfers() {
    for channels in [1, 4] {
        let slow = Course { chunk_bytes: 512 * KIB, ..course(&[1, 1], channels) };
        let slow = Course { rates: vec![25_000_000, 250_000], ..slow };
        let mut race = Race::new(slow.clone());
        // The rail's rate becomes known from the first chunk.
        race.run(cargo(4 * MIB, 10, 4));
        // A user who waits for a few transfers at a time waits for the one on the slow rail.
        let took: Duration = (0..30).map(|_| race.run(cargo(4 * MIB, 4, 4)).0).sum();
        let got = (30 * 4 * 4 * MIB) as f64 / 25e6 / took.as_secs_f64();
        println!("{channels} channels: {got:.3}");
        assert!(got >= 0.8, "{channels} channels: {got}");
    }
}

/// The limit of bytes in flight depends on the rail's rate, and the measured rate on that limit.
#[test]
fn a_long_way_does_not_keep_rails_from_being_filled() {
    for rails in UNEVEN.iter().chain(&EVEN) {
        for channels in [1, 4] {
            let course = Course {
                latency: Duration::from_millis(10),
                window_chunks: 256,
                socket_bytes: 64 * MIB,
                ..course(rails, channels)
            };
            let cargo = cargo(256 * MIB, 16, 4);
            let got = share_after(cargo, &course, cargo);
            let blind = share_after(cargo, &Course { blind: true, ..course }, cargo);
            assert!(
                got >= 0.98 * blind,
                "{rails:?} Gbit/s, {channels} channels: {got}, was {blind}"
            );
        }
    }
}

/// Messages of a collective: few in flight, so one rail alone could hold them all.
#[test]
fn a_few_messages_at_a_time_go_over_all_rails_though_nobody_knows_their_rates_yet() {
    for (gbit, bytes, least) in [
        (1, 16 * KIB, 0.8),
        (1, 32 * KIB, 0.85),
        (1, 64 * KIB, 0.85),
        (1, 128 * KIB, 0.85),
        (10, 64 * KIB, 0.6),
        (10, 128 * KIB, 0.8),
    ] {
        let messages = cargo(bytes, 400, 8);
        let mut race = Race::new(course(&[gbit; 4], 1));
        let (took, _) = race.run(messages);
        let got = (bytes * 400) as f64 / (4 * gbit * GBIT) as f64 / took.as_secs_f64();
        println!("4 x {gbit} Gbit/s, {messages:?}: {got:.3}");
        assert!(got >= least, "4 x {gbit} Gbit/s, {bytes} B: {got}");
    }
}

#[test]
fn a_course_and_its_cargo_decide_everything() {
    for rails in UNEVEN.iter().chain(&EVEN) {
        for (blind, bytes, depth) in [(false, MIB, 8), (false, 64 * KIB, 32), (true, MIB, 8)] {
            let run = || {
                let mut race = Race::new(Course { blind, peers: 2, ..course(rails, 2) });
                race.change_rate(Duration::from_millis(5), 0, GBIT);
                race.run(cargo(bytes, 100, depth))
            };
            assert_eq!(run(), run(), "{rails:?} Gbit/s, {bytes} B");
        }
    }
}
