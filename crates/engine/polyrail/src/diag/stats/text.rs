//! Counters as log lines.

use std::fmt::{Display, Formatter, Result};

use polyrail_proto::reason::Flows;

use super::{PeerStats, RailStats, Stats};

/// Bytes with three digits, in units of 1000.
struct Bytes(u64);

impl Display for Stats {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let all = self.peers.iter().map(PeerStats::flows);
        let flows = all.fold(Flows { up: 0, total: 0 }, |sum, Flows { up, total }| Flows {
            up: sum.up + up,
            total: sum.total + total,
        });
        let totals = &self.totals;
        write!(f, "peers {}, {flows} up, operations {}; ", self.peers.len(), self.ops_outstanding)?;
        write!(f, "sent {}, received {}", Bytes(totals.tx_bytes), Bytes(totals.rx_bytes))?;
        write_others(f, totals.shared_bytes, totals.peer_copy_bytes)?;
        let refused: u64 = self.peers.iter().map(|peer| peer.quota_refusals).sum();
        write_trouble(
            f,
            [
                (totals.retransmits, "retransmits"),
                (totals.resent_chunks, "resent chunks"),
                (totals.down_count, "lost flows"),
                (refused, "quota refusals"),
                (self.refused_connections, "refused connections"),
                (self.callback_panics, "callback panics"),
                (self.rescues, "rescues"),
            ],
        )?;
        if f.alternate() {
            self.peers.iter().try_for_each(|peer| write!(f, "\n  {peer}"))?;
        }
        Ok(())
    }
}

impl Display for PeerStats {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let sum = |counter: fn(&RailStats) -> u64| self.rails.iter().map(counter).sum::<u64>();
        let place = if self.same_host { "this host" } else { "remote" };
        write!(f, "peer {} ({}, {place}): {} up; ", self.name, self.instance, self.flows())?;
        let (sent, received) = (sum(|rail| rail.tx_bytes), sum(|rail| rail.rx_bytes));
        write!(f, "sent {}, received {}", Bytes(sent), Bytes(received))?;
        write_others(f, self.shared_bytes, self.peer_copy_bytes)?;
        write_trouble(
            f,
            [
                (sum(|rail| rail.retransmits), "retransmits"),
                (sum(|rail| rail.resent_chunks), "resent chunks"),
                (sum(|rail| rail.down_count), "lost flows"),
                (self.quota_refusals, "quota refusals"),
            ],
        )
    }
}

impl PeerStats {
    fn flows(&self) -> Flows {
        let flows = self.rails.iter().flat_map(|rail| &rail.flows);
        Flows { up: flows.clone().filter(|flow| flow.up).count(), total: flows.count() }
    }
}

/// The payload that used no rail.
fn write_others(f: &mut Formatter<'_>, shared: u64, copied: u64) -> Result {
    if shared > 0 {
        write!(f, ", left {} in shared memory", Bytes(shared))?;
    }
    if copied > 0 {
        write!(f, ", devices copied {}", Bytes(copied))?;
    }
    Ok(())
}

fn write_trouble<const N: usize>(
    f: &mut Formatter<'_>,
    trouble: [(u64, &'static str); N],
) -> Result {
    let some = trouble.into_iter().filter(|(count, _)| *count > 0).enumerate();
    for (index, (count, what)) in some {
        let comma = if index == 0 { "; trouble: " } else { ", " };
        write!(f, "{comma}{what} {count}")?;
    }
    Ok(())
}

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
        if self.0 < 1000 {
            return write!(f, "{} B", self.0);
        }
        let (mut value, mut unit) = (self.0 as f64 / 1e3, 0);
        // From here on three digits would round up to a thousand.
        while value >= 999.5 && unit + 1 < UNITS.len() {
            value /= 1e3;
            unit += 1;
        }
        let digits = match value {
            value if value < 9.995 => 2,
            value if value < 99.95 => 1,
            _ => 0,
        };
        write!(f, "{value:.digits$} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diag::stats::FlowSnapshot;

    #[test]
    fn bytes_have_three_digits_and_the_unit_that_fits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (9_994, "9.99 kB"),
            (9_996, "10.0 kB"),
            (99_960, "100 kB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (12_345_678_901, "12.3 GB"),
            (u64::MAX, "18.4 EB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }

    #[test]
    fn a_line_names_trouble_only_if_there_was_some() {
        let flow = |up| FlowSnapshot { up, ..FlowSnapshot::default() };
        let (flows, name) = (vec![flow(true), flow(false)], "eth0".to_owned());
        let rail = RailStats { name, flows, tx_bytes: 1_500_000, ..RailStats::default() };
        let peer = PeerStats {
            name: "rank1".to_owned(),
            instance: "0badcafe".to_owned(),
            shared_bytes: 7,
            rails: vec![rail],
            ..PeerStats::default()
        };
        let mut stats = Stats { peers: vec![peer], ops_outstanding: 3, ..Stats::default() };
        (stats.totals.tx_bytes, stats.totals.rx_bytes) = (2_500_000, 10);
        let calm = "peers 1, 1 of 2 flows up, operations 3; sent 2.50 MB, received 10 B";
        assert_eq!(stats.to_string(), calm);
        (stats.totals.retransmits, stats.callback_panics) = (4, 1);
        stats.peers[0].rails[0].down_count = 2;
        let trouble = "; trouble: retransmits 4, callback panics 1";
        let peer = "peer rank1 (0badcafe, remote): 1 of 2 flows up; sent 1.50 MB, received 0 B, left 7 \
                    B in shared memory; trouble: lost flows 2";
        assert_eq!(format!("{stats:#}"), format!("{calm}{trouble}\n  {peer}"));
    }
}
