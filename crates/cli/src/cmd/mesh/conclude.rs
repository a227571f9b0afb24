//! Sentences on the results of a mesh.

use std::collections::BTreeMap;

use polyrail_report::{
    CARRIED_LEAST, RailEvent, RailEventKind, Spread, counted, show_gb_per_s, show_ratio,
};

use super::report::{LayoutReport, MeshReport, PairReport, PatternReport};

/// A pair is named as slow if each of its rounds is slower than this share of the median pair.
const SLOW_SHARE: f64 = 0.8;
/// Maximum number of items in a sentence.
const NAMED: usize = 3;

/// Sentences on the rates and outliers of each layout and pattern, then on the differences between layouts.
pub(crate) fn conclusions(layouts: &[LayoutReport], rounds: u32) -> Vec<String> {
    let mut told: Vec<String> = layouts.iter().find_map(fewer_nics).into_iter().collect();
    for layout in layouts {
        for pattern in &layout.patterns {
            let name = format!("{}, layout {}", pattern.pattern.name(), layout.layout.name());
            told.extend(rates(&name, pattern, rounds));
            told.extend(oddities(&name, pattern));
        }
    }
    let Some((first, others)) = layouts.split_first() else { return told };
    for other in others {
        let all = first.patterns.iter();
        told.extend(all.filter_map(|pattern| against(first, pattern, other, rounds)));
    }
    told
}

/// Sentences on everything in a pattern that stands out.
fn oddities(name: &str, pattern: &PatternReport) -> Vec<String> {
    let found = [
        slow_pairs(name, &pattern.pairs),
        sent_again(name, pattern),
        left_by_plugins(name, pattern),
    ];
    rail_events(name, pattern).into_iter().chain(found.into_iter().flatten()).collect()
}

/// A sentence for each rail that went down or came back, or whose chunks were sent again.
pub(crate) fn rail_events(name: &str, pattern: &PatternReport) -> Vec<String> {
    let mut by_rail: BTreeMap<(&str, &str), Vec<&RailEvent>> = BTreeMap::new();
    for event in &pattern.events {
        by_rail.entry((event.end.as_str(), event.rail.as_str())).or_default().push(event);
    }
    let one = |((end, rail), events): ((&str, &str), Vec<&RailEvent>)| {
        let mut parts = cuts(&events);
        let resent = events.iter().filter(|event| event.what == RailEventKind::Resent);
        let resent: u64 = resent.map(|event| event.count).sum();
        let colon = if parts.is_empty() { ":" } else { "" };
        if resent > 0 {
            parts.push(format!("{} sent again", counted(resent, "chunk")));
        }
        format!("{name}: {end} {rail}{colon} {}", parts.join("; "))
    };
    by_rail.into_iter().map(one).collect()
}

/// A phrase for each time that a rail was down: each `Down` ends with the next `Back`.
fn cuts(events: &[&RailEvent]) -> Vec<String> {
    let mut ends = events
        .iter()
        .filter(|event| matches!(event.what, RailEventKind::Down | RailEventKind::Back))
        .peekable();
    let mut cuts = Vec::new();
    while let Some(event) = ends.next() {
        if event.what == RailEventKind::Back {
            // The rail went down in an earlier pattern, whose sentence says so.
            cuts.push(format!("came back in round {}", event.round));
            continue;
        }
        let why = event.because.as_ref().map_or(String::new(), |why| format!(" ({why})"));
        let until = match ends.next_if(|next| next.what == RailEventKind::Back) {
            None => " and stayed so".to_owned(),
            // Each step counts its rounds from 1.
            Some(back) if back.round <= event.round => {
                format!(" and back in round {} of a later step", back.round)
            }
            Some(back) => format!(" and back in round {}", back.round),
        };
        cuts.push(format!("was down in round {}{why}{until}", event.round));
    }
    let more = cuts.len().saturating_sub(NAMED);
    cuts.truncate(NAMED);
    cuts.extend((more > 0).then(|| format!("was down {}", counted(more as u64, "more time"))));
    cuts
}

/// Sentences on everything that stands out, in the order of [`conclusions`].
pub(crate) fn all_oddities(layouts: &[LayoutReport]) -> Vec<String> {
    let mut told: Vec<String> = layouts.iter().find_map(fewer_nics).into_iter().collect();
    for layout in layouts {
        for pattern in &layout.patterns {
            let name = format!("{}, layout {}", pattern.pattern.name(), layout.layout.name());
            told.extend(oddities(&name, pattern));
        }
    }
    told
}

/// Sentence for a mesh in which nothing stands out, with the share of the lab's rates that nodes get. Else `None`.
pub(crate) fn nothing(report: &MeshReport) -> Option<String> {
    if !report.is_measured() || !all_oddities(&report.layouts).is_empty() {
        return None;
    }
    let mut text = "nothing stands out".to_owned();
    let patterns = || report.layouts.iter().flat_map(|layout| &layout.patterns);
    let apart = |pattern: &PatternReport| {
        let all = middle(&pattern.pairs).filter(|_| pattern.pairs.len() > 1)?;
        Some((all.max - all.median).max(all.median - all.min) / all.median * 100.0)
    };
    let widest = patterns().filter_map(apart).max_by(f64::total_cmp);
    // Round up, but not for a rounding error.
    let up = |percent: f64| (percent - 1e-6).ceil();
    let pairs =
        widest.map(|percent| format!("all pairs within {:.0} % of the median pair", up(percent)));
    let share = share_of_nodes(report).zip(report.lab_rates.as_ref());
    let share = share
        .map(|(share, rates)| format!("{:.0} % of {rates} in and out of each node", share * 100.0));
    let more: Vec<String> = pairs.into_iter().chain(share).collect();
    if !more.is_empty() {
        text += &format!(": {}", more.join("; "));
    }
    Some(text)
}

/// Share of the lab's rates that the slowest node gets, sending or receiving, in the pattern where it is largest.
pub(crate) fn share_of_nodes(report: &MeshReport) -> Option<f64> {
    let whole = report.node_gb_per_s?;
    let patterns = report.layouts.iter().flat_map(|layout| &layout.patterns);
    let least = |pattern: &PatternReport| {
        let rates = pattern.nodes.iter().flat_map(|node| [node.tx_gb_per_s, node.rx_gb_per_s]);
        rates.min_by(f64::total_cmp)
    };
    patterns.filter_map(least).max_by(f64::total_cmp).map(|rate| rate / whole)
}

/// Sentence on nodes with fewer NICs than others: a rail that is down has no row in the tables.
fn fewer_nics(layout: &LayoutReport) -> Option<String> {
    let mut counts = BTreeMap::new();
    for nic in &layout.patterns.first()?.nics {
        *counts.entry(nic.node).or_insert(0_usize) += 1;
    }
    let most = *counts.values().max()?;
    let fewer = counts.iter().filter(|(_, count)| **count < most);
    let named: Vec<String> =
        fewer.map(|(node, count)| format!("node{node} ({count} of {most})")).collect();
    let text = || {
        let named = named.join(", ");
        format!(
            "fewer NICs than other nodes: {named}: look there whether one is down, or left out by `rails`"
        )
    };
    (!named.is_empty()).then(text)
}

pub(crate) fn middle(pairs: &[PairReport]) -> Option<Spread> {
    Spread::of(pairs.iter().map(|pair| pair.gb_per_s.median))
}

fn rates(name: &str, pattern: &PatternReport, rounds: u32) -> Option<String> {
    let total = pattern.total_gb_per_s;
    let Spread { median, min, max } = middle(&pattern.pairs)?;
    let [median, min, max] = [median, min, max].map(show_gb_per_s);
    let each = if pattern.pairs.len() == 1 {
        String::new()
    } else {
        format!("; the median pair gets {median}, the slowest {min}, the fastest {max}")
    };
    let varies = match rounds {
        1 => String::new(),
        _ => format!(" ± {:.0} %", total.half_range_percent()),
    };
    Some(format!("{name}: {} GB/s{varies} in all{each}", show_gb_per_s(total.median)))
}

fn slow_pairs(name: &str, pairs: &[PairReport]) -> Option<String> {
    let median = middle(pairs)?.median;
    // In every round: one slow round says little about the pair.
    let is_slow = |pair: &&PairReport| pair.gb_per_s.max < SLOW_SHARE * median;
    let mut slow: Vec<(f64, &PairReport)> =
        pairs.iter().filter(is_slow).map(|pair| (pair.gb_per_s.median / median, pair)).collect();
    slow.sort_by(|a, b| a.0.total_cmp(&b.0));
    let named = slow
        .iter()
        .take(NAMED)
        .map(|(share, pair)| format!("{} to {} ({:.0} %)", pair.from, pair.to, share * 100.0));
    let named: Vec<String> = named.collect();
    let more = match slow.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = || {
        let limit = SLOW_SHARE * 100.0;
        format!("{name}: slower than {limit:.0} % of the median pair: {}{more}", named.join(", "))
    };
    (!slow.is_empty()).then(text)
}

fn sent_again(name: &str, pattern: &PatternReport) -> Option<String> {
    let all: u64 = pattern.nics.iter().map(|nic| nic.retransmits).sum();
    let worst = pattern.nics.iter().max_by_key(|nic| nic.retransmits)?;
    let text = || {
        format!(
            "{name}: the NICs sent {all} segments again, {} of them node{} {}",
            worst.retransmits, worst.node, worst.name
        )
    };
    (all > 0).then(text)
}

/// Sentence on payload that a hosted plugin could not carry. It took TCP, so the results are those of TCP.
fn left_by_plugins(name: &str, pattern: &PatternReport) -> Option<String> {
    let shares = pattern.nics.iter().filter(|nic| nic.tx_gb_per_s > 0.0);
    let shares = shares.filter_map(|nic| Some((nic.carried_share?, nic)));
    let (share, worst) = shares.min_by(|a, b| a.0.total_cmp(&b.0))?;
    let text = || {
        format!(
            "{name}: of what node{} {} sent the hosted plugin carried {:.1} %, the rest took TCP: the log says why",
            worst.node,
            worst.name,
            share * 100.0
        )
    };
    (share < CARRIED_LEAST).then(text)
}

/// Compares another layout with the first one, in a pattern. Differences within the variation of the rounds decide
/// nothing.
fn against(
    first: &LayoutReport,
    pattern: &PatternReport,
    other: &LayoutReport,
    rounds: u32,
) -> Option<String> {
    let there = other.patterns.iter().find(|there| there.pattern == pattern.pattern)?;
    let [here, there] = [pattern.total_gb_per_s, there.total_gb_per_s];
    let ratio = there.median / here.median;
    let varies = here.half_range_percent() + there.half_range_percent();
    let verdict = if rounds == 1 {
        "undecided, as a single round has no interval".to_owned()
    } else if (ratio - 1.0).abs() * 100.0 <= varies {
        format!("undecided, within what the rounds vary by, ± {varies:.0} %")
    } else {
        format!("more than the rounds vary by, ± {varies:.0} %")
    };
    Some(format!(
        "{}: layout `{}` makes {} x what `{}` makes: {verdict}",
        pattern.pattern.name(),
        other.layout.name(),
        show_ratio(ratio),
        first.layout.name(),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Layout, Pattern};
    use super::super::report::{Flow, NicReport};
    use super::*;

    /// Two nodes over two rails of 1 Gbit/s.
    fn mesh(layouts: Vec<LayoutReport>) -> MeshReport {
        MeshReport {
            head: crate::reports::begin(1),
            lab: Some("x".into()),
            lab_rates: Some("2x1gbit".into()),
            node_gb_per_s: Some(0.25),
            nodes: 2,
            endpoints_per_node: 1,
            memory: "host".into(),
            size_bytes: 1,
            depth: 1,
            time_ms: 1,
            warmup_ms: 0,
            rounds: 3,
            hosts: Vec::new(),
            layouts,
            conclusions: Vec::new(),
        }
    }

    #[test]
    fn where_nothing_stands_out_that_is_told_with_the_share_of_the_rates() {
        let mut even = layout(Layout::One, 2.0, &[1.0, 1.02, 0.98]);
        let flow = |rate| Flow { name: "node0".into(), tx_gb_per_s: rate, rx_gb_per_s: 0.24 };
        even.patterns[0].nodes = vec![flow(0.235), flow(0.25)];
        let mut report = mesh(vec![even]);
        let text = "nothing stands out: all pairs within 2 % of the median pair; 94 % of 2x1gbit in and out of each node";
        assert_eq!(nothing(&report).as_deref(), Some(text));
        report.node_gb_per_s = None;
        assert!(nothing(&report).unwrap().ends_with("2 % of the median pair"));
        report.layouts[0].patterns[0].nics = vec![nic(0, 3)];
        assert_eq!(nothing(&report), None, "segments were sent again");
        assert_eq!(nothing(&mesh(Vec::new())), None);
    }

    fn spread(median: f64) -> Spread {
        Spread { median, min: median * 0.99, max: median * 1.01 }
    }

    fn layout(layout: Layout, total: f64, rates: &[f64]) -> LayoutReport {
        let pair = |(to, rate): (usize, &f64)| PairReport {
            from: "node0".into(),
            to: format!("node{}", to + 1),
            gb_per_s: spread(*rate),
            sender_gb_per_s: *rate,
            receiver_gb_per_s: *rate,
            transfers: 1,
            depth: 1.0,
            mean_transfer_us: 1.0,
        };
        let pattern = PatternReport {
            pattern: Pattern::All,
            steps: 1,
            seconds: 1.0,
            total_gb_per_s: spread(total),
            pairs: rates.iter().enumerate().map(pair).collect(),
            endpoints: Vec::new(),
            nodes: Vec::new(),
            nics: Vec::new(),
            machines: Vec::new(),
            cpu_seconds: 1.0,
            transfers: 1,
            verified_bytes: 1,
            events: Vec::new(),
        };
        LayoutReport { layout, processes: 1, patterns: vec![pattern] }
    }

    #[test]
    fn rates_and_slow_pairs_are_told() {
        let told = conclusions(&[layout(Layout::One, 2.0, &[1.0, 1.1, 0.7, 1.0, 0.5, 1.2])], 3);
        let text = "all, layout one: 2.00 GB/s ± 1 % in all; the median pair gets 1.00, the slowest \
                    0.500, the fastest 1.20";
        assert_eq!(told[0], text);
        let slow = "all, layout one: slower than 80 % of the median pair: node0 to node5 (50 %), node0 to node3 \
                    (70 %)";
        assert_eq!(told[1], slow);
        assert_eq!(told.len(), 2);
        let many = [1.0, 1.0, 1.0, 1.0, 1.0, 0.1, 0.2, 0.3, 0.4];
        let told = conclusions(&[layout(Layout::One, 2.0, &many)], 3);
        assert!(told[1].ends_with("node0 to node8 (30 %) and 1 more"), "{told:?}");
        assert_eq!(conclusions(&[], 3), Vec::<String>::new());
    }

    #[test]
    fn layouts_differ_only_by_more_than_the_rounds_vary() {
        let first = || layout(Layout::One, 2.0, &[2.0]);
        let told = conclusions(&[first(), layout(Layout::PerGpu, 2.02, &[2.0])], 3);
        let text = "all: layout `per-gpu` makes 1.01 x what `one` makes: undecided, within what the rounds vary by, \
                    ± 2 %";
        assert_eq!(told[2], text);
        let told = conclusions(&[first(), layout(Layout::PerGpu, 1.5, &[2.0])], 3);
        assert!(
            told[2].contains("0.75 x what `one` makes: more than the rounds vary by"),
            "{told:?}"
        );
    }

    #[test]
    fn a_single_round_decides_nothing() {
        let told = conclusions(
            &[layout(Layout::One, 2.0, &[2.0]), layout(Layout::PerGpu, 1.5, &[2.0])],
            1,
        );
        assert_eq!(told[0], "all, layout one: 2.00 GB/s in all");
        assert!(told[2].ends_with("undecided, as a single round has no interval"), "{told:?}");
    }

    #[test]
    fn a_node_with_fewer_nics_than_the_others_is_named_first() {
        let mut one = layout(Layout::One, 2.0, &[2.0]);
        one.patterns[0].nics = vec![nic(0, 0), nic(0, 0), nic(1, 0), nic(2, 0), nic(2, 0)];
        let told = conclusions(&[one], 3);
        assert!(told[0].starts_with("fewer NICs than other nodes: node1 (1 of 2): "), "{told:?}");
    }

    fn nic(node: usize, retransmits: u64) -> NicReport {
        NicReport {
            node,
            name: "rail0".into(),
            tx_gb_per_s: 1.0,
            rx_gb_per_s: 1.0,
            retransmits,
            resent_chunks: 0,
            carried_share: None,
            rx_dropped: 0,
            tx_dropped: 0,
            window_full_share: 0.0,
            socket_full_share: 0.0,
        }
    }

    #[test]
    fn what_a_hosted_plugin_left_to_tcp_is_told_with_the_worst_device() {
        let mut hosted = layout(Layout::One, 2.0, &[2.0]);
        let device = |node, share| NicReport { carried_share: Some(share), ..nic(node, 0) };
        hosted.patterns[0].nics = vec![device(0, 1.0), device(1, 0.995), nic(2, 0)];
        assert_eq!(conclusions(&[hosted.clone()], 3).len(), 1);
        hosted.patterns[0].nics[1] = device(1, 0.25);
        let told = conclusions(&[hosted], 3);
        let text = "all, layout one: of what node1 rail0 sent the hosted plugin carried 25.0 %";
        assert!(told[1].starts_with(text), "{told:?}");
    }

    #[test]
    fn a_rail_that_was_down_is_told_with_its_rounds() {
        let event = |what, round, count, because: Option<&str>| RailEvent {
            rail: "rail1".into(),
            end: "node2".into(),
            what,
            at_s: 1.0,
            round,
            count,
            because: because.map(str::to_owned),
        };
        let mut cut = layout(Layout::One, 2.0, &[2.0]);
        cut.patterns[0].events = vec![
            event(RailEventKind::Down, 2, 1, Some("its interface was down")),
            event(RailEventKind::Resent, 2, 10, None),
            event(RailEventKind::Back, 3, 1, None),
        ];
        let text = "all, layout one: node2 rail1 was down in round 2 (its interface was down) and back in round 3; 10 \
                    chunks sent again";
        assert_eq!(conclusions(&[cut.clone()], 3)[1], text);
        let events = cut.patterns[0].events.clone();
        cut.patterns[0].events.push(event(RailEventKind::Down, 3, 1, None));
        let text = "all, layout one: node2 rail1 was down in round 2 (its interface was down) and back in round 3; was \
                    down in round 3 and stayed so; 10 chunks sent again";
        assert_eq!(conclusions(&[cut.clone()], 3)[1], text);
        cut.patterns[0].events.push(event(RailEventKind::Back, 1, 1, None));
        let told = conclusions(&[cut.clone()], 3);
        assert!(
            told[1].contains("; was down in round 3 and back in round 1 of a later step; "),
            "{told:?}"
        );
        cut.patterns[0].events = vec![event(RailEventKind::Back, 2, 1, None)];
        assert_eq!(
            conclusions(&[cut.clone()], 3)[1],
            "all, layout one: node2 rail1 came back in round 2"
        );
        cut.patterns[0].events = events;
        cut.patterns[0].events.pop();
        assert!(conclusions(&[cut.clone()], 3)[1].contains("and stayed so; 10 chunks"));
        cut.patterns[0].events.remove(0);
        assert_eq!(conclusions(&[cut], 3)[1], "all, layout one: node2 rail1: 10 chunks sent again");
    }

    #[test]
    fn segments_that_were_sent_again_are_told_with_the_nic_that_sent_most() {
        let mut lossy = layout(Layout::One, 2.0, &[2.0]);
        lossy.patterns[0].nics = vec![nic(0, 3), nic(1, 40)];
        let told = conclusions(&[lossy], 3);
        let text = "all, layout one: the NICs sent 43 segments again, 40 of them node1 rail0";
        assert_eq!(told[1], text);
    }
}
