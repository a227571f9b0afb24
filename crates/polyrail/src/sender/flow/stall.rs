//! A flow that waits for its peer for too long: is it the rail, the peer, or a device here?

use std::time::Duration;

use polyrail_proto::Time;

use super::TxFlow;
use crate::device::wire::Wire;
use crate::engine::pass::{Down, Pass};

/// The other kernel takes what its buffers hold even for a process that is stopped. So how much it
/// has acknowledged is noted some time into a silence, and only what it takes after that counts.
#[derive(Default)]
pub(super) struct Quiet {
    /// When the silence began.
    since: Time,
    /// Bytes that the other kernel had acknowledged by then, and a while after; or the other process, if it
    /// reads them from shared memory.
    acked: u64,
}

impl TxFlow {
    /// Nobody has driven the flow since then: it may be this process that had no CPU.
    pub(crate) fn excuse(&self, since: u64, pass: &Pass<'_>) {
        self.peer.tx().sender.handle_absence(Time(since), Time(pass.now), self.flow);
    }

    /// Whether the flow may have waited for its peer for too long.
    pub(crate) fn seems_stalled(&self, pass: &Pass<'_>) -> bool {
        let (tx, now) = (self.peer.tx(), Time(pass.now));
        tx.sender.is_stalled(now, self.flow, pass.engine.settings.rail_stall / 2)
    }

    /// Whether the flow has waited for its peer for too long, asking the kernel before judging.
    pub(crate) fn check_stall(&mut self, wire: &Wire, pass: &Pass<'_>) -> Result<(), Down> {
        let settings = &pass.engine.settings;
        let now = Time(pass.now);
        let mut tx = self.peer.tx();
        // A rail may have become slow without a word.
        self.peer.wake_wanted(&mut tx, pass);
        let patience = self.peer.stall(settings).max(tx.patience);
        let quiet_since = tx.sender.flow_progress(self.flow);
        let is_new = self.quiet.since != quiet_since;
        if !tx.sender.is_stalled(now, self.flow, if is_new { patience / 2 } else { patience }) {
            return Ok(());
        }
        if self.sequence == self.acknowledged
            && let Some(first) = self.staged.front()
        {
            // The peer waits for us, and we for a device.
            let waited = Duration::from_nanos(pass.now.saturating_sub(first.began_ns));
            if waited < settings.peer_timeout {
                tx.sender.handle_progress(now, self.flow);
                return Ok(());
            }
            let waited = waited.as_millis();
            return Err(Down(format!("a device has not copied a chunk in {waited} ms")));
        }
        if self.carrier.silence(pass.now).is_some_and(|silence| silence < patience / 2) {
            // What the plugin moves is not in the connection's own count.
            tx.sender.handle_progress(now, self.flow);
            return Ok(());
        }
        let acked = wire.taken_bytes();
        if is_new {
            self.quiet = Quiet { since: quiet_since, acked };
            return Ok(());
        }
        if acked > self.quiet.acked {
            tx.sender.handle_progress(now, self.flow);
            return Ok(());
        }
        let silence = now.since(quiet_since);
        tx.patience = (patience * 2).min(settings.peer_timeout / 2);
        self.peer.suspect_rail_of(&mut tx, self.flow, now);
        let why = wire.hindrance().map_or_else(String::new, |why| format!(": {why}"));
        Err(Down(format!("no progress for {} ms{why}", silence.as_millis())))
    }
}
