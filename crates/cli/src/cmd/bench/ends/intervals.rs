//! With `--interval`: what the engine moves, a line for each interval, while the bench runs.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use polyrail::{Engine, Stats};
use polyrail_report::show_gb_per_s;

use crate::fault::Fault;
use crate::progress::Beside;

/// Prints the lines until it is dropped.
pub(super) struct Intervals {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// Payload that an engine has moved, in both directions.
#[derive(Clone, Debug, Default)]
struct Moved {
    by_rail: BTreeMap<String, u64>,
    /// By copies from end to end, and through memory that both ends have open.
    over_no_rail: u64,
}

impl Intervals {
    pub(super) fn start(engine: &Engine, every: Duration, beside: Beside) -> Result<Self, Fault> {
        let (stop, stopped) = channel();
        let engine = engine.clone();
        let thread = thread::Builder::new().name("intervals".into());
        let thread = thread.spawn(move || follow(&engine, every, &beside, &stopped));
        let thread = thread.map_err(|source| Fault::system("starting a thread", source))?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Intervals {
    fn drop(&mut self) {
        drop(self.stop.take());
        // It panics only with a bug, which it has told about itself.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn follow(engine: &Engine, every: Duration, beside: &Beside, stopped: &Receiver<()>) {
    let begin = Instant::now();
    let (mut last, mut before) = (begin, Moved::of(&engine.stats()));
    loop {
        let left = (last + every).saturating_duration_since(Instant::now());
        if stopped.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
            return;
        }
        let (now, moved) = (Instant::now(), Moved::of(&engine.stats()));
        let text = moved.line(&before, now - last);
        let at = (now - begin).as_secs_f64();
        beside.say(|doing| format!("{at:.1} s  {text}  {doing}"));
        (last, before) = (now, moved);
    }
}

impl Moved {
    fn of(stats: &Stats) -> Self {
        let mut moved = Self::default();
        for peer in &stats.peers {
            moved.over_no_rail += peer.peer_copy_bytes + peer.shared_bytes;
            for rail in &peer.rails {
                *moved.by_rail.entry(rail.name.clone()).or_default() +=
                    rail.tx_bytes + rail.rx_bytes;
            }
        }
        moved
    }

    /// `1.25 GB  1.25 GB/s  eth0 0.750, eth1 0.500`.
    fn line(&self, before: &Self, time: Duration) -> String {
        let rate = |bytes: u64| show_gb_per_s(bytes as f64 / time.as_secs_f64().max(1e-9) / 1e9);
        let before_on = |rail| before.by_rail.get(rail).copied().unwrap_or_default();
        let rails = self.by_rail.iter();
        let rails = rails.map(|(rail, bytes)| (rail, bytes.saturating_sub(before_on(rail))));
        let rails: Vec<_> = rails.collect();
        let apart = self.over_no_rail.saturating_sub(before.over_no_rail);
        let all = rails.iter().map(|(_, bytes)| bytes).sum::<u64>() + apart;
        let mut each: Vec<_> =
            rails.iter().map(|(rail, bytes)| format!("{rail} {}", rate(*bytes))).collect();
        if apart > 0 {
            each.push(format!("over no rail {}", rate(apart)));
        }
        let (bytes, each) = (show_gb_per_s(all as f64 / 1e9), each.join(", "));
        format!("{bytes} GB  {} GB/s  {each}", rate(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_the_bytes_of_its_interval_the_rate_and_that_of_each_rail() {
        let moved = |rails: &[(&str, u64)], over_no_rail| Moved {
            by_rail: rails.iter().map(|(rail, bytes)| ((*rail).to_owned(), *bytes)).collect(),
            over_no_rail,
        };
        let before = moved(&[("eth0", 1_000_000_000)], 0);
        let now = moved(&[("eth0", 2_500_000_000), ("eth1", 500_000_000)], 0);
        let two = Duration::from_secs(2);
        assert_eq!(now.line(&before, two), "2.00 GB  1.00 GB/s  eth0 0.750, eth1 0.250");
        let copied = moved(&[("eth0", 2_500_000_000), ("eth1", 500_000_000)], 3_000_000_000);
        let line = copied.line(&now, two);
        assert_eq!(line, "3.00 GB  1.50 GB/s  eth0 0.000, eth1 0.000, over no rail 1.50");
    }
}
