//! What the figures of a mesh come to, in sentences.

use std::collections::BTreeMap;

use polyrail_report::{CARRIED_LEAST, Spread, show_gb_per_s, show_ratio};

use super::report::{LayoutReport, PairReport, PatternReport};

/// A pair that is slower in every round than this part of the one in the middle is named.
const SLOW_SHARE: f64 = 0.8;
/// More of them would hide each other.
const NAMED: usize = 3;

/// Of each layout and pattern what pairs get and which stand out, then how the layouts differ.
pub(crate) fn conclusions(layouts: &[LayoutReport], rounds: u32) -> Vec<String> {
    let mut told: Vec<String> = layouts.iter().find_map(fewer_nics).into_iter().collect();
    for layout in layouts {
        for pattern in &layout.patterns {
            let name = format!("{}, layout {}", pattern.pattern.name(), layout.layout.name());
            told.extend(rates(&name, pattern, rounds));
            told.extend(slow_pairs(&name, &pattern.pairs));
            told.extend(sent_again(&name, pattern));
            told.extend(left_by_plugins(&name, pattern));
        }
    }
    let Some((first, others)) = layouts.split_first() else { return told };
    for other in others {
        let all = first.patterns.iter();
        told.extend(all.filter_map(|pattern| against(first, pattern, other, rounds)));
    }
    told
}

/// Nodes that took part with fewer NICs than others: a rail that is down has no row in the tables.
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

fn middle(pairs: &[PairReport]) -> Option<Spread> {
    Spread::of(pairs.iter().map(|pair| pair.gb_per_s.median))
}

fn rates(name: &str, pattern: &PatternReport, rounds: u32) -> Option<String> {
    let total = pattern.total_gb_per_s;
    let Spread { median, min, max } = middle(&pattern.pairs)?;
    let [median, min, max] = [median, min, max].map(show_gb_per_s);
    let each = if pattern.pairs.len() == 1 {
        String::new()
    } else {
        format!("; the pair in the middle gets {median}, the slowest {min}, the fastest {max}")
    };
    let varies = match rounds {
        1 => String::new(),
        _ => format!(" ± {:.0} %", total.half_range_percent()),
    };
    Some(format!("{name}: {} GB/s{varies} in all{each}", show_gb_per_s(total.median)))
}

fn slow_pairs(name: &str, pairs: &[PairReport]) -> Option<String> {
    let median = middle(pairs)?.median;
    // In every round: one slow round says little of the pair.
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
        format!("{name}: slower than {limit:.0} % of the middle: {}{more}", named.join(", "))
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

/// The payload of a hosted plugin takes TCP where the plugin can't, and the figures are those of TCP then.
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

/// What another layout makes of a pattern. Nothing is concluded from a difference within what the rounds vary by.
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
    use super::super::report::NicReport;
    use super::*;

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
        };
        LayoutReport { layout, processes: 1, patterns: vec![pattern] }
    }

    #[test]
    fn rates_and_slow_pairs_are_told() {
        let told = conclusions(&[layout(Layout::One, 2.0, &[1.0, 1.1, 0.7, 1.0, 0.5, 1.2])], 3);
        let text = "all, layout one: 2.00 GB/s ± 1 % in all; the pair in the middle gets 1.00, the slowest \
                    0.500, the fastest 1.20";
        assert_eq!(told[0], text);
        let slow = "all, layout one: slower than 80 % of the middle: node0 to node5 (50 %), node0 to node3 \
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
    fn segments_that_were_sent_again_are_told_with_the_nic_that_sent_most() {
        let mut lossy = layout(Layout::One, 2.0, &[2.0]);
        lossy.patterns[0].nics = vec![nic(0, 3), nic(1, 40)];
        let told = conclusions(&[lossy], 3);
        let text = "all, layout one: the NICs sent 43 segments again, 40 of them node1 rail0";
        assert_eq!(told[1], text);
    }
}
