//! Shows an interval: as a screen, as lines, or as JSON.

use std::collections::VecDeque;

use polyrail_report::{Align, Table, counted, show_gb_per_s, show_micros};

use super::change::{EngineChange, Event, Interval, ProcessChange, RailChange, What};
use crate::stdout::{fitted, redraw, say_to_reader};
use crate::unwritten::NobodyReads;

#[derive(Debug)]
pub(super) enum Show {
    /// A terminal, redrawn with the last events: one interval would show them for too short a time.
    Screen { events: VecDeque<String> },
    /// A line for each rail, event and process, with the time and the process.
    Lines,
    /// A JSON document on one line.
    Json,
}

/// Beginning of a screen's first line.
pub(super) const HEAD: &str = "polyrail top  q or Ctrl-C ends";
/// Maximum number of events on a screen.
const MOST_EVENTS: usize = 8;
/// Maximum number of peers that an event names.
const MOST_NAMED: usize = 2;

impl Show {
    pub(super) fn interval(&mut self, interval: &Interval) -> Result<(), NobodyReads> {
        match self {
            Self::Screen { events } => {
                let now = polyrail_log::utc_now();
                let new = interval.events.iter();
                events.extend(new.map(|it| format!("{now} {} {}", it.pid, event(it))));
                events.drain(..events.len().saturating_sub(MOST_EVENTS));
                redraw(&screen(interval, &now, events))
            }
            Self::Lines => {
                let now = polyrail_log::utc_now();
                lines(interval).iter().try_for_each(|line| say_to_reader(&format!("{now} {line}")))
            }
            // Text, numbers and lists of them always have a JSON form.
            Self::Json => say_to_reader(&serde_json::to_string(interval).unwrap_or_default()),
        }
    }
}

fn lines(interval: &Interval) -> Vec<String> {
    let mut lines: Vec<String> =
        interval.events.iter().map(|it| format!("{} {}", it.pid, event(it))).collect();
    for process in &interval.processes {
        for engine in &process.engines {
            let place = format!("{} {}", process.pid, engine.name);
            for rail in &engine.rails {
                lines.push(format!(
                    "{place} {} sent {} GB/s received {} GB/s retransmits {} resent {} rtt {} \
                     flows {}/{}",
                    rail.name,
                    show_gb_per_s(rail.sent_gb_per_s),
                    show_gb_per_s(rail.received_gb_per_s),
                    rail.retransmits,
                    rail.resent_chunks,
                    rail.round_trip_us.map_or("-".into(), show_micros),
                    rail.flows_up,
                    rail.flows_up + rail.flows_down,
                ));
            }
            lines.extend(apart(engine).map(|text| format!("{place} {text}")));
        }
        if !process.threads.is_empty() {
            lines.push(format!("{} threads {}", process.pid, threads(process)));
        }
    }
    let unseen = interval.unseen.iter();
    lines.extend(unseen.map(|process| format!("{} {}", process.pid, process.why)));
    lines.extend(not_asked(interval));
    lines
}

fn rails(interval: &Interval) -> Table {
    let mut table = Table::default()
        .column("process", Align::Right)
        .column("engine", Align::Left)
        .column("rail", Align::Left)
        .column("sent GB/s", Align::Right)
        .column("received", Align::Right)
        .column("retrans", Align::Right)
        .column("resent", Align::Right)
        .column("round trip", Align::Right)
        .column("flows", Align::Right);
    for process in &interval.processes {
        for engine in &process.engines {
            for rail in &engine.rails {
                table.row([
                    process.pid.to_string(),
                    engine.name.clone(),
                    rail.name.clone(),
                    rate(rail.sent_gb_per_s),
                    rate(rail.received_gb_per_s),
                    rail.retransmits.to_string(),
                    rail.resent_chunks.to_string(),
                    format!("{:>6}", rail.round_trip_us.map_or("-".into(), show_micros)),
                    format!("{}/{}", rail.flows_up, rail.flows_up + rail.flows_down),
                ]);
            }
        }
    }
    if let Some(sum) = sum(interval) {
        table.row(sum);
    }
    table
}

/// The last row if there are several: the sum of all rails of all engines.
fn sum(interval: &Interval) -> Option<[String; 9]> {
    let engines = || interval.processes.iter().flat_map(|process| &process.engines);
    let rails = || engines().flat_map(|engine| &engine.rails);
    if rails().count() < 2 {
        return None;
    }
    let count = |of: fn(&RailChange) -> u64| rails().map(of).sum::<u64>();
    let sent: f64 = rails().map(|rail| rail.sent_gb_per_s).sum();
    let received: f64 = rails().map(|rail| rail.received_gb_per_s).sum();
    let up = count(|rail| rail.flows_up);
    Some([
        "all".to_owned(),
        counted(engines().count() as u64, "engine"),
        counted(rails().count() as u64, "rail"),
        rate(sent),
        rate(received),
        count(|rail| rail.retransmits).to_string(),
        count(|rail| rail.resent_chunks).to_string(),
        String::new(),
        format!("{up}/{}", up + count(|rail| rail.flows_down)),
    ])
}

/// Formats a rate in a fixed width: columns that change with the values move the names of rails, and break them.
fn rate(gb_per_s: f64) -> String {
    if gb_per_s > 0.0 && gb_per_s < 0.01 {
        "<.01".to_owned()
    } else {
        format!("{:>4}", show_gb_per_s(gb_per_s))
    }
}

fn screen(interval: &Interval, now: &str, events: &VecDeque<String>) -> Vec<String> {
    let mut below = Vec::new();
    for process in &interval.processes {
        for engine in &process.engines {
            let place = format!("{} {}", process.pid, engine.name);
            below.extend(apart(engine).map(|text| format!("{place}: {text}")));
        }
        if !process.threads.is_empty() {
            below.push(format!("{} {}: {}", process.pid, process.name, threads(process)));
        }
    }
    let mut screen = vec![format!("{HEAD}  {now}")];
    screen.extend(fitted(&rails(interval)).lines().map(str::to_owned));
    screen.extend(below);
    screen.extend(events.iter().cloned());
    let unseen = interval.unseen.iter();
    screen.extend(unseen.map(|process| format!("process {} {}", process.pid, process.why)));
    screen.extend(not_asked(interval));
    screen
}

/// Rates of an engine over no rail, and `no peer` if it has no rails.
fn apart(engine: &EngineChange) -> impl Iterator<Item = String> {
    let moved = |what: &str, rate: f64| {
        (rate > 0.0).then(|| format!("{what} {} GB/s", show_gb_per_s(rate)))
    };
    let alone = engine.rails.is_empty().then(|| "no peer".to_owned());
    let copied = moved("copied", engine.copied_gb_per_s);
    [alone, copied, moved("shared", engine.shared_gb_per_s)].into_iter().flatten()
}

fn not_asked(interval: &Interval) -> Option<String> {
    match interval.sockets_not_asked {
        0 => None,
        1 => Some("1 more socket was not asked".to_owned()),
        count => Some(format!("{count} more sockets were not asked")),
    }
}

fn threads(process: &ProcessChange) -> String {
    let each = process.threads.iter().map(|it| format!("{} {:.0} %", it.name, it.cpu_percent));
    each.collect::<Vec<_>>().join(", ")
}

fn event(event: &Event) -> String {
    let Event { engine, rail, peers, count, .. } = event;
    let count = count.unwrap_or_default();
    let what = match event.event {
        What::EngineBegan => "the engine is new".to_owned(),
        What::EngineEnded => "the engine has ended".to_owned(),
        What::RailCut => "cut".to_owned(),
        What::RailBack => "back".to_owned(),
        What::FlowsLost => format!("{} lost", counted(count, "flow")),
        What::ChunksResent => format!("{} to be sent again", counted(count, "chunk")),
    };
    let rail = rail.as_ref().map_or(String::new(), |rail| format!(" {rail}"));
    let more = peers.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named: Vec<&str> = peers.iter().take(MOST_NAMED).map(String::as_str).collect();
    let towards = if peers.is_empty() {
        String::new()
    } else {
        format!(" (towards {}{more})", named.join(", "))
    };
    format!("{engine}{rail}: {what}{towards}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_names_a_few_peers_and_counts_the_others() {
        let one = |what, peers: &[&str], count| {
            event(&Event {
                event: what,
                pid: 7,
                engine: "a".into(),
                rail: Some("eth1".into()),
                peers: peers.iter().map(|peer| (*peer).to_owned()).collect(),
                count,
            })
        };
        assert_eq!(one(What::RailCut, &["b"], None), "a eth1: cut (towards b)");
        let many = one(What::FlowsLost, &["b", "c", "d", "e"], Some(8));
        assert_eq!(many, "a eth1: 8 flows lost (towards b, c and 2 more)");
        let single = one(What::ChunksResent, &["b"], Some(1));
        assert_eq!(single, "a eth1: 1 chunk to be sent again (towards b)");
    }

    fn rail(name: &str) -> RailChange {
        RailChange {
            name: name.into(),
            sent_bytes: 0,
            received_bytes: 0,
            sent_gb_per_s: 12.3,
            received_gb_per_s: 0.0,
            retransmits: 123_456,
            resent_chunks: 1000,
            flows_up: 16,
            flows_down: 16,
            round_trip_us: Some(1234.5),
        }
    }

    fn shown(engine: &str, rail: RailChange) -> String {
        shown_all(engine, vec![rail])
    }

    fn shown_all(engine: &str, rails_of_engine: Vec<RailChange>) -> String {
        let engine = EngineChange {
            name: engine.into(),
            run: String::new(),
            peers: 1,
            operations: 0,
            copied_gb_per_s: 0.0,
            shared_gb_per_s: 0.0,
            rails: rails_of_engine,
        };
        let process = ProcessChange {
            pid: 4_194_304,
            name: "bench".into(),
            seconds: 1.0,
            engines: vec![engine],
            threads: Vec::new(),
        };
        let interval = Interval {
            schema_version: 1,
            unix_ms: 0,
            processes: vec![process],
            events: Vec::new(),
            unseen: Vec::new(),
            sockets_not_asked: 0,
        };
        rails(&interval).fitted(Some(80))
    }

    #[test]
    fn the_columns_of_a_screen_fit_into_80() {
        for (engine, name) in
            [("vm:16277", "lo@127.0.0.1"), ("node-0123:4194304", "enp129s0f0np0@10.1.2.3")]
        {
            let text = shown(engine, rail(name));
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
            assert!(text.contains("16/32") && text.contains(&show_micros(1234.5)), "{text}");
        }
    }

    #[test]
    fn whatever_the_figures_are_columns_stay_where_they_are_and_names_whole() {
        let headings = |rail: RailChange| {
            let text = shown("vm:16277", rail);
            assert!(text.contains(" lo@127.0.0.1 "), "{text}");
            text.lines().take(2).map(str::to_owned).collect::<Vec<_>>()
        };
        let usual = headings(rail("lo@127.0.0.1"));
        for rate in [0.0, 0.0012, 0.12, 1.23, 123.0] {
            for round_trip_us in [None, Some(98.7), Some(100.0), Some(1234.5)] {
                let mut rail = rail("lo@127.0.0.1");
                (rail.sent_gb_per_s, rail.received_gb_per_s) = (rate, rate);
                rail.round_trip_us = round_trip_us;
                (rail.retransmits, rail.resent_chunks) = (0, 0);
                assert_eq!(headings(rail), usual, "{rate} {round_trip_us:?}");
            }
        }
    }

    #[test]
    fn the_last_row_is_the_sum_of_several_rails() {
        let (one, mut other) = (rail("eth0"), rail("eth1"));
        (other.sent_gb_per_s, other.retransmits, other.flows_down) = (0.7, 4, 0);
        let text = shown_all("vm:16277", vec![one, other]);
        let last: Vec<&str> = text.lines().last().unwrap().split_whitespace().collect();
        assert_eq!(last[..5], ["all", "1", "engine", "2", "rails"], "{text}");
        assert!(last.contains(&"13.0") && last.contains(&"123460"), "{text}");
        assert!(last.contains(&"32/48"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(!shown("vm:16277", rail("eth0")).contains("all"));
    }
}
