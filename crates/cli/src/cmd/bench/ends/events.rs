//! Events of rails during the rounds of a size.

use polyrail_report::{RailEvent, RailEventKind, median};

use crate::cmd::bench::judge::why_down;
use crate::cmd::bench::talk::{DownRail, WhyDown};
use crate::cmd::bench::trial::Taken;

/// End that sends, and therefore counts what each rail carries. [`RailEvent::end`] names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    Here,
    There,
}

/// Returns the events of all rounds, in the order of the rounds. `began_unix_ms` is the time at which the run began.
///
/// A rail that is down from the first round on has no event: the verdict names it.
pub(crate) fn events(
    rounds: &[Taken],
    began_unix_ms: u64,
    sender: Sender,
    chunk_bytes: u64,
) -> Vec<RailEvent> {
    let sender = if sender == Sender::Here { HERE } else { THERE };
    let shares = median_shares(rounds);
    let mut down: Vec<(&str, String)> = Vec::new();
    let mut events = Vec::new();
    for (at, taken) in rounds.iter().enumerate() {
        let event = |rail: &str, end: &str, what, count, because| RailEvent {
            rail: rail.to_owned(),
            end: end.to_owned(),
            what,
            at_s: taken.sample.started_unix_ms.saturating_sub(began_unix_ms) as f64 / 1e3,
            round: at as u32 + 1,
            count,
            because,
        };
        let ends = [(HERE, &taken.local_load.down), (THERE, &taken.peer_load.down)];
        for (end, rails) in ends {
            let found: Vec<&DownRail> = rails.iter().filter(|rail| is_down(rail)).collect();
            let is_back = |name: &str| {
                // The rail was down at the begin of a round and up at its end, so it came back in that round.
                found.iter().all(|rail| rail.name != name || rail.went)
            };
            let (back, still): (Vec<_>, Vec<_>) =
                down.into_iter().partition(|(of, name)| *of == end && is_back(name));
            for (_, name) in &back {
                events.push(event(name, end, RailEventKind::Back, 1, None));
            }
            down = still;
            for rail in found {
                let known = (end, rail.name.clone());
                if down.contains(&known) || back.contains(&known) {
                    continue;
                }
                // In the first round only rails that went down in it: the others were never up.
                if at > 0 || rail.went {
                    let because = Some(why_down(rail, "this end"));
                    events.push(event(&rail.name, end, RailEventKind::Down, 1, because));
                }
                down.push(known);
            }
        }
        let all: u64 = taken.rails.iter().map(|rail| rail.tx_bytes).sum();
        for rail in &taken.rails {
            if rail.resent_chunks > 0 {
                let because = reason(taken, &rail.name);
                let (what, count) = (RailEventKind::Resent, rail.resent_chunks);
                events.push(event(&rail.name, sender, what, count, because));
            }
            let usual = shares.iter().find(|(name, _)| *name == rail.name).map(|(_, share)| *share);
            let due = usual.unwrap_or(0.0) * all as f64;
            let is_slow =
                due >= (SLOW_CHUNKS * chunk_bytes) as f64 && (rail.tx_bytes as f64) < due / 2.0;
            if is_slow && !is_named(taken, &rail.name) {
                events.push(event(&rail.name, sender, RailEventKind::Slow, 1, None));
            }
        }
    }
    events
}

/// Whether the rail is down by a fault. A rail whose connections died and came up again does not count: its resent
/// chunks are a separate event.
fn is_down(rail: &DownRail) -> bool {
    rail.why.is_fault() && rail.why != WhyDown::Lost
}

/// Whether either end reported the rail as down in the round.
fn is_named(taken: &Taken, name: &str) -> bool {
    named(taken, name).next().is_some()
}

fn named<'t>(taken: &'t Taken, name: &'t str) -> impl Iterator<Item = &'t DownRail> {
    let rails = taken.local_load.down.iter().chain(&taken.peer_load.down);
    rails.filter(move |rail| rail.name == name)
}

/// Returns the engine's reason for resent chunks, if it has one.
fn reason(taken: &Taken, name: &str) -> Option<String> {
    named(taken, name).find_map(|rail| rail.because.clone())
}

/// Returns each rail's median share of all bytes, if in enough rounds all rails were up. Loopback addresses have no
/// usual share: chance decides which of them carries more.
fn median_shares(rounds: &[Taken]) -> Vec<(String, f64)> {
    let names = rounds.first().map_or(&[][..], |taken| taken.rails.as_slice());
    let is_whole = |taken: &&Taken| !names.iter().any(|rail| is_named(taken, &rail.name));
    let whole: Vec<&Taken> = rounds.iter().filter(is_whole).collect();
    if whole.len() < SLOW_ROUNDS {
        return Vec::new();
    }
    let share = |taken: &Taken, name: &str| {
        let all: u64 = taken.rails.iter().map(|rail| rail.tx_bytes).sum();
        let own = taken.rails.iter().find(|rail| rail.name == name)?.tx_bytes;
        Some(own as f64 / all.max(1) as f64)
    };
    let of_rail = |name: &str| median(whole.iter().filter_map(|taken| share(taken, name)));
    let names = names.iter().map(|rail| rail.name.clone()).filter(|name| !name.starts_with("lo@"));
    names.filter_map(|name| of_rail(&name).map(|share| (name, share))).collect()
}

const HERE: &str = "here";
const THERE: &str = "there";
/// Minimum number of rounds from which a usual share is taken.
const SLOW_ROUNDS: usize = 3;
/// Minimum usual number of chunks. With fewer, chance decides which rail carries them.
const SLOW_CHUNKS: u64 = 32;

#[cfg(test)]
mod tests {
    use polyrail_report::{Histogram, PeerSample, Sample};

    use super::*;
    use crate::cmd::bench::talk::{Load, RailDelta};

    const CHUNK: u64 = 1 << 10;

    /// Builds a round in which rails r0 and r1 carried these bytes.
    fn taken(bytes: [u64; 2], down: [Vec<DownRail>; 2]) -> Taken {
        let rail = |(rail, tx_bytes)| RailDelta {
            name: format!("r{rail}"),
            tx_bytes,
            ..RailDelta::default()
        };
        let [here, there] = down.map(|down| Load { down, ..Load::default() });
        Taken {
            sample: Sample {
                started_unix_ms: 0,
                transfers: 1,
                bytes: bytes.iter().sum(),
                seconds: 1.0,
                local_cpu_seconds: 0.1,
                machine_busy_share: None,
                p50_us: None,
                p99_us: None,
                window_full_share: 0.0,
                socket_full_share: 0.0,
                peer: PeerSample::default(),
            },
            times: Histogram::default(),
            rails: bytes.into_iter().enumerate().map(rail).collect(),
            local_load: here,
            peer_load: there,
            verified_bytes: 0,
            rescues: None,
        }
    }

    fn even() -> Taken {
        taken([100 * CHUNK; 2], Default::default())
    }

    fn down(name: &str, why: WhyDown, went: bool) -> DownRail {
        let interface = name.to_owned();
        DownRail { name: name.into(), interface, why, because: None, receives: false, went }
    }

    /// Returns the events as `rail end kind round count`.
    fn found(mut rounds: Vec<Taken>) -> Vec<String> {
        for (round, taken) in rounds.iter_mut().enumerate() {
            taken.sample.started_unix_ms = 10_500 + 1_000 * round as u64;
        }
        let text = |event: RailEvent| {
            let RailEvent { rail, end, what, at_s, round, count, .. } = event;
            assert_eq!(at_s, 0.5 + f64::from(round - 1));
            format!("{rail} {end} {what:?} {round} {count}")
        };
        events(&rounds, 10_000, Sender::Here, CHUNK).into_iter().map(text).collect()
    }

    #[test]
    fn a_rail_that_went_and_came_back_has_both_events_at_each_end() {
        let gone = || vec![down("r1", WhyDown::Interface, true)];
        let out = || vec![down("r1", WhyDown::Interface, false)];
        let rounds = vec![
            even(),
            taken([150 * CHUNK, 50 * CHUNK], [gone(), gone()]),
            taken([200 * CHUNK, 0], [out(), out()]),
            even(),
        ];
        assert_eq!(
            found(rounds),
            ["r1 here Down 2 1", "r1 there Down 2 1", "r1 here Back 4 1", "r1 there Back 4 1"]
        );
        // The rail was down at the begin of the third round and up at its end.
        let rounds = vec![
            even(),
            taken([150 * CHUNK, 50 * CHUNK], [gone(), vec![]]),
            taken([100 * CHUNK; 2], [gone(), vec![]]),
            even(),
        ];
        assert_eq!(found(rounds), ["r1 here Down 2 1", "r1 here Back 3 1"]);
    }

    #[test]
    fn a_rail_that_never_was_up_has_no_event_until_it_comes() {
        let out = || [vec![down("r1", WhyDown::Disconnected, false)], Vec::new()];
        let rounds = vec![taken([200 * CHUNK, 0], out()), taken([200 * CHUNK, 0], out()), even()];
        assert_eq!(found(rounds), ["r1 here Back 3 1"]);
        let left_out = || [vec![down("r1", WhyDown::NoPartner, false)], Vec::new()];
        let rounds = vec![even(), taken([200 * CHUNK, 0], left_out())];
        assert_eq!(found(rounds), Vec::<String>::new());
    }

    #[test]
    fn chunks_that_were_sent_again_are_counted_with_the_reason() {
        let lost =
            DownRail { because: Some("a timeout".into()), ..down("r0", WhyDown::Lost, true) };
        let mut second = taken([100 * CHUNK; 2], [vec![lost], Vec::new()]);
        second.rails[0].resent_chunks = 10;
        let rounds = vec![even(), second];
        let event = events(&rounds, 0, Sender::There, CHUNK).remove(0);
        assert_eq!((event.count, event.because.as_deref()), (10, Some("a timeout")));
        assert_eq!(found(rounds), ["r0 here Resent 2 10"]);
    }

    #[test]
    fn a_rail_with_less_than_half_of_its_usual_share_was_slow() {
        let slow = |share: u64| taken([200 * CHUNK - share, share], Default::default());
        let rounds = || vec![even(), slow(49 * CHUNK), even()];
        assert_eq!(found(rounds()), ["r1 here Slow 2 1"]);
        assert_eq!(found(vec![even(), slow(51 * CHUNK), even()]), Vec::<String>::new());
        assert_eq!(found(rounds().split_off(1)), Vec::<String>::new(), "two rounds are too few");
        let few = || taken([20 * CHUNK; 2], Default::default());
        let none = || taken([40 * CHUNK, 0], Default::default());
        assert_eq!(found(vec![few(), none(), few()]), Vec::<String>::new(), "too few chunks");
        assert_eq!(found(vec![even(), even(), even()]), Vec::<String>::new());
    }
}
