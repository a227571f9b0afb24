//! Stall check of a flow that has waited for its peer for too long: the rail, the peer, or a device here may be the
//! cause.

use polyrail_proto::Time;
use polyrail_proto::liveness::{Silence, StallVerdict};

use super::TxFlow;
use crate::device::wire::Wire;
use crate::engine::pass::Pass;
use crate::engine::peer::Down;

impl TxFlow {
    /// Excuses the silence since then, when no thread drove the flow: this process may have had no CPU.
    pub(crate) fn excuse(&self, since: u64, pass: &Pass<'_>) {
        self.peer.tx().sender.handle_absence(Time(since), Time(pass.now), self.flow);
    }

    /// Whether the flow may have waited for its peer for too long.
    pub(crate) fn seems_stalled(&self, pass: &Pass<'_>) -> bool {
        let (tx, now) = (self.peer.tx(), Time(pass.now));
        tx.sender.is_stalled(now, self.flow, pass.engine.settings.rail_stall / 2)
    }

    /// Checks whether the flow has waited for its peer for too long, and asks the kernel before judging.
    pub(crate) fn check_stall(&mut self, wire: &Wire, pass: &Pass<'_>) -> Result<(), Down> {
        let settings = &pass.engine.settings;
        let now = Time(pass.now);
        let mut tx = self.peer.tx();
        // A rail may have become slow without any event.
        self.peer.announce_wanted(&mut tx, pass.now);
        let stall = self.peer.stall(settings, now);
        let patience = tx.patience.of(stall);
        let since = tx.sender.flow_progress(self.flow);
        if !tx.sender.is_stalled(now, self.flow, self.stall.next_look(since, patience)) {
            return Ok(());
        }
        let oldest = self.staging.oldest_ns().filter(|_| self.sequence == self.acknowledged);
        let device = oldest.map(|began_ns| now.since(Time(began_ns)));
        let carrier = self.carrier.silence(pass.now);
        let peer_timeout = settings.peer_timeout;
        let silence = Silence { since, patience, device, carrier, peer_timeout };
        match self.stall.judge(&silence, || wire.taken_bytes()) {
            StallVerdict::Waits => Ok(()),
            StallVerdict::Moves => {
                tx.sender.handle_progress(now, self.flow);
                Ok(())
            }
            StallVerdict::DeviceStuck => {
                let waited = device.unwrap_or_default().as_millis();
                Err(Down(format!("a device has not copied a chunk in {waited} ms")))
            }
            StallVerdict::Stalled => {
                tx.patience.handle_stalled(stall, peer_timeout);
                self.peer.suspect_rail_of(&mut tx, self.flow, now);
                let why = wire.hindrance().map_or_else(String::new, |why| format!(": {why}"));
                let silent_ms = now.since(since).as_millis();
                Err(Down(format!("no progress for {silent_ms} ms{why}")))
            }
        }
    }
}
