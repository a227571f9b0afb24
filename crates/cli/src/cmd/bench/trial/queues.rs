//! Packets that the queues of the rails' interfaces drop.

use std::collections::HashMap;

use polyrail::Engine;
use polyrail_lab::QueueCounts;

/// Counts of each rail's interface at one moment, by the rail's name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Queues(HashMap<String, QueueCounts>);

impl Queues {
    /// Reads the counts, except those that the kernel does not report.
    pub(crate) fn look(engine: &Engine) -> Self {
        let counts: HashMap<String, QueueCounts> =
            polyrail_lab::queue_counts().unwrap_or_default().into_iter().collect();
        let rails = engine.rails().into_iter();
        Self(rails.filter_map(|rail| Some((rail.name, *counts.get(&rail.interface)?))).collect())
    }

    /// Returns the rail whose queue dropped the greatest share of its packets between this look and `later`, and that
    /// share.
    pub(crate) fn worst(&self, later: &Self) -> Option<(String, f64)> {
        let dropped = |(name, now): (&String, &QueueCounts)| {
            let before = self.0.get(name)?;
            let dropped = f64::from(now.dropped.wrapping_sub(before.dropped));
            let sent = f64::from(now.sent.wrapping_sub(before.sent));
            (dropped > 0.0).then(|| (name.clone(), dropped / (sent + dropped)))
        };
        later.0.iter().filter_map(dropped).max_by(|a, b| a.1.total_cmp(&b.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_queue_that_drops_the_greatest_part_is_named_though_counts_wrap() {
        let queues = |rails: &[(&str, u32, u32)]| {
            let counts = |(name, sent, dropped): &(&str, u32, u32)| {
                ((*name).to_owned(), QueueCounts { sent: *sent, dropped: *dropped })
            };
            Queues(rails.iter().map(counts).collect())
        };
        let before = queues(&[("a", u32::MAX, 5), ("b", 0, 0), ("c", 10, 0)]);
        let after = queues(&[("a", 74, 30), ("b", 90, 10), ("c", 20, 0), ("d", 1, 9)]);
        assert_eq!(before.worst(&after), Some(("a".into(), 0.25)));
        assert_eq!(before.worst(&before), None, "nothing was dropped");
    }
}
