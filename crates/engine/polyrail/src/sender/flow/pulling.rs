//! Choice of the next chunks to send: posted operations enter the sender core, and chunks leave it for this flow, under
//! the peer's lock.

use std::sync::Arc;

use polyrail_proto::{Failure, Time};
use polyrail_secure::Sealer;

use super::TxFlow;
use super::frame::cut_off;
use crate::engine::finish::drain_tx;
use crate::engine::pass::Pass;
use crate::engine::peer::{Down, PeerShared, TxSide};
use crate::wake::ALL;

/// Most frames gathered into one system call.
pub(super) const GATHER_FRAMES: usize = 64;
/// Payload after which no further frame is gathered.
const GATHER_BYTES: u64 = 256 << 10;

impl TxFlow {
    /// Takes the next chunks to send. Returns whether there is room for more at once: a device that copies a chunk can
    /// be given the next.
    pub(super) fn pull(&mut self, sealer: &mut Sealer, pass: &mut Pass<'_>) -> Result<bool, Down> {
        if self.rests(pass) {
            self.stuck = true;
            return Ok(false);
        }
        // Only a pulled chunk shows whether it needs room in a ring.
        if self.lacks_room(pass) {
            // Only acknowledgements free room in the shared ring: others may go on meanwhile.
            self.stuck |= self.shared.is_some();
            return Ok(false);
        }
        let peer = self.peer.clone();
        let mut tx = peer.tx();
        self.report_written(&mut tx, pass);
        if peer.is_suspect(&tx, self.flow, pass.engine.settings.rail_stall / 2) {
            return Err(Down("another flow of its rail has stalled".into()));
        }
        fetch_posted(&peer, &mut tx, pass);
        let mut bytes = 0;
        let mut staged = None;
        while self.pulled.len() < GATHER_FRAMES && bytes < GATHER_BYTES && staged.is_none() {
            let Some(chunk) = tx.sender.pull(Time(pass.now), self.flow) else {
                self.note_no_chunk(&tx, pass);
                break;
            };
            // Nothing of it is in the stream, so the flow and the chunks of other transfers stay.
            if let Some(why) = cut_off(&chunk) {
                chunk.source.note_device_error(why);
                tx.sender.end(chunk.header.transfer, Failure::Device);
                tx.sender.hand_back(self.flow);
                drain_tx(&mut tx, pass);
                continue;
            }
            bytes += u64::from(chunk.header.payload_len);
            // Checked once: there is room for one chunk, and shared memory may come back at any moment.
            if !self.is_staged(&chunk) {
                self.pulled.push(chunk);
            } else if pass.hasty && !self.has_ring_for(&chunk) {
                // Getting memory for a ring takes milliseconds and more: no caller waits for that.
                tx.sender.hand_back(self.flow);
                drain_tx(&mut tx, pass);
                self.lacks_ring = true;
                break;
            } else {
                staged = Some(chunk);
            }
        }
        let is_none = self.pulled.is_empty() && staged.is_none();
        // Nothing is left anywhere: no proxy needs to look again before the next post.
        if is_none && !tx.sender.has_work() {
            if peer.posted.is_empty() {
                peer.wake.done();
            }
            // Something was posted after the fetch. Which proxy that post wakes is not known here, so this pass fetches
            // it as well.
            if !peer.posted.is_empty() {
                self.has_room_again();
                return Ok(true);
            }
        }
        // A flow that is denied a chunk leaves it to others, which have to be woken.
        let is_more = !is_none && tx.sender.has_work();
        peer.announce_wanted(&mut tx, pass.now);
        self.denied = tx.sender.is_denied(self.flow);
        drop(tx);
        // Another proxy can begin with the rest while this one sends.
        if is_more {
            peer.wake.share();
        }
        let mut pulled = std::mem::take(&mut self.pulled);
        for chunk in pulled.drain(..) {
            if self.staging.is_empty() {
                let body = self.body_of(&chunk);
                self.queue(chunk, body, sealer, pass)?;
            } else {
                self.put_behind(chunk, pass);
            }
        }
        self.pulled = pulled;
        let Some(chunk) = staged else { return Ok(false) };
        self.stage(chunk, pass)
    }

    /// Reports to the sender core the chunks that were written. Called where its lock is taken anyway, since all flows
    /// of the peer share that lock.
    pub(super) fn report_written(&mut self, tx: &mut TxSide, pass: &mut Pass<'_>) {
        if self.unreported == 0 {
            return;
        }
        for _ in 0..std::mem::take(&mut self.unreported) {
            tx.sender.handle_written(self.flow);
        }
        let had_work = tx.sender.has_work();
        // A cancelled transfer may have waited for just this write. The peer must be notified of the cancel, and this
        // flow may have no room in its ring until the peer has processed that.
        drain_tx(tx, pass);
        if !had_work && tx.sender.has_work() {
            self.peer.wake.announce(ALL);
        }
    }

    fn note_no_chunk(&mut self, tx: &TxSide, pass: &Pass<'_>) {
        if tx.sender.has_work() && !tx.sender.has_room(self.flow) {
            self.stuck = true;
            if self.window_full_since.is_none() {
                self.window_full_since = Some(pass.now);
                self.peer.links.flows[self.flow.0 as usize].stats.window_full.add(1);
            }
        } else {
            self.window_full_since = None;
        }
    }
}

/// Hands posted operations to the sender core: a batch every few passes, or at once if the core has nothing else to do.
fn fetch_posted(peer: &Arc<PeerShared>, tx: &mut TxSide, pass: &mut Pass<'_>) {
    if tx.sender.has_work() && tx.fetch_in > 0 {
        tx.fetch_in -= 1;
        return;
    }
    tx.fetch_in = pass.engine.settings.append_freq;
    let mut fetched = 0;
    // An operation that was cancelled, or waits for its receive, gives nothing to send. Go on past it: there may be no
    // later visit for the operations behind it.
    while fetched < pass.engine.settings.append_batch || !tx.sender.has_work() {
        let Some(op) = peer.posted.pop() else { break };
        pass.sends = true;
        tx.submit_op(Time(pass.now), op, pass);
        fetched += 1;
    }
}
